"""Atomic file writing: a file is written completely, or the old file stays."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Atomic file writing: context manager that yields a binary file, which replaces `path` if no error occurs.

    The file is written under a temporary name, flushed to the disk and renamed. Missing folders are made."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise UserError(
            f"{path} could not be written ({error.strerror or error}); what was there before is kept"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 atomically: the whole text is written, or the old file stays."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))
