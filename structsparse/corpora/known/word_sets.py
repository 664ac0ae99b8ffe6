"""Known sets of words for the evaluation of word vectors: pairs with human scores of similarity, and analogies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from structsparse.base.downloads import data_folders
from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import read_gunzipped

PAIRS, QUESTIONS = "wordsim", "analogy/questions-words.txt"  # below $STRUCTSPARSE_DATA
PARTS = {  # the sets of pairs that are reported on test, and those by which options may be chosen (dev)
    "test": ("WS-353-ALL", "WS-353-SIM", "WS-353-REL", "MEN-TR-3k", "SIMLEX-999", "RW-STANFORD", "MTurk-771", "RG-65"),
    "dev": ("MTurk-287", "SimVerb-3500", "VERB-143", "YP-130"),
}


@dataclass(frozen=True)
class WordPairs:
    """A set of pairs of words with scores of their similarity by people."""

    name: str
    pairs: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True)
class Analogies:
    """Questions of analogy: a is to b as c is to d; each kind, "syntactic" or "semantic", has its questions."""

    name: str
    questions: dict[str, tuple[tuple[str, str, str, str], ...]]


def known_pairs(part: str) -> list[WordPairs]:
    """Known sets of pairs of words for dev or test, as far as they are on this machine."""
    paths = (_located(f"{PAIRS}/EN-{name}.txt") for name in PARTS[part])
    return [read_pairs(path) for path in paths if path is not None]


def known_analogies() -> Analogies | None:
    """The known questions of analogy, if they are on this machine."""
    path = _located(QUESTIONS)
    return None if path is None else read_analogies(path)


def _located(name: str) -> Path | None:
    """Known sets of words: the path of a file below a data folder; None if there is none."""
    return next((folder / name for folder in data_folders() if (folder / name).is_file()), None)


def read_set(path: Path) -> WordPairs | Analogies:
    """Read a set of words from a file: analogies if a line begins with a colon, else pairs."""
    lines = (line for _, line in _lines(path))
    return read_analogies(path) if any(line.startswith(":") for line in lines) else read_pairs(path)


def read_pairs(path: Path) -> WordPairs:
    """Read pairs of words with a score: three columns, separated by tabs, commas or spaces; a header is skipped."""
    pairs = []
    for number, line in _lines(path):
        fields = next((line.split(by) for by in "\t,;" if by in line), line.split())
        fields = [field.strip() for field in fields]
        if len(fields) < 3:
            raise UserError(f"{path}, line {number}: has {len(fields)} columns, expected word, word and score")
        try:
            pairs.append((fields[0], fields[1], float(fields[2])))
        except ValueError:
            if pairs or number > 1:
                raise UserError(f"{path}, line {number}: the score {fields[2]!r} is no number") from None
    if len(pairs) < 2:
        raise UserError(f"{path}: has {len(pairs)} pairs of words, expected at least two")
    return WordPairs(path.name.removeprefix("EN-").removesuffix(".txt"), tuple(pairs))


def read_analogies(path: Path) -> Analogies:
    """Read questions of analogy: four words a line, below lines `: KIND` of which grammatical ones begin with gram."""
    kind, questions = "semantic", {"syntactic": [], "semantic": []}
    for number, line in _lines(path):
        if line.startswith(":"):
            kind = "syntactic" if line[1:].strip().startswith("gram") else "semantic"
            continue
        words = line.split()
        if len(words) != 4:
            raise UserError(f"{path}, line {number}: has {len(words)} words, expected the four of an analogy")
        questions[kind].append(tuple(words))
    return Analogies(path.stem, {kind: tuple(listed) for kind, listed in questions.items()})


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Known sets of words: the lines of a file that are not empty, with their numbers."""
    data = read_gunzipped(path, "a file of word pairs or analogies")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8, expected word pairs or analogies") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, line.strip()
