"""Whole training runs, small ones: inside this process, which takes a second, or as the program itself."""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is there: a worker for each core is enough
settings.register_profile("untimed", deadline=None)  # a test times nothing, and machines are shared
settings.load_profile("untimed")
ROOT = Path(__file__).resolve().parents[1]
# Whatever a test rests on is said here or by the test, so that other defaults change nothing.
PLANTED = ("data=planted", "data.train=120", "data.dev=40", "data.test=40")
SMALL = (
    *("recipe=direct", "reg=l1", "reg.strength=0.05", "solver=adagrad", "batch=16", "seed=0"),
    *("trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1", "choose=last", "patience=null"),
    "features.templates=['word[0]','suffix3[0]','prefix4[0]','pos[-1..0]','shape[1]']",
)
TWO_STAGES = (  # strong enough to switch off one template of five
    *("recipe=select_refit", "reg=group_lasso", "groups.weights=sqrt_size", "reg.strength=0.7"),
    *("++recipe.select.trainer.max_epochs=2", "++recipe.select.batch=16", "++recipe.select.choose=last"),
    *("++recipe.refit.trainer.max_epochs=2", "++recipe.refit.batch=16", "++recipe.refit.choose=best"),
)


@dataclass(frozen=True)
class Run:
    """What a run has said and left behind."""

    status: int
    output: str
    errors: str
    folder: Path

    @property
    def metrics(self) -> dict:
        return json.loads((self.folder / "metrics.json").read_text())

    @property
    def result(self) -> dict:
        """The figures that the same computation must give again."""
        passing = ("seconds", "items_per_second", "peak_memory")
        return {key: value for key, value in self.metrics.items() if not key.startswith(passing)}

    def checkpoint(self, stage: str = "fit", name: str = "last") -> dict:
        import torch

        return torch.load(self.folder / "checkpoints" / stage / f"{name}.ckpt", weights_only=True)


@pytest.fixture(autouse=True, scope="session")
def _one_thread_a_worker():
    """Two that wait for each other on a busy core take many times as long; tests of threads ask for more."""
    import numba

    numba.set_num_threads(1)


def arguments(folder: Path | None, overrides: tuple[str, ...]) -> list[str]:
    """Overrides, the last one of its name alone."""
    where = [] if folder is None else [f"hydra.run.dir={folder}"]
    lines = {line.partition("=")[0]: line for line in (*where, *overrides)}
    return [f"--config-path={ROOT / 'conf'}", *lines.values()]


def run_here(
    *overrides: str, folder: Path | None = None, data: tuple[str, ...] = PLANTED, base: tuple[str, ...] = SMALL
) -> Run:
    """`python train.py ...` on one thread of this process. Without a folder it goes where Hydra puts it."""
    import numba
    import torch
    from hydra.core.global_hydra import GlobalHydra

    import train

    output, errors, status = io.StringIO(), io.StringIO(), 0
    before = sys.argv, torch.get_num_threads(), numba.get_num_threads()
    sys.argv = ["train.py", *arguments(folder, (*data, *base, *overrides))]
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            train.main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv = before[0]
        torch.set_num_threads(before[1])
        numba.set_num_threads(before[2])
        GlobalHydra.instance().clear()
    return Run(status, output.getvalue(), errors.getvalue(), folder)


def start(
    *overrides: str, folder: Path, data=PLANTED, script: Path = ROOT / "train.py", **environment: str
) -> subprocess.Popen:
    """The program as a process of its own, on one thread."""
    command = [sys.executable, str(script), *arguments(folder, (*data, *SMALL, *overrides))]
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    single = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    left_over = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "PL_GLOBAL_SEED")
    inherited = {name: value for name, value in os.environ.items() if name not in left_over}
    folder.parent.mkdir(parents=True, exist_ok=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**inherited, **single, **environment}, cwd=folder.parent, **pipes)


def run_program(*overrides: str, folder: Path, seconds: float = 120, **options) -> Run:
    with start(*overrides, folder=folder, **options) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        finally:
            process.kill()
    return Run(process.returncode, output, errors, folder)


def at_step(monkeypatch, number: int, action: Callable, kind: type | None = None) -> None:
    """Do something after the loss of the training batch of this number has been computed, counted from 1 over all
    epochs and stages, of a kind of module (taggers); what it returns, if anything, becomes the loss."""
    from structsparse.tasks.tagging.data import Tagging

    kind = kind or Tagging
    step, numbers = kind.training_step, count(1)

    def training_step(self, batch, batch_idx):
        loss = step(self, batch, batch_idx)
        found = action(loss, batch) if next(numbers) == number else None
        return loss if found is None else found

    monkeypatch.setattr(kind, "training_step", training_step)


def asks_to_stop(signum: int = signal.SIGINT) -> Callable:
    return lambda loss, batch: signal.raise_signal(signum)


@contextlib.contextmanager
def full_disk(bytes: int) -> Iterator[None]:
    """No file can grow beyond this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def litter(folder: Path) -> list[Path]:
    """Files that were to be renamed once they were whole."""
    return [path for path in folder.rglob(".*") if path.name != ".hydra"]


@pytest.fixture
def run(tmp_path) -> Callable[..., Run]:
    """A run in this process, in a folder of the test."""

    def run(*overrides: str, folder: str | Path = "run", **options) -> Run:
        return run_here(*overrides, folder=tmp_path / folder, **options)

    return run
