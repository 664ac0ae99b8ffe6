"""Span tags: conversion between the schemes iob1, iob2 and iobes, and the spans that tags encode.

Tags are read as by the program `conlleval.pl`; in addition, S marks a span of one token. Every sequence of tags, even
an invalid sequence, then has exactly one set of spans. To find stray tags, these spans are written in the scheme of the
corpus: a tag is stray if it differs from the written tag."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences

SCHEMES = ("iob2", "iob1", "iobes")  # if several schemes fit equally well, `detect_scheme` prefers the first
PREFIXES = "OBIES"  # outside, begin, inside, end, single; the code of a prefix is its index here
OUTSIDE, BEGIN, INSIDE, END, SINGLE = range(5)
CLOSES = np.array([True, False, False, True, True])  # by prefix: whether the next token, if in a span, must begin it
OPENS = np.array([False, True, False, False, True])  # by prefix: whether a token with this prefix must begin a span


class Spans(NamedTuple):
    """Spans that tags encode, in order of appearance, from token `start` to token `end` - 1."""

    start: np.ndarray  # int64, shape [spans]: first token
    end: np.ndarray  # int64, shape [spans]: token after the last token
    type: np.ndarray  # int64, shape [spans]: index in `span_types`


class _SplitTags(NamedTuple):
    """Span tags split into prefix (B, I, ...) and type (PER, LOC, ...)."""

    prefix: np.ndarray  # int64, shape [tags]: index in PREFIXES
    type: np.ndarray  # int64, shape [tags]: index in `types`, -1 for O
    types: list[str]  # span types in order of first appearance


def span_types(names: Sequence[str]) -> list[str]:
    """The span types (PER, LOC, ...) of a list of tags, in order of first appearance."""
    return _split_all(names).types


def spans(codes: np.ndarray, offsets: np.ndarray, names: Sequence[str]) -> Spans:
    """The spans that coded tags encode; no span crosses the end of a sentence.

    `codes` has the index of each token's tag in `names`. `offsets` has the first token of each sentence, then the
    number of tokens."""
    table, codes = _split_all(names), np.asarray(codes)
    return _spans(table.prefix[codes], table.type[codes], np.asarray(offsets))


def detect_scheme(sentences: Sentences, name: str = "tag") -> str:
    """Detect the scheme of span tags: the scheme that the fewest tags break.

    If all schemes fit equally well, for example without spans, the scheme is iob2."""
    prefix, kind, _ = _read(sentences, name)
    read_spans = _spans(prefix, kind, sentences.offsets)
    strays = [np.count_nonzero(prefix != _write(read_spans, sentences.offsets, scheme)) for scheme in SCHEMES]
    return SCHEMES[int(np.argmin(strays))]


def convert(sentences: Sentences, name: str, source: str, target: str, stray: str = "repair") -> tuple[Column, int]:
    """Convert the span tags of column `name` to another scheme.

    Returns the new column and the number of stray tags, which break the source scheme. stray="repair" replaces each
    stray tag by the tag that fits its span. stray="refuse" raises an error that names the first stray tag."""
    _check("scheme", source, SCHEMES)
    _check("scheme", target, SCHEMES)
    _check("stray", stray, ("repair", "refuse"))
    prefix, kind, types = _read(sentences, name)
    read_spans = _spans(prefix, kind, sentences.offsets)
    expected = _write(read_spans, sentences.offsets, source)
    strays = np.flatnonzero(prefix != expected)
    if stray == "refuse" and len(strays):
        token = strays[0]
        tag, repaired = (_tag(letter[token], kind[token], types) for letter in (prefix, expected))
        problem = f"{name} {tag} does not fit {source}, expected {repaired} ({len(strays)} stray in all)"
        raise UserError(f"{_position(sentences, token)}: {problem}")
    return _column(_write(read_spans, sentences.offsets, target), kind, types), len(strays)


def _check(option: str, value: str, choices: Sequence[str]) -> None:
    """Refuse an unknown scheme of span tags, or an unknown treatment of stray tags."""
    if value not in choices:
        raise UserError(f"{option} {value!r} is unknown, expected one of {', '.join(choices)}")


def _read(sentences: Sentences, name: str) -> _SplitTags:
    """Read the prefix and the type of the span tag of every token.

    A malformed tag is refused with an error that names its position."""
    column = sentences.columns[name]
    for code, value in enumerate(column.values):
        tokens = np.flatnonzero(column.codes == code) if _split(value) is None else ()
        if len(tokens):
            raise UserError(f"{_position(sentences, tokens[0])}: {_malformed(name, value)}")
    # No token has a malformed tag at this point. Malformed values that no token uses are read as O.
    table = _split_all([value if _split(value) else "O" for value in column.values])
    return _SplitTags(table.prefix[column.codes], table.type[column.codes], table.types)


def _split_all(names: Sequence[str]) -> _SplitTags:
    """Split each span tag of a list into prefix and type; a malformed tag is refused."""
    prefix, kind, code_of = [], [], {}
    for name in names:
        parts = _split(name)
        if parts is None:
            raise UserError(_malformed("tag", name))
        prefix.append(PREFIXES.index(parts[0]))
        kind.append(code_of.setdefault(parts[1], len(code_of)) if parts[1] else -1)
    return _SplitTags(np.array(prefix, dtype=np.int64), np.array(kind, dtype=np.int64), list(code_of))


def _split(tag: str) -> tuple[str, str] | None:
    """Split a span tag into prefix and type at the first dash; None if the tag is malformed.

    A type may have dashes."""
    prefix, _, kind = tag.partition("-")
    if tag == "O" or (prefix in ("B", "I", "E", "S") and kind):
        return prefix, kind
    return None


def _malformed(name: str, tag: str) -> str:
    """The error message for a malformed span tag."""
    return f"{name} {tag!r} is malformed, expected O or B-, I-, E- or S- before a type"


def _spans(prefix: np.ndarray, kind: np.ndarray, offsets: np.ndarray) -> Spans:
    """The spans that tags encode, from the prefix and the type (`kind`) of each token's tag.

    `offsets` has the first token of each sentence, then the number of tokens."""
    before, kind_before = np.roll(prefix, 1), np.roll(kind, 1)
    before[_first_tokens(offsets)] = OUTSIDE
    inside = prefix != OUTSIDE
    opens = inside & (OPENS[prefix] | CLOSES[before] | (kind != kind_before))
    start = np.flatnonzero(opens)
    # A span ends before the next token that opens a span or has the tag O.
    bounds = np.append(np.flatnonzero(opens | ~inside), len(prefix))
    return Spans(start, bounds[np.searchsorted(bounds, start) + 1], kind[start])


def _write(spans: Spans, offsets: np.ndarray, scheme: str) -> np.ndarray:
    """Write spans in a scheme; returns the code of the tag prefix of every token (int64 array)."""
    start, end, kind = spans
    change = np.zeros(offsets[-1] + 1, dtype=np.int64)
    change[start] += 1
    change[end] -= 1
    prefix = np.where(np.cumsum(change[:-1]) > 0, INSIDE, OUTSIDE)
    if scheme == "iob1":  # B only if a span of the same type ends at the previous token
        touches = (start[1:] == end[:-1]) & (kind[1:] == kind[:-1])
        prefix[np.setdiff1d(start[1:][touches], _first_tokens(offsets))] = BEGIN
    else:
        prefix[start] = BEGIN
    if scheme == "iobes":
        prefix[end - 1] = END
        prefix[start[end - start == 1]] = SINGLE
    return prefix


def _column(prefix: np.ndarray, kind: np.ndarray, types: list[str]) -> Column:
    """Make the column of span tags from the prefix and the type (`kind`) of each token."""
    keys = kind * len(PREFIXES) + prefix
    _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order))
    values = [_tag(prefix[token], kind[token], types) for token in first[order]]
    return Column(values, rank[codes])


def _tag(prefix: int, kind: int, types: list[str]) -> str:
    """A span tag as a string: O, or prefix and type."""
    return "O" if prefix == OUTSIDE else f"{PREFIXES[prefix]}-{types[kind]}"


def _first_tokens(offsets: np.ndarray) -> np.ndarray:
    """Span tags: the indices of the first tokens of sentences; empty sentences have none."""
    return offsets[:-1][np.diff(offsets) > 0]


def _position(sentences: Sentences, token: int) -> str:
    """The position of a span tag for messages: file, sentence and token."""
    sentence = int(np.searchsorted(sentences.offsets, token, side="right")) - 1
    return f"{sentences.source}, sentence {sentence + 1}, token {token - sentences.offsets[sentence] + 1}"
