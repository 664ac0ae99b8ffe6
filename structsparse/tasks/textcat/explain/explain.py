"""What a text classifier looked at: groups, words, and in some documents the sentences and phrases that live.

`explain` reads it off arrays alone, `write` makes explanation.html (a page that needs nothing else, see explain_page)
and explanation.txt of it. A sentence or phrase is *selected* where its group lives. Documents that are not trained on
have no groups: there, and where the groups are others, it is selected if any of its words has a weight. What leaving
out a sentence changes is

    log p(label | all sentences) - log p(label | all sentences but this one),

of a loss without probabilities the change of the label's score (of a number: of what is predicted).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.corpora.documents import Documents, Labelled
from structsparse.corpora.sentence_splitter import can_split
from structsparse.features.words import Bag, rows_of
from structsparse.groups import Cover
from structsparse.tasks.textcat.explain import page as explain_page
from structsparse.tasks.textcat.explain import text as explain_text
from structsparse.tasks.textcat.explain.phrases import Phrase, phrases_of

WORDS, MEMBERS, GROUPS = 30, 12, 25  # shown of each class, of each group, and groups of each kind, living and dead
DOCUMENTS = 4  # shown of train and of test where none are named
LONGEST = 120  # letters of a name
PATHS = re.compile(r"(?<!\S)/\S*/([^/\s]+/[^/\s]+)")
KINDS = {"sentence": "sentences", "words": "documents", "phrase": "phrases", "topic": "topics", "cluster": "clusters"}


class Member(NamedTuple):
    word: str
    weight: float  # towards the second class; of several classes the one of largest size


class Group(NamedTuple):
    name: str
    lives: bool
    norm: float
    size: int  # words
    members: tuple[Member, ...]  # the heaviest, of dead ones the most frequent


class Kind(NamedTuple):
    """Groups of one kind: topics, say."""

    name: str
    living: int
    dead: int
    shown: tuple[Group, ...]  # the living with the largest norms, then the largest dead ones


class Sentence(NamedTuple):
    pieces: tuple[tuple[str, float], ...]  # words with their weights, and what stands between them (weight 0)
    lives: bool
    change: float  # what leaving it out costs


class Shown(NamedTuple):
    """A document with what was seen in it."""

    name: str
    part: str
    label: str
    predicted: str
    certainty: float | None  # probability of what is predicted
    sentences: tuple[Sentence, ...]
    phrases: tuple[Phrase, ...]  # roots

    @property
    def right(self) -> bool:
        return self.label == self.predicted


@dataclass(frozen=True)
class Explanation:
    title: str
    classes: tuple[str, ...]  # of numbers: lower, higher
    weights: int
    living: int  # weights that are not zero
    tops: tuple[tuple[str, tuple[Member, ...]], ...]  # class, its heaviest words
    kinds: tuple[Kind, ...]
    documents: tuple[Shown, ...]
    scale: float  # a weight of that size is drawn in the full colour
    measure: str  # what `change` is
    numbers: bool  # no classes


def write(folder: Path, told: Explanation) -> None:
    """folder/explanation.html and folder/explanation.txt."""
    write_text(folder / "explanation.html", explain_page.page(told))
    write_text(folder / "explanation.txt", explain_text.text(told))


def explain(
    data: Labelled,
    bag: Bag,
    table: np.ndarray,
    bias: np.ndarray,
    cover: Cover | None,
    shown: Sequence[tuple[str, int]] | None = None,
    loss: str = "logistic",
    alive: np.ndarray | None = None,
) -> Explanation:
    """table: float [rows] for two classes and for numbers, [rows, classes] for more; bias: float [outputs]; `cover`:
    groups of the rows (None: there are none); `shown`: (part, number of a document), else some of train and of test;
    `loss`: the Design's name of it; `alive`: bool [groups], where a solver knows better than the weights which live."""
    table, bias = np.asarray(table, np.float64), np.atleast_1d(np.asarray(bias, np.float64))
    if table.ndim not in (1, 2) or len(table) != len(bag.layout) or bias.shape != (table.shape[1:] or (1,)):
        raise UserError(f"explanation: weights {table.shape} and biases {bias.shape} of {len(bag.layout)} features")
    model = Linear(bag, table, bias, data.classes, loss)
    groups = Groups(cover, table, alive)
    named = chosen(model, data) if shown is None else checked(shown, data)
    sizes = np.abs(table[table != 0])
    return Explanation(
        title=data.name,
        classes=data.classes or ("lower", "higher"),
        weights=table.size,
        living=int((table != 0).sum()),
        tops=_tops(bag.layout.words, table, data.classes),
        kinds=groups.kinds(bag.layout.words, bag.layout.counts),
        documents=tuple(
            s for part in dict.fromkeys(p for p, _ in named) for s in _shown(model, groups, data, part, named)
        ),
        scale=float(np.quantile(sizes, 0.95)) if len(sizes) else 1.0,
        measure="log-odds" if loss == "logistic" else "score",
        numbers=data.classes is None,
    )


