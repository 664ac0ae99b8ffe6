"""Co-occurrences of words in running text: how often two words stand within a window, and what that says of them.

Threads take chunks of the text in turn. Pairs of frequent words are counted in a square array; all others make sorted
keys, of which equal ones are added up. Such a list is a run. Runs are merged, by ranges of keys in parallel. All counts
are integers: their sums do not depend on the number of threads, nor on where a chunk ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numba
import numpy as np
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.kernels.features import cooccurrences as kernels

FREQUENT = 2048  # pairs of so many most frequent words are counted in a square array, which fits the CPU cache
CHUNK = 1 << 21  # words whose pairs are sorted together
WEIGHTINGS = "none", "linear", "harmonic"
ASSOCIATIONS = "pmi", "ppmi", "log_count"
_LARGEST, _FEW = np.iinfo(np.int32).max, 1 << 24  # if int32 does not suffice for so many words, int64 does
_BLOCK = 1 << 20  # entries of a matrix whose associations are computed together

Run = tuple[np.ndarray, np.ndarray]  # sorted keys of pairs, and their counts (both int64)


@dataclass(frozen=True)
class Window:
    """The window of co-occurrences: its size in words to each side, and how a pair counts by its distance.

    Weightings are "none" (each pair counts 1), "linear" (from 1 down to 1 / size) and "harmonic" (1 / distance)."""

    size: int = 5
    weighting: str = "none"

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 1 <= self.size <= 20:
            raise UserError(f"features.window is {self.size}, expected a number of words from 1 to 20")
        if self.weighting not in WEIGHTINGS:
            raise UserError(f"features.weighting is {self.weighting}, expected one of {', '.join(WEIGHTINGS)}")

    @property
    def scale(self) -> int:
        """Window of co-occurrences: the integer weight that stands for a count of 1."""
        return {"none": 1, "linear": self.size, "harmonic": math.lcm(*range(1, self.size + 1))}[self.weighting]

    @property
    def weights(self) -> np.ndarray:
        """Window of co-occurrences: the integer weight of each distance, from neighbours on (int64 [size])."""
        distance = np.arange(1, self.size + 1)
        shares = {"none": distance * 0 + 1, "linear": self.size + 1 - distance, "harmonic": self.scale // distance}
        return shares[self.weighting].astype(np.int64)


@dataclass(frozen=True)
class Cooccurrences:
    """Counts of co-occurrences: a symmetric matrix of integers, of which `scale` stand for one co-occurrence."""

    matrix: sparse.csr_array  # int64 [words, words]; a word beside itself counts twice
    scale: int


def count(codes: np.ndarray, words: int, window: Window) -> Cooccurrences:
    """Count the co-occurrences in a text in memory.

    `codes` has the words of the text as described in `kernels.features.cooccurrences`; `words` is their number."""
    with threads() as pool:
        chunk = max(1, min(CHUNK, -(-len(codes) // pool.size)))
        counters, runs, done = Counters(codes, words, window, pool, chunk), [], 0
        while done < len(codes):
            done = counters.take(done)
            square = counters.square()
            runs += [*counters.runs(), kernels.pairs_of_square(square, words, np.count_nonzero(square))]
            square[:] = 0
        return Cooccurrences(symmetric(merged(runs, pool), words, pool), window.scale)


# --- threads


class Pool:
    """Threads that count co-occurrences; kernels and sorting leave the interpreter's lock."""

    def __init__(self, executor: ThreadPoolExecutor, size: int) -> None:
        self.executor, self.size = executor, size

    def map(self, call, *arguments: Iterable) -> list:
        """Co-occurrences: call a function with each tuple of arguments, each in a thread; returns all results."""
        return list(self.executor.map(call, *arguments))


@contextmanager
def threads(most: int | None = None) -> Iterator[Pool]:
    """Co-occurrences: as many threads as kernels have, `most` at most."""
    size = min(numba.get_num_threads(), most or numba.get_num_threads())
    with ThreadPoolExecutor(size) as executor:
        yield Pool(executor, size)


# --- runs


