"""Planted tagging: sentences drawn from a seeded model in which only some feature templates matter.

- A word is a stem of four letters, optional marks, and an ending of three letters. The template `prefix4` depends on
  the stem only, `case` on the marks, and `suffix3` on the ending.
- Parts of speech are arranged in a circle. From token to token, the part of speech moves a random number of steps.
- Tags are drawn from a linear-chain conditional random field. The probability of the tags is proportional to

    exp( sum_t ( transition(tag_t-1, tag_t) + sum_k weight_k(value_k(t), tag_t) ) )

Here t runs over the tokens, k over the planted templates, and value_k(t) is the value of template k at token t. Some
values of a template have weights in favour of O or of a span type. All other values have weight zero.

The weights are balanced: coarser templates (`prefix3`, `suffix2`, `pos[0]`) are uninformative. Finer templates
(`suffix4`, `shape`, `word`) add no information."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress

import numpy as np

from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.tags import convert

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
KINDS = np.array([0, 1, 1, 2, 2])  # kind of each label: 0 for O, 1 and 2 for the span types
TO_OUTSIDE, TO_INSIDE = 8.0, 4.0  # weights of transitions to O and to I labels; transitions to B labels have weight 0
# scale of the weights of each planted template
STRENGTHS = {"prefix4[0]": 16.0, "suffix3[0]": 13.0, "suffix3[-1]": 11.0, "case[0]": 17.0, "pos[-1..0]": 11.0}

# A family is all stems with the same first three letters, or all endings with the same last two letters.
LETTERS = "bcdfghjklmnpqrstvwxz"  # the remaining letter: the last one of a stem, the first one of an ending
# five random stems or endings of each family have nonzero weights, in favour of these label kinds (see KINDS)
FAMILY_KINDS = (0, 0, 0, 1, 2)
STEM_FAMILIES = tuple(a + b + c for a in "bdgklmnprst" for b in "aeio" for c in "lmnrs")
FAMILIES_USED = 10  # number of stem families that are drawn; their frequencies in the corpus follow Zipf's law
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
)  # probabilities of 0 to 7 steps along the circle of parts of speech
STEP_KINDS = {3: 0, 5: 1, 7: 2}  # the label kind (see KINDS) favoured by a step of this size along the circle
SHORTEST, MEAN_LENGTH = 3, 18  # minimum and mean number of tokens of a sentence


@dataclass(frozen=True, eq=False)
class Table:
    """Planted tagging: the weights of one template, for each value that has nonzero weights and for each label."""

    values: tuple[tuple[str, ...], ...]  # each value has one string per token that the template reads, in token order
    weights: np.ndarray  # shape [values, labels]: the weight of each value for each label


@dataclass(frozen=True, eq=False)
class Truth:
    """The true model of planted tagging: the conditional random field from which tags are drawn."""

    labels: tuple[str, ...]  # names of the labels; O comes first
    transitions: np.ndarray  # shape [previous label, label]: transition weights
    tables: Mapping[str, Table]  # the weights of each template, by its name


@dataclass(frozen=True, eq=False)
class PlantedTagging:
    """A planted tagging corpus (train, dev and test) and its true model."""

    train: Sentences
    dev: Sentences
    test: Sentences
    truth: Truth

    @property
    def templates(self) -> tuple[str, ...]:
        """The planted templates of the tagging corpus, which have nonzero weights in the true model."""
        return tuple(self.truth.tables)


@dataclass(frozen=True, eq=False)
class _Language:
    """The language of planted tagging: stems, endings and parts of speech from which sentences are drawn."""

    stems: tuple[str, ...]  # all stems; stems of the same family (same first three letters) are consecutive
    endings: tuple[str, ...]  # all endings; endings of the same family (same last two letters) are consecutive
    circle: tuple[str, ...]  # parts of speech in the order of the circle
    ending_mass: np.ndarray  # shape [parts of speech, ending families]: probabilities of the families


@dataclass(frozen=True, eq=False)
class _SentenceCodes:
    """Planted tagging sentences as integer codes (arrays of shape [sentences, longest sentence])."""

    inside: np.ndarray  # bool: false after the end of a sentence
    pos: np.ndarray  # part of speech, as an index in `circle` of the language
    stem: np.ndarray  # index in `stems` of the language
    marks: tuple[np.ndarray, ...]  # a bool array for each of MARKS: whether the word has the mark
    ending: np.ndarray  # index in `endings` of the language


def planted_tagging(
    seed: int = 0, train: int = 2000, dev: int = 400, test: int = 400, noise: float = 0.01
) -> PlantedTagging:
    """Draw planted tagging sentences with the columns word, pos and tag (iob2), for train, dev and test.

    `noise` is the share of tags that are replaced by random tags."""
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
    bounds = np.concatenate([[0], np.cumsum(text.inside.sum(axis=1))])  # first token of each sentence
    splits, begin = {}, 0
    for name, size in (("train", train), ("dev", dev), ("test", test)):
        offsets, begin = bounds[begin : begin + size + 1], begin + size
        splits[name] = _sentences(strings, offsets, f"planted tagging (seed {seed}), {name}")
    return PlantedTagging(**splits, truth=truth)


def _sentences(strings: dict[str, list[str]], offsets: np.ndarray, source: str) -> Sentences:
    """Planted tagging: make the sentences of train, dev or test from the columns of all tokens.

    `offsets` has the first token of each sentence. Tags that break the scheme iob2 are repaired."""
    first, last = offsets[[0, -1]]
    columns = {name: Column.from_strings(column[first:last]) for name, column in strings.items()}
    sentences = Sentences(columns, offsets - first, source)
    legal, _ = convert(sentences, "tag", "iob2", "iob2")  # repairs tags that break the scheme iob2 because of noise
    return sentences.with_column("tag", legal)


def _draw_language(rng: np.random.Generator) -> _Language:
    """Planted tagging: draw the language, which has random stems, endings and parts of speech."""
    families = [STEM_FAMILIES[k] for k in rng.permutation(len(STEM_FAMILIES))[:FAMILIES_USED]]
    stems = tuple(family + letter for family in families for letter in LETTERS)
    endings = tuple(letter + family for family in ENDING_FAMILIES for letter in LETTERS)
    circle = tuple(POS[k] for k in rng.permutation(len(POS)))
    return _Language(stems, endings, circle, rng.dirichlet(np.ones(len(ENDING_FAMILIES)), len(POS)))


def _draw_truth(rng: np.random.Generator, language: _Language) -> Truth:
    """Planted tagging: draw the true model.

    For each planted template, draw the values that have nonzero weights, and the weights."""
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
    """Planted tagging: draw the stems or endings that have nonzero weights, and the label kind that each favours.

    The label kinds are O and the two span types."""
    speakers = {}
    for first in range(0, len(members), len(LETTERS)):
        chosen = first + rng.permutation(len(LETTERS))[: len(FAMILY_KINDS)]
        speakers |= {(members[k],): kind for k, kind in zip(chosen, FAMILY_KINDS, strict=True)}
    return speakers


def _draw_text(rng: np.random.Generator, language: _Language, sentences: int) -> _SentenceCodes:
    """Planted tagging: draw sentences with parts of speech, stems, marks and endings, but without tags."""
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
    """Planted tagging: draw a random code (ending family or tag) for each row of `mass`.

    The last axis of `mass` has the probabilities of the codes, not normalized."""
    bounds = np.cumsum(mass, axis=-1)
    return (rng.random((*mass.shape[:-1], 1)) * bounds[..., -1:] >= bounds).sum(axis=-1)


def _emissions(truth: Truth, language: _Language, text: _SentenceCodes) -> np.ndarray:
    """Planted tagging: the scores of the labels at each token, without transition scores.

    Returns a float64 array of shape [sentences, tokens, labels]."""
    pairs = [(before, pos) for before in language.circle for pos in language.circle]
    pair = len(POS) * np.roll(text.pos, 1, axis=1) + text.pos
    ending_before = np.roll(text.ending, 1, axis=1)
    pair[:, :1] = ending_before[:, :1] = -1  # no part of speech and no ending before the first token
    capital = text.marks[list(MARKS).index("K")]
    readings = {  # for each template: all values, and the index of the value of each token (-1: none)
        "prefix4[0]": ([(stem,) for stem in language.stems], text.stem),
        "suffix3[0]": ([(ending,) for ending in language.endings], text.ending),
        "suffix3[-1]": ([(ending,) for ending in language.endings], ending_before),
        "case[0]": ([("mixed",)], np.where(capital, 0, -1)),
        "pos[-1..0]": (pairs, pair),
    }
    scores = np.zeros((*text.pos.shape, len(LABELS)))
    for template, (values, codes) in readings.items():
        table = truth.tables[template]
        weights = np.zeros((len(values) + 1, len(LABELS)))  # the last row stays zero; it is for tokens without a value
        weights[[values.index(value) for value in table.values]] = table.weights
        scores += weights[codes]
    return scores


def _draw_tags(rng: np.random.Generator, truth: Truth, emissions: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Planted tagging: draw labels exactly from the conditional random field.

    The method is forward filtering and backward sampling. `emissions` has the scores of labels at each token. `inside`
    is false after the end of a sentence."""
    move = np.exp(truth.transitions)  # shape [previous label, label]: exp of transition weights
    evidence = np.exp(emissions - emissions.max(axis=-1, keepdims=True))
    forward = np.empty_like(evidence)
    arriving = move[0]  # the label before a sentence is O
    for time in range(inside.shape[1]):
        mass = evidence[:, time] * arriving
        forward[:, time] = mass / mass.sum(axis=-1, keepdims=True)
        arriving = forward[:, time] @ move
    labels = np.zeros(inside.shape, dtype=np.int64)
    leaving = np.ones((len(inside), len(LABELS)))  # exp of the transition weight to the next label
    for time in reversed(range(inside.shape[1])):
        labels[:, time] = _draw(rng, forward[:, time] * leaving)
        leaving = np.where(inside[:, time, None], move.T[labels[:, time]], 1.0)
    return labels


def _words(language: _Language, text: _SentenceCodes) -> list[str]:
    """Planted tagging: the spelling of every token, made of stem, marks and ending."""
    stems, endings = (codes[text.inside].tolist() for codes in (text.stem, text.ending))
    marks = zip(*(present[text.inside].tolist() for present in text.marks), strict=True)
    return [
        language.stems[stem] + "".join(compress(MARKS, present)) + language.endings[ending]
        for stem, present, ending in zip(stems, marks, endings, strict=True)
    ]
