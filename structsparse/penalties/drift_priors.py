"""Priors of coefficients that drift in time: a chain w_1, ..., w_T per feature, with its own scale and smoothness.

Each prior is Gaussian given its parameters, p(w | scale, shape) = N(0, scale * Q(shape)^-1), with a tridiagonal Q:

- bridge: Q = I + shape * N, where N has ones beside the diagonal and -1/2 < shape <= 0 (Yogatama 2015, chapter 3). It
  pins both ends of the chain to zero.
- ar1: a stationary autoregression w_t = shape * w_(t-1) + noise, with 0 <= shape <= 0.999.
- rw: a random walk. The level w_1 and the increments have scales of their own, and there is no shape.

The scale is integrated in closed form, under the density 1 / scale, or a weak inverse gamma density. The shape is
integrated by Gauss-Legendre quadrature, with so many nodes that the error is below rounding of the result for any T.
Everything depends on a chain only through four sums, see `Moments`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.prox.tridiagonal import Chain

EDGE = 0.5 - 1e-5  # largest absolute shape of a bridge; Q is then positive definite for every number of periods
RATE = 1.0  # of the exponential density of the shape of a bridge
SMOOTHEST = 0.999  # largest shape of an autoregression
CHUNK = 1 << 21  # numbers of a table of nodes and features that are computed at once


class Moments(NamedTuple):
    """Sums over chains, from which the density of a prior follows; each is a tensor [groups of chains].

    With w integrated, these are expected sums. A group has `chains` chains that share scale and shape."""

    first: Tensor  # w_1^2
    last: Tensor  # w_T^2
    squares: Tensor  # sum of all w_t^2
    drifts: Tensor  # sum of all (w_(t+1) - w_t)^2
    chains: Tensor  # number of chains

    @classmethod
    def of(cls, w: Tensor, variances: Tensor | None = None, covariances: Tensor | None = None) -> Moments:
        """Moments of drift: those of each column of `w` [periods, features].

        With variances [periods, features], and covariances of periods that follow each other, they are expectations."""
        ends = [w[t] ** 2 if variances is None else w[t] ** 2 + variances[t] for t in (0, -1)]
        squares, drifts = torch.zeros_like(ends[0]), torch.zeros_like(ends[0])
        size = max(1, CHUNK // max(1, w.shape[1]))
        for begin in range(0, len(w), size):  # some periods at a time, which saves memory
            part, following = w[begin : begin + size], w[begin + 1 : begin + size + 1]
            squares = squares + part.square().sum(dim=0)
            drifts = drifts + (following - part[: len(following)]).square().sum(dim=0)
        if variances is not None:
            total = variances.sum(dim=0)
            squares = squares + total
            drifts = drifts + 2 * (total - covariances.sum(dim=0)) - variances[0] - variances[-1]
        return cls(*ends, squares, drifts, torch.ones_like(squares))

    def summed(self, group: Tensor, groups: int) -> Moments:
        """Moments of drift: sums over the features of each group; `group` has the group of each feature."""
        return Moments(*(part.new_zeros(groups).index_add_(0, group, part) for part in self))


class Learnt(NamedTuple):
    """What a prior learns from moments: for each group of chains, the expected precision Q / scale, and evidence."""

    precision: Chain
    shape: Tensor  # expected shape; for a random walk, the variance of an increment
    evidence: Tensor  # log of the integral of p(scale, shape) exp(E log p(w | scale, shape))


class Prior(ABC):
    """Base class of priors of drift. `weight` and `floor` are the parameters of the inverse gamma density of scales.

    With both zero, the density is 1 / scale, which is improper: its integral over all chains is infinite."""

    name: str

    def __init__(self, weight: float = 0.0, floor: float = 0.0) -> None:
        self.weight, self.floor = weight, floor

    @abstractmethod
    def learn(self, moments: Moments, periods: int) -> Learnt:
        """Prior of drift: integrate scale and shape, for groups of chains of so many periods."""

    @abstractmethod
    def start(self, scale: Tensor, periods: int) -> Chain:
        """Prior of drift: a smooth first precision, under which each w_t has about the variance `scale`."""

    def log_density(self, w: Tensor) -> Tensor:
        """Prior of drift: the exact log density of each column of `w` [periods, features]; differentiable."""
        return self.learn(Moments.of(w), len(w)).evidence

    def _scale_integral(self, sums: Tensor, degrees: Tensor) -> Tensor:
        """Prior of drift: log of the integral over the scale s of p(s) (2 pi s)^(-degrees / 2) exp(-sums / 2 s)."""
        a, b = self.weight, self.floor
        half = degrees / 2
        known = a * math.log(b) - math.lgamma(a) if a > 0 and b > 0 else 0.0
        return torch.lgamma(half + a) - (half + a) * torch.log(sums / 2 + b) - half * math.log(2 * math.pi) + known

    def _rate(self, sums: Tensor, degrees: Tensor) -> Tensor:
        """Prior of drift: the expected value of 1 / scale, given the sums w' Q w and the numbers of their terms."""
        return (degrees + 2 * self.weight) / (sums + 2 * self.floor)


