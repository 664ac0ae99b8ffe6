"""Declarations of commands: classes with which each task declares its subcommands, help texts and arguments.

Modules with such declarations import heavy modules only when a subcommand runs. This keeps `--help` fast."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Argument:
    """Declaration of a command argument: its names, and the keyword arguments for argparse's `add_argument`."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Command argument: the name of the attribute that holds the value in the options parsed by argparse."""
        return self.settings.get("dest") or self.names[0].lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """Command argument: the name in messages, such as `--nbest`, or `FILE` for a positional argument."""
        return self.names[0] if self.names[0].startswith("-") else self.settings.get("metavar", self.names[0])


def argument(*names: str, **settings: Any) -> Argument:
    """Declare a command argument, with the parameters of argparse's `add_argument`."""
    return Argument(names, settings)


@dataclass(frozen=True)
class Subcommand:
    """Declaration of a command by one task: the function `run(options, model)`, help, examples and arguments."""

    name: str
    run: Callable[[argparse.Namespace, Any], None]
    description: str
    examples: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    purpose: str = ""  # one line of help; empty for predict and evaluate, where all tasks share the line
    own_data: bool = False  # whether FILE may be left out, because the task knows data of its own


@dataclass(frozen=True)
class ModelCommands:
    """Declarations of all commands of one task, and the nouns by which messages name its models."""

    singular: str  # "a tagger"
    plural: str  # "taggers"
    subcommands: tuple[Subcommand, ...]


OUTPUT = argument(
    "--output", metavar="FILE", type=Path, help="written completely or not at all (default: standard output)"
)


def positive_int(text: str) -> int:
    """Type of a command argument: parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def nonnegative_int(text: str) -> int:
    """Type of a command argument: parse a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def positive_float(text: str) -> float:
    """Type of a command argument: parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value
