"""Weights of few bits: multiples of a step, and what else makes a model small before it is tested."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from structsparse.errors import UserError
from structsparse.packing import GUARD, LEAST_GUARD

FEWEST, MOST = 2, 10  # bits
_SMALLEST = 2.0**-126  # steps below it float32 tells no longer exactly


@dataclass(frozen=True)
class Small:
    """How small the artifact is made: `bits` of a weight, the share of unknown features that may be `mistaken` for known
    ones; None leaves what there is."""

    bits: int | None = None
    mistaken: float | None = None

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        wanted = cls(**options)
        if wanted.bits is not None and (type(wanted.bits) is not int or not FEWEST <= wanted.bits <= MOST):
            raise UserError(f"artifact.bits={wanted.bits}: expected {FEWEST} to {MOST}, or null for weights as they are")
        share, least, most = wanted.mistaken, 2.0**-GUARD, 2.0**-LEAST_GUARD
        if share is not None and (type(share) not in (int, float) or not least <= share <= most):
            raise UserError(f"artifact.mistaken={share}: expected a share of {least:.1e} to {most}, or null for none")
        return wanted

    @property
    def guard(self) -> int | None:
        """An unknown feature is mistaken once in 2^guard."""
        return None if self.mistaken is None else math.ceil(-math.log2(self.mistaken))


@torch.no_grad()
def round_(weights: Tensor, bits: int) -> Tensor:
    """The nearest multiples of a step, in place. 2^bits - 1 of them reach from the largest weight, by size, to its
    opposite; what is zero stays so, and so does what is infinite.

    The step has 8 digits, in binary, so that all its multiples are numbers of float32."""
    finite = torch.isfinite(weights)
    largest = float(torch.where(finite, weights, 0.0).abs().max()) if weights.numel() else 0.0
    if largest == 0.0:
        return weights
    digits, exponent = math.frexp(largest / (2 ** (bits - 1) - 1))
    step = max(math.ldexp(math.ceil(digits * 256) / 256, exponent), _SMALLEST)
    rounded = torch.round(weights.double() / step) * step + 0.0  # -0 is 0
    return weights.copy_(torch.where(finite, rounded, weights.double()))
