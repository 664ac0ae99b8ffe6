"""Structured elastic net penalty: overlapping group lasso, lasso and weighted squares in one elastic net."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.groups import Cover, Partition
from structsparse.groups.layouts import TableLayout
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Penalty, RowParts, checked, checked_entry_weights, past_signs, row_norms
from structsparse.penalties.overlaps import _checked_cover, climb
from structsparse.prox import Steps
from structsparse.prox.steps import thresholds

FREQUENCIES = ("documents", "counts")  # number of training documents with a word; number of the word's tokens


class StructuredElasticNet(Penalty):
    """Structured elastic net penalty: overlapping group norms, l1 norm (lasso) and weighted squares.

    The value is

        strength * (group * sum_g weight_g ||W_g|| + lasso * sum_i |W_i| + squares / 2 * sum_i frequency_i W_i^2).

    W_g are the entries of group g, and weight_g is its factor. The groups may overlap; the other sums run over all
    entries. W is [rows] or [rows, classes], and a group of rows contains the entries of all classes.

    `frequency` is a tensor [rows] with the factor of the squares of each row, by default 1. It may also be the name
    "documents" or "counts". Then `fit` reads the frequency of each word from the layout of the table. With group=0 the
    groups do not change the value; only `gap` and reports of nonzero groups use them. `prox_` is exact up to
    `tolerance`, as in OverlappingGroupLasso."""

    groups: Cover | None
    takes = (None, Cover, Partition)

    def __init__(
        self,
        strength: float = 1.0,
        groups: Cover | None = None,
        group: float = 0.0,
        lasso: float = 0.0,
        squares: float = 0.0,
        frequency: Tensor | str | None = None,
        tolerance: float = prox.TOLERANCE,
    ):
        super().__init__(strength, None if groups is None else _checked_cover(groups, type(self).__name__))
        name = type(self).__name__
        self.group, self.lasso = checked(group, f"the group of {name}"), checked(lasso, f"the lasso of {name}")
        self.squares, self.tolerance = checked(squares, f"the squares of {name}"), checked(tolerance, "tolerance", 1)
        if groups is None and self.group > 0:
            raise UserError(f"{name} has group={self.group:g} but no groups: expected groups, or group=0")
        self.source = frequency if isinstance(frequency, str) else None
        if self.source is not None and self.source not in FREQUENCIES:
            raise UserError(f"unknown frequency {frequency!r} of {name}: expected {', '.join(FREQUENCIES)} or null")
        weights = None if self.source else checked_entry_weights(frequency, f"the frequency of {name}")
        self.register_buffer("frequency", weights)

    @classmethod
    def mixed(cls, squares: float, sparse: float) -> Mapping[str, float] | None:
        """Structured elastic net penalty: its options for given strengths of squares and of group norms (`sparse`)."""
        return {"squares": squares, "group": sparse}

    def fit(self, layout: TableLayout) -> None:
        """Structured elastic net penalty: if `frequency` is a name, read the frequency of each row from the layout."""
        if self.source is not None:
            self.frequency = layout.frequency(self.source)
            if self.frequency is None:
                raise UserError(f"{type(self).__name__}: frequency={self.source} is for a table of words")

    def value(self, W: Tensor) -> Tensor:
        """Structured elastic net penalty: the value, strength times overlapping group norms, l1 norm and squares."""
        omega = W.new_zeros((), dtype=torch.float64)
        if self.group > 0:
            omega = omega + self.group * (self.groups.weight * self.groups.norms(W)).sum()
        if self.lasso > 0:
            omega = omega + self.lasso * power_sum(W, 1)
        if self.squares > 0:
            weights = self._frequency(W)
            omega = omega + self.squares / 2 * (power_sum(W, 2) if weights is None else (weights * W * W).sum())
        return self.strength * omega

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Structured elastic net penalty: the prox, in place.

        The prox of the squares comes first, then the soft threshold, then the prox of the overlapping groups."""
        steps = self._past_squares_(W, steps)
        if self.lasso > 0:
            prox.soft_threshold_(W, self.strength * self.lasso, steps)
        if self.group > 0:
            prox.overlapping_shrink_(W, self.groups, self.strength * self.group, 0.0, steps, self.tolerance)
        return W

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Structured elastic net penalty: norm of the smallest subgradient in each overlapping group.

        `rest` computes the subgradient. Rows that lie in no group are not included. If the penalty has no groups, the
        result has one norm per row."""
        rest = self.rest(W, grad)
        return row_norms(rest) if self.groups is None else self.groups.norms(rest)

    @torch.no_grad()
    def rest(self, W: Tensor, grad: Tensor) -> Tensor:
        """Structured elastic net penalty: smallest subgradient of loss plus penalty, zero where W is optimal.

        `grad` is the gradient of the loss at W. First, the gradients of the squares and of the norms of nonzero groups
        are added. The penalties of zero entries and zero groups can balance part of this sum. A prox computes the
        remainder (Moreau's decomposition)."""
        rest = grad.clone()
        if self.squares > 0:
            weights = self._frequency(W)
            rest += self.strength * self.squares * (W if weights is None else weights.to(W.dtype) * W)
        dead = None
        if self.group > 0:
            norms, reach = self.groups.norms(W), self.strength * self.group
            pull = self.groups.scatter(torch.where(norms > 0, reach * self.groups.weight / norms, 0.0))
            rest += self.groups.expand(pull, fill=0.0).to(W.dtype) * W
            dead = torch.where(norms > 0, 0.0, self.groups.weight)
        rest = past_signs(rest, W, torch.as_tensor(self.strength * self.lasso).to(W.dtype))
        if dead is not None:
            prox.overlapping_shrink_(rest, self.groups, reach, 0.0, 1.0, self.tolerance, weight=dead)
        return rest

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Structured elastic net penalty: critical strength, the dual norm of the gradient of the loss at W = 0.

        The result is None if only squares are penalised."""
        if self.lasso == 0 and self.group == 0:
            return None
        size = grad_at_zero.abs().double()
        if self.group == 0:
            return (size.max() if size.numel() else size.new_zeros(())) / self.lasso
        if self.lasso == 0:
            reached = self.groups.covered() & self.groups.expand(self._reached(), fill=False)
            size = torch.where(reached, size, 0.0)
        return climb(size, self._norm, self._shrunk, prox.new_dual(self.groups, 1.0, size.device))

    def survivors(self, W: Tensor) -> Tensor:
        """Structured elastic net penalty: mask of the nonzero entries.

        If only groups are penalised, the mask selects all entries that lie in no zero group."""
        if self.lasso > 0 or self.group == 0:
            return W != 0
        return self.groups.spared(W).expand_as(W)

    def row_parts(self, rows: int) -> RowParts:
        """Structured elastic net penalty of a table, as group norms, l1 norm and weighted squares of rows.

        `rows` is the number of rows of the table."""
        strength = float(self.strength)
        weights = self._frequency(torch.zeros(rows)) if self.squares > 0 else None
        frequency = torch.ones(rows, dtype=torch.float64) if weights is None else weights.cpu().double()
        groups = torch.zeros(0) if self.groups is None else self.groups.weight.cpu()
        reach = strength * self.group * groups.double()
        return RowParts(strength * self.lasso, strength * self.squares * frequency, self.groups, reach)

    def without_groups(self) -> StructuredElasticNet | None:
        """Structured elastic net penalty with only l1 norm and squares; None if the penalty has no groups."""
        if self.groups is None:
            return None
        parts = 0.0, self.lasso, self.squares, self.frequency
        return StructuredElasticNet(float(self.strength), self.groups, *parts)

    def _norm(self, V: Tensor) -> Tensor:
        """Structured elastic net penalty: overlapping group norms plus l1 norm of V, without squares and strength."""
        return self.group * (self.groups.weight * self.groups.norms(V)).sum() + self.lasso * V.abs().sum()

    def _shrunk(self, size: Tensor, strength: Tensor, **how) -> Tensor:
        """Structured elastic net penalty without squares: the prox at the nonnegative vector `size`, with steps of 1.

        The argument `strength` is used instead of the strength of the penalty object."""
        V = (size - strength * self.lasso).clamp(min=0)
        return prox.overlapping_shrink_(V, self.groups, strength * self.group, 0.0, 1.0, **how)

    def _reached(self) -> Tensor:
        """Structured elastic net penalty: mask of the atoms that lie in a group with nonzero factor.

        Atoms are sets of entries that no group divides."""
        return self.groups.scatter(self.groups.weight > 0) > 0

    def _past_squares_(self, W: Tensor, steps: Steps) -> Steps:
        """Structured elastic net penalty: apply the prox of the squares to W in place.

        Returns the shortened steps for the prox of the l1 norm and the groups."""
        if self.squares == 0:
            return steps
        ridge, weights = self.strength * self.squares, self._frequency(W)
        if weights is not None:
            ridge = ridge * weights
        shrink = 1 + thresholds(ridge, steps, W)
        W.div_(shrink)
        return torch.as_tensor(steps, dtype=torch.float64) / shrink

    def _frequency(self, W: Tensor) -> Tensor | None:
        """Structured elastic net penalty: the frequency of each row, shaped to broadcast against W.

        The result is None if all frequencies are 1. Raises UserError if the frequencies do not fit the rows of W."""
        if self.frequency is None:
            if self.source is not None:
                raise UserError(f"{type(self).__name__} has frequency={self.source} but was not fitted to a layout")
            return None
        if self.frequency.shape != W.shape[:1]:
            raise UserError(
                f"{type(self).__name__} has {tuple(self.frequency.shape)} frequencies for {tuple(W.shape)} weights; "
                f"expected one for each of {W.shape[0] if W.dim() else 0} rows"
            )
        return self.frequency.view(-1, *[1] * (W.dim() - 1))

    def extra_repr(self) -> str:
        """Structured elastic net penalty: the coefficients that are shown when the module is printed."""
        return f"{super().extra_repr()}, group={self.group:g}, lasso={self.lasso:g}, squares={self.squares:g}"
