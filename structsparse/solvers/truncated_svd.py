"""Truncated singular value decomposition of sparse items: the solver of dictionaries without a penalty (PCA).

The decomposition X = U S V' of the items X is computed by a block Krylov method: X'X is applied to a few random vectors
again and again, and the best approximation within the span of all results is taken. X stays sparse, and its mean is not
subtracted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.solvers.online_dictionary import CodedModel, ItemBatch, OnlineDictionary, correlations

BLOCKS = 8  # the Krylov method multiplies about 1 / BLOCKS of the requested number of vectors together
SPARE = 8  # further vectors in a block
BASIS = 4  # vectors of the Krylov basis, as a multiple of the requested number and of two times SPARE
LOST = 1e-9  # squared length, as a share of the largest, below which a vector depends on others up to rounding


class SingularVectors(NamedTuple):
    """Truncated singular value decomposition: values, largest first, and right vectors as rows."""

    values: Tensor  # float64 [count]
    right: Tensor  # [count, columns]


@torch.no_grad()
def truncated_svd(matrix: sparse.csr_array, count: int) -> SingularVectors:
    """The `count` largest singular values of a sparse matrix, and its right singular vectors (zeros beyond its rank).

    The entry of each vector with the largest absolute value is positive."""
    size = BASIS * (count + 2 * SPARE)
    if min(matrix.shape) < size:
        _, values, right = np.linalg.svd(matrix.toarray(), full_matrices=False)
        values, right = torch.from_numpy(values.astype(np.float64)), torch.from_numpy(right)
    else:
        values, right = _within(matrix, _krylov_basis(matrix, -(-count // BLOCKS) + SPARE, size))
    found = min(count, len(values))
    values, right = values[:found], right[:found]
    largest = right.gather(1, right.abs().argmax(dim=1, keepdim=True))
    right = torch.where((values > 0)[:, None], right * largest.sign(), 0.0)
    more = count - found
    return SingularVectors(
        torch.cat([values, values.new_zeros(more)]), torch.cat([right, right.new_zeros(more, right.shape[1])])
    )


def _krylov_basis(matrix: sparse.csr_array, block_size: int, size: int) -> Tensor:
    """Truncated singular value decomposition: orthonormal rows that span powers of X'X times random vectors.

    There are at least `size` rows, or as many as the rank of X allows."""
    transposed = sparse.csr_array(matrix.T)
    start = torch.randn(block_size, matrix.shape[1], generator=torch.Generator().manual_seed(0))
    basis = _orthonormal(start, start[:0])
    block = basis
    while len(basis) < size and len(block):
        block = _orthonormal(correlations(transposed, correlations(matrix, block)), basis)
        basis = torch.cat([basis, block])
    return basis


def _orthonormal(rows: Tensor, basis: Tensor) -> Tensor:
    """Truncated singular value decomposition: rows made orthonormal, and orthogonal to the rows of a basis.

    Rows that depend on others are dropped."""
    for _ in range(3):  # later rounds remove what rounding leaves
        scale = rows.square().sum(dim=1).max() if len(rows) else 0.0
        rows = rows - (rows @ basis.T) @ basis
        values, vectors = torch.linalg.eigh((rows @ rows.T).double())
        kept = values > LOST * scale
        rows = (vectors[:, kept] / values[kept].sqrt()).T.to(rows) @ rows
    return rows


def _within(matrix: sparse.csr_array, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Truncated singular value decomposition: the singular values and right vectors of X within the span of a basis."""
    images = correlations(matrix, basis)  # [basis, rows of X]
    squares, vectors = torch.linalg.eigh((images @ images.T).double())
    squares = torch.where(squares > torch.finfo(images.dtype).eps * squares[-1], squares, 0.0)  # below is rounding
    return squares.flip(0).sqrt(), vectors.flip(1).T.to(basis) @ basis


class TruncatedSVD(OnlineDictionary):
    """Truncated singular value decomposition as a solver of codes and dictionary without a penalty.

    With the decomposition X = U S V', the codes are U S^power, and the atoms S^(1 - power) V'. Every power reconstructs
    the same. Only with power 1 have all atoms norm 1."""

    def __init__(self, params, passes: int = 1, power: float = 1.0) -> None:
        super().__init__(params, passes)
        if not 0 <= power <= 1:
            raise UserError(f"solver.power is {power}, expected a number from 0 to 1")
        self.power = power

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Truncated singular value decomposition: accept codes without a penalty."""
        if not all(penalty.is_null for penalty in penalties.values()):
            raise UserError("solver=svd decomposes without a penalty: take reg=none")
        super().attach(penalties, support)

    @torch.no_grad()
    def sweep(self, model: CodedModel, loss: nn.Module, batch: ItemBatch) -> Tensor:
        """Truncated singular value decomposition: set the atoms at the first batch; returns the mean loss of all items.

        The codes are computed after the last epoch, as those of any final dictionary."""
        dictionary, source, state = model.dictionary, batch.source, self.state[model.dictionary]
        if "lost" not in state:
            values, right = truncated_svd(source.matrix, len(dictionary))
            dictionary.copy_((torch.where(values > 0, values, 1.0) ** (1 - self.power))[:, None] * right)
            squares = np.square(source.matrix.data, dtype=np.float64).sum()
            state["lost"] = (squares - values.square().sum()) / 2 / source.matrix.shape[0]
        state["epoch"] = batch.epoch
        self.task, self.worst = (model, source), None
        return state["lost"].to(dictionary.dtype)
