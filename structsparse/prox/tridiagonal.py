"""Tridiagonal systems, one for each column of a table [periods, columns]: factorization, solutions, inverses.

All rows beside the diagonal of a column's matrix have the same number off[column]. On the CPU, compiled loops are
used; on other devices, torch runs over the rows and handles all columns at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.kernels.prox import tridiagonal as kernels


class Chain(NamedTuple):
    """Tridiagonal matrices of columns, all of whose diagonals have the same number in the rows between the ends."""

    first: Tensor  # [columns], in the first row of the diagonal
    middle: Tensor  # [columns], in all rows between
    last: Tensor  # [columns]
    off: Tensor  # [columns], beside the diagonal

    def diagonal(self, rows: int) -> Tensor:
        """Tridiagonal matrices: their diagonals, [rows, columns]."""
        result = self.middle.expand(rows, -1).clone()
        result[0], result[-1] = self.first, self.last
        return result

    def scaled(self, factor: Tensor) -> Chain:
        """Tridiagonal matrices: all matrices times a number, or each times a number of its own."""
        return Chain(*(part * factor for part in self))

    def times(self, x: Tensor) -> Tensor:
        """Tridiagonal matrices: the product of each matrix and the column x[:, i], [rows, columns]."""
        return self.add_times_(torch.zeros_like(x), x)

    def add_times_(self, result: Tensor, x: Tensor) -> Tensor:
        """Tridiagonal matrices: add the product of each matrix and the column x[:, i] to `result`, in place."""
        if compiled(result, x, *self):
            kernels.times(*(part.numpy() for part in (*self, x, result)))
            return result
        result[0] += self.first * x[0]
        result[-1] += self.last * x[-1]
        result[1:-1] += self.middle * x[1:-1]
        result[1:] += self.off * x[:-1]
        result[:-1] += self.off * x[1:]
        return result


def compiled(*tensors: Tensor) -> bool:
    """Tridiagonal systems: whether the compiled loops can run: float64 on the CPU, without gaps in memory."""
    plain = all(t.device.type == "cpu" and t.dtype == torch.float64 and t.is_contiguous() for t in tensors)
    return plain and not any(t.requires_grad for t in tensors)


def factor_(diagonal: Tensor, off: Tensor) -> Tensor:
    """Tridiagonal systems: replace diagonals by the pivots of each column's matrix, positive if it is definite."""
    if compiled(diagonal, off):
        kernels.factor(diagonal.numpy(), off.numpy())
        return diagonal
    squares = off * off
    for t in range(1, len(diagonal)):
        diagonal[t] -= squares / diagonal[t - 1]
    return diagonal


def factor(diagonal: Tensor, off: Tensor) -> Tensor:
    """Tridiagonal systems: the pivots of each column's matrix, [rows, columns]; all positive if it is definite."""
    return factor_(diagonal.clone(), off)


def solve_(pivots: Tensor, off: Tensor, x: Tensor) -> Tensor:
    """Tridiagonal systems: replace right sides x by the solutions, in place; `pivots` come from `factor`."""
    if compiled(pivots, off, x):
        kernels.solve(pivots.numpy(), off.numpy(), x.numpy())
        return x
    for t in range(1, len(x)):
        x[t] -= off / pivots[t - 1] * x[t - 1]
    x[-1] /= pivots[-1]
    for t in range(len(x) - 2, -1, -1):
        x[t] = (x[t] - off * x[t + 1]) / pivots[t]
    return x


def inverse(pivots: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
    """Tridiagonal systems: diagonals of the inverse matrices [rows, columns], and numbers beside them [rows - 1, ...].

    For a precision matrix these are the variances of all rows, and the covariances of rows that follow each other."""
    variances, covariances = torch.empty_like(pivots), pivots.new_empty(len(pivots) - 1, pivots.shape[1])
    if compiled(pivots, off, variances):
        kernels.inverse(pivots.numpy(), off.numpy(), variances.numpy(), covariances.numpy())
        return variances, covariances
    variances[-1] = 1 / pivots[-1]
    for t in range(len(pivots) - 2, -1, -1):
        ratio = off / pivots[t]
        covariances[t] = -ratio * variances[t + 1]
        variances[t] = 1 / pivots[t] + ratio * ratio * variances[t + 1]
    return variances, covariances
