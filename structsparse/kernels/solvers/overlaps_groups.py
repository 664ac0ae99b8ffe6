"""Overlaps solver kernels of row groups: norms, curvatures, dual vectors and ADMM steps of overlapping groups.

- The weights W have one row per column of the design matrix. The groups of row j are groups[starts[j] : starts[j + 1]].
- Group g has the penalty reach[g] * ||W_g||, where W_g holds the rows of the group.
- A dead group stays zero with all its rows. All other groups are living.
- All numbers are float64.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.solvers.linear_problem import SERIAL

LOOK, SURE = 10, 0.01  # `hold` checks the duality gap every LOOK passes, and ends if it is at most SURE * objective
MUCH = 0.3  # in `hold`: a group becomes living if its residual exceeds this share of the largest residual


class RowGroups(NamedTuple):
    """Overlapping groups of the overlaps solver kernels: the groups of each row, and the strength of each group."""

    starts: np.ndarray  # int64 [rows + 1]: where the groups of each row begin in `groups`
    groups: np.ndarray  # int32 [pairs of row and group]: the groups of all rows, row after row
    reach: np.ndarray  # float64 [groups]: penalty strength of each group


# --- group norms and curvatures


@njit(**SERIAL)
def group_squares(sets, W, out):
    """Overlaps solver kernel of row groups: the squared norms of all groups; out[g] gets ||W_g||^2."""
    out[:] = 0
    for j in range(W.shape[0]):
        total = 0.0
        for k in range(W.shape[1]):
            total += W[j, k] * W[j, k]
        if total > 0:
            for a in range(sets.starts[j], sets.starts[j + 1]):
                out[sets.groups[a]] += total


@njit(**SERIAL)
def pulls(sets, factors, rows, squares, out):
    """Overlaps solver kernel of row groups: the curvature of the penalty's quadratic upper bound in each given row.

    out[j] gets squares[j] plus the sum of factors[g] over the groups g of row j. squares[j] is the ridge strength of
    row j. factors[g] is the curvature of the upper bound for group g."""
    for j in rows:
        total = squares[j]
        for a in range(np.uint64(sets.starts[j]), np.uint64(sets.starts[j + 1])):
            total += factors[np.uint64(sets.groups[a])]
        out[j] = total


@njit(**SERIAL)
def awake(W, G, cut, allowed):
    """Overlaps solver kernel of row groups: the indices of the active rows among the allowed rows.

    A row is active if it has a nonzero weight, or a gradient entry whose absolute value exceeds the lasso strength
    `cut`. G [rows, outputs] is the gradient of the loss in the weights W. `allowed` [rows] is a mask."""
    rows, size = np.empty(W.shape[0], np.int64), 0
    for j in range(W.shape[0]):
        if allowed[j]:
            for k in range(W.shape[1]):
                if W[j, k] != 0 or abs(G[j, k]) > cut:
                    rows[size] = j
                    size += 1
                    break
    return rows[:size]


@njit(**SERIAL)
def rows_outside(sets, dead, allowed):
    """Overlaps solver kernel of row groups: mark the rows that lie in no dead group, in the mask `allowed` [rows]."""
    for j in range(allowed.size):
        allowed[j] = True
        for a in range(sets.starts[j], sets.starts[j + 1]):
            if dead[sets.groups[a]]:
                allowed[j] = False
                break


# --- dual vectors of dead groups


@njit(**SERIAL)
def _largest(sizes, rows):
    """Overlaps solver kernel of row groups: the largest residual |sizes[j]| over the given rows j."""
    largest = 0.0
    for j in rows:
        largest = max(largest, abs(sizes[j]))
    return largest


@njit(**SERIAL)
def _gap_is_small(sets, starts, rows, duals, sizes):
    """Overlaps solver kernel of row groups: whether the duality gap of the problem in `hold` is small.

    The vector v of residuals (`sizes`) gives the dual objective

        sum_j v_j (v_j + sum_g xi_gj)  -  sum_g reach_g ||v_g||  -  1/2 |v|^2

    with the dual vector xi_g and the penalty strength reach_g of each group g. The primal objective is 1/2 |v|^2. The
    gap is small if it is at most SURE times the primal objective."""
    squares, slack = 0.0, 0.0
    for j in range(sizes.size):
        squares += sizes[j] * sizes[j]
    for g in range(starts.size - 1):
        norm_squares, product = 0.0, 0.0
        for a in range(starts[g], starts[g + 1]):
            v = sizes[rows[a]]
            norm_squares += v * v
            product += v * duals[a]
        if norm_squares > 0:
            slack += sets.reach[g] * np.sqrt(norm_squares) - product
    return slack <= SURE * squares / 2


@njit(**SERIAL)
def hold(sets, dead, sizes, guess, factors, tolerance, rounds):
    """Overlaps solver kernel of row groups: find dual vectors of dead groups that balance the gradient.

    Let sizes[j] be the norm of the gradient in row j, and xi_g the dual vector of group g. Solves

        min 1/2 sum_j (sizes_j - sum_g xi_gj)^2  with  ||xi_g|| <= reach_g

    by block coordinate descent over the groups, in at most `rounds` passes. The descent starts at xi_gj = factors[g] *
    guess[j]. Here guess[j] is the norm of row j of earlier weights, and factors[g] is reach_g / norm of group g at
    these weights. Zeros in both arrays are allowed.

    - `sizes` becomes the vector of residuals.
    - The descent ends when no residual exceeds the tolerance, when a pass changes no xi_gj by more than the tolerance,
      or when the duality gap is small.
    - Returns a mask of the groups that should become living first: those with ||xi_g|| = reach_g and a large residual.
    """
    counts = np.zeros(dead.size + 1, np.int64)
    for j in range(sizes.size):
        if sizes[j] > 0:
            for a in range(sets.starts[j], sets.starts[j + 1]):
                if dead[sets.groups[a]]:
                    counts[sets.groups[a] + 1] += 1
    starts = np.cumsum(counts)
    ends, rows = starts[:-1].copy(), np.empty(starts[-1], np.int64)
    duals = np.empty(starts[-1])
    for j in range(sizes.size):
        nonzero = sizes[j] > 0
        if nonzero:
            for a in range(sets.starts[j], sets.starts[j + 1]):
                g = sets.groups[a]
                if dead[g]:
                    rows[ends[g]], duals[ends[g]] = j, factors[g] * guess[j]
                    sizes[j] -= factors[g] * guess[j]
                    ends[g] += 1
    living = np.zeros(dead.size, np.bool_)
    for done in range(rounds):
        if done % LOOK == LOOK - 1 and _gap_is_small(sets, starts, rows, duals, sizes):
            break
        moved = 0.0
        for g in range(dead.size):
            first, last = starts[g], starts[g + 1]
            if first == last:
                continue
            total = 0.0
            for a in range(first, last):
                target = sizes[rows[a]] + duals[a]
                total += target * target
            norm = np.sqrt(total)
            living[g] = norm > sets.reach[g]
            share = sets.reach[g] / norm if living[g] else 1.0
            for a in range(first, last):
                j = rows[a]
                target = sizes[j] + duals[a]
                dual = share * target
                moved = max(moved, abs(dual - duals[a]))
                sizes[j], duals[a] = target - dual, dual
        if moved <= tolerance or (done % LOOK == LOOK - 1 and _largest(sizes, rows) <= tolerance):
            break
    largest = _largest(sizes, rows)
    for g in range(dead.size):
        residual = 0.0
        for a in range(starts[g], starts[g + 1]):
            residual = max(residual, sizes[rows[a]])
        living[g] &= residual > max(tolerance, MUCH * largest)
    return living


# --- ADMM, with one copy of a row per group that contains the row


@njit(**SERIAL)
def move_copies(sets, order, bounds, W, copies, duals, rho, over, sums, moved):
    """Overlaps solver kernel of row groups: update the copies v and the scaled duals u of all groups by an ADMM step.

    Each row of W has one copy for each group that contains it. M w denotes W with its rows repeated in this way. The
    step sets

    - v to the prox of the group norms at M w - u, with over-relaxation factor `over` and ADMM penalty `rho`,
    - then u to u + v - M w,
    - sums[j] to the sum of v + u over the copies of row j,
    - moved[j] to the sum of the changes of v over these copies.

    Group g has the rows order[bounds[g] : bounds[g + 1]]. Returns ||v - M w||^2, ||v||^2, ||M w||^2 and the count of
    zero groups."""
    outputs = W.shape[1]
    sums[:], moved[:] = 0, 0
    residual, copy_squares, weight_squares, zeros = 0.0, 0.0, 0.0, 0
    for g in range(bounds.size - 1):
        total = 0.0
        for a in range(bounds[g], bounds[g + 1]):
            for k in range(outputs):
                z = over * W[order[a], k] + (1 - over) * copies[a, k] - duals[a, k]
                total += z * z
        norm, cut = np.sqrt(total), sets.reach[g] / rho
        share = 1 - cut / norm if norm > cut else 0.0
        zeros += norm <= cut
        for a in range(bounds[g], bounds[g + 1]):
            j = order[a]
            for k in range(outputs):
                w = W[j, k]
                relaxed = over * w + (1 - over) * copies[a, k]
                v = share * (relaxed - duals[a, k])
                moved[j, k] += v - copies[a, k]
                duals[a, k] += v - relaxed
                copies[a, k] = v
                sums[j, k] += v + duals[a, k]
                residual += (v - w) * (v - w)
                copy_squares += v * v
                weight_squares += w * w
    return residual, copy_squares, weight_squares, zeros
