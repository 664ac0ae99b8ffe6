"""Evaluation of word vectors: rank correlation with human scores of similarity, and questions of analogy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from structsparse.corpora.known.word_sets import Analogies, WordPairs

QUESTIONS = 256  # questions of analogy that are answered together


class SimilarityScore(NamedTuple):
    """The evaluation of word vectors on a set of pairs: Spearman's correlation over the pairs whose words are known."""

    spearman: float
    known: int  # pairs of which both words have a vector
    pairs: int


class AnalogyScore(NamedTuple):
    """The evaluation of word vectors on questions of analogy of one kind; unknown words leave a question out."""

    accuracy: float  # share of right answers among the questions with known words
    known: int
    questions: int


def unit_rows(vectors: np.ndarray | sparse.csr_array) -> np.ndarray | sparse.csr_array:
    """Evaluation of word vectors: the vectors [words, dimensions] divided by their norms; zero vectors stay zero.

    The vectors may be sparse, and the result is then sparse too."""
    if sparse.issparse(vectors):
        norms = np.sqrt(vectors.multiply(vectors).sum(axis=1))
        return sparse.diags_array(1 / np.where(norms > 0, norms, 1)).astype(np.float32) @ vectors
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def code_of(word: str, codes: Mapping[str, int]) -> int | None:
    """Evaluation of word vectors: the code of a word as it is written, or else in small letters; None if unknown."""
    code = codes.get(word)
    return codes.get(word.lower()) if code is None else code


def similarity(unit: np.ndarray, codes: Mapping[str, int], pairs: WordPairs) -> SimilarityScore:
    """Evaluation of word vectors: the correlation of cosines with the scores of a set of pairs."""
    listed = [(code_of(a, codes), code_of(b, codes), score) for a, b, score in pairs.pairs]
    known = [line for line in listed if line[0] is not None and line[1] is not None]
    if len(known) < 3:
        return SimilarityScore(float("nan"), len(known), len(listed))
    left, right, scores = (np.array(column) for column in zip(*known, strict=True))
    cosines = (unit[left] * unit[right]).sum(axis=1)
    return SimilarityScore(spearman(cosines, scores), len(known), len(listed))


def spearman(left: np.ndarray, right: np.ndarray) -> float:
    """Spearman's rank correlation of two lists of numbers; equal numbers share their mean rank; NaN for constants."""
    ranks = [_ranks(np.asarray(numbers)) for numbers in (left, right)]
    ranks = [values - values.mean() for values in ranks]
    spread = np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum())
    return float((ranks[0] * ranks[1]).sum() / spread) if spread > 0 else float("nan")


def _ranks(numbers: np.ndarray) -> np.ndarray:
    """Rank correlation: the rank of each number; equal numbers share their mean rank."""
    _, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]


def analogies(unit: np.ndarray, codes: Mapping[str, int], asked: Analogies) -> dict[str, AnalogyScore]:
    """Evaluation of word vectors: the accuracy on questions of analogy, by kind.

    The answer to a : b = c : ? is the word with the largest cosine to b - a + c, other than a, b and c."""
    return {kind: _accuracy(unit, codes, questions) for kind, questions in asked.questions.items()}


def _accuracy(unit: np.ndarray, codes: Mapping[str, int], questions: Sequence[tuple[str, ...]]) -> AnalogyScore:
    """Evaluation of word vectors: the accuracy on questions of analogy of one kind."""
    coded = [[code_of(word, codes) for word in question] for question in questions]
    known = np.array([line for line in coded if None not in line], np.int64).reshape(-1, 4)
    right = 0
    for begin in range(0, len(known), QUESTIONS):
        part = known[begin : begin + QUESTIONS]
        answers = unit @ (unit[part[:, 1]] - unit[part[:, 0]] + unit[part[:, 2]]).T
        answers = answers.toarray() if sparse.issparse(answers) else answers
        answers[part[:, :3].T, np.arange(len(part))] = -np.inf
        right += int((answers.argmax(axis=0) == part[:, 3]).sum())
    return AnalogyScore(right / len(known) if len(known) else float("nan"), len(known), len(questions))
