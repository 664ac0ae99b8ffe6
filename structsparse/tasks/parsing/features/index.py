"""Which row of the weight table a feature of an arc owns: as in `features.index`, with keys that are sums.

Every template is on every arc once, so an index of n features needs no strings and its bags one row a template. Values
are hashed by themselves, so what was not in training needs no vocabulary to be told apart, and a model of some of the
templates finds the keys that a model of all of them has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from structsparse.base.cache import cache_folder
from structsparse.base.errors import UserError
from structsparse.base.large_arrays import empty_array, shrunk
from structsparse.corpora.columns import Sentences
from structsparse.corpora.treebank import COLUMNS, Treebank
from structsparse.features.attributes import OF_WORD, attribute
from structsparse.features.keys import WORD, Bags, FeatureIndex, hashes
from structsparse.kernels.features import arc_keys, keys
from structsparse.kernels.solvers.online_trees_by_keys import TemplateAtoms
from structsparse.tasks.parsing.features import templates as arc_templates
from structsparse.tasks.parsing.features.templates import AFTER, BEFORE, BETWEEN, LINKS, MARKS, ROOT, VERBS, ArcTemplate
from structsparse.tasks.parsing.features.words import Speller

TAGS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)
ENDS = "hm"
PREDICTED = "deprel"


class ArcIndex(FeatureIndex):
    """Templates of arcs, and for each of them the features that own a row."""

    templates: tuple[ArcTemplate, ...]

    @staticmethod
    def places(sentences: Sentences) -> int:
        """Where a template has a feature each."""
        return int((sentences.lengths.astype(np.int64) ** 2).sum())

    @staticmethod
    def columns_of(template: ArcTemplate) -> set[str]:
        """What it looks at."""
        return columns_of(template)

    @classmethod
    def code_files(cls) -> tuple[Path, ...]:
        """The source files that decide which features there are."""
        return (*super().code_files(), Path(__file__), Path(arc_templates.__file__), Path(arc_keys.__file__))

    @classmethod
    def fit(
        cls, sentences: Sentences, templates: Sequence[ArcTemplate], min_count: int = 1, bits: int = WORD
    ) -> ArcIndex:
        """All features that are on at least `min_count` arcs, told apart by so many bits of their keys."""
        look = Looks(sentences, templates)
        return cls.collect(templates, look.arcs, look.keys, min_count, sentences.source, bits)

    def bags(self, sentences: Sentences) -> Bags:
        """The rows of every arc; features that own no row are dropped."""
        look, count = Looks(sentences, self.templates), len(self.templates)
        ids, offsets = empty_array(look.arcs * count, np.int32, cache_folder()), np.empty(look.arcs + 1, np.int64)
        table = ids.reshape(look.arcs, count)
        arc_keys.find(look.patterns, look.starts, look.first_arcs, look.values, look.between, self.lookup, table)
        keys.compact(table, offsets)
        del table
        return Bags(shrunk(ids, offsets[-1]), offsets)

    def shortened_on(self, sentences: Sentences, guard: int, heads: np.ndarray | None = None) -> ArcIndex:
        """Keys of fewer bits, of which those of no larger share of the features of these sentences are mistaken: of all
        arcs, or of the arcs from these heads [tokens]."""
        look = Looks(sentences, self.templates)
        chosen = slice(None) if heads is None else look.chosen(heads)
        return self.shortened(guard, lambda k: look.keys(k)[chosen])

    @classmethod
    def fit_chosen(
        cls, sentences: Sentences, heads: np.ndarray, templates: Sequence[ArcTemplate], min_count: int = 1
    ) -> ArcIndex:
        """All features that are on at least `min_count` of the arcs to each word from its head: heads [tokens]"""
        look = Looks(sentences, templates)
        chosen = look.chosen(heads)
        return cls.collect(templates, len(chosen), lambda k: look.keys(k)[chosen], min_count, sentences.source)

    def bags_chosen(self, sentences: Sentences, heads: np.ndarray) -> Bags:
        """The rows of the arc to each word from its head: heads [tokens]"""
        look, (bounds, known, rows, bits, begins, places, masks) = Looks(sentences, self.templates), self.lookup
        chosen = look.chosen(heads)
        found, offsets = np.empty((len(self.templates), len(chosen)), np.int32), np.empty(len(chosen) + 1, np.int64)
        for k in range(len(found)):
            own, where = slice(bounds[k], bounds[k + 1]), places[begins[k] : begins[k + 1]]
            keys.look_up(look.keys(k)[chosen], known[own], rows[own], where, bits[k], masks[k], found[k])
        table = np.ascontiguousarray(found.T)
        keys.compact(table, offsets)
        return Bags(table.reshape(-1)[: offsets[-1]].copy(), offsets)

    def describe(
        self, rows: np.ndarray, sentences: Sentences, bags: Bags | None = None, heads: np.ndarray | None = None
    ) -> list[str]:
        """Readable features, rebuilt from an arc where each occurs: `h.upos=NOUN & m.upos=ADJ & direction=left`. The
        bags, if they are there, are those of all arcs, or of the arcs from these heads [tokens]."""
        look = Looks(sentences, self.templates)
        if bags is None:
            arcs = self._first_arcs(look, rows)
        else:
            place = np.full(len(self), -1)
            place[rows] = arc_keys.REQUESTED
            arc_keys.first_places(bags.ids, bags.offsets, place, len(rows))
            arcs = place[rows] if heads is None else look.chosen(heads)[place[rows]]
        template_of, spell = np.searchsorted(self.offsets, rows, side="right") - 1, Speller(look)
        return [spell(self.templates[k], arc) for k, arc in zip(template_of, arcs.tolist(), strict=True)]

    def _first_arcs(self, look: Looks, rows: np.ndarray) -> np.ndarray:
        """The first arc that each of these rows is on, template by template: nothing is kept of the other rows."""
        wanted, first = np.zeros(len(self), np.bool_), np.full(len(self), -1)
        wanted[rows] = True
        for k, (begin, end) in enumerate(zip(self.offsets[:-1], self.offsets[1:], strict=True)):
            own = begin + np.flatnonzero(wanted[self.rows[begin:end]])  # places in `keys`
            if len(own):
                keys = look.keys(k) & self.masks[k]
                where = np.searchsorted(self.keys[own], keys).clip(0, len(own) - 1)
                arcs = np.flatnonzero(self.keys[own][where] == keys)[::-1]
                first[self.rows[own[where[arcs]]]] = arcs  # of several the last one written, which is the first arc
        return first[rows]


@dataclass(frozen=True)
class Looks:
    """Sentences as templates look at them."""

    sentences: Sentences
    templates: Sequence[ArcTemplate]

    @cached_property
    def starts(self) -> np.ndarray:
        """Where the root of each sentence stands, before its words: int64 [sentences + 1]"""
        return self.sentences.offsets + np.arange(len(self.sentences) + 1)

    @cached_property
    def first_arcs(self) -> np.ndarray:
        """int64 [sentences + 1]"""
        return np.concatenate([[0], np.cumsum(self.sentences.lengths.astype(np.int64) ** 2)])

    @property
    def arcs(self) -> int:
        return int(self.first_arcs[-1])

    def chosen(self, heads: np.ndarray) -> np.ndarray:
        """Which arc leads to each word: int64 [tokens]"""
        lengths = np.repeat(self.sentences.lengths, self.sentences.lengths)
        modifiers = np.arange(len(heads)) - np.repeat(self.sentences.offsets[:-1], self.sentences.lengths) + 1
        first = np.repeat(self.first_arcs[:-1], self.sentences.lengths)
        return first + (modifiers - 1) * lengths + heads - (heads > modifiers)

    def ends(self, arc: int) -> tuple[int, int, int]:
        """Sentence, head and modifier of an arc, both from 1 on, 0 the root."""
        sentence = int(np.searchsorted(self.first_arcs, arc, side="right")) - 1
        modifier, head = divmod(arc - int(self.first_arcs[sentence]), int(self.sentences.lengths[sentence]))
        return sentence, head + (head > modifier), modifier + 1

    @cached_property
    def compact(self) -> Sentences:
        """The sentences without values that do not occur, which, if these are some of many, are hashed for nothing."""
        columns = {name: column.without_unused() for name, column in self.sentences.columns.items()}
        return replace(self.sentences, columns=columns)

    @cached_property
    def atoms(self) -> list[tuple[str, int, str]]:
        return sorted({atom for template in self.templates for atom in template.tokens})

    @cached_property
    def values(self) -> np.ndarray:
        """What each atom says of the token at each place: uint64 [atoms, places]"""
        found = np.empty((len(self.atoms), int(self.starts[-1])), np.uint64)
        place = np.arange(found.shape[1])
        sentence = np.searchsorted(self.starts, place, side="right") - 1
        first, last = self.starts[sentence], self.starts[sentence + 1]
        names = sorted({name for _, _, name in self.atoms})
        of_name = {name: self._hashed(name) for name in names}
        root, before, after = hashes([ROOT, BEFORE, AFTER])
        for row, (end, offset, name) in zip(found, self.atoms, strict=True):
            looked = place + offset
            row[:] = of_name[name][looked.clip(0, len(place) - 1)]
            row[looked == first] = root
            row[looked < first], row[looked >= last] = before, after
            row *= hashes([f"{end}{offset}.{name}"]) | np.uint64(1)  # odd: nothing of a value is lost
        return found

    def _hashed(self, name: str) -> np.ndarray:
        """The attribute at each place, anything at roots: uint64 [places]"""
        column = attribute(self.compact, name)
        found = np.zeros(int(self.starts[-1]), np.uint64)
        words = np.arange(self.sentences.tokens) + np.repeat(np.arange(1, len(self.starts)), self.sentences.lengths)
        found[words] = hashes("=" + value for value in column.values)[column.codes]
        return found

    @property
    def looks_between(self) -> bool:
        return any(template.between for template in self.templates)

    @cached_property
    def marks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What arc_keys.between asks of tokens: parts [places], classes [places], salts [kinds]"""
        column = attribute(self.compact, "upos")
        bits = np.uint64(1) << np.array([_bit(tag) for tag in column.values], np.uint64)
        sorts = [(tag in VERBS) + 2 * (tag in MARKS) + 4 * (tag in LINKS) for tag in column.values]
        parts, classes = np.zeros(int(self.starts[-1]), np.uint64), np.zeros(int(self.starts[-1]), np.int64)
        words = np.arange(self.sentences.tokens) + np.repeat(np.arange(1, len(self.starts)), self.sentences.lengths)
        parts[words], classes[words] = bits[column.codes], np.array(sorts, np.int64)[column.codes]
        return parts, classes, hashes(f"between.{kind}" for kind in BETWEEN)

    @cached_property
    def between(self) -> np.ndarray:
        """uint64 [kinds, arcs], of the kinds that any template looks at; all of them, or none."""
        if not self.looks_between:
            return np.empty((0, 0), np.uint64)
        found = np.empty((len(BETWEEN), self.arcs), np.uint64)
        arc_keys.between(self.starts, self.first_arcs, *self.marks, found)
        return found

    @cached_property
    def patterns(self) -> tuple[np.ndarray, ...]:
        """The templates as arrays: atoms, bounds [templates, 3] into them, gaps [templates], places
        [templates, 2 * BINS]."""
        number, kinds = {atom: k for k, atom in enumerate(self.atoms)}, list(BETWEEN)
        atoms, bounds = [], []
        for template in self.templates:
            bounds.append([len(atoms)])
            for end in ENDS:
                atoms += [number[atom] for atom in template.tokens if atom[0] == end]
                bounds[-1].append(len(atoms))
        gaps = [kinds.index(template.between) if template.between else -1 for template in self.templates]
        places = np.stack([_places(template) for template in self.templates])
        return np.array(atoms, np.int64), np.array(bounds, np.int64), np.array(gaps, np.int64), places

    def keys(self, k: int) -> np.ndarray:
        """Of template k: uint64 [arcs]"""
        atoms, bounds, gaps, places = self.patterns
        ends, found = np.empty((2, int(self.starts[-1])), np.uint64), np.empty(self.arcs, np.uint64)
        arc_keys.token_sums(atoms, bounds[k], self.values, ends)
        between = self.between[gaps[k]] if gaps[k] >= 0 else found[:0]
        arc_keys.fold(self.starts, self.first_arcs, *ends, between, places[k], found)
        return found

    @cached_property
    def says(self) -> TemplateAtoms:
        """All that makes the keys of any sentence, without a look at an arc: for `kernels/key_walk.py`."""
        atoms, bounds, gaps, places = self.patterns
        keys = [(template.tokens, template.between) for template in self.templates]
        first = {key: k for k, key in reversed([*enumerate(keys)])}  # of the templates of each base
        number = {key: b for b, key in enumerate(first)}
        chosen = np.fromiter(first.values(), np.int64)
        none = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.uint64)
        marks = self.marks if self.looks_between else none
        gaps = np.where(gaps < 0, len(BETWEEN), gaps)[chosen]
        bases = np.array([number[key] for key in keys], np.int64)
        places = np.ascontiguousarray(places.T)
        return TemplateAtoms(self.starts, self.values, *marks, atoms, bounds[chosen], gaps, bases, places)

    def counts(self) -> np.ndarray:
        """How many different features each template has on all arcs: int64 [templates]"""
        return np.array([different(self.keys(k)) for k in range(len(self.templates))], np.int64)


