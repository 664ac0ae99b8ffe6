"""Known treebanks in train, dev and test: Universal Dependencies by name, the user's own files, or planted trees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from structsparse.base.downloads import KnownCorpus, KnownFile, data_folders, find_path
from structsparse.base.errors import UserError
from structsparse.corpora.conllu import read_treebank
from structsparse.corpora.planted.trees import KINDS, planted_treebank
from structsparse.corpora.splits import PARTS, SentenceSplits, completed
from structsparse.corpora.treebank import Treebank, punctuation, punctuation_rule

FOLDER = "ud"  # name of the treebank folder, below $STRUCTSPARSE_DATA (environment variable) and in the cache
_NAME = re.compile(r"[a-z]+_[a-z0-9]+")  # names of treebanks, such as en_ewt


@dataclass(frozen=True, kw_only=True)
class TreebankSplits(SentenceSplits):
    """A known treebank corpus: train, dev and test.

    The columns of the treebank can also be used to train taggers."""

    rule: str  # which tokens are punctuation: `upos` (tag PUNCT) or `characters` (only punctuation characters)
    decides: tuple[str, ...] = ()  # kinds of arc features that determine the trees of a planted treebank
    notes: tuple[str, ...] = ()  # notes for the user

    def punctuation(self, part: str) -> np.ndarray:
        """Whether each token of train, dev or test of a known treebank is punctuation (bool array)."""
        return punctuation(self.parts[part], self.rule)

    def describe(self) -> list[str]:
        """Lines for the user about a known treebank: its parts, notes, constant columns, unseen relations."""
        lines = [f"{part}: {treebank.describe()}" for part, treebank in self.parts.items()]
        lines += [f"{part}: {note}" for part, treebank in self.parts.items() for note in treebank.notes]
        return [*lines, *_constant_columns(self.train), *_unseen_relations(self), *self.notes]


def ud(treebank: str, punctuation: str) -> TreebankSplits:
    """Known treebanks: a treebank of Universal Dependencies (data=ud), found on this machine."""
    if not _NAME.fullmatch(treebank):
        raise UserError(f"data.treebank is {treebank!r}, expected a name such as en_ewt or tr_imst{_available()}")
    files = {part: KnownFile(f"{treebank}-ud-{part}.conllu", "") for part in PARTS}
    hint = f"; universaldependencies.org has them; data=treebank is for other files{_available()}"
    paths = KnownCorpus(treebank, FOLDER, (), files, hint).locate()
    return assembled(treebank, {part: read_treebank(path) for part, path in paths.items()}, punctuation)


def planted(seed: int, train: int, dev: int, test: int, nonprojective: float) -> TreebankSplits:
    """Known treebanks: planted trees (data=planted_treebank), which depend on only some kinds of arc features."""
    corpus = planted_treebank(seed, train, dev, test, nonprojective)
    parts = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    return assembled("planted_treebank", parts, "upos", decides=KINDS)


def files(
    train: str, dev: str | None, test: str | None, held_out: float, split: int, punctuation: str, name: str = "treebank"
) -> TreebankSplits:
    """Known treebanks: the user's own files in CoNLL-U or CoNLL-X (data=treebank).

    A missing dev or test part is a random share of train."""
    paths = {part: path for part, path in zip(PARTS, (train, dev, test), strict=True) if path is not None}
    parts = {part: read_treebank(find_path(path)) for part, path in paths.items()}
    return assembled(name, completed(parts, held_out, split, "sentences"), punctuation)


def assembled(
    name: str, parts: Mapping[str, Treebank], rule: str, decides: tuple[str, ...] = (), notes: tuple[str, ...] = ()
) -> TreebankSplits:
    """Known treebanks: make the corpus from train, dev and test, with a rule for punctuation.

    The rule `auto` means `upos` if some token of train has the tag PUNCT, else `characters`."""
    rule = punctuation_rule(parts["train"]) if rule == "auto" else rule
    share = np.mean(punctuation(parts["train"], rule))
    definition = "tokens with the part of speech PUNCT" if rule == "upos" else "tokens of nothing but punctuation"
    notes = (*notes, f"punctuation is {definition} (data.punctuation={rule}), {share:.1%} of train")
    return TreebankSplits(name, *(parts[part] for part in PARTS), rule=rule, decides=decides, notes=notes)


def _constant_columns(train: Treebank) -> list[str]:
    """Known treebanks: notes for the user about columns with the same value for every token of train."""
    notes = []
    for name, column in train.columns.items():
        codes = np.unique(column.codes)
        if len(codes) == 1 and train.tokens > 1:
            notes.append(f"{name} is {column.values[codes[0]]!r} throughout train")
    return notes


def _unseen_relations(corpus: TreebankSplits) -> list[str]:
    """Known treebanks: notes for the user about relations in dev and test that train lacks.

    A parser cannot predict these relations."""
    in_train, notes = _relations(corpus.train), []
    for part in PARTS[1:]:
        unseen = {name: count for name, count in _relations(corpus.parts[part]).items() if name not in in_train}
        if unseen:
            listed = ", ".join(sorted(unseen))
            notes.append(f"{part}: {sum(unseen.values()):,} tokens with a relation not seen in training ({listed})")
    return notes


def _relations(treebank: Treebank) -> dict[str, int]:
    """Known treebanks: the number of tokens with each dependency relation."""
    column = treebank.columns["deprel"]
    counts = np.bincount(column.codes, minlength=len(column.values)).tolist()
    return {name: count for name, count in zip(column.values, counts, strict=True) if count}


def _available() -> str:
    """The names of the known treebanks on this machine, for messages."""
    suffix = "-ud-train.conllu"
    folders = (folder / FOLDER for folder in data_folders())
    files = (path for folder in folders if folder.is_dir() for path in folder.iterdir())
    names = sorted({path.name.removesuffix(suffix) for path in files if path.name.endswith(suffix)})
    return f"; there are {', '.join(names)}" if names else ""
