"""`Penalty`, the interface of all sparsity-inducing penalties, and functions that several penalties share.

A penalty class defines:
- `value`: the value of the penalty.
- `prox_`: the proximal operator (prox), applied after each step of the optimizer.
- `gap`: the optimality gap, zero at an optimum.
- `critical`: the smallest strength at which all penalised weights are zero."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups import Cover, Forest, Partition
from structsparse.groups.layouts import TableLayout
from structsparse.prox import Choose, Steps
from structsparse.prox.tridiagonal import Chain


class Dual(NamedTuple):
    """Result of `conjugate` in the penalty base class: what a penalty adds to the dual objective of a duality gap.

    `share` is a factor from 0 to 1 on the gradient of the loss. The scaled gradient is feasible in the dual problem.
    `conjugate` is the convex conjugate of the penalty at -share * gradient."""

    share: float
    conjugate: float


class Separable(NamedTuple):
    """Result of `separable` in the penalty base class: an absolute value plus a parabola for each entry.

    The penalty of weights W is sum_i (cut * |W_i| + pull_i / 2 * (W_i - centre_i)^2). `pull` and `centre` broadcast to
    W."""

    cut: float  # coefficient of the absolute value of each weight
    pull: Tensor  # for each weight, the second derivative of its parabola
    centre: Tensor  # for each weight, the point where its parabola is zero


class RowParts(NamedTuple):
    """Result of `row_parts` in the penalty base class: group norms, l1 norm and weighted squares of a table.

    The penalty of a table W is sum_g reach_g ||W_g|| + cut * |W|_1 + 1/2 sum_j squares_j ||W_j||^2. W_g are the rows of
    group g, W_j is row j, and |W|_1 is the sum of all absolute entries."""

    cut: float  # coefficient of the l1 norm of the table
    squares: Tensor  # float64 [rows]: for each row, the coefficient of half its squared norm
    cover: Cover | None  # the groups of rows; None: no groups
    reach: Tensor  # float64 [groups]: for each group of rows, the coefficient of its norm


class ColumnForest(NamedTuple):
    """A penalty that is the same in each column of a table: an elastic net, and norms of the subtrees of a forest."""

    place: np.ndarray  # int32 [rows], the node of each row, in level order
    above: np.ndarray  # int32 [nodes], the place of the parent; -1: a root
    weight: np.ndarray  # float64 [nodes], the strength of the norm of each subtree
    cut: float  # strength of the absolute values
    ridge: float  # strength of half the squares


class Penalty(nn.Module, ABC):
    """Base class of all penalties: strength * Omega(W), a function of the weights W of one parameter.

    A new penalty class defines `value`, `prox_`, `gap` and `critical`. In `takes` it lists the group classes that it
    accepts. `groups` is None if the penalty has no groups. All other members have defaults. For a feature that not all
    penalties support, the default returns None or an empty list, or raises an error.

    `strength` is a float64 scalar tensor that is saved with the module. To change it, assign a number."""

    # classes of groups that the penalty accepts (Partition, Forest, Cover); None stands for a penalty without groups
    takes: ClassVar[tuple[type | None, ...]] = (None,)
    convex = True  # whether the penalty is a convex function of the weights
    is_null = False  # whether the penalty is zero everywhere, so that no prox is needed
    discrete = False  # whether each weight must be one of a few allowed values
    binds_all = False  # whether this penalty may apply to all parameters of a model, with none left unpenalised
    reweightable = False  # whether the class `Reweighting` may change the group factors between two trainings
    tables: ClassVar[tuple[str, ...]] = ()  # kinds of weight table that the penalty is for; empty: all
    remembers = False  # whether training updates a memory of the penalty after each epoch, see `outer_update` of Drift
    # whether one limit holds for the nonzero groups of all families together, see `families`
    shared = False
    learn = False  # whether training updates the allowed values of the weights, see `discrete.learn`
    ridge = 0.0  # coefficient of an added term ridge / 2 * (sum of squared weights), see the class `Ridged`
    iterated = False  # whether the prox is iterative if each entry has its own step size
    accuracy = 0.0  # an iterative prox stops at this relative error of the penalty's value; 0: at rounding error

    def __init__(self, strength: float, groups: Partition | Forest | Cover | None = None):
        super().__init__()
        self.groups = groups
        self.register_buffer("_strength", torch.zeros((), dtype=torch.float64))
        self.strength = strength

    @property
    def strength(self) -> Tensor:
        """Penalty base class: the strength of the penalty, a float64 scalar tensor."""
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        """Penalty base class: set the strength of the penalty to a finite number of at least 0."""
        self._strength.fill_(checked(value, f"the strength of {type(self).__name__}"))

    # --- methods that every penalty class must define

    @abstractmethod
    def value(self, W: Tensor) -> Tensor:
        """Penalty base class: the value of the penalty at the weights W, a scalar tensor that includes the strength."""

    @abstractmethod
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Penalty base class: the proximal operator (prox) of the penalty, in place.

        W <- argmin_V value(V) + 1/2 sum (V - W)^2 / steps. `steps` is one step size, or one step size per entry."""

    @abstractmethod
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Penalty base class: the optimality gap of the weights W, which is zero if W is optimal.

        The gap is the distance of -grad from the subdifferential of the penalty at W, where `grad` is the gradient of
        the loss. The result has one number per group, or one per row of W if there are no groups. If there are groups,
        entries outside all groups are not included."""

    @abstractmethod
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Penalty base class: the critical strength of the penalty; None if there is no critical strength.

        This is the smallest strength at which zero is optimal for all penalised entries. `grad_at_zero` is the gradient
        of the loss where these entries are zero."""

    # --- selection of entries and groups

    def survivors(self, W: Tensor) -> Tensor:
        """Penalty base class: mask of the entries that the penalty has selected, by default the nonzero entries.

        The mask is bool and has the shape of W."""
        return W != 0

    @classmethod
    def mixed(cls, squares: float, sparse: float) -> Mapping[str, float] | None:
        """Penalty base class: the penalty's options for given strengths of its squares and of its sparse part.

        The sparse part makes weights or groups zero. The result is None if the penalty does not have both parts."""
        return None

    @property
    def selects_nothing(self) -> bool:
        """Penalty base class: whether the penalty is smooth, so that no strength makes an entry zero.

        A penalty that selects nothing must define `gradient`."""
        return False

    def gradient(self, W: Tensor) -> Tensor:
        """Penalty base class: the gradient of a smooth penalty with respect to W; other penalties raise an error."""
        raise NotImplementedError(f"{type(self).__name__} is not smooth")

    def entering(self, grad_at_zero: Tensor) -> Tensor | None:
        """Penalty base class: the critical strength of each group (float64 tensor [groups]); None by default.

        The critical strength of a group is the smallest strength at which the group stays zero. `grad_at_zero` is the
        gradient of the loss where the groups are zero."""
        return None

    def sizes(self, W: Tensor) -> Tensor:
        """Penalty base class: the size of each group of weights, such as a norm (float64 tensor [groups])."""
        raise NotImplementedError(f"{type(self).__name__} has no groups with a size")

    @property
    def families(self) -> list[int]:
        """Penalty base class: the number of groups in each family, as a list.

        A family is a set of disjoint groups that share one strength. An empty list means that the number of nonzero
        groups cannot be limited."""
        return []

    def cut_(self, W: Tensor, steps: Steps, choose: Choose) -> None:
        """Penalty base class: the prox, in place, at strengths that the callback `choose` picks.

        The callback limits the number of nonzero groups. The groups form families; a family is a set of disjoint groups
        that share one strength. The critical strength of a group is the strength at which the prox makes it zero. For
        the family of index k, choose(k, critical strengths of its groups) returns the strength of its prox, and a mask
        of the groups that must become zero."""
        raise NotImplementedError(f"{type(self).__name__} has no families of disjoint groups")

    # --- methods for the constraint W >= 0

    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Penalty base class: the prox of the penalty under the constraint that all weights are nonnegative.

        By default this is the prox of the positive part of W. The default is correct if the value never falls as an
        entry moves away from zero."""
        return self.prox_(positive_(W), steps)

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Penalty base class: the optimality gap under the constraint W >= 0.

        At a zero entry of W, only a negative gradient of the loss counts."""
        return self.gap(W, torch.where(W > 0, grad, grad.clamp(max=0)))

    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Penalty base class: the critical strength of the penalty under the constraint W >= 0."""
        return self.critical(grad_at_zero.clamp(max=0))

    # --- methods for certificates of optimality

    @torch.no_grad()
    def held(self, W: Tensor) -> Tensor | None:
        """Penalty base class: mask of the penalised entries, bool with the shape of W; None if unknown.

        An entry is penalised if the prox with a long step makes it zero. The result is None if the strength is zero,
        the penalty has no critical strength, or the penalty is not convex."""
        strength, ones = float(self.strength), torch.ones_like(W, dtype=torch.float64)
        critical = self.critical(-ones) if self.convex and strength > 0 else None
        return None if critical is None else self.prox_(ones, 1e6 * (1.0 + float(critical)) / strength) == 0

    @torch.no_grad()
    def conjugate(self, gradient: Tensor) -> Dual | None:
        """Penalty base class: the dual of the penalty at a gradient of the loss, see `Dual`; None if unknown.

        The default is correct for norms: it scales the gradient into the dual ball, where the convex conjugate is zero.
        """
        return self._scaled_dual(self.critical(gradient))

    @torch.no_grad()
    def nonnegative_conjugate(self, gradient: Tensor) -> Dual | None:
        """Penalty base class: the dual of the penalty at a gradient of the loss, under the constraint W >= 0."""
        return self._scaled_dual(self.nonnegative_critical(gradient))

    def _scaled_dual(self, critical: Tensor | None) -> Dual | None:
        """Penalty base class: the `Dual` of a norm at a gradient of the loss.

        `critical` is the critical strength of the norm for this gradient. If it is None, the result is None."""
        if critical is None:
            return None
        return Dual(min(1.0, float(self.strength / critical)) if critical > 0 else 1.0, 0.0)

    def takes_metric(self, W: Tensor, curvature: Tensor) -> bool:
        """Penalty base class: whether the prox can be computed in a diagonal metric, with a step per entry.

        The method tries a prox with steps of 1 / `curvature`. The answer is no if this raises UserError."""
        try:
            self.prox_(torch.zeros_like(W), curvature.reciprocal())
        except UserError:
            return False
        return True

    # --- simple forms of the penalty that solvers use directly

    @property
    def by_entry(self) -> bool:
        """Penalty base class: whether the penalty is a sum of the same function of each entry.

        If so, removing rows of zeros from a table does not change the penalty."""
        return False

    def cut_and_ridge(self) -> tuple[float, float] | None:
        """Penalty base class: the coefficients (cut, ridge) of an elastic net; None for any other penalty.

        The elastic net is the sum over entries of cut * |W_i| + ridge / 2 * W_i^2."""
        return None

    @property
    def tied(self) -> Tensor | None:
        """Penalty base class: mask of the columns of a table whose entries must all be the same; None by default."""
        return None

    def chains(self, W: Tensor) -> Chain | None:
        """Penalty base class: the penalty as half a tridiagonal quadratic form of each column of W; None otherwise."""
        parts = self.cut_and_ridge()
        if parts is None or parts[0] > 0:
            return None
        ridge = W.new_full(W.shape[1:], parts[1])
        return Chain(ridge, ridge, ridge, torch.zeros_like(ridge))

    def separable(self) -> Separable | None:
        """Penalty base class: the penalty as an absolute value plus a parabola for each entry.

        The result is None if the penalty has no such form."""
        parts = self.cut_and_ridge()
        return parts and Separable(parts[0], torch.tensor(parts[1], dtype=torch.float64), torch.zeros(()))

    def row_parts(self, rows: int) -> RowParts | None:
        """Penalty base class: the penalty of a table as group norms, l1 norm and weighted squares.

        `rows` is the number of rows of the table. The result is None if the penalty has no such form."""
        parts = self.cut_and_ridge()
        nothing = torch.zeros(0, dtype=torch.float64)
        return parts and RowParts(parts[0], torch.full((rows,), parts[1], dtype=torch.float64), None, nothing)

    def column_forest(self, rows: int) -> ColumnForest | None:
        """Penalty base class: the penalty of a table as the same elastic net and forest of groups in each column.

        `rows` is the number of rows of the table. The result is None if the penalty has no such form."""
        parts, nodes = self.cut_and_ridge(), np.arange(rows, dtype=np.int32)
        return None if parts is None else ColumnForest(nodes, np.full_like(nodes, -1), np.zeros(rows), *parts)

    def without_groups(self) -> Penalty | None:
        """Penalty base class: the same penalty without its group norms.

        The result is None if the penalty has no groups, or consists of group norms only."""
        return None

    # --- methods that receive information from training

    def fit(self, layout: TableLayout) -> None:
        """Penalty base class: read what the penalty needs, such as row frequencies, from the layout of the parameter.

        By default nothing is read."""

    def for_chains(self, lengths: Tensor) -> None:
        """Penalty base class: count each entry as several equal weights, which the option model.collapse has merged.

        `lengths` holds the number of merged weights per entry. Penalties that cannot count merged weights raise
        UserError."""
        raise UserError(
            f"{type(self).__name__} does not count the weights that a collapsed one stands for; "
            "set model.collapse=false"
        )

    @classmethod
    def at_start(cls, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor]) -> None:
        """Penalty base class: prepare penalties of this class at the start of training.

        `penalties` and `weights` give the penalty and the weights for each parameter name. By default nothing happens.
        """

    @classmethod
    def at_end(cls, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor]) -> None:
        """Penalty base class: update penalties of this class at the end of training.

        `penalties` and `weights` give the penalty and the weights for each parameter name. By default nothing happens.
        """

    def extra_repr(self) -> str:
        """Penalty base class: the text that describes the strength when the penalty module is printed."""
        return f"strength={float(self.strength):g}"


def past_signs(grad: Tensor, W: Tensor, cut: Tensor) -> Tensor:
    """Shared by all penalties: the smallest subgradient grad + cut * sign(W), entry by entry.

    `grad` is the gradient of the objective without cut * |W|. The sign of zero may be any number from -1 to 1."""
    return torch.where(W != 0, grad + cut * W.sign(), grad - torch.clamp(grad, -cut, cut))


@torch.no_grad()
def residual(prox_: Callable[[Tensor, Steps], Tensor], W: Tensor, grad: Tensor) -> Tensor:
    """Shared by all penalties: the proximal gradient residual W - prox(W - grad), with a step of 1.

    `grad` is the gradient of the loss at the weights W. The residual is zero exactly if W is stationary."""
    return W - prox_(W - grad, 1.0)


@torch.no_grad()
def positive_(W: Tensor) -> Tensor:
    """Shared by all penalties: the positive part of the weights, W <- max(W, 0), in place, without negative zeros."""
    return W.clamp_(min=0).add_(0.0)


def row_norms(X: Tensor) -> Tensor:
    """Shared by all penalties: the Euclidean norm of each row of X; for a vector, the absolute values."""
    return torch.linalg.vector_norm(X.flatten(1), dim=1) if X.dim() > 1 else X.abs()


def checked(value: float, what: str, most: float = math.inf) -> float:
    """Shared by all penalties: check that an option is a finite number from 0 to the maximum `most`; returns a float.

    `what` names the option in the error message."""
    expected = "a finite number of at least 0" if most == math.inf else f"a number from 0 to {most:g}"
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is {value!r}, expected {expected}") from error
    if not (0 <= number <= most and math.isfinite(number)):
        raise UserError(f"{what} is {value}, expected {expected}")
    return number


def checked_partition(groups: Partition, name: str) -> Partition:
    """Shared by all penalties: check that groups are a Partition (disjoint groups); returns the groups."""
    if not isinstance(groups, Partition):
        raise UserError(
            f"{name} takes disjoint groups (a Partition), got a {type(groups).__name__}; "
            "for a Forest choose reg=tree_l2 or tree_linf, for a Cover reg=overlap"
        )
    return groups


def checked_positive(value: float, what: str) -> float:
    """Shared by all penalties: check that an option is a finite number above 0; returns a float."""
    number = checked(value, what)
    if number == 0:
        raise UserError(f"{what} is {value}, expected a finite number above 0")
    return number


def checked_entry_weights(weights: Tensor | None, what: str) -> Tensor | None:
    """Shared by all penalties: check that the penalty weights of entries are finite and at least 0.

    Returns the weights in float64."""
    if weights is None:
        return None
    weights = torch.as_tensor(weights, dtype=torch.float64).detach().clone()
    wrong = ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise UserError(f"{what} at {where} is {weights[tuple(where)]}, expected a finite number of at least 0")
    return weights