@dataclass(frozen=True)
class Linear:
    """A classifier of arrays."""

    bag: Bag
    table: np.ndarray  # [rows] or [rows, classes]
    bias: np.ndarray  # [outputs]
    classes: tuple[str, ...] | None
    loss: str

    def scores(self, documents: Documents) -> np.ndarray:
        """[documents, classes]; two classes share one score, half for the second and half against the first; a number
        has one."""
        found = self.bag.matrix(documents) @ self.table.reshape(len(self.table), -1) + self.bias
        if self.classes is None or found.shape[1] > 1:
            return found
        return np.hstack([-found, found]) / 2

    def values(self, documents: Documents) -> np.ndarray:
        """What is compared: log-probabilities where the loss has them, else scores. [documents, classes]"""
        scores = self.scores(documents)
        if self.classes is None or self.loss != "logistic":
            return scores if self.classes is None or self.table.ndim == 2 else 2 * scores
        return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)

    def predicted(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self.classes is None else values.argmax(axis=1)

    def towards(self, label) -> np.ndarray:
        """The weights that colour a document: towards the second class, of several classes towards its own. [rows]"""
        return self.table if self.table.ndim == 1 else self.table[:, int(label)] - self.table.mean(axis=1)


class Groups:
    """Which groups live, and which one a set of rows is."""

    def __init__(self, cover: Cover | None, table: np.ndarray, alive: np.ndarray | None) -> None:
        self.cover, self.table = cover, table
        if cover is None:
            return
        weights = torch.from_numpy(table)
        self.norms = cover.norms(weights).numpy()
        self.alive = cover.alive(weights).numpy() if alive is None else np.asarray(alive, bool)
        self.members, self.offsets = cover.members.numpy(), cover.offsets.numpy()
        draw = np.random.default_rng(0)
        self.marks = draw.integers(0, 2**63, len(table), dtype=np.uint64)  # sums of them tell sets apart
        keys = np.add.reduceat(self.marks[self.members], self.offsets[:-1])
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]

    def find(self, rows: np.ndarray) -> int | None:
        """The group of exactly these rows (sorted, each once)."""
        if self.cover is None or not len(rows):
            return None
        key = self.marks[rows].sum(dtype=np.uint64)
        at = int(np.searchsorted(self.keys, key))
        while at < len(self.keys) and self.keys[at] == key:
            group = int(self.order[at])
            if np.array_equal(np.sort(self.members[self.offsets[group] : self.offsets[group + 1]]), rows):
                return group
            at += 1
        return None

    def lives(self, rows: np.ndarray, own: bool) -> bool:
        """Whether a set of rows is selected; `own`: its group is to be looked for."""
        rows = np.unique(rows[rows >= 0])
        group = self.find(rows) if own else None
        return bool((self.table[rows] != 0).any()) if group is None else bool(self.alive[group])

    def kinds(self, words: Sequence[str], counts: np.ndarray) -> tuple[Kind, ...]:
        """Those of a combination are told apart; names are made of the groups that are shown alone."""
        if self.cover is None:
            return ()
        names = self.cover.names
        bounds = getattr(names, "bounds", (0, len(names)))
        parts = [np.arange(low, high) for low, high in zip(bounds[:-1], bounds[1:], strict=True) if high > low]
        return tuple(self._kind(kind_of(names[int(own[0])]), own, words, counts) for own in parts)

    def _kind(self, name: str, own: np.ndarray, words: Sequence[str], counts: np.ndarray) -> Kind:
        living, dead = own[self.alive[own]], own[~self.alive[own]]
        sizes = np.diff(self.offsets)
        first = living[np.argsort(-self.norms[living], kind="stable")][:GROUPS]
        last = dead[np.argsort(-sizes[dead], kind="stable")][:GROUPS]
        shown = [self._group(int(group), words, counts) for group in (*first, *last)]
        return Kind(name, len(living), len(dead), tuple(shown))

    def _group(self, group: int, words: Sequence[str], counts: np.ndarray) -> Group:
        rows = self.members[self.offsets[group] : self.offsets[group + 1]]
        heavy = np.lexsort((-counts[rows], -_sizes(self.table[rows])))[:MEMBERS]
        members = tuple(Member(words[row], _signed(self.table[row])) for row in rows[heavy].tolist())
        return Group(
            short(self.cover.names[group]), bool(self.alive[group]), float(self.norms[group]), len(rows), members
        )


