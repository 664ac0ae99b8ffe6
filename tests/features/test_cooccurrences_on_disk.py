"""Counts of co-occurrences on the disk: equal to those in memory, after a stop and after a kill, too."""

import mmap
import os
import random
import subprocess
import sys
import time
from itertools import count as numbers
from pathlib import Path

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.features import cooccurrences, cooccurrences_on_disk
from structsparse.features.cooccurrences import Window, associations, count
from structsparse.features.cooccurrences_on_disk import count_on_disk
from tests.features.test_cooccurrences import same

WORDS = 1500
ROOT = Path(__file__).resolve().parents[2]


def text(tokens: int = 30_000, seed: int = 0) -> np.ndarray:
    """Random codes, small ones more often; their pairs take several times the memory that the tests allow."""
    rng = np.random.default_rng(seed)
    codes = (WORDS * rng.random(tokens) ** 2).astype(np.int32)
    codes[rng.random(tokens) < 0.05] = -1
    codes[rng.random(tokens) < 0.08] = -2
    return codes


def allow_a_megabyte() -> None:
    """Counting in memory of one megabyte, which is below the least that users may ask for."""
    cooccurrences.FREQUENT = 40
    cooccurrences_on_disk.LEAST, cooccurrences_on_disk._FIXED = 1, 1 << 10


@pytest.fixture(autouse=True)
def _a_megabyte(monkeypatch):
    monkeypatch.setattr(cooccurrences, "FREQUENT", cooccurrences.FREQUENT)
    for name in ("LEAST", "_FIXED"):
        monkeypatch.setattr(cooccurrences_on_disk, name, getattr(cooccurrences_on_disk, name))
    allow_a_megabyte()


@pytest.fixture
def set_threads(monkeypatch):
    """Count with a number of threads, whatever the machine has."""
    return lambda number: monkeypatch.setattr(cooccurrences.numba, "get_num_threads", lambda: number)


def in_file(array: np.ndarray) -> bool:
    """Whether an array lies in a file that is mapped into memory."""
    return isinstance(array, np.memmap | mmap.mmap) or (array is not None and in_file(array.base))


