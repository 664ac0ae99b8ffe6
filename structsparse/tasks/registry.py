"""The registry of tasks: built-in tasks, and tasks of other packages, announced as entry points `structsparse.tasks`.

A task is a package. Its `artifact` module has `KIND`, the value of `kind` in the `model.json` of its models, and
`load(folder, description)`. Its `command` module has `COMMANDS`, the subcommands of `structsparse` for its models.
Modules are imported when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structsparse.base.commands import ModelCommands
    from structsparse.tasks.lm.predictor import LanguageModel
    from structsparse.tasks.parsing.predictor import DependencyParser
    from structsparse.tasks.tagging.predictor import SequenceTagger
    from structsparse.tasks.textcat.predictor import Classifier

    Predictor = SequenceTagger | DependencyParser | LanguageModel | Classifier

GROUP = "structsparse.tasks"  # group of entry points: name of the task = its package
KINDS = {  # `kind` in the model.json of each built-in task; taggers have no `kind`
    "tagging": None,
    "parsing": "parser",
    "lm": "language model",
    "textcat": "classifier",
}


@cache
def packages() -> dict[str, str]:
    """The package of every task, by the name of the task."""
    built_in = {name: f"structsparse.tasks.{name}" for name in KINDS}
    return {entry.name: entry.value for entry in entry_points(group=GROUP)} | built_in


def module(task: str, name: str) -> ModuleType | None:
    """A module of the package of a task; None if the package has no module of this name."""
    full = f"{packages()[task]}.{name}"
    try:
        return import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
        return None


def commands() -> Iterator[tuple[str, ModelCommands]]:
    """Every task whose models have subcommands, with these subcommands."""
    for task in packages():
        command = module(task, "command")
        if command is not None:
            yield task, command.COMMANDS


def task_of(folder: Path) -> str:
    """The task for which a model was trained. `folder` is the folder of the model or of its training run."""
    return _task_and_description(model_folder(folder))[0]


def load(folder: str | Path) -> Predictor:
    """Load a trained model of any task from its folder `model`, or from the folder of its training run.

    Every part is checked before use, and nothing in the folder is executed."""
    folder = model_folder(Path(folder))
    task, description = _task_and_description(folder)
    return module(task, "artifact").load(folder, description)


def model_folder(folder: Path) -> Path:
    """The folder of a model: `folder` itself, or `model` in it if `folder` is the folder of a training run."""
    from structsparse.artifacts.folder import DESCRIPTION

    inner = folder / "model"
    return inner if not (folder / DESCRIPTION).exists() and (inner / DESCRIPTION).exists() else folder


def _task_and_description(folder: Path) -> tuple[str, dict]:
    """The task of a model, and the content of its model.json.

    A model of unknown kind is taken for a tagger, whose loader refuses it."""
    from structsparse.artifacts.folder import read_description

    description = read_description(folder)
    kind = description.get("kind")
    tasks = (task for task in packages() if kind == (KINDS[task] if task in KINDS else _kind(task)))
    return next(tasks, "tagging"), description


def _kind(task: str) -> object:
    """The value of `kind` in model.json for a task that is not built in.

    If the task has no artifacts, an object that equals nothing."""
    artifact = module(task, "artifact")
    return object() if artifact is None else artifact.KIND
