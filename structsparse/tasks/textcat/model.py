"""The model of text categorization: a linear bag-of-words classifier with weights for the words of a document."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError


class BagClassifier(nn.Module):
    """Text classifier model: a linear model with scores = matrix @ table + bias, in float64.

    - For two classes or a number, a document has one score, and `table` has shape [words]. A positive score means the
      second class.
    - For more classes, a document has a score for each class, and `table` has shape [words, classes].

    Penalties act on `table`, never on `bias`."""

    linear = True

    def __init__(self, words: int, outputs: int = 1) -> None:
        super().__init__()
        if words < 1 or outputs < 1:
            raise UserError(f"a classifier of {words} words and {outputs} outputs, expected at least 1 of each")
        shape = (words,) if outputs == 1 else (words, outputs)
        self.table = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=torch.float64))

    def forward(self, matrix: Tensor, transposed: Tensor | None = None) -> Tensor:
        """Text classifier model: the scores of documents, [documents] or [documents, classes].

        `matrix` has the features of the documents (sparse CSR [documents, words]). `transposed` is its transpose, with
        which the gradient is faster."""
        return _SparseProduct.apply(self.table, matrix, transposed) + self.bias


def outputs_of(classes: tuple[str, ...] | None) -> int:
    """Text classifier model: the number of scores per document: 1 for two classes or a number, else one per class."""
    return len(classes) if classes is not None and len(classes) > 2 else 1


class _SparseProduct(torch.autograd.Function):
    """Text classifier model: the product matrix @ table of a sparse matrix, differentiable with respect to the table.

    The gradient uses the transposed matrix if it is given."""

    @staticmethod
    def forward(ctx, table: Tensor, matrix: Tensor, transposed: Tensor | None) -> Tensor:
        """Text classifier model: the product matrix @ table of a sparse matrix and the table of weights."""
        ctx.matrix, ctx.transposed = matrix, transposed
        return _product(matrix, table)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, None]:
        """Text classifier model: the gradient of the loss with respect to the table, matrix.T @ grad.

        `grad` is the gradient of the loss with respect to the product matrix @ table."""
        if not ctx.needs_input_grad[0]:
            return None, None, None
        if ctx.transposed is not None:
            return _product(ctx.transposed, grad.contiguous()), None, None
        return _transposed_product(ctx.matrix, grad), None, None


def _product(matrix: Tensor, dense: Tensor) -> Tensor:
    """Text classifier model: the product matrix @ dense of a sparse matrix and a dense matrix or vector.

    On devices without sparse products, the product is computed entry by entry."""
    if matrix.device.type in ("cpu", "cuda"):
        return matrix @ dense
    rows, columns, values = _entries(matrix)
    result = dense.new_zeros(matrix.shape[0], *dense.shape[1:])
    return result.index_add(0, rows, _scaled(dense.index_select(0, columns), values))


def _transposed_product(matrix: Tensor, dense: Tensor) -> Tensor:
    """Text classifier model: the product matrix.T @ dense of a sparse matrix, computed entry by entry."""
    rows, columns, values = _entries(matrix)
    result = dense.new_zeros(matrix.shape[1], *dense.shape[1:])
    return result.index_add(0, columns, _scaled(dense.index_select(0, rows), values))


def _entries(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Text classifier model: the row, the column and the value of each entry of a sparse CSR matrix."""
    values = matrix.values()
    sizes, rows = matrix.crow_indices().diff(), torch.arange(matrix.shape[0], device=matrix.device)
    return rows.repeat_interleave(sizes, output_size=len(values)), matrix.col_indices().long(), values


def _scaled(rows: Tensor, values: Tensor) -> Tensor:
    """Text classifier model: multiply rows[k] by values[k], for every entry k of a sparse matrix.

    `rows` has a dense row or a number for each entry, and `values` has the value of each entry."""
    return rows * (values if rows.dim() == 1 else values[:, None])
