"""Drift models: cost of a step of conjugate gradients, of an iteration of EM, and EM against L-BFGS on everything.

python benchmarks/temporal.py            about five minutes and 1.5 GB
python benchmarks/temporal.py --quick

- ns_per_coefficient_cg: nanoseconds of a step of conjugate gradients for each weight, the worst of four shapes with 4
  items a period and 100 entries each
- growth_exponent: of the time of that step by the number of weights, fitted to the four shapes
- seconds_per_em_10k_shape, mb_10k_shape: an iteration of EM with 8 steps of conjugate gradients on planted items of the
  shape of the 10-K corpus (27,163 items, 10,002 binary features, 10 periods, 1,345 entries each), and the memory of it
- lbfgs_over_em: seconds until the exact log posterior (mode map) is within 1 nat of where EM ends after 100 iterations,
  by L-BFGS on all weights over EM; 1e9 means never
"""

import resource
import time

import numpy as np
import torch
from scipy.optimize import minimize
from timing import arguments, print_table, write_json

from structsparse.base.allocator import keep_freed_memory
from structsparse.losses.pointwise import Squared
from structsparse.penalties.drift import Drift, Likelihood, PeriodLayout
from structsparse.solvers import NewtonCG
from structsparse.tasks.temporal.data import DatedBatch
from structsparse.tasks.temporal.model import DriftModel
from structsparse.weights.dated_rows import DatedRows

ROUNDS = 4  # sweeps with few and with many steps
SHAPES = ((10, 10_000), (10, 100_000), (100, 10_000), (1000, 10_000))
TEN_K = 27_163, 10_002, 10, 1_345  # items, features, periods, entries of an item


