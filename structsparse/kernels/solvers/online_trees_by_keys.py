"""Online tree kernels by hashed keys: learning of dependency parsers with a growing hash table of weights.

- The score of an arc is the sum of the weights of its features, one feature per template.
- Each feature has a hashed key. The keys of an arc are computed whenever they are needed.
- A base is a feature template without the direction and the distance of the arc. Several templates may share a base.
- The key adds up hashes of the head token, the modifier token, the words between them, and direction with distance. The
  sums for each token and each base are computed once per sentence.
- A feature gets a row in the table when an update first changes its weight.

All kernels run on one thread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.features.arc_keys import between, finalized, side_and_distance
from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.solvers.online_trees import add_cost, tree_score
from structsparse.kernels.structures.best_trees import room, solve
from structsparse.kernels.weights.key_table import AHEAD, fetch, fetch_row, find, first_slot, put, weigh

KINDS = 5  # count of the ways to summarise the words between head and modifier, such as the set of their tags
_ONE = np.uint64(1)


class TemplateAtoms(NamedTuple):
    """Online tree kernel by hashed keys: hashes of token attributes (atoms), and how templates combine them.

    The key of a feature sums such hashes and others, and mixes the bits of the sum. A base is a template without the
    direction and the distance of the arc. The root of each sentence is a token before its words."""

    starts: np.ndarray  # int64 [sentences + 1]: the token index of the root of each sentence; its words follow
    values: np.ndarray  # uint64 [attributes, tokens]: hash of each attribute of each token
    parts: np.ndarray  # uint64 [tokens]: the part of speech, as the one bit that is set; empty if no template needs it
    classes: np.ndarray  # int64, as long as `parts`: bits that mark verbs, punctuation and conjunctions
    salts: np.ndarray  # uint64 [KINDS]: hash salt for each way to summarise the words between head and modifier
    atoms: np.ndarray  # int64: for one base after the other, the indices of the attributes that it uses
    bounds: np.ndarray  # int64 [bases, 3]: offsets into `atoms`: first head attribute, first modifier attribute, end
    gaps: np.ndarray  # int64 [bases]: which summary of words between head and modifier a base uses; KINDS for none
    bases: np.ndarray  # int64 [templates]: index of the base (template without direction and distance) of each template
    places: np.ndarray  # uint64 [2 * BINS, templates]: hash to add for each pair of arc direction and distance bin


class KeyedRows(NamedTuple):
    """Online tree kernel by hashed keys: the features of a growing weight table, row by row, with room for more."""

    keys: np.ndarray  # uint64 [maximum rows]: the feature key of each row
    templates: np.ndarray  # int32 [maximum rows]: the template that the feature of each row comes from
    past: np.ndarray  # float32 [maximum rows]: sum of (weight change * count of earlier sentences); empty if not used


class PartialKeys(NamedTuple):
    """Online tree kernel by hashed keys: partial keys of the tokens of one sentence.

    A partial key is a sum of some of the hashes that make up a feature key. A base is a template without the direction
    and the distance of the arc."""

    heads: np.ndarray  # uint64 [tokens, bases]: sum of the hashes of each token as a head
    modifiers: np.ndarray  # uint64 [tokens, bases]: sum of the hashes of each token as a modifier
    between: np.ndarray  # uint64 [KINDS + 1, arcs]: hashed summaries of words between head and modifier; last row 0
    bases: np.ndarray  # uint64 [bases]: partial keys of one arc, without direction and distance
    keys: np.ndarray  # uint64 [2, templates]: feature keys of the current and the previous arc, in alternating rows


class TreeDifference(NamedTuple):
    """Online tree kernel by hashed keys: the feature counts of one tree minus those of another.

    The counts are in a hash table with one cell per feature. Between updates all cells are empty."""

    keys: np.ndarray  # uint64 [cells]: the feature key of each cell; the count of cells is a power of two
    counts: np.ndarray  # int32 [cells]: the count of the feature of each cell
    templates: np.ndarray  # int32 [cells]: the template of the feature, or -1 in an empty cell
    used: np.ndarray  # int64 [maximum features]: the indices of the cells in use
    shift: np.uint64  # number of bits; the search for a key begins at cell key >> shift


@njit(**PLAIN)
def partial_keys_for(atoms, longest):
    """Online tree kernel by hashed keys: work memory for partial keys, for sentences of at most `longest` words."""
    bases, templates = len(atoms.gaps), len(atoms.bases)
    arcs = longest**2 if len(atoms.parts) else 0
    return PartialKeys(
        np.empty((longest + 1, bases), np.uint64), np.empty((longest + 1, bases), np.uint64),
        np.zeros((KINDS + 1, arcs), np.uint64), np.empty(bases, np.uint64), np.empty((2, templates), np.uint64),
    )  # fmt: skip


@njit(**PLAIN)
def difference_for(templates, longest):
    """Online tree kernel by hashed keys: an empty hash table for the feature difference of two trees.

    The table has room for trees of at most `longest` words."""
    most, bits = 2 * longest * templates, 4
    while (1 << bits) < 2 * most:
        bits += 1
    size = 1 << bits
    keys, counts, owners = np.empty(size, np.uint64), np.zeros(size, np.int32), np.full(size, -1, np.int32)
    return TreeDifference(keys, counts, owners, np.empty(most, np.int64), np.uint64(64 - bits))


@njit(**PLAIN)
def sum_atoms(says, sentence, sums):
    """Online tree kernel by hashed keys: sum the atoms of a sentence into partial keys.

    Atoms are hashes of token attributes. Fills `sums` with the sums of each token as a head, the sums of each token as
    a modifier, and the hashed summaries of the words between any two tokens."""
    root, tokens = says.starts[sentence], says.starts[sentence + 1] - says.starts[sentence]
    for b in range(len(says.gaps)):
        for end, sums_of_tokens in ((0, sums.heads), (1, sums.modifiers)):
            for t in range(tokens):
                sums_of_tokens[t, b] = 0
            for a in range(says.bounds[b, end], says.bounds[b, end + 1]):
                row = says.values[says.atoms[a]]
                for t in range(tokens):
                    sums_of_tokens[t, b] += row[root + t]
    if len(says.parts):
        bounds = says.starts[sentence : sentence + 2]
        between(bounds, np.zeros(2, np.int64), says.parts, says.classes, says.salts, sums.between)


@njit(**PLAIN)
def _keys_of(says, sums, head, modifier, tokens, keys):
    """Online tree kernel by hashed keys: fill `keys` with the feature keys of one arc, one per template."""
    bases, heads, modifiers = sums.bases, sums.heads[head], sums.modifiers[modifier]
    for b in range(len(bases)):
        bases[b] = heads[b] + modifiers[b]
    if len(says.parts):
        arc = (modifier - 1) * (tokens - 1) + head - (head > modifier)
        for b in range(len(bases)):
            bases[b] += sums.between[says.gaps[b], arc]
    places = says.places[side_and_distance(head, modifier)]
    for k in range(len(keys)):
        keys[k] = finalized(bases[says.bases[k]] + places[k])


@njit(**PLAIN)
def _weigh_all(slots, keys):
    """Online tree kernel by hashed keys: the score of an arc, the sum of the weights of its feature keys."""
    total = 0.0
    for k in range(len(keys)):
        total += weigh(slots, keys[k])
    return total


@njit(**PLAIN)
def score_sentence(says, sentence, sums, slots, nothing, scores):
    """Online tree kernel by hashed keys: fill the arc scores of one sentence of n words.

    `scores` has the shape [n + 1, n + 1], with a row per modifier and a column per head. Entries that are not arcs get
    the value `nothing`."""
    sum_atoms(says, sentence, sums)
    tokens, before, turn = len(scores), (0, 0), 0
    scores[0] = nothing
    for m in range(1, tokens):
        for h in range(tokens):
            if h == m:
                scores[m, h] = nothing
                continue
            keys = sums.keys[turn]
            _keys_of(says, sums, h, m, tokens, keys)
            for k in range(len(keys)):
                fetch(slots.tags, first_slot(slots, keys[k]) << _ONE)
            turn = 1 - turn
            if before[0] > 0:
                scores[before] = _weigh_all(slots, sums.keys[turn])
            before = m, h
    scores[before] = _weigh_all(slots, sums.keys[1 - turn])


@njit(**PLAIN)
def score(says, sentences, slots, scores):
    """Online tree kernel by hashed keys: fill the arc scores [batch, modifiers, heads] of several sentences.

    Entries that are not arcs get 0."""
    sums = partial_keys_for(says, scores.shape[1] - 1)
    scores[:] = 0
    for b in range(len(sentences)):
        size = says.starts[sentences[b] + 1] - says.starts[sentences[b]]
        score_sentence(says, sentences[b], sums, slots, 0.0, scores[b, :size, :size])


@njit(**PLAIN)
def sweep(says, gold, order, done, slots, rows, held, most, open, trees, rule, moves, longest, clock):
    """Online tree kernel by hashed keys: learn a parser from the sentences order[done:].

    - The caller has already processed `clock` sentences before order[0].
    - The weight table has room for `most` rows. The first `held` rows are in use.
    - `trees` holds two flags: whether trees must be projective, and whether they must have a single root.
    - `open` tells whether features may be added to the table. If not, unknown features are ignored.
    - The pass ends early if the table may lack room for the features of the next sentence.

    Returns five numbers: count of processed entries of `order`, count of table rows in use, sum of losses, sum of step
    sizes, and the change of the count of nonzero weights."""
    projective, single = trees
    sums, (work, crossing, nested) = partial_keys_for(says, longest), room(longest + 1, projective)
    scores, tree = np.empty_like(work), np.empty(longest + 1, np.int64)
    losses, taken, living = 0.0, 0.0, 0
    while done < len(order):
        sentence = order[done]
        first, last = says.starts[sentence] - sentence, says.starts[sentence + 1] - sentence - 1
        gold_heads, size = gold[first:last], last - first + 1
        if open and held + 2 * len(gold_heads) * len(says.bases) > most:
            break
        arcs, rival = scores[:size, :size], tree[:size]
        score_sentence(says, sentence, sums, slots, -np.inf, arcs)
        gold_score = tree_score(arcs, gold_heads)
        add_cost(arcs, gold_heads, rule.cost)
        work[:size, :size] = arcs
        solve(work[:size, :size], projective, single, rival, crossing, nested)
        loss = max(0.0, tree_score(arcs, rival[1:]) - gold_score)
        used = _difference(says, sums, gold_heads, rival, moves)
        if not open:
            _drop_unknown(moves, used, slots, rows)
        length = 0.0
        for place in moves.used[:used]:
            length += np.float64(moves.counts[place]) ** 2
        step = rule.rate if length > 0 else 0.0
        if rule.passive and length > 0:
            step *= min(rule.cap, loss / length)
        late = step * (clock + done)
        held, change = _move(moves, used, slots, rows, held, step, late, rule.averaging)
        losses, taken, living, done = losses + loss, taken + step, living + change, done + 1
    return done, held, losses, taken, living


@njit(**PLAIN)
def _difference(says, sums, gold, rival, moves):
    """Online tree kernel by hashed keys: fill `moves` with gold minus rival feature counts.

    The rival is the best tree that the search found. Returns the count of cells in use, some of which may hold a
    feature count of 0."""
    used, mask, keys = 0, np.uint64(len(moves.keys) - 1), sums.keys[0]
    for m in range(1, len(rival)):
        if gold[m - 1] == rival[m]:
            continue
        for head, sign in ((gold[m - 1], 1), (rival[m], -1)):
            _keys_of(says, sums, head, m, len(rival), keys)
            for k in range(len(keys)):
                i = keys[k] >> moves.shift
                while moves.templates[i] >= 0 and moves.keys[i] != keys[k]:
                    i = (i + _ONE) & mask
                if moves.templates[i] < 0:
                    moves.keys[i], moves.templates[i], moves.used[used] = keys[k], k, i
                    used += 1
                moves.counts[i] += sign
    return used


@njit(**PLAIN)
def _drop_unknown(moves, used, slots, rows):
    """Online tree kernel by hashed keys: set the counts in `moves` to 0 for features without a table row.

    This keeps an update from adding features."""
    for place in moves.used[:used]:
        if not find(slots, rows.keys, moves.keys[place])[1]:
            moves.counts[place] = 0


@njit(**PLAIN)
def _move(moves, used, slots, rows, held, step, late, averaging):
    """Online tree kernel by hashed keys: update the growing table by the feature counts in `moves`.

    Each weight gains `step` times the count of the feature. The sum for averaging gains `late` times the count, where
    `late` is `step` times the count of earlier sentences. Empties `moves`. Returns the count of table rows in use, and
    the change of the count of nonzero weights."""
    living = 0
    for u in range(used):
        if u + AHEAD < used:
            fetch_row(slots, moves.keys[moves.used[u + AHEAD]])
        place = moves.used[u]
        key, amount, template = moves.keys[place], moves.counts[place], moves.templates[place]
        moves.counts[place], moves.templates[place] = 0, -1
        if amount == 0 or step == 0:
            continue
        slot, present = find(slots, rows.keys, key)
        if not present:
            put(slots, slot, key, held)
            slots.weights[(slot << _ONE) | _ONE] = 0
            rows.keys[held], rows.templates[held] = key, template
            if averaging:
                rows.past[held] = 0
            held += 1
        row, at = slots.rows[slot], (slot << _ONE) | _ONE
        living -= slots.weights[at] != 0
        slots.weights[at] += step * amount
        living += slots.weights[at] != 0
        if averaging:
            rows.past[row] += late * amount
    return held, living
