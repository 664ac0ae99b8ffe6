"""Overlapping groups on the CPU: sets, and the proximal steps of their norms.

A group is a list of atoms, `members[offsets[g] : offsets[g + 1]]`; atom k is x[bounds[k] : bounds[k + 1]]. Its copy of
its entries (dual variables, or consensus copies) lies one atom after the other from starts[g] on.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.prox.blocks import PARALLEL, SERIAL, SUMS

ALONE = 1 << 15  # members: up to here one thread is done before the others are awake
TILE = 1 << 15  # entries: a piece for one thread
TRAIL = 6  # duals that an extrapolation looks at
ROUNDS = 60  # of Newton: it ends by itself within a dozen, this bounds what odd input could do


@njit(**SERIAL)
def repeated(members, offsets, atoms):
    """Where a member first occurs again within its group; -1 if nowhere."""
    seen = np.full(atoms, -1, np.int64)
    for g in range(offsets.size - 1):
        for m in range(offsets[g], offsets[g + 1]):
            if seen[members[m]] == g:
                return m
            seen[members[m]] = g
    return -1


@njit(**SERIAL)
def colours(members, offsets, order, multiplicity):
    """The first colour that no group met before through a common atom has, group by group in that order."""
    colour = np.empty(offsets.size - 1, np.int64)
    start = np.zeros(multiplicity.size + 1, np.int64)
    start[1:] = np.cumsum(multiplicity)
    met, filled = np.empty(start[-1], np.int64), np.zeros(multiplicity.size, np.int64)  # colours met at each atom
    taken = np.full(offsets.size, -1, np.int64)
    for g in order:
        group = members[offsets[g] : offsets[g + 1]]
        for k in group:
            for at in range(start[k], start[k] + filled[k]):
                taken[met[at]] = g
        first = 0
        while taken[first] == g:
            first += 1
        colour[g] = first
        for k in group:
            met[start[k] + filled[k]] = first
            filled[k] += 1
    return colour


@njit(**SERIAL)
def nested(members, offsets, largest_first, atoms):
    """Whether the atoms of each group, down from the largest, have all been in the same group last."""
    latest = np.full(atoms, -1)
    for g in largest_first:
        group = members[offsets[g] : offsets[g + 1]]
        for k in group:
            if latest[k] != latest[group[0]]:
                return False
        latest[group] = g
    return True


@njit(**SUMS)
def _gathered(values, members):
    total = 0.0
    for m in range(members.size):
        total += values[members[m]]
    return total


@njit(**PARALLEL)
def gather(values, members, offsets, sums):
    """sums[g] <- sum of values over the members of group g."""
    if members.size <= ALONE:
        for g in range(sums.size):
            sums[g] = _gathered(values, members[offsets[g] : offsets[g + 1]])
        return
    for g in prange(sums.size):
        sums[g] = _gathered(values, members[offsets[g] : offsets[g + 1]])


@njit(**SERIAL)
def _read(x, steps, even, bounds, members, dual):
    """x <- r = x + steps * dual, what the group has to shrink; the norms of r and of r / steps."""
    c, squares, scaled = 0, 0.0, 0.0
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            r = x[i] + steps[i] * dual[c]
            x[i] = r
            squares += r * r
            if not even and r != 0:
                scaled += (r / steps[i]) ** 2
            c += 1
    norm = np.sqrt(squares)
    return norm, (norm / steps[0] if even and norm > 0 else np.sqrt(scaled))


@njit(**SERIAL)
def _root(x, steps, bounds, members, reach):
    """The norm theta after the group's prox: where r / (theta + reach * steps) has norm 1. See kernels.prox."""
    total = 0.0
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            rest = max(abs(x[i]) - reach * steps[i], 0.0)
            total += rest * rest
    theta, tiny = np.sqrt(total), np.finfo(np.float64).tiny
    for _ in range(ROUNDS):
        squares, slope = 0.0, 0.0
        for k in members:
            for i in range(bounds[k], bounds[k + 1]):
                inverse = 1 / max(theta + reach * steps[i], tiny)
                p = (x[i] * inverse) ** 2
                squares += p
                slope += p * inverse
        norm = np.sqrt(squares)
        if not norm > 1 + 1e-15:
            break
        move = (norm - 1) * (squares / slope)
        theta += move
        if move <= 1e-16 * theta:
            break
    return theta


