"""Files known by name and checksum: where they are looked for, and how they are downloaded."""

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
from structsparse.base.files import written_whole

DATA_VARIABLE = "STRUCTSPARSE_DATA"


@dataclass(frozen=True)
class KnownFile:
    name: str
    sha256: str  # of the unpacked text as UTF-8 bytes; Latin-1 is rewritten in UTF-8 before it is compared


@dataclass(frozen=True)
class KnownCorpus:
    """The files of one corpus; `locate` finds or fetches them."""

    name: str
    folder: str  # below STRUCTSPARSE_DATA and below the cache
    # public homes, tried in this order; {file} stands for the name of a file, what follows # is a file in a zip
    urls: tuple[str, ...]  # none: the corpus cannot be downloaded
    files: Mapping[str, KnownFile]  # those that there are of train, dev and test
    hint: str = ""  # what else there is to say where a file is missing

    def locate(self) -> dict[str, Path]:
        """The file of each split: below STRUCTSPARSE_DATA, else in the cache, else fetched to the cache."""
        return {split: self._find(file) for split, file in self.files.items()}

    def _find(self, file: KnownFile) -> Path:
        places = [root / self.folder / file.name for root in roots()]
        for place in places:
            if place.is_file():
                return place
        failures = []
        for url in self.urls:
            url = url.format(file=file.name)
            try:
                text = _checked(_download(url), file)
            except FAILURES as error:
                failures.append(f"{url}: {_reason(error)}")
            else:
                with written_whole(places[-1]) as whole:
                    whole.write(text)
                return places[-1]
        raise UserError(self._missing(file, failures, places[-1]))

    def _missing(self, file: KnownFile, failures: list[str], cached: Path) -> str:
        others = ", ".join(other.name for other in self.files.values() if other is not file)
        data = f"{DATA_VARIABLE}/{self.folder}/{file.name}"
        now = os.environ.get(DATA_VARIABLE) or "not set"
        fetched = f"its download failed ({'; '.join(failures)})" if self.urls else "it is not fetched"
        return (
            f"corpus {self.name}: no {file.name}, and {fetched}; "
            f"put it at {data} ({DATA_VARIABLE}: {now}) or at {cached}, beside {others}{self.hint}"
        )


@dataclass(frozen=True)
class KnownArchive:
    """A corpus of very many files, found as a folder or fetched as one tar."""

    name: str
    folder: str  # below STRUCTSPARSE_DATA and below the cache
    urls: tuple[str, ...]
    sha256: str  # of the tar as it is served
    parts: Mapping[str, str]  # each folder that is wanted, and what it is called in the tar
    example: str  # where a file of it is

    def locate(self) -> Path:
        """The folder with all its parts: below STRUCTSPARSE_DATA, else in the cache, else fetched to the cache."""
        places = [root / self.folder for root in roots()]
        for place in places:
            if self._whole(place):
                return place
        failures = []
        for url in self.urls:
            try:
                self._unpack(self._checked(_received(url)), places[-1])
            except FAILURES as error:
                failures.append(f"{url}: {_reason(error)}")
            else:
                return places[-1]
        now = os.environ.get(DATA_VARIABLE) or "not set"
        raise UserError(
            f"corpus {self.name}: no {' and '.join(self.parts)}, and its download failed ({'; '.join(failures)}); put "
            f"its files at {DATA_VARIABLE}/{self.folder}/{self.example} ({DATA_VARIABLE}: {now}) or below {places[-1]}"
        )

    def _whole(self, place: Path) -> bool:
        return all((place / part).is_dir() for part in self.parts)

    def _checked(self, data: bytes) -> bytes:
        seen = hashlib.sha256(data).hexdigest()
        if seen != self.sha256:
            raise _WrongText(f"another archive, SHA-256 {seen[:12]}... where {self.sha256[:12]}... is expected")
        return data

    def _unpack(self, data: bytes, place: Path) -> None:
        """Beside, then renamed: nobody finds half of it."""
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".") as temporary:
            whole = Path(temporary) / self.folder
            whole.mkdir()
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.extractall(temporary, filter="data")
            for part, inside in self.parts.items():
                (Path(temporary) / inside).rename(whole / part)
            try:
                whole.rename(place)
            except OSError:
                if not self._whole(place):  # no other run was faster
                    raise


class _WrongText(Exception):
    """What came is whole but is not the text expected."""


FAILURES = OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, _WrongText  # requests raises OSErrors


def roots() -> list[Path]:
    """The folders that corpora are looked for in, the cache last."""
    data = os.environ.get(DATA_VARIABLE)
    return [*([Path(data).expanduser()] if data else []), cache_folder()]


def _received(url: str) -> bytes:
    """The bytes behind a URL."""
    received = io.BytesIO()
    download = pooch.HTTPDownloader(chunk_size=1 << 16, timeout=(10, 60))  # seconds to connect, between bytes
    download(url, received, None)
    return received.getvalue()


def _download(url: str) -> bytes:
    """The bytes behind a URL, unpacked if they are gzipped; behind url#member those of a file in a zip."""
    url, _, member = url.partition("#")
    data = _received(url)
    if member:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if member not in archive.namelist():
                raise _WrongText(f"an archive without {member}")
            return archive.read(member)
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _checked(text: bytes, file: KnownFile) -> bytes:
    """The text in UTF-8, if it is the one that the checksum is of."""
    for candidate in (text, text.decode("latin-1").encode()):
        if hashlib.sha256(candidate).hexdigest() == file.sha256:
            return candidate
    seen = hashlib.sha256(text).hexdigest()
    raise _WrongText(f"another text, SHA-256 {seen[:12]}... where {file.sha256[:12]}... is expected")


def _reason(error: Exception) -> str:
    """Why a download failed, without the innards that connection errors carry."""
    if isinstance(error, requests.HTTPError):
        return f"the server answers {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)):
        return "the compressed file is cut short or damaged"
    return str(error)