def sparse_batch(items, features, periods, entries, rng, binary=True):
    """Rows of so many entries, in periods of equal size, with a response that a few drifting features decide."""
    columns = rng.integers(features, size=(items, entries), dtype=np.int32)
    values = np.zeros(0, np.float32) if binary else rng.normal(size=items * entries).astype(np.float32)
    period = np.repeat(np.arange(periods), -(-items // periods))[:items]
    centre = np.bincount(columns.ravel(), minlength=features) / items if binary else np.zeros(features)
    design = DatedRows(
        torch.from_numpy(columns.ravel()),
        torch.from_numpy(values),
        torch.arange(0, items * entries + 1, entries),
        torch.from_numpy(period),
        features,
        torch.from_numpy(centre),
    )
    walks = np.zeros((periods, features))
    living = rng.permutation(features)[: max(5, features // 50)]
    walks[:, living] = 0.3 * rng.normal(size=len(living)) + 0.1 * rng.normal(size=(periods, len(living))).cumsum(axis=0)
    y = design.scores(torch.from_numpy(walks)) + torch.from_numpy(rng.normal(size=items))
    return DatedBatch(design, y, 0.0, torch.arange(items), items)


def started(batch, periods, features, **options):
    """A drift penalty and a model for a batch."""
    penalty = Drift(1 / batch.items, **options)
    squares = batch.design.squares(torch.ones(batch.items, dtype=torch.float64), periods).sum(dim=0) / batch.items
    variance = float(batch.targets.var())
    scale = variance / 2 / (features * squares.clamp(min=1e-6))
    none = torch.zeros(features, dtype=torch.int64), torch.zeros(features, dtype=torch.bool)
    penalty.fit(PeriodLayout(periods, none[0], scale, variance / 2, none[1]))
    model = DriftModel(periods, features, True)
    return model, penalty


def likelihood(model, batch):
    """The likelihood of the squared loss at the present weights."""
    with torch.no_grad():
        scores = model(batch)
    squares = (scores - batch.targets).square().sum()
    return Likelihood(
        batch.design.squares(torch.ones_like(scores), len(model.table)), squares / 2, squares, len(scores)
    )


def seconds_of_steps(periods, features, rng):
    """Seconds of a step of conjugate gradients: the difference of sweeps with more steps and with fewer."""
    batch = sparse_batch(4 * periods, features, periods, 100, rng)
    model, penalty = started(batch, periods, features)
    few, many = [], []
    for _ in range(ROUNDS):
        for steps, times in ((2, few), (22, many)):
            solver = NewtonCG(model.parameters(), iterations=steps)
            solver.attach({model.table: penalty})
            begin = time.process_time()
            solver.sweep(model, Squared(), batch)
            times.append(time.process_time() - begin)
    return (min(many) - min(few)) / 20


def ten_k(options, rng):
    """Seconds of an iteration of EM on the shape of the 10-K corpus, and the peak of memory in megabytes."""
    items, features, periods, entries = TEN_K if not options.quick else (2_700, 10_002, 10, 1_345)
    batch = sparse_batch(items, features, periods, entries, rng)
    model, penalty = started(batch, periods, features)
    solver = NewtonCG(model.parameters(), iterations=8)
    solver.attach({model.table: penalty})
    taken = []
    for _ in range(4):
        begin = time.process_time()
        solver.sweep(model, Squared(), batch)
        penalty.outer_update(model.table.detach(), likelihood(model, batch))
        taken.append(time.process_time() - begin)
    return min(taken), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def against_lbfgs(options, rng):
    """Seconds of L-BFGS over seconds of EM, until both have the log posterior that EM ends with, less one nat."""
    periods, features, items = 10, 500 if options.quick else 2000, 2000
    batch = sparse_batch(items, features, periods, 40, rng, binary=False)

    def fitted():
        """A model under fixed noise, from the same ridge fit."""
        model, penalty = started(batch, periods, features, mode="map", weight=0.01, floor=0.01)
        penalty.noise.fill_(1.0)
        solver = NewtonCG(model.parameters(), iterations=50)
        solver.attach({model.table: penalty})
        solver.sweep(model, Squared(), batch)
        return model, penalty

    def posterior(model, penalty):
        """The exact log posterior of the weights, up to a constant."""
        with torch.no_grad():
            loss = Squared()(model(batch), batch.targets).sum()
            return float(penalty.prior.log_density(model.table).sum() - loss)

    model, penalty = fitted()
    solver, trace, begin, outside = NewtonCG(model.parameters(), iterations=5), [], time.process_time(), 0.0
    solver.attach({model.table: penalty})
    for _ in range(100):
        solver.sweep(model, Squared(), batch)
        penalty.outer_update(model.table.detach(), likelihood(model, batch)._replace(pearson=None))
        here = time.process_time()
        trace.append((here - begin - outside, posterior(model, penalty)))
        outside += time.process_time() - here
    goal = trace[-1][1] - 1.0
    em = next(seconds for seconds, value in trace if value >= goal)
    model, penalty = fitted()
    bias, begin, reached = float(model.bias), time.process_time(), []

    def negative(x):
        """Minus the log posterior and its gradient."""
        table = torch.from_numpy(x.reshape(periods, features)).requires_grad_()
        scores = batch.design.scores(table.detach()) + bias
        density = penalty.prior.log_density(table).sum()
        density.backward()
        value = float(Squared()(scores, batch.targets).sum() - density)
        if -value >= goal and not reached:
            reached.append(time.process_time() - begin)
        gradient = batch.design.pull(scores - batch.targets, periods) - table.grad
        return value, gradient.numpy().ravel()

    start = model.table.detach().numpy().ravel()
    minimize(negative, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "maxcor": 10})
    return (reached[0] if reached else 1e9 * em) / em


def main():
    options = arguments(__doc__)
    keep_freed_memory()
    rng = np.random.default_rng(0)
    seconds, memory = ten_k(options, rng)
    rows = []
    for periods, features in SHAPES[:: 2 if options.quick else 1]:
        taken = seconds_of_steps(periods, features, rng)
        rows.append((f"{periods} x {features:,}", taken, 1e9 * taken / (periods * features)))
    sizes = [periods * features for periods, features in SHAPES[:: 2 if options.quick else 1]]
    exponent = np.polyfit(np.log(sizes), np.log([row[1] for row in rows]), 1)[0]
    ratio = against_lbfgs(options, rng)
    print_table("a step of conjugate gradients", ("periods x features", "seconds", "ns per weight"), rows)
    figures = {
        "ns_per_coefficient_cg": max(row[2] for row in rows),
        "growth_exponent": float(exponent),
        "seconds_per_em_10k_shape": seconds,
        "mb_10k_shape": memory,
        "lbfgs_over_em": ratio,
    }
    print_table("drift models", ("figure", "value"), [*figures.items()])
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
