"""Kernels of overlapping groups against cvxpy, autograd and plain sums."""

import cvxpy
import numpy as np
import pytest
import scipy.sparse
import torch

from structsparse.groups import cover_rows
from structsparse.kernels.solvers import overlaps_groups as row_groups
from structsparse.kernels.solvers import overlaps_newton as row_polish
from structsparse.kernels.solvers import overlaps_problem as row_kernels
from structsparse.penalties import StructuredElasticNet
from structsparse.solvers.overlaps import Majorizer, OverlapProblem
from structsparse.solvers.overlaps.design import Design

ROWS, ITEMS = 24, 60


def drawn(seed: int, groups: int, size: int):
    """Groups of rows; the same as lists."""
    random = np.random.default_rng(seed)
    sets = [sorted(random.choice(ROWS, size, replace=False).tolist()) for _ in range(groups)]
    return cover_rows((ROWS,), sets, weights="one"), sets, random


def problem_of(cover, random, lasso: float = 0.3, group: float = 0.3) -> OverlapProblem:
    X = scipy.sparse.csc_array(random.poisson(0.4, (ITEMS, ROWS)).astype(float))
    y = np.sign(X @ random.standard_normal(ROWS) + 0.1)
    design = Design(X, y, "logistic", torch.zeros(1, dtype=torch.float64))
    penalty = StructuredElasticNet(1 / ITEMS, cover, group, lasso)
    return OverlapProblem(design, torch.zeros(ROWS, dtype=torch.float64), penalty)


@pytest.mark.parametrize("pull", [0.05, 0.2, 0.5, 3.0])  # the dead groups can hold all of it, nearly all, some, little
@pytest.mark.parametrize("seed", range(3))
def test_the_residual_of_dead_groups_is_that_of_cvxpy(seed, pull):
    cover, sets, random = drawn(seed, 10, 5)
    problem = problem_of(cover, random)
    reach, dead = random.uniform(0.1, 0.3, 10), random.random(10) < 0.8
    sizes = pull * random.random(ROWS) * (random.random(ROWS) < 0.8)
    duals = cvxpy.Variable((10, ROWS))
    held = [duals[g, j] == 0 for g in range(10) for j in range(ROWS) if j not in sets[g] or not dead[g]]
    held += [cvxpy.norm(duals[g]) <= reach[g] for g in range(10)]
    least = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(sizes - cvxpy.sum(duals, axis=0)) / 2), held)
    least = least.solve(solver="CLARABEL")

    sets_of, left = problem.sets._replace(reach=reach), sizes.copy()
    living = row_groups.hold(sets_of, dead, left, np.zeros(ROWS), np.zeros(10), 1e-12, 100_000)
    assert not (living & ~dead).any()
    if least < 1e-9:
        np.testing.assert_allclose(left, 0, atol=1e-9)
    else:
        assert least * (1 - 1e-6) - 1e-9 <= (left**2).sum() / 2 <= least / (1 - row_groups.SURE) * (1 + 1e-6)


def smoothed(problem: OverlapProblem, sets, eps: float, W: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    X, y = torch.from_numpy(problem.design.matrix.toarray()), torch.from_numpy(problem.design.targets)
    loss = torch.nn.functional.softplus(-y * (X @ W + bias)).mean()
    norms = [(W[list(own)].square().sum() + eps**2).sqrt() - eps for own in sets]
    reach = problem.sets.reach.tolist()
    return loss + problem.cut * W.abs().sum() + sum(r * norm for r, norm in zip(reach, norms, strict=True))


@pytest.mark.parametrize("eps", [0.0, 1e-4, 0.1, 1.0])
def test_newton_on_smoothed_norms_ends_at_a_zero_gradient(eps):
    cover, sets, random = drawn(0, 10, 5)
    problem = problem_of(cover, random, lasso=0.02, group=0.2)
    point = problem.begin(random.standard_normal(ROWS) * 0.3, np.zeros(1))
    alive = np.arange(ROWS)
    for _ in range(60):
        point.refresh()
        norms, pulls = np.sqrt(point.norms() ** 2 + eps**2), np.zeros(ROWS)
        row_groups.pulls(problem.sets, problem.sets.reach / norms, alive, problem.squares, pulls)
        row_polish.polish(
            problem.data, problem.sets, point.W, point.bias, point.F, point.slope, point.bend, point.G, problem.cut,
            pulls, problem.squares, norms, alive, problem.moves_bias, 300, 1e-3, eps,
        )  # fmt: skip
        W, bias = torch.tensor(point.W[:, 0], requires_grad=True), torch.tensor(point.bias, requires_grad=True)
        value = smoothed(problem, sets, eps, W, bias)
        own = row_kernels.losses(problem.data, point.F, point.slope, point.bend)
        own += row_polish.true_penalty(problem.sets, point.W, alive, problem.cut, problem.squares, norms.copy(), eps)
        assert own == pytest.approx(float(value.detach()), abs=1e-12)
    value.backward()
    assert float(bias.grad.abs().max()) < 1e-8
    assert (point.W != 0).any()
    assert float(W.grad[W != 0].abs().max()) < 1e-8  # includes the slope of the absolute value


def test_many_heavily_overlapping_groups_are_solved_to_a_certificate():
    """Hundreds of groups over two dozen rows, most norms small and hardly any zero."""
    for seed, group in [(0, 0.003), (1, 0.01), (2, 0.03), (3, 0.1)]:
        cover, _, random = drawn(seed, 400, 4)
        found = Majorizer(problem_of(cover, random, 0.05, group), None, None, 1e-9)
        certificate = found.solve(400)
        assert certificate.kkt <= 1e-9, (seed, group, certificate)
