"""Linear models of rows under overlapping groups: proximal Newton, group norms, duals of dead groups. Float64.

The loss is a mean over items of scores F = (X W)' + bias, [outputs, items]; W is [rows, outputs]. Columns of X: entries
`starts[j]` to `starts[j + 1]` of `values` and `items` make row j of W. Groups are held by rows: row j lies in the
groups `groups[starts[j]:starts[j + 1]]`, and group g bears reach[g] * ||W_g||. One coupling makes softmax unlike the
other losses: the second derivative of an item is diag(p) - p p', else diag(bend).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.linear import SERIAL, dot, soft

LOGISTIC, SQUARED, HINGE, SOFTMAX = 0, 1, 2, 3
HALVINGS = 40  # of a step: what does not help by then is rounding
ENOUGH = 1e-4  # of the promised decrease (Armijo)
ROUNDING = 4e-15  # of the objective: a smaller increase is none
LOOK, SURE = 10, 0.01  # rounds of `hold` between two looks at what is proved, and how much of it need not be
MUCH = 0.3  # of the most that is left: what is less may be held once the rest is
FLOOR = 1e-14  # of a curvature, relative to the largest: below it a column says nothing


class Data(NamedTuple):
    values: np.ndarray  # float64 [entries]
    items: np.ndarray  # int32 [entries]
    starts: np.ndarray  # int32 [rows + 1]
    targets: np.ndarray  # float64 [items]: signs, numbers, or codes of classes
    kind: int  # of loss


class Sets(NamedTuple):
    starts: np.ndarray  # int64 [rows + 1]
    groups: np.ndarray  # int32 [copies]
    reach: np.ndarray  # float64 [groups]


# --- losses


@njit(**SERIAL)
def losses(data, F, slope, bend):
    """The mean loss; fills slope and bend [outputs, items]: bend is the curvature, or p under softmax."""
    outputs, count = F.shape
    if data.kind == SOFTMAX:
        return _softmax(data.targets, F, slope, bend)
    total = 0.0
    for k in range(outputs):
        for i in range(count):
            f, y = F[k, i], data.targets[i]
            if outputs > 1:
                y = 1.0 if y == k else -1.0
            if data.kind == LOGISTIC:
                small = np.exp(-abs(f))
                total += np.log1p(small) + max(-y * f, 0.0)
                miss = (small if y * f > 0 else 1.0) / (1 + small)
                slope[k, i], bend[k, i] = -y * miss, small / ((1 + small) * (1 + small))
            elif data.kind == SQUARED:
                slope[k, i], bend[k, i] = f - y, 1.0
                total += (f - y) * (f - y) / 2
            else:
                short = max(1 - y * f, 0.0)
                total += short * short
                slope[k, i], bend[k, i] = -2 * y * short, 2.0 if short > 0 else 0.0
    return total / count


@njit(**SERIAL)
def _softmax(targets, F, slope, bend):
    outputs, count = F.shape
    total = 0.0
    for i in range(count):
        top = F[0, i]
        for k in range(1, outputs):
            top = max(top, F[k, i])
        rest = 0.0
        for k in range(outputs):
            bend[k, i] = np.exp(F[k, i] - top)
            rest += bend[k, i]
        for k in range(outputs):
            bend[k, i] /= rest
            slope[k, i] = bend[k, i]
        gold = int(targets[i])
        slope[gold, i] = 0.0
        for k in range(outputs):
            slope[gold, i] -= slope[k, i] if k != gold else 0.0  # p - 1 without cancellation
        total += np.log(rest) + top - F[gold, i]
    return total / count


@njit(**SERIAL)
def conjugates(data, slope, scale):
    """The mean of the conjugate of the loss at scale * slope; infinite outside its domain."""
    outputs, count = slope.shape
    total = 0.0
    for k in range(outputs):
        for i in range(count):
            dual, y = scale * slope[k, i], data.targets[i]
            if data.kind == SOFTMAX:
                p = dual + 1 if y == k else dual
                if p < 0:
                    return np.inf
                total += p * np.log(p) if p > 0 else 0.0
                continue
            if outputs > 1:
                y = 1.0 if y == k else -1.0
            if data.kind == SQUARED:
                total += dual * (dual / 2 + y)
                continue
            miss = -y * dual
            if miss < 0 or (data.kind == LOGISTIC and miss > 1):
                return np.inf
            if data.kind == HINGE:
                total += miss * (miss / 4 - 1)
            elif 0 < miss < 1:
                total += miss * np.log(miss) + (1 - miss) * np.log1p(-miss)
    return total / count


# --- columns


@njit(**SERIAL)
def gradient(data, slope, G):
    """G[j, k] <- X_j' slope_k / items"""
    for k in range(slope.shape[0]):
        own = slope[k]
        for j in range(G.shape[0]):
            G[j, k] = dot(data.values, data.items, data.starts[j], data.starts[j + 1], own) / own.size


