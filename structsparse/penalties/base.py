"""`Penalty`, the interface of all sparsity-inducing penalties: value, proximal operator (prox), optimality gap,
critical strength.

A penalty does not see the data and adds nothing to a gradient: its `prox_` is applied after the optimizer's step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups import Cover, Forest, Partition
from structsparse.groups.layouts import TableLayout
from structsparse.prox import Choose, Steps


class Dual(NamedTuple):
    """What a penalty contributes to a dual point: the share of a gradient that the penalty can balance, from 0 to 1,
    and the penalty's convex conjugate at that share."""

    share: float
    conjugate: float


class Separable(NamedTuple):
    """A penalty written entry by entry as cut * |W_i| + pull_i / 2 * (W_i - centre_i)^2; `pull` and `centre` broadcast
    to W."""

    cut: float
    pull: Tensor
    centre: Tensor


class RowParts(NamedTuple):
    """A penalty of a table W written as sum_g reach_g ||W_g|| + cut * |W|_1 + 1/2 sum_j squares_j ||W_j||^2, over
    groups g of rows and rows j."""

    cut: float
    squares: Tensor  # float64 [rows], the coefficients squares_j
    cover: Cover | None
    reach: Tensor  # float64 [groups], the coefficients reach_g


class Penalty(nn.Module, ABC):
    """The interface of all penalties: strength * Omega(W) for one parameter W.

    A new penalty defines `value`, `prox_`, `gap` and `critical`. In `takes` it lists the group classes that it accepts;
    `groups` is None if Omega is a sum over entries. All other members have defaults that are correct for any penalty:
    None where nothing can be proved, an error where nothing is known.

    `strength` is a float64 scalar tensor that is saved with the module; assign a number to set it."""

    # group classes that the penalty accepts: None, Partition, Forest, Cover
    takes: ClassVar[tuple[type | None, ...]] = (None,)
    convex = True
    is_null = False  # whether the penalty is zero everywhere, so that there is nothing to apply or to prove
    discrete = False  # whether weights may take a few values only; then the gradient at zero proves nothing
    binds_all = False  # whether one penalty may apply to all parameters of a model
    reweightable = False  # whether `Reweighting` may change the weights of the groups according to their `sizes`
    shared = False  # whether one budget of groups counts all `families` together
    learn = False  # whether the values of a discrete penalty are learnt, see `discrete.learn`
    ridge = 0.0  # coefficient of an additional ridge / 2 * ||W||^2, see `Ridged`
    iterated = False  # whether the prox with a step per entry is computed iteratively, up to `accuracy`
    accuracy = 0.0  # relative error of the value allowed to an iterative prox; 0: only rounding errors

    def __init__(self, strength: float, groups: Partition | Forest | Cover | None = None):
        super().__init__()
        self.groups = groups
        self.register_buffer("_strength", torch.zeros((), dtype=torch.float64))
        self.strength = strength

    @property
    def strength(self) -> Tensor:
        """The strength of the penalty: a float64 scalar tensor."""
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        self._strength.fill_(checked(value, f"the strength of {type(self).__name__}"))

    # --- what every penalty defines

    @abstractmethod
    def value(self, W: Tensor) -> Tensor:
        """The value of the penalty: strength * Omega(W), a scalar."""

    @abstractmethod
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The proximal operator, in place: W <- argmin_V  value(V) + 1/2 sum (V - W)^2 / steps. `steps` is one number,
        or one per entry."""

    @abstractmethod
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The optimality gap of W: the distance of -grad from the subdifferential of the penalty at W.

        It has one number per group, or per row of W if there are no groups. W is optimal if all are zero, apart from
        entries in no group."""

    @abstractmethod
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The critical strength: the smallest strength at which zero is optimal for all penalised entries; None if
        there is none."""

    # --- selection of entries and groups

    def survivors(self, W: Tensor) -> Tensor:
        """Mask of the entries that the penalty has selected, by default the nonzero ones: bool, the shape of W."""
        return W != 0

    @property
    def selects_nothing(self) -> bool:
        """Whether the penalty is smooth and has a `gradient`, so that no strength makes an entry zero."""
        return False

    def gradient(self, W: Tensor) -> Tensor:
        """The gradient of a smooth penalty with respect to W."""
        raise NotImplementedError(f"{type(self).__name__} is not smooth")

    def entering(self, grad_at_zero: Tensor) -> Tensor | None:
        """The strength below which each group alone would become nonzero: float64 [groups]; None if there is no such
        strength."""
        return None

    def sizes(self, W: Tensor) -> Tensor:
        """The size of each group as the penalty measures it, such as its norm: float64 [groups]."""
        raise NotImplementedError(f"{type(self).__name__} has no groups with a size")

    @property
    def families(self) -> list[int]:
        """The number of groups in each family of disjoint groups that a budget of groups counts; an empty list: no
        budget is possible."""
        return []

    def cut_(self, W: Tensor, steps: Steps, choose: Choose) -> None:
        """Apply the prox, where choose(k, critical strengths of the groups in family k) gives the strength for family
        k."""
        raise NotImplementedError(f"{type(self).__name__} has no families of disjoint groups")

    # --- under the constraint W >= 0

    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox under the additional constraint V >= 0.

        The default is the prox of the positive part of W. It is correct if the value never falls as an entry moves away
        from zero."""
        return self.prox_(positive_(W), steps)

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The optimality gap under the constraint W >= 0: at a zero entry only a negative gradient counts."""
        return self.gap(W, torch.where(W > 0, grad, grad.clamp(max=0)))

    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The critical strength under the constraint W >= 0."""
        return self.critical(grad_at_zero.clamp(max=0))

    # --- certificates of optimality

    @torch.no_grad()
    def held(self, W: Tensor) -> Tensor | None:
        """Mask of the penalised entries, which are those that the prox with a long step makes zero: bool, the shape of
        W.

        None if this proves nothing, because no strength is critical or the penalty is not convex."""
        strength, ones = float(self.strength), torch.ones_like(W, dtype=torch.float64)
        critical = self.critical(-ones) if self.convex and strength > 0 else None
        return None if critical is None else self.prox_(ones, 1e6 * (1.0 + float(critical)) / strength) == 0

    @torch.no_grad()
    def conjugate(self, gradient: Tensor) -> Dual | None:
        """The dual of the penalty at a gradient: the share that the penalty can balance and its convex conjugate there;
        None: unknown.

        A norm balances gradients within its dual ball, where its conjugate is zero."""
        return self._scaled_dual(self.critical(gradient))

    @torch.no_grad()
    def nonnegative_conjugate(self, gradient: Tensor) -> Dual | None:
        """The dual of the penalty at a gradient, see `conjugate`, under the constraint W >= 0."""
        return self._scaled_dual(self.nonnegative_critical(gradient))

    def _scaled_dual(self, critical: Tensor | None) -> Dual | None:
        """The dual of a norm, from the critical strength of a gradient; None if there is no critical strength."""
        if critical is None:
            return None
        return Dual(min(1.0, float(self.strength / critical)) if critical > 0 else 1.0, 0.0)

    def takes_metric(self, W: Tensor, curvature: Tensor) -> bool:
        """Whether the prox can be computed in a diagonal metric; other penalties refuse a step per entry."""
        try:
            self.prox_(torch.zeros_like(W), curvature.reciprocal())
        except UserError:
            return False
        return True

    # --- simple forms that solvers use directly

    @property
    def by_entry(self) -> bool:
        """Whether the penalty is a sum over entries of one function, so that rows may be removed from the table."""
        return False

    def cut_and_ridge(self) -> tuple[float, float] | None:
        """The coefficients (cut, ridge) if the penalty is the sum over entries of cut * |W_i| + ridge / 2 * W_i^2; else
        None."""
        return None

    def separable(self) -> Separable | None:
        """The penalty entry by entry, as an absolute value plus a parabola; None if it has no such form."""
        parts = self.cut_and_ridge()
        return parts and Separable(parts[0], torch.tensor(parts[1], dtype=torch.float64), torch.zeros(()))

    def row_parts(self, rows: int) -> RowParts | None:
        """The penalty of a table with this number of rows as group norms, l1 and weighted squares; None if it has no
        such form."""
        parts = self.cut_and_ridge()
        nothing = torch.zeros(0, dtype=torch.float64)
        return parts and RowParts(parts[0], torch.full((rows,), parts[1], dtype=torch.float64), None, nothing)

    def without_groups(self) -> Penalty | None:
        """The penalty without its group norms; None if it has no groups or consists of nothing else."""
        return None

    # --- information from training

    def fit(self, layout: TableLayout) -> None:
        """Read what the penalty needs from the layout of its parameter's rows, such as the frequency of each word."""

    def for_chains(self, lengths: Tensor) -> None:
        """Let each entry count as `lengths` equal weights, which collapsing has merged into one; an error if the
        penalty cannot do so."""
        raise UserError(
            f"{type(self).__name__} does not count the weights that a collapsed one stands for; "
            "set model.collapse=false"
        )

    @classmethod
    def at_start(cls, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor]) -> None:
        """Prepare the penalties of one term, on several parameters, from the weights at the start of training."""

    @classmethod
    def at_end(cls, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor]) -> None:
        """Complete the penalties of one term from the weights at the end of training."""

    def extra_repr(self) -> str:
        return f"strength={float(self.strength):g}"


