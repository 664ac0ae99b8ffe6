"""Proximal operators (prox): W <- argmin_V penalty(V) + 1/2 sum (V - W)^2 / steps, in place, on any device.

`steps` is a float, a scalar tensor, or a tensor that broadcasts to W with one step per entry (the inverse of a diagonal
metric). An entry with step 0 does not change. In strength * step, 0 * inf counts as 0. The numba kernels process
contiguous CPU memory; torch code processes all other tensors. In-place functions record no gradients.
"""

from structsparse.prox.blocks import group_shrink_, sparse_group_shrink_
from structsparse.prox.blocks_max import group_clip_, group_maxima
from structsparse.prox.consensus import spared_by_copies, towards_consensus_, update_consensus_
from structsparse.prox.entries import shrink_, soft_threshold_
from structsparse.prox.forest import forest_clip_, forest_shrink_
from structsparse.prox.forest_critical import cut_nested_
from structsparse.prox.overlaps import TOLERANCE, new_dual, one_step_per_atom, overlapping_shrink_
from structsparse.prox.overlaps_in_turn import Choose, cut_in_turn_, shrink_in_turn_, turns
from structsparse.prox.sequences import smooth_, sorted_shrink_
from structsparse.prox.steps import Steps

__all__ = [
    "TOLERANCE",
    "Choose",
    "Steps",
    "cut_in_turn_",
    "cut_nested_",
    "forest_clip_",
    "forest_shrink_",
    "group_clip_",
    "group_maxima",
    "group_shrink_",
    "new_dual",
    "one_step_per_atom",
    "overlapping_shrink_",
    "shrink_",
    "shrink_in_turn_",
    "smooth_",
    "soft_threshold_",
    "sorted_shrink_",
    "spared_by_copies",
    "sparse_group_shrink_",
    "towards_consensus_",
    "turns",
    "update_consensus_",
]
