"""Explain a text classifier: compute heaviest words, word groups, and selected sentences of documents.

- A sentence or phrase of a training document is *selected* if the group of its words has a nonzero weight.
- In other documents, or without such a group, it is selected if one of its words has a nonzero weight.
- The change of a sentence is log p(label | document) - log p(label | document without the sentence). For losses without
  probabilities, a score or the predicted number replaces the log-probability."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.corpora.documents import Documents, DocumentSplits
from structsparse.corpora.sentence_splitter import can_split
from structsparse.features.word_groups import JoinedNames
from structsparse.features.words import Bag, rows_of
from structsparse.groups import Cover
from structsparse.tasks.textcat.explain import page, text
from structsparse.tasks.textcat.explain.explanation import (
    ExplainedDocument,
    ExplainedSentence,
    Explanation,
    GroupKind,
    GroupSummary,
    WeightedWord,
)
from structsparse.tasks.textcat.explain.phrases import phrases_of

WORDS, GROUP_WORDS, GROUPS = 30, 12, 25  # maximum counts to show: words per class, words per group, groups per kind
DOCUMENTS = 4  # number of documents shown by default from train, and the same number from test
LONGEST = 120  # maximum number of characters of the name of a document or group
# pattern of an absolute path; group 1 of a match is the last folder and the file name
PATHS = re.compile(r"(?<!\S)/\S*/([^/\s]+/[^/\s]+)")
# plural of each kind of word group; the key is the first word in the names of such groups
KINDS = {"sentence": "sentences", "words": "documents", "phrase": "phrases", "topic": "topics", "cluster": "clusters"}


def write(folder: Path, explanation: Explanation) -> None:
    """Explaining a text classifier: write explanation.html and explanation.txt."""
    write_text(folder / "explanation.html", page.page(explanation))
    write_text(folder / "explanation.txt", text.text(explanation))


def explain(
    data: DocumentSplits,
    bag: Bag,
    table: np.ndarray,
    bias: np.ndarray,
    cover: Cover | None,
    shown: Sequence[tuple[str, int]] | None = None,
    loss: str = "logistic",
    alive: np.ndarray | None = None,
) -> Explanation:
    """Explain a text classifier that is given as arrays.

    - table: array of weights, [features] for two classes or for numbers, [features, classes] for more classes
    - bias: array of the constants in the scores
    - cover: word groups, or None
    - shown: (part, index) of each document to explain; None: a choice from train and test
    - loss: the name of the training loss
    - alive: bool array, whether each group is selected; None: groups with a nonzero weight are selected"""
    table, bias = np.asarray(table, np.float64), np.atleast_1d(np.asarray(bias, np.float64))
    if table.ndim not in (1, 2) or len(table) != len(bag.layout) or bias.shape != (table.shape[1:] or (1,)):
        raise UserError(f"explanation: weights {table.shape} and biases {bias.shape} for {len(bag.layout)} features")
    model = LinearModel(bag, table, bias, data.classes, loss)
    groups = GroupLookup(cover, table, alive)
    named = chosen(model, data) if shown is None else checked(shown, data)
    sizes = np.abs(table[table != 0])
    documents = [_explained(model, groups, data, part, named) for part in dict.fromkeys(part for part, _ in named)]
    return Explanation(
        title=data.name,
        classes=data.classes or ("lower", "higher"),
        weights=table.size,
        living=int((table != 0).sum()),
        top_words=_top_words(bag.layout.words, table, data.classes),
        kinds=groups.kinds(bag.layout.words, bag.layout.counts),
        documents=tuple(document for of_part in documents for document in of_part),
        scale=float(np.quantile(sizes, 0.95)) if len(sizes) else 1.0,
        measure="number" if data.classes is None else "log-probability" if loss == "logistic" else "score",
    )


@dataclass(frozen=True)
class LinearModel:
    """The text classifier to be explained, a linear model given as arrays of weights and biases."""

    bag: Bag
    table: np.ndarray  # weights, [features], or [features, classes] for more than two classes
    bias: np.ndarray  # [outputs]
    classes: tuple[str, ...] | None  # names of the classes; None: the model predicts a number
    loss: str  # name of the training loss

    def scores(self, documents: Documents) -> np.ndarray:
        """Explaining a text classifier: the scores of documents, [documents, classes], or [documents, 1] for a number.

        Two classes share one score s of the model. Their scores here are -s / 2 and s / 2."""
        scores = self.bag.matrix(documents) @ self.table.reshape(len(self.table), -1) + self.bias
        if self.classes is None or scores.shape[1] > 1:
            return scores
        return np.hstack([-scores, scores]) / 2

    def values(self, documents: Documents) -> np.ndarray:
        """Explaining a text classifier: the log-probability of each class for each document ([documents, classes]).

        If the loss is not logistic, scores replace log-probabilities."""
        scores = self.scores(documents)
        if self.classes is None or self.loss != "logistic":
            return scores if self.classes is None or self.table.ndim == 2 else 2 * scores
        return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)

    def predicted(self, values: np.ndarray) -> np.ndarray:
        """Explaining a text classifier: the predicted class code, or the predicted number, of each document."""
        return values[:, 0] if self.classes is None else values.argmax(axis=1)

    def towards(self, label) -> np.ndarray:
        """Explaining a text classifier: the weight of each feature, by which the words of a document are coloured.

        With more than two classes, it is the weight for the class `label`, minus the mean weight over all classes."""
        return self.table if self.table.ndim == 1 else self.table[:, int(label)] - self.table.mean(axis=1)

    def label_text(self, label) -> str:
        """Explaining a text classifier: the label of a document as text, the name of a class or a number."""
        return f"{label:.4g}" if self.classes is None else self.classes[int(label)]


class GroupLookup:
    """Explaining a text classifier: a lookup of the word group that consists of exactly the given words."""

    def __init__(self, cover: Cover | None, table: np.ndarray, alive: np.ndarray | None) -> None:
        self.cover, self.table = cover, table
        if cover is None:
            return
        weights = torch.from_numpy(table)
        self.norms = cover.norms(weights).numpy()
        self.alive = cover.alive(weights).numpy() if alive is None else np.asarray(alive, bool)
        self.members, self.offsets = cover.members.numpy(), cover.offsets.numpy()
        draw = np.random.default_rng(0)
        # random number of each word (row of the table); the hash of a set of words is the sum of their numbers
        self.marks = draw.integers(0, 2**63, len(table), dtype=np.uint64)
        keys = np.add.reduceat(self.marks[self.members], self.offsets[:-1])
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]

    def find(self, rows: np.ndarray) -> int | None:
        """Explaining a text classifier: the index of the word group with exactly these words; None if there is none.

        `rows` has the rows of these words in the weight table, sorted and distinct."""
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

    def lives(self, rows: np.ndarray, by_group: bool) -> bool:
        """Explaining a text classifier: whether a set of words is selected.

        If `by_group` is set, the word group with exactly these words decides. If `by_group` is not set, or there is no
        such group, one word with a nonzero weight suffices. `rows` has the words' rows in the weight table, or -1 for
        unknown words."""
        rows = np.unique(rows[rows >= 0])
        group = self.find(rows) if by_group else None
        return bool((self.table[rows] != 0).any()) if group is None else bool(self.alive[group])

    def kinds(self, words: Sequence[str], counts: np.ndarray) -> tuple[GroupKind, ...]:
        """Explaining a text classifier: a summary for each kind of word groups, such as topics or sentences."""
        if self.cover is None:
            return ()
        names = self.cover.names
        bounds = names.bounds if isinstance(names, JoinedNames) else (0, len(names))
        parts = [np.arange(low, high) for low, high in zip(bounds[:-1], bounds[1:], strict=True) if high > low]
        return tuple(self._kind(kind_of(names[int(groups[0])]), groups, words, counts) for groups in parts)

    def _kind(self, name: str, groups: np.ndarray, words: Sequence[str], counts: np.ndarray) -> GroupKind:
        """Explaining a text classifier: the summary of all word groups of one kind.

        Details are given of the nonzero groups with the largest norms, and of the zero groups with the most words."""
        living, dead = groups[self.alive[groups]], groups[~self.alive[groups]]
        sizes = np.diff(self.offsets)
        first = living[np.argsort(-self.norms[living], kind="stable")][:GROUPS]
        last = dead[np.argsort(-sizes[dead], kind="stable")][:GROUPS]
        shown = [self._summary(int(group), words, counts) for group in (*first, *last)]
        return GroupKind(name, len(living), len(dead), tuple(shown))

    def _summary(self, group: int, words: Sequence[str], counts: np.ndarray) -> GroupSummary:
        """Explaining a text classifier: the summary of one word group with name, norm, size and heaviest words."""
        rows = self.members[self.offsets[group] : self.offsets[group + 1]]
        heaviest = np.lexsort((-counts[rows], -_sizes(self.table[rows])))[:GROUP_WORDS]
        weighted = tuple(WeightedWord(words[row], _largest(self.table[row])) for row in rows[heaviest].tolist())
        name, lives = short(self.cover.names[group]), bool(self.alive[group])
        return GroupSummary(name, lives, float(self.norms[group]), len(rows), weighted)


def kind_of(name: str) -> str:
    """Explaining a text classifier: the kind of a word group (sentences, topics, ...), from the group's name."""
    return KINDS.get(name.partition(" ")[0], "groups")


