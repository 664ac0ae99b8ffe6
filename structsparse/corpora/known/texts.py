"""Texts with their train, dev and test part, wherever they come from: files, known by name, or what Python carries."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics

from structsparse.base.downloads import DATA_VARIABLE
from structsparse.base.errors import UserError
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.text import Coded, Reading, Text, Vocabulary, coded_lines, read_coded

TUNE = "tune"


@dataclass(frozen=True)
class Texts:
    """Train, dev and test in the vocabulary of train."""

    name: str
    train: Text
    dev: Text
    test: Text
    reading: Reading = field(default_factory=Reading)  # how more text is to be read
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, Text]:
        return {"train": self.train, "dev": self.dev, "test": self.test}

    @property
    def vocabulary(self) -> Vocabulary:
        return self.train.vocabulary

    def describe(self) -> list[str]:
        """What there is to know of the corpus, a line each."""
        size = f"vocabulary: {len(self.vocabulary):,} words that can be predicted, </s> and <unk> among them"
        return [*(f"{part}: {text.describe()}" for part, text in self.parts.items()), size, *self.notes]


def files(
    train: str | None,
    dev: str | None,
    test: str | None,
    sentences: str,
    tokens: str,
    lower: bool,
    classes: bool,
    min_count: int,
    limit: int | None,
    held_out: float,
    name: str = "text",
) -> Texts:
    """Files of text, plain or gzipped; without train the language reference that every CPython carries. What is missing
    of dev and test is held out from the end of train, dev before test."""
    reading = Reading(sentences, tokens, lower, classes)
    first = Reading(sentences, tokens, lower, classes, limit)
    whole = _reference(first) if train is None else read_coded(found(train), first)
    others = {part: path for part, path in (("dev", dev), ("test", test)) if path is not None}
    parts = {part: read_coded(found(path), reading) for part, path in others.items()}
    missing = [part for part in ("dev", "test") if part not in parts]
    return _texts(name, {**_hold_out(whole, held_out, missing, sentences), **parts}, reading, min_count)


def known(
    name: str, sentences: str, tokens: str, lower: bool, classes: bool, min_count: int, limit: int | None
) -> Texts:
    """A corpus that is looked up under STRUCTSPARSE_DATA, in the cache, and at its public home."""
    reading = Reading(sentences, tokens, lower, classes)
    parts = {part: read_coded(path, reading) for part, path in locate(name).items() if part != "train"}
    parts["train"] = read_coded(locate(name)["train"], Reading(sentences, tokens, lower, classes, limit))
    return _texts(name, parts, reading, min_count)


def parts_of(name: str, part: int | str, parts: int, words: Sequence[int], tune_words: Sequence[int]) -> Texts:
    """One of several disjoint train and test parts taken in order from the training text of a known corpus, `words`
    (train, test) each, up to the end of a sentence; `tune` is what follows them. To choose by there is only the test
    text of `tune`: it is the dev text of every part, in the vocabulary of that part."""
    numbers = [*range(1, parts + 1), TUNE]
    if part not in numbers:
        raise UserError(f"data.part is {part!r}, expected one of {', '.join(map(str, numbers))}")
    for key, sizes in (("words", words), ("tune_words", tune_words)):
        if len(sizes) != 2:
            raise UserError(f"data.{key} is {list(sizes)}, expected two numbers: of train and of test")
    whole, cut, begin = read_coded(locate(name)["train"], Reading()), {}, 0
    for number in numbers:
        for kind, size in zip(("train", "test"), words if number != TUNE else tune_words, strict=True):
            end = whole.until(size, begin)
            cut[number, kind] = whole.part(begin, end, f"{kind} of part {number}")
            if cut[number, kind].tokens < max(size, 1):
                raise UserError(f"{name} has too few words for the {kind} text of part {number}; ask for less")
            begin = end
    texts = {"train": cut[part, "train"], "dev": cut[TUNE, "test"], "test": cut[part, "test"]}
    note = "dev and test are the same text: choose by it, report another part" if part == TUNE else (
        "dev is the test text of part tune, on which strengths and weights are chosen; nothing of this part is"
    )  # fmt: skip
    return _texts(f"{name}_parts", texts, Reading(), 1, (note,))


def _reference(reading: Reading) -> Coded:
    source = f"language reference of Python {platform.python_version()}"
    lines = (line for topic in sorted(topics) for line in (*topics[topic].splitlines(), ""))
    return coded_lines(source, ((line, True) for line in lines), reading)


def found(path: str) -> Path:
    """A file or folder here, or below STRUCTSPARSE_DATA."""
    root = os.environ.get(DATA_VARIABLE)
    places = [Path(path).expanduser(), *([Path(root).expanduser() / path] if root else [])]
    for place in places:
        if place.exists():
            return place
    raise UserError(f"{path}: no such file, neither here nor below {DATA_VARIABLE} ({root or 'not set'})")


def _hold_out(whole: Coded, share: float, missing: Sequence[str], sentences: str) -> dict[str, Coded]:
    """train, and for each missing part so much of the end, by words, cut between sentences."""
    if not missing:
        return {"train": whole}
    if not 0 < share * len(missing) < 1:
        raise UserError(f"data.held_out is {share}; without a file for {' or '.join(missing)} it must be above 0 and "
                        f"below {1 / len(missing):g}")  # fmt: skip
    bounds = [whole.until(round(whole.tokens * (1 - share * k))) for k in range(len(missing), 0, -1)]
    bounds = [0, *bounds, len(whole.ends)]
    if any(begin >= end for begin, end in zip(bounds, bounds[1:], strict=False)):
        lines = "" if sentences == "lines" else ", or data.sentences=lines if every line is a sentence"
        raise UserError(
            f"{whole.source}: {share:g} of {len(whole.ends)} sentences leaves nothing for {', '.join(missing)} or to "
            f"train on; give files or another data.held_out{lines}"
        )
    names = "train", *missing
    return {name: whole.part(a, b, name) for name, a, b in zip(names, bounds, bounds[1:], strict=False)}


def _texts(name: str, parts: dict[str, Coded], reading: Reading, min_count: int, notes: tuple[str, ...] = ()) -> Texts:
    vocabulary = parts["train"].vocabulary(min_count)
    return Texts(name, *(parts[part].text(vocabulary) for part in ("train", "dev", "test")), reading, notes)
