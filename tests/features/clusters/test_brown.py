"""Brown clustering against a search of all merges one by one, and against its known properties."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.documents import tokenize
from structsparse.features.clusters import brown as clusters
from structsparse.features.clusters.brown import brown_tree, mutual_information
from structsparse.kernels.features import brown as kernel

NEARLY = 1e-6  # nats of the full text: a smaller difference counts as a tie


def documents_of(texts):
    return tokenize([f"{k}.txt" for k in range(len(texts))], texts, np.zeros(len(texts), np.int64), ("no",))


def random_text(seed: int, words: int, tokens: int, documents: int = 4):
    """Random ranks of words and document offsets; some words are frequent, and many merges are ties."""
    random = np.random.default_rng(seed)
    codes = np.minimum(random.zipf(1.5, tokens) - 1, words - 1)
    codes[random.random(tokens) < 0.3] = random.integers(words)
    _, codes, counts = np.unique(codes, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    cuts = np.sort(random.integers(0, tokens, documents - 1))
    return rank[codes], np.concatenate([[0], cuts, [tokens]])


def bigram_counts(ranks, offsets):
    """Bigram counts of documents by a loop: [words, words]"""
    words = ranks.max() + 1
    counts = np.zeros((words, words))
    for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
        for one, other in zip(ranks[begin : end - 1], ranks[begin + 1 : end], strict=False):
            counts[one, other] += 1
    return counts


def information(counts, classes) -> float:
    """sum of n_ij log(n_ij / l_i r_j) over the classes of the window, with l and r over the full text."""
    members = [*classes.values()]
    joint = np.array([[counts[np.ix_(one, other)].sum() for other in members] for one in members])
    left = np.array([counts[one].sum() for one in members])
    right = np.array([counts[:, one].sum() for one in members])
    seen = joint > 0
    return float((joint * np.log(np.where(seen, joint, 1) / np.where(seen, np.outer(left, right), 1))).sum())


def losses(counts, classes) -> dict:
    """The loss of the merge of every pair of classes, named by first words."""
    before, names = information(counts, classes), sorted(classes)
    costs = {}
    for k, one in enumerate(names):
        for other in names[k + 1 :]:
            merged = {name: words for name, words in classes.items() if name != other}
            merged[one] = classes[one] + classes[other]
            costs[one, other] = before - information(counts, merged)
    return costs


@pytest.mark.parametrize(("seed", "words", "classes"), [(0, 24, 5), (1, 30, 9), (2, 16, 40), (3, 20, 1), (4, 12, 11)])
def test_every_merge_is_the_cheapest_of_all(seed, words, classes):
    ranks, offsets = random_text(seed, words, 260)
    counts, total = bigram_counts(ranks, offsets), len(np.unique(ranks))
    tables = clusters._logarithms(len(ranks))
    merges, costs = kernel.cluster(*clusters.bigrams(ranks, offsets, total), classes, *tables)
    current, done, unique = {}, 0, 0
    for word in range(total):
        current[word] = [word]
        while len(current) > classes or (word == total - 1 and len(current) > 1):
            tried = losses(counts, current)
            least = min(tried.values())
            cheapest = [pair for pair, loss in tried.items() if loss < least + NEARLY]
            one, other = merges[done].tolist()
            assert (one, other) == min(cheapest)  # of ties the one with the most frequent first words
            assert costs[done] / 2.0**kernel.SHIFT == pytest.approx(least, abs=NEARLY)
            unique += len(cheapest) == 1
            current[one] += current.pop(other)
            done += 1
    assert done == total - 1
    assert unique > done / 2  # otherwise only ties are tested


def test_ties_go_to_the_words_that_come_first():
    """Words that are never in a bigram are merged without loss."""
    documents = documents_of(["a", "a", "a", "b", "b", "c", "d"])
    merges, costs = _merges(documents, 2)
    assert merges.tolist() == [[0, 1], [0, 2], [0, 3]]
    assert not costs.any()


def _merges(documents, classes):
    """The merges and losses of the kernel."""
    ranks = np.argsort(np.argsort(-np.bincount(documents.tokens), kind="stable"))[documents.tokens]
    words = clusters.bigrams(ranks, documents.offsets, len(documents.words))
    return kernel.cluster(*words, classes, *clusters._logarithms(len(ranks)))


def weeks(seed: int = 0, sentences: int = 400):
    """Documents of random sentences with four slots (days, months, people, verbs), and the words of the slots."""
    random = np.random.default_rng(seed)
    days, months = "monday tuesday friday sunday".split(), "january april june july".split()
    verbs, people = "came went left slept".split(), "ann bob cleo dan".split()
    pick = lambda words: words[random.integers(len(words))]  # noqa: E731
    lines = [f"on {pick(days)} in {pick(months)} {pick(people)} {pick(verbs)} early" for _ in range(sentences)]
    half = sentences // 2
    return documents_of([" ".join(lines[:half]), " ".join(lines[half:])]), [days, months, verbs, people]


def test_words_of_the_same_slot_are_one_class():
    documents, kinds = weeks()
    tree = brown_tree(documents, 7)  # on, in, early and the four kinds
    classes = {frozenset(documents.words[c] for c in tree.codes(leaf).tolist()) for leaf in range(tree.classes)}
    assert classes == {frozenset(kind) for kind in kinds} | {frozenset([word]) for word in ("on", "in", "early")}


def test_the_tree_has_all_words():
    documents, _ = weeks(1, 60)
    tree = brown_tree(documents, 9)
    words = len(documents.words)
    assert (tree.classes, tree.nodes) == (9, 17)
    assert sorted(tree.codes(tree.nodes - 1).tolist()) == list(range(words))
    for k, (left, right) in enumerate(tree.children.tolist()):
        below = [set(tree.codes(node).tolist()) for node in (tree.classes + k, left, right)]
        assert below[0] == below[1] | below[2]
        assert not below[1] & below[2]
        assert tree.bits[left] == tree.bits[tree.classes + k] + "0"
        assert tree.bits[right] == tree.bits[tree.classes + k] + "1"
    for leaf in range(tree.classes):
        assert set(tree.codes(leaf).tolist()) == set(np.flatnonzero(tree.leaf == leaf).tolist())


def test_losses_are_differences_of_mutual_information():
    documents, _ = weeks(2, 50)
    tree = brown_tree(documents, 100)  # more than words: each word is a class
    class_of = tree.leaf.astype(np.int64)
    pairs = len(documents.tokens) - len(documents)
    before = mutual_information(documents.tokens, documents.offsets, class_of)
    for k, (left, right) in enumerate(tree.children.tolist()):
        class_of[(class_of == left) | (class_of == right)] = tree.classes + k
        after = mutual_information(documents.tokens, documents.offsets, class_of)
        assert before - after == pytest.approx(tree.losses[k] * len(documents.tokens) / pairs, abs=1e-7)
        before = after
    assert before == pytest.approx(0, abs=1e-9)


def test_classes_have_more_information_than_random_ones():
    random = np.random.default_rng(5)
    documents, _ = weeks(3)
    tree = brown_tree(documents, 7)
    clustered = mutual_information(documents.tokens, documents.offsets, tree.leaf)
    shuffled = [
        mutual_information(documents.tokens, documents.offsets, random.permutation(tree.leaf)) for _ in range(20)
    ]
    assert clustered > max(shuffled)


def test_names_have_the_path_and_the_most_frequent_words():
    documents = documents_of(["x a y b x a y c x b", "x c y a"])
    tree = brown_tree(documents, 2)
    name = tree.name(tree.nodes - 1)
    assert re.fullmatch(r"cluster of all: (x a y|a x y) \.\.\. \(5 words\)", name)
    assert tree.name(0).startswith("cluster 0: ")


def test_words_outside_training_have_no_class():
    documents = documents_of(["a b a b", "c d c"])
    first = documents.select([0])
    tree = brown_tree(first, 2)
    assert (tree.leaf >= 0).sum() == 2
    assert len(tree.order) == 2


def test_results_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path))
    documents, _ = weeks(4, 40)
    first = brown_tree(documents, 5, megabytes=10)
    monkeypatch.setattr(clusters, "_cluster", lambda *_: pytest.fail("computed again"))
    again = brown_tree(documents, 5, megabytes=10)
    for name in ("leaf", "children", "losses", "order", "begins"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    for other, classes in ((documents, 6), (documents.select([0]), 5)):
        with pytest.raises(pytest.fail.Exception, match="computed again"):
            brown_tree(other, classes, megabytes=10)


@pytest.mark.parametrize("classes", [0, -3, 2.5, True])
def test_the_number_of_classes_is_checked(classes):
    with pytest.raises(UserError, match="classes"):
        brown_tree(weeks()[0], classes)


def test_documents_without_words_are_refused():
    with pytest.raises(UserError, match="no words"):
        brown_tree(documents_of(["", "..."]), 3)


MONTHS = "january february march april may june july august september october november december".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set")
def test_months_are_in_one_class_in_real_text():
    """As in the paper of Brown et al.: words of the calendar are in one class, with few others."""
    folder = Path(os.environ["STRUCTSPARSE_DATA"]) / "20news" / "train"
    posts = [path for name in ("sci.med", "sci.space") for path in sorted((folder / name).iterdir())]
    documents = documents_of([path.read_text(encoding="latin-1") for path in posts])
    tree = brown_tree(documents, 500)
    code = {word: k for k, word in enumerate(documents.words)}
    leaf, most = np.unique([tree.leaf[code[word]] for word in (*MONTHS, *DAYS)], return_counts=True)
    assert most.max() >= 10
    members = documents.tokens[np.isin(documents.tokens, tree.codes(leaf[most.argmax()]))]
    short = "jan feb mar apr aug sept oct nov dec mon tue wed thu fri sat sun".split()
    calendar = np.isin(members, [code[word] for word in (*MONTHS, *DAYS, *short) if word in code])
    assert calendar.mean() > 0.7  # of the occurrences of its words
    random, shuffled = np.random.default_rng(0), tree.leaf.copy()
    frequency = np.bincount(documents.tokens, minlength=len(shuffled))
    for count in np.unique(frequency):  # the control: words of equal frequency are exchanged
        same = np.flatnonzero(frequency == count)
        shuffled[same] = random.permutation(shuffled[same])
    leaves = tree.leaf, shuffled
    clustered, control = (mutual_information(documents.tokens, documents.offsets, leaf) for leaf in leaves)
    assert clustered > 1.3 * control
