"""Group weights, the factors of groups in a penalty, by a rule such as sqrt(size) or from a tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from structsparse.base.errors import UserError

WEIGHTS = {
    "one": torch.ones_like,
    "sqrt_size": torch.sqrt,
    "log2_size": lambda size: torch.log2(1 + size),
}


def checked_weights(weights: str | Tensor, size: Tensor, names: Sequence[str], depth: Tensor | None = None) -> Tensor:
    """Group weights from a rule or a tensor: finite, at least 0, and 0 for groups without entries.

    `depth` is the depth of each group, for nested groups only. It allows two more rules, "depth**alpha" and
    "alpha**depth" with a number alpha, such as "depth**0.5" and "0.9**depth".
    """
    if isinstance(weights, str):
        weights = _by_rule(weights, size, depth)
    weights = torch.as_tensor(weights, dtype=torch.float64).cpu()
    if weights.shape != size.shape:
        raise UserError(f"group weights have shape {tuple(weights.shape)}, expected one for each of {len(size)} groups")
    wrong = ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        k = int(wrong.nonzero()[0])
        raise UserError(f"the weight of group {names[k]} is {weights[k]}, expected a finite number of at least 0")
    return torch.where(size > 0, weights, 0.0)


def _by_rule(rule: str, size: Tensor, depth: Tensor | None) -> Tensor:
    """Group weights by the name of a rule: one, sqrt_size, log2_size, and for nested groups a power of the depth."""
    if rule in WEIGHTS:
        return WEIGHTS[rule](size.double())
    rules = [*WEIGHTS] if depth is None else [*WEIGHTS, "depth**alpha", "alpha**depth"]
    base, power, exponent = (part.strip() for part in rule.partition("**"))
    if depth is not None and power:
        try:
            if base == "depth":
                return depth.double() ** float(exponent)
            if exponent == "depth":
                return float(base) ** depth.double()
        except ValueError:
            pass  # the text in place of alpha is not a number
    raise UserError(f"unknown group weights {rule!r}: expected {', '.join(rules)} or a tensor")
