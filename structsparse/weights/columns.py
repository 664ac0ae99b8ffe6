"""`columns`: some columns of a table, such as the codes of the words of a batch, and their gradient.

The gradient has two forms: dense, for any torch optimizer, or of these columns only, for `solvers.columns`."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse.weights.notes import ColumnGradient, notes_of


def columns(table: Tensor, indices: Tensor) -> Tensor:
    """The columns of a table at the given indices (int64, each at most once), [rows, indices].

    If a solver has set the note `columns` of the table (`notes_of`) to a list, backward appends a ColumnGradient to it
    instead of setting `table.grad`."""
    return _Columns.apply(table, indices, notes_of(table).columns)


class _Columns(torch.autograd.Function):
    """The autograd function of `columns`, which selects columns of a table."""

    @staticmethod
    def forward(ctx, table: Tensor, indices: Tensor, pending: list[ColumnGradient] | None) -> Tensor:
        """The columns of a table."""
        ctx.save_for_backward(indices)
        ctx.pending, ctx.shape = pending, table.shape
        return table.index_select(1, indices)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        """The gradient of the table: noted with the indices of the columns, or dense."""
        (indices,) = ctx.saved_tensors
        if ctx.pending is not None:
            ctx.pending.append(ColumnGradient(indices, gradient))
            return None, None, None
        return gradient.new_zeros(ctx.shape).index_add_(1, indices, gradient), None, None
