"""The model of drift: a table of weights, a row for each period, and a bias that is not penalised."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.tasks.temporal.data import DatedBatch
from structsparse.weights.dated_rows import scores


class DriftModel(nn.Module):
    """Drift model: the score of an item is its features times the weights of its period, plus a bias, in float64."""

    def __init__(self, periods: int, features: int, bias: bool) -> None:
        super().__init__()
        if periods < 2 or features < 1:
            raise UserError(f"a drift model of {periods} periods and {features} features, expected 2 and 1 or more")
        self.table = nn.Parameter(torch.zeros(periods, features, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros((), dtype=torch.float64)) if bias else None

    def forward(self, batch: DatedBatch) -> Tensor:
        """Drift model: the scores of the items of a batch."""
        result = scores(self.table, batch.design) + batch.offset
        return result if self.bias is None else result + self.bias
