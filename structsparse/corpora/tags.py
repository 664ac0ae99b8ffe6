"""Span tags: the schemes iob1, iob2 and iobes, from one to another, and the spans that they spell.

Everything goes through the spans. A tag is read as `conlleval.pl` reads it (with S for a span of one token),
which gives every sequence, however broken, exactly one set of spans. A tag is stray when these spans, written
in the scheme that the tag claims to follow, put another tag in its place.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences

SCHEMES = ("iob2", "iob1", "iobes")  # the first wins a tie in `detect_scheme`
PREFIXES = "OBIES"
OUTSIDE, BEGIN, INSIDE, END, SINGLE = range(5)
# After one of these a span cannot go on; one of those always opens a span.  [prefixes]
CLOSES = np.array([True, False, False, True, True])
OPENS = np.array([False, True, False, False, True])


class Spans(NamedTuple):
    """Spans in order of appearance: tokens `start` to `end` (not included)."""

    start: np.ndarray  # int64 [spans]
    end: np.ndarray  # int64 [spans]
    type: np.ndarray  # int64 [spans], into `span_types`


class _Parsed(NamedTuple):
    prefix: np.ndarray  # int64 [tags], into PREFIXES
    type: np.ndarray  # int64 [tags], -1 for O
    types: list[str]


def span_types(names: Sequence[str]) -> list[str]:
    """The types that these tags speak of, in order of first appearance."""
    return _parse(names).types


def spans(codes: np.ndarray, offsets: np.ndarray, names: Sequence[str]) -> Spans:
    """The spans of a tag sequence by the rules of `conlleval.pl`; none crosses a sentence."""
    table, codes = _parse(names), np.asarray(codes)
    return _spans(table.prefix[codes], table.type[codes], np.asarray(offsets))


def detect_scheme(sentences: Sentences, name: str = "tag") -> str:
    """The scheme in which the fewest tags are stray; iob2 where several do as well (no span at all)."""
    prefix, kind, _ = _read(sentences, name)
    found = _spans(prefix, kind, sentences.offsets)
    strays = [np.count_nonzero(prefix != _spell(found, sentences.offsets, scheme)) for scheme in SCHEMES]
    return SCHEMES[int(np.argmin(strays))]


def convert(sentences: Sentences, name: str, source: str, target: str, stray: str = "repair") -> tuple[Column, int]:
    """Column `name` with the same spans in another scheme, and how many tags were stray in the source scheme.

    Stray tags become what their span makes of them (stray="repair") or end in an error that says where the
    first one stands ("refuse").
    """
    _check("scheme", source, SCHEMES)
    _check("scheme", target, SCHEMES)
    _check("stray", stray, ("repair", "refuse"))
    prefix, kind, types = _read(sentences, name)
    found = _spans(prefix, kind, sentences.offsets)
    expected = _spell(found, sentences.offsets, source)
    strays = np.flatnonzero(prefix != expected)
    if stray == "refuse" and len(strays):
        token = strays[0]
        tag, wanted = (_tag(letter[token], kind[token], types) for letter in (prefix, expected))
        problem = f"{name} {tag} does not fit {source}, expected {wanted} ({len(strays)} stray in all)"
        raise UserError(f"{_position(sentences, token)}: {problem}")
    return _column(_spell(found, sentences.offsets, target), kind, types), len(strays)


def _check(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"{option} {value!r} is unknown, expected one of {', '.join(known)}")


def _read(sentences: Sentences, name: str) -> _Parsed:
    """Prefix and type of every token.  [tokens] each"""
    column = sentences.columns[name]
    for code, value in enumerate(column.values):
        tokens = np.flatnonzero(column.codes == code) if _split(value) is None else ()
        if len(tokens):
            raise UserError(f"{_position(sentences, tokens[0])}: {_malformed(name, value)}")
    table = _parse([value if _split(value) else "O" for value in column.values])  # malformed: never used
    return _Parsed(table.prefix[column.codes], table.type[column.codes], table.types)


def _parse(names: Sequence[str]) -> _Parsed:
    """Prefix and type of each tag; a tag that is neither O nor PREFIX-TYPE is refused."""
    prefix, kind, index = [], [], {}
    for name in names:
        parts = _split(name)
        if parts is None:
            raise UserError(_malformed("tag", name))
        prefix.append(PREFIXES.index(parts[0]))
        kind.append(index.setdefault(parts[1], len(index)) if parts[1] else -1)
    return _Parsed(np.array(prefix, dtype=np.int64), np.array(kind, dtype=np.int64), list(index))


def _split(tag: str) -> tuple[str, str] | None:
    """Prefix and type, parted at the first dash (a type may hold dashes); none if the tag is malformed."""
    prefix, _, kind = tag.partition("-")
    if tag == "O" or (prefix in ("B", "I", "E", "S") and kind):
        return prefix, kind
    return None


def _malformed(name: str, tag: str) -> str:
    return f"{name} {tag!r} is malformed, expected O or B-, I-, E- or S- before a type"


def _spans(prefix: np.ndarray, kind: np.ndarray, offsets: np.ndarray) -> Spans:
    """Spans from prefix and type of every token.  [tokens] each"""
    before, kind_before = np.roll(prefix, 1), np.roll(kind, 1)
    before[_first_tokens(offsets)] = OUTSIDE
    inside = prefix != OUTSIDE
    opens = inside & (OPENS[prefix] | CLOSES[before] | (kind != kind_before))
    start = np.flatnonzero(opens)
    # A span ends where the next one opens or an O stands; the first token of a sentence is one of the two.
    bounds = np.append(np.flatnonzero(opens | ~inside), len(prefix))
    return Spans(start, bounds[np.searchsorted(bounds, start) + 1], kind[start])


def _spell(found: Spans, offsets: np.ndarray, scheme: str) -> np.ndarray:
    """Prefix of every token when these spans are written in a scheme.  [tokens]"""
    start, end, kind = found
    change = np.zeros(offsets[-1] + 1, dtype=np.int64)
    change[start] += 1
    change[end] -= 1
    prefix = np.where(np.cumsum(change[:-1]) > 0, INSIDE, OUTSIDE)
    if scheme == "iob1":  # B only to part a span from one of its type that ends right before it
        touches = (start[1:] == end[:-1]) & (kind[1:] == kind[:-1])
        prefix[np.setdiff1d(start[1:][touches], _first_tokens(offsets))] = BEGIN
    else:
        prefix[start] = BEGIN
    if scheme == "iobes":
        prefix[end - 1] = END
        prefix[start[end - start == 1]] = SINGLE
    return prefix


def _column(prefix: np.ndarray, kind: np.ndarray, types: list[str]) -> Column:
    """A column from prefix and type of every token, its values in order of first appearance."""
    keys = kind * len(PREFIXES) + prefix
    _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order))
    values = [_tag(prefix[token], kind[token], types) for token in first[order]]
    return Column(values, rank[codes])


def _tag(prefix: int, kind: int, types: list[str]) -> str:
    return "O" if prefix == OUTSIDE else f"{PREFIXES[prefix]}-{types[kind]}"


def _first_tokens(offsets: np.ndarray) -> np.ndarray:
    return offsets[:-1][np.diff(offsets) > 0]


def _position(sentences: Sentences, token: int) -> str:
    sentence = int(np.searchsorted(sentences.offsets, token, side="right")) - 1
    return f"{sentences.source}, sentence {sentence + 1}, token {token - sentences.offsets[sentence] + 1}"
