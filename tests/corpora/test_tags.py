"""Span tags: spans as conlleval.pl and seqeval read them, conversions between schemes, stray tags."""

import os
import warnings
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences, read_columns
from structsparse.corpora.tags import SCHEMES, convert, detect_scheme, span_types, spans

TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("x", "y", "x-y"))]
sequences = st.lists(st.lists(st.sampled_from(TAGS), min_size=1, max_size=9), min_size=1, max_size=4)


def made(sequences, source="made"):
    column = Column.from_strings(tag for sequence in sequences for tag in sequence)
    return Sentences({"tag": column}, np.cumsum([0, *map(len, sequences)]), source)


def spans_of(sentences):
    """{(sentence, first token, last token, type)}"""
    column = sentences.columns["tag"]
    types = span_types(column.values)
    start, end, kind = spans(column.codes, sentences.offsets, column.values)
    sentence = np.searchsorted(sentences.offsets, start, side="right") - 1
    first = sentences.offsets[sentence]
    assert (end <= sentences.offsets[sentence + 1]).all()
    rows = zip(sentence, start - first, end - first - 1, kind, strict=True)
    return [(int(s), int(a), int(b), types[k]) for s, a, b, k in rows]


def conlleval(tags):
    """Spans of one sentence, token by token, by the published rules of conlleval.pl and S as a span of one token."""
    result, begin = [], None
    before = ("O", "")
    for position, tag in enumerate([*tags, "O"]):
        letter, _, kind = tag.partition("-")
        previous, previous_kind = before
        ends = previous + letter in ("BB", "BO", "IB", "IO", "BS", "IS") or previous in ("E", "S")
        starts = letter in ("B", "S") or previous + letter in ("OI", "OE", "EI", "EE", "SI", "SE")
        if kind != previous_kind:
            ends, starts = ends or previous != "O", starts or letter != "O"
        if ends and begin is not None:
            result.append((begin, position - 1, previous_kind))
            begin = None
        if starts:
            begin = position
        before = (letter, kind)
    return result


def seqeval(tags):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(begin, end, kind) for kind, begin, end in get_entities(tags)]


@given(sequences)
def test_spans_are_those_of_conlleval(sequences):
    expected = [(k, *span) for k, sequence in enumerate(sequences) for span in conlleval(sequence)]
    assert spans_of(made(sequences)) == expected


@given(sequences)
def test_spans_are_those_of_seqeval(sequences):
    expected = [(k, *span) for k, sequence in enumerate(sequences) for span in seqeval(sequence)]
    assert spans_of(made(sequences)) == expected


def test_every_triple_of_tags_has_the_spans_of_conlleval_and_seqeval():
    triples = list(product(TAGS, repeat=3))
    expected = [(k, *span) for k, triple in enumerate(triples) for span in conlleval(triple)]
    assert expected == [(k, *span) for k, triple in enumerate(triples) for span in seqeval(list(triple))]
    assert spans_of(made(triples)) == expected


def test_types_begin_after_the_first_dash():
    assert span_types(["O", "B-a-b", "I-a-b", "S-c", "B--d"]) == ["a-b", "c", "-d"]


def test_empty_sentences_have_no_spans():
    column = Column.from_strings(["I-x", "I-x", "B-x"])
    for offsets in ([0, 0, 1, 1, 3, 3], [0, 1, 3]):
        start, end, _ = spans(column.codes, np.array(offsets), column.values)
        assert start.tolist() == [0, 1, 2]
        assert end.tolist() == [1, 2, 3]
    start, _, _ = spans(column.codes[:0], np.array([0, 0]), column.values)
    assert start.tolist() == []


def legal(tags, scheme):
    """Whether a sequence follows a scheme, by the pairs of tags that may follow each other."""
    pairs = zip(["O", *tags], [*tags, "O"], strict=True)
    return all(_follows(*(tag.partition("-")[::2] for tag in pair), scheme) for pair in pairs)


def _follows(before, after, scheme):
    (letter_before, kind_before), (letter, kind) = before, after
    same = letter_before != "O" and kind_before == kind
    if scheme == "iob2":
        return letter in ("O", "B") or (letter == "I" and same)
    if scheme == "iob1":
        return letter in ("O", "I") or (letter == "B" and same)
    within = letter_before in ("B", "I")
    return same and letter in ("I", "E") if within else letter in ("O", "B", "S")


