"""Scores of trees, token by token as their definitions have it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structsparse.tasks.parsing.scores import TreeScore
from structsparse.training.scores import gain
from tests.support.conllu import trees


@st.composite
def judged(draw):
    """Sentences of (gold head, predicted head, punctuation, gold relation, predicted relation), often right."""
    found = []
    for gold in draw(st.lists(trees(6), min_size=1, max_size=4)):
        size, flags = len(gold), st.integers(0, 3)
        heads = [head if draw(flags) else draw(st.integers(0, size)) for head in gold]
        marks = [draw(flags) == 0 for _ in gold]
        relations = [draw(st.integers(0, 2)) for _ in gold]
        predicted = [relation if draw(flags) else draw(st.integers(0, 3)) for relation in relations]
        found.append(list(zip(gold, heads, marks, relations, predicted, strict=True)))
    return found


def arrays(sentences):
    gold, heads, marks, relations, predicted = map(np.array, zip(*sum(sentences, []), strict=True))
    return gold, heads, np.cumsum([0, *map(len, sentences)]), marks, relations, predicted


def naive(sentences) -> dict[str, float]:
    words = [word for sentence in sentences for word in sentence]
    plain = [word for word in words if not word[2]]
    whole = [all(gold == head for gold, head, *_ in sentence) for sentence in sentences]
    told = [all(gold == head for gold, head, mark, *_ in sentence if not mark) for sentence in sentences]
    roots = [[[k for k, word in enumerate(s) if word[side] == 0] for s in sentences] for side in (0, 1)]
    return {
        "uas": sum(word[0] == word[1] for word in words) / len(words),
        "las": sum(word[0] == word[1] and word[3] == word[4] for word in words) / len(words),
        "uas_no_punct": sum(word[0] == word[1] for word in plain) / max(1, len(plain)),
        "las_no_punct": sum(word[0] == word[1] and word[3] == word[4] for word in plain) / max(1, len(plain)),
        "complete": sum(whole) / len(sentences),
        "complete_no_punct": sum(told) / len(sentences),
        "root_accuracy": sum(a == b for a, b in zip(*roots, strict=True)) / len(sentences),
        "tokens": len(words),
        "sentences": len(sentences),
    }


def score_of(*parts) -> TreeScore:
    score = TreeScore()
    for part in parts:
        score.add(*arrays(part))
    return score


@given(judged())
def test_scores_are_what_their_definitions_say(sentences):
    assert score_of(sentences).result() == pytest.approx(naive(sentences))


@given(st.lists(judged(), min_size=1, max_size=4))
def test_parts_add_up_to_the_whole(parts):
    whole = score_of(sum(parts, []))
    summed = score_of()
    for part in parts:
        summed = summed + score_of(part)
    bare = TreeScore()
    bare.counts = np.sum([score_of(part).counts for part in parts], axis=0)
    assert whole.result() == score_of(*parts).result() == summed.result() == bare.result()


@given(judged())
def test_without_relations_there_is_no_labelled_score(sentences):
    score = TreeScore()
    score.add(*arrays(sentences)[:4])
    expected = {name: value for name, value in naive(sentences).items() if not name.startswith("las")}
    assert score.result() == pytest.approx(expected)


def test_a_right_tree_is_right_in_every_way_and_its_mirror_in_none():
    gold, offsets, marks = np.array([2, 0, 2]), np.array([0, 3]), np.array([False, False, True])
    labels = np.array([1, 0, 2])
    right, wrong = TreeScore(), TreeScore()
    right.add(gold, gold, offsets, marks, labels, labels)
    wrong.add(gold, np.array([0, 1, 1]), offsets, marks, labels, labels)
    shares = {*right.result()} - {"tokens", "sentences"}
    assert {right.result()[name] for name in shares} == {1.0}
    assert {wrong.result()[name] for name in shares} == {0.0}


def test_a_wrong_tree_may_have_the_right_root_and_a_right_one_among_others_is_wrong():
    gold, offsets, marks = np.array([0, 1, 0, 1, 1]), np.array([0, 2, 5]), np.zeros(5, bool)
    score = TreeScore()
    score.add(gold, np.array([0, 0, 0, 3, 1]), offsets, marks)
    assert score.result()["root_accuracy"] == 0.5
    assert score.result()["complete"] == 0


def test_nothing_counted_scores_nothing_and_more_is_better():
    assert set(TreeScore().result().values()) == {0}
    assert gain("dev/uas", 0.7) > gain("dev/uas", 0.6)


def test_what_does_not_fit_is_refused():
    score, offsets, marks = TreeScore(), np.array([0, 2, 3]), np.zeros(3, bool)
    good = np.array([0, 1, 0])
    with pytest.raises(ValueError, match=r"predicted has shape \(2,\), expected \(3,\)"):
        score.add(good, good[:2], offsets, marks)
    with pytest.raises(ValueError, match="predicted head 2 of token 2, expected 0 to 1"):
        score.add(good, np.array([2, 0, 2]), offsets, marks)
    with pytest.raises(ValueError, match="gold head -1 of token 0"):
        score.add(np.array([-1, 0, 0]), good, offsets, marks)
    with pytest.raises(ValueError, match="relations of one side only"):
        score.add(good, good, offsets, marks, good)
    with pytest.raises(ValueError, match=r"counts have shape \(2,\)"):
        score.counts = [1, 2]
