"""Known sets of words for the evaluation of word vectors: pairs with human scores, analogies, sentence completion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from structsparse.base.downloads import data_folders
from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import read_gunzipped

PAIRS, QUESTIONS = "wordsim", "analogy/questions-words.txt"  # below $STRUCTSPARSE_DATA
COMPLETIONS = "completion/Holmes.machine_format.questions.txt"  # of the Microsoft Sentence Completion Challenge
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


@dataclass(frozen=True)
class Completion:
    """A question of sentence completion: the other words of a sentence, options for the missing one, the right one."""

    words: tuple[str, ...]
    options: tuple[str, ...]
    answer: int  # index of the right option


@dataclass(frozen=True)
class Completions:
    """Questions of sentence completion, each with the same number of options."""

    name: str
    questions: tuple[Completion, ...]


def known_pairs(part: str) -> list[WordPairs]:
    """Known sets of pairs of words for dev or test, as far as they are on this machine."""
    paths = (_located(f"{PAIRS}/EN-{name}.txt") for name in PARTS[part])
    return [read_pairs(path) for path in paths if path is not None]


def known_analogies() -> Analogies | None:
    """The known questions of analogy, if they are on this machine."""
    path = _located(QUESTIONS)
    return None if path is None else read_analogies(path)


def known_completions() -> Completions | None:
    """The questions of the Microsoft Sentence Completion Challenge, if they are on this machine."""
    path = _located(COMPLETIONS)
    return None if path is None else read_completions(path)


def _located(name: str) -> Path | None:
    """Known sets of words: the path of a file below a data folder; None if there is none."""
    return next((folder / name for folder in data_folders() if (folder / name).is_file()), None)


def sets_below(folder: Path) -> list[Path]:
    """Known sets of words: the .txt files below a folder, without the answers to questions of sentence completion."""
    paths = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    answers = {answers_to(path) for path in paths if answers_to(path) != path}
    return [path for path in paths if path not in answers]


def read_set(path: Path) -> WordPairs | Analogies | Completions:
    """Read a set of words from a file.

    These are analogies if a line begins with a colon, sentence completion if the first line begins like `1a)`, and else
    pairs."""
    lines = [line for _, line in _lines(path)]
    if any(line.startswith(":") for line in lines):
        return read_analogies(path)
    return read_completions(path) if lines and OPTION.match(lines[0]) else read_pairs(path)


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


OPTION = re.compile(r"(\d+)([a-e])\)\s")  # how a line with an option begins
MISSING = re.compile(r"\[([^\]]*)\]")  # the option, in its sentence
WORD = re.compile(r"\w+(?:['’]\w+)*")


def answers_to(path: Path) -> Path:
    """Questions of sentence completion: the file with the answers, whose name has `answers` instead of `questions`."""
    return path.with_name(path.name.replace("questions", "answers"))


def read_completions(path: Path) -> Completions:
    """Read questions of sentence completion in the machine format of the Microsoft Sentence Completion Challenge.

    Each option is a line `1a) ... the [option] in its sentence ...`. The file of answers has the line of the right
    option of each question."""
    questions, beside = _options(path), answers_to(path)
    if not beside.is_file() or beside == path:
        raise UserError(f"{path}: has questions of sentence completion, but there are no answers in {beside}")
    answers = {number: [*options] for number, options in _options(beside).items()}
    sizes = {len(options) for options in questions.values()}
    if len(sizes) != 1:
        raise UserError(f"{path}: some questions have {min(sizes)} options and others {max(sizes)}")
    listed = []
    for number, options in questions.items():
        right = answers.get(number, [])
        if len(right) != 1 or right[0] not in options:
            raise UserError(f"{beside}: has {len(right)} answers to question {number}, expected one of its options")
        words = tuple(WORD.findall(MISSING.sub(" ", next(iter(options.values())))))
        chosen = tuple(MISSING.search(sentence)[1].strip() for sentence in options.values())
        listed.append(Completion(words, chosen, [*options].index(right[0])))
    return Completions(path.name.removesuffix(".txt").removesuffix(".questions"), tuple(listed))


def _options(path: Path) -> dict[str, dict[str, str]]:
    """Questions of sentence completion: the sentence of each option, by question and letter."""
    options: dict[str, dict[str, str]] = {}
    for number, line in _lines(path):
        begin = OPTION.match(line)
        if begin is None or MISSING.search(line) is None:
            raise UserError(f"{path}, line {number}: expected an option such as `1a) It was a [dark] night.`")
        letters = options.setdefault(begin[1], {})
        if begin[2] in letters:
            raise UserError(f"{path}, line {number}: question {begin[1]} has a second option {begin[2]}")
        letters[begin[2]] = line[begin.end() :]
    return options


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
