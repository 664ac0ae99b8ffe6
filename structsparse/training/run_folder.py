"""The folder of a run: which process writes to it, and the checkpoints from which a resumed run continues."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from structsparse.base.errors import UserError
from structsparse.base.files import write_text

_OPTIONS = "options.json"
_RUN_ONLY = ("ckpt_path", "trainer", "patience", "cache", "artifact")  # options ignored when runs are compared


def learning_options(options: Mapping) -> dict:
    """Run folder: the learning options of a run, by which runs are compared, for example to find a run to resume.

    Options such as the cache size and `patience` are left out."""
    return {key: value for key, value in options.items() if key not in _RUN_ONLY}


def first_process() -> bool:
    """Run folder: whether this process writes files and prints, as the first or only process of a run."""
    ranks = ("RANK", "SLURM_PROCID", "LOCAL_RANK", "NODE_RANK")  # process ranks set by torchrun, SLURM and Lightning
    return all(os.environ.get(name, "0") == "0" for name in ranks)


def resume_into(folder: Path, ckpt_path: str | None, options: Mapping) -> bool:
    """Run folder: fill `folder/checkpoints` from `ckpt_path`; returns whether the run is resumed.

    If `ckpt_path` is None, old checkpoints in `folder` are deleted."""
    here = folder / "checkpoints"
    if ckpt_path is None:
        if first_process():
            shutil.rmtree(here, ignore_errors=True)
            write_text(here / _OPTIONS, json.dumps(learning_options(options), indent=1, sort_keys=True))
        return False
    source = here if ckpt_path == "last" and here.is_dir() else _source(folder, ckpt_path, options)
    if first_process() and source.resolve() != here.resolve():
        # checkpoint files are replaced, never changed in place; two runs can therefore share a file by a hard link
        shutil.copytree(source, here, copy_function=_link, dirs_exist_ok=True)
    return True


def _source(folder: Path, ckpt_path: str, options: Mapping) -> Path:
    """Run folder: the folder of checkpoints that the option `ckpt_path` names.

    `last` names the newest run with the same options. Any other value is a path: a run folder, or a file or
    folder in it."""
    if ckpt_path == "last":
        return _newest(folder, options)
    path = Path(ckpt_path)
    candidates = [path / "checkpoints", path, *path.parents[:4]]
    for candidate in candidates:
        if candidate.name == "checkpoints" and any(candidate.rglob("last.ckpt")):
            return candidate
    raise UserError(f"ckpt_path={ckpt_path}: no run directory with checkpoints there")


def _newest(folder: Path, options: Mapping) -> Path:
    """Run folder: the checkpoints of the newest run with the same options, among the sibling folders of `folder`."""
    runs = [path.parent for path in folder.parent.glob("*/checkpoints") if any(path.rglob("last.ckpt"))]
    for run in sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True):
        made_with = run / "checkpoints" / _OPTIONS
        if made_with.is_file() and json.loads(made_with.read_text()) == json.loads(
            json.dumps(learning_options(options))
        ):
            return run / "checkpoints"
    raise UserError(
        f"ckpt_path=last: {folder.parent} has no run with the same options that got as far as a checkpoint; "
        "name a run directory instead"
    )


def _link(source: str, target: str) -> None:
    """Run folder: hard-link a checkpoint file, or copy it if the target is on another disk."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
