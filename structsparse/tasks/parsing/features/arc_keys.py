"""Keys of arc features of a parser: for each template, the sum of hashes of head, modifier, words between and distance.

- An atom is a word attribute that a template reads: (end of the arc, offset, attribute name). For example, ("m", 1,
  "upos") is the part of speech of the word after the modifier.
- Places are the positions of all words and roots. The root comes before the first word of its sentence.

Loops over arcs are compiled (`kernels/features/arc_keys.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from structsparse.corpora.columns import Sentences
from structsparse.corpora.treebank import Treebank
from structsparse.features.attributes import attribute
from structsparse.features.keys import hashes
from structsparse.kernels.features import arc_keys as kernels
from structsparse.kernels.solvers.online_trees_by_keys import TemplateAtoms
from structsparse.tasks.parsing.features.templates import AFTER, BEFORE, BETWEEN, LINKS, MARKS, ROOT, VERBS, ArcTemplate

TAGS = (  # the parts of speech of Universal Dependencies
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)
ENDS = "hm"  # the two ends of an arc: head and modifier


@dataclass(frozen=True)
class ArcKeys:
    """Arc keys of a parser: the feature keys of all arcs (head, modifier) of some sentences, by template.

    A sentence of n words has n * n arcs. Arcs are sorted by sentence, then by modifier, then by head."""

    sentences: Sentences
    templates: Sequence[ArcTemplate]

    # --- arcs

    @cached_property
    def starts(self) -> np.ndarray:
        """Arc keys: the place of the root of each sentence, then the count of places (int64 array [sentences + 1]).

        A place is an index among the words and roots of all sentences."""
        return self.sentences.offsets + np.arange(len(self.sentences) + 1)

    @cached_property
    def first_arcs(self) -> np.ndarray:
        """Arc keys: the index of the first arc of each sentence, then the count of arcs (int64 [sentences + 1])."""
        return np.concatenate([[0], np.cumsum(self.sentences.lengths.astype(np.int64) ** 2)])

    @property
    def count(self) -> int:
        """Arc keys: the number of arcs of all sentences."""
        return int(self.first_arcs[-1])

    def chosen(self, heads: np.ndarray) -> np.ndarray:
        """Arc keys: the index of the arc to each word from its head (int64 array [tokens]).

        `heads` [tokens] holds the position of each word's head in the sentence, from 1 on; 0 is the root."""
        lengths = np.repeat(self.sentences.lengths, self.sentences.lengths)
        modifiers = np.arange(len(heads)) - np.repeat(self.sentences.offsets[:-1], self.sentences.lengths) + 1
        first = np.repeat(self.first_arcs[:-1], self.sentences.lengths)
        return first + (modifiers - 1) * lengths + heads - (heads > modifiers)

    def ends(self, arc: int) -> tuple[int, int, int]:
        """Arc keys: the sentence, head and modifier of an arc, given its index; words count from 1, the root is 0."""
        sentence = int(np.searchsorted(self.first_arcs, arc, side="right")) - 1
        modifier, head = divmod(arc - int(self.first_arcs[sentence]), int(self.sentences.lengths[sentence]))
        return sentence, head + (head > modifier), modifier + 1

    # --- attributes of words

    @cached_property
    def compact(self) -> Sentences:
        """Arc keys: the sentences without unused column values, to hash only values that occur."""
        columns = {name: column.without_unused() for name, column in self.sentences.columns.items()}
        return replace(self.sentences, columns=columns)

    @cached_property
    def atoms(self) -> list[tuple[str, int, str]]:
        """Arc keys: the word attributes (atoms) that templates read: sorted tuples (end of the arc, offset, name)."""
        return sorted({atom for template in self.templates for atom in template.tokens})

    @cached_property
    def values(self) -> np.ndarray:
        """Arc keys: the hash of each atom (word attribute) at each place (word or root), as uint64 [atoms, places]."""
        values = np.empty((len(self.atoms), int(self.starts[-1])), np.uint64)
        place = np.arange(values.shape[1])
        sentence = np.searchsorted(self.starts, place, side="right") - 1
        first, last = self.starts[sentence], self.starts[sentence + 1]
        names = sorted({name for _, _, name in self.atoms})
        of_name = {name: self._hashed(name) for name in names}
        root, before, after = hashes([ROOT, BEFORE, AFTER])
        for row, (end, offset, name) in zip(values, self.atoms, strict=True):
            source = place + offset
            row[:] = of_name[name][source.clip(0, len(place) - 1)]
            row[source == first] = root
            row[source < first], row[source >= last] = before, after
            row *= hashes([f"{end}{offset}.{name}"]) | np.uint64(1)  # odd factor: distinct hashes stay distinct
        return values

    def _hashed(self, name: str) -> np.ndarray:
        """Arc keys: the hash of the attribute `name` of each word, and 0 for each root (uint64 array)."""
        column = attribute(self.compact, name)
        result = np.zeros(int(self.starts[-1]), np.uint64)
        result[self._word_places] = hashes("=" + value for value in column.values)[column.codes]
        return result

    @property
    def _word_places(self) -> np.ndarray:
        """Arc keys: the place (index among all words and roots) of each word (int64 array [tokens])."""
        roots = np.repeat(np.arange(1, len(self.starts)), self.sentences.lengths)
        return np.arange(self.sentences.tokens) + roots

    # --- words between head and modifier

    @property
    def reads_between(self) -> bool:
        """Arc keys: whether any arc template reads the words between head and modifier."""
        return any(template.between for template in self.templates)

    @cached_property
    def marks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arc keys: three arrays from which the words between head and modifier are summarised.

        - uint64 [places]: for each word, the bit that stands for its part of speech
        - int64 [places]: for each word, 1 for a verb, 2 for punctuation, 4 for a conjunction, else 0
        - uint64 [kinds]: a hash for each kind of summary in `BETWEEN`"""
        column = attribute(self.compact, "upos")
        bits = np.uint64(1) << np.array([_tag_bit(tag) for tag in column.values], np.uint64)
        sorts = [(tag in VERBS) + 2 * (tag in MARKS) + 4 * (tag in LINKS) for tag in column.values]
        parts, classes = np.zeros(int(self.starts[-1]), np.uint64), np.zeros(int(self.starts[-1]), np.int64)
        words = self._word_places
        parts[words], classes[words] = bits[column.codes], np.array(sorts, np.int64)[column.codes]
        return parts, classes, hashes(f"between.{kind}" for kind in BETWEEN)

    @cached_property
    def between(self) -> np.ndarray:
        """Arc keys: hashed summaries of the words between head and modifier (uint64 array [summaries, arcs]).

        The array is empty if no template reads the words between."""
        if not self.reads_between:
            return np.empty((0, 0), np.uint64)
        result = np.empty((len(BETWEEN), self.count), np.uint64)
        kernels.between(self.starts, self.first_arcs, *self.marks, result)
        return result

    # --- keys

    @cached_property
    def patterns(self) -> tuple[np.ndarray, ...]:
        """Arc keys: the arc templates as four arrays for the compiled kernels.

        - indices of the atoms (word attributes) of all templates, one template after another
        - [templates, 3]: where in the first array head atoms begin, modifier atoms begin, and modifier atoms end
        - [templates]: the index of the summary of the words between head and modifier; -1: none
        - [templates, 2 * BINS]: a hash for each combination of direction and distance bin"""
        number, kinds = {atom: k for k, atom in enumerate(self.atoms)}, list(BETWEEN)
        atoms, bounds = [], []
        for template in self.templates:
            bounds.append([len(atoms)])
            for end in ENDS:
                atoms += [number[atom] for atom in template.tokens if atom[0] == end]
                bounds[-1].append(len(atoms))
        gaps = [kinds.index(template.between) if template.between else -1 for template in self.templates]
        distances = np.stack([_distance_hashes(template) for template in self.templates])
        return np.array(atoms, np.int64), np.array(bounds, np.int64), np.array(gaps, np.int64), distances

    def keys(self, k: int) -> np.ndarray:
        """Arc keys: the feature keys of the arc template with index `k` on all arcs (uint64 array [arcs])."""
        atoms, bounds, gaps, distances = self.patterns
        ends, keys = np.empty((2, int(self.starts[-1])), np.uint64), np.empty(self.count, np.uint64)
        kernels.token_sums(atoms, bounds[k], self.values, ends)
        between = self.between[gaps[k]] if gaps[k] >= 0 else keys[:0]
        kernels.fold(self.starts, self.first_arcs, *ends, between, distances[k], keys)
        return keys

    @cached_property
    def template_atoms(self) -> TemplateAtoms:
        """Arc keys: hashed word attributes and templates, from which a kernel computes keys sentence by sentence."""
        atoms, bounds, gaps, distances = self.patterns
        bases = [(template.tokens, template.between) for template in self.templates]
        # A base is a template without direction and distance. `first`: base -> index of the first template with it.
        first = {base: k for k, base in reversed([*enumerate(bases)])}
        number = {base: b for b, base in enumerate(first)}
        chosen = np.fromiter(first.values(), np.int64)
        none = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.uint64)
        marks = self.marks if self.reads_between else none
        gaps = np.where(gaps < 0, len(BETWEEN), gaps)[chosen]
        base_of = np.array([number[base] for base in bases], np.int64)
        distances = np.ascontiguousarray(distances.T)
        return TemplateAtoms(self.starts, self.values, *marks, atoms, bounds[chosen], gaps, base_of, distances)

    def distinct_counts(self) -> np.ndarray:
        """Arc keys: the number of distinct features of each arc template on all arcs (int64 array [templates])."""
        return np.array([count_distinct(self.keys(k)) for k in range(len(self.templates))], np.int64)


def gold_arcs(treebank: Treebank) -> np.ndarray:
    """Whether each arc, in the order of arc keys, belongs to the gold tree (int64 array of 0 and 1)."""
    arcs = ArcKeys(treebank, ())
    gold = np.zeros(arcs.count, np.int64)
    gold[arcs.chosen(treebank.heads)] = 1
    return gold


def count_distinct(keys: np.ndarray) -> int:
    """The number of distinct arc keys in an array."""
    keys = np.sort(keys)  # sorting with vector instructions is faster than a hash table
    return int(np.count_nonzero(keys[1:] != keys[:-1])) + (len(keys) > 0)


def _tag_bit(tag: str) -> int:
    """The bit (0 to 63) that stands for a part of speech in arc keys.

    Each tag of Universal Dependencies has its own bit; all other tags share the remaining bits by hash."""
    return TAGS.index(tag) if tag in TAGS else len(TAGS) + int(hashes([tag])[0]) % (64 - len(TAGS))


def _distance_hashes(template: ArcTemplate) -> np.ndarray:
    """The hashes that a template adds to arc keys, one for each direction and distance bin (uint64 [2 * BINS])."""
    sides, bins = np.divmod(np.arange(2 * kernels.BINS), kernels.BINS)
    number = {None: 0 * sides, "direction": sides, "distance": sides * kernels.BINS + bins, "length": bins}
    return hashes(f"{template.name} at {value}" for value in number[template.place])
