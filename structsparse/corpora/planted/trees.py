"""Planted trees: sentences and trees drawn from a seeded model in which only some kinds of arc features have weights.

- A word is a lemma and an ending. The lemma determines the part of speech (upos), and the ending determines `xpos`.
- Parts of speech follow a Markov chain.
- Each tree has one root. The probability of a tree is proportional to

    exp( sum over the arcs of the tree from head h to word m of
        direction[upos_h, upos_m, left or right of h] + valency[lemma_h, upos_m] + distance[|h - m|] )

Here h and m are positions in the sentence; the root is at position 0.

The weights are balanced: arcs to the left and to the right have opposite weights, and lemmas come in equally frequent
pairs with opposite weights. Therefore coarser features such as `upos_h & upos_m` are not informative. Word forms,
`xpos` and other words of the sentence have no weights. The effect of distance is chosen to make a given share of the
arcs non-projective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.conllu import TreeReader
from structsparse.corpora.treebank import Treebank, nonprojective

KINDS = ("upos[h] & upos[m] & direction", "lemma[h] & upos[m]", "distance")  # arc features with nonzero weights
UPOS = ("ADJ", "ADP", "ADV", "DET", "NOUN", "PROPN", "PUNCT", "VERB")
MARKS = ",.;:!?"  # the lemmas of the part of speech PUNCT
PAIR_MASS = (3, 2, 1)  # relative frequencies of the three lemma pairs in each part of speech
LEMMAS = 2 * len(PAIR_MASS)  # number of lemmas of each part of speech
ENDINGS = ("", "n", "sta")
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
RELATIONS = ("acl", "amod", "case", "dep", "nsubj", "obj", "obl")
BINS = (1, 2, 3, 4, 5, 6, 11)  # arc distances are grouped into bins; this is the smallest distance in each bin
STRENGTH = 3.0  # direction and valency weights are 0.5 to 1.5 times this number, with either sign
ROOT_SPREAD = 3.0  # standard deviation of the weights of arcs from the root
MOST = 7.0  # maximum effect of distance; for larger effects, matrix inverses are inaccurate
SHORTEST, MEAN_LENGTH = 4, 12  # minimum and mean number of words of a sentence
PILOT = 400  # number of sample sentences for choosing the effect of distance
CHUNK = 1000  # number of sentences whose trees are drawn in one batch
LEFT, RIGHT = 0, 1


@dataclass(frozen=True, eq=False)
class Truth:
    """The true model that planted trees are drawn from.

    The lemmas of a part of speech have consecutive indices."""

    lemmas: tuple[str, ...]  # spellings
    root: np.ndarray  # shape [upos]: weight of the arc from the root to a word
    direction: np.ndarray  # shape [upos of head, upos of word, LEFT or RIGHT of head]: arc weights
    valency: np.ndarray  # shape [lemma of head, upos of word]: arc weights
    distance: np.ndarray  # shape [distance bins]: arc weights
    relations: np.ndarray  # shape [upos of head, upos of word, LEFT or RIGHT of head]: index in RELATIONS


@dataclass(frozen=True, eq=False)
class PlantedTreebank:
    """A treebank of planted trees (train, dev and test), and the true model of the trees."""

    train: Treebank
    dev: Treebank
    test: Treebank
    truth: Truth


@dataclass(frozen=True, eq=False)
class _SentenceCodes:
    """Sentences of planted trees as integer codes (arrays of shape [sentences, longest sentence])."""

    inside: np.ndarray  # bool: false after the end of a sentence
    lemma: np.ndarray  # index in the list of lemmas
    ending: np.ndarray  # index in ENDINGS

    @property
    def upos(self) -> np.ndarray:
        """The part of speech of each word in sentences of planted trees, as an index in UPOS."""
        return self.lemma // LEMMAS

    def part(self, begin: int, end: int) -> _SentenceCodes:
        """The sentences of planted trees from `begin` to `end` - 1."""
        return _SentenceCodes(self.inside[begin:end], self.lemma[begin:end], self.ending[begin:end])


def planted_treebank(
    seed: int = 0, train: int = 1000, dev: int = 300, test: int = 300, nonprojective: float = 0.05
) -> PlantedTreebank:
    """Draw a treebank of planted trees, in train, dev and test.

    `nonprojective` is the approximate share of non-projective arcs."""
    sizes = {"train": train, "dev": dev, "test": test}
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"data.{name} is {size}, expected at least one sentence")
    words, tables, pilot, texts, trees = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(5))
    chain = words.dirichlet(np.full(len(UPOS), 0.7), len(UPOS))  # shape [previous upos, upos]: probabilities
    truth = _choose_distance(_draw_truth(tables, _spell(words)), _draw_text(pilot, chain, PILOT), nonprojective, seed)
    text = _draw_text(texts, chain, train + dev + test)
    heads = draw_trees(trees, truth, text)
    parts, begin = {}, 0
    for name, size in sizes.items():
        end = begin + size
        source = f"planted treebank (seed {seed}), {name}"
        parts[name] = _read(source, _written(truth, text.part(begin, end), heads[begin:end]))
        begin = end
    return PlantedTreebank(**parts, truth=truth)


def _spell(rng: np.random.Generator) -> tuple[str, ...]:
    """Planted trees: draw the spellings of all lemmas, one part of speech after the other."""
    syllables = [a + b for a, b in product(CONSONANTS, VOWELS)]
    stems = [a + b for a, b in product(syllables, syllables)]
    chosen = iter(rng.permutation(len(stems))[: len(UPOS) * LEMMAS].tolist())
    return tuple(MARKS[k] if upos == "PUNCT" else stems[next(chosen)] for upos in UPOS for k in range(LEMMAS))


def _draw_truth(rng: np.random.Generator, lemmas: tuple[str, ...]) -> Truth:
    """Planted trees: draw the true model, with weight zero for all distances."""
    pos, pairs = len(UPOS), len(PAIR_MASS)
    right, first = (
        STRENGTH * rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape)
        for shape in ((pos, pos), (pos, pairs, pos))
    )
    return Truth(
        lemmas,
        root=rng.normal(0, ROOT_SPREAD, pos),
        direction=np.stack([-right, right], axis=-1),
        valency=np.stack([first, -first], axis=2).reshape(pos * LEMMAS, pos),
        distance=np.zeros(len(BINS)),
        relations=rng.integers(len(RELATIONS), size=(pos, pos, 2)),
    )


def _choose_distance(truth: Truth, text: _SentenceCodes, nonprojective_share: float, seed: int) -> Truth:
    """Planted trees: choose, by bisection, the effect of distance for a given share of non-projective arcs.

    The share is measured on the sample sentences `text`. Returns the model with the chosen effect."""

    def share(effect: float) -> tuple[float, Truth]:
        """Planted trees: try an effect of distance; returns the share of non-projective arcs, and the model."""
        tried = Truth(**{**vars(truth), "distance": -effect * np.log2(BINS)})
        heads = draw_trees(np.random.default_rng(seed), tried, text)[text.inside]
        offsets = np.concatenate([[0], np.cumsum(text.inside.sum(axis=1))])
        return float(nonprojective(heads, offsets).mean()), tried

    low, high = 0.0, MOST
    fewest, most = share(high)[0], share(low)[0]
    if not fewest <= nonprojective_share <= most:
        problem = f"data.nonprojective is {nonprojective_share:g}"
        raise UserError(f"{problem}, expected a share of arcs from {fewest:.2g} to {most:.2g}")
    for _ in range(12):
        middle = (low + high) / 2
        result, tried = share(middle)
        low, high = (middle, high) if result > nonprojective_share else (low, middle)
    return tried


def _draw_text(rng: np.random.Generator, chain: np.ndarray, sentences: int) -> _SentenceCodes:
    """Planted trees: draw sentences with parts of speech from a Markov chain, lemmas and endings."""
    lengths = SHORTEST + rng.poisson(MEAN_LENGTH - SHORTEST, sentences)
    shape = sentences, int(lengths.max(initial=0))
    bounds = np.cumsum(chain, axis=1)
    upos = np.zeros(shape, dtype=np.int64)
    upos[:, :1] = rng.integers(len(UPOS), size=(sentences, 1))
    for time in range(1, shape[1]):
        steps = rng.random((sentences, 1)) >= bounds[upos[:, time - 1], :-1]
        upos[:, time] = steps.sum(axis=1)
    pair = rng.choice(len(PAIR_MASS), shape, p=np.array(PAIR_MASS) / sum(PAIR_MASS))
    lemma = LEMMAS * upos + 2 * pair + rng.integers(2, size=shape)
    ending = np.where(upos == UPOS.index("PUNCT"), 0, rng.integers(len(ENDINGS), size=shape))
    return _SentenceCodes(np.arange(shape[1]) < lengths[:, None], lemma, ending)


def draw_trees(rng: np.random.Generator, truth: Truth, text: _SentenceCodes) -> np.ndarray:
    """Draw a planted tree for each sentence; returns the head of each word (from 1 on, 0 for the root)."""
    heads = np.zeros(text.inside.shape, dtype=np.int64)
    for begin in range(0, len(heads), CHUNK):
        part = text.part(begin, begin + CHUNK)
        heads[begin : begin + CHUNK] = _draw_heads(rng, *_arc_weights(truth, part), part.inside)
    return heads


def _arc_weights(truth: Truth, text: _SentenceCodes) -> tuple[np.ndarray, np.ndarray]:
    """Planted trees: the weights exp(score) of arcs between words, and of arcs from the root.

    Returns arrays of shape [sentences, head, word] and [sentences, word]. To avoid overflow, the weights are divided by
    factors that do not change the probabilities of trees. After the end of a sentence, weights are 0."""
    place = np.arange(text.inside.shape[1])
    side = np.where(place > place[:, None], RIGHT, LEFT)  # shape [head, word]: on which side of the head the word is
    upos = text.upos
    scores = truth.direction[upos[:, :, None], upos[:, None, :], side]
    scores = scores + truth.valency[text.lemma[:, :, None], upos[:, None, :]]
    scores += truth.distance[distance_bin(np.abs(place - place[:, None]))]
    roots = truth.root[upos] + truth.distance[distance_bin(place + 1)]
    possible = text.inside[:, :, None] & text.inside[:, None, :] & (place != place[:, None])
    scores = np.where(possible, scores, -np.inf)
    best = np.where(text.inside, scores.max(axis=1), 0)  # finite: every word has some other word as a possible head
    roots = np.where(text.inside, roots - best, -np.inf)
    return np.exp(scores - best[:, None]), np.exp(roots - roots.max(axis=1, keepdims=True))


def distance_bin(distance: np.ndarray) -> np.ndarray:
    """Planted trees: the index in BINS of each arc distance; distance 0, which no arc has, counts as 1."""
    return np.maximum(np.searchsorted(BINS, distance, side="right") - 1, 0)


def _draw_heads(rng: np.random.Generator, arcs: np.ndarray, roots: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Draw planted trees exactly: first the root, then the head of each word, given the heads already drawn.

    By the matrix-tree theorem, the inverse of a Laplacian matrix gives the probabilities of arcs. `arcs` has arc
    weights (shape [sentences, head, word]), `roots` root weights (shape [sentences, word])."""
    sentences, time = np.arange(len(inside)), inside.shape[1]
    laplacian = -arcs  # shape [sentences, head, word]
    laplacian[:, range(time), range(time)] = np.where(inside, arcs.sum(axis=1), 1)
    rooted = laplacian.copy()
    rooted[:, 0] = roots
    root = _draw(rng, roots * np.linalg.inv(rooted)[:, :, 0])  # root probabilities of Koo et al. (2007)
    laplacian[sentences, root], laplacian[sentences, :, root] = 0, 0
    laplacian[sentences, root, root] = 1
    inverse, heads = np.linalg.inv(laplacian), np.zeros(inside.shape, dtype=np.int64)
    for word in range(time):
        open_ = np.flatnonzero(inside[:, word] & (root != word))  # sentences where the word needs a head
        odds = inverse[open_, word, word][:, None] - np.where(_is(root[open_], time), 0, inverse[open_, word])
        head = _draw(rng, arcs[open_, :, word] * odds)
        heads[open_, word] = head + 1
        # The drawn arc changes one column of the Laplacian: this is a rank-one update of the inverse.
        from_root = (head == root[open_])[:, None]
        column = inverse[open_, :, word] - np.where(from_root, 0, inverse[open_, :, head])
        row = inverse[open_, word] / column[:, word][:, None]
        inverse[open_] -= column[:, :, None] * row[:, None, :]
        inverse[open_, word] = row
    return heads


