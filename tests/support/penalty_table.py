"""Every penalty, one row each: `test_penalties.py` checks them all by the same properties.

To add one, add a line to ROWS: how to make it, and its formula without the strength as a cvxpy expression of a matrix
V of SHAPE (from numpy operations where it is not convex: those see an array). The rest of a row says what is special.
Not here: SequentialGroupLasso and ConsensusGroupLasso, whose prox is not that of their value (see test_overlaps.py).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import cvxpy
import numpy as np
import torch
from torch import Tensor

from structsparse.groups import Cover, Forest, Partition, by_column, by_row, by_row_blocks, cover_entries, cover_rows
from structsparse.penalties import (
    L0,
    L1,
    OSCAR,
    SLOPE,
    Drift,
    ElasticNet,
    FusedLasso,
    GroupLasso,
    GroupLassoMax,
    GroupMCP,
    LogSum,
    NestedGroupLasso,
    Nonnegative,
    NoPenalty,
    OverlappingGroupLasso,
    Penalty,
    Ridged,
    SparseGroupLasso,
    SquaredL2,
    StructuredElasticNet,
    TreeGroupLasso,
    TreeGroupLassoMax,
)
from structsparse.penalties.drift import PeriodLayout
from tests.support import forests

SHAPE = (8, 3)


def per_entry(generator: torch.Generator) -> Tensor:
    """One step for each entry: within a factor of ten or so."""
    return torch.exp(torch.randn(SHAPE, generator=generator, dtype=torch.float64))


def per_row(generator: torch.Generator) -> Tensor:
    return per_entry(generator)[:, :1].expand(SHAPE).contiguous()


def distances(penalty: Penalty, W: Tensor, grad: Tensor) -> Tensor:
    """Of -grad from the subdifferential, where that is a single gradient (no entry is zero), or at zero, where the
    prox leaves exactly what the subdifferential cannot hold (Moreau)."""
    if (W == 0).all():
        rest = penalty.prox_(-grad, 1.0)
    else:
        leaf = W.clone().requires_grad_()
        penalty.value(leaf).backward()
        rest = grad + leaf.grad
    return norms(penalty, rest)


def residuals(penalty: Penalty, W: Tensor, grad: Tensor) -> Tensor:
    """What a proximal gradient step of length 1 would change."""
    return norms(penalty, W - penalty.prox_(W - grad, 1.0))


def norms(penalty: Penalty, X: Tensor) -> Tensor:
    return X.norm(dim=1) if penalty.groups is None else penalty.groups.norms(X)


ORDER = torch.tensor([5, 2, 7, 0, 6, 1, 4, 3])


def rows_in_another_order(penalty: Penalty) -> tuple[Penalty, Callable[[Tensor], Tensor]]:
    """The penalty whose groups have moved with the rows, and how the rows move."""
    other = copy.deepcopy(penalty)
    if penalty.groups is not None:
        ids = penalty.groups.ids.expand(SHAPE)[ORDER]
        other.groups = Partition(ids, penalty.groups.names, SHAPE, penalty.groups.weight)
    if isinstance(penalty, ElasticNet) and penalty.weights is not None:
        other.weights = penalty.weights.expand(SHAPE)[ORDER]
    return other, lambda W: W[ORDER]


def trees_in_another_order(penalty: Penalty) -> tuple[Penalty, Callable[[Tensor], Tensor]]:
    """The penalty whose nodes own other rows, and how the rows move."""
    other, groups = copy.deepcopy(penalty), penalty.groups
    ids = groups.ids.expand(SHAPE)[ORDER]
    other.groups = Forest(groups.parents, ids, groups.names, SHAPE, groups.weight)
    return other, lambda W: W[ORDER]


def covers_in_another_order(penalty: Penalty) -> tuple[Penalty, Callable[[Tensor], Tensor]]:
    """The penalty whose atoms have moved with the rows, its groups in another order, and how the rows move."""
    other, groups = copy.deepcopy(penalty), penalty.groups
    ids = groups.atoms.ids.expand(SHAPE)[ORDER]
    atoms = Partition(ids, groups.atoms.names, SHAPE)
    moved = Cover(atoms, groups.members, groups.offsets, groups.names, groups.weight)
    other.groups = moved.subset(torch.arange(len(groups)).flip(0))
    return other, lambda W: W[ORDER]


def structured_in_another_order(penalty: Penalty) -> tuple[Penalty, Callable[[Tensor], Tensor]]:
    other = copy.deepcopy(penalty)
    if penalty.groups is not None:
        other.groups = covers_in_another_order(penalty)[0].groups
    if penalty.frequency is not None:
        other.frequency = penalty.frequency[ORDER]
    return other, lambda W: W[ORDER]


def backwards(penalty: Penalty) -> tuple[Penalty, Callable[[Tensor], Tensor]]:
    """Time, and the order of the chains beside each other."""
    return penalty, lambda W: W.flip(0, 1)


@dataclass(frozen=True)
class Row:
    make: Callable[[], Penalty]
    omega: Callable  # V -> the penalty at strength 1: a cvxpy expression, or a number if it is not convex
    convex: bool = True
    steps: Callable[[torch.Generator], Tensor] | None = per_entry  # draws steps per entry; None: it refuses them
    gap: Callable | None = distances  # what `gap` must be: distances, residuals, or None: only zero where stationary
    symmetry: Callable | None = rows_in_another_order  # a penalty and a map of W under which nothing changes
    meta: bool = True  # whether it runs without data
    lower: float = -torch.inf  # the constraint on every entry
    border: float = 1e-11  # how near to the critical strength the prox knows what is zero
    ridge: float = 0.0  # of squares that are added whatever the strength


def nonnegative(row: Row) -> Row:
    """The row with the constraint V >= 0."""

    def symmetry(penalty):
        other, permuted = row.symmetry(penalty.penalty)
        return Nonnegative(other), permuted

    return dataclasses.replace(row, make=lambda: Nonnegative(row.make()), symmetry=row.symmetry and symmetry, lower=0.0)


def ridged(row: Row, ridge: float) -> Row:
    """The row with ridge / 2 * sum V^2 added. What its gap is where it is not zero is known of distances alone."""

    def symmetry(penalty):
        other, permuted = row.symmetry(penalty.penalty)
        return Ridged(other, ridge), permuted

    def make():
        return Ridged(row.make(), ridge)

    gap = distances if row.gap is distances and row.lower == -torch.inf else None
    return dataclasses.replace(row, make=make, symmetry=row.symmetry and symmetry, ridge=ridge, gap=gap)


def drifting() -> Penalty:
    """A drift penalty, two of whose columns have chains of precisions; noise and scale are not 1."""
    penalty = Drift(0.7, prior="ar1")
    none = torch.zeros(SHAPE[1], dtype=torch.bool)
    scale = torch.full(SHAPE[1:], 1.5, dtype=torch.float64)
    penalty.fit(PeriodLayout(SHAPE[0], torch.zeros(SHAPE[1], dtype=torch.int64), scale, 0.8, none))
    return penalty


def quadratic(V):
    """Half the quadratic form of the chains of `drifting`, from dense matrices."""
    first, middle, last, off = (part.numpy() * 0.8 for part in drifting().precision)
    rows = SHAPE[0]
    beside = np.eye(rows, k=1) + np.eye(rows, k=-1)
    inside = np.diag([0.0, *[1.0] * (rows - 2), 0.0])
    total = 0.0
    for k in range(SHAPE[1]):
        matrix = off[k] * beside + middle[k] * inside
        matrix[0, 0], matrix[-1, -1] = first[k], last[k]
        total = total + cvxpy.sum_squares(np.linalg.cholesky(matrix).T @ V[:, k]) / 2
    return total


def flat(V):
    """The entries of V, row after row."""
    return cvxpy.vec(V, order="C")


def nothing(V):
    return 0.0


def absolute(V):
    return cvxpy.sum(cvxpy.abs(V))


def squares(V):
    return cvxpy.sum_squares(flat(V)) / 2


def members(groups: Partition) -> list[list[int]]:
    ids = groups.ids.expand(groups.shape).flatten().tolist()
    return [[i for i, owner in enumerate(ids) if owner == g] for g in range(len(groups))]


def over(groups: Partition, norm=2):
    """Sum of weight_g * norm of V_g over the groups that have entries."""
    pairs = [(w, m) for w, m in zip(groups.weight.tolist(), members(groups), strict=True) if m]
    return lambda V: sum(weight * cvxpy.norm(flat(V)[entries], norm) for weight, entries in pairs)


def over_cover(cover: Cover):
    """Sum of weight_g * norm of V_g over groups that overlap."""
    own = members(cover.atoms)
    spans = zip(cover.offsets.tolist(), cover.offsets.tolist()[1:], strict=False)
    groups = [[i for atom in cover.members.tolist()[a:b] for i in own[atom]] for a, b in spans]
    pairs = [(w, entries) for w, entries in zip(cover.weight.tolist(), groups, strict=True) if entries]
    return lambda V: sum(weight * cvxpy.norm(flat(V)[entries]) for weight, entries in pairs)


def covered(cover: Cover):
    """Sum of |V_i| over the entries of the groups."""
    own = members(cover.atoms)
    entries = [i for atom in sorted(set(cover.members.tolist())) for i in own[atom]]
    return lambda V: cvxpy.norm1(flat(V)[entries])


def over_trees(forest: Forest, norm=2):
    """Sum of weight_g * norm of V_g over the subtrees that have entries."""
    pairs = [(w, m) for w, m in zip(forest.weight.tolist(), forests.members(forest), strict=True) if m]
    return lambda V: sum(weight * cvxpy.norm(flat(V)[entries], norm) for weight, entries in pairs)


def grouped(groups: Partition):
    """Sum of |V_i| over the entries of the groups."""
    entries = [i for m in members(groups) for i in m]
    return lambda V: cvxpy.norm1(flat(V)[entries])


def weighted(weights: Tensor, term):
    """Sum of weights_i * term(V_i)."""
    return lambda V: cvxpy.sum(cvxpy.multiply(weights.expand(SHAPE).numpy(), term(V)))


def radial(height, groups: Partition | None = None):
    """Sum of weight_g * height(norm of V_g), or over entries, by loops over floats."""

    def omega(V):
        entries = V.flatten().tolist()
        if groups is None:
            return math.fsum(height(abs(v)) for v in entries)
        sizes = [math.hypot(*(entries[i] for i in m)) for m in members(groups)]
        return math.fsum(w * height(size) for w, size in zip(groups.weight.tolist(), sizes, strict=True))

    return omega


def log_sum(epsilon):
    return lambda size: epsilon * math.log1p(size / epsilon)


def mcp(reach):
    return lambda size: size - size**2 / (2 * reach) if size <= reach else reach / 2


def differences(dimension):
    return lambda V: cvxpy.sum(cvxpy.abs(cvxpy.diff(V, axis=dimension)))


def in_order_of_size(weights: Tensor):
    """Sum of weights_i |V|_(i), as a sum over the k largest."""
    steps = (weights - torch.cat([weights[1:], weights.new_zeros(1)])).tolist()
    return lambda V: sum(w * cvxpy.sum_largest(cvxpy.abs(V), k + 1) for k, w in enumerate(steps) if w)


def pairs(V):
    """Sum over all pairs of the larger one."""
    size = cvxpy.abs(flat(V))
    return sum(cvxpy.sum(cvxpy.maximum(size[i + 1 :], size[i])) for i in range(23))


def one_if_positive(size):
    return float(size > 0)


def mix(share: float, one, other):
    """share * one + (1 - share) * other"""
    return lambda V: share * one(V) + (1 - share) * other(V)


def blocks(weights="sqrt_size") -> Partition:
    return by_row_blocks(SHAPE, ["a", "none", "row", "b", "c"], [0, 3, 3, 4, 6, 8], weights)


def rows() -> Partition:
    return by_row(SHAPE, weights="one")


def columns() -> Partition:
    return by_column(SHAPE, list("xyz"))


def scattered() -> Partition:
    """Entries in groups of their own making: one of size 1, one of size 0, and free ones."""
    ids = torch.tensor([0, -1, 1, 2, 2, 0] * 4).view(SHAPE)
    ids[0, 0] = 3
    return Partition(ids, ["a", "b", "c", "one", "none"], SHAPE, "log2_size")


def windows() -> Cover:
    """Rows; row 7 is free."""
    return cover_rows(SHAPE, [[0, 1, 2], [2, 3, 4], [4, 5, 0], [6], [1, 6]])


def circle() -> Cover:
    """Rows; none is free."""
    return cover_rows(SHAPE, [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 0], [1, 5]])


def patches() -> Cover:
    return cover_entries(SHAPE, [[0, 5, 9, 13], [1, 5, 9, 20], [2, 3, 4, 5], [0, 23]], weights="one")


def templates() -> Cover:
    """Blocks of rows, one of them without rows; coarse before fine."""
    return Cover(blocks(), [0, 2, 3, 2, 3, 3, 4, 1], [0, 3, 5, 7, 8], list("pqrs"))


def overlapping(cover: Callable[[], Cover], strength: float, mixed: float = 0.0) -> Row:
    omega = over_cover(cover()) if mixed == 0 else mix(mixed, covered(cover()), over_cover(cover()))
    return Row(
        lambda: OverlappingGroupLasso(cover(), strength, mixed),
        omega,
        symmetry=covers_in_another_order,
        border=1e-7,
    )


def nested(strength: float) -> Row:
    """Rows in pairs, pairs in a half; rows 6 and 7 are free."""

    def cover():
        return cover_rows(SHAPE, [[2, 3], [0, 1, 2, 3], [1], [0, 1], [4, 5]], weights="one")

    return dataclasses.replace(overlapping(cover, strength), make=lambda: NestedGroupLasso(cover(), strength))


def structured(cover: Callable[[], Cover] | None, group: float = 0.0, lasso: float = 0.0, squares: float = 0.0) -> Row:
    """Squares of the rows weigh as COMMON says."""

    def omega(V):
        norms = over_cover(cover())(V) if group else 0.0
        return group * norms + lasso * absolute(V) + squares / 2 * weighted(COMMON[:, None], cvxpy.square)(V)

    def make():
        frequency = COMMON if squares else None
        return StructuredElasticNet(0.5, cover and cover(), group, lasso, squares, frequency)

    return Row(make, omega, symmetry=structured_in_another_order, border=1e-7)


COMMON = torch.tensor([3.0, 0.0, 1.0, 2.0, 0.5, 7.0, 1.0, 1.0], dtype=torch.float64)  # frequencies of rows
FALLING = torch.linspace(3.0, -1.0, 24, dtype=torch.float64).clamp(min=0)  # weights by size, some of them zero
UNEVEN = torch.linspace(0.0, 3.0, 24, dtype=torch.float64).view(SHAPE)  # weights of entries, one without

ROWS = {
    "none": Row(lambda: NoPenalty(), nothing),
    "l1": Row(lambda: L1(0.4), absolute),
    "squared l2": Row(lambda: SquaredL2(0.4), squares),
    "elastic net": Row(lambda: ElasticNet(0.5, mix=0.7), mix(0.7, absolute, squares)),
    "group lasso, blocks": Row(lambda: GroupLasso(blocks(), 0.3), over(blocks())),
    "group lasso, rows": Row(lambda: GroupLasso(rows(), 0.6), over(rows())),
    "group lasso, columns": Row(lambda: GroupLasso(columns(), 0.2), over(columns())),
    "group lasso, scattered": Row(lambda: GroupLasso(scattered(), 0.4), over(scattered())),
    "sparse group lasso, blocks": Row(
        lambda: SparseGroupLasso(blocks("one"), 0.5, mix=0.4), mix(0.4, absolute, over(blocks("one")))
    ),
    "sparse group lasso, scattered": Row(
        lambda: SparseGroupLasso(scattered(), 0.5, mix=0.6), mix(0.6, grouped(scattered()), over(scattered()))
    ),
    "sparse group lasso, all entries": Row(lambda: SparseGroupLasso(blocks(), 0.4, mix=1.0), absolute),
    "weighted l1": Row(lambda: L1(0.4, weights=UNEVEN), weighted(UNEVEN, cvxpy.abs)),
    "weighted elastic net": Row(
        lambda: ElasticNet(0.5, mix=0.7, weights=UNEVEN[:, :1]),
        mix(0.7, weighted(UNEVEN[:, :1], cvxpy.abs), weighted(UNEVEN[:, :1] / 2, cvxpy.square)),
    ),
    "linf groups, blocks": Row(lambda: GroupLassoMax(blocks(), 0.5), over(blocks(), np.inf), gap=residuals),
    "linf groups, columns": Row(lambda: GroupLassoMax(columns(), 0.4), over(columns(), np.inf), gap=residuals),
    "linf groups, scattered, mixed": Row(
        lambda: GroupLassoMax(scattered(), 0.6, mix=0.3),
        mix(0.3, grouped(scattered()), over(scattered(), np.inf)),
        gap=residuals,
    ),
    "linf groups, blocks, mixed": Row(
        lambda: GroupLassoMax(blocks(), 0.6, mix=0.3), mix(0.3, absolute, over(blocks(), np.inf)), gap=residuals
    ),
    "drift": Row(drifting, quadratic, symmetry=backwards),
    "fused": Row(lambda: FusedLasso(0.6), differences(0), gap=residuals, symmetry=backwards, meta=False),
    "fused, along columns": Row(
        lambda: FusedLasso(0.4, dimension=-1), differences(1), gap=residuals, symmetry=backwards, meta=False
    ),
    "fused lasso": Row(
        lambda: FusedLasso(0.6, mix=0.3),
        mix(0.3, absolute, differences(0)),
        steps=None,
        gap=residuals,
        symmetry=backwards,
        meta=False,
    ),
    "slope": Row(lambda: SLOPE(0.5, FALLING), in_order_of_size(FALLING), steps=None, gap=residuals, meta=False),
    "oscar": Row(lambda: OSCAR(0.1, mix=0.6), mix(0.6, absolute, pairs), steps=None, gap=residuals, meta=False),
    "l0": Row(lambda: L0(0.5), radial(one_if_positive), convex=False),
    "l0, blocks": Row(lambda: L0(0.5, blocks()), radial(one_if_positive, blocks()), convex=False),
    "l0, scattered": Row(lambda: L0(0.5, scattered()), radial(one_if_positive, scattered()), convex=False),
    "log-sum": Row(lambda: LogSum(0.6, 0.5), radial(log_sum(0.5)), convex=False),
    "log-sum, blocks": Row(
        lambda: LogSum(0.6, 0.3, blocks()), radial(log_sum(0.3), blocks()), convex=False, steps=None
    ),
    "log-sum, scattered": Row(
        lambda: LogSum(0.9, 2.0, scattered()), radial(log_sum(2.0), scattered()), convex=False, steps=None
    ),
    "mcp": Row(lambda: GroupMCP(0.6, 1.5), radial(mcp(1.5)), convex=False),
    "group mcp, blocks": Row(
        lambda: GroupMCP(0.6, 2.0, blocks()), radial(mcp(2.0), blocks()), convex=False, steps=None
    ),
    "group mcp, scattered": Row(
        lambda: GroupMCP(0.6, 3.0, scattered()), radial(mcp(3.0), scattered()), convex=False, steps=None
    ),
    "tree, rows": Row(
        lambda: TreeGroupLasso(forests.rows(), 0.2),
        over_trees(forests.rows()),
        symmetry=trees_in_another_order,
    ),
    "tree, scattered, mixed": Row(
        lambda: TreeGroupLasso(forests.scattered(), 0.2, mix=0.3),
        mix(0.3, grouped(forests.scattered()), over_trees(forests.scattered())),
        symmetry=trees_in_another_order,
    ),
    "linf tree, rows": Row(
        lambda: TreeGroupLassoMax(forests.rows("0.8**depth"), 0.6),
        over_trees(forests.rows("0.8**depth"), np.inf),
        gap=residuals,
        symmetry=trees_in_another_order,
    ),
    "linf tree, scattered, mixed": Row(
        lambda: TreeGroupLassoMax(forests.scattered(), 0.3, mix=0.3),
        mix(0.3, grouped(forests.scattered()), over_trees(forests.scattered(), np.inf)),
        gap=residuals,
        symmetry=trees_in_another_order,
    ),
    "overlapping, rows": overlapping(windows, 0.15),
    "overlapping, entries": overlapping(patches, 0.3),
    "overlapping, row blocks, mixed": overlapping(templates, 0.15, mixed=0.3),
    "nested": nested(0.2),
    "structured": structured(circle, 0.3, 0.2),
    "structured, groups alone": structured(windows, 0.4),
    "structured, all": structured(templates, 0.2, 0.1, 0.3),
    "structured, entries and squares": structured(None, lasso=0.4, squares=0.3),
    "structured, squares": structured(None, squares=0.3),
}

POSITIVE = """
    l1; squared l2; elastic net; weighted l1; group lasso, blocks; sparse group lasso, scattered; linf groups, blocks;
    linf groups, scattered, mixed; fused; fused lasso; slope; oscar; l0; l0, blocks; log-sum, blocks; mcp;
    tree, rows; linf tree, scattered, mixed; overlapping, rows; overlapping, row blocks, mixed