def runs_in(folder: Path) -> dict[str, int]:
    """The complete runs of a folder, with the time at which each was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("run-*")}


def hidden(folder: Path) -> list[Path]:
    """Files without their final name, of a count that was stopped while it wrote them."""
    return [*folder.glob(".*")]


@pytest.mark.parametrize("weighting", ["none", "harmonic"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_text_beyond_the_limit_is_counted_as_in_memory(weighting, threads, tmp_path, set_threads, monkeypatch):
    set_threads(threads)
    codes, window, seen = text(), Window(4, weighting), []
    write_matrix = cooccurrences_on_disk._write_matrix

    def observed(runs, words, budget, folder, pool):
        seen.append(len(runs_in(folder)))
        parts = [sum(len(keys) for keys, _ in part) for part in cooccurrences_on_disk._parts(runs, budget // 80)]
        assert len(parts) > 3
        assert max(parts) <= budget // 80
        write_matrix(runs, words, budget, folder, pool)

    monkeypatch.setattr(cooccurrences_on_disk, "_write_matrix", observed)
    expected, found = count(codes, WORDS, window), count_on_disk(codes, WORDS, window, 1, tmp_path / "counts")
    same(found.matrix, expected.matrix)
    assert found.scale == expected.scale
    assert expected.matrix.nnz * 12 > 1 << 20, "the matrix alone exceeds the limit"
    assert seen[0] > 3
    assert all(in_file(getattr(found.matrix, name)) for name in ("data", "indices"))
    assert not runs_in(tmp_path / "counts")


def test_a_count_that_was_stopped_goes_on_with_other_limits_and_threads(tmp_path, monkeypatch, set_threads):
    codes, window, folder = text(), Window(), tmp_path / "counts"
    expected, write, calls = count(codes, WORDS, window), cooccurrences_on_disk._write_run, numbers(1)

    def stopped(matrix, words, file):
        write(matrix, words, file)
        if next(calls) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(cooccurrences_on_disk, "_write_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        count_on_disk(codes, WORDS, window, 1, folder)
    before = runs_in(folder)
    assert len(before) == 3
    assert not hidden(folder)
    set_threads(2)
    write_matrix = cooccurrences_on_disk._write_matrix

    def kept(runs, words, budget, folder, pool):
        assert before.items() < runs_in(folder).items()
        write_matrix(runs, words, budget, folder, pool)

    monkeypatch.setattr(cooccurrences_on_disk, "_write_matrix", kept)
    same(count_on_disk(codes, WORDS, window, 2, folder).matrix, expected.matrix)
    made = next(calls)
    same(count_on_disk(codes, WORDS, window, 1, folder).matrix, expected.matrix)
    assert next(calls) == made + 1, "finished counts are read, not made again"
    other = text(seed=1)
    monkeypatch.setattr(cooccurrences_on_disk, "_write_matrix", write_matrix)
    same(count_on_disk(other, WORDS, window, 1, folder).matrix, count(other, WORDS, window).matrix)


SCRIPT = """
from pathlib import Path
from tests.features.test_cooccurrences_on_disk import *
allow_a_megabyte()
codes, folder = text(300_000), Path("counts")
print("begins", flush=True)
count_on_disk(codes, WORDS, Window(), 1, folder)
"""


@pytest.mark.slow
def test_a_count_that_was_killed_goes_on_to_the_same_counts(tmp_path):
    codes, window, folder, draw = text(300_000), Window(), tmp_path / "counts", random.Random(0)
    kept, kills = {}, 0
    for _ in range(4):
        with counting(tmp_path) as process:
            process.stdout.readline()
            time.sleep(0.4 * draw.random())
            process.kill()
        kills += process.returncode != 0
        if (folder / "finished.json").exists():
            break
        assert kept.items() <= runs_in(folder).items(), "complete runs are not made again"
        kept = runs_in(folder)
        assert sum(map(words_of, kept)) == max(map(end_of, kept), default=0), "runs follow on each other"
    assert kills > 0
    with counting(tmp_path) as process:
        assert process.wait() == 0
    assert not hidden(folder)
    assert (folder / "finished.json").exists()
    same(count_on_disk(codes, WORDS, window, 1, folder).matrix, count(codes, WORDS, window).matrix)


def counting(folder: Path) -> subprocess.Popen:
    """Start a process that counts on the disk and says when it begins."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=folder, env=environment, stdout=subprocess.PIPE)


def end_of(name: str) -> int:
    """The end of the part of the text that a run counts."""
    return int(name.split("-")[2])


def words_of(name: str) -> int:
    """The length of the part of the text that a run counts."""
    return end_of(name) - int(name.split("-")[1])


def test_remains_of_a_killed_count_are_removed(tmp_path):
    folder, codes = tmp_path / "counts", text()
    count_on_disk(codes, WORDS, Window(), 1, folder)
    (folder / "finished.json").unlink()
    (folder / ".run-000000000000-000000001000.x").write_bytes(b"half")
    same(count_on_disk(codes, WORDS, Window(), 1, folder).matrix, count(codes, WORDS, Window()).matrix)
    assert not hidden(folder)


def test_a_text_without_pairs_has_an_empty_matrix(tmp_path):
    for codes in ([3, -2, 4, -2, -1, -2], [], [0]):
        found = count_on_disk(np.array(codes, np.int32), WORDS, Window(), 64, tmp_path)
        assert found.matrix.nnz == 0
        assert associations(found).nnz == 0


@pytest.mark.parametrize("megabytes", [0, 1.5, "500", True])
def test_bad_limits_get_one_sentence(megabytes, tmp_path):
    with pytest.raises(UserError, match=f"features.memory is {megabytes}, expected null"):
        count_on_disk(text(), WORDS, Window(), megabytes, tmp_path)
