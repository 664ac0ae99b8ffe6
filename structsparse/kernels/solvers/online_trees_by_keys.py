"""Parsers whose features are found by their keys, one sentence after another, on the CPU, one thread.

What is said of a token by each base, a template without its place, is summed up when its sentence comes; the keys of
an arc are made, and the slots they lead to fetched, before the arc that precedes it is scored. Keys are made anew
whenever they are needed: nothing is kept of an arc, and a feature has a row from the time that a wrong tree moves it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.features.arc_keys import _final, _place, between
from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.solvers.online_trees import _add_cost, _total
from structsparse.kernels.structures.best_trees import room, solve
from structsparse.kernels.weights.key_table import AHEAD, fetch, fetch_row, find, first_slot, put, weigh

KINDS = 5  # of what stands between
_ONE = np.uint64(1)


class Says(NamedTuple):
    """What templates say of the tokens of a corpus, and how it makes keys; see features/arcs.py."""

    starts: np.ndarray  # int64 [sentences + 1] places of roots
    values: np.ndarray  # uint64 [atoms, places]
    parts: np.ndarray  # uint64 [places] or [0] if no template looks between
    classes: np.ndarray  # int64, as many
    salts: np.ndarray  # uint64 [KINDS]
    atoms: np.ndarray  # int64, rows of values
    bounds: np.ndarray  # int64 [bases, 3] into atoms: head, modifier
    gaps: np.ndarray  # int64 [bases] kind of what is between, KINDS: none
    bases: np.ndarray  # int64 [templates]
    places: np.ndarray  # uint64 [2 * BINS, templates]


class Rows(NamedTuple):
    """What is known of the features that are held, and room for more of them."""

    keys: np.ndarray  # uint64 [room]
    templates: np.ndarray  # int32 [room]
    past: np.ndarray  # float32 [room] sum of moves times the number of sentences before each; empty: not kept


class Sums(NamedTuple):
    """Of one sentence at a time, with room for the longest."""

    heads: np.ndarray  # uint64 [tokens, bases]
    modifiers: np.ndarray  # uint64 [tokens, bases]
    between: np.ndarray  # uint64 [KINDS + 1, arcs], the last 0
    bases: np.ndarray  # uint64 [bases] of one arc
    keys: np.ndarray  # uint64 [2, templates] of the arc before and of this one


class Moves(NamedTuple):
    """Features of a wrong tree and its gold one: a table of their keys, and which of its places are in use."""

    keys: np.ndarray  # uint64 [a power of two]
    counts: np.ndarray  # int32, as many
    templates: np.ndarray  # int32, -1 where nothing is, before and after
    used: np.ndarray  # int64 [most features]
    shift: np.uint64


@njit(**PLAIN)
def sums_for(says, longest):
    """Room for sentences of so many words."""
    bases, templates = len(says.gaps), len(says.bases)
    looks = longest**2 if len(says.parts) else 0
    return Sums(
        np.empty((longest + 1, bases), np.uint64), np.empty((longest + 1, bases), np.uint64),
        np.zeros((KINDS + 1, looks), np.uint64), np.empty(bases, np.uint64), np.empty((2, templates), np.uint64),
    )  # fmt: skip


@njit(**PLAIN)
def moves_for(templates, longest):
    most, bits = 2 * longest * templates, 4
    while (1 << bits) < 2 * most:
        bits += 1
    size = 1 << bits
    keys, counts, owners = np.empty(size, np.uint64), np.zeros(size, np.int32), np.full(size, -1, np.int32)
    return Moves(keys, counts, owners, np.empty(most, np.int64), np.uint64(64 - bits))


@njit(**PLAIN)
def sum_up(says, sentence, sums):
    """What every base says of the tokens of a sentence, and what stands between them."""
    root, tokens = says.starts[sentence], says.starts[sentence + 1] - says.starts[sentence]
    for b in range(len(says.gaps)):
        for end, found in ((0, sums.heads), (1, sums.modifiers)):
            for t in range(tokens):
                found[t, b] = 0
            for a in range(says.bounds[b, end], says.bounds[b, end + 1]):
                row = says.values[says.atoms[a]]
                for t in range(tokens):
                    found[t, b] += row[root + t]
    if len(says.parts):
        own = says.starts[sentence : sentence + 2]
        between(own, np.zeros(2, np.int64), says.parts, says.classes, says.salts, sums.between)


@njit(**PLAIN)
def _keys_of(says, sums, head, modifier, tokens, keys):
    """keys [templates] of an arc."""
    bases, heads, modifiers = sums.bases, sums.heads[head], sums.modifiers[modifier]
    for b in range(len(bases)):
        bases[b] = heads[b] + modifiers[b]
    if len(says.parts):
        arc = (modifier - 1) * (tokens - 1) + head - (head > modifier)
        for b in range(len(bases)):
            bases[b] += sums.between[says.gaps[b], arc]
    places = says.places[_place(head, modifier)]
    for k in range(len(keys)):
        keys[k] = _final(bases[says.bases[k]] + places[k])


@njit(**PLAIN)
def _weigh_all(slots, keys):
    total = 0.0
    for k in range(len(keys)):
        total += weigh(slots, keys[k])
    return total


@njit(**PLAIN)
def score_sentence(says, sentence, sums, slots, nothing, scores):
    """scores [n + 1, n + 1] of a sentence; what is no arc gets `nothing`."""
    sum_up(says, sentence, sums)
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
    """scores [batch, size, size], 0 for what is no arc."""
    sums = sums_for(says, scores.shape[1] - 1)
    scores[:] = 0
    for b in range(len(sentences)):
        size = says.starts[sentences[b] + 1] - says.starts[sentences[b]]
        score_sentence(says, sentences[b], sums, slots, 0.0, scores[b, :size, :size])


@njit(**PLAIN)
def sweep(says, gold, order, done, slots, rows, held, most, open, trees, rule, moves, longest, clock):
    """Go through the sentences order[done:], `clock` of which lie behind; as tree_walk.sweep does. Without room for all
    features that the next sentence may move (`most` rows in all) it ends early. trees: projective, single root; open:
    whether features may come into being.

    -> sentences done, rows held, sum of losses, sum of steps, change of the number of weights that are not zero."""
    projective, single = trees
    sums, (work, crossing, nested) = sums_for(says, longest), room(longest + 1, projective)
    scores, tree = np.empty_like(work), np.empty(longest + 1, np.int64)
    losses, taken, living = 0.0, 0.0, 0
    while done < len(order):
        sentence = order[done]
        first, last = says.starts[sentence] - sentence, says.starts[sentence + 1] - sentence - 1
        right, size = gold[first:last], last - first + 1
        if open and held + 2 * len(right) * len(says.bases) > most:
            break
        own, rival = scores[:size, :size], tree[:size]
        score_sentence(says, sentence, sums, slots, -np.inf, own)
        worth = _total(own, right)
        _add_cost(own, right, rule.cost)
        work[:size, :size] = own
        solve(work[:size, :size], projective, single, rival, crossing, nested)
        loss = max(0.0, _total(own, rival[1:]) - worth)
        many = _difference(says, sums, right, rival, moves)
        if not open:
            _leave_out(moves, many, slots, rows)
        length = 0.0
        for place in moves.used[:many]:
            length += np.float64(moves.counts[place]) ** 2
        step = rule.rate if length > 0 else 0.0
        if rule.passive and length > 0:
            step *= min(rule.cap, loss / length)
        late = step * (clock + done)
        held, more = _move(moves, many, slots, rows, held, step, late, rule.averaging)
        losses, taken, living, done = losses + loss, taken + step, living + more, done + 1
    return done, held, losses, taken, living


@njit(**PLAIN)
def _difference(says, sums, gold, rival, moves):
    """The features of the gold tree minus those of the rival go to `moves`: how many places are in use, some of them
    with a count of 0."""
    many, mask, keys = 0, np.uint64(len(moves.keys) - 1), sums.keys[0]
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
                    moves.keys[i], moves.templates[i], moves.used[many] = keys[k], k, i
                    many += 1
                moves.counts[i] += sign
    return many


@njit(**PLAIN)
def _leave_out(moves, many, slots, rows):
    """Features that have no row are none of the model's."""
    for place in moves.used[:many]:
        if not find(slots, rows.keys, moves.keys[place])[1]:
            moves.counts[place] = 0


@njit(**PLAIN)
def _move(moves, many, slots, rows, held, step, late, averaging):
    """Rows held then, and how many more weights live; empties `moves`."""
    living = 0
    for u in range(many):
        if u + AHEAD < many:
            fetch_row(slots, moves.keys[moves.used[u + AHEAD]])
        place = moves.used[u]
        key, amount, template = moves.keys[place], moves.counts[place], moves.templates[place]
        moves.counts[place], moves.templates[place] = 0, -1
        if amount == 0 or step == 0:
            continue
        slot, there = find(slots, rows.keys, key)
        if not there:
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
