"""Linear Newton kernels: proximal Newton for penalised linear models, by block coordinate descent.

- Each Newton iteration (round) replaces the loss of a `LinearProblem` by a second-order model (quadratic in the
  scores).
- The sum of this model and the penalty is minimised over one block of weights at a time.
- Let X_g be the columns of the design matrix in block g. Let H be the diagonal matrix of the second derivatives of the
  loss in the scores. Within block g, the Hessian X_g' H X_g is replaced by an upper bound: the diagonal matrix of the
  row sums of |X_g|' H |X_g|.

Names used by several functions: `pull` is the gradient of the second-order model in the scores, array [items]. A living
block has a nonzero weight.
"""

import numpy as np
from numba import njit

from structsparse.kernels.solvers.linear_problem import (
    ROUNDS,
    SERIAL,
    SUMS,
    add_columns,
    dot,
    dual_value,
    features_of,
    gauge,
    gradient,
    penalty_value,
    soft,
    total_loss,
)

# A Newton iteration (round) has at most PASSES passes. It ends earlier after a pass that lowers the second-order model
# by at most SLACK times the largest decrease of a pass of this round.
PASSES, SLACK = 20, 0.1
DENSE_PASSES, DENSE_SLACK = 100, 1e-3  # as PASSES and SLACK, but for passes over the dense Hessian
DENSE = 4  # a design matrix entry in a sparse pass takes as long as this number of Hessian entries in a dense pass
MEMORY = 5  # number of successive moves of the weights that Anderson extrapolation combines
HALVINGS = 30  # maximum number of halvings of the step length in a line search
FLOOR = 1e-14  # least curvature as a share of the largest; smaller curvatures are raised to it
REACH = 10.0  # largest change of an item's score that one feature may make in the first move of a Newton iteration
ENOUGH = 1e-4  # share of the predicted decrease of the objective that a step must reach (Armijo)
# relative increase of the objective that the line search accepts as a rounding error, divided by the square root of the
# number of items: the loss is a sum over the items
ROUNDING = 4e-16
STUCK = 3  # the solver ends after this number of successive Newton iterations without a decrease of the objective


@njit(**SERIAL)
def solve(problem, w, scores, goal, rounds):
    """Linear Newton kernel: minimise a linear problem to a duality gap of `goal` by at most `rounds` Newton steps.

    The weights w [features] and the scores [items] change in place. Returns the number of passes of coordinate descent.
    """
    count, blocks = scores.size, np.arange(problem.cut.size)
    slope, curvature, ahead = np.empty(count), np.empty(count), np.empty(count)
    grad, bound, new = np.empty(w.size), np.empty(w.size), w.copy()
    objective = total_loss(problem, scores, slope, curvature) + penalty_value(problem, w, blocks)
    passes, stuck = 0, 0
    for _ in range(rounds):
        gradient(problem, slope, blocks, grad)
        if shortfall(problem, objective, slope, grad, w, blocks, curvature) <= goal:
            break
        curvatures(problem, curvature, blocks, bound)
        if problem.logistic:
            restrain(problem, grad, w, blocks, bound)
        pull, buffer = slope.copy(), np.empty(w.size)
        descend(problem, blocks, new, pull, curvature, bound, buffer)
        living = _living(problem, new, blocks)
        if _is_dense(problem, living):
            passes += 1 + _descend_dense(problem, living, new, pull, curvature, bound, buffer)
        else:
            passes += 1 + _descend_sparse(problem, living, new, pull, w, grad, slope, curvature, bound, buffer)
        ahead[:] = 0
        add_columns(problem, new - w, blocks, ahead)
        value = line_search(problem, w, new, scores, ahead, blocks, slope, curvature, objective)
        stuck = 0 if value < objective else stuck + 1
        if stuck == STUCK:
            break
        objective = value
        new[:] = w
    return passes


