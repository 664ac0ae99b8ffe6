"""The predictor of parsers: the best dependency tree of a sentence, the k best trees, and arc probabilities.

This module does not import Lightning. Sentences are processed in batches of similar length, which bounds the memory."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structsparse.base.arrays import padded_batches, ranges
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.conllu import read_treebank
from structsparse.corpora.from_lists import existing_file, sentences_from_lists
from structsparse.corpora.treebank import COLUMNS, UNKNOWN, Treebank, punctuation
from structsparse.features.keys import Bags
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.templates import columns_of
from structsparse.tasks.parsing.model import ArcBatch, Parser, places_of_arcs
from structsparse.tasks.parsing.relations import Relations
from structsparse.tasks.parsing.scores import TreeScore

BATCH = 1 << 22  # maximum number of feature occurrences in a batch of two or more sentences
Input = Sentences | str | os.PathLike | Iterable[Iterable[str | Sequence[str] | Mapping[str, str]]]


class DependencyTree(NamedTuple):
    """Parser predictor: the dependency tree of a sentence: the head of each word, and the relation to the head."""

    heads: list[int]  # for each word: the position of its head word, from 1 on; 0 for the root
    relations: list[str] | None  # for each word: the relation to its head; None: the parser predicts no relations


class RankedTree(NamedTuple):
    """Parser predictor: one of the k best dependency trees of a sentence, with score and probability."""

    tree: DependencyTree
    score: float
    probability: float


class ParsedWords(NamedTuple):
    """Parser predictor: the predicted heads and relations of all words of some sentences, as arrays."""

    heads: np.ndarray  # int64 [tokens]: the position of the head word, from 1 on; 0 for the root
    relations: Column | None  # the relation of each word to its head; None: the parser predicts no relations
    probabilities: np.ndarray | None  # float64 [tokens]: probability of the arc to each word; None: not requested


class RankedWords(NamedTuple):
    """Parser predictor: one of the k best trees of a sentence as arrays, with score and probability."""

    words: ParsedWords
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class DependencyParser:
    """The predictor of dependency trees: a trained parser, which predicts a tree for every sentence.

    `predict`, `nbest`, `marginals` and `evaluate` take a list of sentences, the path of a CoNLL-U file, or `Sentences`.
    A sentence is a list of words if the parser reads forms only. Otherwise it is a list of tuples (the values of
    `columns`, in order) or of dicts."""

    index: ArcIndex
    parser: Parser
    relations: Relations | None  # the relation classifier; None if relations are not predicted
    rule: str  # how punctuation is found: by `upos` or by `characters`

    def __repr__(self) -> str:
        relations = "no" if self.relations is None else len(self.relations.names)
        return f"DependencyParser({len(self.index):,} features, {relations} relations)"

    @property
    def columns(self) -> dict[str, int]:
        """Parser predictor: the columns that templates read, with the number of templates for each column."""
        templates = [*self.index.templates, *(() if self.relations is None else self.relations.index.templates)]
        counts = Counter(name for template in templates for name in columns_of(template))
        return {name: counts[name] for name in COLUMNS if name in counts}

    # --- the methods that the predictors of all tasks have

    def predict(self, sentences: Input) -> list[DependencyTree]:
        """Parser predictor: predict the best dependency tree of each sentence."""
        sentences = self._sentences(sentences)
        return [_tree(words) for words in _split(self.parse(sentences), sentences.offsets)]

    def nbest(self, sentences: Input, count: int = 10) -> list[list[RankedTree]]:
        """Parser predictor: the `count` best trees of each sentence, best first; all trees if there are fewer."""
        ranked = self.ranked(self._sentences(sentences), count)
        return [[RankedTree(_tree(tree.words), tree.score, tree.probability) for tree in trees] for trees in ranked]

    def marginals(self, sentences: Input) -> list[np.ndarray]:
        """Parser predictor: the marginal probabilities of all arcs, as a float64 array [words, words + 1] per sentence.

        Entry [m, h] belongs to the arc from head h to word m + 1. Words are counted from 1; head 0 is the root."""
        sentences = self._sentences(sentences)
        results = [np.zeros((0, 1)) for _ in range(len(sentences))]
        for scores, batch, *_ in self._scored(sentences):
            arcs = self._marginals(scores, batch).numpy()
            for sentence, length, of_sentence in zip(
                batch.sentences.tolist(), batch.lengths.tolist(), arcs, strict=True
            ):
                results[sentence] = of_sentence[:length, : length + 1].copy()
        return results

    def evaluate(self, source: Input) -> dict[str, float]:
        """Parser predictor: attachment scores (UAS, LAS) against the trees of a CoNLL-U file or a `Treebank`.

        The source can be a list of sentences. Each token then has the columns that the parser reads and `head`, and
        also `deprel` if relations are predicted."""
        treebank = self._treebank(source)
        score, notes = self.score(treebank, self.parse(treebank))
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        return score.result()

    # --- prediction for `Sentences`, with results as arrays and columns

    def parse(self, sentences: Sentences, probabilities: bool = False) -> ParsedWords:
        """Parser predictor: predict the best tree of each sentence; the results for all words are in arrays.

        With `probabilities`, the result includes the marginal probability of each predicted arc."""
        heads = np.empty(sentences.tokens, np.int64)
        of_arcs = np.empty(sentences.tokens) if probabilities else None
        for scores, batch, tokens, inside in self._scored(sentences):
            best = self.parser.structure.best(scores, batch.lengths)
            heads[tokens] = best[inside].numpy()
            if of_arcs is not None:
                of_arcs[tokens] = _of_heads(self._marginals(scores, batch), best)[inside].numpy()
        return ParsedWords(heads, self._relations(sentences, heads), of_arcs)

    def ranked(self, sentences: Sentences, count: int, probabilities: bool = False) -> list[list[RankedWords]]:
        """Parser predictor: the `count` best trees of each sentence, best first, as arrays.

        If a sentence has fewer trees, all its trees are returned. With `probabilities`, the result includes the
        marginal probability of each arc of these trees."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UserError(f"the {count} best trees were requested, expected a number from 1 on")
        results: list[list[RankedWords]] = [[] for _ in range(len(sentences))]
        for scores, batch, _, inside in self._scored(sentences):
            # trees [batch, count, words]: heads, padded to the longest sentence; totals [batch, count]: scores of trees
            trees, totals = self.parser.structure.best_k(scores, batch.lengths, count)
            shares = torch.exp(totals - self.parser.structure.log_partition(scores, batch.lengths)[:, None])
            marginals = self._marginals(scores, batch) if probabilities else None
            for k in range(count):
                exist = totals[:, k] > -torch.inf  # sentences that have a tree of rank k (from 0)
                words, chosen = inside[exist], batch.sentences[exist].numpy()
                heads = trees[exist, k]
                of_arcs = None if marginals is None else _of_heads(marginals[exist], heads)[words].numpy()
                selected, heads = sentences.select(chosen), heads[words].numpy()
                parsed = ParsedWords(heads, self._relations(selected, heads), of_arcs)
                values = zip(chosen.tolist(), totals[exist, k].tolist(), shares[exist, k].tolist(), strict=True)
                for (sentence, score, share), tree in zip(values, _split(parsed, selected.offsets), strict=True):
                    results[sentence].append(RankedWords(tree, score, share))
        return results

    def score(self, treebank: Treebank, words: ParsedWords) -> tuple[TreeScore, list[str]]:
        """Parser predictor: score predicted trees against the gold trees of a treebank.

        Also returns notes that name relations unknown to the parser. Arcs with such relations count as wrong."""
        score, notes, relations = TreeScore(), [], ()
        if words.relations is not None:
            gold = treebank.columns["deprel"].recoded(words.relations.values)
            for name in gold.values[len(words.relations.values) :]:
                notes.append(f"{treebank.source}: relation {name} is unknown to the model, all its arcs count as wrong")
            relations = gold.codes, words.relations.codes
        marks = punctuation(treebank, self.rule)
        score.add(treebank.heads.astype(np.int64), words.heads, treebank.offsets, marks, *relations)
        return score, notes

    # --- reading the input

    def _sentences(self, source: Input) -> Sentences:
        """Parser predictor: the input sentences as columns, from a CoNLL-U file, lists or `Sentences`."""
        if isinstance(source, Sentences):
            return source
        if isinstance(source, str | os.PathLike):
            return read_treebank(existing_file(source, (*self.columns,), "this parser"), heads=False)
        return sentences_from_lists(source, (*self.columns,), "this parser")

    def _treebank(self, source: Input) -> Treebank:
        """Parser predictor: the input of `evaluate` as a treebank with gold heads."""
        needed = {*self.columns, "upos" if self.rule == "upos" else "word"} | (
            {*()} if self.relations is None else {"deprel"}
        )
        needed = (*(name for name in COLUMNS if name in needed), "head")
        if isinstance(source, str | os.PathLike):
            return read_treebank(existing_file(source, needed, "this parser"))
        if not isinstance(source, Sentences):
            source = _with_heads(sentences_from_lists(source, needed, "this parser"))
        if not isinstance(source, Treebank) or (source.heads == UNKNOWN).any():
            raise UserError(f"{source.source}: no trees to compare with, expected a treebank with heads")
        return source

    # --- scores of batches

    def _relations(self, sentences: Sentences, heads: np.ndarray) -> Column | None:
        """Parser predictor: the relation of each word to its given head; None without a relation classifier."""
        return None if self.relations is None else self.relations.predict(sentences, heads)

    def _marginals(self, scores: Tensor, batch: ArcBatch) -> Tensor:
        """Parser predictor: the marginal probability of every arc of a batch (float64 tensor [batch, n, n + 1]).

        The second index is the modifier, the third the head; head 0 is the root. n is the length of the longest
        sentence."""
        return self.parser.structure.marginals(scores.double(), batch.lengths)[:, 1:]

    @torch.no_grad()
    def _scored(self, sentences: Sentences) -> Iterator[tuple[Tensor, ArcBatch, np.ndarray, Tensor]]:
        """Parser predictor: score the arcs of sentences batch by batch, longest sentences first.

        Yields for each batch: the arc scores, the batch, the positions of its tokens in the input, and a mask [batch,
        longest sentence] that is true at words and false at padding."""
        order = np.argsort(-sentences.lengths, kind="stable")
        order = order[: np.count_nonzero(sentences.lengths)]  # empty sentences have no trees
        arcs = (sentences.lengths[order].astype(np.int64) + 1) ** 2
        for begin, end in padded_batches(arcs * len(self.index.templates), BATCH):
            chosen = order[begin:end]
            lengths = sentences.lengths[chosen].astype(np.int64)
            longest, source = int(lengths[0]), _BatchArcs(self.index.bags(sentences.select(chosen)))
            # an `ArcBatch` needs gold heads and punctuation; prediction does not read them, so zeros suffice
            gold, marks = np.zeros((len(chosen), longest), np.int64), np.zeros(int(lengths.sum()), bool)
            arrays = places_of_arcs(lengths, longest + 1), gold, marks, lengths, chosen
            batch = ArcBatch(source, chosen, *map(torch.from_numpy, arrays), len(chosen))
            inside = torch.arange(longest) < batch.lengths[:, None]
            yield self.parser(batch), batch, ranges(sentences.offsets[chosen], lengths), inside


