"""Kernels of tridiagonal systems, one for each column of a table, with the same off-diagonal all along a column.

The matrix of column i has the diagonal diagonal[:, i] and, beside it, the number off[i]. Columns are handled in
blocks, so that the numbers of a block stay in the cache while the rows are passed."""

from numba import njit

from structsparse.kernels.options import SUMS

BLOCK = 256  # columns that are handled together


@njit(**SUMS)
def factor(diagonal, off):
    """Tridiagonal kernel: replace diagonals by the pivots of the factorization L D L' of each column's matrix."""
    rows, columns = diagonal.shape
    for begin in range(0, columns, BLOCK):
        end = min(begin + BLOCK, columns)
        for t in range(1, rows):
            for i in range(begin, end):
                diagonal[t, i] -= off[i] * off[i] / diagonal[t - 1, i]


@njit(**SUMS)
def solve(pivots, off, x):
    """Tridiagonal kernel: solve the system of each column in place; x holds right sides, then solutions."""
    rows, columns = pivots.shape
    for begin in range(0, columns, BLOCK):
        end = min(begin + BLOCK, columns)
        for t in range(1, rows):
            for i in range(begin, end):
                x[t, i] -= off[i] / pivots[t - 1, i] * x[t - 1, i]
        for i in range(begin, end):
            x[rows - 1, i] /= pivots[rows - 1, i]
        for t in range(rows - 2, -1, -1):
            for i in range(begin, end):
                x[t, i] = (x[t, i] - off[i] * x[t + 1, i]) / pivots[t, i]


@njit(**SUMS)
def inverse(pivots, off, variances, covariances):
    """Tridiagonal kernel: the diagonal of each column's inverse matrix, and the numbers beside the diagonal."""
    rows, columns = pivots.shape
    for begin in range(0, columns, BLOCK):
        end = min(begin + BLOCK, columns)
        for i in range(begin, end):
            variances[rows - 1, i] = 1 / pivots[rows - 1, i]
        for t in range(rows - 2, -1, -1):
            for i in range(begin, end):
                ratio = off[i] / pivots[t, i]
                covariances[t, i] = -ratio * variances[t + 1, i]
                variances[t, i] = 1 / pivots[t, i] + ratio * ratio * variances[t + 1, i]


@njit(**SUMS)
def times(first, middle, last, off, x, result):
    """Tridiagonal kernel: add the product of each column's matrix and the column x to `result`.

    The diagonal of column i is first[i], then middle[i] on all rows between, and last[i]."""
    rows, columns = x.shape
    for begin in range(0, columns, BLOCK):
        end = min(begin + BLOCK, columns)
        for t in range(rows):
            if t == 0:
                diagonal = first
            elif t == rows - 1:
                diagonal = last
            else:
                diagonal = middle
            for i in range(begin, end):
                result[t, i] += diagonal[i] * x[t, i]
            if t > 0:
                for i in range(begin, end):
                    result[t, i] += off[i] * x[t - 1, i]
            if t + 1 < rows:
                for i in range(begin, end):
                    result[t, i] += off[i] * x[t + 1, i]
