"""The m-gram model beside a dense softmax over explicit features of the written-out contexts."""

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
    """Of each target: its word, and the words before it in its sentence, the nearest first."""
    V = len(text.vocabulary)
    found, past = [], []
    for code in text.codes.tolist():
        if code == V:
            past = [V]
        else:
            found.append((code, past[::-1]))
            past = [*past, code]
    return found


def dense_probabilities(text, model, trie, of):
    """log p(v | context) of every target of a text and every word v, [targets, V]: the weight of each (context, v) of
    the trie is that of entry `of` of the model's table, times alpha^depth."""
    V, table = trie.words, model.table.detach().numpy()
    words = [()]  # of each context, the nearest word first
    for node in range(1, trie.nodes):
        words.append((*words[trie.above[node]], int(trie.word[node])))
    rows = {context: np.zeros(V) for context in words}
    for e in range(trie.entries):
        rows[words[trie.entry_node[e]]][trie.entry_word[e]] = table[of[e]]
    counts = np.maximum(trie.entry_count[:V], 0.5)
    base = np.log(counts / counts.sum()) if model.base_name == "unigram" else np.zeros(V)
    found = []
    for _, past in histories(text):
        known = [tuple(past[:depth]) for depth in range(min(trie.order, len(past) + 1))]
        scores = base + sum(model.alpha ** len(context) * rows[context] for context in known if context in rows)
        found.append(scores - np.log(np.exp(scores).sum()))
    return np.array(found)


def with_weights(tree, alpha, base, scale=1.0):
    model = NgramModel(tree, alpha, base).double()
    with torch.no_grad():
        model.table.copy_(draw(tree.entries, scale))
    return model


@pytest.mark.parametrize(("alpha", "base", "collapse"), KINDS)
def test_loss_and_probabilities_are_those_of_explicit_features(alpha, base, collapse, text):
    """An entry of a collapsed tree counts for every context of its chain, each as its own depth has it."""
    tree = trie = ContextTree.build(text, ORDER)
    of = np.arange(trie.entries)
    if collapse:
        tree, of = trie.collapse()
    model = with_weights(tree, alpha, base)
    expected = dense_probabilities(text, model, trie, of)
    target = np.array([word for word, _ in histories(text)])
    chances = expected[np.arange(len(target)), target]
    np.testing.assert_allclose(float(model.surprise().detach()), -chances.sum(), rtol=1e-10)
    if not collapse:
        other = encode(sentences(seed=1, words=20), text.vocabulary)
        rows = dense_probabilities(other, model, trie, of)
        target = np.array([word for word, _ in histories(other)])
        found = model.log_probabilities(trie.locate(other)).numpy()
        np.testing.assert_allclose(found, rows[np.arange(len(target)), target], rtol=1e-10)


def test_the_loss_by_hand_of_the_structure_is_the_loss(text):
    model = with_weights(ContextTree.build(text, ORDER), 0.8, "none")
    loss = SoftmaxLM(model.structure)
    found = loss(model(), model.structure.node_ends, model.structure.entry_ends)
    assert loss.smooth
    assert model.linear
    torch.testing.assert_close(found, model.surprise(), **EXACT)


@pytest.mark.parametrize(("alpha", "base"), [(1.0, "none"), (0.7, "unigram")])
def test_mini_batches_add_up_to_the_whole(alpha, base, text):
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


def test_a_pruned_model_says_what_the_whole_says(text):
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
        found, expected = (m.log_probabilities(m.tree.locate(other)) for m in (pruned, model))
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("base", ["none", "unigram"])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_the_start_predicts_words_by_their_shares(alpha, base, text):
    tree = ContextTree.build(encode(sentences(seed=1, words=8), text.vocabulary), ORDER)  # leaves words unseen
    assert (tree.entry_count[: tree.words] == 0).any()
    model = NgramModel(tree, alpha, base).double()
    start = model.start()
    assert float(start.min()) == 0
    assert not bool(start[tree.words :].any())
    with torch.no_grad():
        model.table.copy_(start)
    sums = model.structure.path_sums(model())
    chances = torch.exp(sums - model.structure.log_partition(sums)[0])[: tree.words].numpy()
    counts = np.maximum(tree.entry_count[: tree.words], 0.5)
    np.testing.assert_allclose(chances, counts / counts.sum(), rtol=1e-10)


@pytest.mark.parametrize("collapse", [False, True])
@pytest.mark.parametrize("base", ["none", "unigram"])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_the_metric_bounds_the_diagonal_of_the_curvature_at_the_start(alpha, base, collapse, text):
    """Of the mean loss, by finite differences of its gradient, up to the feature that all of a path share; and no entry
    has less than its count says."""
    tree = ContextTree.build(encode(sentences(seed=1, words=8), text.vocabulary), 3, collapse)
    model = NgramModel(tree, alpha, base).double()
    metric = notes_of(model.table).curvature
    features = torch.ones(tree.entries) if model.features is None else model.features
    assert metric.shape == model.table.shape
    assert bool((metric > 0).all())
    assert model.targets == int(tree.entry_count[: tree.words].sum())
    weight = alpha ** torch.arange(tree.depth.max() + 1).double()  # of a context of so many words
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
        bend = float(slopes[1] - slopes[0]) / (2 * step)
        assert 0 <= bend <= float(metric[entry] * features[entry] / reach[entry]) * (1 + 1e-5) + 1e-10


def test_precision_and_copies_keep_what_belongs_to_the_table(text):
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
    """On a random sample of the contexts of Penn Treebank text, from the scores of all words."""
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
            own = slice(tree.starts[n], tree.starts[n + 1])
            scores[tree.entry_word[own]] = sums[own]
        deepest = path[0] if path else 0
        assert np.exp(scores - log_z[deepest]).sum() == pytest.approx(1, abs=1e-10)
