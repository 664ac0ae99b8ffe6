"""Evaluation of word vectors on sets of words, and comparison of two tables of vectors by a paired bootstrap.

Each set has items: pairs of words, questions or sentences. Word vectors answer the items whose words they know; a score
is computed from these answers. Two tables of vectors are compared on the items that both know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from structsparse.base.downloads import DATA_VARIABLE
from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentSplits
from structsparse.corpora.known.sentiment import sentiment_at_hand
from structsparse.corpora.known.word_sets import (
    Analogies,
    Completion,
    Completions,
    WordPairs,
    known_analogies,
    known_completions,
    known_pairs,
    read_set,
    sets_below,
)
from structsparse.report.bootstrap import DRAWS, Resampled, resampled_counts, summarised
from structsparse.tasks.embeddings.sentiment import sentiment_answers
from structsparse.tasks.embeddings.similarity import Answers, analogy_answers, completion_answers, cosines, spearman

SAMPLES = 200  # bootstrap samples that are scored together


class Vectors(NamedTuple):
    """Evaluation of word vectors: the vectors as unit rows, float32 [words, dimensions], and the row of each word."""

    unit: np.ndarray
    codes: Mapping[str, int]


class EvaluationSet(ABC):
    """A set of items on which word vectors are scored."""

    name: str
    metric: ClassVar[str]  # name of the score
    items: ClassVar[str]  # what the items are, in the plural
    least: ClassVar[int] = 1  # a score needs at least so many known items

    @abstractmethod
    def answers(self, vectors: Vectors) -> Answers:
        """Evaluation set: the answers of word vectors to all items."""

    @abstractmethod
    def scores(self, answers: Answers, kept: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Evaluation set: the score in each sample of the items `kept`, float64 [samples].

        `counts` [samples, items kept] says how often each item occurs in each sample."""

    def score(self, answers: Answers, kept: np.ndarray) -> float:
        """Evaluation set: the score over the items `kept`; NaN if they are too few."""
        size = int(kept.sum())
        return float(self.scores(answers, kept, np.ones((1, size), np.int64))[0]) if size >= self.least else np.nan


