"""CPU kernel of the prox of norms of nested groups with a step per entry (a diagonal metric), by Newton's method.

With D = 1 / step the prox of sum_k reach_k ||V_k|| at x is v_e = D_e x_e / (D_e + q_e). Here q_e is the sum of tau_k =
reach_k / ||V_k|| over the nodes on the path from the root to the node of e. A subtree is zero exactly if the prox of D
x with steps of 1 is zero on it, for any D. For the other nodes, Newton's method solves 1 / (tau_k ||V_k||) = 1 /
reach_k. For a single entry this takes one iteration.

The Newton equations couple a node with all its ancestors and descendants. In terms of y, the sums along paths, their
matrix has the sparsity of the tree. So elimination takes two passes, up to the roots and back. With w_e = v_e^2 / (q_e
+ D_e), all numbers of the elimination are sums of positive terms:

    delta_k = mean of D_e over the entries of the node itself, weighted by w_e, and of delta_c over the children c,
              weighted by ||V_c||^2 / (q_k + delta_c).

delta is the effective metric of a whole subtree. The elimination divides by (q_above + delta) / (q + delta).

The Newton step is bounded. (D + q_above) V_k is at least the part of D x that is left after the projections of k and of
all nodes below, whose norm is L_k. So tau_k is at most reach_k / L_k (largest D of the subtree + q_above). Nodes are in
level order, memory is as in `kernels.prox.forest`, and numbers per node are float64.
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL
from structsparse.kernels.prox.forest import _add_to_parents, _factors, _multiply_downwards

EXACT = 1e-12  # residual of the equation of a node at which Newton's method stops
FEW, FAINT = 12, 1e-15  # after FEW iterations, residuals below FAINT of the value count as rounding errors
ROUNDS = 100  # Newton iterations, at most; a dozen are nearly always enough
STALLED = 0.5  # if more of the worst residual is left, a fixed-point iteration follows
LEAST, MOST = -0.9, 9.0  # bounds on the relative change of 1 / tau in an iteration


@njit(**SERIAL)
def shrink_forest_metric(x, steps, units, starts, width, above, levels, weight, strength, accuracy, scratch):
    """Kernel: prox of norms of subtrees with a step per entry, reach = strength * weight [nodes].

    Newton's method stops when the sum of reach ||V|| |residual| is below `accuracy` times the sum of reach ||V||, or
    when each residual is below EXACT. `scratch` is [8, nodes]. Returns the number of iterations.
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
    """Starting point of Newton's method: tau and q of each node, infinite for subtrees that become zero.

    For the other subtrees they follow from norms after the prox of D x with steps of 1.
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
        bound[k] = strength * weight[k] / np.sqrt(squares[k])  # `squares` excludes what was projected away
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
    """One upward pass of Newton's elimination: norms of subtrees, then elimination from the leaves to the roots.

    Returns the worst residual, and the sum of the residuals as a share of the value. Until the children of a node are
    done, `delta` holds the sum of their weights, and `metric` the sum of weight * delta.
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
        if square == 0 and tau[k] > 0:  # the norm underflows: the subtree counts as zero
            q[k] = tau[k] = np.inf
            continue
        if tau[k] > 0:
            norm = np.sqrt(square)
            residual, part = norm * tau[k] / (strength * weight[k]) - 1, strength * weight[k] * norm
            worst, value, rest = max(worst, abs(residual)), value + part, rest + part * abs(residual)
            of_node = square * residual
        free = delta[k] == 0  # no entry of the subtree can move
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
    """One downward pass of Newton's method: substitution from the roots gives the new tau and q.

    `squares` becomes y, and `before` the old q.
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
            tau[k] = most if most < tau[k] else tau[k]  # a NaN bound (0 * inf, for a step of zero) is ignored
            q[k] = new + tau[k]
        else:
            squares[k], q[k] = y, new


@njit(**SERIAL)
def _shrunk(x, step, q):
    """The entry of the prox, x / (1 + step * q), and its step. For q = 0 the entry stays, even if step is inf."""
    x, step = np.float64(x), np.float64(step)
    return (x / (1 + step * q) if q > 0 else x), step


@njit(**SERIAL)
def _finish(x, steps, memory, q):
    """Write the entries of the prox, x / (1 + step * q), for the final q of each node."""
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
