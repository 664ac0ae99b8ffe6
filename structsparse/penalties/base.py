"""The interface of all penalties, and the checks that they share."""

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
    """The share of a gradient that a penalty can balance, from 0 to 1, and the conjugate of its value there."""

    share: float
    conjugate: float


class Separable(NamedTuple):
    """A penalty as cut * |W_i| + pull_i / 2 * (W_i - centre_i)^2, summed over entries; pull and centre broadcast."""

    cut: float
    pull: Tensor
    centre: Tensor


class RowParts(NamedTuple):
    """A penalty as sum_g reach_g ||W_g|| + cut * |W|_1 + 1/2 sum_j squares_j ||W_j||^2, over groups g and rows j."""

    cut: float
    squares: Tensor  # float64 [rows]
    cover: Cover | None
    reach: Tensor  # float64 [groups]


class Penalty(nn.Module, ABC):
    """Interface of all penalties: strength * Omega(W) for one parameter W.

    A new penalty defines `value`, `prox_`, `gap` and `critical`, and declares in `takes` the forms of groups that it is
    a sum over; `groups` is None where Omega is a sum over entries. All other members have a default that is right for
    any penalty, if sometimes not the best answer: None where nothing can be proved, a refusal where nothing is known.

    `strength` is a float64 scalar tensor, saved with the module; assign a number to set it.
    """

    takes: ClassVar[tuple[type | None, ...]] = (None,)  # forms of groups: None, Partition, Forest, Cover
    convex = True
    is_null = False  # whether it is zero everywhere, so that there is nothing to apply or to prove
    discrete = False  # whether weights take a few values only; then the gradient at zero says nothing
    binds_all = False  # whether it may be on all parameters of a model
    reweightable = False  # whether its groups may be weighed anew by their `sizes`, see `Reweighting`
    shared = False  # whether a budget is one of all `families` together
    learn = False  # whether values are learnt beside copies, see `discrete.learn`
    ridge = 0.0  # of squares beside the penalty, see `Ridged`
    iterated = False  # whether a prox with a step per entry is iterated, up to `accuracy`
    accuracy = 0.0  # share of its value by which such a prox may err; 0: as little as rounding allows

    def __init__(self, strength: float, groups: Partition | Forest | Cover | None = None):
        super().__init__()
        self.groups = groups
        self.register_buffer("_strength", torch.zeros((), dtype=torch.float64))
        self.strength = strength

    @property
    def strength(self) -> Tensor:
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        self._strength.fill_(checked(value, f"the strength of {type(self).__name__}"))

    # --- what a penalty defines

    @abstractmethod
    def value(self, W: Tensor) -> Tensor:
        """strength * Omega(W), a scalar."""

    @abstractmethod
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """W <- argmin_V  value(V) + 1/2 sum (V - W)^2 / steps; steps is a number or one per entry."""

    @abstractmethod
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Distance of -grad from the subdifferential of the value at W: one number per group, or per row of W where
        there are no groups. Zero everywhere is optimality (free entries aside)."""

    @abstractmethod
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The smallest strength at which zero is optimal for all penalised entries; None if no strength is."""

    # --- selection

    def survivors(self, W: Tensor) -> Tensor:
        """Entries that may live on once the penalty has selected: those that are not zero. Bool, the shape of W."""
        return W != 0

    @property
    def selects_nothing(self) -> bool:
        """Whether the penalty is smooth, with a `gradient`, so that no strength makes an entry zero."""
        return False

    def gradient(self, W: Tensor) -> Tensor:
        """The gradient of a smooth penalty."""
        raise NotImplementedError(f"{type(self).__name__} is not smooth")

    def entering(self, grad_at_zero: Tensor) -> Tensor | None:
        """The strength at which each group alone would come to life: [groups], float64; None if there is none."""
        return None

    def sizes(self, W: Tensor) -> Tensor:
        """The size of each group, as the penalty measures it: [groups], float64."""
        raise NotImplementedError(f"{type(self).__name__} has no groups with a size")

    @property
    def families(self) -> list[int]:
        """Sizes of the families of disjoint groups that a budget counts, each with a strength of its own; none: no
        budget."""
        return []

    def cut_(self, W: Tensor, steps: Steps, choose: Choose) -> None:
        """The prox with the strength of each family k from choose(k, strengths at which its groups would die)."""
        raise NotImplementedError(f"{type(self).__name__} has no families of disjoint groups")

    # --- under the constraint W >= 0

    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox with the constraint V >= 0 added. If the value never falls as an entry grows away from zero, in
        either direction, it is the prox of the positive part."""
        return self.prox_(positive_(W), steps)

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The gap under that constraint: a zero held by it is pushed out by a negative gradient only."""
        return self.gap(W, torch.where(W > 0, grad, grad.clamp(max=0)))

    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The critical strength under that constraint."""
        return self.critical(grad_at_zero.clamp(max=0))

    # --- certificates

    @torch.no_grad()
    def held(self, W: Tensor) -> Tensor | None:
        """Entries that bear the penalty: those that a long enough step of its prox makes zero. Bool, the shape of W;
        None where that proves nothing, as no entry does or the penalty is not convex."""
        strength, ones = float(self.strength), torch.ones_like(W, dtype=torch.float64)
        critical = self.critical(-ones) if self.convex and strength > 0 else None
        return None if critical is None else self.prox_(ones, 1e6 * (1.0 + float(critical)) / strength) == 0

    @torch.no_grad()
    def conjugate(self, gradient: Tensor) -> Dual | None:
        """The share of a gradient that the penalty can balance, and the conjugate of its value there; None: nothing is
        known. A norm balances what its dual norm holds, where its conjugate is zero."""
        return self._dual(self.critical(gradient))

    @torch.no_grad()
    def nonnegative_conjugate(self, gradient: Tensor) -> Dual | None:
        """The same under the constraint W >= 0."""
        return self._dual(self.nonnegative_critical(gradient))

    def _dual(self, critical: Tensor | None) -> Dual | None:
        if critical is None:
            return None
        return Dual(min(1.0, float(self.strength / critical)) if critical > 0 else 1.0, 0.0)

    def takes_metric(self, W: Tensor, curvature: Tensor) -> bool:
        """Whether the prox has a form in a diagonal metric; a penalty without one refuses a step per entry."""
        try:
            self.prox_(torch.zeros_like(W), curvature.reciprocal())
        except UserError:
            return False
        return True

    # --- forms that solvers take apart

    @property
    def by_entry(self) -> bool:
        """Whether it is a sum over entries of one and the same function, so that rows may leave the table."""
        return False

    def cut_and_ridge(self) -> tuple[float, float] | None:
        """The penalty as a sum over entries of cut * |W_i| + ridge / 2 * W_i^2; None if it has no such form."""
        return None

    def separable(self) -> Separable | None:
        """The penalty entry by entry, as an absolute value and a parabola; None if it has no such form."""
        parts = self.cut_and_ridge()
        return parts and Separable(parts[0], torch.tensor(parts[1], dtype=torch.float64), torch.zeros(()))

    def row_parts(self, rows: int) -> RowParts | None:
        """The penalty as groups of rows, cut and squares of a table with so many rows; None if it has no such form."""
        parts = self.cut_and_ridge()
        nothing = torch.zeros(0, dtype=torch.float64)
        return parts and RowParts(parts[0], torch.full((rows,), parts[1], dtype=torch.float64), None, nothing)

    def without_groups(self) -> Penalty | None:
        """The rest of a penalty of several parts once its groups bear nothing; None if it has no groups or no rest."""
        return None

    # --- what training tells it

    def fit(self, layout: TableLayout) -> None:
        """Take what the penalty needs of the layout of its parameter's rows, such as how often each occurs."""

    def for_chains(self, lengths: Tensor) -> None:
        """Let each entry stand for a chain of so many equal ones, all of which are penalised; refuse it if unknown."""
        raise UserError(
            f"{type(self).__name__} does not count the weights that a collapsed one stands for; "
            "set model.collapse=false"
        )

    @classmethod
    def at_start(cls, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor]) -> None:
        """Take what the penalties of one term, on several parameters, need of the weights that training starts from."""

    @classmethod
    def at_end(cls, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor]) -> None:
        """Take what the penalties of one term need of the weights that training has ended with."""

    def extra_repr(self) -> str:
        return f"strength={float(self.strength):g}"


