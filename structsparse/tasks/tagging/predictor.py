"""The predictor of taggers: the best tag sequence of a sentence, the N best, tag probabilities, and evaluation.

Sentences of similar length are processed together, in batches of limited size. This module does not import Lightning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from structsparse.base.arrays import padded_batches, ranges
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences, read_columns
from structsparse.corpora.from_lists import existing_file, sentences_from_lists
from structsparse.corpora.tags import convert, detect_scheme
from structsparse.features.attributes import codes, numbers
from structsparse.features.word_lists import WordLists
from structsparse.structures.chain import Chain, ChainScores
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.model import Tagger
from structsparse.tasks.tagging.scores import SpanScore
from structsparse.training.scores import AccuracyScore
from structsparse.weights.batch import TokenBatch

BATCH = 1 << 14  # largest number of tokens in a batch, padding included, so that scores fit into the CPU cache
Input = Sentences | str | os.PathLike | Iterable[Iterable[str | Sequence[str] | Mapping[str, str]]]


class TagSequence(NamedTuple):
    """Tagger predictor: one of the N best tag sequences of a sentence, with score and probability."""

    tags: list[str]
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class SequenceTagger:
    """The predictor of tags: a trained tagger, which predicts a tag for every token of a sentence.

    Methods take a list of sentences, the path of a file of columns, or `Sentences`. In a list, a sentence is a list of
    tokens. A token is a tuple with the values of `columns` (in order), or a dict from column to value. If `columns`
    has one column only, a token is a string."""

    labels: tuple[str, ...]
    scheme: str | None  # how tags encode spans (such as iob2); None: tags are not spans
    layout: tuple[str, ...]  # the columns of the training corpus, in order
    columns: tuple[str, ...]  # the columns that the tagger reads
    tag_column: str  # the column that the tagger predicts
    index: TokenIndex  # the index of token features
    dense: tuple[str, ...]  # names of the numeric columns that the model reads
    vocabularies: Mapping[str, Mapping[str, int]]  # attribute -> value -> code from 1; 0 is for unseen values
    tagger: Tagger
    edges: TokenIndex | None = None  # index of features conjoined with label pairs; None: no such features
    lists: WordLists = field(default_factory=WordLists)  # lexicons and clusters, whose attributes templates read

    def __repr__(self) -> str:
        return f"SequenceTagger({len(self.labels)} labels, {len(self.index):,} features)"

    # --- methods that the predictors of all tasks have

    def predict(self, sentences: Input) -> list[list[str]]:
        """Tagger predictor: predict the best tag sequence of each sentence."""
        sentences = self._sentences(sentences)
        tags, bounds = self.tag(sentences).strings(), sentences.offsets.tolist()
        return [tags[begin:end] for begin, end in zip(bounds[:-1], bounds[1:], strict=True)]

    def nbest(self, sentences: Input, count: int = 10) -> list[list[TagSequence]]:
        """Tagger predictor: the `count` best tag sequences of each sentence, best first."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UserError(f"the {count} best sequences were requested, expected a number from 1 on")
        if self.edges is not None:
            raise UserError("a model with features of edges (features.edges) predicts its best sequence only")
        sentences = self._sentences(sentences)
        results: list[list[TagSequence]] = [[] for _ in range(len(sentences))]
        for scores, batch, _ in self._scored(sentences):
            paths, totals = Chain().best_k(scores, batch.lengths, count)  # [batch, count, time] and [batch, count]
            probabilities = torch.exp(totals - Chain().log_partition(scores, batch.lengths)[:, None])
            rows = zip(batch.sentences.tolist(), batch.lengths.tolist(), paths, totals, probabilities, strict=True)
            for sentence, length, *best in rows:
                ranked = zip(best[0][:, :length].tolist(), best[1].tolist(), best[2].tolist(), strict=True)
                results[sentence] = [
                    TagSequence([self.labels[label] for label in path], score, probability)
                    for path, score, probability in ranked
                    if score > -np.inf
                ]
        return results

    def marginals(self, sentences: Input) -> list[np.ndarray]:
        """Tagger predictor: the tag probabilities of each sentence, one array float32 [tokens, labels] per sentence."""
        sentences = self._sentences(sentences)
        return np.split(self.probabilities(sentences), sentences.offsets[1:-1]) if len(sentences) else []

    def evaluate(self, source: Input) -> dict[str, object]:
        """Tagger predictor: token accuracy on tagged sentences, and span F1 if the tags encode spans.

        If the sentences are given as lists, each token is a tuple or a dict. Its gold tag is the last value of the
        tuple, or the value of the dict for the key `tag_column`."""
        sentences = self._sentences(source, (*self.columns, self.tag_column))
        score, notes = self.score(sentences, self.tag(sentences))
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        return {**score.result(), "sentences": len(sentences), "tokens": sentences.tokens}

    # --- prediction for many sentences, with results as arrays or columns

    def tag(self, sentences: Input) -> Column:
        """Tagger predictor: predict the tags of all tokens, as one column."""
        sentences = self._sentences(sentences)
        result = np.empty(sentences.tokens, np.int32)
        for scores, batch, tokens in self._scored(sentences):
            result[tokens] = self.tagger.structure.best(scores, batch.lengths).view(-1)[batch.places]
        return Column(list(self.labels), result)

    def probabilities(self, sentences: Sentences) -> np.ndarray:
        """Tagger predictor: the tag probabilities of all tokens in all sentences, float32 [tokens, labels]."""
        result = np.empty((sentences.tokens, len(self.labels)), np.float32)
        for scores, batch, tokens in self._scored(sentences):
            result[tokens] = self.tagger.structure.marginals(scores, batch.lengths).flatten(0, 1)[batch.places]
        return result

    def stream(self, sentences: Iterable) -> Iterator[list[str]]:
        """Tagger predictor: predict the tags of each sentence in a stream as soon as the sentence arrives."""
        for sentence in sentences:
            yield self.predict([sentence])[0]

    def score(self, sentences: Sentences, predicted: Column) -> tuple[SpanScore | AccuracyScore, list[str]]:
        """Tagger predictor: score predicted tags against the gold tags of sentences.

        Gold tags are first converted to the tagger's span scheme. Tags unknown to the model count as wrong. Returns the
        score and notes for the user."""
        gold, notes = sentences.columns[self.tag_column], []
        if self.scheme is not None:
            scheme = detect_scheme(sentences, self.tag_column)
            gold, stray = convert(sentences, self.tag_column, scheme, self.scheme)
            if stray:
                notes.append(f"{sentences.source}: {stray:,} tags outside the {scheme} scheme were repaired")
        gold = gold.recoded(self.labels)
        for name in gold.values[len(self.labels) :]:
            notes.append(f"{sentences.source}: label {name} is unknown to the model, all its tags count as wrong")
        score = (AccuracyScore if self.scheme is None else SpanScore)(gold.values)
        score.add(gold.codes, predicted.codes, sentences.offsets)
        return score, notes

    # --- reading the input

    def _sentences(self, source: Input, needed: Sequence[str] | None = None) -> Sentences:
        """Tagger predictor: read the input sentences, and check that the columns in `needed` are present."""
        needed = self.columns if needed is None else needed
        if not isinstance(source, Sentences):
            source = self._read(source, needed)
        for name in needed:
            if name not in source.columns:
                columns = ", ".join(source.columns)
                raise UserError(f"{source.source}: no column {name!r}, which the model needs; there are {columns}")
        return source

    def _read(self, source: str | os.PathLike | Iterable, needed: Sequence[str]) -> Sentences:
        """Tagger predictor: read the input sentences from a file of columns or from lists."""
        if not isinstance(source, str | os.PathLike):
            return sentences_from_lists(source, needed, "this tagger")
        path = existing_file(source, needed, "this tagger")
        return read_columns(path, self.layout, optional=optional_columns(self.layout, needed))

    # --- scores of batches

    @torch.no_grad()
    def _scored(self, sentences: Sentences) -> Iterator[tuple[ChainScores, TokenBatch, np.ndarray]]:
        """Tagger predictor: compute the scores of sentences batch by batch, longest sentences first.

        Yields, for each batch, the chain scores, the batch itself, and the position of each token in the input."""
        sentences = self.lists.added(sentences)
        hashed = self.index.hashed(sentences)
        hashed_edges = None if self.edges is None else self.edges.hashed(sentences)
        dense = torch.from_numpy(numbers(sentences, self.dense))
        coded = torch.from_numpy(codes(sentences, self.vocabularies))
        order = np.argsort(-sentences.lengths, kind="stable")
        order = order[: np.count_nonzero(sentences.lengths)]  # empty sentences have no tags
        for begin, end in padded_batches(sentences.lengths[order], BATCH):
            chosen = order[begin:end]
            lengths = sentences.lengths[chosen]
            tokens = ranges(sentences.offsets[chosen], lengths)
            bags = self.index.find(hashed, chosen)
            edges = None if self.edges is None else self.edges.find(hashed_edges, chosen)
            batch = TokenBatch(
                ids=torch.from_numpy(bags.ids),
                offsets=torch.from_numpy(bags.offsets),
                places=torch.from_numpy(ranges(np.arange(len(chosen)) * lengths[0], lengths)),
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


def optional_columns(names: Sequence[str], needed: Sequence[str]) -> frozenset[str]:
    """Tagger predictor: the columns in `names` that may be missing in a file: all after the last needed column."""
    return frozenset(names[max(names.index(name) for name in needed) + 1 :] if needed else names[1:])
