"""Whole training runs, small ones: inside this process, which takes a second, or as a program in its own process."""

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
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
# Every option that a test depends on is listed here or in the test, so that new defaults change no test.
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
    """A finished training run: exit status, what it printed, and its folder."""

    status: int
    output: str
    errors: str
    folder: Path

    @property
    def metrics(self) -> dict:
        return json.loads((self.folder / "metrics.json").read_text())

    @property
    def result(self) -> dict:
        """The metrics that must be equal when the same computation is repeated: no times, no memory."""
        passing = ("seconds", "items_per_second", "peak_memory")
        return {key: value for key, value in self.metrics.items() if not key.startswith(passing)}

    def checkpoint(self, stage: str = "fit", name: str = "last") -> dict:
        import torch

        return torch.load(self.folder / "checkpoints" / stage / f"{name}.ckpt", weights_only=True)


def arguments(folder: Path | None, overrides: tuple[str, ...]) -> list[str]:
    """The command line of a run; where an option is repeated, only its last value."""
    where = [] if folder is None else [f"hydra.run.dir={folder}"]
    lines = {line.partition("=")[0]: line for line in (*where, *overrides)}
    return [*lines.values()]


def run_here(
    *overrides: str,
    folder: Path | None = None,
    data: tuple[str, ...] = PLANTED,
    base: tuple[str, ...] = SMALL,
    pictures: int = 1,
) -> Run:
    """`python train.py ...` on one thread of this process. Without a folder, Hydra chooses the run folder.

    TensorBoard is given so many pictures of a stage: to draw one takes as long as the rest of a small epoch."""
    import numba
    import torch
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra

    from structsparse.cli.train import main
    from structsparse.training.callbacks import monitor

    output, errors, status = io.StringIO(), io.StringIO(), 0
    before = sys.argv, torch.get_num_threads(), numba.get_num_threads()
    sys.argv = ["train.py", *arguments(folder, (*data, *base, *overrides))]  # Lightning's processes repeat it
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    composed_once = patch.object(Hydra, "get_mode", return_value=None)  # else a second time, to look for hydra.mode
    drawn = patch.object(monitor, "_PICTURES", pictures)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), composed_once, drawn:
            status = main(sys.argv[1:])
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv = before[0]
        torch.set_num_threads(before[1])
        numba.set_num_threads(before[2])
        GlobalHydra.instance().clear()
    return Run(status, output.getvalue(), errors.getvalue(), folder)


def start(
    *overrides: str, folder: Path, data=PLANTED, base=SMALL, script: Path = ROOT / "train.py", **environment: str
) -> subprocess.Popen:
    """Start `python train.py ...` as a separate process, on one thread."""
    command = [sys.executable, str(script), *arguments(folder, (*data, *base, *overrides))]
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    single = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    left_over = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "PL_GLOBAL_SEED")
    inherited = {name: value for name, value in os.environ.items() if name not in left_over}
    folder.parent.mkdir(parents=True, exist_ok=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**inherited, **single, **environment}, cwd=folder.parent, **pipes)


def run_program(*overrides: str, folder: Path, seconds: float = 120, **options) -> Run:
    """`python train.py ...` as a separate process, until it ends."""
    with start(*overrides, folder=folder, **options) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        finally:
            process.kill()
    return Run(process.returncode, output, errors, folder)


def at_step(monkeypatch, number: int, action: Callable, kind: type | None = None) -> None:
    """Call `action(loss, batch)` in the training step of this number; what it returns, if anything, becomes the loss.

    Steps are counted from 1 over all epochs and stages, for one class of training module (default: taggers)."""
    from structsparse.tasks.tagging.task import Tagging

    kind = kind or Tagging
    step, numbers = kind.training_step, count(1)

    def training_step(self, batch, batch_idx):
        loss = step(self, batch, batch_idx)
        changed = action(loss, batch) if next(numbers) == number else None
        return loss if changed is None else changed

    monkeypatch.setattr(kind, "training_step", training_step)


def asks_to_stop(signum: int = signal.SIGINT) -> Callable:
    """An action for `at_step` that sends this process a signal."""
    return lambda loss, batch: signal.raise_signal(signum)


@contextlib.contextmanager
def full_disk(bytes: int) -> Iterator[None]:
    """No file can grow beyond this size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def litter(folder: Path) -> list[Path]:
    """Temporary files left behind: hidden ones, which should have been renamed when they were complete."""
    return [path for path in folder.rglob(".*") if path.name != ".hydra"]
