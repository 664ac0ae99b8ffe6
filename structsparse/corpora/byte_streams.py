"""Byte streams of corpora: read files and pipes, whole or in chunks, decompress, and cut into whole lines."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError

Source = str | os.PathLike | BinaryIO
_CHUNK = 1 << 18  # number of bytes in a chunk: some ten thousand tokens
_GZIP = b"\x1f\x8b"  # the first bytes of gzipped data


def name_of(source: Source) -> str:
    """The name of a byte stream for messages: the file name, or "stream" for bytes in memory."""
    if isinstance(source, str | os.PathLike):
        return str(source)
    try:
        return str(source.name)
    except AttributeError:  # a stream without a name, such as io.BytesIO
        return "stream"


def damaged(name: str) -> UserError:
    """The error for a gzipped byte stream that cannot be decompressed."""
    return UserError(f"{name}: the compressed file is cut short or damaged")


def read_bytes(path: Path, expected: str) -> bytes:
    """Read all bytes of a corpus file; `expected` describes the kind of file in error messages."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected {expected}")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected {expected}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_gunzipped(path: Path, expected: str) -> bytes:
    """Read all bytes of a corpus file, decompressed if the file is gzipped."""
    data = read_bytes(path, expected)
    if not data.startswith(_GZIP):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise damaged(str(path)) from None


def chunks(source: Source, expected: str) -> Iterator[bytes]:
    """Read the byte stream of a file or pipe in chunks; each chunk is yielded as soon as it arrives."""
    if not isinstance(source, str | os.PathLike):
        try:
            read = source.read1  # `read1` does not wait for further bytes
        except AttributeError:  # unbuffered stream: `read` does not wait for further bytes
            read = source.read
        while data := read(_CHUNK):
            yield data
        return
    path = Path(source)
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected {expected}")
    try:
        with path.open("rb") as file:
            yield from chunks(file, expected)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected {expected}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def gunzipped(name: str, data: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress the chunks of a byte stream, if the first two bytes mark gzipped data."""
    data = iter(data)
    start = b""
    while len(start) < len(_GZIP) and (chunk := next(data, b"")):
        start += chunk
    if start[: len(_GZIP)] != _GZIP:
        yield start
        yield from data
        return
    decompressor, chunk = zlib.decompressobj(wbits=31), start
    try:
        while chunk:
            yield decompressor.decompress(chunk)
            chunk = decompressor.unused_data
            if chunk:  # a gzip file may consist of several compressed parts (members)
                decompressor = zlib.decompressobj(wbits=31)
            else:
                chunk = next(data, b"")
        if not decompressor.eof:
            raise zlib.error
    except zlib.error:
        raise damaged(name) from None


def whole_lines(data: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Cut a byte stream into pieces of whole lines; yields pairs (piece, whether this is the last piece)."""
    begun: list[bytes] = []
    for chunk in data:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join([*begun, chunk[:end]]), False
            begun = []
        begun.append(chunk[end:])
    yield b"".join(begun), True
