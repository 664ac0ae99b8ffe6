"""Online tree kernels by hashed keys: learning of dependency parsers with a growing hash table of weights.

Each feature has a hashed key. A base is a feature template without the bin for the direction and the distance of an
arc. Once per sentence, the contributions of each token to the keys of each base are summed. While an arc is scored, the
keys of the next arc have already been computed and their slots in the table prefetched. Keys are not stored, but
computed again whenever they are needed. A feature gets a row in the table when a wrong tree first changes its weight.
One thread.
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

KINDS = 5  # number of kinds of summaries of the words between head and modifier
_ONE = np.uint64(1)


class TemplateAtoms(NamedTuple):
    """Online tree kernel by hashed keys: the atoms of all tokens, and how templates combine atoms.

    An atom is a hashed attribute of a token. The key of a feature is a mixed sum of atoms."""

    starts: np.ndarray  # int64 [sentences + 1]: the place of the root that precedes each sentence
    values: np.ndarray  # uint64 [atoms, places]: hash of each atom at each token or root
    parts: np.ndarray  # uint64 [places]: a bit for each part of speech; [0] if no template uses the words between
    classes: np.ndarray  # int64, as long as `parts`: bits for verb, punctuation and conjunction
    salts: np.ndarray  # uint64 [KINDS]: hash salts of the summaries of the words between
    atoms: np.ndarray  # int64: rows of `values`, for one base after the other
    bounds: np.ndarray  # int64 [bases, 3]: offsets into `atoms` of the head atoms and the modifier atoms of each base
    gaps: np.ndarray  # int64 [bases]: kind of summary of the words between; KINDS means none
    bases: np.ndarray  # int64 [templates]: the base of each template
    places: np.ndarray  # uint64 [2 * BINS, templates]: number added to a key for arc direction and distance


class KeyedRows(NamedTuple):
    """Online tree kernel by hashed keys: the features of a growing table, with room for more rows."""

    keys: np.ndarray  # uint64 [room]: the feature key of each row
    templates: np.ndarray  # int32 [room]: the template of the feature of each row
    past: np.ndarray  # float32 [room]: sum of weight changes times the number of earlier sentences; empty if unused


class PartialKeys(NamedTuple):
    """Online tree kernel by hashed keys: partial keys of the tokens of one sentence."""

    heads: np.ndarray  # uint64 [tokens, bases]: the partial keys of each token as a head
    modifiers: np.ndarray  # uint64 [tokens, bases]: the partial keys of each token as a modifier
    between: np.ndarray  # uint64 [KINDS + 1, arcs]: summaries of the words between; the last row is 0
    bases: np.ndarray  # uint64 [bases]: the partial keys of one arc
    keys: np.ndarray  # uint64 [2, templates]: the keys of the previous and of the current arc


class TreeDifference(NamedTuple):
    """Online tree kernel by hashed keys: the feature counts of one tree minus another.

    The counts are in a hash table with a cell per feature."""

    keys: np.ndarray  # uint64 [cells]: the feature key of each cell; the number of cells is a power of two
    counts: np.ndarray  # int32 [cells]: the count of the feature of each cell
    templates: np.ndarray  # int32 [cells]: the template of the feature, -1 in an empty cell; empty outside an update
    used: np.ndarray  # int64 [most features]: the cells in use
    shift: np.uint64  # key >> shift is the first cell to try for a key


@njit(**PLAIN)
def partial_keys_for(atoms, longest):
    """Online tree kernel by hashed keys: work memory for sentences of at most `longest` words."""
    bases, templates = len(atoms.gaps), len(atoms.bases)
    arcs = longest**2 if len(atoms.parts) else 0
    return PartialKeys(
        np.empty((longest + 1, bases), np.uint64), np.empty((longest + 1, bases), np.uint64),
        np.zeros((KINDS + 1, arcs), np.uint64), np.empty(bases, np.uint64), np.empty((2, templates), np.uint64),
    )  # fmt: skip


@njit(**PLAIN)
def difference_for(templates, longest):
    """Online tree kernel by hashed keys: an empty hash table for the feature difference of two trees.

    The trees have at most `longest` words."""
    most, bits = 2 * longest * templates, 4
    while (1 << bits) < 2 * most:
        bits += 1
    size = 1 << bits
    keys, counts, owners = np.empty(size, np.uint64), np.zeros(size, np.int32), np.full(size, -1, np.int32)
    return TreeDifference(keys, counts, owners, np.empty(most, np.int64), np.uint64(64 - bits))


@njit(**PLAIN)
def sum_atoms(says, sentence, sums):
    """Online tree kernel by hashed keys: sum the atoms of a sentence into partial keys.

    There is a partial key for each token as a head, for each token as a modifier, and for the words between two tokens.
    """
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
    """Online tree kernel by hashed keys: compute the keys [templates] of the features of one arc."""
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
    """Online tree kernel by hashed keys: the score of an arc, which is the sum of its feature weights."""
    total = 0.0
    for k in range(len(keys)):
        total += weigh(slots, keys[k])
    return total


@njit(**PLAIN)
def score_sentence(says, sentence, sums, slots, nothing, scores):
    """Online tree kernel by hashed keys: fill the arc scores [n + 1, n + 1] of one sentence.

    The sentence has n words; scores are modifiers by heads. Entries that are not arcs get the value `nothing`."""
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
    """Online tree kernel by hashed keys: fill the arc scores [batch, size, size] of sentences.

    Entries that are not arcs get 0."""
    sums = partial_keys_for(says, scores.shape[1] - 1)
    scores[:] = 0
    for b in range(len(sentences)):
        size = says.starts[sentences[b] + 1] - says.starts[sentences[b]]
        score_sentence(says, sentences[b], sums, slots, 0.0, scores[b, :size, :size])


@njit(**PLAIN)
def sweep(says, gold, order, done, slots, rows, held, most, open, trees, rule, moves, longest, clock):
    """Online tree kernel by hashed keys: learn a parser from the sentences order[done:].

    `clock` sentences have been seen before order[0], and `held` rows of the table are in use. `trees` is (projective,
    single root); `open` tells whether features may be added. The pass ends early if the table, which has room for
    `most` rows, may lack room for the features of the next sentence. Returns the number of sentences done, the number
    of rows in use, the sum of losses, the sum of step sizes, and the change of the number of nonzero weights."""
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

    Returns the number of cells in use; some of these cells may have a count of 0."""
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
    """Online tree kernel by hashed keys: set the counts of features without a row to 0.

    The table is then closed, so an update cannot add these features."""
    for place in moves.used[:used]:
        if not find(slots, rows.keys, moves.keys[place])[1]:
            moves.counts[place] = 0


@njit(**PLAIN)
def _move(moves, used, slots, rows, held, step, late, averaging):
    """Online tree kernel by hashed keys: update the growing table by the counts in `moves`.

    Each weight gains `step` times the count of the feature. The sum for averaging gains `late` times the count, where
    `late` is `step` times the number of earlier sentences. `moves` is emptied. Returns the number of rows in use, and
    the change of the number of nonzero weights."""
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
