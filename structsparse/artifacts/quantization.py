"""Quantization of weights to few bits before an artifact is tested and written, and the size options of artifacts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from structsparse.artifacts.keys import GUARD, LEAST_GUARD
from structsparse.base.errors import UserError

FEWEST, MOST = 2, 10  # minimum and maximum number of bits of a quantized weight
REACHES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # limits for clipping that are tried, as shares of the largest absolute weight
_SMALLEST = 2.0**-126  # smallest step between quantized weights; smaller float32 numbers are denormal


@dataclass(frozen=True)
class ArtifactOptions:
    """Options for the size of an artifact: quantization of weights, and shorter feature keys.

    An option that is None leaves the weights or the keys as they are."""

    bits: int | None = None  # number of bits of a quantized weight; None: no quantization
    mistaken: float | None = None  # share of unknown features that may be mistaken for known features

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        """Make the options for quantization and key size from the configuration group `artifact`, and check them."""
        result = cls(**options)
        if result.bits is not None and (type(result.bits) is not int or not FEWEST <= result.bits <= MOST):
            raise UserError(f"artifact.bits={result.bits}: expected {FEWEST} to {MOST}, null for none")
        share, least, most = result.mistaken, 2.0**-GUARD, 2.0**-LEAST_GUARD
        if share is not None and (type(share) not in (int, float) or not least <= share <= most):
            raise UserError(f"artifact.mistaken={share}: expected a share of {least:.1e} to {most}, or null")
        return result

    @property
    def guard(self) -> int | None:
        """Size option of an artifact, independent of quantization: the number of extra bits in a feature key.

        With these extra bits, one in 2^guard unknown features is mistaken for a known feature. With None, keys are not
        shortened."""
        return None if self.mistaken is None else math.ceil(-math.log2(self.mistaken))


@torch.no_grad()
def quantize_all_(parameters: Iterable[Tensor], bits: int, loss: Callable[[], float]) -> None:
    """Quantization of all parameters in place, one after the other; large weights are clipped.

    For each parameter, all clipping limits in REACHES are tried, and the limit with the smallest `loss()` is used. A
    smaller limit clips more weights but makes the step finer."""
    for weights in parameters:
        original, least, best = weights.clone(), math.inf, 1.0
        for reach in REACHES:
            quantize_(weights.copy_(original), bits, reach)
            if (value := loss()) < least:
                least, best = value, reach
        quantize_(weights.copy_(original), bits, best)


@torch.no_grad()
def quantize_(weights: Tensor, bits: int, reach: float = 1.0) -> Tensor:
    """Quantization of weights in place: round to the nearest of 2^bits - 1 multiples of a step; returns the weights.

    Weights beyond about `reach` times the largest absolute weight are clipped. Zeros, infinities and NaN stay as they
    are. Float32 represents all multiples exactly."""
    finite, most = torch.isfinite(weights), 2 ** (bits - 1) - 1
    largest = float(torch.where(finite, weights, 0.0).abs().max()) if weights.numel() else 0.0
    if largest == 0.0:
        return weights
    digits, exponent = math.frexp(reach * largest / most)
    step = max(math.ldexp(math.ceil(digits * 256) / 256, exponent), _SMALLEST)
    multiples = torch.round(weights.double() / step).clamp(-most, most)
    return weights.copy_(torch.where(finite, multiples * step + 0.0, weights.double()))  # adding 0.0 turns -0 into 0
