"""Kernel of the prox of norms over a forest with a step per entry (a diagonal metric), by Newton's method.

The prox of sum_k reach_k ||V_k|| at x is v_e = D_e x_e / (D_e + q_e) for entry e, with D = 1 / step. V_k are the
entries of the subtree of node k. q_e is the sum of tau_k = reach_k / ||V_k|| over the nodes on the path from the root
to the node of e. A subtree is zero exactly if the prox of D x with steps of 1 is zero on it, for any D. For the other
nodes, Newton's method solves 1 / (tau_k ||V_k||) = 1 / reach_k. For a single entry this takes one iteration.

The Newton equations couple a node with all its ancestors and descendants. In terms of y, the sums of the unknowns along
paths, the matrix of the equations has the sparsity of the tree. So elimination takes two passes, up to the roots and
back. With w_e = v_e^2 / (q_e + D_e), all numbers of the elimination are sums of positive terms:

    delta_k = mean of D_e over the entries of the node itself, weighted by w_e, and of delta_c over the children c,
              weighted by ||V_c||^2 / (q_k + delta_c).

delta is the effective metric of a whole subtree. The elimination divides by (q_above + delta) / (q + delta), where
q_above is the q of the parent.

The Newton step is bounded. Let L_k be the norm of the part of D x that is left after the projections of k and of all
nodes below. The norm of (D + q_above) V_k is at least L_k. So tau_k is at most reach_k / L_k * (largest D of the
subtree + q_above). Nodes are in level order, memory is as in `kernels.prox.forest`, and numbers per node are float64.
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL
from structsparse.kernels.prox.forest import _add_to_parents, _factors, _multiply_downwards

EXACT = 1e-12  # Newton's method stops if the residual of each node is below EXACT
FEW, FAINT = 12, 1e-15  # after FEW iterations, residuals below the share FAINT of the penalty are rounding errors
ROUNDS = 100  # most Newton iterations; a dozen are nearly always enough
STALLED = 0.5  # if an iteration leaves more than this share of the worst residual, a fixed-point iteration follows
LEAST, MOST = -0.9, 9.0  # bounds on the relative change of 1 / tau in one iteration


@njit(**SERIAL)
def shrink_forest_metric(x, steps, units, starts, width, above, levels, weight, strength, accuracy, scratch):
    """Forest metric prox kernel: prox of norms of subtrees with a step per entry, by Newton's method.

    The reach of a node is strength * weight. Newton's method stops when the sum of reach ||V|| |residual| is below
    `accuracy` times the sum of reach ||V||, or when each residual is below EXACT. `scratch` [8, nodes] is work memory.
    Returns the number of iterations.
    """
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
    """Forest metric prox kernel: the starting point of Newton's method, tau and q of each node.

    tau is reach / norm of the subtree, and q the sum of tau over the path from the root. Both are infinite for subtrees
    that become zero. For other subtrees the norms come from the prox of x / step with steps of 1. The kernel also fills
    `stiffest`, the largest 1 / step of each subtree, and `bound`, which bounds tau / (stiffest + q of the parent).
    """
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
        bound[k] = strength * weight[k] / np.sqrt(squares[k])  # reach_k / L_k of the module docstring
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
    """Forest metric prox kernel: upward pass of a Newton iteration, with norms and elimination from leaves to roots.

    Returns the worst residual, and the weighted sum of the residuals as a share of the penalty. Until the children of a
    node are done, `delta` holds the sum of the weights, and `metric` the sum of weight * delta.
    """
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
        if square == 0 and tau[k] > 0:  # the norm underflows, so the subtree counts as zero
            q[k] = tau[k] = np.inf
            continue
        if tau[k] > 0:
            norm = np.sqrt(square)
            residual, part = norm * tau[k] / (strength * weight[k]) - 1, strength * weight[k] * norm
            worst, value, rest = max(worst, abs(residual)), value + part, rest + part * abs(residual)
            of_node = square * residual
        free = delta[k] == 0  # true if no entry of the subtree can move
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
    """Forest metric prox kernel: downward pass of a Newton iteration, with new tau and q from the roots to the leaves.

    `squares` becomes y, the sum of the Newton unknowns along the path, and `before` becomes the old q. If `safe`, tau
    becomes reach / norm, a fixed-point iteration.
    """
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
            tau[k] = most if most < tau[k] else tau[k]  # ignores a bound of NaN, from 0 * inf for a step of zero
            q[k] = new + tau[k]
        else:
            squares[k], q[k] = y, new


@njit(**SERIAL)
def _shrunk(x, step, q):
    """Forest metric prox kernel: the entry of the prox, x / (1 + step * q), and its step as a float64.

    For q = 0 the entry stays as it is, even if the step is infinite.
    """
    x, step = np.float64(x), np.float64(step)
    return (x / (1 + step * q) if q > 0 else x), step


@njit(**SERIAL)
def _finish(x, steps, memory, q):
    """Forest metric prox kernel: write the entries of the prox, x / (1 + step * q), for the final q of each node."""
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
