"""Planted tagging: sentences drawn from a seeded model in which only some feature templates matter.

A word is a stem of four letters, marks, and an ending of three letters, so that `prefix4`, `case` and `suffix3`
read one part each. The part of speech takes random steps around a circle and influences the ending. Tags are drawn
from a linear-chain conditional random field,

    p(tags | words, pos)  ~  exp( sum_t transition(tag_t-1, tag_t) + sum_k weight_k(value_k(t), tag_t) )

with one table of weights for each planted template `k`. Some values of the template have weights in favour of O or of
a span type; all other values have weight zero. The tables are balanced: among stems that share three letters
(`prefix3`), endings that share two (`suffix2`), and pairs of parts of speech that share one (`pos[0]`, `pos[-1]`),
equally many favour each type. Coarser templates are therefore uninformative, and finer templates (`suffix4`, `shape`,
`word`) add no information.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress

import numpy as np

from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.tags import convert

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
KINDS = np.array([0, 1, 1, 2, 2])  # [labels], 0 for O, 1 and 2 for the span types
TO_OUTSIDE, TO_INSIDE = 8.0, 4.0  # weights of transitions to O and to I; transitions to B have weight 0
STRENGTHS = {"prefix4[0]": 16.0, "suffix3[0]": 13.0, "suffix3[-1]": 11.0, "case[0]": 17.0, "pos[-1..0]": 11.0}

LETTERS = "bcdfghjklmnpqrstvwxz"  # the last letters of the stems, and the first of the endings, of a family
FAMILY_KINDS = (0, 0, 0, 1, 2)  # kinds (O or span type) that five random members of a family favour
STEM_FAMILIES = tuple(a + b + c for a in "bdgklmnprst" for b in "aeio" for c in "lmnrs")
FAMILIES_USED = 10  # number of random stem families in the language, with Zipf frequencies
ENDING_FAMILIES = ("en", "es", "is")
MARKS = {"K": 0.025, "-": 0.1, "7": 0.1}  # characters between stem and ending, with their probabilities
POS = ("ADJ", "ADV", "DET", "NOUN", "NUM", "PREP", "PRON", "VERB")
STEP_MASS = (
    0.05,
    0.3,
    0.22,
    0.1,
    0.16,
    0.05,
    0.07,
    0.05,
)  # probabilities of 0 to 7 steps around the circle
STEP_KINDS = {3: 0, 5: 1, 7: 2}  # the kinds that three of these steps favour
SHORTEST, MEAN_LENGTH = 3, 18  # numbers of tokens of a sentence


@dataclass(frozen=True, eq=False)
class Table:
    """Weights of one planted feature template: for each value with nonzero weights and each label."""

    values: tuple[tuple[str, ...], ...]  # each value as an n-gram from left to right
    weights: np.ndarray  # [values, labels]


@dataclass(frozen=True, eq=False)
class Truth:
    """The conditional random field that planted tags are drawn from, before noise."""

    labels: tuple[str, ...]  # the first is O, the label before every sentence
    transitions: np.ndarray  # [labels before, labels]
    tables: Mapping[str, Table]  # weights by the name of the template


@dataclass(frozen=True, eq=False)
class PlantedTagging:
    """A planted tagging corpus and its model."""

    train: Sentences
    dev: Sentences
    test: Sentences
    truth: Truth

    @property
    def templates(self) -> tuple[str, ...]:
        """The planted feature templates: those with nonzero weights in the true model."""
        return tuple(self.truth.tables)


@dataclass(frozen=True, eq=False)
class _Language:
    """Stems, endings and parts of speech that planted tagging sentences are drawn from."""

    stems: tuple[str, ...]  # all stems, family after family
    endings: tuple[str, ...]  # all endings, family after family
    circle: tuple[str, ...]  # parts of speech in the order of the circle
    ending_mass: np.ndarray  # [pos, families], probabilities of the families of endings given the part of speech


@dataclass(frozen=True, eq=False)
class _SentenceCodes:
    """Planted tagging sentences as codes.  [sentences, time] each"""

    inside: np.ndarray  # false after the end of a sentence
    pos: np.ndarray
    stem: np.ndarray
    marks: tuple[np.ndarray, ...]  # whether a word has each mark
    ending: np.ndarray


def planted_tagging(
    seed: int = 0, train: int = 2000, dev: int = 400, test: int = 400, noise: float = 0.01
) -> PlantedTagging:
    """Planted sentences with columns word, pos and tag (iob2); `noise` is the share of random tags."""
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(5)]
    language = _draw_language(streams[0])
    truth = _draw_truth(streams[1], language)
    text = _draw_text(streams[2], language, train + dev + test)
    tags = _draw_tags(streams[3], truth, _emissions(truth, language, text), text.inside)[text.inside]
    noisy = streams[4].random(len(tags)) < noise
    tags = np.where(noisy, streams[4].integers(len(LABELS), size=len(tags)), tags)  # [tokens]
    strings = {
        "word": _words(language, text),
        "pos": [language.circle[code] for code in text.pos[text.inside]],
        "tag": [LABELS[code] for code in tags],
    }
    bounds = np.concatenate([[0], np.cumsum(text.inside.sum(axis=1))])  # [sentences + 1]
    splits, begin = {}, 0
    for name, size in (("train", train), ("dev", dev), ("test", test)):
        offsets, begin = bounds[begin : begin + size + 1], begin + size
        splits[name] = _sentences(strings, offsets, f"planted tagging (seed {seed}), {name}")
    return PlantedTagging(**splits, truth=truth)


def _sentences(strings: dict[str, list[str]], offsets: np.ndarray, source: str) -> Sentences:
    """The planted tagged sentences between the given offsets as the corpus `source`, with stray tags repaired."""
    first, last = offsets[[0, -1]]
    columns = {name: Column.from_strings(column[first:last]) for name, column in strings.items()}
    sentences = Sentences(columns, offsets - first, source)
    legal, _ = convert(sentences, "tag", "iob2", "iob2")  # noise makes stray tags
    return sentences.with_column("tag", legal)


def _draw_language(rng: np.random.Generator) -> _Language:
    """Random stems, endings and parts of speech for planted tagging."""
    families = [STEM_FAMILIES[k] for k in rng.permutation(len(STEM_FAMILIES))[:FAMILIES_USED]]
    stems = tuple(family + letter for family in families for letter in LETTERS)
    endings = tuple(letter + family for family in ENDING_FAMILIES for letter in LETTERS)
    circle = tuple(POS[k] for k in rng.permutation(len(POS)))
    return _Language(stems, endings, circle, rng.dirichlet(np.ones(len(ENDING_FAMILIES)), len(POS)))


def _draw_truth(rng: np.random.Generator, language: _Language) -> Truth:
    """A random model of planted tags: for each planted template the values with nonzero weights, and these weights."""
    circle = language.circle
    steps = {
        (before, circle[(k + step) % len(circle)]): kind
        for step, kind in STEP_KINDS.items()
        for k, before in enumerate(circle)
    }
    speakers = {
        "prefix4[0]": _draw_speakers(rng, language.stems),
        "suffix3[0]": _draw_speakers(rng, language.endings),
        "suffix3[-1]": _draw_speakers(rng, language.endings),
        "case[0]": {("mixed",): int(rng.integers(1, KINDS.max() + 1))},
        "pos[-1..0]": steps,
    }
    tables = {}
    for template, kinds in speakers.items():
        loudness = STRENGTHS[template] * rng.uniform(0.9, 1.1, (len(kinds), 1))
        tables[template] = Table(tuple(kinds), loudness * (np.array(list(kinds.values()))[:, None] == KINDS))
    begins = np.array([label.startswith("B") for label in LABELS])
    continues = np.where(KINDS[:, None] == KINDS, TO_INSIDE, -np.inf)
    return Truth(LABELS, np.where(KINDS == 0, TO_OUTSIDE, np.where(begins, 0.0, continues)), tables)


def _draw_speakers(rng: np.random.Generator, members: tuple[str, ...]) -> dict[tuple[str, ...], int]:
    """Random stems or endings with nonzero weights, equally many of each family, and the kind that each favours."""
    speakers = {}
    for first in range(0, len(members), len(LETTERS)):
        chosen = first + rng.permutation(len(LETTERS))[: len(FAMILY_KINDS)]
        speakers |= {(members[k],): kind for k, kind in zip(chosen, FAMILY_KINDS, strict=True)}
    return speakers


def _draw_text(rng: np.random.Generator, language: _Language, sentences: int) -> _SentenceCodes:
    """Random sentences for planted tagging: parts of speech, stems, marks and endings."""
    lengths = SHORTEST + rng.poisson(MEAN_LENGTH - SHORTEST, sentences)
    shape = sentences, max(lengths, default=0)
    steps = rng.choice(len(POS), shape, p=STEP_MASS)
    steps[:, :1] = rng.integers(len(POS), size=(sentences, 1))
    pos = np.cumsum(steps, axis=1) % len(POS)
    zipf = 1 / np.arange(1, FAMILIES_USED + 1)
    family, ending_family = rng.choice(FAMILIES_USED, shape, p=zipf / zipf.sum()), _draw(rng, language.ending_mass[pos])
    stem, ending = (len(LETTERS) * f + rng.integers(len(LETTERS), size=shape) for f in (family, ending_family))
    marks = tuple(rng.random(shape) < probability for probability in MARKS.values())
    return _SentenceCodes(np.arange(shape[1]) < lengths[:, None], pos, stem, marks, ending)


def _draw(rng: np.random.Generator, mass: np.ndarray) -> np.ndarray:
    """A random code (part of speech, tag) for each row of masses, which need not sum to 1.  [..., codes] to [...]"""
    bounds = np.cumsum(mass, axis=-1)
    return (rng.random((*mass.shape[:-1], 1)) * bounds[..., -1:] >= bounds).sum(axis=-1)


def _emissions(truth: Truth, language: _Language, text: _SentenceCodes) -> np.ndarray:
    """Scores of planted labels at each token, without transition scores: float64 [sentences, time, labels]"""
    pairs = [(before, pos) for before in language.circle for pos in language.circle]
    pair = len(POS) * np.roll(text.pos, 1, axis=1) + text.pos
    ending_before = np.roll(text.ending, 1, axis=1)
    pair[:, :1] = ending_before[:, :1] = -1  # no part of speech and no ending before the first token
    capital = text.marks[list(MARKS).index("K")]
    readings = {  # the values of each template, and the code of each token's value, -1 for none
        "prefix4[0]": ([(stem,) for stem in language.stems], text.stem),
        "suffix3[0]": ([(ending,) for ending in language.endings], text.ending),
        "suffix3[-1]": ([(ending,) for ending in language.endings], ending_before),
        "case[0]": ([("mixed",)], np.where(capital, 0, -1)),
        "pos[-1..0]": (pairs, pair),
    }
    scores = np.zeros((*text.pos.shape, len(LABELS)))
    for template, (values, codes) in readings.items():
        table = truth.tables[template]
        weights = np.zeros((len(values) + 1, len(LABELS)))  # the last row, code -1, stays zero
        weights[[values.index(value) for value in table.values]] = table.weights
        scores += weights[codes]
    return scores


def _draw_tags(rng: np.random.Generator, truth: Truth, emissions: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Draw planted labels exactly from the conditional random field by forward filtering, backward sampling.

    [sentences, time, labels] and [sentences, time] to [sentences, time]
    """
    move = np.exp(truth.transitions)  # [labels before, labels]
    evidence = np.exp(emissions - emissions.max(axis=-1, keepdims=True))
    forward = np.empty_like(evidence)
    arriving = move[0]  # the label before a sentence is O
    for time in range(inside.shape[1]):
        mass = evidence[:, time] * arriving
        forward[:, time] = mass / mass.sum(axis=-1, keepdims=True)
        arriving = forward[:, time] @ move
    labels = np.zeros(inside.shape, dtype=np.int64)
    leaving = np.ones((len(inside), len(LABELS)))  # [sentences, labels]
    for time in reversed(range(inside.shape[1])):
        labels[:, time] = _draw(rng, forward[:, time] * leaving)
        leaving = np.where(inside[:, time, None], move.T[labels[:, time]], 1.0)
    return labels


def _words(language: _Language, text: _SentenceCodes) -> list[str]:
    """The spelling of every planted tagging token: stem, marks, ending."""
    stems, endings = (codes[text.inside].tolist() for codes in (text.stem, text.ending))
    marks = zip(*(present[text.inside].tolist() for present in text.marks), strict=True)
    return [
        language.stems[stem] + "".join(compress(MARKS, present)) + language.endings[ending]
        for stem, present, ending in zip(stems, marks, endings, strict=True)
    ]