def different(keys: np.ndarray) -> int:
    keys = np.sort(keys)  # which numpy does by vectors: faster than a table of those seen
    return int(np.count_nonzero(keys[1:] != keys[:-1])) + (len(keys) > 0)


def _bit(tag: str) -> int:
    """Each tag of Universal Dependencies has its own among 64; others share the rest."""
    return TAGS.index(tag) if tag in TAGS else len(TAGS) + int(hashes([tag])[0]) % (64 - len(TAGS))


def gold_arcs(treebank: Treebank) -> np.ndarray:
    """Which arcs are those of the trees: int64 [arcs], 0 or 1"""
    look = Looks(treebank, ())
    found = np.zeros(look.arcs, np.int64)
    found[look.chosen(treebank.heads)] = 1
    return found


def _places(template: ArcTemplate) -> np.ndarray:
    """What a template adds for each side and distance, its own salt among it: uint64 [2 * BINS]"""
    sides, bins = np.divmod(np.arange(2 * arc_keys.BINS), arc_keys.BINS)
    told = {None: 0 * sides, "direction": sides, "distance": sides * arc_keys.BINS + bins, "length": bins}
    return hashes(f"{template.name} at {number}" for number in told[template.place])


def columns_of(template: ArcTemplate) -> set[str]:
    """The columns of a treebank that it looks at."""
    found = {name if name in COLUMNS else "word" for name in template.attributes}
    return found | {"upos"} if template.between else found


