"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Write beside, flush to the disk, rename. A full disk leaves what was there before, and says so."""
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
    with written_whole(path) as file:
        file.write(text.encode("utf-8"))