class _BatchArcs:
    """Parser predictor: the bags of arc features of a single batch, as the source of an `ArcBatch`."""

    def __init__(self, bags: Bags) -> None:
        self.bags = bags

    def bag(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parser predictor: the feature rows of all arcs of the batch, and the offset of the rows of each arc."""
        return self.bags.ids, self.bags.offsets


def _of_heads(marginals: Tensor, heads: Tensor) -> Tensor:
    """Parser predictor: the probability of the arc to each word from its given head (tensor [batch, n]).

    `marginals` [batch, n, n + 1] holds the probability of each arc, by modifier and head. `heads` [batch, n] holds the
    given heads. n is the length of the longest sentence."""
    return marginals.gather(2, heads.unsqueeze(2)).squeeze(2)


def _split(words: ParsedWords, offsets: np.ndarray) -> Iterator[ParsedWords]:
    """Parser predictor: split the predictions for the words of several sentences into single sentences."""
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        relations = None if words.relations is None else words.relations.take(np.arange(begin, end))
        probabilities = None if words.probabilities is None else words.probabilities[begin:end]
        yield ParsedWords(words.heads[begin:end], relations, probabilities)


def _tree(words: ParsedWords) -> DependencyTree:
    """Parser predictor: the dependency tree of one sentence, from predicted heads and relations."""
    return DependencyTree(words.heads.tolist(), None if words.relations is None else words.relations.strings())


def _with_heads(sentences: Sentences) -> Treebank:
    """Parser predictor: a treebank from input sentences with a column `head`; invalid heads are an error."""
    columns, lengths = dict(sentences.columns), np.repeat(sentences.lengths, sentences.lengths)
    values = columns.pop("head").strings()
    for value, length in zip(values, lengths.tolist(), strict=True):
        if not value.isdecimal() or int(value) > length:
            raise UserError(f"head is {value}, expected 0 for the root or the number of a word, from 1 to {length}")
    heads, lines = np.array(values, np.int32), np.zeros(sentences.tokens, np.int32)
    blocks = ("",) * len(sentences)
    return Treebank(columns, sentences.offsets, sentences.source, heads=heads, lines=lines, blocks=blocks)
