"""The n-gram model against a dense softmax over explicit features of all contexts."""

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.text import encode, read_coded
from structsparse.corpora.text_reading import TextReading
from structsparse.losses.softmax import SoftmaxLM
from structsparse.structures.contexts import Contexts
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.model import NgramModel
from structsparse.weights.notes import notes_of
from tests.structures.test_contexts import EXACT, draw, sentences

ORDER = 4
KINDS = [
    (1.0, "none", False),
    (0.7, "none", False),
    (1.3, "unigram", False),
    (1.0, "unigram", True),
    (0.8, "none", True),
]


@pytest.fixture(scope="module")
def text():
    return encode(sentences())


def histories(text):
    """For each target its word, and the words before it in its sentence, the nearest first."""
    V = len(text.vocabulary)
    targets, past = [], []
    for code in text.codes.tolist():
        if code == V:
            past = [V]
        else:
            targets.append((code, past[::-1]))
            past = [*past, code]
    return targets


def dense_probabilities(text, model, trie, entry_of):
    """log p(v | context) for every target of a text and every word v: [targets, V]

    The weight of entry e of the trie is the model's table at entry_of[e], times alpha^depth."""
    V, table = trie.words, model.table.detach().numpy()
    words = [()]  # by node, the nearest word first
    for node in range(1, trie.nodes):
        words.append((*words[trie.above[node]], int(trie.word[node])))
    rows = {context: np.zeros(V) for context in words}
    for e in range(trie.entries):
        rows[words[trie.entry_node[e]]][trie.entry_word[e]] = table[entry_of[e]]
    counts = np.maximum(trie.entry_count[:V], 0.5)
    base = np.log(counts / counts.sum()) if model.base_name == "unigram" else np.zeros(V)
    rows_of_targets = []
    for _, past in histories(text):
        known = [tuple(past[:depth]) for depth in range(min(trie.order, len(past) + 1))]
        scores = base + sum(model.alpha ** len(context) * rows[context] for context in known if context in rows)
        rows_of_targets.append(scores - np.log(np.exp(scores).sum()))
    return np.array(rows_of_targets)


def with_weights(tree, alpha, base, scale=1.0):
    """A model with random weights."""
    model = NgramModel(tree, alpha, base).double()
    with torch.no_grad():
        model.table.copy_(draw(tree.entries, scale))
    return model


@pytest.mark.parametrize(("alpha", "base", "collapse"), KINDS)
def test_loss_and_probabilities_equal_those_of_explicit_features(alpha, base, collapse, text):
    """An entry of a collapsed tree counts for every context of its chain, each with its own depth."""
    tree = trie = ContextTree.build(text, ORDER)
    entry_of = np.arange(trie.entries)
    if collapse:
        tree, entry_of = trie.collapse()
    model = with_weights(tree, alpha, base)
    expected = dense_probabilities(text, model, trie, entry_of)
    target = np.array([word for word, _ in histories(text)])
    values = expected[np.arange(len(target)), target]
    np.testing.assert_allclose(float(model.surprise().detach()), -values.sum(), rtol=1e-10)
    if not collapse:
        other = encode(sentences(seed=1, words=20), text.vocabulary)
        rows = dense_probabilities(other, model, trie, entry_of)
        target = np.array([word for word, _ in histories(other)])
        values = model.log_probabilities(trie.locate(other)).numpy()
        np.testing.assert_allclose(values, rows[np.arange(len(target)), target], rtol=1e-10)


def test_the_softmax_loss_equals_the_model_loss(text):
    model = with_weights(ContextTree.build(text, ORDER), 0.8, "none")
    loss = SoftmaxLM(model.structure)
    value = loss(model(), model.structure.node_ends, model.structure.entry_ends)
    assert loss.smooth
    assert model.linear
    torch.testing.assert_close(value, model.surprise(), **EXACT)


@pytest.mark.parametrize(("alpha", "base"), [(1.0, "none"), (0.7, "unigram")])
def test_mini_batches_add_up_to_the_full_loss(alpha, base, text):
    tree = ContextTree.build(text, ORDER)
    model = with_weights(tree, alpha, base)
    places = tree.locate(text)
    loss = model.surprise()
    (slope,) = torch.autograd.grad(loss, model.table)
    order = np.random.default_rng(0).permutation(len(text.targets))
    losses, slopes = torch.zeros((), dtype=torch.float64), torch.zeros_like(slope)
    for begin in range(0, len(order), 40):
        chosen = places.take(order[begin : begin + 40])
        small, rows = tree.restrict(chosen)
        part = model.surprise_of(Contexts(small), torch.from_numpy(rows))
        torch.testing.assert_close(-part, model.log_probabilities(chosen).sum(), **EXACT)
        losses += part.detach()
        slopes += torch.autograd.grad(part, model.table)[0]
    torch.testing.assert_close(losses, loss.detach(), **EXACT)
    torch.testing.assert_close(slopes, slope, **EXACT)


