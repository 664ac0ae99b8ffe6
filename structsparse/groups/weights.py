"""What each group weighs: by a rule or as given."""

from collections.abc import Sequence

import torch
from torch import Tensor

from structsparse.errors import UserError

WEIGHTS = {
    "one": torch.ones_like,
    "sqrt_size": torch.sqrt,
    "log2_size": lambda size: torch.log2(1 + size),
}


def checked_weights(weights: str | Tensor, size: Tensor, names: Sequence[str]) -> Tensor:
    if isinstance(weights, str):
        if weights not in WEIGHTS:
            raise UserError(f"unknown group weights {weights!r}: expected {', '.join(WEIGHTS)} or a tensor")
        weights = WEIGHTS[weights](size.double())
    weights = torch.as_tensor(weights, dtype=torch.float64).cpu()
    if weights.shape != size.shape:
        raise UserError(f"group weights have shape {tuple(weights.shape)}, expected one for each of {len(size)} groups")
    wrong = ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        k = int(wrong.nonzero()[0])
        raise UserError(f"the weight of group {names[k]} is {weights[k]}, expected a finite number of at least 0")
    return torch.where(size > 0, weights, 0.0)
