"""Co-occurrences of words in running text: how often two words stand within a window, and what that says of them.

Counting makes runs. A run holds the sorted keys of the pairs in a part of the text, and their counts. Runs are merged,
in memory or, if a limit in megabytes is given, on the disk. Both routes give the same numbers. Runs on the disk remain
after a run of the program was stopped, and are not made again."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.base.files import atomic_file, write_text
from structsparse.kernels.features import cooccurrences as kernels

FREQUENT = 2048  # pairs of so many most frequent words are counted in a square array, which fits the CPU cache
CHUNK = 1 << 20  # words whose pairs are sorted together
WEIGHTINGS = "none", "linear", "harmonic"
ASSOCIATIONS = "pmi", "ppmi", "log_count"
_MOST = (1 << 31) - 1  # largest count of a pair within a run
_MANIFEST, _FINISHED = "text.json", "finished.json"

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
    runs = (_run(codes, *bounds, words, window, CHUNK) for bounds in _parts(len(codes), window, len(codes)))
    keys, counts = _merged(runs)
    return Cooccurrences(_symmetric([(keys, counts)], words, None), window.scale)


# --- runs


def _parts(length: int, window: Window, most: int) -> list[tuple[int, int]]:
    """Co-occurrences: the parts of a text of which a run each is made; no count in a run may exceed int32."""
    size = max(1, min(most, _MOST // int(window.weights.sum())))
    return [(begin, min(begin + size, length)) for begin in range(0, length, size)]


def _run(codes: np.ndarray, begin: int, end: int, words: int, window: Window, chunk: int) -> Run:
    """Co-occurrences: make the run of all pairs whose first word is in a part of the text."""
    weights, chunk = window.weights, min(chunk, max(1, end - begin))
    spread = 1 if window.weighting == "none" else window.size
    dense = np.zeros((min(FREQUENT, words),) * 2, np.int32)
    keys, counts, runs = np.empty(chunk * window.size, np.int64), np.empty(chunk * window.size, np.int64), Runs()
    for first in range(begin, end, chunk):
        last = min(first + chunk, end)
        found = keys[: kernels.count_pairs(codes, first, last, weights, words, dense, keys, spread)]
        found.sort()
        kept = kernels.add_equal(found, counts, weights, spread)
        runs.add((found[:kept].copy(), counts[:kept].copy()))
    x, y = np.nonzero(dense)
    runs.add((x * words + y, dense[x, y].astype(np.int64)))
    return runs.merged()


class Runs:
    """Co-occurrences: runs that are merged as they come, each with one of about its size."""

    def __init__(self) -> None:
        self.stack: list[Run] = []

    def add(self, run: Run) -> None:
        """Co-occurrences: add a run, and merge the last runs while they are of about one size."""
        self.stack.append(run)
        while len(self.stack) > 1 and len(self.stack[-2][0]) <= 2 * len(self.stack[-1][0]):
            self._merge()

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


def _merged(runs: Iterable[Run]) -> Run:
    """Co-occurrences: the sum of several runs."""
    merged = Runs()
    for run in runs:
        merged.add(run)
    return merged.merged()


def _symmetric(pieces: Iterable[Run], words: int, folder: Path | None) -> sparse.csr_array:
    """Co-occurrences: the symmetric matrix of counts, from pieces of one run; they are read twice.

    With a folder, the arrays of the matrix are files in it."""
    sizes, below = np.zeros(words, np.int64), np.zeros(words, np.int64)
    for keys, _ in pieces:
        kernels.row_sizes(keys, words, sizes, below)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    kind = np.int32 if starts[-1] < 1 << 31 else np.int64
    columns, values = _array(folder, "columns", kind, starts[-1]), _array(folder, "values", np.int64, starts[-1])
    lower, upper = starts[:-1].copy(), starts[:-1] + below
    for keys, counts in pieces:
        kernels.place_pairs(keys, counts, words, lower, upper, columns, values)
    return sparse.csr_array((values, columns, starts.astype(kind)), shape=(words, words))


def _array(folder: Path | None, name: str, kind: type, size: int) -> np.ndarray:
    """Co-occurrences: an array in memory or, with a folder, in a file."""
    if folder is None or size == 0:
        return np.empty(size, kind)
    return np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, (int(size),))


# --- runs on the disk


def count_on_disk(codes: np.ndarray, words: int, window: Window, megabytes: int, folder: Path) -> Cooccurrences:
    """Count the co-occurrences in a text with sorted runs on the disk; arrays in memory take about `megabytes`.

    Runs that an interrupted count of the same text has left in the folder are used. The arrays of the matrix are files
    in the folder, which the system reads when they are needed."""
    if type(megabytes) is not int or megabytes < 64:
        raise UserError(f"features.memory is {megabytes}, expected null or a number of megabytes of at least 64")
    budget = (megabytes - 32) << 20  # the square array of frequent words and small arrays take the rest
    parts = _parts(len(codes), window, max(1, budget // (40 * window.size)))
    described = json.dumps([_digest(codes), words, window.size, window.weighting, parts[:1], len(parts)])
    _begin(folder, described)
    if not (folder / _FINISHED).exists():
        for number, (begin, end) in enumerate(parts):
            path = folder / f"run{number:05d}.npy"
            if not path.exists():
                with atomic_file(path) as file:
                    np.save(file, np.stack(_run(codes, begin, end, words, window, end - begin)))
        runs = [np.load(folder / f"run{number:05d}.npy", mmap_mode="r") for number in range(len(parts))]
        matrix = _symmetric(_Pieces(runs, budget // 128), words, folder)
        np.save(folder / "starts.npy", matrix.indptr)
        write_text(folder / _FINISHED, json.dumps({"entries": matrix.nnz}))
        for path in folder.glob("run*.npy"):
            path.unlink()
    values, columns, starts = (_loaded(folder / f"{name}.npy") for name in ("values", "columns", "starts"))
    return Cooccurrences(sparse.csr_array((values, columns, starts), shape=(words, words)), window.scale)


class _Pieces:
    """Co-occurrences: the sum of runs on the disk, in pieces of rising keys that are merged when they are read."""

    def __init__(self, runs: list[np.ndarray], most: int) -> None:
        """Co-occurrences: `most` is the number of entries of all runs from which a piece is made."""
        self.runs = runs
        step = max(1, most // (8 * max(1, len(runs))))  # each stretch between two sampled keys of a run has `step` keys
        sampled = np.sort(np.concatenate([run[0, ::step] for run in runs])) if runs else np.empty(0, np.int64)
        self.bounds = np.unique(sampled[:: max(1, most // (2 * step))])

    def __iter__(self) -> Iterator[Run]:
        for k, first in enumerate(self.bounds):
            ends = [first, self.bounds[k + 1]] if k + 1 < len(self.bounds) else [first]
            cuts = [[*np.searchsorted(run[0], ends), run.shape[1]][:2] for run in self.runs]
            yield _merged(tuple(np.array(run[:, a:b])) for run, (a, b) in zip(self.runs, cuts, strict=True))


def _begin(folder: Path, described: str) -> None:
    """Co-occurrences: prepare the folder of runs; runs of another text or of other options are removed."""
    manifest = folder / _MANIFEST
    if manifest.exists() and manifest.read_text(encoding="utf-8") == described:
        return
    shutil.rmtree(folder, ignore_errors=True)
    write_text(manifest, described)


def _digest(codes: np.ndarray) -> str:
    """Co-occurrences: a hash of the codes of a text, which may be mapped to a file."""
    digest = blake2b(digest_size=16)
    for begin in range(0, len(codes), 1 << 22):
        digest.update(np.ascontiguousarray(codes[begin : begin + (1 << 22)]))
    return digest.hexdigest()


def _loaded(path: Path) -> np.ndarray:
    """Co-occurrences: an array of the matrix, mapped to its file; an empty array has no file."""
    return np.load(path, mmap_mode="r") if path.exists() else np.empty(0, np.int64)


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
    if kind == "log_count":
        values = np.log1p(matrix.data / counted.scale)
    else:
        values = _pmi(matrix, smoothing) - math.log(shift)
        values = np.maximum(values, 0.0) if kind == "ppmi" else values
    result = sparse.csr_array((values.astype(np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)
    if kind == "ppmi":
        result = result.copy()  # the counts keep their positions
        result.eliminate_zeros()
    return result


def _pmi(matrix: sparse.csr_array, smoothing: float) -> np.ndarray:
    """Associations: the pointwise mutual information of each entry of a matrix of counts (float64 [entries])."""
    totals = np.asarray(matrix.sum(axis=1), np.float64)
    contexts = totals**smoothing
    word, context = (_log(numbers) - _log(numbers.sum()) for numbers in (totals, contexts))
    row = np.repeat(word, np.diff(matrix.indptr))
    return np.log(matrix.data) - _log(totals.sum()) - row - context[matrix.indices]


def _log(numbers: np.ndarray) -> np.ndarray:
    """Associations: the logarithm of sums of counts; that of 0, which words without neighbours have, is put at 0."""
    return np.log(np.maximum(numbers, np.finfo(np.float64).tiny)) * (numbers > 0)
