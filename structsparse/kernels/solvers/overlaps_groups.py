"""Overlapping groups of rows: their norms, how they pull, the duals of dead ones, the copies of ADMM. Float64.

Groups are held by rows: row j lies in `groups[starts[j]:starts[j + 1]]`, and group g bears reach[g] * ||W_g||.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.solvers.linear_problem import SERIAL

LOOK, SURE = 10, 0.01  # rounds of `hold` between two looks at what is proved, and how much of it need not be
MUCH = 0.3  # of the most that is left: what is less may be held once the rest is


class Sets(NamedTuple):
    starts: np.ndarray  # int64 [rows + 1]
    groups: np.ndarray  # int32 [copies]
    reach: np.ndarray  # float64 [groups]


# --- norms and pulls


@njit(**SERIAL)
def group_squares(sets, W, out):
    """out[g] <- ||W_g||^2"""
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
    """out[j] <- squares[j] + sum of factors over the groups of row j, for these rows."""
    for j in rows:
        total = squares[j]
        for a in range(np.uint64(sets.starts[j]), np.uint64(sets.starts[j + 1])):
            total += factors[np.uint64(sets.groups[a])]
        out[j] = total


@njit(**SERIAL)
def awake(W, G, cut, allowed):
    """Rows that are not zero, or that the gradient would wake if nothing but the cut held them."""
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
    """allowed[j] <- whether row j lies in no dead group"""
    for j in range(allowed.size):
        allowed[j] = True
        for a in range(sets.starts[j], sets.starts[j + 1]):
            if dead[sets.groups[a]]:
                allowed[j] = False
                break


# --- duals of dead groups


@njit(**SERIAL)
def _most(sizes, rows):
    most = 0.0
    for j in rows:
        most = max(most, abs(sizes[j]))
    return most


@njit(**SERIAL)
def _surely_left(sets, starts, rows, duals, sizes):
    """Whether the minimum of `hold` is nearly 1/2 |v|^2, v the sizes that are left: by the dual problem at v,

    sum_j v_j (v_j + sum_g xi_gj)  -  sum_g reach_g ||v_g||  -  1/2 |v|^2.
    """
    squares, slack = 0.0, 0.0
    for j in range(sizes.size):
        squares += sizes[j] * sizes[j]
    for g in range(starts.size - 1):
        own, inner = 0.0, 0.0
        for a in range(starts[g], starts[g + 1]):
            v = sizes[rows[a]]
            own += v * v
            inner += v * duals[a]
        if own > 0:
            slack += sets.reach[g] * np.sqrt(own) - inner
    return slack <= SURE * squares / 2


@njit(**SERIAL)
def hold(sets, dead, sizes, guess, factors, tolerance, rounds):
    """What dead groups cannot hold of sizes [rows], the norms of what pulls at their rows; sizes changes in place.

    min 1/2 sum_j (sizes_j - sum_g xi_gj)^2  with  ||xi_g|| <= reach_g: descent over one group after the other, from
    xi_gj = factors[g] * guess[j]. Ends once nothing is left above the tolerance; once a round changes nothing; or once
    nearly all that is left is proved to be left at the minimum too (`_surely_left`), as it is where a guess was wrong.
    Returns whether each group's bound is met with much of the most that is left: those that should live first.
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
        pulled = sizes[j] > 0
        if pulled:
            for a in range(sets.starts[j], sets.starts[j + 1]):
                g = sets.groups[a]
                if dead[g]:
                    rows[ends[g]], duals[ends[g]] = j, factors[g] * guess[j]
                    sizes[j] -= factors[g] * guess[j]
                    ends[g] += 1
    living = np.zeros(dead.size, np.bool_)
    for done in range(rounds):
        if done % LOOK == LOOK - 1 and _surely_left(sets, starts, rows, duals, sizes):
            break
        moved = 0.0
        for g in range(dead.size):
            first, last = starts[g], starts[g + 1]
            if first == last:
                continue
            total = 0.0
            for a in range(first, last):
                aim = sizes[rows[a]] + duals[a]
                total += aim * aim
            norm = np.sqrt(total)
            living[g] = norm > sets.reach[g]
            share = sets.reach[g] / norm if living[g] else 1.0
            for a in range(first, last):
                j = rows[a]
                aim = sizes[j] + duals[a]
                new = share * aim
                moved = max(moved, abs(new - duals[a]))
                sizes[j], duals[a] = aim - new, new
        if moved <= tolerance or (done % LOOK == LOOK - 1 and _most(sizes, rows) <= tolerance):
            break
    most = _most(sizes, rows)
    for g in range(dead.size):
        left = 0.0
        for a in range(starts[g], starts[g + 1]):
            left = max(left, sizes[rows[a]])
        living[g] &= left > max(tolerance, MUCH * most)
    return living


# --- copies (ADMM)


@njit(**SERIAL)
def move_copies(sets, order, bounds, W, copies, duals, rho, over, sums, moved):
    """v <- group prox of (M w - u),  u <- u + v - M w (u is scaled by 1 / rho), all groups at once.

    Groups hold rows order[bounds[g]:bounds[g + 1]]. sums[j] <- sum over the copies of v + u, moved[j] <- of the change
    of v. `over` relaxes M w. Returns ||v - M w||^2, ||v||^2, ||M w||^2 and how many groups are zero.
    """
    outputs = W.shape[1]
    sums[:], moved[:] = 0, 0
    apart, size, there, zeros = 0.0, 0.0, 0.0, 0
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
                apart += (v - w) * (v - w)
                size += v * v
                there += w * w
    return apart, size, there, zeros