@pytest.mark.parametrize("source", SCHEMES)
@pytest.mark.parametrize("target", SCHEMES)
@given(sequences=sequences)
def test_conversion_keeps_the_spans_and_follows_the_target_scheme(source, target, sequences):
    sentences = made(sequences)
    column, _ = convert(sentences, "tag", source, target)
    converted = sentences.with_column("tag", column)
    assert spans_of(converted) == spans_of(sentences)
    for first, last in zip(sentences.offsets[:-1], sentences.offsets[1:], strict=True):
        assert legal(column.strings(first, last), target)
    again, strays = convert(converted, "tag", target, target, stray="refuse")
    assert strays == 0
    assert again.strings() == column.strings()
    assert again.values == column.values == list(dict.fromkeys(column.strings()))
    assert column.codes.dtype == np.int32


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sequences=sequences)
def test_stray_tags_are_those_that_repair_changes(scheme, sequences):
    sentences = made(sequences)
    repaired, strays = convert(sentences, "tag", scheme, scheme)
    changed = [a != b for a, b in zip(sentences.columns["tag"].strings(), repaired.strings(), strict=True)]
    assert strays == sum(changed)
    assert (strays == 0) == all(legal(sequence, scheme) for sequence in sequences)


@given(sequences)
def test_conversion_to_another_scheme_and_back_changes_nothing(sequences):
    sentences = made(sequences)
    for source in SCHEMES:
        clean, _ = convert(sentences, "tag", source, source)
        for target in SCHEMES:
            converted, _ = convert(sentences.with_column("tag", clean), "tag", source, target)
            back, strays = convert(sentences.with_column("tag", converted), "tag", target, source)
            assert back.strings() == clean.strings()
            assert strays == 0


def test_the_error_for_stray_tags_names_the_place_of_the_first():
    sentences = made([["O", "B-x"], ["O", "B-x", "O", "I-y", "I-x"]], "corpus.txt")
    with pytest.raises(UserError) as error:
        convert(sentences, "tag", "iob2", "iobes", stray="refuse")
    expected = "corpus.txt, sentence 2, token 4: tag I-y does not fit iob2, expected B-y (2 stray in all)"
    assert str(error.value) == expected
    column, strays = convert(sentences, "tag", "iob2", "iobes")
    assert column.strings() == ["O", "S-x", "O", "S-x", "O", "S-y", "S-x"]
    assert strays == 2


@pytest.mark.parametrize("tag", ["X-PER", "B", "B-", "-", "I", "", "o", "b-PER", "OO", "O-PER", "BI-PER"])
def test_a_malformed_tag_is_refused_with_its_place(tag):
    sentences = made([["O"], ["B-x", tag]], "corpus.txt")
    expected = f"tag {tag!r} is malformed, expected O or B-, I-, E- or S- before a type"
    for action in (lambda: convert(sentences, "tag", "iob2", "iob2"), lambda: detect_scheme(sentences)):
        with pytest.raises(UserError) as error:
            action()
        assert str(error.value) == f"corpus.txt, sentence 2, token 2: {expected}"
    with pytest.raises(UserError) as error:
        span_types(["O", tag])
    assert str(error.value) == expected


def test_a_malformed_tag_that_no_token_has_is_ignored():
    sentences = made([["O", "B-x"], ["X"]])
    assert convert(sentences.select([0]), "tag", "iob2", "iobes")[0].strings() == ["O", "S-x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("bilou", "iob2"), "scheme 'bilou' is unknown, expected one of iob2, iob1, iobes"),
        (("iob2", "bio"), "scheme 'bio' is unknown"),
        (("iob2", "iob2", "drop"), "stray 'drop' is unknown, expected one of repair, refuse"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        convert(made([["O"]]), "tag", *options)


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sequences=sequences, data=st.data())
def test_the_scheme_is_detected_despite_a_few_stray_tags(scheme, sequences, data):
    phrase = ["O", "B-x", "I-x", "B-x", "I-x", "E-x", "O", "S-y", "B-x", "E-x", "O", "O"]
    sentences = made([phrase] * 30 + sequences)
    column, _ = convert(sentences, "tag", "iobes", scheme)
    tags = column.strings()
    for _ in range(data.draw(st.integers(0, 3))):
        tags[data.draw(st.integers(0, len(tags) - 1))] = "I-y"
    assert detect_scheme(sentences.with_column("tag", Column.from_strings(tags))) == scheme


def test_without_a_span_the_scheme_is_iob2():
    assert detect_scheme(made([["O", "O"]])) == "iob2"
    assert detect_scheme(made([["O", "I-x", "I-x"]])) == "iob1"


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="needs STRUCTSPARSE_DATA")
@pytest.mark.parametrize("file", ["conll2000/test.txt", "conll2002/esp.testb", "conll2002/ned.testa"])
def test_real_corpora_are_iob2_and_their_spans_are_those_of_seqeval(file):
    sentences = read_columns(os.path.join(os.environ["STRUCTSPARSE_DATA"], file), ("word", "pos", "tag"))
    column = sentences.columns["tag"]
    assert detect_scheme(sentences) == "iob2"
    expected = [
        (k, *span)
        for k, (a, b) in enumerate(zip(sentences.offsets[:-1], sentences.offsets[1:], strict=True))
        for span in seqeval(column.strings(a, b))
    ]
    assert spans_of(sentences) == expected
