"""Phrases of a document as trees of which some branches are dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from structsparse.corpora.documents import Documents

SENTIMENTS = {0: "\N{MINUS SIGN}\N{MINUS SIGN}", 1: "\N{MINUS SIGN}", 3: "+", 4: "++"}


class Phrase(NamedTuple):
    """A constituent, or a word (which has no children)."""

    words: tuple[str, ...]
    lives: bool
    label: str  # its kind, or its sentiment
    weight: float  # of a word
    children: tuple[Phrase, ...] = ()


def phrases_of(
    documents: Documents, document: int, weights: np.ndarray, lives: Callable[[int, int], bool]
) -> tuple[Phrase, ...]:
    """The trees of a document of which the constituents are known. weights: [tokens of the document]; `lives` of the
    first token and the token after the last, counted within the document."""
    if documents.constituents is None:
        return ()
    found = documents.constituents.select(np.array([document]), len(documents))
    labels = [SENTIMENTS.get(value, "") for value in found.value.tolist()]
    if found.kind is not None:
        labels = [found.kinds[kind] for kind in found.kind.tolist()]
    first = int(documents.offsets[document])
    text = documents.texts[document]
    places = zip(
        *(part[first : first + len(weights)].tolist() for part in (documents.begins, documents.ends)), strict=True
    )
    words = [text[begin:end] for begin, end in places]
    known: dict[tuple[int, int], str] = {}
    for begin, end, label in zip(found.begin.tolist(), found.end.tolist(), labels, strict=True):
        known.setdefault((begin, end), label)  # a phrase of one phrase is that phrase
    order = sorted(known, key=lambda span: (span[0], -span[1]))
    roots, at = [], 0
    while at < len(order):
        phrase, at = _grown(order, at, known, words, weights, lives)
        roots.append(phrase)
    return tuple(roots)


def _grown(
    order: list, at: int, known: dict, words: list[str], weights: np.ndarray, lives: Callable
) -> tuple[Phrase, int]:
    """The phrase at a place of the order, and the place after all that is below it."""
    begin, end = order[at]
    place, children, at = begin, [], at + 1
    while end - begin > 1 and place < end:
        if at < len(order) and order[at][0] == place and order[at][1] <= end:
            child, below = None, order[at][1]
            child, at = _grown(order, at, known, words, weights, lives)
        else:  # a word that is no constituent of its own
            below = place + 1
            child = Phrase((words[place],), bool(weights[place] != 0), "", float(weights[place]))
        children.append(child)
        place = below
    weight = float(weights[begin]) if end - begin == 1 else 0.0
    alive = bool(weight != 0) if end - begin == 1 else lives(begin, end)
    return Phrase(tuple(words[begin:end]), alive, known[begin, end], weight, tuple(children)), at