def check_attributes(templates: Sequence[ArcTemplate]) -> None:
    """That a treebank without trees has all that they look at."""
    for template in templates:
        for name in sorted(template.attributes):
            if name == PREDICTED:
                raise UserError(f"template {template.name!r} looks at {name}, which a parser predicts")
            if name not in (*COLUMNS, *OF_WORD):
                known = ", ".join([*(column for column in COLUMNS if column != PREDICTED), *OF_WORD])
                raise UserError(f"template {template.name!r}: a word has no {name}, it has {known}")


def useful(
    sentences: Sentences, templates: Sequence[ArcTemplate], constant_too: bool = False
) -> tuple[list[ArcTemplate], list[str]]:
    """The templates without those that look at an attribute that has one value only, unless these too are wanted, and
    what there is to say of it."""
    names = sorted({name for template in templates for name in template.attributes})
    constant = [name for name in names if len(np.unique(attribute(sentences, name).codes)) < 2]
    kept = [template for template in templates if not template.attributes & {*constant}]
    if constant and constant_too:
        again = f"{len(templates) - len(kept)} of {len(templates)} templates say again what coarser ones say"
        return list(templates), [f"{', '.join(constant)} has one value only: {again}"]
    if not kept:
        raise UserError(f"every template looks at {', '.join(constant)}, of which there is one value only")
    if len(kept) == len(templates):
        return kept, []
    return kept, [f"{', '.join(constant)} has one value only: {len(kept)} of {len(templates)} templates are left"]
