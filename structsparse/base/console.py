"""Where commands read and write."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError
from structsparse.base.files import written_whole


def source(options: argparse.Namespace) -> Path | BinaryIO:
    return sys.stdin.buffer if options.input is None else options.input


@contextlib.contextmanager
def write_output(options: argparse.Namespace) -> Iterator[BinaryIO]:
    """The file that is asked for, whole or not at all, or standard output."""
    if options.output is None:
        yield sys.stdout.buffer
    else:
        with written_whole(options.output) as file:
            yield file


def check_output(path: Path | None) -> None:
    """Refuse an output path that is not a file."""
    if path is not None and path.exists() and not path.is_file():
        raise UserError(f"{path}: is no regular file, expected one that can be replaced")


def note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
