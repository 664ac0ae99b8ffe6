"""Discrete penalties (few distinct weight values), and an ADMM penalty that pulls weights to a discrete copy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Penalty, Separable, checked, checked_positive, past_signs, residual, row_norms
from structsparse.prox import Steps
from structsparse.prox import few_values as levels

KMEANS, TEMPLATE = "kmeans", "template"


class Discrete(Penalty):
    """Discrete penalty: each weight must be one of a few allowed values, zero included.

    The value is strength * sum |W_i| if all weights W_i are allowed values, else infinity. The option `values` gives
    the allowed values:
    - "template": 0 and +-(eta * kappa^x + delta) for the integers x = 0, ..., levels - 1 (Suzuki and Nagata, 2013).
    - "kmeans": for each sign, `levels` cluster centres of the initial weights.
    - A list: the listed values. If none is negative, their negatives are added.

    The options `eta`, `kappa` and `delta` are the constants of the template. By default `kappa` is 4 for up to four
    levels, else 2, and `delta` is eta / 2. With `learn`, training updates the values, see the function `learn`."""

    convex = False
    discrete = True
    binds_all = True  # all parameters of a model may share one set of allowed values

    def __init__(
        self,
        strength: float = 0.0,
        levels: int = 4,
        values: str | Sequence[float] = TEMPLATE,
        eta: float = 0.1,
        kappa: float | None = None,
        delta: float | None = None,
        learn: bool = False,
    ) -> None:
        super().__init__(strength)
        if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
            raise UserError(f"reg.levels is {levels!r}, expected a number of positive values, at least 1")
        self.levels, self.learn = levels, learn
        kappa = (4.0 if levels < 5 else 2.0) if kappa is None else kappa
        eta = checked_positive(eta, "reg.eta")
        shape = checked_positive(kappa, "reg.kappa"), checked(eta / 2 if delta is None else delta, "reg.delta")
        self.register_buffer("values", _values(values, levels, eta, *shape))

    def settle(self, values: Tensor) -> None:
        """Set the allowed values of the discrete penalty, such as cluster centres of weights."""
        self.values = values

    def value(self, W: Tensor) -> Tensor:
        """Value of the discrete penalty: strength * sum |W_i| if all weights have allowed values, else infinity."""
        if len(self.values) == 0 and not W.any():
            return W.new_zeros((), dtype=torch.float64)  # zero is allowed even before k-means has found the values
        allowed = (levels.nearest_(W.detach().clone(), self._known()) == W).all()
        return torch.where(allowed, self.strength * power_sum(W, 1), math.inf)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Prox of the discrete penalty, in place: soft thresholding, then rounding to the nearest allowed value.

        The composition is exact because zero is an allowed value."""
        known = self._known()
        return levels.nearest_(prox.soft_threshold_(W, self.strength, steps), known)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Norm of the proximal gradient residual of the discrete penalty in each row of W."""
        return row_norms(residual(self.prox_, W, grad))

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Critical strength of the discrete penalty: always None, as zero is a local optimum at any strength."""
        return None

    @classmethod
    @torch.no_grad()
    def at_start(cls, penalties: Mapping[str, Discrete], weights: Mapping[str, Tensor]) -> None:
        """Set the allowed values of discrete penalties with the option values="kmeans" at the start of training.

        The allowed values are cluster centres of the nonzero weights of all parameters together."""
        waiting = {name: penalty for name, penalty in penalties.items() if len(penalty.values) == 0}
        if not waiting:
            return
        living = torch.cat([weights[name].detach()[weights[name] != 0].flatten() for name in waiting])
        if len(living) == 0:
            next(iter(waiting.values()))._known()  # raises UserError: k-means has no nonzero weights
        for name, penalty in waiting.items():
            penalty.settle(levels.centres(living, penalty.levels).to(weights[name].device))

    @classmethod
    @torch.no_grad()
    def at_end(cls, penalties: Mapping[str, Discrete], weights: Mapping[str, Tensor]) -> None:
        """Store the learnt values of discrete penalties at the end of training: the distinct final weights."""
        learning = {name: penalty for name, penalty in penalties.items() if penalty.learn}
        if not learning:
            return
        entries = torch.cat([weights[name].detach().flatten().double() for name in learning])
        values = torch.cat([entries, entries.new_zeros(1)]).unique()
        for penalty in learning.values():
            penalty.settle(values)

    def _known(self) -> Tensor:
        """Allowed values of the discrete penalty; raises UserError if k-means has not computed them yet."""
        if len(self.values) == 0:
            raise UserError(
                "reg.values=kmeans takes its values from the weights of the previous stage, which are all zero; "
                "choose recipe=discrete, or reg.values=template"
            )
        return self.values


