"""Known texts for language models in train, dev and test: corpora by name, the user's files, or parts of a corpus."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pydoc_data.topics import topics

from structsparse.base.downloads import find_path
from structsparse.base.errors import UserError
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.text import EncodedText, ProvisionalText, Vocabulary, coded_lines, read_coded
from structsparse.corpora.text_reading import TextReading

TUNE = "tune"  # name of the part of a corpus for choosing penalty strengths and group weights


@dataclass(frozen=True)
class TextSplits:
    """A known text corpus for language models: train, dev and test in the vocabulary of train."""

    name: str
    train: EncodedText
    dev: EncodedText
    test: EncodedText
    reading: TextReading = field(default_factory=TextReading)  # rules for reading this corpus and new texts
    notes: tuple[str, ...] = ()  # notes for the user

    @property
    def parts(self) -> dict[str, EncodedText]:
        """The texts of a known corpus, as a dictionary with the keys train, dev and test."""
        return {"train": self.train, "dev": self.dev, "test": self.test}

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of a known text corpus, made from the train text."""
        return self.train.vocabulary

    def describe(self) -> list[str]:
        """Lines for the user about a text corpus: train, dev and test, the size of the vocabulary, and notes."""
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
) -> TextSplits:
    """Known texts for language models: the user's own files, plain or gzipped (data=text).

    Without a train file, the train text is the language reference of Python. A missing dev or test text is cut off from
    the end of train (dev before test)."""
    reading = TextReading(sentences, tokens, lower, classes)
    limited = TextReading(sentences, tokens, lower, classes, limit)
    first = _language_reference(limited) if train is None else read_coded(find_path(train), limited)
    paths = {part: path for part, path in (("dev", dev), ("test", test)) if path is not None}
    parts = {part: read_coded(find_path(path), reading) for part, path in paths.items()}
    missing = [part for part in ("dev", "test") if part not in parts]
    return _splits(name, {**_hold_out(first, held_out, missing, sentences), **parts}, reading, min_count)


def known(
    name: str, sentences: str, tokens: str, lower: bool, classes: bool, min_count: int, limit: int | None
) -> TextSplits:
    """Known texts for language models: a corpus by name, such as data=ptb, on this machine or downloaded."""
    reading = TextReading(sentences, tokens, lower, classes)
    parts = {part: read_coded(path, reading) for part, path in locate(name).items() if part != "train"}
    parts["train"] = read_coded(locate(name)["train"], TextReading(sentences, tokens, lower, classes, limit))
    return _splits(name, parts, reading, min_count)


def parts_of(name: str, part: int | str, parts: int, words: Sequence[int], tune_words: Sequence[int]) -> TextSplits:
    """Known texts for language models: one of several parts of the train text of a corpus (data=ptb_parts).

    The parts are 1 to `parts` and `tune`. The part `tune` serves to choose options. Each part has a train text and a
    test text. `words` holds the minimum word counts of these two texts; for the part `tune`, `tune_words` does. The dev
    text of every part is the test text of `tune`."""
    names = [*range(1, parts + 1), TUNE]
    if part not in names:
        raise UserError(f"data.part is {part!r}, expected one of {', '.join(map(str, names))}")
    for key, sizes in (("words", words), ("tune_words", tune_words)):
        if len(sizes) != 2:
            raise UserError(f"data.{key} is {list(sizes)}, expected two numbers: of train and of test")
    corpus, texts, begin = read_coded(locate(name)["train"], TextReading()), {}, 0
    for k in names:
        for kind, size in zip(("train", "test"), words if k != TUNE else tune_words, strict=True):
            end = corpus.until(size, begin)
            texts[k, kind] = corpus.part(begin, end, f"{kind} of part {k}")
            if texts[k, kind].tokens < max(size, 1):
                raise UserError(f"{name} has too few words for the {kind} text of part {k}; ask for less")
            begin = end
    chosen = {"train": texts[part, "train"], "dev": texts[TUNE, "test"], "test": texts[part, "test"]}
    if part == TUNE:
        note = "dev and test are the same text: choose options with this part, report scores of another part"
    else:
        note = "dev is the test text of part tune, by which strengths and weights are chosen"
    return _splits(f"{name}_parts", chosen, TextReading(), 1, (note,))


def _language_reference(reading: TextReading) -> ProvisionalText:
    """Known texts: the language reference of Python (about 110,000 words), which comes with every CPython."""
    source = f"language reference of Python {platform.python_version()}"
    lines = (line for topic in sorted(topics) for line in (*topics[topic].splitlines(), ""))
    return coded_lines(source, ((line, True) for line in lines), reading)


def _hold_out(
    text: ProvisionalText, share: float, missing: Sequence[str], sentences: str
) -> dict[str, ProvisionalText]:
    """Known texts: cut dev and test off from the end of a train text, between sentences.

    `missing` names the texts to cut off. Each gets `share` times the number of words of the text. The rest is train."""
    if not missing:
        return {"train": text}
    if not 0 < share * len(missing) < 1:
        raise UserError(f"data.held_out is {share}; without a file for {' or '.join(missing)} it must be above 0 and "
                        f"below {1 / len(missing):g}")  # fmt: skip
    bounds = [text.until(round(text.tokens * (1 - share * k))) for k in range(len(missing), 0, -1)]
    bounds = [0, *bounds, len(text.ends)]
    if any(begin >= end for begin, end in zip(bounds, bounds[1:], strict=False)):
        lines = "" if sentences == "lines" else ", or data.sentences=lines if every line is a sentence"
        raise UserError(
            f"{text.source}: {share:g} of {len(text.ends)} sentences leaves nothing for {', '.join(missing)} or to "
            f"train on; give files or another data.held_out{lines}"
        )
    names = "train", *missing
    return {name: text.part(a, b, name) for name, a, b in zip(names, bounds, bounds[1:], strict=False)}


def _splits(
    name: str, parts: dict[str, ProvisionalText], reading: TextReading, min_count: int, notes: tuple[str, ...] = ()
) -> TextSplits:
    """Known texts for language models: encode train, dev and test in the vocabulary of train."""
    vocabulary = parts["train"].vocabulary(min_count)
    return TextSplits(name, *(parts[part].text(vocabulary) for part in ("train", "dev", "test")), reading, notes)