@njit(**SERIAL)
def _turn(x, steps, even, bounds, members, dual, reach):
    """Exact minimum over the dual block of one group; whether it lies within its ball, so that the group is zero."""
    norm, scaled = _read(x, steps, even, bounds, members, dual)
    c = 0
    if scaled <= reach:
        for k in members:
            for i in range(bounds[k], bounds[k + 1]):
                dual[c] = x[i] / steps[i] if x[i] != 0 else 0.0
                x[i] = 0.0
                c += 1
        return True
    theta = norm - reach * steps[0] if even else _root(x, steps, bounds, members, reach)
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            part = theta + reach * steps[i]
            dual[c] = x[i] * (reach / part)
            x[i] *= theta / part
            c += 1
    return False


@njit(**SERIAL)
def _norm(x, bounds, members, zero):
    """Norm of a group, atoms that are to be zero aside."""
    total = 0.0
    for k in members:
        if not zero[k]:
            for i in range(bounds[k], bounds[k + 1]):
                total += x[i] * x[i]
    return np.sqrt(total)


@njit(**SERIAL)
def _slack(x, bounds, members, zero, dual, reach):
    """reach * |x_g| - <x_g, dual_g> for a dual on the sphere of radius reach: nothing cancels."""
    norm = _norm(x, bounds, members, zero)
    if norm == 0:
        return 0.0
    c, total = 0, 0.0
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            apart = dual[c] - (0.0 if zero[k] else reach * (x[i] / norm))
            total += apart * apart
            c += 1
    return norm / (2 * reach) * total


@njit(**SERIAL)
def _scaled_squares(x, steps, bounds, members):
    """Sum of x^2 / steps; infinite where a step of zero holds fast what is not zero."""
    total = 0.0
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            if x[i] != 0:
                total += x[i] * (x[i] / steps[i])
    return total


@njit(**SERIAL)
def _scale_of(x, steps, bounds, members, offsets, reach, penalised):
    """Sum of x^2 / steps over all that a group moves."""
    total = 0.0
    for g in range(reach.size):
        if reach[g] > 0:
            for k in members[offsets[g] : offsets[g + 1]]:
                if not penalised[k]:
                    penalised[k] = True
                    for i in range(bounds[k], bounds[k + 1]):
                        if x[i] != 0 and steps[i] > 0:
                            total += x[i] * (x[i] / steps[i])
    return total


@njit(**SERIAL)
def _mark(x, steps, bounds, members, offsets, reach, dead, small, zero):
    """zero[k] <- whether atom k lies in a dead group, or in one too small to matter."""
    zero[:] = False
    for g in range(reach.size):
        if reach[g] > 0:
            group = members[offsets[g] : offsets[g + 1]]
            if dead[g] or _scaled_squares(x, steps, bounds, group) <= small:
                for k in group:
                    zero[k] = True


@njit(**SERIAL)
def _energy(x, steps, bounds, penalised):
    """What the dual minimises: sum of x^2 / steps."""
    total = 0.0
    for k in range(penalised.size):
        if penalised[k]:
            for i in range(bounds[k], bounds[k + 1]):
                if steps[i] > 0:
                    total += x[i] * (x[i] / steps[i])
    return total


@njit(**SERIAL)
def _gap(x, steps, bounds, members, offsets, starts, reach, dual, zero):
    """Duality gap of x with its zeros made: never less than half the squared distance to the minimum, over steps."""
    total = 0.0
    for k in range(zero.size):
        if zero[k]:
            for i in range(bounds[k], bounds[k + 1]):
                if x[i] != 0:
                    total += x[i] * (x[i] / steps[i]) / 2
    for g in range(reach.size):
        if reach[g] > 0:
            group = members[offsets[g] : offsets[g + 1]]
            total += _slack(x, bounds, group, zero, dual[starts[g] : starts[g + 1]], reach[g])
    return total


