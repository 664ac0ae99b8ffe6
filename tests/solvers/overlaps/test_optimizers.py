"""Solvers under overlapping groups: majorize-minimise, ADMM and cvxpy agree for every kind of group and loss, and
their certificates agree with plain formulas that share no code with them."""

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import cvxpy
import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Constituents, DocumentSplits
from structsparse.corpora.planted.documents import planted_documents
from structsparse.features import word_groups
from structsparse.features.words import bag
from structsparse.groups import by_row, cover_rows
from structsparse.penalties import L1, ElasticNet, GroupLasso, SquaredL2, StructuredElasticNet
from structsparse.solvers.overlaps import ADMM, Admm, Majorize, Majorizer, OverlapProblem, StoppedEarly
from structsparse.solvers.overlaps.design import Design
from structsparse.weights.notes import notes_of

SIZES = {"train": 40, "dev": 2, "test": 2, "groups": 6, "size": 6, "deciding": 1}
STRENGTH, LASSO = 1 / 40, 0.1  # strength over items, as with reg.relative=items
KINDS = {  # options, and a strength at which some groups are dead; of documents, which share words, all or none
    "sentences": ({}, 0.65),
    "constituents": ({}, 0.32),
    "topics": ({"topics": 8, "top": 5, "iterations": 20}, 0.32),
    "brown": ({"classes": 12, "largest": 30}, 3.0),
    "ward": ({"classes": 12, "largest": 30}, 3.0),
    "documents": ({}, 1.5),
    "words_file": ({}, 0.32),
    "planted": ({}, 0.32),
    "combined": ({"parts": {"sentences": 0.5, "brown": {"classes": 9, "largest": 30}}}, 1.0),
}
LOSSES = {  # number of classes, and a strength for sentences
    ("squared", 2): 1.35,
    ("squared_hinge", 2): 2.74,
    ("squared", 0): 1.5,
    ("logistic", 3): 1.2,
    ("squared_hinge", 3): 3.0,
}


