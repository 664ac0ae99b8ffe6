"""Sparsity-inducing penalties (regularizers) on the weights of a parameter.

Each penalty class computes the value of the penalty and its proximal operator (prox). A penalty does not see the data
and does not change the gradient of the loss. Training applies `prox_` after each step of the optimizer."""

from structsparse.penalties.base import Penalty
from structsparse.penalties.blocks import GroupLasso, GroupLassoMax, SparseGroupLasso
from structsparse.penalties.discrete import Copied, Discrete
from structsparse.penalties.drift import Drift
from structsparse.penalties.elastic_overlaps import StructuredElasticNet
from structsparse.penalties.entries import L1, ElasticNet, NoPenalty, SquaredL2
from structsparse.penalties.forest import TreeGroupLasso, TreeGroupLassoMax
from structsparse.penalties.nonconvex import L0, GroupMCP, LogSum, Reweighting
from structsparse.penalties.overlaps import (
    ConsensusGroupLasso,
    NestedGroupLasso,
    OverlappingGroupLasso,
    SequentialGroupLasso,
)
from structsparse.penalties.sequences import OSCAR, SLOPE, FusedLasso
from structsparse.penalties.wrappers import Nonnegative, Ridged

__all__ = [
    "L0",
    "L1",
    "OSCAR",
    "SLOPE",
    "ConsensusGroupLasso",
    "Copied",
    "Discrete",
    "Drift",
    "ElasticNet",
    "FusedLasso",
    "GroupLasso",
    "GroupLassoMax",
    "GroupMCP",
    "LogSum",
    "NestedGroupLasso",
    "NoPenalty",
    "Nonnegative",
    "OverlappingGroupLasso",
    "Penalty",
    "Reweighting",
    "Ridged",
    "SequentialGroupLasso",
    "SparseGroupLasso",
    "SquaredL2",
    "StructuredElasticNet",
    "TreeGroupLasso",
    "TreeGroupLassoMax",
]
