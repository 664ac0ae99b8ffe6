"""Co-occurrences counted in bounded memory: sorted runs on the disk, which are merged into a matrix on the disk.

Whenever the runs in memory have grown to a limit, their sum is written to a file. The name of the file says which part
of the text it counts. A count that was stopped, or killed, goes on after the last complete file, also with another
limit or another number of threads. The files hold each pair in both orders. Their keys in sorted order are then those
of the matrix by rows, and the matrix is written from its first entry to its last."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.base.files import atomic_file, write_text
from structsparse.features.cooccurrences import (
    Cooccurrences,
    Counters,
    Pool,
    Run,
    Window,
    merged,
    rows_between,
    symmetric,
    threads,
)
from structsparse.kernels.features import cooccurrences as kernels

LEAST = 64  # megabytes for counting
_FIXED = 20 << 20  # bytes for the square array of frequent words and small arrays, in each thread
_TEXT, _FINISHED = "text.json", "finished.json"
_SLICE = 1 << 18  # entries of a matrix that are written together
_KEY = np.dtype(np.int64)


def count_on_disk(codes: np.ndarray, words: int, window: Window, megabytes: int, folder: Path) -> Cooccurrences:
    """Count the co-occurrences in a text with sorted runs on the disk; arrays in memory take at most `megabytes`.

    Files that an interrupted count of the same text has left in the folder are used. The arrays of the matrix are files
    in the folder, which the system reads when they are needed. Two programs may not count in one folder at a time."""
    if type(megabytes) is not int or megabytes < LEAST:
        raise UserError(f"features.memory is {megabytes}, expected null or a number of megabytes of at least {LEAST}")
    budget = megabytes << 20
    _begin(folder, json.dumps([_digest(codes), words, window.size, window.weighting]))
    if not (folder / _FINISHED).exists():
        with threads(max(1, budget // (3 * _FIXED))) as pool:
            budget -= pool.size * _FIXED
            _write_runs(codes, words, window, budget, folder, pool)
            _write_matrix([run for path in _paths(folder) for run in _stored(path)], words, budget, folder, pool)
        write_text(folder / _FINISHED, json.dumps({"scale": window.scale}))
    for path in _paths(folder):
        path.unlink()
    return Cooccurrences(_matrix(folder, words), window.scale)


def _begin(folder: Path, described: str) -> None:
    """Co-occurrences on disk: prepare the folder; files of another text and files that were not completed go away."""
    text = folder / _TEXT
    if not text.exists() or text.read_text(encoding="utf-8") != described:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(text, described)
    for path in folder.glob(".*"):  # a program that was killed leaves files that have no final name yet
        path.unlink()


def _digest(codes: np.ndarray) -> str:
    """Co-occurrences on disk: a hash of the codes of a text, which may be mapped to a file."""
    digest = blake2b(digest_size=16)
    for begin in range(0, len(codes), 1 << 22):
        digest.update(np.ascontiguousarray(codes[begin : begin + (1 << 22)]))
    return digest.hexdigest()


# --- runs


def _paths(folder: Path) -> list[Path]:
    """Co-occurrences on disk: the files of complete runs, in the order of the text."""
    return sorted(folder.glob("run-*"))


def _write_runs(codes: np.ndarray, words: int, window: Window, budget: int, folder: Path, pool: Pool) -> None:
    """Co-occurrences on disk: write the runs of the text that the folder does not have yet.

    Of the budget in bytes, an eighth is for the keys of chunks, 16 bytes for each. The rest is for the runs of which
    one file is made: 16 bytes for each pair and 40 more while it is merged and put at its two places. Half of these
    pairs may come with the last chunk."""
    done = max((int(path.name.split("-")[2]) for path in _paths(folder)), default=0)
    if done >= len(codes):
        return
    chunk = max(1, min(len(codes), budget // (8 * 16 * window.size * pool.size)))
    counters = Counters(codes, words, window, pool, chunk)
    while done < len(codes):
        begin, done = done, counters.take(done, budget // 128)
        matrix, square = symmetric(merged(counters.runs(), pool), words, pool), counters.square()
        kernels.mirror(square)
        with atomic_file(folder / f"run-{begin:012}-{done:012}") as file:
            file.write(np.array([np.count_nonzero(square), matrix.nnz]))
            _write_square(square, words, file)
            _write_run(matrix, words, file)
        square[:] = 0


def _write_square(square: np.ndarray, words: int, file: BinaryIO) -> None:
    """Co-occurrences on disk: write the keys of pairs of frequent words, then their counts."""
    step = max(1, _SLICE // len(square))
    blocks = [slice(row, row + step) for row in range(0, len(square), step)]
    for block in blocks:
        x, y = np.nonzero(square[block])
        file.write((x + block.start) * words + y)
    for block in blocks:
        file.write(square[block][square[block] != 0].astype(np.int64))


def _write_run(matrix: sparse.csr_array, words: int, file: BinaryIO) -> None:
    """Co-occurrences on disk: write the keys of a symmetric matrix by rows, then its counts."""
    for begin in range(0, matrix.nnz, _SLICE):
        part = slice(begin, min(begin + _SLICE, matrix.nnz))
        first, sizes = rows_between(matrix.indptr, part)
        rows = np.repeat(np.arange(first, first + len(sizes)), sizes)
        file.write(rows * words + matrix.indices[part])
    file.write(matrix.data)


def _stored(path: Path) -> list[_StoredRun]:
    """Co-occurrences on disk: the two runs of a file, that of frequent words and that of the others."""
    with path.open("rb") as file:
        first, second = _read(file, 0, 2).tolist()
    return [_StoredRun(path, 2, first), _StoredRun(path, 2 + 2 * first, second)]


class _StoredRun:
    """Co-occurrences on disk: a run in a file, of which parts are read."""

    def __init__(self, path: Path, begin: int, size: int) -> None:
        """Co-occurrences on disk: `begin` is the position of the keys in the file, in numbers; the counts follow."""
        self.path, self.begin, self.size = path, begin, size

    def sampled(self, step: int) -> np.ndarray:
        """Co-occurrences on disk: every step-th key of the run."""
        with self.path.open("rb") as file:
            keys = [_read(file, self.begin + place, 1) for place in range(0, self.size, step)]
        return np.concatenate([_none(), *keys])

    def places(self, keys: np.ndarray, step: int) -> np.ndarray:
        """Co-occurrences on disk: for each of some rising keys, how many keys of the run are smaller."""
        samples, result = np.searchsorted(self.sampled(step), keys), []
        with self.path.open("rb") as file:
            for key, sample in zip(keys, samples.tolist(), strict=True):
                begin = max(0, sample - 1) * step
                stretch = _read(file, self.begin + begin, min(step, self.size - begin))
                result.append(begin + int(np.searchsorted(stretch, key)))
        return np.array([*result, self.size])

    def part(self, begin: int, end: int) -> Run:
        """Co-occurrences on disk: the entries `begin` to `end` - 1 of the run."""
        with self.path.open("rb") as file:
            keys = _read(file, self.begin + begin, end - begin)
            return keys, _read(file, self.begin + self.size + begin, end - begin)


def _read(file: BinaryIO, begin: int, size: int) -> np.ndarray:
    """Co-occurrences on disk: read some numbers of a file, not through a mapping, whose pages would stay in memory."""
    file.seek(begin * _KEY.itemsize)
    return np.frombuffer(file.read(size * _KEY.itemsize), _KEY)


def _none() -> np.ndarray:
    """Co-occurrences on disk: no keys."""
    return np.empty(0, _KEY)


# --- the matrix


def _write_matrix(runs: Sequence[_StoredRun], words: int, budget: int, folder: Path, pool: Pool) -> None:
    """Co-occurrences on disk: write the sum of all runs, as the arrays of a sparse matrix by rows."""
    sizes = np.zeros(words, np.int64)
    with contextlib.ExitStack() as files:
        columns, values = (files.enter_context(atomic_file(folder / name)) for name in ("columns", "values"))
        for parts in _parts(runs, max(1, budget // 80)):
            for keys, counts in merged(parts, pool):
                rows = keys // words
                sizes += np.bincount(rows, minlength=words)
                columns.write((keys - rows * words).astype(np.int32))
                values.write(counts)
    with atomic_file(folder / "starts") as file:
        file.write(np.concatenate([[0], np.cumsum(sizes)]))


def _parts(runs: Sequence[_StoredRun], most: int) -> Iterator[list[Run]]:
    """Co-occurrences on disk: the entries of all runs by ranges of rising keys, `most` entries at a time."""
    step = max(1, most // (8 * max(1, len(runs))))  # keys between two samples of a run
    samples = np.sort(np.concatenate([_none(), *(run.sampled(step) for run in runs)]))
    bounds = np.unique(samples[:: max(1, most // (2 * step))])
    places = [run.places(bounds, step) for run in runs]
    for k in range(len(bounds)):
        yield [run.part(*place[k : k + 2]) for run, place in zip(runs, places, strict=True)]


def _matrix(folder: Path, words: int) -> sparse.csr_array:
    """Co-occurrences on disk: the matrix of counts, mapped to its files."""
    columns, values, starts = (_mapped(folder / name, kind) for name, kind in _ARRAYS.items())
    if len(columns) < 1 << 31:
        starts = starts.astype(np.int32)
    else:
        columns = columns.astype(np.int64)  # scipy has one type for both
    return sparse.csr_array((values, columns, starts), shape=(words, words))


_ARRAYS = {"columns": np.int32, "values": np.int64, "starts": np.int64}


def _mapped(path: Path, kind: type) -> np.ndarray:
    """Co-occurrences on disk: an array of the matrix, mapped to its file; an empty file cannot be mapped."""
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)