class RandomWalk(Prior):
    """Prior of drift as a random walk: w_1 = level, w_(t+1) = w_t + increment."""

    name = "rw"

    def learn(self, moments: Moments, periods: int) -> Learnt:
        """Random walk prior: both scales are integrated in closed form."""
        steps, drifts = moments.chains * (periods - 1), moments.drifts.clamp(min=1e-300)
        level, step = self._rate(moments.first.clamp(min=1e-300), moments.chains), self._rate(drifts, steps)
        evidence = self._scale_integral(moments.first, moments.chains) + self._scale_integral(moments.drifts, steps)
        return Learnt(walk(level, step), 1 / step, evidence)

    def start(self, scale: Tensor, periods: int) -> Chain:
        """Random walk prior: a first precision, whose increments have a quarter of the level's variance in all."""
        return walk(1 / scale, 4 * periods / scale)


def walk(level: Tensor, step: Tensor) -> Chain:
    """The precision of a random walk, from 1 / variance of the level and of the increments; at least two periods."""
    return Chain(level + step, 2 * step, step.clone(), -step)


class Nodes(NamedTuple):
    """Quadrature nodes of a shape: the integral over the shape of f is about sum_k exp(log_weights_k) f(shapes_k)."""

    shapes: Tensor
    log_weights: Tensor  # they include the density of the shape
    log_determinants: Tensor  # of Q at each node