def short(name: str) -> str:
    """Explaining a text classifier: shorten the name of a document or group.

    Of a path, the last folder and the file name remain. Names are cut after LONGEST characters."""
    name = PATHS.sub(r"\1", name)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}…"


def _sizes(weights: np.ndarray) -> np.ndarray:
    """Explaining a text classifier: the size of each word's weight: its absolute value, or its norm over classes."""
    return np.abs(weights) if weights.ndim == 1 else np.linalg.norm(weights, axis=1)


def _largest(weight: np.ndarray) -> float:
    """Explaining a text classifier: the weight of a word, for the class where the absolute weight is largest."""
    return float(weight) if np.ndim(weight) == 0 else float(weight[np.abs(weight).argmax()])


def _top_words(words: Sequence[str], table: np.ndarray, classes: tuple[str, ...] | None) -> tuple:
    """Explaining a text classifier: the words with the largest positive weights for each class."""
    columns = [-table, table] if table.ndim == 1 else [*table.T]
    named = zip(classes or ("lower", "higher"), columns, strict=True)
    return tuple((name, _heaviest(words, column)) for name, column in named)


def _heaviest(words: Sequence[str], column: np.ndarray) -> tuple[WeightedWord, ...]:
    """Explaining a text classifier: the words with the largest positive weights in `column`."""
    rows = np.argsort(-column, kind="stable")[:WORDS]
    return tuple(WeightedWord(words[row], float(column[row])) for row in rows.tolist() if column[row] > 0)


