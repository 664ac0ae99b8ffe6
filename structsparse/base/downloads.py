"""Downloads of known corpora: files identified by name and checksum, found on this machine or downloaded."""

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
    """The folders searched for a corpus before its download: $STRUCTSPARSE_DATA if set, then the cache."""
    data = os.environ.get(DATA_VARIABLE)
    return [*([Path(data).expanduser()] if data else []), cache_folder()]


def find_path(path: str) -> Path:
    """Find a user's file or folder, without download: at the given path, or else below $STRUCTSPARSE_DATA."""
    data = os.environ.get(DATA_VARIABLE)
    candidates = [Path(path).expanduser(), *([Path(data).expanduser() / path] if data else [])]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise UserError(f"{path}: no such file, neither here nor below {DATA_VARIABLE} ({data or 'not set'})")


@dataclass(frozen=True)
class KnownFile:
    """Downloadable file of a known corpus: its name and its checksum."""

    name: str
    sha256: str  # checksum of the decompressed file in UTF-8; a file in Latin-1 is converted first


@dataclass(frozen=True)
class KnownCorpus:
    """Known corpus of a few files, with the URLs for their download."""

    name: str
    folder: str  # name of the corpus folder, below $STRUCTSPARSE_DATA (environment variable) and in the cache
    # URLs, tried one after the other. {file} stands for the file name; text after # is a path in a zip archive.
    urls: tuple[str, ...]  # empty if the corpus cannot be downloaded
    files: Mapping[str, KnownFile]  # the files by split (train, dev, test); a corpus may lack dev
    hint: str = ""  # text appended to the error message for a missing file

    @property
    def at_hand(self) -> bool:
        """Whether all files of a known corpus are on this machine, so that none would be downloaded."""
        folders = data_folders()
        return all(any((f / self.folder / file.name).is_file() for f in folders) for file in self.files.values())

    def locate(self) -> dict[str, Path]:
        """Locate the corpus file of each split: in $STRUCTSPARSE_DATA, else in the cache, else by download."""
        return {split: self._find(file) for split, file in self.files.items()}

    def _find(self, file: KnownFile) -> Path:
        """Path of one file of a known corpus, after a download if the file is not on this machine."""
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
        """Error message for a missing corpus file: why the download failed, and where to put the file."""
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
    """Known corpus of very many files, found as a folder or downloaded as one tar archive."""

    name: str
    folder: str  # name of the corpus folder, below $STRUCTSPARSE_DATA (environment variable) and in the cache
    urls: tuple[str, ...]
    sha256: str  # checksum of the downloaded archive, still compressed
    parts: Mapping[str, str]  # for each subfolder of the corpus folder: {its name: its path in the archive}
    example: str  # path of a file below the corpus folder, for error messages

    def locate(self) -> Path:
        """Locate the folder of an archived corpus: in $STRUCTSPARSE_DATA, else in the cache, else by download."""
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
        """Whether a corpus folder has all subfolders of the downloaded archive."""
        return all((path / part).is_dir() for part in self.parts)

    def _checked(self, data: bytes) -> bytes:
        """Return the bytes of a downloaded archive; raises an error if the checksum is wrong."""
        checksum = hashlib.sha256(data).hexdigest()
        if checksum != self.sha256:
            raise _OtherContent(f"another archive, SHA-256 {checksum[:12]}... where {self.sha256[:12]}... is expected")
        return data

    def _unpack(self, data: bytes, target: Path) -> None:
        """Unpack a downloaded archive into a temporary folder, then rename it to the folder of the corpus."""
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
                if not self._is_complete(target):  # a complete folder was made by another run
                    raise


class _OtherContent(Exception):
    """Error for a completed download whose checksum or content is not the expected one."""


# exceptions that a failed download can raise; OSError covers those of the package `requests`
_FAILURES = OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, _OtherContent


def _fetch(url: str) -> bytes:
    """Download the bytes of a URL; gzip is not decompressed."""
    buffer = io.BytesIO()
    download = pooch.HTTPDownloader(chunk_size=1 << 16, timeout=(10, 60))  # seconds: to connect, to wait for data
    download(url, buffer, None)
    return buffer.getvalue()


def _download(url: str) -> bytes:
    """Download a URL and decompress gzip; a URL `archive#name` means the file `name` in a zip archive."""
    url, _, member = url.partition("#")
    data = _fetch(url)
    if member:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if member not in archive.namelist():
                raise _OtherContent(f"an archive without {member}")
            return archive.read(member)
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _checked(text: bytes, file: KnownFile) -> bytes:
    """Return a downloaded corpus file in UTF-8; raises an error if the checksum is wrong."""
    for candidate in (text, text.decode("latin-1").encode()):
        if hashlib.sha256(candidate).hexdigest() == file.sha256:
            return candidate
    checksum = hashlib.sha256(text).hexdigest()
    raise _OtherContent(f"another text, SHA-256 {checksum[:12]}... where {file.sha256[:12]}... is expected")


def _reason(error: Exception) -> str:
    """The reason of a failed download, in words for the user."""
    if isinstance(error, requests.HTTPError):
        return f"the server answers {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)):
        return "the compressed file is cut short or damaged"
    return str(error)
