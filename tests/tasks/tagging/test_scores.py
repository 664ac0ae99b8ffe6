import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics as seqeval

from structsparse.tasks.tagging.scores import SpanScore
from structsparse.training.scores import AccuracyScore

NAMES = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("x", "y-z"))]


@st.composite
def judged(draw, names=NAMES, most=12):
    """Gold and predicted codes of some sentences, often equal, and the offsets."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=most))
    codes = st.integers(0, len(names) - 1)
    gold = np.array(draw(st.lists(codes, min_size=sum(lengths), max_size=sum(lengths))))
    wrong = np.array(draw(st.lists(st.booleans(), min_size=len(gold), max_size=len(gold))))
    other = np.array(draw(st.lists(codes, min_size=len(gold), max_size=len(gold))))
    return gold, np.where(wrong, other, gold), np.cumsum([0, *lengths])


def sequences(codes, offsets, names=NAMES):
    return [[names[code] for code in codes[first:last]] for first, last in pairwise(offsets)]


@given(judged())
def test_span_scores_are_those_of_seqeval(sentences):
    gold, predicted, offsets = sentences
    score = SpanScore(NAMES)
    score.add(gold, predicted, offsets)
    result = score.result()
    truth, guess = sequences(gold, offsets), sequences(predicted, offsets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "f1": seqeval.f1_score(truth, guess),
            "precision": seqeval.precision_score(truth, guess),
            "recall": seqeval.recall_score(truth, guess),
            "accuracy": seqeval.accuracy_score(truth, guess),
        }
        by_type = seqeval.classification_report(truth, guess, output_dict=True) if expected["f1"] else {}
    assert {name: result[name] for name in expected} == pytest.approx(expected)
    for kind in set(by_type) & {"x", "y-z"}:
        ours = result["types"][kind]
        assert ours["precision"] == pytest.approx(by_type[kind]["precision"])
        assert ours["recall"] == pytest.approx(by_type[kind]["recall"])
        assert ours["f1"] == pytest.approx(by_type[kind]["f1-score"])
        assert ours["gold"] == by_type[kind]["support"]


@pytest.mark.parametrize("kind", [SpanScore, AccuracyScore])
@given(parts=st.lists(judged(most=3), min_size=1, max_size=4))
def test_parts_add_up_to_the_whole(kind, parts):
    """Batch by batch in one object, object by object, or through the bare counts: all as if read at once."""
    gold, predicted = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    offsets = np.cumsum(np.concatenate([[0], *(np.diff(part[2]) for part in parts)]))
    whole, batched, bare = kind(NAMES), kind(NAMES), kind(NAMES)
    whole.add(gold, predicted, offsets)
    ranks = []
    for part in parts:
        batched.add(*part)
        rank = kind(NAMES)
        rank.add(*part)
        ranks.append(rank)
    summed = ranks[0]
    for rank in ranks[1:]:
        summed = summed + rank
    bare.counts = np.sum([rank.counts for rank in ranks], axis=0)
    assert whole.result() == batched.result() == summed.result() == bare.result()


@given(judged())
def test_accuracy_counts_tokens(sentences):
    gold, predicted, offsets = sentences
    score = AccuracyScore(NAMES)
    score.add(gold, predicted, offsets)
    result = score.result()
    assert result["accuracy"] == pytest.approx(np.mean(gold == predicted))
    for code, name in enumerate(NAMES):
        hits = np.sum((gold == code) & (predicted == code))
        ours = result["types"][name]
        assert ours["precision"] == pytest.approx(hits / max(np.sum(predicted == code), 1))
        assert ours["recall"] == pytest.approx(hits / max(np.sum(gold == code), 1))


@pytest.mark.parametrize("kind", [SpanScore, AccuracyScore])
@given(judged())
def test_a_sentence_is_right_if_all_its_tokens_are(kind, sentences):
    gold, predicted, offsets = sentences
    score = kind(NAMES)
    score.add(gold, predicted, offsets)
    pairs = list(zip(offsets[:-1], offsets[1:], strict=True))
    right = sum(bool((gold[a:b] == predicted[a:b]).all()) for a, b in pairs)
    assert score.result()["sentence_accuracy"] == pytest.approx(right / max(len(pairs), 1))


def test_gold_labels_beyond_the_names_are_spans_never_found():
    names = ["O", "B-x", "I-x"]
    offsets = np.array([0, 2, 5])
    gold = np.array([0, 1, 3, 4, 1])  # codes 3 and 4 came up after training
    predicted = np.array([0, 1, 1, 2, 1])
    score = SpanScore(names)
    score.add(gold, predicted, offsets)
    result = score.result()
    assert result["recall"] == 2 / 4
    assert result["precision"] == 2 / 3  # the predicted spans are 1, 2 to 3, and 4
    assert result["accuracy"] == 3 / 5
    assert result["types"]["(unseen)"] | {"gold": 2, "correct": 0, "predicted": 0} == result["types"]["(unseen)"]
    tokens = AccuracyScore(names)
    tokens.add(gold, predicted, offsets)
    assert tokens.result()["accuracy"] == 3 / 5
    assert tokens.result()["types"]["(unseen)"]["recall"] == 0


def test_names_beyond_the_training_labels_keep_their_spans():
    names = ["O", "B-x", "I-x", "B-new", "I-new"]
    score = SpanScore(names)
    score.add(np.array([3, 4, 0]), np.array([1, 2, 0]), np.array([0, 3]))
    assert score.result()["types"]["new"]["gold"] == 1
    assert "(unseen)" not in score.result()["types"]
    assert score.result()["f1"] == 0


@pytest.mark.parametrize("kind", [SpanScore, AccuracyScore])
def test_nothing_counted_scores_nothing(kind):
    result = kind(["O", "B-x"]).result()
    assert result["accuracy"] == 0
    assert result.get("f1", 0) == 0
    empty = kind(["O", "B-x"])
    empty.add(np.zeros(0, int), np.zeros(0, int), np.array([0]))
    assert empty.result() == result


@pytest.mark.parametrize("kind", [SpanScore, AccuracyScore])
def test_codes_that_do_not_fit_are_refused(kind):
    score = kind(["O", "B-x"])
    with pytest.raises(ValueError, match="predicted codes from 0 to 2, expected 0 to 1"):
        score.add(np.array([0, 1]), np.array([0, 2]), np.array([0, 2]))
    with pytest.raises(ValueError, match="gold codes from -1 to 0"):
        score.add(np.array([0, -1]), np.array([0, 1]), np.array([0, 2]))
    with pytest.raises(ValueError, match="codes for 3 tokens"):
        score.add(np.array([0, 1]), np.array([0, 1]), np.array([0, 3]))
    with pytest.raises(ValueError, match=r"counts have shape \(3,\)"):
        score.counts = [1, 2, 3]
    with pytest.raises(ValueError, match="over the same names"):
        score + kind(["O", "B-y"])
    with pytest.raises(ValueError, match="only scores of one kind"):
        SpanScore(["O"]) + AccuracyScore(["O"])
