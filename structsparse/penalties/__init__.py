"""Penalties of one parameter: a value, and the prox of that very function.

A penalty knows nothing of data and never adds to a gradient: `prox_` follows the optimizer's step instead.
"""

from structsparse.penalties.base import Penalty
from structsparse.penalties.blocks import GroupLasso, SparseGroupLasso
from structsparse.penalties.entries import L1, ElasticNet, NoPenalty, SquaredL2

__all__ = ["L1", "ElasticNet", "GroupLasso", "NoPenalty", "Penalty", "SparseGroupLasso", "SquaredL2"]