@dataclass(frozen=True)
class SimilaritySet(EvaluationSet):
    """Evaluation set of pairs of words: Spearman's correlation of cosines with human scores."""

    name: str
    pairs: tuple[tuple[str, str, float], ...]
    metric, items, least = "spearman", "pairs", 3

    def answers(self, vectors: Vectors) -> Answers:
        """Evaluation set of pairs: the cosines."""
        return cosines(*vectors, self.pairs)

    def scores(self, answers: Answers, kept: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Evaluation set of pairs: Spearman's correlation in each sample."""
        human = np.array([score for _, _, score in self.pairs])
        return spearman(answers.values[kept], human[kept], counts)


class QuestionSet(EvaluationSet):
    """Evaluation set of questions with right and wrong answers, scored by accuracy."""

    metric, items = "accuracy", "questions"

    def scores(self, answers: Answers, kept: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Evaluation set of questions: the share of right answers in each sample."""
        return counts @ answers.values[kept] / counts.sum(axis=1)


@dataclass(frozen=True)
class AnalogySet(QuestionSet):
    """Evaluation set of questions of analogy of one kind."""

    name: str
    questions: tuple[tuple[str, str, str, str], ...]

    def answers(self, vectors: Vectors) -> Answers:
        """Evaluation set of analogies: which questions are answered by the right word."""
        return analogy_answers(*vectors, self.questions)


@dataclass(frozen=True)
class CompletionSet(QuestionSet):
    """Evaluation set of questions of sentence completion."""

    name: str
    questions: tuple[Completion, ...]

    def answers(self, vectors: Vectors) -> Answers:
        """Evaluation set of sentence completion: which questions are answered by the right option."""
        return completion_answers(*vectors, self.questions)


@dataclass(frozen=True)
class SentimentSet(QuestionSet):
    """Evaluation set of sentences with a sentiment, which a classifier over mean vectors is trained for."""

    name: str
    splits: DocumentSplits
    items = "sentences"

    def answers(self, vectors: Vectors) -> Answers:
        """Evaluation set of sentiment: which sentences of test are classified right."""
        return sentiment_answers(*vectors, self.splits)


def _of_pairs(read: WordPairs) -> list[EvaluationSet]:
    """Evaluation of word vectors: a set of pairs as an evaluation set."""
    return [SimilaritySet(read.name, read.pairs)]


def _of_analogies(read: Analogies) -> list[EvaluationSet]:
    """Evaluation of word vectors: questions of analogy as an evaluation set for each kind."""
    return [AnalogySet(f"{read.name} {kind}", questions) for kind, questions in read.questions.items() if questions]


def _of_completions(read: Completions) -> list[EvaluationSet]:
    """Evaluation of word vectors: questions of sentence completion as an evaluation set."""
    return [CompletionSet(read.name, read.questions)]


def _of_sentiment(read: DocumentSplits) -> list[EvaluationSet]:
    """Evaluation of word vectors: sentences with a sentiment as an evaluation set."""
    return [SentimentSet(read.name, read)]


MAKERS = {
    WordPairs: _of_pairs,
    Analogies: _of_analogies,
    Completions: _of_completions,
    DocumentSplits: _of_sentiment,
}


def sets_of(file: str | Path | None) -> list[EvaluationSet]:
    """Evaluation of word vectors: the sets in a file or in all .txt files below a folder; None: known sets at hand."""
    if file is None:
        others = known_analogies(), known_completions(), sentiment_at_hand()
        read = [*known_pairs("test"), *(of for of in others if of is not None)]
        if not read:
            raise UserError(f"no known sets of words below {DATA_VARIABLE}: give a FILE to evaluate word vectors on")
    else:
        path = Path(file)
        paths = sets_below(path) if path.is_dir() else [path]
        if not paths:
            raise UserError(f"{path}: a folder without .txt files, expected sets of words")
        read = map(read_set, paths)
    return [of for each in read for of in MAKERS[type(each)](each)]


def evaluated(vectors: Vectors, sets: Iterable[EvaluationSet]) -> dict[str, object]:
    """Evaluation of word vectors: the score of each set with the counts of known and of all items.

    `similarity` is the mean of the scores of the sets of pairs, if there are any."""
    figures, means = {}, []
    for each in sets:
        answers = each.answers(vectors)
        score = each.score(answers, answers.known)
        figures[each.name] = {each.metric: score, "known": int(answers.known.sum()), each.items: len(answers.known)}
        means += [score] if each.metric == SimilaritySet.metric and score == score else []
    return {**({"similarity": float(np.mean(means))} if means else {}), "sets": figures}


# --- comparison of two tables of word vectors


def compared(vectors: Vectors, other: Vectors, sets: Sequence[EvaluationSet]) -> dict[str, object]:
    """Comparison of word vectors: the difference of the scores of two tables of vectors on each set.

    Both are scored over the items that both know. Standard errors are those of a paired bootstrap, which resamples the
    items of each set. `similarity` is the difference of the means over the sets of pairs, with its error."""
    figures, means = {}, []
    for seed, each in enumerate(sets):
        answers = each.answers(vectors), each.answers(other)
        kept = answers[0].known & answers[1].known
        ours, theirs = (each.score(of, kept) for of in answers)
        samples = _samples(each, answers, kept, seed)
        result = summarised(ours - theirs, samples)
        counts = {"known": int(kept.sum()), each.items: len(kept)}
        figures[each.name] = {each.metric: ours, "other": theirs, **result._asdict(), **counts}
        means += [(result.difference, samples)] if each.metric == SimilaritySet.metric and ours == ours else []
    return {**({"similarity": _mean(means)._asdict()} if means else {}), "sets": figures}


def _samples(each: EvaluationSet, answers: tuple[Answers, Answers], kept: np.ndarray, seed: int) -> np.ndarray:
    """Comparison of word vectors: the difference of the scores on a set in each bootstrap sample."""
    size = int(kept.sum())
    if size < each.least:
        return np.full(DRAWS, np.nan)
    parts = np.split(resampled_counts(size, seed), range(SAMPLES, DRAWS, SAMPLES))
    ours, theirs = (np.concatenate([each.scores(of, kept, part) for part in parts]) for of in answers)
    return ours - theirs


def _mean(parts: Sequence[tuple[float, np.ndarray]]) -> Resampled:
    """Comparison of word vectors: the difference of the mean scores over several sets, from that of each set."""
    differences, samples = zip(*parts, strict=True)
    return summarised(float(np.mean(differences)), np.mean(samples, axis=0))
