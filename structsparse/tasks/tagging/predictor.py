"""Prediction with a trained model: the best tags, the N best sequences, how sure it is of them.

Nothing here knows of files or of training. Sentences are taken by length, some at a time, so that memory is bounded
by the longest of them and by the input itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from structsparse.base.arrays import ranges
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.features.attributes import codes, numbers
from structsparse.structures.chain import Chain, ChainScores
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.model import Tagger
from structsparse.weights.batch import TokenBatch

_PLACES = 1 << 14  # tokens of a batch, padding included: what belongs to them stays in the cache


class Sequel(NamedTuple):
    """One of the best tag sequences of a sentence."""

    tags: list[str]
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class Model:
    """A tagger that predicts, and nothing of what trained it."""

    labels: tuple[str, ...]
    scheme: str | None  # how its tags write spans; None if they are no spans
    layout: tuple[str, ...]  # the columns of the corpus that it was trained on, in their order
    columns: tuple[str, ...]  # those of them that it needs
    tag_column: str  # the one that it predicts
    index: TokenIndex
    dense: tuple[str, ...]
    vocabularies: Mapping[str, Mapping[str, int]]  # codes from 1; 0 is a value not seen in training
    tagger: Tagger
    edges: TokenIndex | None = None  # features that are conjoined with a step from label to label

    def tag(self, sentences: Sentences) -> Column:
        """The predicted tags."""
        found = np.empty(sentences.tokens, np.int32)
        for scores, batch, tokens in self._scored(sentences):
            found[tokens] = self.tagger.structure.best(scores, batch.lengths).view(-1)[batch.places]
        return Column(list(self.labels), found)

    def marginals(self, sentences: Sentences) -> np.ndarray:
        """The probability of every label at every token: float32 [tokens, labels]"""
        found = np.empty((sentences.tokens, len(self.labels)), np.float32)
        for scores, batch, tokens in self._scored(sentences):
            found[tokens] = self.tagger.structure.marginals(scores, batch.lengths).flatten(0, 1)[batch.places]
        return found

    def nbest(self, sentences: Sentences, count: int) -> list[list[Sequel]]:
        """The best tag sequences of every sentence, at most so many, the best first."""
        if count < 1:
            raise UserError(f"the {count} best sequences were asked for, expected a number from 1 on")
        if self.edges is not None:
            raise UserError("a model with features of edges (features.edges) tells its best sequence only")
        found: list[list[Sequel]] = [[] for _ in range(len(sentences))]
        for scores, batch, _ in self._scored(sentences):
            paths, totals = Chain().best_k(scores, batch.lengths, count)  # [batch, count, time], [batch, count]
            chances = torch.exp(totals - Chain().log_partition(scores, batch.lengths)[:, None])
            rows = zip(batch.sentences.tolist(), batch.lengths.tolist(), paths, totals, chances, strict=True)
            for sentence, length, own, its_scores, its_chances in rows:
                ranked = zip(own[:, :length].tolist(), its_scores.tolist(), its_chances.tolist(), strict=True)
                found[sentence] = [
                    Sequel([self.labels[label] for label in path], score, chance)
                    for path, score, chance in ranked
                    if score > -np.inf
                ]
        return found

    def stream(self, sentences: Iterable[Sequence[Sequence[str]]]) -> Iterator[list[str]]:
        """The tags of one sentence after another, each before the next is asked for.

        A sentence is a list of tokens, a token the values of `columns`, in their order."""
        for sentence in sentences:
            yield self.tag(self._read(sentence)).strings() if len(sentence) else []

    def _read(self, sentence: Sequence[Sequence[str]]) -> Sentences:
        for token in sentence:
            if isinstance(token, str) or not isinstance(token, Sequence) or len(token) != len(self.columns):
                raise UserError(f"token {token!r}, expected the values of {', '.join(self.columns)}")
        values = zip(*sentence, strict=True)
        columns = {name: Column.from_strings(own) for name, own in zip(self.columns, values, strict=True)}
        return Sentences(columns, np.array([0, len(sentence)]), "stream")

    @torch.no_grad()
    def _scored(self, sentences: Sentences) -> Iterator[tuple[ChainScores, TokenBatch, np.ndarray]]:
        """All sentences, the longest first: their scores, the batch, and the places of its tokens in the input."""
        for name in self.columns:
            if name not in sentences.columns:
                there = ", ".join(sentences.columns)
                raise UserError(f"{sentences.source}: no column {name!r}, which the model needs; there are {there}")
        hashed = self.index.hashed(sentences)
        hashed_edges = None if self.edges is None else self.edges.hashed(sentences)
        dense = torch.from_numpy(numbers(sentences, self.dense))
        coded = torch.from_numpy(codes(sentences, self.vocabularies))
        order = np.argsort(-sentences.lengths, kind="stable")
        for begin, end in _stretches(sentences.lengths[order]):
            chosen = order[begin:end]
            lengths = sentences.lengths[chosen]
            tokens, places = (
                ranges(sentences.offsets[chosen], lengths),
                ranges(np.arange(len(chosen)) * lengths[0], lengths),
            )
            bags = self.index.find(hashed, chosen)
            edges = None if self.edges is None else self.edges.find(hashed_edges, chosen)
            batch = TokenBatch(
                ids=torch.from_numpy(bags.ids),
                offsets=torch.from_numpy(bags.offsets),
                places=torch.from_numpy(places),
                dense=dense[tokens],
                codes=coded[tokens],
                gold=torch.zeros(len(chosen), int(lengths[0]), dtype=torch.int64),
                lengths=torch.from_numpy(lengths),
                sentences=torch.from_numpy(chosen),
                items=len(chosen),
                edge_ids=None if edges is None else torch.from_numpy(edges.ids),
                edge_offsets=None if edges is None else torch.from_numpy(edges.offsets),
            )
            yield self.tagger(batch), batch, tokens


def _stretches(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    """Runs of sentences, the longest first, that fill a batch when they are padded to the first of them."""
    begin = 0
    while begin < len(lengths):
        end = min(begin + max(1, _PLACES // int(lengths[begin])), len(lengths))
        yield begin, end
        begin = end
