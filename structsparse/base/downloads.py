"""Known corpora: files identified by name and checksum, found on this machine or downloaded."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pooch
import requests

from structsparse.base.cache import cache_folder
from structsparse.base.errors import UserError
from structsparse.base.files import atomic_file

DATA_VARIABLE = "STRUCTSPARSE_DATA"


def data_folders() -> list[Path]:
    """The folders where corpora are looked up: STRUCTSPARSE_DATA if it is set, then the cache."""
    data = os.environ.get(DATA_VARIABLE)
    return [*([Path(data).expanduser()] if data else []), cache_folder()]


def find_path(path: str) -> Path:
    """The path of a file or folder that the user has named: as given, or below STRUCTSPARSE_DATA."""
    data = os.environ.get(DATA_VARIABLE)
    candidates = [Path(path).expanduser(), *([Path(data).expanduser() / path] if data else [])]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise UserError(f"{path}: no such file, neither here nor below {DATA_VARIABLE} ({data or 'not set'})")


@dataclass(frozen=True)
class KnownFile:
    """A file of a known corpus, with its checksum."""

    name: str
    sha256: str  # checksum of the decompressed text in UTF-8; a text in Latin-1 is converted first


@dataclass(frozen=True)
class KnownCorpus:
    """A known corpus of a few files, with the URLs from which they can be downloaded."""

    name: str
    folder: str  # below STRUCTSPARSE_DATA and below the cache
    # URLs are tried in this order; {file} stands for the name of a file, a part after # names a file in a zip archive
    urls: tuple[str, ...]  # if empty, the corpus cannot be downloaded
    files: Mapping[str, KnownFile]  # by split: train, dev, test, if the corpus has them
    hint: str = ""  # the end of the error message for a missing file

    def locate(self) -> dict[str, Path]:
        """The file of each split: below STRUCTSPARSE_DATA, else in the cache, else downloaded to the cache."""
        return {split: self._find(file) for split, file in self.files.items()}

    def _find(self, file: KnownFile) -> Path:
        """The path of a corpus file, which is downloaded if it is not on this machine."""
        paths = [folder / self.folder / file.name for folder in data_folders()]
        for path in paths:
            if path.is_file():
                return path
        failures = []
        for url in self.urls:
            url = url.format(file=file.name)
            try:
                text = _checked(_download(url), file)
            except _FAILURES as error:
                failures.append(f"{url}: {_reason(error)}")
            else:
                with atomic_file(paths[-1]) as download:
                    download.write(text)
                return paths[-1]
        raise UserError(self._missing(file, failures, paths[-1]))

    def _missing(self, file: KnownFile, failures: list[str], cached: Path) -> str:
        """The error message for a missing corpus file: the reason, and where to put the file."""
        companions = ", ".join(other.name for other in self.files.values() if other is not file)
        data = f"{DATA_VARIABLE}/{self.folder}/{file.name}"
        value = os.environ.get(DATA_VARIABLE) or "not set"
        reason = f"its download failed ({'; '.join(failures)})" if self.urls else "it cannot be downloaded"
        return (
            f"corpus {self.name}: no {file.name}, and {reason}; "
            f"put it at {data} ({DATA_VARIABLE}: {value}) or at {cached}, beside {companions}{self.hint}"
        )


@dataclass(frozen=True)
class KnownArchive:
    """A known corpus of very many files, found as a folder or downloaded as one tar archive."""

    name: str
    folder: str  # below STRUCTSPARSE_DATA and below the cache
    urls: tuple[str, ...]
    sha256: str  # checksum of the archive as the server sends it
    parts: Mapping[str, str]  # folders of the corpus that are used: {name: path in the archive}
    example: str  # the path of a file of the corpus, for error messages

    def locate(self) -> Path:
        """The folder with all parts: below STRUCTSPARSE_DATA, else in the cache, else downloaded to the cache."""
        paths = [folder / self.folder for folder in data_folders()]
        for path in paths:
            if self._is_complete(path):
                return path
        failures = []
        for url in self.urls:
            try:
                self._unpack(self._checked(_fetch(url)), paths[-1])
            except _FAILURES as error:
                failures.append(f"{url}: {_reason(error)}")
            else:
                return paths[-1]
        value = os.environ.get(DATA_VARIABLE) or "not set"
        raise UserError(
            f"corpus {self.name}: no {' and '.join(self.parts)}, and its download failed ({'; '.join(failures)}); put "
            f"its files at {DATA_VARIABLE}/{self.folder}/{self.example} ({DATA_VARIABLE}: {value}) or below {paths[-1]}"
        )

    def _is_complete(self, path: Path) -> bool:
        """Whether a corpus folder has all parts."""
        return all((path / part).is_dir() for part in self.parts)

    def _checked(self, data: bytes) -> bytes:
        """The bytes of the archive, if they have the expected checksum."""
        checksum = hashlib.sha256(data).hexdigest()
        if checksum != self.sha256:
            raise _OtherContent(f"another archive, SHA-256 {checksum[:12]}... where {self.sha256[:12]}... is expected")
        return data

    def _unpack(self, data: bytes, target: Path) -> None:
        """Unpack the archive of a corpus to a temporary folder and rename it."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as temporary:
            corpus = Path(temporary) / self.folder
            corpus.mkdir()
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.extractall(temporary, filter="data")
            for part, inside in self.parts.items():
                (Path(temporary) / inside).rename(corpus / part)
            try:
                corpus.rename(target)
            except OSError:
                if not self._is_complete(target):  # else another run was faster
                    raise


class _OtherContent(Exception):
    """Error for a complete download whose checksum is not the expected one."""


# the exceptions of a failed download; those of requests are OSErrors
_FAILURES = OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, _OtherContent


def _fetch(url: str) -> bytes:
    """Download the bytes of a URL, as the server sends them."""
    buffer = io.BytesIO()
    download = pooch.HTTPDownloader(chunk_size=1 << 16, timeout=(10, 60))  # seconds to connect, and between bytes
    download(url, buffer, None)
    return buffer.getvalue()


def _download(url: str) -> bytes:
    """Download a URL and decompress gzip; for url#member, the file `member` of a zip archive."""
    url, _, member = url.partition("#")
    data = _fetch(url)
    if member:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if member not in archive.namelist():
                raise _OtherContent(f"an archive without {member}")
            return archive.read(member)
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _checked(text: bytes, file: KnownFile) -> bytes:
    """The downloaded text in UTF-8, if it has the checksum of the corpus file; otherwise an error."""
    for candidate in (text, text.decode("latin-1").encode()):
        if hashlib.sha256(candidate).hexdigest() == file.sha256:
            return candidate
    checksum = hashlib.sha256(text).hexdigest()
    raise _OtherContent(f"another text, SHA-256 {checksum[:12]}... where {file.sha256[:12]}... is expected")


def _reason(error: Exception) -> str:
    """Why a download failed, in words, without the internals of connection errors."""
    if isinstance(error, requests.HTTPError):
        return f"the server answers {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)):
        return "the compressed file is cut short or damaged"
    return str(error)
