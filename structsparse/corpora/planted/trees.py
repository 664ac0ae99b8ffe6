"""Planted trees: sentences drawn from a seeded model in which only some kinds of features of arcs matter.

A word is a lemma and an ending; its lemma tells its part of speech, its ending its `xpos`. Parts of speech follow each
other as in a Markov chain. The trees of a sentence, which have one root, have probabilities

    p(tree | sentence)  ~  exp( sum over its arcs from h to m of
        direction[upos_h, upos_m, left or right of h] + valency[lemma_h, upos_m] + distance[|h - m|] )

where the root stands at 0, before the first word, and has a part of speech of its own and no lemma. They are drawn
exactly, so that no other kind of feature says anything more. The tables are balanced: what speaks for an arc to the
left speaks against one to the right; lemmas come in pairs, equally frequent, of which one likes what the other
dislikes. So neither `upos_h & upos_m` nor `upos_h & upos_m & distance` tells much. Word forms, `xpos`, neighbours, and
what stands between do not matter. How much distance counts is chosen so that a given share of the arcs is not
projective. The relation of a word follows from its part of speech, that of its head and the direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.conllu import TreeReader
from structsparse.corpora.treebank import Treebank, nonprojective

KINDS = ("upos[h] & upos[m] & direction", "lemma[h] & upos[m]", "distance")  # of features, that matter
UPOS = ("ADJ", "ADP", "ADV", "DET", "NOUN", "PROPN", "PUNCT", "VERB")
MARKS = ",.;:!?"  # the lemmas of punctuation
PAIR_MASS = (3, 2, 1)  # how often each pair of the lemmas of a part of speech is used, relative to the others
LEMMAS = 2 * len(PAIR_MASS)  # of a part of speech
ENDINGS = ("", "n", "sta")
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
RELATIONS = ("acl", "amod", "case", "dep", "nsubj", "obj", "obl")
BINS = (1, 2, 3, 4, 5, 6, 11)  # the least distance of each bin
STRENGTH = 3.0  # of directions and valencies, give or take a half
ROOT_SPREAD = 3.0  # standard deviation of what speaks for a root
MOST = 7.0  # that a unit of distance counts: beyond it, inverses lose too many digits
SHORTEST, MEAN_LENGTH = 4, 12  # of a sentence
PILOT = 400  # sentences by which the effect of distance is chosen
CHUNK = 1000  # sentences drawn at once
LEFT, RIGHT = 0, 1


@dataclass(frozen=True, eq=False)
class Truth:
    """What decides. Lemmas are numbered part of speech by part of speech, LEMMAS of each."""

    lemmas: tuple[str, ...]
    root: np.ndarray  # [upos], of its one word
    direction: np.ndarray  # [upos of the head, upos, LEFT or RIGHT of the head]
    valency: np.ndarray  # [lemma of the head, upos]
    distance: np.ndarray  # [bins]
    relations: np.ndarray  # codes into RELATIONS.  [upos of the head, upos, LEFT or RIGHT of the head]


@dataclass(frozen=True, eq=False)
class PlantedTreebank:
    train: Treebank
    dev: Treebank
    test: Treebank
    truth: Truth


@dataclass(frozen=True, eq=False)
class _Text:
    """Sentences as codes.  [sentences, time] each"""

    inside: np.ndarray  # false beyond the end of a sentence
    lemma: np.ndarray
    ending: np.ndarray

    @property
    def upos(self) -> np.ndarray:
        return self.lemma // LEMMAS

    def part(self, begin: int, end: int) -> _Text:
        return _Text(self.inside[begin:end], self.lemma[begin:end], self.ending[begin:end])


def planted_treebank(
    seed: int = 0, train: int = 1000, dev: int = 300, test: int = 300, nonprojective: float = 0.05
) -> PlantedTreebank:
    """`nonprojective` is about the share of arcs that are not projective."""
    sizes = {"train": train, "dev": dev, "test": test}
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"data.{name} is {size}, expected a sentence at least")
    words, tables, pilot, texts, trees = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(5))
    chain = words.dirichlet(np.full(len(UPOS), 0.7), len(UPOS))  # [upos before, upos]
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
    """All lemmas, part of speech by part of speech."""
    syllables = [a + b for a, b in product(CONSONANTS, VOWELS)]
    stems = [a + b for a, b in product(syllables, syllables)]
    chosen = iter(rng.permutation(len(stems))[: len(UPOS) * LEMMAS].tolist())
    return tuple(MARKS[k] if upos == "PUNCT" else stems[next(chosen)] for upos in UPOS for k in range(LEMMAS))


def _draw_truth(rng: np.random.Generator, lemmas: tuple[str, ...]) -> Truth:
    """All but how much distance counts, which is nothing yet."""
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


def _choose_distance(truth: Truth, text: _Text, wanted: float, seed: int) -> Truth:
    """The effect of distance under which so many arcs are not projective; the more distance counts, the fewer are."""

    def share(effect: float) -> tuple[float, Truth]:
        tried = Truth(**{**vars(truth), "distance": -effect * np.log2(BINS)})
        heads = draw_trees(np.random.default_rng(seed), tried, text)[text.inside]
        offsets = np.concatenate([[0], np.cumsum(text.inside.sum(axis=1))])
        return float(nonprojective(heads, offsets).mean()), tried

    low, high = 0.0, MOST
    fewest, most = share(high)[0], share(low)[0]
    if not fewest <= wanted <= most:
        raise UserError(f"data.nonprojective is {wanted:g}, expected a share of arcs from {fewest:.2g} to {most:.2g}")
    for _ in range(12):
        middle = (low + high) / 2
        found, tried = share(middle)
        low, high = (middle, high) if found > wanted else (low, middle)
    return tried


def _draw_text(rng: np.random.Generator, chain: np.ndarray, sentences: int) -> _Text:
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
    return _Text(np.arange(shape[1]) < lengths[:, None], lemma, ending)


def draw_trees(rng: np.random.Generator, truth: Truth, text: _Text) -> np.ndarray:
    """A tree for each sentence: heads from 1 on, 0 the root.  int64 [sentences, time]"""
    heads = np.zeros(text.inside.shape, dtype=np.int64)
    for begin in range(0, len(heads), CHUNK):
        part = text.part(begin, begin + CHUNK)
        heads[begin : begin + CHUNK] = _draw_heads(rng, *_arc_weights(truth, part), part.inside)
    return heads


def _arc_weights(truth: Truth, text: _Text) -> tuple[np.ndarray, np.ndarray]:
    """exp of the score of each arc, of a word's arcs relative to the best one: [sentences, head, word], and of those
    from the root: [sentences, word]. Nothing leads to or from beyond a sentence."""
    place = np.arange(text.inside.shape[1])
    side = np.where(place > place[:, None], RIGHT, LEFT)  # of the head.  [head, word]
    upos = text.upos
    scores = truth.direction[upos[:, :, None], upos[:, None, :], side]
    scores = scores + truth.valency[text.lemma[:, :, None], upos[:, None, :]]
    scores += truth.distance[distance_bin(np.abs(place - place[:, None]))]
    roots = truth.root[upos] + truth.distance[distance_bin(place + 1)]
    there = text.inside[:, :, None] & text.inside[:, None, :] & (place != place[:, None])
    scores = np.where(there, scores, -np.inf)
    best = np.where(text.inside, scores.max(axis=1), 0)  # all have two words at least
    roots = np.where(text.inside, roots - best, -np.inf)
    return np.exp(scores - best[:, None]), np.exp(roots - roots.max(axis=1, keepdims=True))


def distance_bin(distance: np.ndarray) -> np.ndarray:
    """0 where there is no distance, which no arc has, counts as 1."""
    return np.maximum(np.searchsorted(BINS, distance, side="right") - 1, 0)


def _draw_heads(rng: np.random.Generator, arcs: np.ndarray, roots: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Trees with one root, drawn exactly: the root first, then the head of one word after the other given all before.

    By the matrix-tree theorem the weights of all trees from a root sum to the determinant of a Laplacian, and inverses
    of it give the probabilities. [sentences, head, word], [sentences, word], [sentences, time] to [sentences, time]
    """
    sentences, time = np.arange(len(inside)), inside.shape[1]
    laplacian = -arcs  # [sentences, head, word]
    laplacian[:, range(time), range(time)] = np.where(inside, arcs.sum(axis=1), 1)
    rooted = laplacian.copy()
    rooted[:, 0] = roots
    root = _draw(rng, roots * np.linalg.inv(rooted)[:, :, 0])  # Koo et al. (2007): its probability
    laplacian[sentences, root], laplacian[sentences, :, root] = 0, 0
    laplacian[sentences, root, root] = 1
    inverse, heads = np.linalg.inv(laplacian), np.zeros(inside.shape, dtype=np.int64)
    for word in range(time):
        some = np.flatnonzero(inside[:, word] & (root != word))
        odds = inverse[some, word, word][:, None] - np.where(_is(root[some], time), 0, inverse[some, word])
        head = _draw(rng, arcs[some, :, word] * odds)
        heads[some, word] = head + 1
        # The column of the word becomes that of this arc alone; its inverse follows from that of the one before.
        from_root = (head == root[some])[:, None]
        column = inverse[some, :, word] - np.where(from_root, 0, inverse[some, :, head])
        row = inverse[some, word] / column[:, word][:, None]
        inverse[some] -= column[:, :, None] * row[:, None, :]
        inverse[some, word] = row
    return heads


def _is(codes: np.ndarray, count: int) -> np.ndarray:
    return codes[:, None] == np.arange(count)


def _draw(rng: np.random.Generator, mass: np.ndarray) -> np.ndarray:
    """One code of each row, whose mass need not sum to 1 and may be a rounding error below 0.  [rows, codes]"""
    bounds = np.cumsum(np.maximum(mass, 0), axis=1)
    return (rng.random((len(mass), 1)) * bounds[:, -1:] >= bounds[:, :-1]).sum(axis=1)


def _written(truth: Truth, text: _Text, heads: np.ndarray) -> Sequence[str]:
    """The lines of all sentences as CoNLL-U."""
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
    reader = TreeReader(source)
    reader.take(lines)
    reader.end()
    return reader.complete()