@njit(**SERIAL)
def scores(data, W, bias, F):
    for k in range(F.shape[0]):
        F[k] = bias[k]
        for j in range(W.shape[0]):
            add_column(data, j, W[j, k], F[k])


@njit(**SERIAL)
def add_column(data, j, weight, x):
    if weight != 0:
        for a in range(np.uint64(data.starts[j]), np.uint64(data.starts[j + 1])):
            x[np.uint64(data.items[a])] += data.values[a] * weight


@njit(**SERIAL)
def _coupled_dot(values, items, first, last, p, e, mean):
    total = 0.0
    for a in range(np.uint64(first), np.uint64(last)):
        i = np.uint64(items[a])
        total += values[a] * p[i] * (e[i] - mean[i])
    return total


@njit(**SERIAL)
def _bend_of(data, j, own):
    """Second derivative along an entry of row j; `own` [items] is that of the items."""
    total = 0.0
    for a in range(np.uint64(data.starts[j]), np.uint64(data.starts[j + 1])):
        total += data.values[a] * data.values[a] * own[np.uint64(data.items[a])]
    return total / own.size


@njit(**SERIAL)
def own_bends(data, bend):
    return bend * (1 - bend) if data.kind == SOFTMAX else bend


# --- one step of proximal Newton


@njit(**SERIAL)
def newton(data, W, bias, F, slope, bend, G, cut, ridge, centre, rows, moves_bias, passes, slack):
    """W, bias and F move towards the minimum of  loss + cut * |W|_1 + sum_j ridge[j] / 2 * |W_j - centre_j|^2
    over these rows, by coordinate descent on the second-order model of the loss and a line search.

    slope, bend and G are those of the loss at W; the first two are then those at the end. Entries at zero that the
    gradient leaves there are passed over. Returns the mean loss at the end and the largest |gradient of a visited
    entry| at the start, the nearest to zero of its subgradients.
    """
    outputs, count = F.shape
    entries, size = np.empty((rows.size * outputs, 2), np.int64), 0
    worst = 0.0
    for j in rows:
        for k in range(outputs):
            s = G[j, k] + ridge[j] * (W[j, k] - centre[j, k])
            violation = abs(s + cut * np.sign(W[j, k])) if W[j, k] != 0 else max(abs(s) - cut, 0.0)
            if W[j, k] != 0 or violation > 0:
                entries[size, 0], entries[size, 1] = j, k
                size += 1
                worst = max(worst, violation)
    entries = entries[:size]
    own = own_bends(data, bend)
    curvature, change = np.empty(size), np.zeros(size)
    largest = 0.0
    for c in range(size):
        j, k = entries[c]
        curvature[c] = _bend_of(data, j, own[k]) + ridge[j]
        largest = max(largest, curvature[c])
    curvature = np.maximum(curvature, max(FLOOR * largest, 1e-300))
    ahead, pull, mean, bias_change = np.zeros_like(F), np.zeros_like(F), np.zeros(count), np.zeros(outputs)
    first = 0.0
    for _ in range(passes):
        most = 0.0
        for c in range(size):
            j, k = entries[c]
            moved = _coordinate(
                data, j, W[j, k] + change[c], ridge[j], centre[j, k], cut, G[j, k], curvature[c], bend[k], ahead[k],
                pull[k], mean,
            )  # fmt: skip
            change[c] += moved
            most = max(most, curvature[c] * abs(moved))
        if moves_bias:
            for k in range(outputs):
                most = max(most, _move_bias(data, slope[k], bend[k], own[k], ahead[k], pull[k], mean, bias_change, k))
        first = max(first, most)
        if most <= slack * first:
            break
    loss = _search(data, W, bias, F, slope, bend, G, cut, ridge, centre, entries, change, bias_change, ahead)
    return loss, worst


