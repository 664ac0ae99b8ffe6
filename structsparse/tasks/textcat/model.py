"""The bag-of-words classifier of documents as an nn.Module: a weight for each word and class."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError


class BagClassifier(nn.Module):
    """A linear classifier of documents: scores = matrix @ table + bias, in float64.

    Two classes, and numbers, have one score: table [words], positive for the second class. More classes have one score
    each: table [words, classes]. Penalties act on `table`, never on `bias` [outputs]."""

    linear = True

    def __init__(self, words: int, outputs: int = 1) -> None:
        super().__init__()
        if words < 1 or outputs < 1:
            raise UserError(f"a classifier of {words} words and {outputs} outputs, expected at least 1 of each")
        shape = (words,) if outputs == 1 else (words, outputs)
        self.table = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=torch.float64))

    def forward(self, matrix: Tensor, transposed: Tensor | None = None) -> Tensor:
        """Scores [documents] or [documents, classes] of a sparse CSR matrix [documents, words].

        The gradient is faster if the transposed matrix is given, too."""
        return _SparseProduct.apply(self.table, matrix, transposed) + self.bias


def outputs_of(classes: tuple[str, ...] | None) -> int:
    """The number of scores of a document."""
    return len(classes) if classes is not None and len(classes) > 2 else 1


class _SparseProduct(torch.autograd.Function):
    """matrix @ table for a sparse matrix; torch's own gradient transposes the matrix each time."""

    @staticmethod
    def forward(ctx, table: Tensor, matrix: Tensor, transposed: Tensor | None) -> Tensor:
        ctx.matrix, ctx.transposed = matrix, transposed
        return _product(matrix, table)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        if ctx.transposed is not None:
            return _product(ctx.transposed, grad.contiguous()), None, None
        return _transposed_product(ctx.matrix, grad), None, None


def _product(matrix: Tensor, dense: Tensor) -> Tensor:
    """matrix @ dense for a sparse matrix; entry by entry on devices without such a product (`meta`, ...)."""
    if matrix.device.type in ("cpu", "cuda"):
        return matrix @ dense
    rows, columns, values = _entries(matrix)
    result = dense.new_zeros(matrix.shape[0], *dense.shape[1:])
    return result.index_add(0, rows, _scaled(dense.index_select(0, columns), values))


def _transposed_product(matrix: Tensor, dense: Tensor) -> Tensor:
    """matrix.T @ dense for a sparse matrix, entry by entry."""
    rows, columns, values = _entries(matrix)
    result = dense.new_zeros(matrix.shape[1], *dense.shape[1:])
    return result.index_add(0, columns, _scaled(dense.index_select(0, rows), values))


def _entries(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The row, column and value of each entry of a sparse CSR matrix."""
    values = matrix.values()
    sizes, rows = matrix.crow_indices().diff(), torch.arange(matrix.shape[0], device=matrix.device)
    return rows.repeat_interleave(sizes, output_size=len(values)), matrix.col_indices().long(), values


def _scaled(rows: Tensor, values: Tensor) -> Tensor:
    """Rows [entries] or [entries, classes] times the values [entries] of a sparse matrix."""
    return rows * (values if rows.dim() == 1 else values[:, None])
