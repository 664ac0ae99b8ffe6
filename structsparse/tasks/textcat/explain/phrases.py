"""The phrases of a document as parse trees, in which each phrase is selected (lives) or not (dead)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from structsparse.corpora.documents import Documents

# signs for sentiments from 0 (very negative) to 4 (very positive); the neutral sentiment 2 has no sign
SENTIMENTS = {0: "\N{MINUS SIGN}\N{MINUS SIGN}", 1: "\N{MINUS SIGN}", 3: "+", 4: "++"}


class Phrase(NamedTuple):
    """A phrase of a parse tree: a constituent, or a single word, which has no children."""

    words: tuple[str, ...]
    lives: bool  # whether the phrase is selected
    label: str  # the kind of phrase (such as NP), or the sign of its sentiment
    weight: float  # the weight of a single word; 0 for longer phrases
    children: tuple[Phrase, ...] = ()


def phrases_of(
    documents: Documents, document: int, weights: np.ndarray, lives: Callable[[int, int], bool]
) -> tuple[Phrase, ...]:
    """The phrases of a document as parse trees; empty if the documents have no parse trees.

    `weights` has the weight of each token of the document. `lives(begin, end)` says whether the phrase of the tokens
    begin : end is selected."""
    if documents.constituents is None:
        return ()
    constituents = documents.constituents.select(np.array([document]), len(documents))
    labels = [SENTIMENTS.get(value, "") for value in constituents.value.tolist()]
    if constituents.kind is not None:
        labels = [constituents.kinds[kind] for kind in constituents.kind.tolist()]
    first = int(documents.offsets[document])
    text = documents.texts[document]
    places = zip(
        *(part[first : first + len(weights)].tolist() for part in (documents.begins, documents.ends)), strict=True
    )
    words = [text[begin:end] for begin, end in places]
    label_of: dict[tuple[int, int], str] = {}
    for begin, end, label in zip(constituents.begin.tolist(), constituents.end.tolist(), labels, strict=True):
        label_of.setdefault((begin, end), label)  # of constituents with the same span, the outer one gives the label
    spans = sorted(label_of, key=lambda span: (span[0], -span[1]))
    roots, at = [], 0
    while at < len(spans):
        phrase, at = _subtree(spans, at, label_of, words, weights, lives)
        roots.append(phrase)
    return tuple(roots)


def _subtree(
    spans: list, at: int, label_of: dict, words: list[str], weights: np.ndarray, lives: Callable
) -> tuple[Phrase, int]:
    """Build the parse tree of the phrase with span spans[at], from this span and the spans inside it.

    Returns the tree, and the index in `spans` of the first span outside the phrase."""
    begin, end = spans[at]
    place, children, at = begin, [], at + 1
    while end - begin > 1 and place < end:
        if at < len(spans) and spans[at][0] == place and spans[at][1] <= end:
            child, after = None, spans[at][1]
            child, at = _subtree(spans, at, label_of, words, weights, lives)
        else:  # a word that is not a constituent
            after = place + 1
            child = Phrase((words[place],), bool(weights[place] != 0), "", float(weights[place]))
        children.append(child)
        place = after
    weight = float(weights[begin]) if end - begin == 1 else 0.0
    alive = bool(weight != 0) if end - begin == 1 else lives(begin, end)
    return Phrase(tuple(words[begin:end]), alive, label_of[begin, end], weight, tuple(children)), at
