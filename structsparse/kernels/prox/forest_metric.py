"""Kernel of the prox of norms over a forest with a step per entry (a diagonal metric), by Newton's method.

The prox of sum_k reach_k ||V_k|| at x has the entries

    v_e = x_e / (1 + step_e q_e)

- V_k are the entries of the subtree of node k, and reach_k is the strength of its norm.
- tau_k is reach_k / ||V_k||, with the norm after the prox.
- q_e is the sum of tau_k over the nodes k on the path from the root to the node of entry e.

Newton's method finds tau. The equations of an iteration are solved by elimination in two passes over the tree: up from
the leaves to the roots, then down.

Nodes are in level order, and memory is as in `kernels.prox.forest`. Numbers per node are float64.
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL
from structsparse.kernels.prox.forest import _add_to_parents, _factors, _multiply_downwards

EXACT = 1e-12  # Newton's method stops if the absolute residual of each node is at most this
FEW, FAINT = 12, 1e-15  # after FEW Newton iterations, a requested accuracy below FAINT is replaced by FAINT
ROUNDS = 100  # maximum number of Newton iterations
STALLED = 0.5  # if an iteration leaves more than this share of the largest residual, a fixed-point step follows
LEAST, MOST = -0.9, 9.0  # bounds on the relative change of 1 / tau (the norm of a node / its strength) in one iteration


@njit(**SERIAL)
def shrink_forest_metric(x, steps, units, starts, width, above, levels, weight, strength, accuracy, scratch):
    """Forest metric prox kernel: prox of norms of subtrees with a step per entry, by Newton's method.

    The penalty of a node is strength * weight * norm of its subtree. The residual of a node is the relative error of
    the equation tau * norm = strength * weight. Newton's method stops when all absolute residuals are at most EXACT, or
    when their mean, weighted by the penalties of the nodes, is at most `accuracy`. `scratch` [8, nodes] is work memory.
    Returns the number of iterations."""
    memory = units, starts, width
    q, tau, squares, delta, pull, metric, stiffest, bound = scratch
    reach = weight, strength
    _begin(x, steps, memory, above, levels, reach, q, tau, squares, delta, pull, stiffest, bound)
    last, safe = np.inf, False
    for rounds in range(ROUNDS):
        worst, share = _up(x, steps, memory, above, reach, q, tau, squares, delta, pull, metric)
        done = not share > (max(accuracy, FAINT) if rounds > FEW else accuracy)
        if not worst > EXACT or done or rounds + 1 == ROUNDS:  # a NaN residual also ends the loop
            break
        safe = worst > STALLED * last and rounds > 3 and not safe
        last = worst
        _down(above, reach, safe, q, tau, squares, delta, pull, metric, stiffest, bound)
    _finish(x, steps, memory, q)
    return rounds


@njit(**SERIAL)
def _begin(x, steps, memory, above, levels, reach, q, tau, squares, factor, plain, stiffest, bound):
    """Forest metric prox kernel: set tau and q of each node to the starting point of Newton's method.

    - tau is strength / norm of the subtree. It is infinite for subtrees that become zero.
    - q is the sum of tau over the path from the root.
    - `stiffest` gets the largest 1 / step of each subtree.
    - `bound` gets an upper bound of tau / (stiffest + q of the parent)."""
    weight, strength = reach
    units, starts, width = memory
    for k in range(q.size):
        squares[k] = plain[k] = stiffest[k] = 0.0
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                size = np.float64(x[e])
                if size != 0:
                    plain[k] += size * size
                    size /= np.float64(steps[e])
                    squares[k] += size * size
                    stiffest[k] = max(stiffest[k], 1 / np.float64(steps[e]))
    for level in range(levels.size - 2, -1, -1):
        a, b = levels[level], levels[level + 1]
        _factors(squares[a:b], weight[a:b], strength, factor[a:b])
        if level > 0:
            _add_to_parents(squares[a:b], above[a:b], squares)
    for k in range(q.size):
        bound[k] = strength * weight[k] / np.sqrt(squares[k])  # upper bound of tau / (stiffest + q of the parent)
    _multiply_downwards(factor[levels[1] :], above[levels[1] :], factor)
    for k in range(q.size):
        squares[k] = plain[k] * factor[k] * factor[k]
    for k in range(q.size - 1, levels[1] - 1, -1):
        squares[above[k]] += squares[k]
        stiffest[above[k]] = max(stiffest[above[k]], stiffest[k])
    for k in range(q.size):
        size = strength * weight[k]
        tau[k] = np.inf if factor[k] == 0 else (size / np.sqrt(squares[k]) if size > 0 else 0.0)
        q[k] = tau[k] + (q[above[k]] if above[k] >= 0 else 0.0)


@njit(**SERIAL)
def _up(x, steps, memory, above, reach, q, tau, squares, delta, pull, metric):
    """Forest metric prox kernel: upward pass of a Newton iteration: norms and elimination, from leaves to roots.

    The residual of a node is the relative error of the equation tau * norm = strength * weight. Returns the largest
    absolute residual, and the mean of the absolute residuals, weighted by strength * weight * norm."""
    weight, strength = reach
    units, starts, width = memory
    squares[:], delta[:], pull[:], metric[:] = 0.0, 0.0, 0.0, 0.0
    worst, rest, value = 0.0, 0.0, 0.0
    for k in range(q.size - 1, -1, -1):
        if q[k] == np.inf:
            continue
        p = above[k]
        before = q[p] if p >= 0 else 0.0
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                if x[e] != 0:
                    size, step = _shrunk(x[e], steps[e], q[k])
                    squares[k] += size * size
                    if q[k] > 0:
                        pulled = size * size / (1 + step * q[k])
                        delta[k] += pulled * step
                        metric[k] += pulled
        square, of_node = squares[k], 0.0
        if square == 0 and tau[k] > 0:  # if the norm underflows, the subtree counts as zero
            q[k] = tau[k] = np.inf
            continue
        if tau[k] > 0:
            norm = np.sqrt(square)
            residual, part = norm * tau[k] / (strength * weight[k]) - 1, strength * weight[k] * norm
            worst, value, rest = max(worst, abs(residual)), value + part, rest + part * abs(residual)
            of_node = square * residual
        free = delta[k] == 0  # True if the entries of the subtree do not depend on q
        left = np.inf if free else metric[k] / delta[k]
        delta[k] = left
        pull[k] += of_node
        if tau[k] > 0 and not free:
            pull[k] *= (q[k] + left) / (before + left)
        if p >= 0:
            squares[p] += square
            pull[p] += pull[k] - of_node
            if before > 0:
                delta[p] += square / (before + left)
                metric[p] += square if free else square * (left / (before + left))
    return worst, rest / max(value, 1e-300)


@njit(**SERIAL)
def _down(above, reach, safe, q, tau, squares, delta, pull, before, stiffest, bound):
    """Forest metric prox kernel: downward pass of a Newton iteration: new tau and q, from the roots to the leaves.

    tau is strength / norm of a subtree, and q the sum of tau over the path from the root. If `safe` is true, tau is
    computed by a fixed-point step instead of a Newton step. `before` gets the old q, and `squares` is overwritten."""
    weight, strength = reach
    for k in range(q.size):
        if q[k] == np.inf:
            continue
        p = above[k]
        y, old, new = (squares[p], before[p], q[p]) if p >= 0 else (0.0, 0.0, 0.0)
        before[k] = q[k]
        if tau[k] > 0:
            square, change = squares[k], pull[k] / squares[k]
            if y != 0:
                change += y / (old + delta[k])
            squares[k] = y + change * tau[k]
            tau[k] = strength * weight[k] / np.sqrt(square) if safe else tau[k] / (1 + min(max(change, LEAST), MOST))
            most = bound[k] * (stiffest[k] + new)
            tau[k] = most if most < tau[k] else tau[k]  # a bound of NaN (0 * inf, for a step of 0) is ignored
            q[k] = new + tau[k]
        else:
            squares[k], q[k] = y, new


@njit(**SERIAL)
def _shrunk(x, step, q):
    """Forest metric prox kernel: the entry of the prox, x / (1 + step * q), and its step, both as float64.

    q is the sum of strength / norm over the subtrees that contain the entry. For q = 0 the entry does not change, even
    if the step is infinite."""
    x, step = np.float64(x), np.float64(step)
    return (x / (1 + step * q) if q > 0 else x), step


@njit(**SERIAL)
def _finish(x, steps, memory, q):
    """Forest metric prox kernel: write the entries of the prox, x / (1 + step * q), with the final q of each node.

    q is the sum of strength / norm over the subtrees that contain the node."""
    units, starts, width = memory
    for k in range(q.size):
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                if q[k] == np.inf:
                    x[e] = 0
                elif x[e] != 0:
                    x[e] = _shrunk(x[e], steps[e], q[k])[0]