@njit(**SERIAL)
def _let_go(x, steps, bounds, penalised):
    """An endless step takes its entry to zero."""
    for k in range(penalised.size):
        if penalised[k]:
            for i in range(bounds[k], bounds[k + 1]):
                if np.isinf(steps[i]):
                    x[i], steps[i] = 0.0 * x[i] + 0.0, 1.0


@njit(**SERIAL)
def _subtract(x, steps, bounds, members, offsets, starts, reach, dual):
    """x <- x - steps * sum of duals, each within its ball."""
    for g in range(reach.size):
        own = dual[starts[g] : starts[g + 1]]
        if reach[g] == 0:
            own[:] = 0.0
            continue
        norm = np.sqrt((own * own).sum())
        if norm > reach[g]:
            own *= reach[g] / norm
        c = 0
        for k in members[offsets[g] : offsets[g + 1]]:
            for i in range(bounds[k], bounds[k + 1]):
                x[i] -= steps[i] * own[c]
                c += 1


@njit(**SERIAL)
def _extrapolated(trail):
    """Where the rounds of a trail of duals lead to, were they linear (Anderson): a combination of the last of them."""
    last = trail.shape[0] - 1
    moves = np.empty((last, trail.shape[1]))
    for j in range(last):
        moves[j] = trail[j + 1] - trail[j]
    inner = np.zeros((last, last))
    for i in range(last):
        for j in range(i + 1):
            inner[i, j] = inner[j, i] = (moves[i] * moves[j]).sum()
    for j in range(last):
        inner[j, j] += 1e-12 * np.trace(inner) + 1e-300
    shares = np.linalg.solve(inner, np.ones(last))
    shares /= shares.sum()
    combined = np.zeros(trail.shape[1])
    for j in range(last):
        combined += shares[j] * trail[j + 1]
    return combined


@njit(**SERIAL)
def descend(x, steps, even, bounds, members, offsets, starts, order, reach, dual, tolerance, rounds):
    """x <- argmin_v sum_g reach[g] * |v_g| + sum (v - x)^2 / (2 * steps), by exact minimum over one dual block after
    the other, until the gap says that v is known to `tolerance` times the norm of x (both in the metric).

    Groups by size, the smallest first: nested ones are done after one round. Returns rounds and relative distance.
    """
    dead, zero = np.zeros(reach.size, np.bool_), np.zeros(bounds.size - 1, np.bool_)
    sets = bounds, members, offsets, starts, reach
    scale = _scale_of(x, steps, bounds, members, offsets, reach, zero)
    penalised = zero.copy()
    _let_go(x, steps, bounds, penalised)
    origin, other = x.copy(), x.copy()
    _subtract(x, steps, *sets, dual)
    trail, filled = np.empty((1, 1)), 0
    done, gap, check = 0, np.inf, 1
    while done < rounds:
        for g in order:
            if reach[g] > 0:
                group, own = members[offsets[g] : offsets[g + 1]], dual[starts[g] : starts[g + 1]]
                dead[g] = _turn(x, steps, even, bounds, group, own, reach[g])
        done += 1
        if done in (check, rounds):
            for small in ((0.1 * tolerance) ** 2 * scale, 0.0):  # many groups may each be small and matter together
                _mark(x, steps, bounds, members, offsets, reach, dead, small, zero)
                gap = _gap(x, steps, bounds, members, offsets, starts, reach, dual, zero)
                if not 2 * gap > tolerance**2 * scale:
                    break
            if not 2 * gap > tolerance**2 * scale:
                break
            check = min(2 * done, done + 10)
        if done == TRAIL:
            trail = np.empty((TRAIL, dual.size))  # most problems never need it
        if done >= TRAIL:
            trail[filled] = dual
            filled += 1
            if filled == TRAIL:
                filled = 0
                candidate = _extrapolated(trail)
                other[:] = origin
                _subtract(other, steps, *sets, candidate)
                if _energy(other, steps, bounds, penalised) < _energy(x, steps, bounds, penalised):
                    x[:] = other
                    dual[:] = candidate
    for k in range(zero.size):
        if zero[k]:
            x[bounds[k] : bounds[k + 1]] = 0.0
    return done, np.sqrt(2 * gap / scale) if scale > 0 else 0.0


