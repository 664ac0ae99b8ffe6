"""Attributes of tokens: functions of the word (shape, case, affixes), or columns of the corpus.

The column `feats` of a treebank holds morphological features, such as Case=Nom|Number[psor]=Sing. Each feature is also
an attribute of its own: here `feats.case` has the value Nom, and `feats.number_psor` has the value Sing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences

_DIGITS = re.compile(r"00+")
_RUNS = re.compile(r"(.)\1+")
MORPHOLOGY = "feats"  # the column of morphological features in a treebank
_FEATURE = re.compile(rf"{MORPHOLOGY}\.([a-z][a-z0-9_]*)")  # an attribute that is one morphological feature


def shape(word: str) -> str:
    """Token attribute: word shape, where letters become A or a, digits become 0, and runs are shortened.

    A run of equal characters becomes one character; a run of digits becomes 0+. Examples: `Confidence` -> `Aa` and
    `2,664,098` -> `0,0+,0+`, as in Martins et al. (2011)."""
    types = "".join("A" if c.isupper() else "a" if c.isalpha() else "0" if c.isdigit() else c for c in word)
    return _DIGITS.sub("0+", _RUNS.sub(lambda run: "00" if run[1] == "0" else run[1], types))


def case(word: str) -> str:
    """Token attribute: case of a word: `lower`, `upper`, `title`, `mixed`, `initial` or `none` (no letters).

    `initial`: the word has a single letter, a capital. `title`: of several letters, only the first is a capital."""
    letters = [c for c in word if c.isalpha()]
    if not letters:
        return "none"
    if all(c.isupper() for c in letters):
        return "initial" if len(letters) == 1 else "upper"
    if word[0].isupper():
        return "title" if not any(c.isupper() for c in letters[1:]) else "mixed"
    return "mixed" if any(c.isupper() for c in letters) else "lower"


def digit(word: str) -> str:
    """Token attribute: how many characters are digits: `none`, `some`, `all`, or `year` for exactly 4 digits."""
    digits = sum(c.isdigit() for c in word)
    if digits == 0:
        return "none"
    if digits < len(word):
        return "some"
    return "year" if digits == 4 else "all"


def punctuation(word: str) -> str:
    """Token attribute: how many characters are punctuation: `none`, `some` or `all`."""
    marks = sum(not c.isalnum() for c in word)
    return "none" if marks == 0 else "all" if marks == len(word) else "some"


def _affix(size: int, first: bool) -> Callable[[str], str]:
    """Token attribute: make the function that returns the first or last `size` characters of a word.

    For a shorter word, the function returns "=" and the whole word."""

    def affix(word: str) -> str:
        """Token attribute: the prefix or suffix of a word; for a shorter word, "=" and the whole word."""
        if len(word) < size:
            return "=" + word
        return word[:size] if first else word[-size:]

    return affix


OF_WORD: dict[str, Callable[[str], str]] = {
    "lower": str.lower,
    "shape": shape,
    "case": case,
    "digit": digit,
    "punctuation": punctuation,
    **{f"prefix{size}": _affix(size, first=True) for size in range(1, 5)},
    **{f"suffix{size}": _affix(size, first=False) for size in range(1, 5)},
}


def is_morphological(name: str) -> bool:
    """Whether an attribute of tokens reads morphological features: the whole column `feats`, or one feature of it."""
    return name == MORPHOLOGY or _FEATURE.fullmatch(name) is not None


def morphological(value: str, feature: str) -> str:
    """Token attribute: the value of one feature in a string such as Case=Nom|Number[psor]=Sing; empty if absent.

    `feature` is the name of the feature in lower case, with an underscore for brackets: case or number_psor."""
    for item in value.split("|"):
        name, _, content = item.partition("=")
        if content and name.lower().replace("[", "_").rstrip("]") == feature:
            return content
    return ""


def attribute(sentences: Sentences, name: str) -> Column:
    """An attribute of all tokens as a column of codes; each distinct word is evaluated once."""
    if name in sentences.columns:
        return sentences.columns[name]
    feature = _FEATURE.fullmatch(name)
    if feature and MORPHOLOGY in sentences.columns:
        column = sentences.columns[MORPHOLOGY]
        derived = Column.from_strings([morphological(value, feature[1]) for value in column.values])
        return Column(derived.values, derived.codes[column.codes])
    if name not in OF_WORD or "word" not in sentences.columns:
        available = [*sentences.columns, *(OF_WORD if "word" in sentences.columns else ())]
        raise UserError(
            f"{sentences.source}: attribute {name!r} is neither a column nor made from the word; "
            f"there are {', '.join(available)}"
        )
    words = sentences.columns["word"]
    derived = Column.from_strings([OF_WORD[name](word) for word in words.values])
    return Column(derived.values, derived.codes[words.codes])


def numbers(sentences: Sentences, names: Sequence[str]) -> np.ndarray:
    """Numeric attributes of all tokens, for the option features.dense (float32, shape [tokens, attributes])."""
    result = np.empty((sentences.tokens, len(names)), np.float32)
    for k, name in enumerate(names):
        column = attribute(sentences, name)
        try:
            values = np.array([float(value) for value in column.values])
        except ValueError as error:
            raise UserError(f"{sentences.source}: column {name!r} (features.dense) is not numeric: {error}") from None
        fits = np.abs(values) <= np.finfo(np.float32).max  # false for NaN
        if not fits.all():
            value = column.values[int(np.argmin(fits))]
            where = f"{sentences.source}: column {name!r} (features.dense)"
            raise UserError(f"{where} holds {value}, expected finite numbers")
        result[:, k] = values[column.codes]
    return result


def codes(sentences: Sentences, vocabularies: Mapping[str, Mapping[str, int]]) -> np.ndarray:
    """Encode attributes of all tokens by the given vocabularies; unknown values get the code 0.

    Returns an int64 array of shape [tokens, attributes]."""
    result = np.empty((sentences.tokens, len(vocabularies)), np.int64)
    for k, (name, vocabulary) in enumerate(vocabularies.items()):
        column = attribute(sentences, name)
        result[:, k] = np.array([vocabulary.get(value, 0) for value in column.values], np.int64)[column.codes]
    return result
