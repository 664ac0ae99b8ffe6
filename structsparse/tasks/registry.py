"""The registry of tasks: built-in tasks, and tasks that other packages register as entry points `structsparse.tasks`.

A task is a package. Two of its modules are for trained models:

- `artifact` has the function `load(folder, description)` and the constant `KIND`, the field `kind` of model.json. That
  of the task `SINGLE_FILE` also has `load_file(path)`.
- `command` has `COMMANDS`, the subcommands of `structsparse` for models of the task."""

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
    from structsparse.tasks.embeddings.predictor import VectorTable
    from structsparse.tasks.lm.predictor import LanguageModel
    from structsparse.tasks.parsing.predictor import DependencyParser
    from structsparse.tasks.tagging.predictor import SequenceTagger
    from structsparse.tasks.temporal.predictor import DriftPredictor
    from structsparse.tasks.textcat.predictor import Classifier

    Predictor = SequenceTagger | DependencyParser | LanguageModel | Classifier | VectorTable | DriftPredictor

GROUP = "structsparse.tasks"  # entry point group in which other packages register tasks
KINDS = {  # field `kind` in the model.json of each built-in task; None: no such field
    "tagging": None,
    "parsing": "parser",
    "lm": "language model",
    "textcat": "classifier",
    "embeddings": "word vectors",
    "temporal": "drift model",
}
SINGLE_FILE = "embeddings"  # the task whose models may be a single file: word vectors of other programs


@cache
def packages() -> dict[str, str]:
    """Registry of tasks: the Python package of every task (task name -> package name)."""
    built_in = {name: f"structsparse.tasks.{name}" for name in KINDS}
    return {entry.name: entry.value for entry in entry_points(group=GROUP)} | built_in


def module(task: str, name: str) -> ModuleType | None:
    """Registry of tasks: import a module from the package of a task; None if there is no such module."""
    full = f"{packages()[task]}.{name}"
    try:
        return import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
        return None


def commands() -> Iterator[tuple[str, ModelCommands]]:
    """Registry of tasks: yields the name and the subcommands of each task that has subcommands."""
    for task in packages():
        command = module(task, "command")
        if command is not None:
            yield task, command.COMMANDS


def task_of(folder: Path) -> str:
    """Registry of tasks: the name of the task for which a model was trained.

    `folder` is the folder of the model or of the training run, or a file of word vectors."""
    from structsparse.artifacts.folder import model_folder

    return SINGLE_FILE if folder.is_file() else _task_and_description(model_folder(folder))[0]


def load(folder: str | Path) -> Predictor:
    """Registry of tasks: load a trained model of any task from the folder of the model or of the training run.

    `folder` may also be a file of word vectors from another program, such as word2vec, GloVe or fastText. Every part of
    the model is checked before use. No code from the folder is executed."""
    from structsparse.artifacts.folder import model_folder

    if Path(folder).is_file():
        return module(SINGLE_FILE, "artifact").load_file(Path(folder))
    folder = model_folder(Path(folder))
    task, description = _task_and_description(folder)
    return module(task, "artifact").load(folder, description)


def _task_and_description(folder: Path) -> tuple[str, dict]:
    """Registry of tasks: the task of a trained model, and the content of the file model.json.

    For an unknown kind of model, the task is "tagging", and the loader of taggers then raises an error."""
    from structsparse.artifacts.folder import read_description

    description = read_description(folder)
    kind = description.get("kind")
    tasks = (task for task in packages() if kind == (KINDS[task] if task in KINDS else _kind(task)))
    return next(tasks, "tagging"), description


def _kind(task: str) -> object:
    """Registry of tasks: the value of the field `kind` in model.json for a task from another package.

    For a task without trained models, this is a dummy object that equals no value."""
    artifact = module(task, "artifact")
    return object() if artifact is None else artifact.KIND
