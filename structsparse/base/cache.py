"""Disk cache of arrays: the key of an entry is a hash of all inputs from which the arrays are computed.

- An entry is one file: a line of JSON that describes the arrays, then the bytes of the arrays. Both have checksums.
- A new entry is written to a temporary file, which is then renamed. Readers never see half of an entry.
- Entries are memory-mapped. Concurrent runs share this memory.
- When the cache is too large, the least recently used entries are removed."""

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
FORMAT = 1  # version of the file format of cache entries; part of every cache key
_ALIGNMENT = 64  # in a file, arrays begin at multiples of this number of bytes (a CPU cache line)
_ABANDONED = 3600  # age in seconds from which temporary files are deleted, as remains of a killed process
_DTYPES = ("int32", "int64", "uint64")

Arrays = dict[str, np.ndarray]


class Damaged(Exception):
    """Error for a cache entry that does not match its checksums and was therefore removed."""


def cache_folder() -> Path:
    """The cache folder for results and downloads: $STRUCTSPARSE_CACHE, or else `structsparse` in the user's cache."""
    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("structsparse")).expanduser()


def folder() -> Path:
    """The subfolder of the cache folder that holds the cache entries."""
    return cache_folder() / "prepared"


def key(about: Sequence, arrays: Iterable[np.ndarray], code: Iterable[Path] = ()) -> str:
    """Cache key: a hash of the options `about` (as JSON), of input arrays, and of the source files `code`."""
    digest = blake2b(json.dumps([FORMAT, *about]).encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    for path in code:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_megabytes(megabytes: int) -> None:
    """Refuse a cache limit that is not a whole number of megabytes; the value false is accepted as 0."""
    if type(megabytes) not in (int, bool) or megabytes is True or megabytes < 0:
        raise UserError(f"cache is {megabytes}, expected how many megabytes to keep, 0 to turn the cache off")


def _warn(message: str) -> None:
    """Report a problem of the cache as a Python warning."""
    warnings.warn(message, stacklevel=3)


def load_or_make(key: str, make: Callable[[], Arrays], megabytes: int, report: Callable[[str], None] = _warn) -> Arrays:
    """Load the arrays of a cache entry; without an entry, compute the arrays with `make` and store them.

    `megabytes` limits the size of the whole cache; 0 turns the cache off. `report` is called with a message if an entry
    is damaged or cannot be written."""
    check_megabytes(megabytes)
    if not megabytes:
        return make()
    try:
        if (arrays := load(key)) is not None:
            return arrays
    except Damaged as damage:
        report(f"cache: {damage}; computed again")
    arrays = make()
    try:
        store(key, arrays, megabytes << 20)
    except OSError as error:
        path = error.filename2 or error.filename or folder()
        report(f"cache: {path} cannot be written ({error.strerror}); the next run computes it again")
    return arrays


def load(key: str) -> Arrays | None:
    """Load the arrays of a cache entry; None if there is no entry.

    Changes to the arrays do not change the file. A damaged entry is removed, and the error Damaged is raised."""
    path = folder() / key
    try:
        with path.open("rb") as file:
            arrays = _decoded(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError:  # there is no entry, or the entry cannot be read
        return None
    except ValueError as error:  # the entry is damaged, or the file is empty
        with contextlib.suppress(OSError):
            path.unlink()
        raise Damaged(f"{path} is damaged ({error}) and was removed") from None
    with contextlib.suppress(OSError):
        os.utime(path)  # set the time of last use, by which entries are evicted
    return arrays


def store(key: str, arrays: Mapping[str, np.ndarray], limit: int) -> None:
    """Write a cache entry, then evict other entries until all entries take at most `limit` bytes.

    Arrays that together exceed the limit are not stored. A failed write raises OSError."""
    if sum(array.nbytes for array in arrays.values()) > limit:
        return
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder(), prefix=".", delete=False) as file:
        temporary = Path(file.name)
        try:
            _write(file, arrays)
            file.close()
            temporary.chmod(0o644)
            temporary.replace(folder() / key)  # no fsync: checksums detect a file damaged by a crash
        finally:
            temporary.unlink(missing_ok=True)
    _evict(key, limit)


def _write(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file of a cache entry: a line of JSON that describes the arrays, then the bytes of the arrays."""
    size, contents = 0, {}
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"{name} is {array.dtype}, expected one of {', '.join(_DTYPES)}")
        start = _aligned(size)
        contents[name] = array.dtype.name, len(array), start, zlib.crc32(_bytes(array))
        size = start + array.nbytes
    head = json.dumps({"bytes": size, "arrays": contents}).encode()
    line = b"%08x %s\n" % (zlib.crc32(head), head)
    begin = _aligned(len(line))
    file.write(line.ljust(begin, b"\0"))
    for name, array in arrays.items():
        file.write(b"\0" * (begin + contents[name][2] - file.tell()))
        file.write(_bytes(array))


def _decoded(entry: mmap.mmap) -> Arrays:
    """Read the arrays of a memory-mapped cache entry; raises ValueError if the entry is damaged."""
    end = entry.find(b"\n") + 1
    head = entry[9 : end - 1]
    if entry[:9] != b"%08x " % zlib.crc32(head):
        raise ValueError("its first line is not what was written")
    description, begin = json.loads(head), _aligned(end)
    if len(entry) != begin + description["bytes"]:
        raise ValueError(f"{len(entry):,} bytes, {begin + description['bytes']:,} were written")
    arrays = {}
    for name, (dtype, length, start, checksum) in description["arrays"].items():
        arrays[name] = np.frombuffer(entry, dtype, length, begin + start)
        if zlib.crc32(_bytes(arrays[name])) != checksum:
            raise ValueError(f"{name} is not what was written")
    return arrays


def _bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array for a cache entry; a contiguous array is not copied."""
    return np.ascontiguousarray(array).view(np.uint8).data


def _aligned(size: int) -> int:
    """Round a position (in bytes) in a cache file up to a multiple of the alignment."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _evict(newest: str, limit: int) -> None:
    """Remove the least recently used cache entries beyond `limit` bytes, and old temporary files.

    The entry with the key `newest` is never removed."""
    now, entries = time.time(), []
    for path in folder().iterdir():
        with contextlib.suppress(OSError):  # another process may have removed the file
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
