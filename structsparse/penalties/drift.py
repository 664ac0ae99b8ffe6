"""The drift penalty: a learned Gaussian prior on weights that drift in time, a penalty with memory.

Its value is a quadratic form with the expected precision of the prior. Training alternates: a solver fits the weights
under the present precision, then `outer_update` learns the precision from them (expectation maximisation, EM)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups.layouts import TableLayout
from structsparse.penalties.base import Penalty, checked
from structsparse.penalties.drift_priors import Learnt, Moments, prior_named
from structsparse.prox import Steps, tridiagonal
from structsparse.prox.tridiagonal import Chain

MODES, SHARES = ("eb", "map"), ("none", "effect", "all")
NOISE_ITEMS = 5.0  # the first guess of the noise variance counts as much as so many items


class PeriodLayout(TableLayout):
    """Layout of a table of weights [periods, features] that drift in time."""

    kind = "periods"

    def __init__(self, periods: int, effect: Tensor, scale: Tensor, noise: float, tied: Tensor) -> None:
        self.periods = periods
        self.effect = effect  # int64 [features], the effect that a feature belongs to
        self.scale = scale  # float64 [features], a first guess of the variance of each feature's weights
        self.noise = noise  # a first guess of the dispersion of the likelihood, such as the variance of noise
        self.tied = tied  # bool [features], features whose weights are the same in all periods


class Likelihood(NamedTuple):
    """What a drift penalty needs to know of the likelihood at the present weights."""

    curvature: Tensor  # [periods, features], diagonal of the Hessian of the summed loss
    loss: Tensor  # the summed loss, without its dispersion
    pearson: Tensor | None  # sum of squared residuals over their variances for dispersion 1; None: dispersion is fixed
    items: int  # number of residuals
    least: float = 0.0  # the smallest dispersion that makes sense


class Drift(Penalty):
    """Drift penalty: strength * noise / 2 * sum_i w_i' P_i w_i, where w_i is the chain of feature i over all periods.

    P_i is the expected precision under a prior (bridge, ar1 or rw) whose scale and shape are integrated. `noise` is the
    dispersion of the likelihood, such as the variance of Gaussian noise; strength is 1 / items for a mean loss, so that
    the objective is noise / items times minus the log posterior.

    - mode: eb integrates the weights as well, as a Gaussian chain for each feature; map takes them as they are
    - share: which features share scale and shape: none, effect (all of an effect), all
    - weight, floor: parameters of the inverse gamma density of scales; both 0: 1 / scale, under which the best weights
      are zero in mode map
    - tolerance: training ends once updates of the memory raise the objective by at most so much per residual"""

    tables = ("periods",)
    remembers = True

    def __init__(
        self,
        strength: float,
        prior: str = "ar1",
        mode: str = "eb",
        share: str = "none",
        weight: float = 1e-3,
        floor: float = 1e-6,
        tolerance: float = 1e-5,
    ) -> None:
        super().__init__(strength)
        if mode not in MODES:
            raise UserError(f"reg.mode is {mode!r}, expected one of {', '.join(MODES)}")
        if share not in SHARES:
            raise UserError(f"reg.share is {share!r}, expected one of {', '.join(SHARES)}")
        self.mode, self.share, self.tolerance = mode, share, checked(tolerance, "reg.tolerance")
        self.prior = prior_named(prior, checked(weight, "reg.weight"), checked(floor, "reg.floor"))
        self.groups_of = 0

    def fit(self, layout: PeriodLayout) -> None:
        """Drift penalty: make the memory, with a first precision from the layout's guesses."""
        scale = layout.scale
        group = {"none": torch.arange(len(scale)), "effect": layout.effect, "all": torch.zeros_like(layout.effect)}
        self.register_buffer("group", group[self.share])
        self.groups_of = int(self.group.max()) + 1 if len(scale) else 0
        self.register_buffer("same", layout.tied)
        self.any_tied = bool(layout.tied.any())
        free = self.prior.start(scale, layout.periods)
        for name, part, one in zip(Chain._fields, free, self._level(1 / scale, layout.periods), strict=True):
            self.register_buffer(name, torch.where(layout.tied, one, part))
        self.register_buffer("shape", torch.zeros_like(scale))
        self.register_buffer("noise", scale.new_tensor(layout.noise))
        self.register_buffer("guess", scale.new_tensor(layout.noise))

    @staticmethod
    def _level(precision: Tensor, periods: int) -> Chain:
        """Drift penalty: the quadratic form of tied weights, whose chain has the same number in all periods."""
        part = precision / periods
        return Chain(part, part.clone(), part.clone(), torch.zeros_like(part))

    @property
    def tied(self) -> Tensor | None:
        """Drift penalty: mask of the features whose weights are the same in all periods; None: there are none."""
        return self.same if self.any_tied else None

    @property
    def precision(self) -> Chain:
        """Drift penalty: the expected precision of each feature's chain."""
        return Chain(self.first, self.middle, self.last, self.off)

    def chains(self, W: Tensor) -> Chain:
        """Drift penalty: the penalty as a tridiagonal quadratic form of each column, strength and noise included."""
        return self.precision.scaled(self.strength * self.noise)

    def value(self, W: Tensor) -> Tensor:
        """Drift penalty: the value, half the quadratic form."""
        if torch.is_grad_enabled() and W.requires_grad:
            return (W * self._product(W)).sum() / 2
        return (W.detach() * self.gradient(W)).sum() / 2

    def _product(self, W: Tensor) -> Tensor:
        """Drift penalty: the product of the quadratic form and the weights, differentiable by the weights."""
        first, middle, last, off = self.chains(W)
        rows = [first, *[middle] * (len(W) - 2), last]
        product = torch.stack(rows) * W
        above = torch.cat([off * W[1:], torch.zeros_like(W[:1])])
        return product + above + torch.cat([torch.zeros_like(W[:1]), off * W[:-1]])

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Drift penalty: the prox, in place: one tridiagonal system for each feature, whose solution is the change."""
        pull = 1 / torch.as_tensor(steps, dtype=W.dtype, device=W.device).expand_as(W)
        chain, slopes = self.chains(W), self.gradient(W)
        pivots = tridiagonal.factor(pull + chain.diagonal(len(W)), chain.off)
        if self.any_tied:
            level = (pull * W).sum(dim=0) / (pull.sum(dim=0) + len(W) * chain.middle)
            return W.copy_(torch.where(self.same, level, W - tridiagonal.solve_(pivots, chain.off, slopes)))
        return W.sub_(tridiagonal.solve_(pivots, chain.off, slopes))

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Drift penalty: for each period, the norm of the gradient of loss plus penalty; tied weights count as one."""
        total = grad + self.gradient(W)
        return torch.where(self.same, total.mean(dim=0), total).double().norm(dim=1)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Drift penalty: critical strength, always None: the penalty is smooth."""
        return None

    @property
    def selects_nothing(self) -> bool:
        """Drift penalty: whether the penalty is smooth; it is, and evidence makes weights zero between stages."""
        return True

    @torch.no_grad()
    def gradient(self, W: Tensor) -> Tensor:
        """Drift penalty: the gradient with respect to W."""
        return self.chains(W).times(W.detach())

    # --- memory

    @torch.no_grad()
    def outer_update(self, W: Tensor, likelihood: Likelihood) -> Update:
        """Drift penalty: learn precision and noise from the present weights, an iteration of EM.

        The objective is computed after scale and shape are updated. In mode map, it is the log posterior of the
        weights, in mode eb a lower bound of the log evidence, in which the weights are integrated."""
        periods = len(W)
        variances, covariances, entropy = self.spread(likelihood.curvature)
        moments = Moments.of(W, variances, covariances)
        learnt = self._learn(moments, periods)
        traces = torch.dot(likelihood.curvature.view(-1), variances.view(-1)) if self.mode == "eb" else W.new_zeros(())
        objective = learnt.evidence.sum() + entropy - (likelihood.loss + traces / 2) / self.noise
        if likelihood.pearson is not None:
            objective = objective - self._noise_terms(likelihood.items)
        before = self.noise.clone()
        for name, part in zip(Chain._fields, learnt.precision, strict=True):
            self.get_buffer(name).copy_(part)
        self.shape.copy_(learnt.shape)
        if likelihood.pearson is not None:
            squares = likelihood.pearson + traces + NOISE_ITEMS * self.guess
            self.noise.copy_((squares / (likelihood.items + NOISE_ITEMS)).clamp(min=likelihood.least))
        return Update(objective, before, self.shape.mean())

    def _noise_terms(self, items: int) -> Tensor:
        """Drift penalty: terms of minus the log posterior that depend on the noise variance, but not on residuals."""
        return (items + NOISE_ITEMS) / 2 * torch.log(2 * math.pi * self.noise) + NOISE_ITEMS * self.guess / (
            2 * self.noise
        )

    def spread(self, curvature: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Drift penalty: posterior variances [periods, features], covariances of neighbours, and the entropy.

        `curvature` is the diagonal of the Hessian of the summed loss. In mode map there are none."""
        if self.mode == "map":
            return None, None, curvature.new_zeros(())
        return self.posterior(curvature)

    def posterior(self, curvature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Drift penalty: variances, covariances of neighbours and entropy of each feature's Gaussian posterior."""
        periods = len(curvature)
        diagonal = self.precision.diagonal(periods).addcdiv_(curvature, self.noise)
        total = diagonal.sum(dim=0) if self.any_tied else None
        pivots = tridiagonal.factor_(diagonal, self.off)
        variances, covariances = tridiagonal.inverse(pivots, self.off)
        degrees, logs = torch.full_like(self.first, periods), pivots.log().sum(dim=0)
        if self.any_tied:
            variances, covariances = (torch.where(self.same, 1 / total, part) for part in (variances, covariances))
            degrees, logs = torch.where(self.same, 1.0, degrees), torch.where(self.same, total.log(), logs)
        return variances, covariances, (degrees * (1 + math.log(2 * math.pi)) - logs).sum() / 2

    def _learn(self, moments: Moments, periods: int) -> Learnt:
        """Drift penalty: the expected precision, shape and evidence; features of a group share them.

        Tied features have a common level variance."""
        if not self.any_tied:
            return self._learn_free(moments, periods)
        free = ~self.same
        learnt = self._learn_free(Moments(*(part * free for part in moments)), periods)
        chains = self.same.sum().to(moments.first)
        squares = (moments.first * self.same).sum()
        rate = self.prior._rate(squares, chains)
        level = self._level(rate.expand_as(self.first), periods)
        chain = Chain(*(torch.where(free, a, b) for a, b in zip(learnt.precision, level, strict=True)))
        one = self.prior._scale_integral(squares, chains)
        return Learnt(chain, torch.where(free, learnt.shape, 0.0), torch.cat([learnt.evidence, one[None]]))

    def _learn_free(self, moments: Moments, periods: int) -> Learnt:
        """Drift penalty: what groups of features learn, without those whose features are all tied."""
        if self.share != "none":
            moments = moments.summed(self.group, self.groups_of)
        learnt = self.prior.learn(moments, periods)
        evidence = torch.where(moments.chains > 0, learnt.evidence, 0.0)
        precision = Chain(*(part[self.group] for part in learnt.precision))
        return Learnt(precision, learnt.shape[self.group], evidence)


class Update(NamedTuple):
    """The record of an outer update of a drift penalty."""

    objective: Tensor  # log posterior (map) or a lower bound of the log evidence (eb), up to constants of the data
    noise: Tensor  # dispersion under which the weights were fitted
    shape: Tensor  # mean expected shape over features
