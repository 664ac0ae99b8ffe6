"""What took minutes to find in a text is kept for the next run that asks for the same."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from structsparse.corpora import cache
from structsparse.errors import UserError


def key(about: Sequence, arrays: Iterable[np.ndarray], code: Iterable[Path] = ()) -> str:
    """Changes with everything that can change the outcome, and with the code that makes it."""
    digest = blake2b(json.dumps([cache.FORMAT, *about]).encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    for path in code:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kept(key: str, make: Callable[[], dict[str, np.ndarray]], megabytes: int) -> dict[str, np.ndarray]:
    """The arrays under this key, or else made now and kept among up to so many megabytes; 0: nothing is kept."""
    if type(megabytes) not in (int, bool) or megabytes is True or megabytes < 0:
        raise UserError(f"cache is {megabytes}, expected how many megabytes to keep, 0 for none")
    if not megabytes:
        return make()
    try:
        if (arrays := cache.load(key)) is not None:
            return arrays
    except cache.Damaged as damaged:
        warnings.warn(f"cache: {damaged}; made anew", stacklevel=2)
    made = make()
    try:
        cache.store(key, made, megabytes << 20)
    except OSError as error:
        place = error.filename2 or error.filename or cache.folder()
        warnings.warn(f"cache: {place} cannot be written ({error.strerror}); the next run makes it anew", stacklevel=2)
    return made