@njit(**SERIAL)
def shrink_in_turn(x, steps, even, bounds, members, offsets, order, reach):
    """The prox of each group by itself, one after the other: not the prox of their sum where they overlap."""
    for g in order:
        if reach[g] == 0:
            continue
        group = members[offsets[g] : offsets[g + 1]]
        norm, scaled = _norms(x, steps, even, bounds, group)
        dead = scaled <= reach[g]
        theta = 0.0
        if not dead:
            theta = norm - reach[g] * steps[0] if even else _root(x, steps, bounds, group, reach[g])
        for k in group:
            for i in range(bounds[k], bounds[k + 1]):
                x[i] = 0.0 if dead else x[i] * (theta / (theta + reach[g] * steps[i])) + 0.0


@njit(**SERIAL)
def _norms(x, steps, even, bounds, members):
    """The norms of x and of x / steps."""
    squares, scaled = 0.0, 0.0
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            squares += x[i] * x[i]
            if not even and x[i] != 0:
                scaled += (x[i] / steps[i]) ** 2
    norm = np.sqrt(squares)
    return norm, (norm / steps[0] if even and norm > 0 else np.sqrt(scaled))


@njit(**SUMS)
def _soft_squares(x, cut):
    total = 0.0
    for i in range(x.size):
        rest = np.float64(x[i] - min(max(x[i], -cut), cut))
        total += rest * rest
    return total


@njit(**SERIAL)
def _soft_scale(x, cut, factor):
    if factor == 0:
        x[:] = 0
    else:
        for i in range(x.size):
            x[i] = (x[i] - min(max(x[i], -cut), cut)) * factor


