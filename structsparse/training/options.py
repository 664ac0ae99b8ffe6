"""Command-line options: refuse old names and name the new ones; replace `preset=fast` by the preset of the task."""

from __future__ import annotations

from collections.abc import Sequence

from structsparse.base.configuration import configuration_folder
from structsparse.base.errors import UserError

DEFAULT_TASK = "ner"  # the task of a command line without task=
SIZES = "fast", "accurate", "small"  # presets that each task defines for itself
GROUPS = {"method": "preset", "tuned": "preset"}  # renamed configuration groups: old name -> new name
KEYS = {"features.alpha": "model.alpha", "features.tolerance": "solver.tolerance"}
CHOICES = {
    "reg=lasso_words": "task=textcat reg=l1 (its reg.lasso is reg.strength)",
    "reg=ridge_words": "task=textcat reg=l2 (its reg.squares is reg.strength)",
    "reg=elastic_words": "task=textcat reg=elastic_net (strength * (mix * l1 + (1 - mix) / 2 * squares)), or "
    "reg=structured reg.groups=null reg.group=0 with reg.lasso and reg.squares",
    "reg=ridge_frequency": "reg=structured reg.groups=null reg.group=0 reg.lasso=0 reg.squares=0.01 "
    "reg.frequency=documents",
}


def check_options(arguments: Sequence[str]) -> None:
    """Refuse renamed command-line options of earlier versions; the error message gives the new spelling."""
    for argument in arguments:
        key, _, value = argument.lstrip("+~").partition("=")
        if key == "experiment":
            raise UserError(
                f"experiment={value} is no option of a run; the command that runs this table is: "
                f"python -m benchmarks.harness {value}"
            )
        if key in GROUPS:
            raise UserError(f"{key}={value} is called {GROUPS[key]}={value} now")
        if key in KEYS:
            raise UserError(f"{key} is called {KEYS[key]} now")
        if f"{key}={value}" in CHOICES:
            raise UserError(f"{key}={value} is called {CHOICES[f'{key}={value}']} now")


def expanded(arguments: Sequence[str]) -> list[str]:
    """Command-line options, where the preset of the task replaces `preset=fast`, `accurate` or `small`."""
    task = next((a.partition("=")[2] for a in arguments if a.startswith("task=")), DEFAULT_TASK)
    presets = {f"preset={size}": f"preset={task}_{size}" for size in SIZES}
    return [presets.get(argument, argument) for argument in arguments]


def other_presets(task: str, preset: str) -> list[str]:
    """Command-line options: lines about the presets fast, accurate and small of a task, except the one that is used.

    The line of a preset is the first comment in its yaml file, after `# @package`."""
    files = [configuration_folder() / "preset" / f"{task}_{size}.yaml" for size in SIZES]
    found = [file.read_text(encoding="utf-8") for file in files if file.exists() and file.stem != preset]
    return [text.splitlines()[1].lstrip("# ") for text in found]