"""  # once more, with the constraint
for name in map(str.strip, POSITIVE.split(";")):
    ROWS[f"{name}, nonnegative"] = nonnegative(ROWS[name])
RIDGED = """
    l1; elastic net; group lasso, blocks; slope; l0, scattered; tree, scattered, mixed; linf tree, scattered, mixed;
    overlapping, rows; l1, nonnegative; tree, rows, nonnegative
"""  # once more, with squares
for name in map(str.strip, RIDGED.split(";")):
    ROWS[f"{name}, ridged"] = ridged(ROWS[name], 0.3)
ROWS["ridged, tree, rows, nonnegative"] = nonnegative(ridged(ROWS["tree, rows"], 0.3))

# Where nothing is rounded: the whole of W dies at steps of 1/2 exactly at the strength given, and not below it.
AT_THE_THRESHOLD = {
    "l1": (lambda: L1(16.0), [[3.0, 4.0], [-6.0, 8.0]]),
    "group lasso": (
        lambda: GroupLasso(by_row((2, 2), weights=torch.tensor([1.0, 2.0])), 10.0),
        [[3.0, 4.0], [-6.0, 8.0]],
    ),
    "sparse group lasso": (
        lambda: SparseGroupLasso(by_row((2, 2), weights=torch.tensor([10.0, 10.0])), 2.0, mix=0.5),
        [[3.5, 4.5], [-3.5, 4.5]],
    ),
    "linf": (lambda: GroupLassoMax(by_row((2, 2), weights=torch.tensor([1.0, 2.0])), 14.0), [[3.0, 4.0], [-6.0, 8.0]]),
    "fused lasso": (lambda: FusedLasso(8.0, mix=0.5), [[3.0, -1.0], [1.0, -3.0]]),
    "slope": (lambda: SLOPE(4.0, torch.tensor([4.0, 2.0, 1.0, 1.0])), [[-8.0, 4.0], [2.0, -2.0]]),
    "oscar": (lambda: OSCAR(4.0, 0.5), [[4.0, -3.0], [2.0, -1.0]]),
    "l0": (lambda: L0(16.0), [[4.0, -4.0], [1.0, 4.0]]),
    "l0 of groups": (lambda: L0(25.0, by_row((2, 2), weights=torch.tensor([1.0, 4.0]))), [[3.0, 4.0], [-6.0, 8.0]]),
    "log-sum": (lambda: LogSum(4.0, 2.0), [[2.0, -2.0], [1.0, 2.0]]),
    "mcp": (lambda: GroupMCP(4.0, 4.0), [[2.0, -2.0], [1.0, 2.0]]),
    "mcp, all or nothing": (lambda: GroupMCP(16.0, 2.0), [[4.0, -4.0], [1.0, 4.0]]),
    "group mcp": (lambda: GroupMCP(10.0, 8.0, by_row((1, 2), weights="one")), [[3.0, -4.0]]),
}
