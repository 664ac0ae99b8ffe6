"""The folder of a run: where it is resumed from, and the tables of what its stages recorded."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.report.tables import Table, tsv

if TYPE_CHECKING:
    from structsparse.training.stage import Outcome

_OPTIONS = "options.json"
_RUN_ONLY = ("ckpt_path", "trainer", "patience", "cache", "artifact")  # how long it runs, on what, what it writes


def decides(options: Mapping) -> dict:
    """The options that decide what is learnt."""
    return {key: value for key, value in options.items() if key not in _RUN_ONLY}


def first_process() -> bool:
    """Whether this process is the one that writes and speaks, also before there are others."""
    ranks = ("RANK", "SLURM_PROCID", "LOCAL_RANK", "NODE_RANK")  # of torchrun, of SLURM, of Lightning's own launcher
    return all(os.environ.get(name, "0") == "0" for name in ranks)


def resume_into(folder: Path, ckpt_path: str | None, options: Mapping) -> bool:
    """Make `folder/checkpoints` hold what is to be continued; False for a run from the start."""
    here = folder / "checkpoints"
    if ckpt_path is None:
        if first_process():
            shutil.rmtree(here, ignore_errors=True)
            write_text(here / _OPTIONS, json.dumps(decides(options), indent=1, sort_keys=True))
        return False
    source = here if ckpt_path == "last" and here.is_dir() else _found(folder, ckpt_path, options)
    if first_process() and source.resolve() != here.resolve():
        # files are replaced, never changed in place, so two runs can share them
        shutil.copytree(source, here, copy_function=_link, dirs_exist_ok=True)
    return True


def _found(folder: Path, ckpt_path: str, options: Mapping) -> Path:
    if ckpt_path == "last":
        return _newest(folder, options)
    path = Path(ckpt_path)
    candidates = [path / "checkpoints", path, *path.parents[:4]]
    for candidate in candidates:
        if candidate.name == "checkpoints" and any(candidate.rglob("last.ckpt")):
            return candidate
    raise UserError(f"ckpt_path={ckpt_path}: no run directory with checkpoints there")


def _newest(folder: Path, options: Mapping) -> Path:
    """The newest run beside `folder` that was made with the same options."""
    runs = [path.parent for path in folder.parent.glob("*/checkpoints") if any(path.rglob("last.ckpt"))]
    for run in sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True):
        made_with = run / "checkpoints" / _OPTIONS
        if made_with.is_file() and json.loads(made_with.read_text()) == json.loads(json.dumps(decides(options))):
            return run / "checkpoints"
    raise UserError(
        f"ckpt_path=last: {folder.parent} has no run with the same options that got as far as a checkpoint; "
        "name a run directory instead"
    )


def _link(source: str, target: str) -> None:
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)


NOTED = {  # what a stage's figures call it -> file and columns
    "cuts": ("budget.tsv", ("step", "parameter", "strength")),
    "counts": ("counts.tsv", ("epoch", "step", "rows", "weights")),
    "outer": ("outer.tsv", ("epoch", "primal", "dual", "flips", "living")),  # of ADMM; residuals are mean squares
}


def write(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Of all stages, one after the other; no file of what none of them has noted."""
    for key, (name, header) in NOTED.items():
        lines = [(o.figures["stage"], *line) for o in outcomes for line in o.figures.get(key) or ()]
        if lines:
            write_text(folder / name, tsv(Table(("stage", *header), lines)))
