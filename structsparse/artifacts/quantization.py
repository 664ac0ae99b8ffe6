"""Weights of few bits: multiples of a step, and what else makes a model small before it is tested."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from structsparse.artifacts.tables import GUARD, LEAST_GUARD
from structsparse.base.errors import UserError

FEWEST, MOST = 2, 10  # bits
REACHES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # that are tried, of the largest weight
_SMALLEST = 2.0**-126  # steps below it float32 tells no longer exactly


@dataclass(frozen=True)
class Small:
    """How small the artifact is made: `bits` of a weight, and the share of unknown features that may be `mistaken` for
    known ones; None leaves what there is."""

    bits: int | None = None
    mistaken: float | None = None

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        wanted = cls(**options)
        if wanted.bits is not None and (type(wanted.bits) is not int or not FEWEST <= wanted.bits <= MOST):
            raise UserError(f"artifact.bits={wanted.bits}: expected {FEWEST} to {MOST}, null for none")
        share, least, most = wanted.mistaken, 2.0**-GUARD, 2.0**-LEAST_GUARD
        if share is not None and (type(share) not in (int, float) or not least <= share <= most):
            raise UserError(f"artifact.mistaken={share}: expected a share of {least:.1e} to {most}, or null")
        return wanted

    @property
    def guard(self) -> int | None:
        """An unknown feature is mistaken once in 2^guard."""
        return None if self.mistaken is None else math.ceil(-math.log2(self.mistaken))


@torch.no_grad()
def round_all_(parameters: Iterable[Tensor], bits: int, loss: Callable[[], float]) -> None:
    """All parameters in place, one after the other, each by the step at which the loss is the least: the larger part of
    its range is wasted where few weights are large."""
    for weights in parameters:
        before, least, best = weights.clone(), math.inf, 1.0
        for reach in REACHES:
            round_(weights.copy_(before), bits, reach)
            if (found := loss()) < least:
                least, best = found, reach
        round_(weights.copy_(before), bits, best)


@torch.no_grad()
def round_(weights: Tensor, bits: int, reach: float = 1.0) -> Tensor:
    """The nearest multiples of a step, in place: 2^bits - 1 of them, as far from zero on either side as a share `reach`
    of the largest weight, by size. What is zero stays so, and so does what is infinite.

    The step has 8 digits, in binary, so that all its multiples are numbers of float32."""
    finite, most = torch.isfinite(weights), 2 ** (bits - 1) - 1
    largest = float(torch.where(finite, weights, 0.0).abs().max()) if weights.numel() else 0.0
    if largest == 0.0:
        return weights
    digits, exponent = math.frexp(reach * largest / most)
    step = max(math.ldexp(math.ceil(digits * 256) / 256, exponent), _SMALLEST)
    multiples = torch.round(weights.double() / step).clamp(-most, most)
    return weights.copy_(torch.where(finite, multiples * step + 0.0, weights.double()))  # -0 is 0