def kind_of(name: str) -> str:
    """What a group is one of, by how word_groups names them."""
    return KINDS.get(name.partition(" ")[0], "groups")


def short(name: str) -> str:
    """Of a path, the file and the folder that it is in; of a long name the beginning."""
    name = PATHS.sub(r"\1", name)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}…"


def _sizes(weights: np.ndarray) -> np.ndarray:
    """[rows] or [rows, classes] -> [rows]"""
    return np.abs(weights) if weights.ndim == 1 else np.linalg.norm(weights, axis=1)


def _signed(weight: np.ndarray) -> float:
    return float(weight) if np.ndim(weight) == 0 else float(weight[np.abs(weight).argmax()])


def _tops(words: Sequence[str], table: np.ndarray, classes: tuple[str, ...] | None) -> tuple:
    """The words that speak most for each class."""
    columns = [-table, table] if table.ndim == 1 else [*table.T]
    named = zip(classes or ("lower", "higher"), columns, strict=True)
    return tuple((name, _heaviest(words, column)) for name, column in named)


def _heaviest(words: Sequence[str], column: np.ndarray) -> tuple[Member, ...]:
    rows = np.argsort(-column, kind="stable")[:WORDS]
    return tuple(Member(words[row], float(column[row])) for row in rows.tolist() if column[row] > 0)