@njit(**SERIAL)
def _pieces(offsets, width):
    """First row block of each piece, and the number of blocks at the end."""
    pieces = 1 + offsets[-1] * width // TILE
    first = np.searchsorted(offsets, np.arange(pieces + 1) * offsets[-1] // pieces)
    first[0], first[pieces] = 0, offsets.size - 1
    return first


@njit(**PARALLEL)
def atom_squares(x, offsets, width, cut, squares):
    """squares[k] <- sum of the squares of soft(x, cut) over row block k."""
    first = _pieces(offsets, width)
    for piece in prange(first.size - 1):
        for k in range(first[piece], first[piece + 1]):
            squares[k] = _soft_squares(x[offsets[k] * width : offsets[k + 1] * width], cut)


@njit(**PARALLEL)
def scale_atoms(x, offsets, width, cut, factor):
    """Row block k of x <- soft(x, cut) * factor[k]; a negative factor leaves the block as it is."""
    first = _pieces(offsets, width)
    for piece in prange(first.size - 1):
        for k in range(first[piece], first[piece + 1]):
            if factor[k] >= 0:
                _soft_scale(x[offsets[k] * width : offsets[k + 1] * width], cut, x.dtype.type(factor[k]))


@njit(**SERIAL)
def consensus(x, bounds, members, offsets, starts, reach, copies, duals, copy_sums, dual_sums):
    """For each group: z = x + u, copies v <- group prox of z with reach, u <- z - v; both summed over the groups of
    each entry. Returns the squares of x - v, of v and of x over all copies."""
    copy_sums[:] = 0.0
    dual_sums[:] = 0.0
    apart, own, there = 0.0, 0.0, 0.0
    for g in range(reach.size):
        group = members[offsets[g] : offsets[g + 1]]
        v, u = copies[starts[g] : starts[g + 1]], duals[starts[g] : starts[g + 1]]
        c, squares = 0, 0.0
        for k in group:
            for i in range(bounds[k], bounds[k + 1]):
                z = x[i] + u[c]
                squares += z * z
                c += 1
        norm = np.sqrt(squares)
        factor = 0.0 if norm <= reach[g] else 1 - reach[g] / norm
        c = 0
        for k in group:
            for i in range(bounds[k], bounds[k + 1]):
                z = x[i] + u[c]
                new = factor * z
                v[c], u[c] = new, z - new
                copy_sums[i] += new
                dual_sums[i] += z - new
                apart += (x[i] - new) ** 2
                own += new * new
                there += x[i] * x[i]
                c += 1
    return apart, own, there


@njit(**SUMS)
def consensus_of_singles(x, members, offsets, counts, reach, copies, duals, copy_sums, dual_sums):
    """`consensus` where each atom is one entry. As dual + copy = x + old dual, the sums of duals follow from those of
    copies, and only the latter are scattered."""
    for i in range(x.size):
        dual_sums[i] += counts[i] * x[i]
    copy_sums[:] = 0.0
    apart, own, there = 0.0, 0.0, 0.0
    for g in range(reach.size):
        group = members[offsets[g] : offsets[g + 1]]
        v, u = copies[offsets[g] : offsets[g + 1]], duals[offsets[g] : offsets[g + 1]]
        squares = 0.0
        for c in range(group.size):
            z = x[group[c]] + u[c]
            v[c] = z
            squares += z * z
        factor = 0.0 if squares <= reach[g] * reach[g] else 1 - reach[g] / np.sqrt(squares)
        own += factor * factor * squares
        for c in range(group.size):
            z = v[c]
            new = factor * z
            v[c] = new
            u[c] = z - new
            copy_sums[group[c]] += new
            rest = x[group[c]] - new
            apart += rest * rest
    for i in range(x.size):
        dual_sums[i] -= copy_sums[i]
        there += counts[i] * x[i] * x[i]
    return apart, own, there


@njit(**SUMS)
def _pulled_sums(x, steps, pull):
    squares, falls, spread = 0.0, 0.0, 0.0
    for i in range(x.size):
        share = 1 / (1 + steps[i] * pull)
        v = x[i] * share
        square = v * v
        moved = square * steps[i]
        squares += square
        falls += moved * share
        spread += moved
    return squares, falls, spread


@njit(**PARALLEL)
def pulled_sums(x, steps, bounds, pull, sums):
    """For v = x / (1 + steps * pull[k]) on atom k: sums of v^2, of steps * v^2 / (1 + steps * pull), of steps * v^2."""
    if x.size <= ALONE:
        for k in range(pull.size):
            own = slice(bounds[k], bounds[k + 1])
            sums[0, k], sums[1, k], sums[2, k] = _pulled_sums(x[own], steps[own], pull[k])
        return
    for k in prange(pull.size):
        own = slice(bounds[k], bounds[k + 1])
        sums[0, k], sums[1, k], sums[2, k] = _pulled_sums(x[own], steps[own], pull[k])


@njit(**SERIAL)
def sums_at_zero(x, steps, bounds, sums):
    """Sums of x^2 / steps and of x^2 / steps^2 over each atom, and of the former where there is a step."""
    for k in range(bounds.size - 1):
        first, second, finite = 0.0, 0.0, 0.0
        for i in range(bounds[k], bounds[k + 1]):
            if x[i] != 0:
                ratio = x[i] / steps[i]
                first += x[i] * ratio
                second += ratio * ratio
                if steps[i] > 0:
                    finite += x[i] * ratio
        sums[0, k], sums[1, k], sums[2, k] = first, second, finite


@njit(**SERIAL)
def _pull(x, steps, pull, v):
    for i in range(x.size):
        v[i] = x[i] / (1 + steps[i] * pull)


@njit(**PARALLEL)
def pulled(x, steps, bounds, pull, zero, v):
    """v <- x / (1 + steps * pull[k]) on atom k, or exactly zero."""
    for k in prange(pull.size):
        own = slice(bounds[k], bounds[k + 1])
        if zero[k]:
            v[own] = 0.0
        else:
            _pull(x[own], steps[own], pull[k], v[own])


@njit(**SERIAL)
def common(owner, starts, values, matrix):
    """matrix[g, h] <- sum of values over the atoms that groups g and h have in common."""
    for k in range(values.size):
        own = owner[starts[k] : starts[k + 1]]
        for i in range(own.size):
            for j in range(own.size):
                matrix[own[i], own[j]] += values[k]
