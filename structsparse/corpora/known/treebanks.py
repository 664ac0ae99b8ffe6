"""Treebanks with their train, dev and test part: of Universal Dependencies by name, or files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from structsparse.base.downloads import KnownCorpus, KnownFile, data_folders
from structsparse.base.errors import UserError
from structsparse.corpora.conllu import read_treebank
from structsparse.corpora.known.texts import found
from structsparse.corpora.planted.trees import KINDS, planted_treebank
from structsparse.corpora.splits import PARTS, Splits, completed
from structsparse.corpora.treebank import Treebank, punctuation, punctuation_rule

FOLDER = "ud"  # below STRUCTSPARSE_DATA and below the cache
_NAME = re.compile(r"[a-z]+_[a-z0-9]+")


@dataclass(frozen=True, kw_only=True)
class Treebanks(Splits):
    """A corpus whose parts are treebanks. A tagger can learn their columns as well."""

    rule: str  # by which a token is punctuation: upos or characters
    decides: tuple[str, ...] = ()  # the kinds of features of arcs that matter, where that is known
    notes: tuple[str, ...] = ()

    def punctuation(self, part: str) -> np.ndarray:
        """Which tokens scores without punctuation leave out: bool [tokens]"""
        return punctuation(self.parts[part], self.rule)

    def describe(self) -> list[str]:
        """What there is to know of the corpus, a line each."""
        lines = [f"{part}: {treebank.describe()}" for part, treebank in self.parts.items()]
        lines += [f"{part}: {note}" for part, treebank in self.parts.items() for note in treebank.notes]
        return [*lines, *_constant_columns(self.train), *_new_relations(self), *self.notes]


def ud(treebank: str, punctuation: str) -> Treebanks:
    """A treebank of Universal Dependencies, looked up under STRUCTSPARSE_DATA and in the cache."""
    if not _NAME.fullmatch(treebank):
        raise UserError(f"data.treebank is {treebank!r}, expected a name such as en_ewt or tr_imst{_there()}")
    files = {part: KnownFile(f"{treebank}-ud-{part}.conllu", "") for part in PARTS}
    hint = f"; universaldependencies.org has them; data=treebank is for other files{_there()}"
    paths = KnownCorpus(treebank, FOLDER, (), files, hint).locate()
    return assembled(treebank, {part: read_treebank(path) for part, path in paths.items()}, punctuation)


def planted(seed: int, train: int, dev: int, test: int, nonprojective: float) -> Treebanks:
    """Trees drawn from a model in which only some kinds of features of arcs matter."""
    drawn = planted_treebank(seed, train, dev, test, nonprojective)
    parts = {part: getattr(drawn, part) for part in PARTS}
    return assembled("planted_treebank", parts, "upos", decides=KINDS)


def files(
    train: str, dev: str | None, test: str | None, held_out: float, split: int, punctuation: str, name: str = "treebank"
) -> Treebanks:
    """Files of CoNLL-U or CoNLL-X. Of dev and test, what has no file is drawn from train."""
    paths = {part: path for part, path in zip(PARTS, (train, dev, test), strict=True) if path is not None}
    parts = {part: read_treebank(found(path)) for part, path in paths.items()}
    return assembled(name, completed(parts, held_out, split, "sentences"), punctuation)


def assembled(
    name: str, parts: Mapping[str, Treebank], rule: str, decides: tuple[str, ...] = (), notes: tuple[str, ...] = ()
) -> Treebanks:
    """The parts of a corpus; by the rule `auto` train says what punctuation is."""
    rule = punctuation_rule(parts["train"]) if rule == "auto" else rule
    share = np.mean(punctuation(parts["train"], rule))
    how = "tokens with the part of speech PUNCT" if rule == "upos" else "tokens of nothing but punctuation"
    notes = (*notes, f"punctuation is {how} (data.punctuation={rule}), {share:.1%} of train")
    return Treebanks(name, *(parts[part] for part in PARTS), rule=rule, decides=decides, notes=notes)


def _constant_columns(train: Treebank) -> list[str]:
    """Of a column that has one value only, that it says nothing."""
    found = []
    for name, column in train.columns.items():
        codes = np.unique(column.codes)
        if len(codes) == 1 and train.tokens > 1:
            found.append(f"{name} is {column.values[codes[0]]!r} throughout train")
    return found


def _new_relations(corpus: Treebanks) -> list[str]:
    """What no parser that has learnt from train gets right."""
    known, found = _relations(corpus.train), []
    for part in PARTS[1:]:
        new = {name: count for name, count in _relations(corpus.parts[part]).items() if name not in known}
        if new:
            listed = ", ".join(sorted(new))
            found.append(f"{part}: {sum(new.values()):,} tokens with a relation not seen in training ({listed})")
    return found


def _relations(treebank: Treebank) -> dict[str, int]:
    column = treebank.columns["deprel"]
    counts = np.bincount(column.codes, minlength=len(column.values)).tolist()
    return {name: count for name, count in zip(column.values, counts, strict=True) if count}


def _there() -> str:
    """The treebanks that there are."""
    suffix = "-ud-train.conllu"
    places = (path for root in data_folders() if (root / FOLDER).is_dir() for path in (root / FOLDER).iterdir())
    names = sorted({path.name.removesuffix(suffix) for path in places if path.name.endswith(suffix)})
    return f"; there are {', '.join(names)}" if names else ""