def chosen(model: Linear, data: Labelled) -> list[tuple[str, int]]:
    """Some documents of train and of test, of every class, that are neither short nor long for the corpus; of test one
    that is taken for another class as well, if there is one."""
    found = []
    for part in ("train", "test"):
        documents = data.parts[part]
        if not len(documents):
            continue
        low, high = np.quantile(documents.lengths, [0.3, 0.7])
        middle = np.flatnonzero((documents.lengths >= low) & (documents.lengths <= high))
        middle = middle[:: -(-len(middle) // 200)]
        guess = model.predicted(model.scores(documents.select(middle)))
        labels = documents.labels[middle]
        if data.classes is None:
            ranks = np.argsort(labels, kind="stable")
            found += [(part, int(middle[k])) for k in ranks[np.linspace(0, len(ranks) - 1, DOCUMENTS).astype(int)]]
            continue
        right = [middle[(labels == code) & (guess == code)] for code in range(len(data.classes))]
        share = -(-DOCUMENTS // max(len(right), 1))
        picked = [int(k) for own in right for k in own[:share]]
        wrong = middle[guess != labels][: part == "test"]
        found += [(part, k) for k in (*picked, *wrong.tolist())]
    return list(dict.fromkeys(found))


def checked(shown: Sequence[tuple[str, int]], data: Labelled) -> list[tuple[str, int]]:
    """Documents that there are."""
    for part, number in shown:
        if part not in data.parts:
            raise UserError(f"explanation: there is no part {part!r}; there are {', '.join(data.parts)}")
        size = len(data.parts[part])
        if not (isinstance(number, int) and 0 <= number < size):
            raise UserError(f"explanation: document {number} of {part}, expected a number from 0 to {size - 1}")
    return list(dict.fromkeys(shown))


def _shown(model: Linear, groups: Groups, data: Labelled, part: str, named: Sequence[tuple[str, int]]) -> list[Shown]:
    """The named documents of one part."""
    documents = data.parts[part].select([number for own, number in named if own == part])
    values, rows = model.values(documents), rows_of(documents, model.bag.layout)[documents.tokens]
    guesses, sentences = model.predicted(values), _sentences(documents)
    found = []
    for k, name in enumerate(documents.names):
        low, high = documents.offsets[k : k + 2].tolist()
        bounds = sentences[(sentences >= low) & (sentences <= high)]
        label, weights = documents.labels[k], model.towards(documents.labels[k])
        span = slice(low, high)
        spots = documents.begins[span], documents.ends[span], np.where(rows[span] < 0, 0.0, weights[rows[span]])
        changes = _changes(model, documents.select([k]), bounds - low, values[k])
        pieces = _pieces(documents.texts[k], *spots, bounds - low)
        lives = [groups.lives(rows[a:b], part == "train") for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        told = tuple(map(Sentence, pieces, lives, changes.tolist())) if high > low else ()
        guess, certainty = _said(model, guesses[k]), None
        if model.classes is not None and model.loss == "logistic":
            certainty = float(np.exp(values[k].max()))
        phrases = phrases_of(
            documents, k, spots[2], lambda a, b, low=low: groups.lives(rows[low + a : low + b], part == "train")
        )
        found.append(Shown(short(name), part, _said(model, label), guess, certainty, told, phrases))
    return found


def _sentences(documents: Documents) -> np.ndarray:
    """Where they begin; of a text that nothing here can split, where it begins."""
    if documents.sentence_offsets is None and not can_split():
        return documents.offsets
    return documents.sentences()


def _said(model: Linear, label) -> str:
    return f"{label:.4g}" if model.classes is None else model.classes[int(label)]


def _changes(model: Linear, document: Documents, bounds: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What leaving out each sentence of one document costs. bounds: int [sentences + 1], values: [classes]"""
    count = max(len(bounds) - 1, 0)
    tokens, owner = np.arange(len(document.tokens)), np.repeat(np.arange(count), np.diff(bounds))
    kept = [tokens[owner != sentence] for sentence in range(count)]
    if not kept:
        return np.zeros(0)
    order = np.concatenate(kept)
    without = replace(
        document,
        names=document.names * count,
        texts=document.texts * count,
        tokens=document.tokens[order],
        begins=document.begins[order],
        ends=document.ends[order],
        offsets=np.cumsum([0, *map(len, kept)]),
        labels=np.repeat(document.labels, count),
        constituents=None,
        sentence_offsets=None,
    )
    column = 0 if model.classes is None else int(document.labels[0])
    return values[column] - model.values(without)[:, column]


def _pieces(text: str, begins: np.ndarray, ends: np.ndarray, weights: np.ndarray, bounds: np.ndarray) -> list[tuple]:
    """The text cut into sentences, and each into words with weights and what stands between them. What stands before a
    sentence's first word belongs to it up to the last space: an opening bracket, a quote."""
    cuts = [0]
    for token in bounds[1:-1].tolist():
        gap = text[ends[token - 1] : begins[token]]
        after = max((k + 1 for k, letter in enumerate(gap) if letter.isspace()), default=len(gap))
        cuts.append(int(ends[token - 1]) + after)
    cuts.append(len(text))
    found = []
    for number, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        pieces, at = [], cuts[number]
        for token in range(low, high):
            pieces += [(text[at : begins[token]], 0.0), (text[begins[token] : ends[token]], float(weights[token]))]
            at = int(ends[token])
        pieces.append((text[at : cuts[number + 1]], 0.0))
        found.append(tuple(piece for piece in pieces if piece[0]))
    return found