@njit(**SERIAL)
def _coordinate(data, j, w, ridge, centre, cut, slope, curvature, bend, ahead, pull, mean):
    """One entry to its minimum; `pull` is bend * ahead, or under softmax p * (ahead - mean) is made of its parts."""
    first, last = data.starts[j], data.starts[j + 1]
    if data.kind == SOFTMAX:
        total = _coupled_dot(data.values, data.items, first, last, bend, ahead, mean)
    else:
        total = dot(data.values, data.items, first, last, pull)
    s = slope + total / ahead.size + ridge * (w - centre)
    moved = soft(w - s / curvature, cut / curvature) - w
    if moved != 0:
        for a in range(np.uint64(first), np.uint64(last)):
            i = np.uint64(data.items[a])
            step = data.values[a] * moved
            ahead[i] += step
            if data.kind == SOFTMAX:
                mean[i] += bend[i] * step
            else:
                pull[i] += bend[i] * step
    return moved


@njit(**SERIAL)
def _move_bias(data, slope, bend, own, ahead, pull, mean, bias_change, k):
    total, curvature = 0.0, 0.0
    for i in range(ahead.size):
        total += slope[i] + (bend[i] * (ahead[i] - mean[i]) if data.kind == SOFTMAX else pull[i])
        curvature += own[i]
    if curvature <= 1e-12 * ahead.size:
        return 0.0
    moved = -total / curvature
    bias_change[k] += moved
    for i in range(ahead.size):
        ahead[i] += moved
        if data.kind == SOFTMAX:
            mean[i] += bend[i] * moved
        else:
            pull[i] += bend[i] * moved
    return abs(total) / ahead.size


@njit(**SERIAL)
def _search(data, W, bias, F, slope, bend, G, cut, ridge, centre, entries, change, bias_change, ahead):
    """As far along the change as it helps."""
    start, loss_change, old, promised = F.copy(), 0.0, 0.0, 0.0
    for k in range(F.shape[0]):
        promised += bias_change[k] * slope[k].sum() / F.shape[1]
    before = np.empty(change.size)
    for c in range(change.size):
        j, k = entries[c]
        before[c] = W[j, k]
        apart, new = W[j, k] - centre[j, k], W[j, k] + change[c]
        old += cut * abs(W[j, k]) + ridge[j] / 2 * apart * apart
        promised += (G[j, k] + ridge[j] * apart) * change[c] + cut * (abs(new) - abs(W[j, k]))
    here = losses(data, F, slope, bend)
    old += here
    step = 1.0
    for _ in range(HALVINGS):
        F[:] = start + step * ahead
        value = loss_change = losses(data, F, slope, bend)
        for c in range(change.size):
            j, k = entries[c]
            new = before[c] + step * change[c]
            W[j, k] = new
            value += cut * abs(new) + ridge[j] / 2 * (new - centre[j, k]) * (new - centre[j, k])
        if value <= old + ENOUGH * step * promised + ROUNDING * abs(old):
            bias += step * bias_change
            return loss_change
        step /= 2
    F[:] = start
    for c in range(change.size):
        W[entries[c, 0], entries[c, 1]] = before[c]
    return losses(data, F, slope, bend)


# --- groups


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


# --- Newton on the entries that live, with the norms as they are


@njit(**SERIAL)
def true_penalty(sets, W, rows, cut, squares, norms, eps=0.0):
    """The value over these rows, all others zero; norms[g] <- ||W_g||. With eps, sqrt(||W_g||^2 + eps^2) - eps counts
    for each norm."""
    norms[:] = 0
    total = 0.0
    for j in rows:
        own = 0.0
        for k in range(W.shape[1]):
            own += W[j, k] * W[j, k]
            total += cut * abs(W[j, k])
        total += squares[j] / 2 * own
        if own > 0:
            for a in range(np.uint64(sets.starts[j]), np.uint64(sets.starts[j + 1])):
                norms[np.uint64(sets.groups[a])] += own
    for g in range(norms.size):
        if norms[g] > 0:
            total += sets.reach[g] * (np.sqrt(norms[g] + eps * eps) - eps)
            norms[g] = np.sqrt(norms[g])
    return total


