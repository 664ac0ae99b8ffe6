"""Arrays that are dear to make, kept under the cache directory and found again by what they were made from.

An entry is a file: a line that says what is in it, then the arrays as they lie in memory, all under checksums. It is
written beside and renamed, so nobody ever finds half of it, and two runs that make the same at once write the same. It
is mapped, not read: runs side by side share its memory. The entries used the longest ago go when there is too much.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pooch

from structsparse.base.errors import UserError

CACHE_VARIABLE = "STRUCTSPARSE_CACHE"
FORMAT = 1  # a part of every key
_ALIGNED = 64  # bytes: a cache line
_ABANDONED = 3600  # seconds after which nobody goes on with a half-written file
_KINDS = ("int32", "int64", "uint64")


class Damaged(Exception):
    """An entry was not what had been written; it is gone."""


def cache_folder() -> Path:
    """STRUCTSPARSE_CACHE, or where the platform keeps what can be made again."""
    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("structsparse")).expanduser()


def folder() -> Path:
    return cache_folder() / "prepared"


def load(key: str) -> dict[str, np.ndarray] | None:
    """The arrays kept under this key, None if there are none; who writes to them changes his own copy."""
    path = folder() / key
    try:
        with path.open("rb") as file:
            arrays = _arrays(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError:  # there is none, or none that can be read
        return None
    except ValueError as error:  # also of an empty file, which cannot be mapped
        with contextlib.suppress(OSError):
            path.unlink()
        raise Damaged(f"{path} is damaged ({error}) and was removed") from None
    with contextlib.suppress(OSError):
        os.utime(path)  # used just now
    return arrays


def store(key: str, arrays: Mapping[str, np.ndarray], limit: int) -> None:
    """Keep the arrays, and of all entries no more than `limit` bytes. Raises OSError."""
    if sum(array.nbytes for array in arrays.values()) > limit:
        return
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder(), prefix=".", delete=False) as file:
        temporary = Path(file.name)
        try:
            _write(file, arrays)
            file.close()
            temporary.chmod(0o644)
            temporary.replace(folder() / key)  # never flushed to the disk: checksums tell what a crash leaves behind
        finally:
            temporary.unlink(missing_ok=True)
    _trim(key, limit)


def _write(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    place, contents = 0, {}
    for name, array in arrays.items():
        if array.dtype.name not in _KINDS:
            raise TypeError(f"{name} is {array.dtype}, expected one of {', '.join(_KINDS)}")
        place = _aligned(place)
        contents[name] = array.dtype.name, len(array), place, zlib.crc32(_bytes(array))
        place += array.nbytes
    head = json.dumps({"bytes": place, "arrays": contents}).encode()
    line = b"%08x %s\n" % (zlib.crc32(head), head)
    begin = _aligned(len(line))
    file.write(line.ljust(begin, b"\0"))
    for name, array in arrays.items():
        file.write(b"\0" * (begin + contents[name][2] - file.tell()))
        file.write(_bytes(array))


def _arrays(whole: mmap.mmap) -> dict[str, np.ndarray]:
    """The arrays of a mapped entry; a ValueError says what is wrong with it."""
    end = whole.find(b"\n") + 1
    head = whole[9 : end - 1]
    if whole[:9] != b"%08x " % zlib.crc32(head):
        raise ValueError("its first line is not what was written")
    described, begin = json.loads(head), _aligned(end)
    if len(whole) != begin + described["bytes"]:
        raise ValueError(f"{len(whole):,} bytes, {begin + described['bytes']:,} were written")
    found = {}
    for name, (kind, length, place, checksum) in described["arrays"].items():
        found[name] = np.frombuffer(whole, kind, length, begin + place)
        if zlib.crc32(_bytes(found[name])) != checksum:
            raise ValueError(f"{name} is not what was written")
    return found


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).data


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED


def _trim(newest: str, limit: int) -> None:
    """Remove the entries used the longest ago, never the newest, and what killed writers have left."""
    now, entries = time.time(), []
    for path in folder().iterdir():
        with contextlib.suppress(OSError):  # somebody else may have removed it
            state = path.stat()
            if path.name.startswith("."):
                if now - state.st_mtime > _ABANDONED:
                    path.unlink()
            else:
                entries.append((path.name != newest, -state.st_mtime_ns, state.st_size, path))
    total = 0
    for _, _, size, path in sorted(entries):
        total += size
        if total > limit:
            with contextlib.suppress(OSError):
                path.unlink()


def key(about: Sequence, arrays: Iterable[np.ndarray], code: Iterable[Path] = ()) -> str:
    """Changes with everything that can change the outcome, and with the code that makes it."""
    digest = blake2b(json.dumps([FORMAT, *about]).encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    for path in code:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def load_or_make(key: str, make: Callable[[], dict[str, np.ndarray]], megabytes: int) -> dict[str, np.ndarray]:
    """The arrays under this key, or else made now and kept among up to so many megabytes; 0: nothing is kept."""
    if type(megabytes) not in (int, bool) or megabytes is True or megabytes < 0:
        raise UserError(f"cache is {megabytes}, expected how many megabytes to keep, 0 for none")
    if not megabytes:
        return make()
    try:
        if (arrays := load(key)) is not None:
            return arrays
    except Damaged as damaged:
        warnings.warn(f"cache: {damaged}; made anew", stacklevel=2)
    made = make()
    try:
        store(key, made, megabytes << 20)
    except OSError as error:
        place = error.filename2 or error.filename or folder()
        warnings.warn(f"cache: {place} cannot be written ({error.strerror}); the next run makes it anew", stacklevel=2)
    return made