# --- choice and explanation of documents


def chosen(model: LinearModel, data: DocumentSplits) -> list[tuple[str, int]]:
    """Explaining a text classifier: choose documents of medium length from train and test.

    If the model predicts classes, these are correctly predicted documents of every class, and one wrongly predicted
    test document. If the model predicts numbers, the labels of the chosen
    documents range from the smallest to the largest."""
    result = []
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
            result += [(part, int(middle[k])) for k in ranks[np.linspace(0, len(ranks) - 1, DOCUMENTS).astype(int)]]
            continue
        right = [middle[(labels == code) & (guess == code)] for code in range(len(data.classes))]
        share = -(-DOCUMENTS // max(len(right), 1))
        picked = [int(k) for of_class in right for k in of_class[:share]]
        wrong = middle[guess != labels][: part == "test"]
        result += [(part, k) for k in (*picked, *wrong.tolist())]
    return list(dict.fromkeys(result))


def checked(shown: Sequence[tuple[str, int]], data: DocumentSplits) -> list[tuple[str, int]]:
    """Explaining a text classifier: the requested documents, as (part, index), without duplicates.

    An error is raised if a document does not exist."""
    for part, number in shown:
        if part not in data.parts:
            raise UserError(f"explanation: there is no part {part!r}; there are {', '.join(data.parts)}")
        size = len(data.parts[part])
        if not (isinstance(number, int) and 0 <= number < size):
            raise UserError(f"explanation: document {number} of {part}, expected a number from 0 to {size - 1}")
    return list(dict.fromkeys(shown))


def _explained(
    model: LinearModel, groups: GroupLookup, data: DocumentSplits, part: str, named: Sequence[tuple[str, int]]
) -> list[ExplainedDocument]:
    """Explaining a text classifier: the chosen documents of one part, with predictions, sentences and phrases."""
    documents = data.parts[part].select([number for name, number in named if name == part])
    values, rows = model.values(documents), rows_of(documents, model.bag.layout)[documents.tokens]
    guesses, sentences, by_group = model.predicted(values), _sentence_offsets(documents), part == "train"
    result = []
    for k, name in enumerate(documents.names):
        low, high = documents.offsets[k : k + 2].tolist()
        bounds = sentences[(sentences >= low) & (sentences <= high)]
        weights, span = model.towards(documents.labels[k]), slice(low, high)
        of_token = np.where(rows[span] < 0, 0.0, weights[rows[span]])
        changes = _changes(model, documents.select([k]), bounds - low, values[k])
        pieces = _pieces(documents.texts[k], documents.begins[span], documents.ends[span], of_token, bounds - low)
        lives = [groups.lives(rows[a:b], by_group) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        explained = tuple(map(ExplainedSentence, pieces, lives, changes.tolist())) if high > low else ()
        probable = model.classes is not None and model.loss == "logistic"
        probability = float(np.exp(values[k].max())) if probable else None
        label, guess = model.label_text(documents.labels[k]), model.label_text(guesses[k])
        phrases = phrases_of(documents, k, of_token, lambda a, b, at=low: groups.lives(rows[at + a : at + b], by_group))
        result.append(ExplainedDocument(short(name), part, label, guess, probability, explained, phrases))
    return result


def _sentence_offsets(documents: Documents) -> np.ndarray:
    """Explaining a text classifier: the token offsets at which sentences of documents begin.

    If no sentence splitter is installed, a document may count as one sentence."""
    if documents.sentence_offsets is None and not can_split():
        return documents.offsets
    return documents.sentences()


def _changes(model: LinearModel, document: Documents, bounds: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Explaining a text classifier: how much the value of a document falls when a sentence is removed ([sentences]).

    The value is the log-probability or score of the document's class. `bounds` has the token offsets at which sentences
    begin, and the end of the last sentence. `values` has the value of the whole document for each class."""
    count = max(len(bounds) - 1, 0)
    tokens, owner = np.arange(len(document.tokens)), np.repeat(np.arange(count), np.diff(bounds))
    remaining = [tokens[owner != sentence] for sentence in range(count)]
    if not remaining:
        return np.zeros(0)
    order = np.concatenate(remaining)
    without = replace(
        document,
        names=document.names * count,
        texts=document.texts * count,
        tokens=document.tokens[order],
        begins=document.begins[order],
        ends=document.ends[order],
        offsets=np.cumsum([0, *map(len, remaining)]),
        labels=np.repeat(document.labels, count),
        constituents=None,
        sentence_offsets=None,
    )
    column = 0 if model.classes is None else int(document.labels[0])
    return values[column] - model.values(without)[:, column]


def _pieces(text: str, begins: np.ndarray, ends: np.ndarray, weights: np.ndarray, bounds: np.ndarray) -> list[tuple]:
    """Explaining a text classifier: cut a text into sentences, and each sentence into (text, weight) pieces.

    A piece is a word with its weight, or the text between two words with weight 0."""
    cuts = [0]
    for token in bounds[1:-1].tolist():
        gap = text[ends[token - 1] : begins[token]]
        after = max((k + 1 for k, letter in enumerate(gap) if letter.isspace()), default=len(gap))
        cuts.append(int(ends[token - 1]) + after)
    cuts.append(len(text))
    sentences = []
    for number, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        pieces, at = [], cuts[number]
        for token in range(low, high):
            pieces += [(text[at : begins[token]], 0.0), (text[begins[token] : ends[token]], float(weights[token]))]
            at = int(ends[token])
        pieces.append((text[at : cuts[number + 1]], 0.0))
        sentences.append(tuple(piece for piece in pieces if piece[0]))
    return sentences
