"""Overlapping groups on the CPU: the exact prox of the sum of their norms, by descent over the blocks of its dual.

A group is a list of atoms, `members[offsets[g] : offsets[g + 1]]`; atom k is x[bounds[k] : bounds[k + 1]]. The copy of
its entries that a group has (dual variables) lies one atom after the other from starts[g] on.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

TILE = 1 << 15  # entries of a piece for one thread
TRAIL = 6  # duals that an extrapolation combines
ROUNDS = 60  # of Newton, at most: it converges within a dozen on ordinary input


@njit(**SERIAL)
def _read(x, steps, even, bounds, members, dual):
    """Take a group's dual back: x <- r = x + steps * dual. Returns the norms of r and of r / steps."""
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
    """Norm theta of a group after its prox, where r / (theta + reach * steps) has norm 1; see kernels.prox.blocks."""
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
    """Exact minimum over one group's dual block; returns whether it lies in its ball, so that the group is zero."""
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
    """Norm of a group without the atoms that will be zero."""
    total = 0.0
    for k in members:
        if not zero[k]:
            for i in range(bounds[k], bounds[k + 1]):
                total += x[i] * x[i]
    return np.sqrt(total)


@njit(**SERIAL)
def _slack(x, bounds, members, zero, dual, reach):
    """reach * |x_g| - <x_g, dual_g> for a dual on the sphere of radius reach, without cancellation."""
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
    """Sum of x^2 / steps over a group; infinite where an entry other than zero has step 0."""
    total = 0.0
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            if x[i] != 0:
                total += x[i] * (x[i] / steps[i])
    return total


@njit(**SERIAL)
def _scale_of(x, steps, bounds, members, offsets, reach, penalised):
    """Sum of x^2 / steps over all entries that some group moves; marks the penalised atoms."""
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
    """Mark atoms: zero[k] <- whether atom k lies in a dead group, or in one too small to matter."""
    zero[:] = False
    for g in range(reach.size):
        if reach[g] > 0:
            group = members[offsets[g] : offsets[g + 1]]
            if dead[g] or _scaled_squares(x, steps, bounds, group) <= small:
                for k in group:
                    zero[k] = True


@njit(**SERIAL)
def _energy(x, steps, bounds, penalised):
    """The dual objective: sum of x^2 / steps over the penalised atoms."""
    total = 0.0
    for k in range(penalised.size):
        if penalised[k]:
            for i in range(bounds[k], bounds[k + 1]):
                if steps[i] > 0:
                    total += x[i] * (x[i] / steps[i])
    return total


@njit(**SERIAL)
def _gap(x, steps, bounds, members, offsets, starts, reach, dual, zero):
    """Duality gap of x once marked atoms are zero: at least half the squared distance to the minimum, over steps."""
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
    """Set penalised entries with an infinite step to zero, with a step of 1."""
    for k in range(penalised.size):
        if penalised[k]:
            for i in range(bounds[k], bounds[k + 1]):
                if np.isinf(steps[i]):
                    x[i], steps[i] = 0.0 * x[i] + 0.0, 1.0


@njit(**SERIAL)
def _subtract(x, steps, bounds, members, offsets, starts, reach, dual):
    """x <- x - steps * sum of duals, each projected on its ball."""
    for g in range(reach.size):
        block = dual[starts[g] : starts[g + 1]]
        if reach[g] == 0:
            block[:] = 0.0
            continue
        norm = np.sqrt((block * block).sum())
        if norm > reach[g]:
            block *= reach[g] / norm
        c = 0
        for k in members[offsets[g] : offsets[g + 1]]:
            for i in range(bounds[k], bounds[k + 1]):
                x[i] -= steps[i] * block[c]
                c += 1


@njit(**SERIAL)
def _extrapolated(trail):
    """Anderson extrapolation of the last duals: where their rounds would lead if they were linear."""
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
    """Prox of overlapping groups: x <- argmin_v sum_g reach[g] * |v_g| + sum (v - x)^2 / (2 * steps), by exact minimum
    over one dual block after the other, until the gap bounds the error by `tolerance` times the norm of x (both in the
    metric). Groups come by size, the smallest first, so that nested ones take one round. Returns the rounds and the
    relative distance to the minimum.
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
                group, block = members[offsets[g] : offsets[g + 1]], dual[starts[g] : starts[g + 1]]
                dead[g] = _turn(x, steps, even, bounds, group, block, reach[g])
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


@njit(**SUMS)
def _soft_squares(x, cut):
    """Sum of the squares of soft(x, cut)."""
    total = 0.0
    for i in range(x.size):
        rest = np.float64(x[i] - min(max(x[i], -cut), cut))
        total += rest * rest
    return total


@njit(**SERIAL)
def _soft_scale(x, cut, factor):
    """x <- soft(x, cut) * factor."""
    if factor == 0:
        x[:] = 0
    else:
        for i in range(x.size):
            x[i] = (x[i] - min(max(x[i], -cut), cut)) * factor


@njit(**SERIAL)
def _pieces(offsets, width):
    """First row block of each piece; the number of blocks comes last."""
    pieces = 1 + offsets[-1] * width // TILE
    first = np.searchsorted(offsets, np.arange(pieces + 1) * offsets[-1] // pieces)
    first[0], first[pieces] = 0, offsets.size - 1
    return first


@njit(**PARALLEL)
def atom_squares(x, offsets, width, cut, squares):
    """Squared norms of atoms: squares[k] <- sum of the squares of soft(x, cut) over row block k."""
    first = _pieces(offsets, width)
    for piece in prange(first.size - 1):
        for k in range(first[piece], first[piece + 1]):
            squares[k] = _soft_squares(x[offsets[k] * width : offsets[k + 1] * width], cut)


@njit(**PARALLEL)
def scale_atoms(x, offsets, width, cut, factor):
    """Scale atoms: row block k of x <- soft(x, cut) * factor[k]; a negative factor leaves the block as it is."""
    first = _pieces(offsets, width)
    for piece in prange(first.size - 1):
        for k in range(first[piece], first[piece + 1]):
            if factor[k] >= 0:
                _soft_scale(x[offsets[k] * width : offsets[k + 1] * width], cut, x.dtype.type(factor[k]))