@njit(**SERIAL)
def shortfall(problem, objective, slope, grad, w, blocks, curvature):
    """Linear Newton kernel: the duality gap over the given blocks, with a finite term for unpenalised features.

    `slope` and `curvature` are the first and second derivative of the loss in the scores, arrays [items]. `grad` is the
    gradient of the loss in the weights w, array [features]. An unpenalised feature adds w * grad to the duality gap;
    this number may be negative. The function instead adds the decrease of the objective by a Newton step along the
    feature."""
    scale = 1 / max(gauge(problem, grad, w, blocks), 1.0)
    gap = objective - dual_value(problem, slope, scale, grad, w, blocks)
    for g in blocks:
        j = problem.members[problem.bounds[g]]
        if problem.cut[g] == 0 and problem.reach[g] == 0 and problem.ridge[j] == 0 and grad[j] != 0:
            total = 0.0
            for k in range(problem.starts[j], problem.starts[j + 1]):
                total += curvature[problem.items[k]] * problem.values[k] * problem.values[k]
            gap += grad[j] * grad[j] * slope.size / (2 * total) - scale * grad[j] * w[j] if total > 0 else 0.0
    return gap


@njit(**SERIAL)
def line_search(problem, w, new, scores, ahead, blocks, slope, curvature, objective):
    """Linear Newton kernel: backtracking line search from the weights w towards the weights `new`.

    `ahead` [items] is the change of the scores between w and `new`. Updates w and the scores in place. `slope` and
    `curvature` become the derivatives of the loss in the new scores. Returns the new value of the objective."""
    predicted = penalty_value(problem, new, blocks) - penalty_value(problem, w, blocks) + slope @ ahead / slope.size
    step, start, first_scores = 1.0, w.copy(), scores.copy()
    rounding = ROUNDING * np.sqrt(scores.size) * abs(objective)
    for _ in range(HALVINGS):
        scores[:] = first_scores + step * ahead
        w[:] = new if step == 1 else start + step * (new - start)
        value = total_loss(problem, scores, slope, curvature) + penalty_value(problem, w, blocks)
        if value <= objective + ENOUGH * step * predicted + rounding:
            return value
        step /= 2
    scores[:], w[:] = first_scores, start
    total_loss(problem, scores, slope, curvature)
    return objective


# --- one pass of block coordinate descent


@njit(**SERIAL)
def curvatures(problem, curvature, blocks, bound):
    """Linear Newton kernel: fill `bound` with a diagonal upper bound of the Hessian of each given block.

    bound[j] gets the diagonal entry of feature j. `curvature` [items] is the second derivative of the loss in the
    scores."""
    touched, largest = np.zeros(curvature.size), 0.0
    for g in blocks:
        members = problem.members[problem.bounds[g] : problem.bounds[g + 1]]
        if members.size > 1:
            _touch(problem, members, touched)
        for j in members:
            total = 0.0
            for k in range(np.uint64(problem.starts[j]), np.uint64(problem.starts[j + 1])):
                i, value = np.uint64(problem.items[k]), abs(problem.values[k])
                total += curvature[i] * value * (touched[i] if members.size > 1 else value)
            bound[j] = total / curvature.size + problem.ridge[j]
            largest = max(largest, bound[j])
        if members.size > 1:
            for j in members:
                for k in range(problem.starts[j], problem.starts[j + 1]):
                    touched[problem.items[k]] = 0.0
    for j in features_of(problem, blocks):
        bound[j] = max(bound[j], FLOOR * largest)


@njit(**SERIAL)
def restrain(problem, grad, w, blocks, bound):
    """Linear Newton kernel: raise the curvature of features whose first move would change a score by more than REACH.

    Far from the optimum the second-order model of the logistic loss may be almost flat along a feature that misses its
    optimality condition. Its minimum is then far away, and the line search would shorten the moves of all features for
    the sake of this one. `grad` is the gradient of the loss at the weights w. At the optimum no curvature is raised."""
    for g in blocks:
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            excess = abs(grad[j] + problem.ridge[j] * w[j]) - problem.cut[g] - problem.reach[g]
            if excess > 0:
                peak = 0.0
                for k in range(problem.starts[j], problem.starts[j + 1]):
                    peak = max(peak, abs(problem.values[k]))
                bound[j] = max(bound[j], excess * peak / REACH)


