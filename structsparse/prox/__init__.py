"""Proximal steps: W <- argmin_V  penalty(V) + 1/2 sum (V - W)^2 / steps, in place, without gradient, on any device.

`steps` is a float, a scalar tensor, or a tensor that broadcasts to W with one step per entry (the inverse of a
diagonal metric). An entry with step 0 stays put; 0 * inf counts as 0, so what bears no strength does not move.
Contiguous CPU memory goes to the numba kernels; all else takes the torch route, which never waits for the device.
"""

from structsparse.prox.blocks import group_shrink_, sparse_group_shrink_
from structsparse.prox.entries import shrink_, soft_threshold_
from structsparse.prox.steps import Steps

__all__ = ["Steps", "group_shrink_", "shrink_", "soft_threshold_", "sparse_group_shrink_"]