class ShapedPrior(Prior):
    """Base class of priors of drift that have a shape, which is integrated by quadrature."""

    @abstractmethod
    def nodes(self, periods: int) -> Nodes:
        """Prior of drift with a shape: the quadrature nodes for chains of so many periods."""

    @abstractmethod
    def sums(self, moments: Moments, shapes: Tensor) -> Tensor:
        """Prior of drift with a shape: w' Q w for each shape and group, [shapes, groups]; never negative."""

    @abstractmethod
    def chain(self, expected: Tensor, shapes: Tensor) -> Chain:
        """Prior of drift with a shape: the expected precision; `expected` is p(shape) E[1 / scale], [nodes, groups]."""

    def learn(self, moments: Moments, periods: int) -> Learnt:
        """Prior of drift with a shape: integrate scale and shape, some groups at a time."""
        nodes = self.nodes(periods)
        nodes = Nodes(*(part.to(moments.first.device) for part in nodes))
        size = max(1, CHUNK // len(nodes.shapes))
        groups = len(moments.first)
        parts = [
            self._part(Moments(*(part[begin : begin + size] for part in moments)), nodes, periods)
            for begin in range(0, max(groups, 1), size)
        ]
        chains, shapes, evidences = zip(*parts, strict=True)
        precision = Chain(*(torch.cat(column) for column in zip(*chains, strict=True)))
        return Learnt(precision, torch.cat(shapes), torch.cat(evidences))

    def _part(self, moments: Moments, nodes: Nodes, periods: int) -> Learnt:
        """Prior of drift with a shape: integrate scale and shape of some groups."""
        degrees = moments.chains * periods
        shapes = nodes.shapes[:, None]
        sums = self.sums(moments, shapes)
        log = nodes.log_weights[:, None] + moments.chains * nodes.log_determinants[:, None] / 2
        log = log + self._scale_integral(sums, degrees)
        evidence = torch.logsumexp(log, dim=0)
        with torch.no_grad():
            share = torch.exp(log - evidence)
            expected = share * self._rate(sums.clamp(min=1e-300), degrees)
            return Learnt(self.chain(expected, shapes), (share * shapes).sum(dim=0), evidence)

    def start(self, scale: Tensor, periods: int) -> Chain:
        """Prior of drift with a shape: a first precision at a smooth shape."""
        nodes = self.nodes(periods)
        shape = nodes.shapes[(nodes.shapes.abs() - 0.9 * nodes.shapes.abs().max()).abs().argmin()]
        return self.chain((1 / scale)[None], shape.to(scale)[None, None])


class Bridge(ShapedPrior):
    """The thesis' prior of drift: Q = I + shape * N, pinned to zero before the first and after the last period."""

    name = "bridge"

    def nodes(self, periods: int) -> Nodes:
        """Bridge prior: nodes -EDGE (1 - u^2), dense where Q is nearly singular."""
        return _bridge_nodes(periods)

    def sums(self, moments: Moments, shapes: Tensor) -> Tensor:
        """Bridge prior: w' Q w = squares + 2 shape * products, written as a sum of positive terms."""
        return moments.squares * (1 + 2 * shapes) - shapes * (moments.first + moments.last + moments.drifts)

    def chain(self, expected: Tensor, shapes: Tensor) -> Chain:
        """Bridge prior: the expected precision."""
        diagonal = expected.sum(dim=0)
        return Chain(diagonal, diagonal.clone(), diagonal.clone(), (expected * shapes).sum(dim=0))


class Autoregression(ShapedPrior):
    """Prior of drift as a stationary autoregression of order 1, whose scale is the variance of its innovations."""

    name = "ar1"

    def nodes(self, periods: int) -> Nodes:
        """Autoregression prior: nodes of the shape, whose density is uniform in log(1 - shape)."""
        return _autoregression_nodes(periods)

    def sums(self, moments: Moments, shapes: Tensor) -> Tensor:
        """Autoregression prior: w' Q w, written as a sum of positive terms."""
        rest, ends = 1 - shapes, moments.first + moments.last
        return moments.squares * rest**2 + ends * shapes * rest + shapes * moments.drifts

    def chain(self, expected: Tensor, shapes: Tensor) -> Chain:
        """Autoregression prior: the expected precision."""
        ends = expected.sum(dim=0)
        return Chain(ends, (expected * (1 + shapes**2)).sum(dim=0), ends.clone(), -(expected * shapes).sum(dim=0))


@cache
def _bridge_nodes(periods: int) -> Nodes:
    """Quadrature nodes of the bridge prior for chains of so many periods."""
    u, weights = unit_nodes(periods)
    shapes = -EDGE * (1 - u**2)
    density = math.log(RATE) - RATE * shapes - math.log(math.expm1(RATE * EDGE))
    log_weights = np.log(weights * 2 * EDGE * u) + density
    return Nodes(*map(torch.from_numpy, (shapes, log_weights, log_determinant(periods, shapes))))


@cache
def _autoregression_nodes(periods: int) -> Nodes:
    """Quadrature nodes of the autoregression prior for chains of so many periods."""
    u, weights = unit_nodes(periods)
    rest = (1 - SMOOTHEST) ** u
    shapes = 1 - rest
    return Nodes(*map(torch.from_numpy, (shapes, np.log(weights), np.log(rest * (2 - rest)))))


def unit_nodes(periods: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on the interval from 0 to 1, as many as chains of so many periods need.

    The posterior of a shape narrows as 1 / sqrt(periods). Beyond about one node per standard deviation, the error of
    the quadrature falls as fast as the tails of a normal density."""
    nodes, weights = np.polynomial.legendre.leggauss(max(48, math.ceil(11 * math.sqrt(periods))))
    return (nodes + 1) / 2, weights / 2


def log_determinant(periods: int, shape: np.ndarray) -> np.ndarray:
    """The log determinant of a bridge, I + shape * N with ones beside the diagonal in N; |shape| < 1/2.

    This is a closed form of sum_t log(1 + 2 shape cos(t pi / (T + 1))) for t = 1, ..., T. The thesis has t + 1."""
    root = np.sqrt((1 - 2 * shape) * (1 + 2 * shape))
    ratio = (1 - root) / (1 + root)
    return periods * np.log((1 + root) / 2) + np.log1p(-(ratio ** (periods + 1))) - np.log1p(-ratio)


def thesis_bound(w: Tensor, jensen: bool = False, rates: int = 801) -> tuple[Tensor, Tensor]:
    """The bounds B and B' of the thesis on the bridge's log density of each column of `w` [periods, features].

    q(shape) is a truncated exponential density, q(scale) is free (the thesis' gamma density lowers B by a constant).
    B has the expected log determinant. B' has the log determinant at the expected shape (`jensen`), as in the thesis:
    it is no lower bound, because minus the log determinant is convex. The maximum over so many rates is returned, and
    the expected shape there."""
    periods = len(w)
    nodes = _bridge_nodes(periods)
    shapes, log_weights = nodes.shapes, nodes.log_weights
    base = log_weights - (math.log(RATE) - RATE * shapes - math.log(math.expm1(RATE * EDGE)))  # of d shape
    kappa = torch.sinh(torch.linspace(-12, 12, rates, dtype=torch.float64))
    log_q = base - kappa[:, None] * shapes
    log_q = log_q - torch.logsumexp(log_q, dim=1, keepdim=True)
    q = log_q.exp()
    mean = q @ shapes
    divergence = (q * (log_q - log_weights)).sum(dim=1)
    determinant = q @ nodes.log_determinants
    if jensen:
        determinant = torch.from_numpy(log_determinant(periods, mean.numpy()))
    prior, moments = Bridge(), Moments.of(w)
    scale = prior._scale_integral(prior.sums(moments, mean[:, None]), moments.chains * periods)
    values, best = ((determinant / 2 - divergence)[:, None] + scale).max(dim=0)
    return values, mean[best]


PRIORS: dict[str, type[Prior]] = {prior.name: prior for prior in (Bridge, Autoregression, RandomWalk)}


def prior_named(name: str, weight: float = 0.0, floor: float = 0.0) -> Prior:
    """The prior of drift with a name: bridge, ar1 or rw."""
    if name not in PRIORS:
        raise UserError(f"reg.prior is {name!r}, expected one of {', '.join(PRIORS)}")
    return PRIORS[name](weight, floor)