@njit(**SERIAL)
def _touch(problem, members, touched):
    """Linear Newton kernel: add up absolute values of the design matrix X over the features of one block.

    touched[i] increases by the sum of |X[i, j]| over the features j in `members`, for each item i."""
    for j in members:
        for k in range(problem.starts[j], problem.starts[j + 1]):
            touched[problem.items[k]] += abs(problem.values[k])


@njit(**SERIAL)
def descend(problem, blocks, w, pull, curvature, bound, buffer):
    """Linear Newton kernel: one pass of block coordinate descent over the sparse columns of some blocks.

    For each block, minimises an upper bound of the second-order model plus penalty. bound[j] is the curvature of this
    upper bound along feature j. Updates in place the weights w, and the gradient `pull` of the second-order model in
    the scores. Returns the total decrease of the upper bounds."""
    values, items, starts, members, bounds, cut, reach, ridge = problem[:8]
    decrease = 0.0
    for g in blocks:
        a, b = bounds[g], bounds[g + 1]
        aims = buffer[: b - a]
        for m in range(a, b):
            j = members[m]
            slope = dot(values, items, starts[j], starts[j + 1], pull) / pull.size + ridge[j] * w[j]
            aims[m - a] = soft(bound[j] * w[j] - slope, cut[g])
        ratio = norm_ratio(aims, bound, members[a:b], reach[g]) if reach[g] > 0 else 0.0
        for m in range(a, b):
            j = members[m]
            change = _minimiser(aims[m - a], bound[j], ratio, w[j]) - w[j]
            if change != 0:
                for k in range(np.uint64(starts[j]), np.uint64(starts[j + 1])):
                    i = np.uint64(items[k])
                    pull[i] += curvature[i] * values[k] * change
                w[j] += change
                decrease += bound[j] * change * change / 2
    return decrease


@njit(**SERIAL)
def _minimiser(aim, bound, ratio, weight):
    """Linear Newton kernel: the new weight of one feature in block coordinate descent.

    The new weight v minimises (bound + ratio) / 2 * v^2 - aim * v. `aim` is the soft-thresholded value of (bound * old
    weight - gradient). `ratio` comes from `norm_ratio` for the block of the feature, or is 0 without group lasso. If
    the curvature `bound` is 0, the old weight is kept."""
    return aim / (bound + ratio) + 0.0 if bound > 0 else weight  # adding 0.0 turns -0.0 into 0.0


@njit(**SUMS)
def norm_ratio(aims, bound, members, reach):
    """Linear Newton kernel: the ratio reach / |v| for the new weights v of a block; infinite if v is zero.

    `reach` is the strength of the group lasso, and bound[j] the curvature of the model along feature j. The new weights
    satisfy v = aims / (bound + reach / |v|), entry by entry. `aims` are the soft-thresholded values of (bound * old
    weight - gradient). Newton's method finds the norm |v| from this equation."""
    squares, largest = 0.0, 0.0
    for c in range(aims.size):
        squares += aims[c] * aims[c]
        largest = max(largest, bound[members[c]])
    if squares <= reach * reach:
        return np.inf
    theta = (np.sqrt(squares) - reach) / largest  # first value for |v|: exact if curvatures are equal, else too small
    for _ in range(ROUNDS):
        squares, slope = 0.0, 0.0
        for c in range(aims.size):
            inverse = 1 / (bound[members[c]] * theta + reach)
            part = aims[c] * inverse
            squares += part * part
            slope += part * part * inverse * bound[members[c]]
        norm = np.sqrt(squares)
        if norm <= 1 + 1e-14:
            break
        theta += (norm - 1) * (squares / slope)
    return reach / theta


# --- many passes over the living blocks, which have a nonzero weight


@njit(**SERIAL)
def _living(problem, w, blocks):
    """Linear Newton kernel: the living blocks, those among the given blocks that have a nonzero weight."""
    living, count = np.empty_like(blocks), 0
    for g in blocks:
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            if w[problem.members[m]] != 0:
                living[count] = g
                count += 1
                break
    return living[:count]


@njit(**SERIAL)
def _is_dense(problem, living):
    """Linear Newton kernel: whether a pass over the living blocks is cheaper by dense Hessian than by sparse columns.

    Living blocks have a nonzero weight."""
    features, entries = features_of(problem, living), 0
    for j in features:
        entries += problem.starts[j + 1] - problem.starts[j]
    return features.size**2 <= DENSE * entries


