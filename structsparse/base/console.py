"""Console input and output of commands: standard input and output, or the files named by options."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError
from structsparse.base.files import atomic_file


def source(options: argparse.Namespace) -> Path | BinaryIO:
    """Console input of a command: the file given by the option `--input`, or else standard input."""
    return sys.stdin.buffer if options.input is None else options.input


@contextlib.contextmanager
def write_output(options: argparse.Namespace) -> Iterator[BinaryIO]:
    """Console output of a command: the file given by the option `--output`, or else standard output."""
    if options.output is None:
        yield sys.stdout.buffer
    else:
        with atomic_file(options.output) as file:
            yield file


def check_output(path: Path | None) -> None:
    """Refuse a console output path if it is a folder or a device."""
    if path is not None and path.exists() and not path.is_file():
        raise UserError(f"{path}: is not a regular file, expected one that can be replaced")


def note(text: str) -> None:
    """Print a note for the user to the console (standard error)."""
    print(f"note: {text}", file=sys.stderr)