def test_a_pruned_model_gives_the_same_probabilities(text):
    tree = ContextTree.build(text, ORDER)
    model = with_weights(tree, 0.7, "unigram")
    alive = np.random.default_rng(0).random(tree.entries) < 0.3
    alive[: tree.words] = True
    with torch.no_grad():
        model.table.mul_(torch.from_numpy(alive))
    small, rows = tree.prune(alive)
    pruned = NgramModel(small, 0.7, "unigram").double()
    with torch.no_grad():
        pruned.table.copy_(model.table[rows])
    for other in (text, encode(sentences(seed=1), text.vocabulary)):
        values, expected = (m.log_probabilities(m.tree.locate(other)) for m in (pruned, model))
        torch.testing.assert_close(values, expected, **EXACT)


@pytest.mark.parametrize("base", ["none", "unigram"])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_initial_weights_predict_words_by_their_shares(alpha, base, text):
    tree = ContextTree.build(encode(sentences(seed=1, words=8), text.vocabulary), ORDER)  # with unseen words
    assert (tree.entry_count[: tree.words] == 0).any()
    model = NgramModel(tree, alpha, base).double()
    start = model.start()
    assert float(start.min()) == 0
    assert not bool(start[tree.words :].any())
    with torch.no_grad():
        model.table.copy_(start)
    sums = model.structure.path_sums(model())
    probabilities = torch.exp(sums - model.structure.log_partition(sums)[0])[: tree.words].numpy()
    counts = np.maximum(tree.entry_count[: tree.words], 0.5)
    np.testing.assert_allclose(probabilities, counts / counts.sum(), rtol=1e-10)


@pytest.mark.parametrize("collapse", [False, True])
@pytest.mark.parametrize("base", ["none", "unigram"])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_the_curvature_bounds_the_second_derivatives_at_the_start(alpha, base, collapse, text):
    """By finite differences of the gradient of the mean loss, up to the feature that a path shares.

    No entry has less than its count gives."""
    tree = ContextTree.build(encode(sentences(seed=1, words=8), text.vocabulary), 3, collapse)
    model = NgramModel(tree, alpha, base).double()
    metric = notes_of(model.table).curvature
    features = torch.ones(tree.entries) if model.features is None else model.features
    assert metric.shape == model.table.shape
    assert bool((metric > 0).all())
    assert model.targets == int(tree.entry_count[: tree.words].sum())
    weight = alpha ** torch.arange(tree.depth.max() + 1).double()  # by words of the context
    reach = torch.stack([weight[: top + 1].sum() for top in tree.tops().tolist()])[
        torch.from_numpy(tree.entry_node).long()
    ]
    least = torch.from_numpy(tree.entry_count) * features * reach / model.targets
    assert bool((metric.double() >= least * (1 - 1e-6)).all())
    start, step = model.start(), 1e-4
    for entry in range(0, tree.entries, 7):
        slopes = []
        for side in (-1, 1):
            table = start.clone()
            table[entry] += side * step
            with torch.no_grad():
                model.table.copy_(table)
            slopes.append(torch.autograd.grad(model.surprise() / model.targets, model.table)[0][entry])
        second = float(slopes[1] - slopes[0]) / (2 * step)
        assert 0 <= second <= float(metric[entry] * features[entry] / reach[entry]) * (1 + 1e-5) + 1e-10


def test_conversion_of_precision_keeps_the_curvature(text):
    model = NgramModel(ContextTree.build(text, ORDER), 0.7, "unigram")
    assert model.table.dtype == torch.float32
    assert not bool(model.table.any())
    metric = notes_of(model.table).curvature.clone()
    model = model.double()
    assert notes_of(model.table).curvature.dtype == torch.float64
    torch.testing.assert_close(notes_of(model.table).curvature.float(), metric)
    depth = model.tree.depth[model.tree.entry_node].astype(float)
    np.testing.assert_allclose(model.features.numpy(), 0.7**depth, rtol=1e-15)
    assert list(model.state_dict()) == ["table"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"alpha": 0.0}, "model.alpha is 0.0"), ({"alpha": np.nan}, "model.alpha"), ({"base": "bigram"}, "model.base")],
)
def test_wrong_options_are_named(options, reason, text):
    with pytest.raises(UserError, match=reason):
        NgramModel(ContextTree.build(text, 2), **options)


@pytest.mark.corpus
def test_probabilities_sum_to_one_in_contexts_of_real_text():
    """For a random sample of contexts of Penn Treebank text, from the scores of all words."""
    try:
        sources = locate("ptb")
    except UserError as error:
        pytest.skip(str(error))
    coded = read_coded(sources["dev"], TextReading())
    text = coded.text(coded.vocabulary())
    model = with_weights(ContextTree.build(text, 5), 0.8, "unigram", 2.0)
    tree = model.tree
    sums = model.structure.path_sums(model())
    log_z, sums = model.structure.log_partition(sums).numpy(), sums.numpy()
    for node in np.random.default_rng(0).choice(tree.nodes, 300, replace=False):
        path, scores = [], sums[: tree.words].copy()
        while node > 0:
            path.append(node)
            node = tree.above[node]
        for n in path[::-1]:
            entries = slice(tree.starts[n], tree.starts[n + 1])
            scores[tree.entry_word[entries]] = sums[entries]
        deepest = path[0] if path else 0
        assert np.exp(scores - log_z[deepest]).sum() == pytest.approx(1, abs=1e-10)
