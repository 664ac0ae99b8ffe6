"""Declarations of commands: classes in which each task describes its subcommands, with help texts and arguments.

The module in which a task declares subcommands imports heavy modules only when a subcommand runs, so that `--help`
answers at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Argument:
    """Declaration of one argument of commands: names, and keyword arguments of argparse's `add_argument`."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Argument of commands: the attribute of the parsed options that holds the value."""
        return self.settings.get("dest") or self.names[0].lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """Argument of commands: the name in messages, `--nbest`, or `FILE` for a positional argument."""
        return self.names[0] if self.names[0].startswith("-") else self.settings.get("metavar", self.names[0])


def argument(*names: str, **settings: Any) -> Argument:
    """Declare an argument of commands, with the parameters of argparse's `add_argument`."""
    return Argument(names, settings)


@dataclass(frozen=True)
class Subcommand:
    """Declaration by one task of a command: `run(options, model)`, help, examples, additional arguments."""

    name: str
    run: Callable[[argparse.Namespace, Any], None]
    description: str
    examples: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    purpose: str = ""  # one line of help; empty for predict and evaluate, whose help all tasks share


@dataclass(frozen=True)
class ModelCommands:
    """Declarations of all commands for the models of one task, and names of the models for messages."""

    singular: str  # "a tagger"
    plural: str  # "taggers"
    subcommands: tuple[Subcommand, ...]


OUTPUT = argument(
    "--output", metavar="FILE", type=Path, help="written completely or not at all (default: standard output)"
)


def positive_int(text: str) -> int:
    """Type of arguments of commands: parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def nonnegative_int(text: str) -> int:
    """Type of arguments of commands: parse a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def positive_float(text: str) -> float:
    """Type of arguments of commands: parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value
