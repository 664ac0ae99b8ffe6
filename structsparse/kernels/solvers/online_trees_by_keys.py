"""Online learning of dependency parsers with a growing hash table of weights, whose features are hashed keys.

A base is a feature template without the bin of arc direction and distance. The contributions of each token to the keys
of each base are summed once per sentence. The keys of an arc are computed, and their slots prefetched, before the
previous arc is scored. Keys are computed again whenever they are needed. A feature gets a row when a wrong tree first
changes its weight. One thread.
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
    """The atoms (hashed attributes) of the tokens of a corpus, and how templates combine atoms into feature keys."""

    starts: np.ndarray  # int64 [sentences + 1] where each sentence begins, its root included
    values: np.ndarray  # uint64 [atoms, places] hash of each atom at each token or root
    parts: np.ndarray  # uint64 [places], parts of speech; [0] if no template looks at the words between
    classes: np.ndarray  # int64, as long as `parts`: class of each token
    salts: np.ndarray  # uint64 [KINDS] hash salts of the summaries
    atoms: np.ndarray  # int64, rows of `values`
    bounds: np.ndarray  # int64 [bases, 3]: offsets into `atoms` of the head atoms and the modifier atoms of a base
    gaps: np.ndarray  # int64 [bases] kind of summary of the words between; KINDS means none
    bases: np.ndarray  # int64 [templates]: the base of each template
    places: np.ndarray  # uint64 [2 * BINS, templates]: added to the key, by arc direction and distance


class KeyedRows(NamedTuple):
    """The features of a growing table, by row, with room for more rows."""

    keys: np.ndarray  # uint64 [room] feature keys
    templates: np.ndarray  # int32 [room] template of each feature
    past: np.ndarray  # float32 [room] sum of changes, each times the number of sentences before; empty: no averaging


class PartialKeys(NamedTuple):
    """Partial feature keys of the tokens of one sentence, with room for the longest sentence."""

    heads: np.ndarray  # uint64 [tokens, bases], each token as a head
    modifiers: np.ndarray  # uint64 [tokens, bases], each token as a modifier
    between: np.ndarray  # uint64 [KINDS + 1, arcs] summaries of the words between; the last row is 0
    bases: np.ndarray  # uint64 [bases]: the partial keys of one arc
    keys: np.ndarray  # uint64 [2, templates]: the keys of the previous and of the current arc


class TreeDifference(NamedTuple):
    """The feature counts of one tree minus another: a hash table from feature keys to counts."""

    keys: np.ndarray  # uint64 [cells], a power of two
    counts: np.ndarray  # int32 [cells]
    templates: np.ndarray  # int32 [cells]; -1 where a cell is empty; all cells are empty before and after an update
    used: np.ndarray  # int64 [most features]: the cells in use
    shift: np.uint64  # key >> shift is the index of the first cell of the key


@njit(**PLAIN)
def partial_keys_for(atoms, longest):
    """Work memory for the partial keys of sentences of at most `longest` words."""
    bases, templates = len(atoms.gaps), len(atoms.bases)
    arcs = longest**2 if len(atoms.parts) else 0
    return PartialKeys(
        np.empty((longest + 1, bases), np.uint64), np.empty((longest + 1, bases), np.uint64),
        np.zeros((KINDS + 1, arcs), np.uint64), np.empty(bases, np.uint64), np.empty((2, templates), np.uint64),
    )  # fmt: skip


@njit(**PLAIN)
def difference_for(templates, longest):
    """An empty hash table for the feature difference between two trees of at most `longest` words."""
    most, bits = 2 * longest * templates, 4
    while (1 << bits) < 2 * most:
        bits += 1
    size = 1 << bits
    keys, counts, owners = np.empty(size, np.uint64), np.zeros(size, np.int32), np.full(size, -1, np.int32)
    return TreeDifference(keys, counts, owners, np.empty(most, np.int64), np.uint64(64 - bits))


@njit(**PLAIN)
def sum_atoms(says, sentence, sums):
    """Sum atoms into partial keys: for each token as head and as modifier, and for the words between two tokens."""
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
    """Compute the feature keys [templates] of an arc from head to modifier."""
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
    """The score of an arc: the sum of the weights of its feature keys."""
    total = 0.0
    for k in range(len(keys)):
        total += weigh(slots, keys[k])
    return total


@njit(**PLAIN)
def score_sentence(says, sentence, sums, slots, nothing, scores):
    """Fill the arc scores [n + 1, n + 1] of a sentence; entries that are not arcs get `nothing`."""
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
    """Fill the arc scores [batch, size, size] of sentences; entries that are not arcs get 0."""
    sums = partial_keys_for(says, scores.shape[1] - 1)
    scores[:] = 0
    for b in range(len(sentences)):
        size = says.starts[sentences[b] + 1] - says.starts[sentences[b]]
        score_sentence(says, sentences[b], sums, slots, 0.0, scores[b, :size, :size])


@njit(**PLAIN)
def sweep(says, gold, order, done, slots, rows, held, most, open, trees, rule, moves, longest, clock):
    """Learn a parser with a growing table from the sentences order[done:]; `clock` sentences have been seen before.

    The pass ends early if the table (`most` rows in all) lacks room for the features that the next sentence may add.
    `trees` is (projective, single root); `open` says whether features may be added. Returns the number of sentences
    done, the number of rows held, the sum of losses, the sum of step sizes, and the change of the number of nonzero
    weights."""
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
    """Fill `moves` with the feature counts of the gold tree minus the rival tree.

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
    """Set the counts of features without a row to 0, as a closed table adds no features."""
    for place in moves.used[:used]:
        if not find(slots, rows.keys, moves.keys[place])[1]:
            moves.counts[place] = 0


@njit(**PLAIN)
def _move(moves, used, slots, rows, held, step, late, averaging):
    """Update a growing table by the counts in `moves`, and empty `moves`.

    Returns the number of rows held, and the change of the number of nonzero weights."""
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