@cache
def corpus(classes: int) -> DocumentSplits:
    """Planted documents; each sentence is split in two, twice, into constituents."""
    drawn = planted_documents(seed=1, classes=classes, **SIZES)
    train, bounds = drawn.train, drawn.train.sentences()
    owner = np.searchsorted(train.offsets, bounds[:-1], side="right") - 1
    spans = [
        (document, begin + shift, end + shift)
        for document, first, last in zip(owner, bounds[:-1], bounds[1:], strict=True)
        for shift in [first - train.offsets[document]]
        for begin, end in {(0, last - first), (0, (last - first) // 2), ((last - first) // 2, last - first)}
        if end > begin
    ]
    document, begin, end = np.array(sorted(spans), np.int32).T
    trees = Constituents(document, begin, end, np.full(len(begin), -1, np.int16))
    return replace(drawn, train=replace(train, constituents=trees))


@cache
def design_of(classes: int, loss: str) -> tuple[Design, torch.Tensor]:
    documents = corpus(classes)
    features = bag(documents)
    labels, outputs = documents.train.labels, max(classes, 2) if classes > 2 else 1
    targets = labels if classes != 2 else 2.0 * labels - 1
    table = torch.zeros((len(features.layout), outputs)[: 1 + (outputs > 1)], dtype=torch.float64)
    matrix = features.matrix(documents.train)
    return Design(matrix, targets.astype(float), loss, torch.zeros(outputs, dtype=torch.float64)), table


def cover_of(kind: str, shape, tmp_path=None, classes: int = 2):
    if kind == "topics":
        pytest.importorskip("tomotopy")
    layout, options = bag(corpus(classes)).layout, dict(KINDS[kind][0])
    if kind == "words_file":
        words, path = layout.words, tmp_path / "groups.json"
        path.write_text(json.dumps({f"every {k}": words[k : 5 * k + 9 : k] for k in range(1, 9)}))
        options["path"] = path
    maker = word_groups.combined if kind == "combined" else word_groups.KINDS[kind]
    return maker(tuple(shape), layout, **options)


def penalty_of(cover, group: float, squares: float = 0.0, lasso: float = LASSO) -> StructuredElasticNet:
    weights = cover.weight / cover.weight.max()
    alike = cover_rows(cover.shape, cover.members, cover.offsets, [*cover.names], weights, "the table")
    return StructuredElasticNet(STRENGTH, alike, group, lasso, squares)


# --- by formulas that share no code with the solvers


def members(cover) -> list[list[int]]:
    rows, bounds = cover.members.tolist(), cover.offsets.tolist()
    return [rows[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def objective(design: Design, penalty: StructuredElasticNet, W: np.ndarray, bias: np.ndarray) -> float:
    scores = design.matrix @ W.reshape(len(W), -1) + bias
    y = design.targets[:, None]
    if scores.shape[1] > 1 and design.loss == "logistic":
        shifted = scores - scores.max(axis=1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y[:, 0].astype(int)]
    else:
        y = np.where(y == np.arange(scores.shape[1]), 1.0, -1.0) if scores.shape[1] > 1 else y
        losses = {
            "logistic": lambda: np.logaddexp(0, -y * scores),
            "squared": lambda: (scores - y) ** 2 / 2,
            "squared_hinge": lambda: np.maximum(0, 1 - y * scores) ** 2,
        }[design.loss]().sum(axis=1)
    norms = 0.0
    if penalty.groups is not None:
        weights = penalty.groups.weight.tolist()
        norms = sum(w * np.linalg.norm(W[own]) for w, own in zip(weights, members(penalty.groups), strict=True))
    value = penalty.group * norms + penalty.lasso * np.abs(W).sum() + penalty.squares / 2 * np.square(W).sum()
    return float(losses.mean() + float(penalty.strength) * value)


@cache
def smooth_gradient(loss: str, classes: int):
    """Gradients of the mean loss by automatic differentiation."""
    design, table = design_of(classes, loss)
    X, y = torch.from_numpy(design.matrix.toarray()), torch.from_numpy(design.targets)

    def mean(W, bias):
        scores = X @ W.reshape(len(table), -1) + bias
        if scores.shape[1] > 1 and loss == "logistic":
            return torch.nn.functional.cross_entropy(scores, y.long())
        signs = y[:, None] if scores.shape[1] == 1 else 2 * torch.nn.functional.one_hot(y.long()).double() - 1
        each = {
            "logistic": torch.nn.functional.softplus(-signs * scores),
            "squared": (scores - signs) ** 2 / 2,
            "squared_hinge": (1 - signs * scores).clamp(min=0) ** 2,
        }[loss]
        return each.sum(dim=1).mean()

    return torch.func.grad(mean, argnums=(0, 1))


def violation(design: Design, penalty: StructuredElasticNet, W: np.ndarray, bias: np.ndarray, classes: int) -> float:
    """The largest entry of the smallest subgradient, found by cvxpy, relative to the gradient at zero."""
    gradient_of = smooth_gradient(design.loss, classes)
    G, slope = (part.numpy() for part in gradient_of(torch.from_numpy(W), torch.from_numpy(bias)))
    at_zero = gradient_of(torch.zeros_like(torch.from_numpy(W)), torch.from_numpy(best_bias(design, classes)))[0]
    flat, shape = W.reshape(len(W), -1), (len(W), W.size // len(W))
    strength = float(penalty.strength)
    total = G.reshape(shape) + strength * penalty.squares * flat
    signs = cvxpy.Variable(shape)
    limits = [cvxpy.abs(signs) <= 1, cvxpy.multiply(flat != 0, signs) == np.sign(flat)]
    total = total + strength * penalty.lasso * signs
    for weight, own in zip(penalty.groups.weight.tolist(), members(penalty.groups), strict=True):
        reach, norm = strength * penalty.group * weight, np.linalg.norm(flat[own])
        spread = np.zeros((shape[0], len(own)))
        spread[own, np.arange(len(own))] = 1
        if norm > 0:
            total = total + spread @ (reach / norm * flat[own])
        else:
            dual = cvxpy.Variable((len(own), shape[1]))
            limits.append(cvxpy.norm(dual, "fro") <= reach)
            total = total + spread @ dual
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.max(cvxpy.abs(total))), limits)
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return max(float(problem.value), float(np.abs(slope).max())) / float(at_zero.abs().max())


def best_bias(design: Design, classes: int) -> np.ndarray:
    """The best bias at zero weights, in closed form."""
    y = design.targets
    if classes > 2:
        share = np.bincount(y.astype(int)) / len(y)
        return np.log(share) if design.loss == "logistic" else 2 * share - 1
    if design.loss == "logistic":
        return np.array([np.log((y > 0).sum() / (y < 0).sum())])
    return np.array([y.mean()])  # also for the hinge: all margins are below 1


def by_cvxpy(design: Design, penalty: StructuredElasticNet, rows: int, outputs: int):
    W, bias = cvxpy.Variable((rows, outputs)), cvxpy.Variable(outputs)
    X, y = design.matrix.tocsr(), design.targets
    scores = X @ W + cvxpy.reshape(bias, (1, outputs), order="C")
    if outputs > 1 and design.loss == "logistic":
        right = cvxpy.sum(cvxpy.multiply(np.eye(outputs)[y.astype(int)], scores))
        loss = cvxpy.sum(cvxpy.log_sum_exp(scores, axis=1)) - right
    else:
        signs = y[:, None] if outputs == 1 else np.where(y[:, None] == np.arange(outputs), 1.0, -1.0)
        loss = {
            "logistic": lambda: cvxpy.sum(cvxpy.logistic(-cvxpy.multiply(signs, scores))),
            "squared": lambda: cvxpy.sum_squares(scores - signs) / 2,
            "squared_hinge": lambda: cvxpy.sum(cvxpy.square(cvxpy.pos(1 - cvxpy.multiply(signs, scores)))),
        }[design.loss]()
    groups = zip(penalty.groups.weight.tolist(), members(penalty.groups), strict=True)
    norms = sum(weight * cvxpy.norm(W[own], "fro") for weight, own in groups)
    value = penalty.group * norms + penalty.lasso * cvxpy.norm1(W) + penalty.squares / 2 * cvxpy.sum_squares(W)
    problem = cvxpy.Problem(cvxpy.Minimize(loss / len(y) + float(penalty.strength) * value))
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return W.value, bias.value


# --- agreement


def agree(kind: str, loss: str, classes: int, group: float, tmp_path, squares: float = 0.0, rho: float = 100.0) -> None:
    """Majorize-minimise, a long run of ADMM and cvxpy agree to 1e-6 of the objective; certificates of the first two
    hold."""
    design, table = design_of(classes, loss)
    penalty = penalty_of(cover_of(kind, table.shape, tmp_path, classes), group, squares)
    majorizer = Majorizer(OverlapProblem(design, table, penalty), None, None, kkt=1e-9)
    certificate, (W, bias) = majorizer.solve(5000), majorizer.point.copy()
    value = objective(design, penalty, W, bias)
    assert certificate.objective == pytest.approx(value, rel=1e-12)
    assert certificate.kkt <= 1e-9
    assert certificate.gap <= 1e-7
    assert violation(design, penalty, W.reshape(table.shape), bias, classes) < 1e-7  # the precision of cvxpy
    enough = 7e-7 * value / majorizer.problem.unit
    long = Admm(OverlapProblem(design, table, penalty), rho=rho, stop="gap", tolerance=enough, inner=1e-9)
    bound = long.solve(20_000)
    other = objective(design, penalty, *long.point.copy())
    assert bound.gap <= enough
    assert other == pytest.approx(value, rel=1e-6)
    assert other - value <= bound.gap * long.problem.unit + 1e-12  # the meaning of the gap
    peer = objective(design, penalty, *by_cvxpy(design, penalty, *W.shape))
    assert peer == pytest.approx(value, rel=1e-6)
    assert value <= peer * (1 + 1e-8)
    dead = penalty.groups.norms(torch.from_numpy(W.reshape(table.shape))) == 0
    if kind != "documents" and (loss, classes) not in (("squared", 0), ("squared_hinge", 3)):
        assert 0 < int(dead.sum()) < len(dead)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("kind", KINDS)
def test_three_methods_agree_for_each_kind_of_group(kind, tmp_path):
    agree(kind, "logistic", 2, KINDS[kind][1], tmp_path, rho=100.0 if kind == "sentences" else 10.0)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
def test_three_methods_agree_for_each_loss(loss, classes, tmp_path):
    agree("sentences", loss, classes, LOSSES[loss, classes], tmp_path)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(("loss", "classes"), [("logistic", 2), ("squared_hinge", 3)])
def test_three_methods_agree_with_squares(loss, classes, tmp_path):
    agree("brown", loss, classes, 2.0, tmp_path, squares=0.05, rho=30.0)


@pytest.mark.parametrize("away", [1e-2, 1e-5])
def test_a_certificate_measures_the_distance_from_optimality(away):
    design, table = design_of(2, "logistic")
    penalty = penalty_of(cover_of("planted", table.shape), 0.32)
    majorizer = Majorizer(OverlapProblem(design, table, penalty), None, None, kkt=1e-9)
    best = majorizer.solve().objective
    point = majorizer.point
    point.W *= 1 + away
    point.rescore()
    found = point.certify()
    assert found.kkt == pytest.approx(violation(design, penalty, point.W[:, 0], point.bias, 2), rel=1e-3, abs=1e-8)
    assert found.objective - best <= found.gap * majorizer.problem.unit
    asleep = np.flatnonzero(penalty.groups.norms(torch.from_numpy(point.W[:, 0])).numpy() > 0)
    point.W[:] = 0
    point.rescore()
    assert set(np.flatnonzero(point.certify().woken)) <= {*range(len(penalty.groups))}
    assert point.certify().woken[asleep].any()


@pytest.mark.parametrize(
    "penalty",
    [
        L1(0.02),
        ElasticNet(0.02, 0.4),
        SquaredL2(0.01),
        StructuredElasticNet(STRENGTH, None, 0.0, 0.4, 0.3, torch.linspace(0.5, 4, 136)),
    ],
    ids=["lasso", "elastic net", "ridge", "squares by frequency"],
)
@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge"])
def test_without_groups_the_solution_is_that_of_cvxpy(loss, penalty):
    design, table = design_of(2, loss)
    majorizer = Majorizer(OverlapProblem(design, table, penalty), None, None, kkt=1e-9)
    certificate = majorizer.solve()
    assert certificate.kkt <= 1e-9
    squares = np.ones(136)
    if isinstance(penalty, StructuredElasticNet):
        lasso, ridge, squares = STRENGTH * penalty.lasso, STRENGTH * penalty.squares, penalty.frequency.numpy()
    else:
        lasso, ridge = (float(penalty.strength) * share for share in (penalty.mix, 1 - penalty.mix))
    W, bias = cvxpy.Variable(136), cvxpy.Variable()
    margins = cvxpy.multiply(design.targets, design.matrix.tocsr() @ W + bias)
    loss = {
        "logistic": lambda: cvxpy.sum(cvxpy.logistic(-margins)),
        "squared": lambda: cvxpy.sum_squares(1 - margins) / 2,
        "squared_hinge": lambda: cvxpy.sum(cvxpy.square(cvxpy.pos(1 - margins))),
    }[loss]()
    value = lasso * cvxpy.norm1(W) + ridge / 2 * cvxpy.sum(cvxpy.multiply(squares, cvxpy.square(W)))
    least = cvxpy.Problem(cvxpy.Minimize(loss / design.items + value)).solve(solver="CLARABEL", tol_gap_rel=1e-10)
    assert certificate.objective == pytest.approx(least, rel=1e-7)
    assert float(penalty.value(torch.from_numpy(majorizer.point.W[:, 0]))) == pytest.approx(
        majorizer.point.objective() - majorizer.point.loss, rel=1e-9
    )


# --- ADMM


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("parts", [(0.0, 0.1), (0.02, 0.0), (0.02, 0.1)], ids=["squares", "lasso", "both"])
def test_the_search_stops_at_the_gap_that_was_asked_for(parts, classes):
    lasso, squares = parts
    design, table = design_of(classes, "logistic")
    penalty = StructuredElasticNet(1.0, None, 0.0, lasso, squares)
    rough, exact = (
        Majorizer(OverlapProblem(design, table, penalty), None, None, kkt, gap)
        for kkt, gap in ((1e-12, 1e-3), (1e-10, 0.0))
    )
    for search in (rough, exact):
        search.solve()
    values = [objective(design, penalty, search.point.W, search.point.bias) for search in (rough, exact)]
    excess = (values[0] - values[1]) / rough.problem.unit
    assert -1e-12 < excess <= rough.certificate.gap <= 1e-3
    assert exact.certificate.kkt <= 1e-8
    if not lasso:  # working sets may solve a lasso exactly at once
        assert rough.certificate.kkt > 1e-10


def test_admm_follows_algorithm_2():
    """Under squares without lasso, each of its three steps has a closed form in dense linear algebra."""
    design, table = design_of(2, "squared")
    cover, rho = cover_of("sentences", table.shape), 3.0
    penalty = penalty_of(cover, 0.5, squares=0.2, lasso=0.0)
    search = Admm(OverlapProblem(design, table, penalty), rho=rho, inner=1e-13)
    X, y, items = design.matrix.toarray(), design.targets, design.items
    groups, reach = members(cover), 0.5 * penalty.groups.weight.numpy()
    M = np.concatenate([np.eye(len(table))[own] for own in groups])
    bounds = np.cumsum([0, *map(len, groups)])
    v, u = np.zeros(len(M)), np.zeros(len(M))
    wide = np.column_stack([X, np.ones(items)])
    ridge = np.diag([*(0.2 + rho * M.sum(axis=0)), 0.0])
    for _ in range(5):
        w = np.linalg.solve(wide.T @ wide + ridge, wide.T @ y + np.append(M.T @ (rho * v + u), 0))[:-1]
        z = M @ w - u / rho
        v = np.concatenate([
            max(0.0, 1 - r / rho / max(np.linalg.norm(z[a:b]), 1e-300)) * z[a:b]
            for r, a, b in zip(reach, bounds[:-1], bounds[1:], strict=True)
        ])  # fmt: skip
        u = u + rho * (v - M @ w)
        search.iterate()
        np.testing.assert_allclose(search.point.W[:, 0], w, atol=1e-9)
        np.testing.assert_allclose(search.copies[:, 0], v, atol=1e-9)
        np.testing.assert_allclose(search.duals[:, 0], u / rho, atol=1e-9)
    assert (v == 0).any()


@pytest.mark.parametrize("options", [{}, {"adaptive": True}, {"relax": 1.6}, {"stop": "dual", "tolerance": 1e-7}])
def test_admm_reaches_the_optimum_with_any_options(options):
    design, table = design_of(2, "logistic")
    penalty = penalty_of(cover_of("planted", table.shape), 0.32)
    best = Majorizer(OverlapProblem(design, table, penalty), None, None, kkt=1e-9).solve().objective
    search = Admm(
        OverlapProblem(design, table, penalty), **{"stop": "gap", "tolerance": 1e-8, "inner": 1e-10, **options}
    )
    found = search.solve(5000)
    assert search.done
    assert found.objective == pytest.approx(best, rel=1e-6)
    bounds = search.problem.bounds.tolist()
    copies = [search.copies[a:b].any() for a, b in zip(bounds, bounds[1:], strict=False)]
    assert copies == (penalty.groups.norms(torch.from_numpy(search.point.W[:, 0])) > 1e-6).tolist()


def test_a_large_rho_stops_far_from_the_optimum_and_the_certificate_says_so():
    design, table = design_of(2, "logistic")
    penalty = penalty_of(cover_of("sentences", table.shape), 0.65)
    best = Majorizer(OverlapProblem(design, table, penalty), None, None, kkt=1e-9).solve().objective
    search = Admm(OverlapProblem(design, table, penalty), rho=1000.0)
    found = search.solve(100)
    assert search.change <= 1e-3 or search.iterations == 100
    assert found.objective > best * 1.001
    assert found.gap * search.problem.unit >= found.objective - best


# --- as torch optimizers


def moved(solver: type, penalty, loss: str = "logistic", classes: int = 2, steps: int = 200, **options):
    """The optimizer after its steps, and the table with its bias."""
    design, table = design_of(classes, loss)
    table, bias = (torch.nn.Parameter(part.clone()) for part in (table, design.bias))
    notes_of(table).design = replace(design, bias=bias)
    optimizer = solver([table, bias], **options)
    optimizer.attach({table: penalty})
    X, y = torch.from_numpy(design.matrix.toarray()), torch.from_numpy(design.targets)
    for _ in range(steps):
        optimizer.step(lambda: torch.nn.functional.softplus(-y * (X @ table + bias)).mean())
        if optimizer.converged:
            break
    return optimizer, table.detach(), bias.detach()


def test_optimizers_write_their_solution_and_report_convergence():
    design, table = design_of(2, "logistic")
    penalty = penalty_of(cover_of("planted", table.shape), 0.32)
    best, W, bias = moved(Majorize, penalty)
    assert best.converged
    assert best.certificate.kkt <= 1e-9
    assert objective(design, penalty, W.numpy(), bias.numpy()) == pytest.approx(best.certificate.objective, rel=1e-12)
    assert best.proof().gap == best.certificate.gap
    best.attach({})  # as a callback does at the end: the proof stays
    assert 0 <= best.proof().excess < 1e-8
    copied, V, other = moved(ADMM, penalty, stop="gap", tolerance=1e-8, iterations=5000)
    assert objective(design, penalty, V.numpy(), other.numpy()) == pytest.approx(best.certificate.objective, rel=1e-6)
    assert torch.equal(V == 0, W == 0)  # thanks to the option `zeros`
    assert copied.proof().gap < 1e-6


def test_early_stopping_is_admm_without_groups():
    cover = cover_of("sentences", design_of(2, "logistic")[1].shape)
    early = moved(StoppedEarly, penalty_of(cover, 0.65), rho=100.0, iterations=30, tolerance=1e-12)[1]
    zero = moved(ADMM, penalty_of(cover, 0.0), rho=100.0, iterations=30, tolerance=1e-12, zeros=False)[1]
    torch.testing.assert_close(early, zero)
    with pytest.raises(UserError, match="takes its metric from groups"):
        moved(StoppedEarly, L1(0.1))


def test_entries_outside_the_support_stay_zero_and_the_others_are_optimal():
    design, table = design_of(2, "logistic")
    penalty, allowed = penalty_of(cover_of("brown", table.shape), 0.5), torch.arange(136) % 3 > 0
    found = Majorizer(OverlapProblem(design, table, penalty, allowed), None, None, kkt=1e-9)
    found.solve()
    assert not found.point.W[~allowed.numpy()].any()
    kept = np.flatnonzero(allowed)
    place = {row: k for k, row in enumerate(kept.tolist())}
    own = [[place[row] for row in group if row in place] for group in members(penalty.groups)]
    some = [k for k, group in enumerate(own) if group]
    smaller = cover_rows((len(kept),), [own[k] for k in some], weights=penalty.groups.weight[some])
    small = Design(design.matrix.tocsc()[:, kept], design.targets, "logistic", design.bias)
    inside = StructuredElasticNet(STRENGTH, smaller, 0.5, LASSO)
    alone = Majorizer(OverlapProblem(small, torch.zeros(len(kept)), inside), None, None, kkt=1e-9)
    alone.solve()
    np.testing.assert_allclose(found.point.W[kept], alone.point.W, atol=1e-7)


def test_another_start_ends_at_the_same_optimum():
    design, table = design_of(3, "logistic")
    penalty = penalty_of(cover_of("sentences", table.shape, classes=3), 1.2)
    first = Majorizer(OverlapProblem(design, table, penalty), None, None, kkt=1e-9)
    first.solve(5000)
    start = np.random.default_rng(0).normal(size=tuple(table.shape))
    again = Majorizer(OverlapProblem(design, table, penalty), start, np.ones(3), kkt=1e-9)
    assert again.solve(5000).kkt <= 1e-9
    np.testing.assert_allclose(again.point.W, first.point.W, atol=1e-7)


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (lambda c: Admm(c.problem, stop="never"), r"solver.stop=never: expected change, dual, gap"),
        (lambda c: moved(ADMM, L1(0.1), rho=0.0), r"solver.rho is 0.0; it must be a positive number"),
        (lambda c: moved(ADMM, L1(0.1), relax=2.0), r"solver.relax is 2.0; it must lie between 0 and 2"),
        (lambda c: moved(Majorize, L1(0.1), kkt=0.0), r"solver.kkt is 0.0"),
        (lambda c: moved(Majorize, L1(0.1), inner=0), r"solver.inner is 0"),
        (lambda c: Majorize([c.table]).step(), r"evaluates the loss within a step"),
        (lambda c: Majorize([c.table]).step(lambda: 0.0), r"needs one parameter with a design"),
        (lambda c: moved(Majorize, GroupLasso(by_row((136,)), 0.1)), r"does not support GroupLasso"),
        (lambda c: moved(Majorize, penalty_of(c.cover, 0.1, lasso=0.0)), r"lie in no group and have neither"),
        (lambda c: Design(np.eye(3), np.ones(3), "loud", None), r"unknown loss 'loud' of a design"),
        (lambda c: Design(np.eye(3), np.ones(2), "squared", None), r"the targets of a design"),
        (
            lambda c: OverlapProblem(replace(c.design, targets=2 * c.design.targets), c.table, L1(0.1)),
            r"expected -1 or 1",
        ),
        (lambda c: OverlapProblem(c.design, torch.zeros(5), L1(0.1)), r"does not fit a matrix of 136 columns"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(attempt, reason):
    design, table = design_of(2, "logistic")
    cover = cover_rows((136,), [[0, 1], [1, 2]])
    context = SimpleNamespace(design=design, table=table, cover=cover, problem=OverlapProblem(design, table, L1(0.1)))
    with pytest.raises(UserError, match=reason):
        attempt(context)
