"""Programs of word vectors that are killed at random moments, while they count or learn, and started again."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from structsparse.tasks import registry
from tests.support.runs import Run, litter, run_program, start

OPTIONS = ("task=embeddings", "batch=64", "cache=0", "trainer.max_epochs=6", "trainer.check_val_every_n_epoch=1")
NAMES = "ab cd ef gh ij kl mn op qr st"


def write_text(path: Path, words: int = 400_000) -> None:
    """A text whose co-occurrences need several files with the least memory that counting may have."""
    draw = np.random.default_rng(0)
    codes = (2000 * draw.random(words) ** 2).astype(int)
    syllables = NAMES.split()
    names = ["".join(syllables[int(digit)] for digit in f"{k:04}") for k in range(2000)]
    lines = [" ".join(names[k] for k in codes[begin : begin + 25]) for begin in range(0, words, 25)]
    path.write_text("\n".join(lines))


def program(folder: Path, text: Path, *options: str, begin: Callable = run_program):
    """Train word vectors of the text in a process of its own, with counts on the disk beside the run."""
    cache = {"STRUCTSPARSE_CACHE": str(folder.parent / "cache"), "STRUCTSPARSE_DATA": str(folder.parent / "nothing")}
    what = (*OPTIONS, f"data.train={text}", "features.memory=64", "reg=l1", "model.dimensions=20", *options)
    return begin(*what, folder=folder, data=(), base=(), **cache)


def killed(folder: Path, text: Path, pattern: str, wait: float, *options: str) -> None:
    """Start the program, and kill it some seconds after it has written a file that matches a pattern."""
    begun = time.time_ns()
    with program(folder, text, *options, begin=start) as process:
        while process.poll() is None and not any(written_since(begun, path) for path in folder.parent.glob(pattern)):
            time.sleep(0.005)
        time.sleep(wait)
        process.kill()
        errors = process.communicate()[1]
    assert process.returncode == -9, errors


def written_since(begun: int, path: Path) -> bool:
    """Whether a file was written after a moment; one that is gone by now was not."""
    try:
        return path.stat().st_mtime_ns > begun
    except FileNotFoundError:
        return False


def assert_the_same_end(found: Run, expected: Run) -> None:
    """Equal figures and vectors, to the last bit."""
    assert (found.status, expected.status) == (0, 0), found.errors + expected.errors
    assert found.result == expected.result
    vectors = [registry.load(run.folder) for run in (found, expected)]
    np.testing.assert_array_equal(vectors[0].vectors, vectors[1].vectors)
    np.testing.assert_array_equal(vectors[0].atoms, vectors[1].atoms)


@pytest.mark.slow
def test_a_program_that_is_killed_and_started_again_comes_to_the_same_numbers(tmp_path):
    text, draw = tmp_path / "text.txt", random.Random()
    write_text(text)
    whole = program(tmp_path / "whole" / "run", text)
    folder = tmp_path / "killed" / "run"
    killed(folder, text, "cache/cooccurrences/*/run-*", 0.1 * draw.random())
    for options in ((), ("ckpt_path=last",)):
        killed(folder, text, "run/checkpoints/fit/last.ckpt", 0.3 * draw.random(), *options)
    resumed = program(folder, text, "ckpt_path=last")
    assert_the_same_end(resumed, whole)
    assert litter(tmp_path / "killed" / "cache") == []
