"""Designs of models whose weights depend on time: each item meets the weights of its own period.

A design is linear in a table of weights [periods, columns]. It computes scores, their transpose (`pull`), and the sums
of squares that are the diagonal of a Hessian (`squares`). On the CPU, compiled loops are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from structsparse.kernels.weights import dated_rows as kernels


class Design(Protocol):
    """The interface of dated designs: products with a table of weights [periods, columns]."""

    def scores(self, table: Tensor) -> Tensor:
        """Dated design: the scores of the items, each with the weights of its period."""

    def pull(self, numbers: Tensor, periods: int) -> Tensor:
        """Dated design: the transpose of `scores`, from numbers with the shape of scores to [periods, columns]."""

    def squares(self, numbers: Tensor, periods: int) -> Tensor:
        """Dated design: the sum over items of number * (coefficient of a weight in a score)^2, for each weight."""


@dataclass
class DatedRows:
    """Dated design of sparse rows, an item each. The mean `centre` is taken from each row, without filling it."""

    columns: Tensor  # int32 [entries], in the order of rows
    values: Tensor  # float32 or float64 [entries]; empty: all values are 1
    offsets: Tensor  # int64 [rows + 1]
    period: Tensor  # int64 [rows]
    width: int  # number of columns
    centre: Tensor | None = None  # float64 [columns]

    def to(self, device: torch.device | str) -> DatedRows:
        """Dated rows: a copy on a device."""
        moved = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **moved)

    def scores(self, table: Tensor) -> Tensor:
        """Dated rows: the scores of all rows, [rows]."""
        if self._compiled(table):
            result = table.new_empty(len(self.period))
            kernels.scores(*self._arrays(), table.numpy(), result.numpy())
        else:
            weights = self._weighted(table.flatten()[self._places(table.shape[1])])
            result = table.new_zeros(len(self.period)).index_add_(0, self._owners(), weights)
        if self.centre is not None:
            result -= (table @ self.centre)[self.period]
        return result

    def pull(self, numbers: Tensor, periods: int) -> Tensor:
        """Dated rows: the sums of number * row over the rows of each period, [periods, columns]."""
        result = self._sums(numbers, periods, 1)
        if self.centre is not None:
            result.addr_(self._totals(numbers, periods), self.centre, alpha=-1)
        return result

    def squares(self, numbers: Tensor, periods: int) -> Tensor:
        """Dated rows: the sums of number * row^2 over the rows of each period, [periods, columns]."""
        result = self._sums(numbers, periods, 2)
        if self.centre is not None:
            result.addr_(self._totals(numbers, periods), self.centre.square())
            result.addcmul_(self._sums(numbers, periods, 1), self.centre, value=-2)
        return result.clamp_(min=0)

    def _totals(self, numbers: Tensor, periods: int) -> Tensor:
        """Dated rows: the sum of the numbers of the rows of each period."""
        return numbers.new_zeros(periods).index_add_(0, self.period, numbers)

    def _sums(self, numbers: Tensor, periods: int, power: int) -> Tensor:
        """Dated rows: the sums of number * value^power by period and column."""
        result = numbers.new_zeros(periods, self.width)
        if self._compiled(numbers):
            kernels.pull(*self._arrays(), numbers.numpy(), power, result.numpy())
            return result
        entries = numbers[self._owners()]
        for _ in range(power):
            entries = self._weighted(entries)
        result.view(-1).index_add_(0, self._places(self.width), entries)
        return result

    def _weighted(self, entries: Tensor) -> Tensor:
        """Dated rows: numbers of entries, times the values of the entries."""
        return entries * self.values.to(entries.dtype) if len(self.values) else entries

    def _owners(self) -> Tensor:
        """Dated rows: the row of each entry."""
        rows = torch.arange(len(self.period), device=self.period.device)
        return rows.repeat_interleave(self.offsets.diff(), output_size=len(self.columns))

    def _places(self, width: int) -> Tensor:
        """Dated rows: the place of each entry's weight in the flattened table."""
        return self.period[self._owners()] * width + self.columns

    def _compiled(self, x: Tensor) -> bool:
        """Dated rows: whether the compiled loops can run."""
        return x.device.type == "cpu" and x.dtype == torch.float64 and x.is_contiguous() and not x.requires_grad

    def _arrays(self) -> tuple:
        """Dated rows: columns, values, offsets and periods as numpy arrays."""
        return tuple(part.numpy() for part in (self.columns, self.values, self.offsets, self.period))


@dataclass
class DatedCounts:
    """Dated design of documents with effects, whose words have a score each: effects[d] @ table[period] for all words.

    The columns of the table are effects times words, with the words of an effect beside each other."""

    effects: Tensor  # float64 [documents, effects]
    period: Tensor  # int64 [documents]
    words: int
    living: Tensor | None = None  # int64, the columns that the table has; None: all

    def to(self, device: torch.device | str) -> DatedCounts:
        """Dated counts: a copy on a device."""
        moved = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **moved)

    def scores(self, table: Tensor) -> Tensor:
        """Dated counts: the scores of all words of all documents, [documents, words]."""
        if self.living is not None:
            whole = table.new_zeros(len(table), self.effects.shape[1] * self.words)
            table = whole.index_copy_(1, self.living, table)
        weights = table.view(len(table), self.effects.shape[1], self.words)[self.period]
        return torch.einsum("de,dev->dv", self.effects, weights)

    def pull(self, numbers: Tensor, periods: int) -> Tensor:
        """Dated counts: the sums of effect * number over the documents of each period, [periods, effects * words]."""
        return self._sums(self.effects, numbers, periods)

    def squares(self, numbers: Tensor, periods: int) -> Tensor:
        """Dated counts: the sums of effect^2 * number over the documents of each period."""
        return self._sums(self.effects.square(), numbers, periods)

    def _sums(self, effects: Tensor, numbers: Tensor, periods: int) -> Tensor:
        """Dated counts: the sums of effect * number over the documents of each period."""
        outer = (effects[:, :, None] * numbers[:, None, :]).flatten(1)
        sums = outer.new_zeros(periods, outer.shape[1]).index_add_(0, self.period, outer)
        return sums if self.living is None else sums[:, self.living].contiguous()


class _Scores(torch.autograd.Function):
    """The scores of a dated design as a differentiable function of the table."""

    @staticmethod
    def forward(ctx, table: Tensor, design: Design) -> Tensor:
        """Dated design: the scores of the items."""
        ctx.design, ctx.periods = design, len(table)
        return design.scores(table.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        """Dated design: the gradient with respect to the table."""
        return ctx.design.pull(grad.contiguous(), ctx.periods), None


scores: Callable[[Tensor, Design], Tensor] = _Scores.apply