class Counters:
    """Co-occurrences: the counters of all threads, which share the work on one text."""

    def __init__(self, codes: np.ndarray, words: int, window: Window, pool: Pool, chunk: int) -> None:
        """Co-occurrences: `chunk` is the largest number of words that a thread counts at a time."""
        total = 2 * int(window.weights.sum())  # a word beside itself counts twice
        small = _LARGEST // total >= min(_FEW, len(codes))
        kind, largest = (np.int32, _LARGEST) if small else (np.int64, np.iinfo(np.int64).max)
        self.most = largest // total  # words after which a count may be too large for the square array
        self.size, self.chunk, self.pool = len(codes), chunk, pool
        self.each = [_Counter(codes, words, window, chunk, kind) for _ in range(pool.size)]

    def take(self, begin: int, room: int | None = None) -> int:
        """Co-occurrences: count pairs whose first word is at `begin` or later, until runs have about `room` entries.

        Returns the position of the first word that was not counted; without a room, this is the end of the text."""
        limit = min(self.size, begin + self.most)
        while begin < limit and (room is None or sum(counter.runs.entries for counter in self.each) < room):
            rounds = -(-(limit - begin) // (self.chunk * self.pool.size))
            end = begin + -(-(limit - begin) // rounds)
            bounds = np.linspace(begin, end, self.pool.size + 1).astype(np.int64)
            self.pool.map(_Counter.add, self.each, bounds[:-1], bounds[1:])
            begin = end
        return begin

    def runs(self) -> list[Run]:
        """Co-occurrences: take out the runs of all threads."""
        return [run for counter in self.each for run in counter.runs.clear()]

    def square(self) -> np.ndarray:
        """Co-occurrences: the counts of pairs x <= y of frequent words; counting goes on with zeros put there."""
        first, *others = (counter.square for counter in self.each)
        for square in others:
            first += square
            square[:] = 0
        return first


class _Counter:
    """Co-occurrences: what one thread counts, in a square array of frequent words and in runs."""

    def __init__(self, codes: np.ndarray, words: int, window: Window, chunk: int, kind: type) -> None:
        self.codes, self.words, self.weights, self.runs = codes, words, window.weights, Runs()
        self.spread = 1 if window.weighting == "none" else window.size
        self.square = np.zeros((min(FREQUENT, words),) * 2, kind)
        self.keys, self.counts = (np.empty(chunk * window.size, np.int64) for _ in range(2))

    def add(self, begin: int, end: int) -> None:
        """Co-occurrences: count the pairs whose first word is in a part of the text, at most a chunk."""
        weights, spread = self.weights, self.spread
        size = kernels.count_pairs(self.codes, begin, end, weights, self.words, self.square, self.keys, spread)
        keys = self.keys[:size]
        keys.sort()
        kept = kernels.add_equal(keys, self.counts, weights, spread)
        self.runs.add((keys[:kept].copy(), self.counts[:kept].copy()))


class Runs:
    """Co-occurrences: runs that are merged as they come, each with one of about its size."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.stack: list[Run] = []
        for run in runs:
            self.add(run)

    @property
    def entries(self) -> int:
        """Co-occurrences: the number of entries of all runs."""
        return sum(len(keys) for keys, _ in self.stack)

    def add(self, run: Run) -> None:
        """Co-occurrences: add a run, and merge the last runs while they are of about one size."""
        self.stack.append(run)
        while len(self.stack) > 1 and len(self.stack[-2][0]) <= 2 * len(self.stack[-1][0]):
            self._merge()

    def clear(self) -> list[Run]:
        """Co-occurrences: take out all runs."""
        runs, self.stack = self.stack, []
        return runs

    def merged(self) -> Run:
        """Co-occurrences: the one run that all added runs make."""
        while len(self.stack) > 1:
            self._merge()
        return self.stack[0] if self.stack else (np.empty(0, np.int64), np.empty(0, np.int64))

    def _merge(self) -> None:
        """Co-occurrences: replace the last two runs by their sum."""
        right, left = self.stack.pop(), self.stack.pop()
        size = len(left[0]) + len(right[0])
        keys, counts = np.empty(size, np.int64), np.empty(size, np.int64)
        kept = kernels.merge(*left, *right, keys, counts)
        self.stack.append((keys[:kept], counts[:kept]))


def merged(runs: Sequence[Run], pool: Pool) -> list[Run]:
    """Co-occurrences: the sum of several runs, in a piece for each thread; the keys rise from piece to piece."""
    longest = max((keys for keys, _ in runs), key=len, default=np.empty(0, np.int64))
    if len(longest) < pool.size:
        return [Runs(runs).merged()]
    inner = longest[[k * len(longest) // pool.size for k in range(1, pool.size)]]
    cuts = [[0, *np.searchsorted(keys, inner), len(keys)] for keys, _ in runs]

    def piece(k: int) -> Run:
        """Co-occurrences: merge the k-th range of keys of all runs, long ones first."""
        ranges = (slice(*cut[k : k + 2]) for cut in cuts)
        parts = [(keys[part], counts[part]) for (keys, counts), part in zip(runs, ranges, strict=True)]
        return Runs(sorted(parts, key=lambda part: -len(part[0]))).merged()

    return pool.map(piece, range(pool.size))


def symmetric(pieces: Sequence[Run], words: int, pool: Pool) -> sparse.csr_array:
    """Co-occurrences: the symmetric matrix of counts, from pieces of one run whose keys rise from piece to piece."""
    sizes = np.zeros((2, len(pieces), words), np.int64)  # entries of each row: below the diagonal, and from it on
    pool.map(kernels.row_sizes, (keys for keys, _ in pieces), [words] * len(pieces), *sizes)
    below, above = sizes
    starts = np.concatenate([[0], np.cumsum(sizes.sum(axis=(0, 1)))])
    kind = np.int32 if starts[-1] < 1 << 31 else np.int64
    columns, values = np.empty(starts[-1], kind), np.empty(starts[-1], np.int64)
    lower = starts[:-1] + np.cumsum(below, axis=0) - below
    upper = starts[:-1] + below.sum(axis=0) + np.cumsum(above, axis=0) - above

    def place(piece: Run, lower: np.ndarray, upper: np.ndarray) -> None:
        """Co-occurrences: put a piece into the symmetric matrix, at the places that are its own."""
        kernels.place_pairs(*piece, words, lower, upper, columns, values)

    pool.map(place, pieces, lower, upper)
    return sparse.csr_array((values, columns, starts.astype(kind)), shape=(words, words))


# --- associations


def associations(
    counted: Cooccurrences, kind: str = "pmi", smoothing: float = 1.0, shift: float = 1.0
) -> sparse.csr_array:
    """Associations of words with their contexts, from counts of co-occurrences (float32 [words, contexts]).

    - pmi: pointwise mutual information log p(word, context) / (p(word) p(context)) - log shift
    - ppmi: the same where it is positive, else 0
    - log_count: log(1 + count), to which GloVe's weights belong

    p(context) is proportional to the count of the context to the power of `smoothing` (.75 in word2vec). Pairs that
    never occur together have no entry, as if they had the value 0."""
    if kind not in ASSOCIATIONS:
        raise UserError(f"features.association is {kind}, expected one of {', '.join(ASSOCIATIONS)}")
    for name, value in (("smoothing", smoothing), ("shift", shift)):
        if not (value > 0 and math.isfinite(value)):
            raise UserError(f"features.{name} is {value}, expected a positive number")
    matrix = counted.matrix
    values = np.empty(matrix.nnz, np.float32)
    for part, block in _association_blocks(counted, kind, smoothing, shift):
        values[part] = block
    result = sparse.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
    if kind == "ppmi":
        result = result.copy()  # the counts keep their positions
        result.eliminate_zeros()
    return result


def _association_blocks(
    counted: Cooccurrences, kind: str, smoothing: float, shift: float
) -> Iterator[tuple[slice, np.ndarray]]:
    """Associations: the values of the entries of a matrix of counts, in float64, some entries at a time."""
    matrix = counted.matrix
    totals = np.asarray(matrix.sum(axis=1), np.float64)
    contexts = totals**smoothing
    word, context = (_log(numbers) - _log(numbers.sum()) for numbers in (totals, contexts))
    constant = _log(totals.sum()) + math.log(shift)
    for begin in range(0, matrix.nnz, _BLOCK):
        part = slice(begin, min(begin + _BLOCK, matrix.nnz))
        if kind == "log_count":
            yield part, np.log1p(matrix.data[part] / counted.scale)
            continue
        first, sizes = rows_between(matrix.indptr, part)
        rows = np.repeat(word[first : first + len(sizes)], sizes)
        values = np.log(matrix.data[part]) - constant - rows - context[matrix.indices[part]]
        yield part, np.maximum(values, 0.0) if kind == "ppmi" else values


def rows_between(starts: np.ndarray, part: slice) -> tuple[int, np.ndarray]:
    """Co-occurrences: the rows of some entries of a sparse matrix: the first, and how many entries are in each."""
    first, last = np.searchsorted(starts, part.start, side="right") - 1, np.searchsorted(starts, part.stop)
    return int(first), np.diff(np.clip(starts[first : last + 1], part.start, part.stop))


def _log(numbers: np.ndarray) -> np.ndarray:
    """Associations: the logarithm of sums of counts; that of 0, which words without neighbours have, is put at 0."""
    return np.log(np.maximum(numbers, np.finfo(np.float64).tiny)) * (numbers > 0)
