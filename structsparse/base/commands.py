"""Subcommands of `structsparse` that use a model, as each task declares them: help texts and arguments.

A task's `command` module imports nothing heavy before a subcommand runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Argument:
    """An argument of a subcommand: its names and what else argparse's `add_argument` takes."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The attribute of the parsed options that holds its value."""
        return self.settings.get("dest") or self.names[0].lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """Its name in messages: `--nbest`, or `FILE` if it has no dashes."""
        return self.names[0] if self.names[0].startswith("-") else self.settings.get("metavar", self.names[0])


def argument(*names: str, **settings: Any) -> Argument:
    """An argument, written as for argparse's `add_argument`."""
    return Argument(names, settings)


@dataclass(frozen=True)
class Subcommand:
    """What one kind of model contributes to a subcommand: `run(options, model)`, help, examples, its own arguments."""

    name: str
    run: Callable[[argparse.Namespace, Any], None]
    description: str
    examples: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    purpose: str = ""  # one line, unless the subcommand is predict or evaluate, which every kind of model has


@dataclass(frozen=True)
class ModelCommands:
    """The subcommands for one kind of model, and its name in messages: "a tagger", "taggers"."""

    singular: str
    plural: str
    subcommands: tuple[Subcommand, ...]


OUTPUT = argument(
    "--output", metavar="FILE", type=Path, help="written completely or not at all (default: standard output)"
)


def positive_int(text: str) -> int:
    """The type of an argument that is a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def nonnegative_int(text: str) -> int:
    """The type of an argument that is a whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def positive_float(text: str) -> float:
    """The type of an argument that is a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value
