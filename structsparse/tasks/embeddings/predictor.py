"""Predictor of word vectors: the vector of a word, its neighbours, analogies, and evaluation on sets of words."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.tasks.embeddings.evaluation import Vectors, compared, evaluated, sets_of
from structsparse.tasks.embeddings.similarity import code_of, unit_rows


class Neighbour(NamedTuple):
    """A word near another one, and the cosine of their vectors."""

    word: str
    cosine: float


class VectorTable(ABC):
    """Word vectors of any origin: a vector for each word, to look up, to find neighbours of, and to evaluate."""

    words: tuple[str, ...]
    vectors: np.ndarray  # float32 [words, dimensions]

    def __len__(self) -> int:
        return len(self.words)

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """Word vectors: the number of dimensions."""

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Word vectors: the number of each word."""
        return {word: k for k, word in enumerate(self.words)}

    @cached_property
    def unit(self) -> np.ndarray:
        """Word vectors: the vectors divided by their norms, [words, dimensions]."""
        return unit_rows(self.vectors)

    def number(self, word: str) -> int:
        """Word vectors: the number of a word; for an unknown word, the error offers the nearest spelling."""
        number = code_of(word, self.numbers)
        if number is None:
            near = difflib.get_close_matches(word.lower(), self.words, n=1)
            raise UserError(f"{word!r} has no vector{f'; did you mean {near[0]!r}?' if near else ''}")
        return number

    def vector(self, word: str) -> np.ndarray:
        """Word vectors: the vector of a word, float32 [dimensions]."""
        return self.vectors[self.number(word)]

    def neighbours(self, word: str, count: int = 10) -> list[Neighbour]:
        """Word vectors: the words with the largest cosines to a word, largest first."""
        number = self.number(word)
        return self._nearest(self.unit[number], count, [number])

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbour]:
        """Word vectors: the words d for which a is to b as c is to d, best first, by the cosine to b - a + c."""
        first, second, third = numbers = [self.number(word) for word in (a, b, c)]
        target = self.unit[second] - self.unit[first] + self.unit[third]
        return self._nearest(unit_rows(target[None])[0], count, numbers)

    def _nearest(self, target: np.ndarray, count: int, without: Sequence[int]) -> list[Neighbour]:
        """Word vectors: the words with the largest cosines to a vector of norm 1, without the words asked about."""
        cosines = self.unit @ target
        cosines[[*without]] = -np.inf
        order = np.argsort(-cosines, kind="stable")[: min(count, len(self) - len({*without}))]
        return [Neighbour(self.words[k], float(cosines[k])) for k in order.tolist()]

    def predict(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Word vectors: the vectors of the words of each sentence, [words, dimensions]; unknown words are zero."""
        result = []
        for sentence in sentences:
            numbers = [code_of(word, self.numbers) for word in sentence]
            rows = [np.zeros(self.dimensions, np.float32) if n is None else self.vectors[n] for n in numbers]
            result.append(np.array(rows, np.float32).reshape(len(rows), self.dimensions))
        return result

    def nbest(self, words: Sequence[str], count: int = 10) -> list[list[Neighbour]]:
        """Word vectors: the `count` nearest words of each word, nearest first."""
        return [self.neighbours(word, count) for word in words]

    def marginals(self, sentences: Sequence[Sequence[str]]) -> NoReturn:
        """Word vectors: raise an error, because word vectors have no probabilities."""
        raise UserError("word vectors have no marginals; predict(sentences) tells the vectors of words")

    def evaluate(self, file: str | Path | None = None) -> dict[str, object]:
        """Word vectors: the scores on a file of word pairs or analogies, or on all such files below a folder.

        Without a file, the known sets on this machine are used. The result has a figure and the counts of known and of
        all items for each set, by name."""
        return evaluated(Vectors(self.unit, self.numbers), sets_of(file))

    def compare(self, other: VectorTable, file: str | Path | None = None) -> dict[str, object]:
        """Word vectors: the differences between the scores of these vectors and others on the items that both know.

        The result has the difference, its standard error and both scores for each set, by name."""
        pair = (Vectors(table.unit, table.numbers) for table in (self, other))
        return compared(*pair, sets_of(file))


@dataclass(frozen=True, eq=False)
class WordVectors(VectorTable):
    """Word vectors of this package: sparse codes of words, and the atoms of the dimensions."""

    words: tuple[str, ...]
    frequency: np.ndarray  # int64 [words]: how often each word occurred in the text
    codes: sparse.csr_array  # float32 [words, dimensions]
    atoms: np.ndarray  # float32 [dimensions, contexts]; the contexts are the first words

    @classmethod
    def of(
        cls, words: Sequence[str], frequency: np.ndarray, table: np.ndarray | sparse.sparray, dictionary: np.ndarray
    ) -> WordVectors:
        """Word vectors: make the predictor from the codes [dimensions, words] and the dictionary of a model."""
        codes = sparse.csr_array(table.T.astype(np.float32))
        return cls(tuple(words), np.asarray(frequency, np.int64), codes, dictionary.astype(np.float32))

    def __repr__(self) -> str:
        """Word vectors: one line with the numbers of words, dimensions and nonzero codes."""
        return f"WordVectors({len(self):,} words, {self.dimensions} dimensions, {self.codes.nnz:,} nonzero)"

    @property
    def dimensions(self) -> int:
        """Word vectors: the number of dimensions."""
        return self.codes.shape[1]

    @cached_property
    def vectors(self) -> np.ndarray:
        """Word vectors: the codes as a plain array [words, dimensions]."""
        return self.codes.toarray()


@dataclass(frozen=True, eq=False)
class PlainVectors(VectorTable):
    """Word vectors of another program, read from a file: every number is stored."""

    words: tuple[str, ...]
    vectors: np.ndarray  # float32 [words, dimensions]

    def __repr__(self) -> str:
        """Plain word vectors: one line with the numbers of words and dimensions."""
        return f"PlainVectors({len(self):,} words, {self.dimensions} dimensions)"

    @property
    def dimensions(self) -> int:
        """Plain word vectors: the number of dimensions."""
        return self.vectors.shape[1]
