"""Kernels of the exact prox of overlapping groups, by block coordinate descent on the dual problem.

- An atom is a set of entries that lie in the same groups. Atom k has the entries x[bounds[k] : bounds[k + 1]].
- Group g has the atoms members[offsets[g] : offsets[g + 1]].
- The dual block of a group is a vector with one dual variable per entry of the group. The array `dual` holds the blocks
  of all groups. Block g begins at starts[g].
- `steps` has one step per entry. `even` tells whether all steps are equal.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

TILE = 1 << 15  # intended number of entries in a piece of work of a thread
TRAIL = 6  # number of past vectors of dual variables that an extrapolation combines
ROUNDS = 60  # maximum number of Newton iterations


@njit(**SERIAL)
def _read(x, steps, even, bounds, members, dual):
    """Overlaps prox kernel: remove the dual block of a group from the primal point, x <- r = x + steps * dual.

    The dual block has one dual variable per entry. Returns the norms of r and of r / steps over the group."""
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
    """Overlaps prox kernel: the norm theta of an overlapping group after its prox, by Newton's method.

    theta is the root of |x / (theta + reach * steps)| = 1, where `reach` is the strength of the group norm."""
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
    """Overlaps prox kernel: minimise the dual objective exactly over the dual block of one overlapping group.

    The dual block has one dual variable per entry, and a norm of at most `reach`. If the norm is smaller than `reach`,
    the group becomes zero. Returns whether this is so."""
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
    """Overlaps prox kernel: the norm of an overlapping group without the atoms that the mask `zero` marks.

    An atom is a set of entries that lie in the same groups."""
    total = 0.0
    for k in members:
        if not zero[k]:
            for i in range(bounds[k], bounds[k + 1]):
                total += x[i] * x[i]
    return np.sqrt(total)


@njit(**SERIAL)
def _slack(x, bounds, members, zero, dual, reach):
    """Overlaps prox kernel: duality gap of one overlapping group, reach * |x_g| - <x_g, dual_g>.

    x_g are the entries of the group, without the atoms (sets of entries) marked in `zero`. dual_g is the dual block of
    the group, and must have the norm `reach`."""
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
    """Overlaps prox kernel: sum of x^2 / steps over a group; infinite if a nonzero entry has step 0."""
    total = 0.0
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            if x[i] != 0:
                total += x[i] * (x[i] / steps[i])
    return total


@njit(**SERIAL)
def _scale_of(x, steps, bounds, members, offsets, reach, penalised):
    """Overlaps prox kernel: sum of x^2 / steps over the entries of all penalised groups.

    A group is penalised if reach[g] > 0. The mask `penalised` gets the atoms (sets of entries) of these groups.
    Entries with step 0 are left out."""
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
    """Overlaps prox kernel: mark in the mask `zero` all atoms of each overlapping group that is zero or small.

    An atom is a set of entries that no group divides. `dead` marks the zero groups. A group is small if its sum of x^2
    / steps is at most `small`."""
    zero[:] = False
    for g in range(reach.size):
        if reach[g] > 0:
            group = members[offsets[g] : offsets[g + 1]]
            if dead[g] or _scaled_squares(x, steps, bounds, group) <= small:
                for k in group:
                    zero[k] = True


@njit(**SERIAL)
def _energy(x, steps, bounds, penalised):
    """Overlaps prox kernel: the dual objective, which is the sum of x^2 / steps over the penalised atoms.

    An atom is a set of entries that no group divides. It is penalised if it lies in a group of positive strength.
    Entries with step 0 are left out."""
    total = 0.0
    for k in range(penalised.size):
        if penalised[k]:
            for i in range(bounds[k], bounds[k + 1]):
                if steps[i] > 0:
                    total += x[i] * (x[i] / steps[i])
    return total


@njit(**SERIAL)
def _gap(x, steps, bounds, members, offsets, starts, reach, dual, zero):
    """Overlaps prox kernel: the duality gap at x, with the sets of entries (atoms) in the mask `zero` set to zero.

    The gap is an upper bound of half the squared distance to the minimum, in the metric 1 / steps."""
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
    """Overlaps prox kernel: set penalised entries with an infinite step to zero, and their steps to 1."""
    for k in range(penalised.size):
        if penalised[k]:
            for i in range(bounds[k], bounds[k + 1]):
                if np.isinf(steps[i]):
                    x[i], steps[i] = 0.0 * x[i] + 0.0, 1.0


@njit(**SERIAL)
def _subtract(x, steps, bounds, members, offsets, starts, reach, dual):
    """Overlaps prox kernel: the primal point of the dual variables, x <- x - steps * sum of dual blocks.

    The dual block of a group has one variable per entry. Each block is first projected on the ball of radius reach[g].
    """
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
    """Overlaps prox kernel: Anderson extrapolation of the dual variables.

    The rows of `trail` are their past values."""
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
    """Overlaps prox kernel: exact prox of overlapping groups, by block coordinate descent on the dual problem.

    Replaces x by the v that minimises sum_g reach[g] * |v_g| + sum (v - x)^2 / (2 * steps). v_g are the entries of
    group g. Each pass (round) minimises exactly over the dual variables of one group after the other, in the order
    `order`.

    The rounds end when a bound of the relative error is at most `tolerance`. The bound comes from the duality gap.
    Returns the number of rounds and the bound."""
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
            # First try with small groups set to zero. If the duality gap is then too large, keep the small groups.
            for small in ((0.1 * tolerance) ** 2 * scale, 0.0):
                _mark(x, steps, bounds, members, offsets, reach, dead, small, zero)
                gap = _gap(x, steps, bounds, members, offsets, starts, reach, dual, zero)
                if not 2 * gap > tolerance**2 * scale:
                    break
            if not 2 * gap > tolerance**2 * scale:
                break
            check = min(2 * done, done + 10)
        if done == TRAIL:
            trail = np.empty((TRAIL, dual.size))  # allocated only now, because most problems stop earlier
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
    """Overlaps prox kernel: sum of squares of the soft-thresholded entries of one atom (undivided set)."""
    total = 0.0
    for i in range(x.size):
        rest = np.float64(x[i] - min(max(x[i], -cut), cut))
        total += rest * rest
    return total


@njit(**SERIAL)
def _soft_scale(x, cut, factor):
    """Overlaps prox kernel: soft-threshold the entries of one undivided set (atom) at `cut`, multiply by `factor`."""
    if factor == 0:
        x[:] = 0
    else:
        for i in range(x.size):
            x[i] = (x[i] - min(max(x[i], -cut), cut)) * factor


@njit(**SERIAL)
def _pieces(offsets, width):
    """Overlaps prox kernel: the first atom (set of entries) of each piece of work for a thread, then their count."""
    pieces = 1 + offsets[-1] * width // TILE
    first = np.searchsorted(offsets, np.arange(pieces + 1) * offsets[-1] // pieces)
    first[0], first[pieces] = 0, offsets.size - 1
    return first


@njit(**PARALLEL)
def atom_squares(x, offsets, width, cut, squares):
    """Overlaps prox kernel: squares[k] gets the squared norm of atom k after soft thresholding at `cut`.

    Atom k is a block of rows, from offsets[k] to offsets[k + 1] - 1, with `width` entries per row."""
    first = _pieces(offsets, width)
    for piece in prange(first.size - 1):
        for k in range(first[piece], first[piece + 1]):
            squares[k] = _soft_squares(x[offsets[k] * width : offsets[k + 1] * width], cut)


@njit(**PARALLEL)
def scale_atoms(x, offsets, width, cut, factor):
    """Overlaps prox kernel: soft-threshold the entries of atom k at `cut`, then multiply them by factor[k].

    A negative factor leaves the atom unchanged. Atom k is a block of rows, from offsets[k] to offsets[k + 1] - 1, with
    `width` entries per row."""
    first = _pieces(offsets, width)
    for piece in prange(first.size - 1):
        for k in range(first[piece], first[piece + 1]):
            if factor[k] >= 0:
                _soft_scale(x[offsets[k] * width : offsets[k + 1] * width], cut, x.dtype.type(factor[k]))
