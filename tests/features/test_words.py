"""Bags of words against scikit-learn and against loops over words."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentSplits, tokenize
from structsparse.features.words import bag, extended

PATTERN = r"(?u)\w+"
TEXT = st.lists(st.sampled_from("a b c d e f A Äh x1 3 a-b , . _".split()), max_size=12).map(" ".join)


def corpus(train, dev=(), test=()) -> DocumentSplits:
    texts = [*train, *dev, *test]
    whole = tokenize([f"t{k}" for k in range(len(texts))], texts, np.zeros(len(texts), np.int64), ("no", "yes"))
    bounds = np.cumsum([0, len(train), len(dev), len(test)])
    return DocumentSplits("toy", *(whole.select(np.arange(*bounds[k : k + 2])) for k in range(3)))


@settings(max_examples=40)
@given(
    train=st.lists(TEXT, min_size=1, max_size=8),
    test=st.lists(TEXT, max_size=4),
    weighting=st.sampled_from(["counts", "binary", "log", "tfidf", "sublinear"]),
    normalize=st.sampled_from([None, True, False]),
    min_count=st.integers(1, 3),
)
def test_feature_values_equal_those_of_scikit_learn(train, test, weighting, normalize, min_count):
    rare = weighting in ("tfidf", "sublinear")  # rare words count more
    options = {"norm": None, "sublinear_tf": weighting == "sublinear"} if rare else {"binary": weighting == "binary"}
    peer = (TfidfVectorizer if rare else CountVectorizer)(token_pattern=PATTERN, min_df=min_count, **options)
    try:
        expected = peer.fit_transform(train).toarray().astype(float)
    except ValueError:  # no word is frequent enough
        with pytest.raises(UserError, match="no word is in"):
            bag(corpus(train), weighting, normalize, min_count)
        return
    words = bag(corpus(train, test=test), weighting, normalize, min_count)
    assert list(words.layout.words) == sorted(peer.get_feature_names_out())
    documents = corpus(train, test=test)  # other arrays, and other codes of words than the layout's
    for part, texts in (("train", train), ("test", test)):
        if not texts:
            continue
        expected = peer.transform(texts).toarray().astype(float)
        if weighting == "log":
            expected = np.log(1 + expected)
        if normalize or (normalize is None and rare):
            norms = np.linalg.norm(expected, axis=1, keepdims=True)
            expected = np.divide(expected, norms, out=expected, where=norms > 0)
        matrix = words.matrix(documents.parts[part])
        assert matrix.dtype == np.float64
        assert matrix.has_canonical_format
        np.testing.assert_allclose(matrix.toarray(), expected, atol=1e-12)


def test_a_layout_counts_tokens_and_documents_of_train_alone():
    layout = bag(corpus(["b a b", "a", "c"], test=["a d d", "c"])).layout
    assert layout.words == ("a", "b", "c")
    assert layout.counts.tolist() == [2, 2, 1]
    assert layout.documents.tolist() == [2, 1, 1]
    assert layout.row_of.tolist() == [0, 1, 2, -1]
    assert len(layout) == layout.plain == 3


def test_a_vocabulary_of_all_parts_has_words_that_are_not_in_train():
    documents = corpus(["b a b", "a"], dev=["e"], test=["a d d", "c"])
    words = bag(documents, vocabulary="all")
    assert words.layout.words == ("a", "b", "c", "d", "e")
    assert words.layout.documents.tolist() == [2, 1, 0, 0, 0]
    assert words.matrix(documents.test).toarray().tolist() == [[1, 0, 0, 2, 0], [0, 0, 1, 0, 0]]
    assert bag(documents, vocabulary="all", min_count=2).layout.words == ("a",)


def test_documents_of_another_corpus_are_matched_by_their_words():
    words = bag(corpus(["b a b", "a c"]), "tfidf")
    same, other = corpus(["c zebra b"]).train, corpus(["b c"], test=["aardvark"]).train
    np.testing.assert_array_equal(words.matrix(same).toarray(), words.matrix(other).toarray())


def by_hand(texts, labels, word) -> float:
    """The largest |log ratio| of a word between a class and the others, counted in the texts themselves."""
    documents, largest = [{*text.split()} for text in texts], 0.0
    words = {one for document in documents for one in document}
    for label in {*labels}:
        shares = []
        for chosen in (True, False):
            part = [document for document, own in zip(documents, labels, strict=True) if (own == label) == chosen]
            smoothed = {one: 1 + sum(one in document for document in part) for one in words}
            shares.append(smoothed[word] / sum(smoothed.values()))
        largest = max(largest, abs(math.log(shares[0] / shares[1])))
    return largest


@pytest.mark.parametrize("labels", [[0, 1, 1, 0, 1], [0, 1, 2, 2, 1]])
def test_log_ratios_scale_each_word_by_how_much_the_classes_differ(labels):
    texts = ["a b b", "a c", "c c d", "b d a", "d d c a"]
    documents = corpus(texts)
    train = replace(documents.train, labels=np.array(labels), classes=("x", "y", "z")[: max(labels) + 1])
    words, scaled = (bag(replace(documents, train=train), "counts", log_ratio=power) for power in (0, 0.5))
    expected = words.matrix(train).toarray() * [by_hand(texts, labels, word) ** 0.5 for word in words.layout.words]
    np.testing.assert_allclose(scaled.matrix(train).toarray(), expected, atol=1e-12)


def test_documents_whose_words_tell_nothing_are_zero():
    """Both classes have the same documents, so that all log-count ratios are 0 and no document has a length."""
    documents = corpus(["a b", "a b"])
    train = replace(documents.train, labels=np.array([0, 1]))
    assert bag(replace(documents, train=train), "tfidf", log_ratio=1).matrix(train).toarray().tolist() == [
        [0, 0],
        [0, 0],
    ]


@pytest.mark.parametrize("weighting", ["counts", "binary", "log", "tfidf"])
def test_features_made_of_groups_are_sums_over_their_words(weighting):
    documents = corpus(["b a b", "a c", "c", ""], test=["a b c c", "d"])
    plain = bag(documents, weighting)
    members = sparse.csr_array(np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]]))
    words = extended(plain, ["ab", "bc", "none"], members)
    assert words.layout.words == ("a", "b", "c", "ab", "bc", "none")
    assert words.layout.extra == 3
    assert words.layout.plain == 3
    counts = {part: plain.count(of_part).toarray() @ members.toarray() for part, of_part in documents.parts.items()}
    assert words.layout.counts[3:].tolist() == counts["train"].sum(axis=0).tolist()
    assert words.layout.documents[3:].tolist() == (counts["train"] > 0).sum(axis=0).tolist()
    for part, of_part in documents.parts.items():
        expected = np.hstack([plain.count(of_part).toarray(), counts[part]]).astype(float)
        if weighting == "log":
            expected = np.log1p(expected)
        if weighting == "binary":
            expected = (expected > 0).astype(float)
        if weighting == "tfidf":
            expected = expected * (1 + np.log(5 / (1 + words.layout.documents)))
            norms = np.linalg.norm(expected, axis=1, keepdims=True)
            expected = np.divide(expected, norms, out=expected, where=norms > 0)
        np.testing.assert_allclose(words.matrix(of_part).toarray(), expected, atol=1e-12)
    with pytest.raises(UserError, match="of a bag of words alone"):
        extended(words, ["x"], members[:, :1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "bm25"}, "features.weighting is 'bm25', expected one of counts, binary, log, tfidf, sublinear"),
        ({"vocabulary": "dev"}, "features.vocabulary is 'dev', expected one of train, all"),
        ({"min_count": 0}, "features.min_count is 0, expected at least 1"),
        ({"min_count": 3}, "no word is in 3 documents of train; lower features.min_count"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        bag(corpus(["b a b", "a"]), **options)