@njit(**SERIAL)
def _curve(data, sets, W, entries, own, norms, ridge, bend, moves_bias, d, d_bias, out, ahead, mean, along):
    """out <- second derivative of loss and living norms times d; returns its bias part."""
    outputs, count = ahead.shape
    ahead[:], mean[:], along[:] = 0, 0, 0
    for c in range(d.size):
        j, k = entries[c]
        add_column(data, j, d[c], ahead[k])
        part = W[j, k] * d[c]
        for a in range(np.uint64(sets.starts[j]), np.uint64(sets.starts[j + 1])):
            along[np.uint64(sets.groups[a])] += part
    for g in range(along.size):
        if norms[g] > 0:
            along[g] *= sets.reach[g] / (norms[g] * norms[g] * norms[g])
    if moves_bias:
        for k in range(outputs):
            ahead[k] += d_bias[k]
    if data.kind == SOFTMAX:
        for k in range(outputs):
            mean += bend[k] * ahead[k]
    out_bias = np.zeros(outputs)
    for k in range(outputs):
        ahead[k] = bend[k] * (ahead[k] - mean)
        out_bias[k] = ahead[k].sum() / count if moves_bias else 0.0
    for c in range(d.size):
        j, k = entries[c]
        total = dot(data.values, data.items, data.starts[j], data.starts[j + 1], ahead[k]) / count
        turned = 0.0
        for a in range(np.uint64(sets.starts[j]), np.uint64(sets.starts[j + 1])):
            turned += along[np.uint64(sets.groups[a])]
        out[c] = total + ridge[j] * d[c] - W[j, k] * turned
    return out_bias


@njit(**SERIAL)
def polish(
    data, sets, W, bias, F, slope, bend, G, cut, ridge, squares, norms, rows, moves_bias, rounds, accuracy, eps=0.0
):
    """One Newton step with conjugate gradients on the entries of these rows that are not zero, signs kept.

    `accuracy` is that of the gradients, as a share of the first. `ridge` [rows] holds squares and the sum of
    reach / norm over the groups of a row, `norms` [groups] theirs; with eps each norm is sqrt(||W_g||^2 + eps^2). F,
    slope and bend follow. Where no length of the step lowers the objective nothing changes.
    """
    outputs, count = F.shape
    entries, size = np.empty((rows.size * outputs, 2), np.int64), 0
    for j in rows:
        for k in range(outputs):
            if W[j, k] != 0:
                entries[size, 0], entries[size, 1] = j, k
                size += 1
    entries, own = entries[:size], own_bends(data, bend)
    rest, scale, before = np.empty(size), np.empty(size), np.empty(size)
    for c in range(size):
        j, k = entries[c]
        before[c] = W[j, k]
        rest[c] = -(G[j, k] + ridge[j] * W[j, k] + cut * np.sign(W[j, k]))
        scale[c] = 1 / max(_bend_of(data, j, own[k]) + ridge[j], 1e-300)
    rest_bias, scale_bias = np.zeros(outputs), np.ones(outputs)
    if moves_bias:
        for k in range(outputs):
            rest_bias[k] = -slope[k].sum() / count
            scale_bias[k] = 1 / max(own[k].sum() / count, 1e-12)
    d, d_bias = np.zeros(size), np.zeros(outputs)
    out, ahead, mean, along = np.empty(size), np.empty_like(F), np.empty(count), np.empty(norms.size)
    p, p_bias = scale * rest, scale_bias * rest_bias
    promised, total = np.zeros(1), rest @ p + rest_bias @ p_bias
    first, slope_start, slope_bias = total, rest.copy(), rest_bias.copy()
    for _ in range(rounds):
        if not total > accuracy * accuracy * first:
            break
        out_bias = _curve(
            data, sets, W, entries, own, norms, ridge, bend, moves_bias, p, p_bias, out, ahead, mean, along
        )
        along_p = p @ out + p_bias @ out_bias
        if not along_p > 1e-300:
            break
        length = total / along_p
        d += length * p
        d_bias += length * p_bias
        rest -= length * out
        rest_bias -= length * out_bias
        direction, direction_bias = scale * rest, scale_bias * rest_bias
        latest = rest @ direction + rest_bias @ direction_bias
        p = direction + latest / total * p
        p_bias = direction_bias + latest / total * p_bias
        total = latest
    promised[0] = -(slope_start @ d + slope_bias @ d_bias)
    loss = losses(data, F, slope, bend)
    work = norms.copy()
    old = loss + true_penalty(sets, W, rows, cut, squares, work, eps)
    start, step = F.copy(), 1.0
    for _ in range(HALVINGS):
        F[:] = start
        for c in range(size):
            j, k = entries[c]
            new = before[c] + step * d[c]
            if cut > 0 and new * before[c] < 0:
                new = 0.0
            W[j, k] = new
            add_column(data, j, new - before[c], F[k])
        for k in range(outputs):
            F[k] += step * d_bias[k]
        value = losses(data, F, slope, bend) + true_penalty(sets, W, rows, cut, squares, work, eps)
        if value <= old + ENOUGH * step * promised[0] + ROUNDING * abs(old):
            bias += step * d_bias
            return
        step /= 2
    F[:] = start
    for c in range(size):
        W[entries[c, 0], entries[c, 1]] = before[c]
    losses(data, F, slope, bend)


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
