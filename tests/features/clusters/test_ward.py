"""Ward's tree over word vectors against loops over all pairs."""

from collections import Counter
from itertools import combinations
from math import log

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.features.clusters import ward as clusters
from structsparse.features.clusters.ward import nearest, neighbour_information, ward_tree, word_vectors
from tests.features.clusters.test_brown import documents_of, weeks


def text(seed: int, words: int = 12, sizes: tuple = (30, 1, 17, 40)):
    """Ranks and document offsets of a text."""
    random = np.random.default_rng(seed)
    return random.integers(words, size=sum(sizes)), np.concatenate([[0], np.cumsum(sizes)])


@pytest.mark.parametrize("window", [1, 3, 60])
@pytest.mark.parametrize("contexts", [5, 12])
def test_information_in_a_window_equals_a_loop_over_pairs(window, contexts):
    ranks, offsets = text(window)
    counts = Counter()
    for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
        for i in range(begin, end):
            for j in range(begin, end):
                if i != j and abs(i - j) <= window and ranks[j] < contexts:
                    counts[ranks[i], ranks[j]] += 1
    rows, columns = Counter(), Counter()
    for (word, context), count in counts.items():
        rows[word] += count
        columns[context] += count
    smooth = {context: count**0.75 for context, count in columns.items()}
    expected = np.zeros((12, contexts))
    for (word, context), count in counts.items():
        expected[word, context] = max(0, log(count * sum(smooth.values()) / (rows[word] * smooth[context])))
    assert neighbour_information(ranks, offsets, 12, contexts, window).toarray() == pytest.approx(expected, abs=1e-12)


def test_vectors_are_those_of_the_full_decomposition():
    """Compared by inner products, because signs of singular vectors are arbitrary."""
    ranks, offsets = text(0, 40, (300, 200, 500))
    vectors = word_vectors(ranks, offsets, 40, 30, 6, 4)
    weights = neighbour_information(ranks, offsets, 40, 30, 4).toarray()
    left, values, right = np.linalg.svd(weights[:30])
    frequent = left[:, :6] * np.sqrt(values[:6])
    rare = weights[30:] @ right[:6].T / np.sqrt(values[:6])
    expected = np.concatenate([frequent, rare])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert vectors @ vectors.T == pytest.approx(expected @ expected.T, abs=1e-8)


def test_words_with_similar_neighbours_are_below_one_node():
    documents, kinds = weeks(0, 2000)
    tree = ward_tree(documents, dimensions=6, window=1)
    below = {frozenset(documents.words[c] for c in tree.codes(node).tolist()) for node in range(tree.nodes)}
    assert {frozenset(kind) for kind in kinds} <= below


def test_each_merge_adds_least_to_the_squares_within_classes():
    """Ward's criterion by a search of all pairs."""
    documents, _ = weeks(1, 300)
    tree = ward_tree(documents, dimensions=4, window=2)
    ranked = np.argsort(-tree.frequency, kind="stable")
    rank = np.argsort(ranked)
    points = word_vectors(rank[documents.tokens], documents.offsets, len(ranked), len(ranked), 4, 2)
    members = {leaf: [leaf] for leaf in range(tree.classes)}  # one word per class, by rank

    def within(ranks):
        return float(((points[ranks] - points[ranks].mean(0)) ** 2).sum())

    for k, (left, right) in enumerate(tree.children.tolist()):
        costs = {
            (a, b): within(members[a] + members[b]) - within(members[a]) - within(members[b])
            for a, b in combinations(members, 2)
        }
        cost = costs[min(left, right), max(left, right)] if (left, right) not in costs else costs[left, right]
        assert cost == pytest.approx(min(costs.values()), abs=1e-9)
        assert tree.losses[k] == pytest.approx(np.sqrt(2 * cost), abs=1e-6)
        members[tree.classes + k] = members.pop(left) + members.pop(right)


def test_rare_words_join_the_nearest_frequent_one():
    random = np.random.default_rng(3)
    documents = documents_of([" ".join(random.choice([f"w{k}" for k in range(30)], 400))])
    tree = ward_tree(documents, classes=10, dimensions=5, window=3)
    assert (tree.classes, tree.nodes) == (10, 19)
    ranked = np.argsort(-tree.frequency, kind="stable")
    points = word_vectors(np.argsort(ranked)[documents.tokens], documents.offsets, 30, 10, 5, 3)
    for place, code in enumerate(ranked.tolist()):
        expected = place if place < 10 else int((points[:10] @ points[place]).argmax())
        assert tree.leaf[code] == expected


def test_nearest_does_not_depend_on_the_block_size(monkeypatch):
    random = np.random.default_rng(1)
    points, candidates = random.standard_normal((11, 3)), random.standard_normal((4, 3))
    monkeypatch.setattr(clusters, "BLOCK", 3)
    assert nearest(points, candidates).tolist() == [int((candidates @ point).argmax()) for point in points]
    assert nearest(points[:0], candidates).tolist() == []


@pytest.mark.parametrize("words", ["a", "a b", "a a a b", "a b c a b c"])
def test_with_few_words_each_word_is_a_class(words):
    tree = ward_tree(documents_of([words]))
    count = len(set(words.split()))
    assert (tree.classes, tree.nodes) == (count, 2 * count - 1)
    assert sorted(tree.codes(tree.nodes - 1).tolist()) == list(range(count))


def test_words_outside_training_have_no_class():
    tree = ward_tree(documents_of(["a b a b", "c d c"]).select([0]))
    assert tree.leaf.tolist().count(-1) == 2
    assert len(tree.order) == 2


def test_results_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path))
    documents, _ = weeks(4, 40)
    first = ward_tree(documents, 10, 4, megabytes=10)
    monkeypatch.setattr(clusters, "_tree", lambda *_, **__: pytest.fail("computed again"))
    again = ward_tree(documents, 10, 4, megabytes=10)
    for name in ("leaf", "children", "losses", "order", "begins"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    for options in ((11, 4), (10, 3), (10, 4, 2)):
        with pytest.raises(pytest.fail.Exception, match="computed again"):
            ward_tree(documents, *options, megabytes=10)


@pytest.mark.parametrize("options", [{"classes": 0}, {"dimensions": 1.5}, {"window": True}])
def test_options_must_be_whole_numbers(options):
    with pytest.raises(UserError, match=f"groups.{next(iter(options))}"):
        ward_tree(weeks()[0], **options)


def test_documents_without_words_are_refused():
    with pytest.raises(UserError, match="no words"):
        ward_tree(documents_of(["", "..."]))
