"""Kernels of products of dated sparse rows with a table [periods, columns]: each row meets the weights of its period.

Row n has the columns columns[offsets[n] : offsets[n + 1]]. `values` has a number for each of them; without numbers
(an empty array), all are 1."""

from numba import njit

from structsparse.kernels.options import SUMS


@njit(**SUMS)
def scores(columns, values, offsets, period, table, result):
    """Dated rows kernel: result[n] = sum over the entries of row n of value * table[period[n], column]."""
    for n in range(period.size):
        weights, total = table[period[n]], 0.0
        if values.size:
            for k in range(offsets[n], offsets[n + 1]):
                total += values[k] * weights[columns[k]]
        else:
            for k in range(offsets[n], offsets[n + 1]):
                total += weights[columns[k]]
        result[n] = total


@njit(**SUMS)
def pull(columns, values, offsets, period, numbers, power, result):
    """Dated rows kernel: add numbers[n] * value^power to result[period[n], column], for each entry of each row n.

    `power` is 1 or 2."""
    for n in range(period.size):
        sums, number = result[period[n]], numbers[n]
        if values.size and power == 1:
            for k in range(offsets[n], offsets[n + 1]):
                sums[columns[k]] += number * values[k]
        elif values.size:
            for k in range(offsets[n], offsets[n + 1]):
                sums[columns[k]] += number * values[k] * values[k]
        else:
            for k in range(offsets[n], offsets[n + 1]):
                sums[columns[k]] += number