@njit(**SERIAL)
def _descend_sparse(problem, living, w, pull, start, grad, slope, curvature, bound, buffer):
    """Linear Newton kernel: descend by passes over the sparse columns of living blocks; returns the pass count.

    Living blocks have a nonzero weight. The second-order model expands the loss around the weights `start`. `slope` and
    `grad` are the gradients of the loss at `start`, in the scores and in the weights. Updates in place the weights w,
    and the gradient `pull` of the model in the scores."""
    features = features_of(problem, living)
    points, pulls = np.empty((MEMORY + 1, features.size)), np.empty((MEMORY + 1, pull.size))
    other, first, stored = w.copy(), 0.0, 0
    for passes in range(PASSES):
        decrease = descend(problem, living, w, pull, curvature, bound, buffer)
        first = max(first, decrease)
        if decrease <= SLACK * first:
            return passes + 1
        points[stored], pulls[stored] = w[features], pull
        stored = (stored + 1) % (MEMORY + 1)
        mix = anderson(points) if stored == 0 else np.empty(0)
        if mix.size > 0:
            other[:] = w
            other[features], its_pull = mix @ points[1:], mix @ pulls[1:]
            value = _model(problem, living, features, w, pull, start, grad, slope, curvature)
            if _model(problem, living, features, other, its_pull, start, grad, slope, curvature) < value:
                w[:], pull[:] = other, its_pull
    return PASSES


@njit(**SERIAL)
def _model(problem, living, features, w, pull, start, grad, slope, curvature):
    """Linear Newton kernel: the value of the second-order model of the objective at the weights w, up to a constant.

    The model expands the loss around the weights `start`. `slope` and `grad` are the gradients of the loss at `start`,
    in the scores and in the weights. `pull` [items] is the gradient of the model at w, in the scores."""
    value = 0.0
    for i in range(pull.size):
        if curvature[i] > 1e-200:
            value += (pull[i] - slope[i]) * (pull[i] - slope[i]) / curvature[i]
    value /= 2 * pull.size
    for j in features:
        value += grad[j] * (w[j] - start[j])
    return value + penalty_value(problem, w, living)


@njit(**SERIAL)
def _descend_dense(problem, living, w, pull, curvature, bound, buffer):
    """Linear Newton kernel: descend by passes over the dense Hessian of the living blocks; returns the pass count.

    Living blocks have a nonzero weight. The weights w change in place."""
    features = features_of(problem, living)
    second = second_derivatives(problem, features, curvature)
    slope, start = np.empty(features.size), w[features]
    for a in range(features.size):
        j = features[a]
        first, last = problem.starts[j], problem.starts[j + 1]
        slope[a] = dot(problem.values, problem.items, first, last, pull) / pull.size + problem.ridge[j] * w[j]
    first_slope, first, stored = slope.copy(), 0.0, 0
    points, slopes = np.empty((MEMORY + 1, features.size)), np.empty((MEMORY + 1, features.size))
    for passes in range(DENSE_PASSES):
        decrease = _dense_pass(problem, living, features, w, slope, second, bound, buffer)
        first = max(first, decrease)
        if decrease <= DENSE_SLACK * first:
            return passes + 1
        points[stored], slopes[stored] = w[features], slope
        stored = (stored + 1) % (MEMORY + 1)
        mix = anderson(points) if stored == 0 else np.empty(0)
        if mix.size > 0:  # gradients are affine in the weights: both are extrapolated by `mix`
            point, its_slope = mix @ points[1:], mix @ slopes[1:]
            value = (w[features] - start) @ (first_slope + slope) / 2 + _norms_at(problem, living, w[features])
            if (point - start) @ (first_slope + its_slope) / 2 + _norms_at(problem, living, point) < value:
                w[features], slope[:] = point, its_slope
    return DENSE_PASSES


