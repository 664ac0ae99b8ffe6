"""Use of a trained parser: the best tree of a sentence, its relations, the k best trees, how sure it is of each arc.

Nothing here knows of files or of training. Sentences are taken by length, some at a time, so that memory is bounded
by the longest of them and by the input itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structsparse.base.arrays import ranges
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.treebank import COLUMNS
from structsparse.features.keys import Bags
from structsparse.tasks.parsing.features.index import ArcIndex, columns_of
from structsparse.tasks.parsing.model import ArcBatch, Parser, places_of_arcs
from structsparse.tasks.parsing.relations import Relations

_OCCURRENCES = 1 << 22  # of features in a batch, at most, but in one of a single sentence


class Trees(NamedTuple):
    """A tree for each sentence, by word."""

    heads: np.ndarray  # int64 [tokens], places from 1 on, 0: the root
    relations: Column | None  # of a model that has some
    chances: np.ndarray | None  # float64 [tokens] the probability of each word's arc, where it is wanted


class Ranked(NamedTuple):
    """One of the best trees of a sentence."""

    trees: Trees  # this one
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class DependencyParser:
    """A parser that predicts, and nothing of what trained it."""

    index: ArcIndex
    parser: Parser
    relations: Relations | None
    rule: str  # by which scores without punctuation know it

    @property
    def columns(self) -> dict[str, int]:
        """The columns of a treebank that it looks at, and how many of its templates do."""
        templates = [*self.index.templates, *(() if self.relations is None else self.relations.index.templates)]
        found = Counter(name for template in templates for name in columns_of(template))
        return {name: found[name] for name in COLUMNS if name in found}

    def parse(self, sentences: Sentences, marginals: bool = False) -> Trees:
        """The best trees."""
        heads = np.empty(sentences.tokens, np.int64)
        chances = np.empty(sentences.tokens) if marginals else None
        for scores, batch, tokens, inside in self._scored(sentences):
            best = self.parser.structure.best(scores, batch.lengths)
            heads[tokens] = best[inside].numpy()
            if chances is not None:
                chances[tokens] = _of_arcs(self._marginals(scores, batch), best)[inside].numpy()
        return Trees(heads, self._relations(sentences, heads), chances)

    def nbest(self, sentences: Sentences, count: int, marginals: bool = False) -> list[list[Ranked]]:
        """The best trees of every sentence, at most so many, the best first."""
        if count < 1:
            raise UserError(f"the {count} best trees were asked for, expected a number from 1 on")
        found: list[list[Ranked]] = [[] for _ in range(len(sentences))]
        for scores, batch, _, inside in self._scored(sentences):
            trees, totals = self.parser.structure.best_k(scores, batch.lengths, count)  # [batch, k, n], [batch, k]
            odds = torch.exp(totals - self.parser.structure.log_partition(scores, batch.lengths)[:, None])
            sure = self._marginals(scores, batch) if marginals else None
            for k in range(count):
                some = totals[:, k] > -torch.inf  # sentences that have so many trees
                words, chosen = inside[some], batch.sentences[some].numpy()
                heads = trees[some, k]
                chances = None if sure is None else _of_arcs(sure[some], heads)[words].numpy()
                alone, heads = sentences.select(chosen), heads[words].numpy()
                ranked = _apart(Trees(heads, self._relations(alone, heads), chances), alone.offsets)
                numbers = zip(chosen.tolist(), totals[some, k].tolist(), odds[some, k].tolist(), strict=True)
                for (sentence, score, chance), tree in zip(numbers, ranked, strict=True):
                    found[sentence].append(Ranked(tree, score, chance))
        return found

    def _relations(self, sentences: Sentences, heads: np.ndarray) -> Column | None:
        return None if self.relations is None else self.relations.predict(sentences, heads)

    def _marginals(self, scores: Tensor, batch: ArcBatch) -> Tensor:  # [batch, n, n + 1]
        return self.parser.structure.marginals(scores.double(), batch.lengths)[:, 1:]

    @torch.no_grad()
    def _scored(self, sentences: Sentences) -> Iterator[tuple[Tensor, ArcBatch, np.ndarray, Tensor]]:
        """All sentences, the longest first: their scores, the batch, the places of its words in the input, and which
        places of [batch, n] are words."""
        order = np.argsort(-sentences.lengths, kind="stable")
        for begin, end in self._stretches(sentences.lengths[order]):
            chosen = order[begin:end]
            lengths = sentences.lengths[chosen].astype(np.int64)
            longest, source = int(lengths[0]), _Given(self.index.bags(sentences.select(chosen)))
            gold, marks = np.zeros((len(chosen), longest), np.int64), np.zeros(int(lengths.sum()), bool)  # of no use
            arrays = places_of_arcs(lengths, longest + 1), gold, marks, lengths, chosen
            batch = ArcBatch(source, chosen, *map(torch.from_numpy, arrays), len(chosen))
            inside = torch.arange(longest) < batch.lengths[:, None]
            yield self.parser(batch), batch, ranges(sentences.offsets[chosen], lengths), inside

    def _stretches(self, lengths: np.ndarray) -> Iterator[tuple[int, int]]:
        """Runs of sentences, the longest first, that fill a batch when they are padded to the first of them."""
        begin = 0
        while begin < len(lengths):
            arcs = (int(lengths[begin]) + 1) ** 2
            end = min(begin + max(1, _OCCURRENCES // (arcs * len(self.index.templates))), len(lengths))
            yield begin, end
            begin = end


class _Given:
    """The corpus of one batch alone."""

    def __init__(self, bags: Bags) -> None:
        self.bags = bags

    def bag(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.bags.ids, self.bags.offsets


def _of_arcs(marginals: Tensor, heads: Tensor) -> Tensor:
    """The probability of each word's arc: [batch, n, n + 1], [batch, n] to [batch, n]"""
    return marginals.gather(2, heads.unsqueeze(2)).squeeze(2)


def _apart(trees: Trees, offsets: np.ndarray) -> Iterator[Trees]:
    """One by one."""
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        own = np.arange(begin, end)
        relations = None if trees.relations is None else trees.relations.take(own)
        yield Trees(trees.heads[own], relations, None if trees.chances is None else trees.chances[own])