def _is(codes: np.ndarray, count: int) -> np.ndarray:
    """Planted trees: a one-hot vector of length `count` for each head index in `codes` (bool array)."""
    return codes[:, None] == np.arange(count)


def _draw(rng: np.random.Generator, mass: np.ndarray) -> np.ndarray:
    """Planted trees: draw a random head for each row of `mass`, an array of shape [rows, heads].

    A row has the probabilities of heads, not normalized. Rounding may make them slightly negative."""
    bounds = np.cumsum(np.maximum(mass, 0), axis=1)
    return (rng.random((len(mass), 1)) * bounds[:, -1:] >= bounds[:, :-1]).sum(axis=1)


def _written(truth: Truth, text: _SentenceCodes, heads: np.ndarray) -> Sequence[str]:
    """Write planted trees as lines of CoNLL-U."""
    lines = []
    for k, inside in enumerate(text.inside):
        codes = (part[k, inside].tolist() for part in (text.lemma, text.upos, text.ending, heads))
        words = list(zip(*codes, strict=True))
        forms = [truth.lemmas[lemma] + ENDINGS[ending] for lemma, _, ending, _ in words]
        lines += [f"# sent_id = {k + 1}", f"# text = {' '.join(forms)}"]
        for place, (form, (lemma, upos, ending, head)) in enumerate(zip(forms, words, strict=True), 1):
            side = RIGHT if place > head else LEFT
            relation = RELATIONS[truth.relations[words[head - 1][1], upos, side]] if head else "root"
            fields = form, truth.lemmas[lemma], UPOS[upos], f"{UPOS[upos].lower()}{ending + 1}", "_"
            lines.append("\t".join([str(place), *fields, str(head), relation, "_", "_"]))
        lines.append("")
    return lines


def _read(source: str, lines: Sequence[str]) -> Treebank:
    """Read the treebank of planted trees from lines of CoNLL-U."""
    reader = TreeReader(source)
    reader.take(lines)
    reader.end()
    return reader.complete()
