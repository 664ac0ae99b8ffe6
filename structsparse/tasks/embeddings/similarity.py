"""Evaluation of word vectors: rank correlation with human scores of similarity, and questions of analogy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from structsparse.corpora.known.word_sets import Analogies, Completion, WordPairs

QUESTIONS = 256  # questions of analogy that are answered together


class Answers(NamedTuple):
    """The answers of word vectors on a set of items: cosines of pairs of words, or which questions are right."""

    known: np.ndarray  # bool [items]: whether all words that the item needs have vectors
    values: np.ndarray  # float64 [items]: the cosine, or 1 and 0 for right and wrong; 0 where words are unknown


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


def cosines(unit: np.ndarray, codes: Mapping[str, int], pairs: Sequence[tuple[str, str, float]]) -> Answers:
    """Evaluation of word vectors: the cosines of pairs of words."""
    known, coded = _coded([pair[:2] for pair in pairs], 2, codes)
    values = np.zeros(len(pairs))
    values[known] = (unit[coded[:, 0]] * unit[coded[:, 1]]).sum(axis=1)
    return Answers(known, values)


def _coded(items: Sequence[Sequence[str]], size: int, codes: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Evaluation of word vectors: which items have known words only, and the codes of their words [known, size]."""
    coded = [[code_of(word, codes) for word in item] for item in items]
    known = np.array([None not in item for item in coded], bool)
    return known, np.array([item for item in coded if None not in item], np.int64).reshape(-1, size)


def similarity(unit: np.ndarray, codes: Mapping[str, int], pairs: WordPairs) -> SimilarityScore:
    """Evaluation of word vectors: the correlation of cosines with the scores of a set of pairs."""
    known, values = cosines(unit, codes, pairs.pairs)
    scores = np.array([score for _, _, score in pairs.pairs])
    return SimilarityScore(rank_score(values[known], scores[known]), int(known.sum()), len(known))


def rank_score(values: np.ndarray, scores: np.ndarray) -> float:
    """Evaluation of word vectors: Spearman's correlation with human scores; NaN for fewer than three pairs."""
    return float(spearman(values, scores)) if len(values) >= 3 else float("nan")


def spearman(left: np.ndarray, right: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Spearman's rank correlation of two lists of numbers; equal numbers share their mean rank; NaN for constants.

    `counts` [samples, numbers] says how often each number occurs in each of several samples; the result then has a
    correlation for each sample."""
    times = np.ones((1, len(left)), np.int64) if counts is None else counts
    size = times.sum(axis=1, keepdims=True)
    ranks = [_ranks(np.asarray(numbers), times) for numbers in (left, right)]
    ranks = [values - (times * values).sum(axis=1, keepdims=True) / size for values in ranks]
    spread = np.sqrt((times * ranks[0] ** 2).sum(axis=1) * (times * ranks[1] ** 2).sum(axis=1))
    product = (times * ranks[0] * ranks[1]).sum(axis=1)
    result = np.where(spread > 0, product / np.where(spread > 0, spread, 1), np.nan)
    return result[0] if counts is None else result


def _ranks(numbers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Rank correlation: the rank of each number in each sample [samples, numbers]; equal numbers share their mean rank.

    `counts` [samples, numbers] says how often each number occurs in a sample."""
    order = np.argsort(numbers, kind="stable")
    first = np.flatnonzero(np.diff(numbers[order], prepend=-np.inf) != 0)
    equal = np.add.reduceat(counts[:, order], first, axis=1)  # how often each distinct number occurs
    ranks = np.cumsum(equal, axis=1) - (equal - 1) / 2
    which = np.empty(len(numbers), np.int64)
    which[order] = np.repeat(np.arange(len(first)), np.diff(first, append=len(numbers)))
    return ranks[:, which]


def analogies(unit: np.ndarray, codes: Mapping[str, int], asked: Analogies) -> dict[str, AnalogyScore]:
    """Evaluation of word vectors: the accuracy on questions of analogy, by kind.

    The answer to a : b = c : ? is the word with the largest cosine to b - a + c, other than a, b and c."""
    answers = {kind: analogy_answers(unit, codes, questions) for kind, questions in asked.questions.items()}
    return {kind: AnalogyScore(accuracy(of), int(of.known.sum()), len(of.known)) for kind, of in answers.items()}


def accuracy(answers: Answers) -> float:
    """Evaluation of word vectors: the share of right answers to the questions whose words are known; NaN without."""
    return float(answers.values[answers.known].mean()) if answers.known.any() else float("nan")


def analogy_answers(unit: np.ndarray, codes: Mapping[str, int], questions: Sequence[tuple[str, ...]]) -> Answers:
    """Evaluation of word vectors: which questions of analogy are answered by the right word."""
    known, coded = _coded(questions, 4, codes)
    right = []
    for begin in range(0, len(coded), QUESTIONS):
        part = coded[begin : begin + QUESTIONS]
        nearness = unit @ (unit[part[:, 1]] - unit[part[:, 0]] + unit[part[:, 2]]).T
        nearness = nearness.toarray() if sparse.issparse(nearness) else nearness
        nearness[part[:, :3].T, np.arange(len(part))] = -np.inf
        right.append(nearness.argmax(axis=0) == part[:, 3])
    values = np.zeros(len(questions))
    values[known] = np.concatenate(right) if right else 0
    return Answers(known, values)


def completion_answers(unit: np.ndarray, codes: Mapping[str, int], questions: Sequence[Completion]) -> Answers:
    """Evaluation of word vectors: which questions of sentence completion are answered by the right option.

    The answer is the option with the largest mean cosine to the known words of the sentence. A question is known if all
    its options are, and a word of the sentence."""
    known, values = np.zeros(len(questions), bool), np.zeros(len(questions))
    for k, question in enumerate(questions):
        words = [code for word in question.words if (code := code_of(word, codes)) is not None]
        options = [code_of(option, codes) for option in question.options]
        if words and None not in options:
            nearness = unit[options] @ unit[words].mean(axis=0)
            known[k], values[k] = True, nearness.argmax() == question.answer
    return Answers(known, values)
