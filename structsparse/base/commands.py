"""Declarations of subcommands: how each task describes its subcommands of `structsparse`, with help and arguments.

A task's `command` module imports nothing heavy before a subcommand runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Argument:
    """An argument of a subcommand: its names, and the keyword arguments of argparse's `add_argument`."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The name of the attribute of the parsed options that holds the value of the argument."""
        return self.settings.get("dest") or self.names[0].lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """The name of the argument in messages: `--nbest`, or `FILE` for a positional argument."""
        return self.names[0] if self.names[0].startswith("-") else self.settings.get("metavar", self.names[0])


def argument(*names: str, **settings: Any) -> Argument:
    """Make an argument from the parameters of argparse's `add_argument`."""
    return Argument(names, settings)


@dataclass(frozen=True)
class Subcommand:
    """The contribution of one task to a subcommand: `run(options, model)`, help, examples, additional arguments."""

    name: str
    run: Callable[[argparse.Namespace, Any], None]
    description: str
    examples: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    purpose: str = ""  # one line of help; predict and evaluate, which all tasks share, have theirs elsewhere


@dataclass(frozen=True)
class ModelCommands:
    """The subcommands for the models of one task, and the name of these models in messages: "a tagger", "taggers"."""

    singular: str
    plural: str
    subcommands: tuple[Subcommand, ...]


OUTPUT = argument(
    "--output", metavar="FILE", type=Path, help="written completely or not at all (default: standard output)"
)


def positive_int(text: str) -> int:
    """Parse a command-line argument that is a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def nonnegative_int(text: str) -> int:
    """Parse a command-line argument that is a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def positive_float(text: str) -> float:
    """Parse a command-line argument that is a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value