def past_signs(grad: Tensor, W: Tensor, cut: Tensor) -> Tensor:
    """The value of grad + cut * sign(W) nearest to zero, entry by entry, where the sign of zero is anything from -1 to
    1."""
    return torch.where(W != 0, grad + cut * W.sign(), grad - torch.clamp(grad, -cut, cut))


@torch.no_grad()
def residual(prox_: Callable[[Tensor, Steps], Tensor], W: Tensor, grad: Tensor) -> Tensor:
    """The change by a proximal gradient step of length 1: zero exactly where W is stationary."""
    return W - prox_(W - grad, 1.0)


@torch.no_grad()
def positive_(W: Tensor) -> Tensor:
    """W <- max(W, 0), with zeros of positive sign."""
    return W.clamp_(min=0).add_(0.0)


def row_norms(X: Tensor) -> Tensor:
    """The Euclidean norm of each row."""
    return torch.linalg.vector_norm(X.flatten(1), dim=1) if X.dim() > 1 else X.abs()


def checked(value: float, what: str, most: float = math.inf) -> float:
    """An option as a float, if it is a finite number from 0 to `most`."""
    expected = "a finite number of at least 0" if most == math.inf else f"a number from 0 to {most:g}"
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is {value!r}, expected {expected}") from error
    if not (0 <= number <= most and math.isfinite(number)):
        raise UserError(f"{what} is {value}, expected {expected}")
    return number


def checked_partition(groups: Partition, name: str) -> Partition:
    """The groups of a penalty, if they are disjoint."""
    if not isinstance(groups, Partition):
        raise UserError(
            f"{name} takes disjoint groups (a Partition), got a {type(groups).__name__}; "
            "for a Forest choose reg=tree_l2 or tree_linf, for a Cover reg=overlap"
        )
    return groups


def checked_positive(value: float, what: str) -> float:
    """An option as a float, if it is a finite number above 0."""
    number = checked(value, what)
    if number == 0:
        raise UserError(f"{what} is {value}, expected a finite number above 0")
    return number


def checked_entry_weights(weights: Tensor | None, what: str) -> Tensor | None:
    """Weights of entries in float64, if each is a finite number of at least 0."""
    if weights is None:
        return None
    weights = torch.as_tensor(weights, dtype=torch.float64).detach().clone()
    wrong = ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise UserError(f"{what} at {where} is {weights[tuple(where)]}, expected a finite number of at least 0")
    return weights
