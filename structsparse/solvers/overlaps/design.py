"""`Design`: the data and the loss of a linear model, for compiled solvers that need no closure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.linear.problem import checked_columns, numbers

LOSSES = ("logistic", "squared", "squared_hinge")


@dataclass
class Design:
    """Design of a linear model: design matrix, targets and loss, for solvers that read the data directly.

    The scores are f = matrix @ table + bias with the weight table `table`. The loss is the mean over all items of:

    - "logistic": log(1 + exp(-y f)) for targets y in {-1, +1}; with several outputs, the softmax loss -log p(class).
    - "squared": (f - y)^2 / 2 for real targets y.
    - "squared_hinge": max(0, 1 - y f)^2 for targets y in {-1, +1}.

    Several outputs are one output per class, with class codes from 0 as targets. Then "squared" and "squared_hinge" are
    sums over the classes, each class against the rest. A model attaches a design to its weight table:
    `notes_of(table).design = Design(...)`."""

    matrix: scipy.sparse.csc_array  # float64 [items, features]; other sparse or dense matrices are converted
    targets: np.ndarray  # float64 [items]
    loss: str
    bias: Tensor | None  # [outputs], a parameter of the model; None: no bias

    def __post_init__(self):
        """Check the matrix, the targets and the loss of the design."""
        self.matrix = checked_columns(self.matrix)
        self.targets = numbers(self.targets, "the targets of a design", self.items, "one for each item")
        if self.loss == "softmax":
            self.loss = "logistic"
        if self.loss not in LOSSES:
            raise UserError(f"unknown loss {self.loss!r} of a design, expected {', '.join(LOSSES)}")

    @property
    def items(self) -> int:
        """The number of items in the design."""
        return self.matrix.shape[0]

    def outputs(self, table: Tensor) -> int:
        """The number of outputs of a weight table with this design: 1, or the number of classes.

        Raises an error if the table, the bias or the targets do not fit the design."""
        if table.shape[0] != self.matrix.shape[1] or table.dim() > 2:
            raise UserError(
                f"a table {tuple(table.shape)} does not fit a matrix of {self.matrix.shape[1]} columns: expected a row "
                "for each"
            )
        outputs = table.shape[1] if table.dim() == 2 else 1
        if self.bias is not None and self.bias.numel() != outputs:
            raise UserError(f"a bias {tuple(self.bias.shape)} does not fit a table of {outputs} outputs")
        if outputs > 1:
            wrong = (self.targets < 0) | (self.targets >= outputs) | (self.targets != np.floor(self.targets))
            expected = f"a class from 0 to {outputs - 1}"
        else:
            wrong, expected = (np.abs(self.targets) != 1) & (self.loss != "squared"), "-1 or 1"
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise UserError(f"the target of item {place} is {self.targets[place]:g}, expected {expected}")
        return outputs

    @torch.no_grad()
    def write_(self, table: Tensor, weights: np.ndarray, bias: np.ndarray) -> None:
        """Copy the weights and the bias found by a solver into the table and into the bias parameter of the design."""
        table.copy_(torch.from_numpy(weights).view(table.shape))
        if self.bias is not None:
            self.bias.copy_(torch.from_numpy(bias).view(self.bias.shape))