def _values(values: str | Sequence[float], levels_: int, eta: float, kappa: float, delta: float) -> Tensor:
    """Allowed values of a discrete penalty from the option `values`: an ascending float64 vector, empty for k-means."""
    if values == KMEANS:
        return torch.zeros(0, dtype=torch.float64)
    if values == TEMPLATE:
        return levels.template(levels_, eta, kappa, delta)
    listed = [values] if isinstance(values, str) or not isinstance(values, Sequence) else list(values)
    numbers = [v for v in listed if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    if not any(numbers) or len(numbers) < len(listed):
        raise UserError(f"reg.values is {values!r}, expected template, kmeans or a list of numbers, one not zero")
    if min(numbers) >= 0:
        return levels.both_signs(v for v in numbers if v > 0)
    return torch.tensor([*numbers, 0.0], dtype=torch.float64).unique()


@torch.no_grad()
def learn(copies: Mapping[str, Copied], weights: Mapping[str, Tensor]) -> None:
    """Update the learnt values of discrete penalties, one set for all parameters, in an outer iteration of ADMM.

    Each allowed value moves to a weighted mean of W + A over the entries that are nearest to the value. W are the model
    weights, and A the scaled dual variables of ADMM. An entry counts with the factor `pull`, see `Copied`."""
    learning = {name: copy for name, copy in copies.items() if copy.penalty.learn}
    if learning:
        points = [weights[name] + copy.dual for name, copy in learning.items()]
        first = next(iter(learning.values())).penalty
        values = levels.moved_to_means(first._known(), points, [copy.pull for copy in learning.values()])
        for copy in learning.values():
            copy.penalty.settle(values)


class Moved(NamedTuple):
    """Changes of discrete weights in one outer iteration of ADMM.

    ADMM keeps a copy of the weights, see `Copied`. The tensors are float64 scalars on the device of the weights."""

    entries: int  # number of weights
    apart: Tensor  # squared distance between the weights and their copy
    change: Tensor  # squared norm of the change of the copy in this iteration
    flips: Tensor  # number of entries of the copy that changed in this iteration
    living: Tensor  # number of nonzero entries of the copy


class Copied(Penalty):
    """ADMM penalty that pulls weights W towards a copy U, on which a discrete penalty (or any other) acts.

    The value is lasso * sum |W_i| + 1/2 sum pull_i (W_i - (U_i - A_i))^2, where A are scaled dual variables.

    ADMM (alternating direction method of multipliers) minimises loss(W) + lasso * sum |W_i| + penalty(U) under the
    constraint W = U. A solver trains W with the ADMM penalty. Then `outer_update` computes

        U <- prox of `penalty` at W + A, with steps 1 / pull,
        A <- A + rate * (W - U),
        pull <- growth * pull, A <- A / growth.

    `pull` broadcasts to the entries of W."""

    def __init__(
        self, penalty: Penalty, W: Tensor, pull: Tensor, lasso: float = 0.0, rate: float = 1.0, growth: float = 1.0
    ) -> None:
        super().__init__(lasso)
        self.penalty, self.rate, self.growth = penalty, rate, growth
        start = penalty.prox_(W.detach().clone(), 1 / pull)
        self.register_buffer("pull", pull.to(W))
        self.register_buffer("copy", start)
        self.register_buffer("dual", torch.zeros_like(start))
        self.register_buffer("centre", start.clone())  # the point towards which the weights are pulled: copy - dual

    @property
    def lasso(self) -> float:
        """ADMM penalty for discrete weights: the coefficient of sum |W_i|, a float."""
        return float(self.strength)

    def value(self, W: Tensor) -> Tensor:
        """ADMM penalty for discrete weights: the value, l1 norm plus quadratic pull towards the centre, a scalar.

        The centre is the copy of the weights minus the scaled dual variables."""
        apart = W - self.centre
        pulled = (apart * apart * self.pull).sum(dtype=torch.float64) / 2
        return pulled + self.strength * power_sum(W, 1)

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """ADMM penalty for discrete weights: the prox, in place.

        First, a weighted mean of W and the centre replaces W. Then soft thresholding follows. The centre is the copy of
        the weights minus the scaled dual variables."""
        steps = torch.as_tensor(steps, dtype=W.dtype, device=W.device)
        share = 1 / (1 + steps * self.pull)  # share of W in the weighted mean of W and the centre
        W.mul_(share).add_((1 - share) * self.centre)
        return prox.soft_threshold_(W, self.strength, 1 / (1 / steps + self.pull))

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """ADMM penalty for discrete weights: norm of the smallest subgradient of loss plus penalty in each row."""
        return row_norms(past_signs(self.pulled(W, grad), W, self.strength.to(W.dtype)))

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """ADMM penalty for discrete weights: critical strength, always None, as W is pulled to a centre, not to 0."""
        return None

    def pulled(self, W: Tensor, grad: Tensor) -> Tensor:
        """ADMM penalty for discrete weights: gradient of loss plus quadratic pull, with respect to the weights W.

        `grad` is the gradient of the loss alone."""
        return grad + self.pull * (W - self.centre)

    def separable(self) -> Separable:
        """ADMM penalty for discrete weights, as an absolute value plus a parabola for each entry."""
        return Separable(self.lasso, self.pull, self.centre)

    @torch.no_grad()
    def outer_update(self, W: Tensor) -> Moved:
        """ADMM penalty for discrete weights: an outer iteration, which updates copy, dual variables and `pull`.

        `W` holds the current weights. Returns the sizes of the changes."""
        before = self.copy.clone()
        self.penalty.prox_(torch.add(W, self.dual, out=self.copy), 1 / self.pull)
        apart, change = W - self.copy, self.copy - before
        self.dual.add_(apart, alpha=self.rate).div_(self.growth)
        self.pull.mul_(self.growth)
        torch.sub(self.copy, self.dual, out=self.centre)
        squares = ((x * x).sum(dtype=torch.float64) for x in (apart, change))
        return Moved(W.numel(), *squares, (change != 0).sum().double(), (self.copy != 0).sum().double())