def past_signs(grad: Tensor, W: Tensor, cut: Tensor) -> Tensor:
    """The subgradient grad + cut * sign(W) of smallest size, entry by entry; the sign of zero may be any number from -1
    to 1."""
    return torch.where(W != 0, grad + cut * W.sign(), grad - torch.clamp(grad, -cut, cut))


@torch.no_grad()
def residual(prox_: Callable[[Tensor, Steps], Tensor], W: Tensor, grad: Tensor) -> Tensor:
    """The proximal gradient residual W - prox(W - grad) with a step of 1: zero exactly where W is stationary."""
    return W - prox_(W - grad, 1.0)


@torch.no_grad()
def positive_(W: Tensor) -> Tensor:
    """The positive part, in place: W <- max(W, 0), without negative zeros."""
    return W.clamp_(min=0).add_(0.0)


def row_norms(X: Tensor) -> Tensor:
    """The Euclidean norm of each row of X; the absolute values if X has one dimension."""
    return torch.linalg.vector_norm(X.flatten(1), dim=1) if X.dim() > 1 else X.abs()


def checked(value: float, what: str, most: float = math.inf) -> float:
    """The value as a float, checked to be a finite number from 0 to `most`; `what` names it in the error message."""
    expected = "a finite number of at least 0" if most == math.inf else f"a number from 0 to {most:g}"
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is {value!r}, expected {expected}") from error
    if not (0 <= number <= most and math.isfinite(number)):
        raise UserError(f"{what} is {value}, expected {expected}")
    return number


def checked_partition(groups: Partition, name: str) -> Partition:
    """The groups, checked to be disjoint; `name` is that of the penalty, for the error message."""
    if not isinstance(groups, Partition):
        raise UserError(
            f"{name} takes disjoint groups (a Partition), got a {type(groups).__name__}; "
            "for a Forest choose reg=tree_l2 or tree_linf, for a Cover reg=overlap"
        )
    return groups


def checked_positive(value: float, what: str) -> float:
    """The value as a float, checked to be a finite number above 0."""
    number = checked(value, what)
    if number == 0:
        raise UserError(f"{what} is {value}, expected a finite number above 0")
    return number


def checked_entry_weights(weights: Tensor | None, what: str) -> Tensor | None:
    """The penalty weights of entries in float64, each checked to be a finite number of at least 0."""
    if weights is None:
        return None
    weights = torch.as_tensor(weights, dtype=torch.float64).detach().clone()
    wrong = ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise UserError(f"{what} at {where} is {weights[tuple(where)]}, expected a finite number of at least 0")
    return weights