@njit(**SERIAL)
def second_derivatives(problem, features, curvature):
    """Linear Newton kernel: the dense Hessian of the loss and the ridge penalty in some features.

    The Hessian is X' H X / N + diag(ridge). X holds the design matrix columns of the given features. H is the diagonal
    matrix of `curvature` [items], the second derivative of the loss in the scores. N is the number of items."""
    count, size = curvature.size, features.size
    starts = np.zeros(count + 1, np.int64)
    for j in features:
        for k in range(problem.starts[j], problem.starts[j + 1]):
            starts[problem.items[k] + 1] += 1
    starts = np.cumsum(starts)
    ends, columns, values = starts[:-1].copy(), np.empty(starts[-1], np.uint64), np.empty(starts[-1])
    for a in range(size):
        for k in range(problem.starts[features[a]], problem.starts[features[a] + 1]):
            end = ends[problem.items[k]]
            columns[end], values[end] = a, problem.values[k]
            ends[problem.items[k]] += 1
    second = np.zeros((size, size))
    for i in range(count):
        first = np.uint64(starts[i])
        for k in range(first, np.uint64(starts[i + 1])):
            row, part = second[columns[k]], values[k] * curvature[i] / count
            for l in range(first, k + np.uint64(1)):
                row[columns[l]] += part * values[l]
    for a in range(size):
        second[a, a] += problem.ridge[features[a]]
        for b in range(a):
            second[b, a] = second[a, b]
    return second


@njit(**SERIAL)
def _dense_pass(problem, living, features, w, slope, second, bound, buffer):
    """Linear Newton kernel: one pass of block coordinate descent over the dense Hessian `second`.

    For each living block, minimises an upper bound of the second-order model plus penalty. bound[j] is the curvature of
    this upper bound along feature j. Updates in place the weights w, and the gradient `slope` of the model in the
    weights of the living blocks. Returns the total decrease of the upper bounds."""
    decrease, a = 0.0, 0
    for g in living:
        b = a + problem.bounds[g + 1] - problem.bounds[g]
        aims = buffer[: b - a]
        for c in range(a, b):
            j = features[c]
            aims[c - a] = soft(bound[j] * w[j] - slope[c], problem.cut[g])
        ratio = norm_ratio(aims, bound, features[a:b], problem.reach[g]) if problem.reach[g] > 0 else 0.0
        for c in range(a, b):
            j = features[c]
            change = _minimiser(aims[c - a], bound[j], ratio, w[j]) - w[j]
            if change != 0:
                _add_multiple(slope, change, second[c])
                w[j] += change
                decrease += bound[j] * change * change / 2
        a = b
    return decrease


@njit(**SUMS)
def _add_multiple(x, factor, y):
    """Linear Newton kernel: add a multiple of one Hessian row to the gradient, x += factor * y."""
    for i in range(x.size):
        x[i] += factor * y[i]


@njit(**SERIAL)
def _norms_at(problem, blocks, point):
    """Linear Newton kernel: the lasso and group lasso penalty of the given blocks at the weights `point`.

    `point` holds the weights of these blocks only, block after block."""
    total, c = 0.0, 0
    for g in blocks:
        absolute, squares = 0.0, 0.0
        for _ in range(problem.bounds[g], problem.bounds[g + 1]):
            absolute += abs(point[c])
            squares += point[c] * point[c]
            c += 1
        total += problem.cut[g] * absolute + problem.reach[g] * np.sqrt(squares)
    return total


@njit(**SERIAL)
def anderson(points):
    """Linear Newton kernel: the coefficients of Anderson extrapolation from the weights after successive passes.

    Row p of `points` holds the weights after pass p. There is one coefficient for each row except the first. The
    coefficients sum to 1. They minimise the norm of the weighted sum of the differences between successive rows. The
    result is empty if a weight is zero in one row and nonzero in another."""
    none, last = np.empty(0), points.shape[0] - 1
    for k in range(last):
        for c in range(points.shape[1]):
            if (points[k, c] != 0) != (points[last, c] != 0):
                return none
    moves = points[1:] - points[:-1]
    gram = moves @ moves.T
    trace = np.trace(gram)
    if not trace > 0:
        return none
    for k in range(last):
        gram[k, k] += 1e-10 * trace
    mix = np.linalg.solve(gram, np.ones(last))
    return mix / mix.sum()
