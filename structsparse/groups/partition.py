"""Disjoint groups: the class `Partition`, and functions that make partitions by rows, columns and row blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups.group_weights import checked_weights
from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.prox import blocks as kernels


class Partition(nn.Module):
    """Disjoint groups of the entries of one parameter.

    - `ids`: the group of each entry, -1 for free entries (unpenalised, always alive). It broadcasts against the
      parameter: the shape [rows, 1] groups rows, [1, labels] groups columns, the full shape groups entries.
    - `size`: the number of entries of each group.
    - `weights`: the factor of each group: "one" (1), "sqrt_size" (sqrt(size)), "log2_size" (log2(1 + size)) or a
      tensor. A group without entries has weight 0.
    - `parameter`: the name of the parameter in messages.
    """

    whole = False  # whether no row may be removed from the parameter, as the groups come from a file of row indices

    def __init__(
        self,
        ids: Tensor,
        names: Sequence[str],
        shape: Sequence[int],
        weights: str | Tensor = "sqrt_size",
        parameter: str = "the parameter",
    ):
        super().__init__()
        self.names, self.shape, self.parameter = names, torch.Size(shape), parameter
        ids = _checked_ids(ids, len(names), self.shape, parameter)
        # dimensions along which all entries have the same group
        self.shared = [d for d, n in enumerate(self.shape) if ids.shape[d] == 1 < n]
        flat = ids.flatten()
        self.free = bool((flat < 0).any())
        self.aligned = len(flat) == len(names) and bool((flat == torch.arange(len(flat))).all())
        count = torch.bincount(flat + 1, minlength=len(names) + 1)[1:]
        size = count * (self.shape.numel() // max(1, ids.numel()))
        self.register_buffer("ids", ids)
        self.register_buffer("size", size)
        self.register_buffer("weight", checked_weights(weights, size, names))
        self.register_buffer("offsets", _row_offsets(count) if _row_after_row(ids, self.shape) else None)

    def __len__(self) -> int:
        return len(self.names)

    def extra_repr(self) -> str:
        """Partition: the number of groups and the parameter, for the printed form of the module."""
        return f"{len(self)} groups over {self.parameter} {tuple(self.shape)}"

    def sums(self, X: Tensor) -> Tensor:
        """Partition: the sum of X over the entries of each group (float64 tensor [groups])."""
        self.check(X)
        totals = (X.sum(self.shared, keepdim=True) if self.shared else X).double().flatten()
        if self.aligned:
            return totals
        ids = self.ids.flatten()
        # the group of each entry; entries in no group (-1) get the additional group len(self)
        slots = ids.remainder(len(self) + 1) if self.free else ids
        return totals.new_zeros(len(self) + 1).index_add(0, slots, totals)[: len(self)]

    def norms(self, W: Tensor) -> Tensor:
        """Partition into disjoint groups: the Euclidean norm of W on each group (float64 tensor [groups]).

        The gradient of a zero norm is zero.
        """
        squares = self._block_sums(W, 2) if self.in_blocks(W) else self.sums(W * W)
        if not squares.requires_grad:
            return squares.sqrt()
        positive = squares > 0
        return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)

    def nonzeros(self, W: Tensor) -> Tensor:
        """Partition into disjoint groups: the number of nonzero entries of W in each group (float64 [groups])."""
        return self.sums_past(W, self.weight.new_zeros(len(self)))[0] if self.in_blocks(W) else self.sums(W != 0)

    def alive(self, W: Tensor) -> Tensor:
        """Partition into disjoint groups: for each group, whether it has a nonzero entry of W (bool [groups])."""
        return (self._block_sums(W, 1) if self.in_blocks(W) else self.sums(W != 0)) != 0

    def sums_past(self, W: Tensor, cuts: Tensor) -> Tensor:
        """Partition: count and sums of the entries of each group that exceed a cut: [3, groups], float64.

        An entry w of group g exceeds the cut if |w| > cuts[g]. The three rows are the number of these entries, the sum
        of |w| - cuts[g], and the sum of (|w| - cuts[g])^2.
        """
        if self.in_blocks(W):
            sums = torch.zeros(3, len(self), dtype=torch.float64)
            kernels.block_sums_past(
                flat_array(W), self.offsets.numpy(), self.shape[1:].numel(), cuts.numpy(), sums.numpy()
            )
            return sums
        past = (W.abs().double() - self.expand(cuts, fill=0.0)).clamp(min=0)
        return torch.stack([self.sums(past > 0), self.sums(past), self.sums(past * past)])

    def expand(self, values: Tensor, fill: float) -> Tensor:
        """Partition into disjoint groups: expand values [groups] to one value per entry.

        Entries in no group get `fill`. The result is broadcastable against the parameter.
        """
        if self.aligned:
            return values.view(self.ids.shape)
        if self.free:
            values = torch.cat([values, values.new_full((1,), fill)])  # the id -1 (no group) selects the last value
        return values[self.ids]

    def in_blocks(self, W: Tensor) -> bool:
        """Partition: whether the numba kernels for contiguous row blocks can work on the memory of W."""
        self.check(W)
        return self.offsets is not None and walkable(W)

    def check(self, W: Tensor) -> None:
        """Partition into disjoint groups: raise UserError if a tensor does not have the shape of the parameter."""
        if W.shape != self.shape:
            raise UserError(f"these groups are of {self.parameter} {tuple(self.shape)}, got a tensor {tuple(W.shape)}")

    def _block_sums(self, W: Tensor, power: int) -> Tensor:
        """Partition into contiguous rows: the sum of |W|^power over each group, by numba (float64 tensor [groups])."""
        sums = torch.zeros(len(self), dtype=torch.float64)
        kernels.block_sums(flat_array(W), self.offsets.numpy(), self.shape[1:].numel(), power, sums.numpy())
        return sums


class RowBlocks(Partition):
    """Partition into blocks of contiguous rows: group k has the rows offsets[k] : offsets[k + 1].

    A table may have many millions of rows. To save memory, `ids` are computed on first use.
    """

    free = False

    def __init__(
        self, offsets: Tensor, names: Sequence[str], shape: Sequence[int], weights: str | Tensor, parameter: str
    ):
        nn.Module.__init__(self)
        self.names, self.shape, self.parameter = names, torch.Size(shape), parameter
        lengths = offsets.diff()
        self.shared = [d for d, n in enumerate(self.shape) if d > 0 and n > 1]
        self.aligned = bool((lengths == 1).all())
        self.register_buffer("size", lengths * self.shape[1:].numel())
        self.register_buffer("weight", checked_weights(weights, self.size, names))
        self.register_buffer("offsets", offsets)
        self._ids: Tensor | None = None

    @property
    def ids(self) -> Tensor:
        """Partition into blocks of contiguous rows: the group of each row.

        The ids are broadcastable against the parameter.
        """
        if self._ids is None or self._ids.device != self.offsets.device:
            self._ids = self._by_row(torch.arange(len(self), device=self.offsets.device))
        return self._ids

    def expand(self, values: Tensor, fill: float) -> Tensor:
        """Partition into blocks of contiguous rows: expand values [groups] to one value per row.

        `fill` is ignored, as each row lies in a group.
        """
        return self._by_row(values)

    def _by_row(self, values: Tensor) -> Tensor:
        """Partition into blocks of contiguous rows: expand values [groups] to one value per row.

        The result is broadcastable against the parameter.
        """
        wide = torch.repeat_interleave(values, self.offsets.diff(), output_size=self.shape[0])
        return _along(wide, 0, self.shape)


class RowNames(Sequence):
    """The names of the groups in a partition by row, `row 0`, `row 1`, ..., each made on demand."""

    def __init__(self, rows: int):
        self.rows = range(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row):
        return [f"row {i}" for i in self.rows[row]] if isinstance(row, slice) else f"row {self.rows[row]}"


def by_row_blocks(
    shape: Sequence[int],
    names: Sequence[str],
    offsets: Sequence[int] | Tensor,
    weights: str | Tensor = "sqrt_size",
    parameter: str = "the parameter",
) -> Partition:
    """Partition into blocks of contiguous rows: the rows offsets[k] : offsets[k + 1] form the group names[k]."""
    offsets = torch.as_tensor(offsets, dtype=torch.long)
    if len(offsets) != len(names) + 1:
        raise UserError(f"{len(names)} groups of {parameter} need {len(names) + 1} offsets, got {len(offsets)}")
    lengths = offsets.diff()
    if (lengths < 0).any():
        k = int((lengths < 0).nonzero()[0])
        raise UserError(f"the rows of group {names[k]} start at {offsets[k]} and end before, at {offsets[k + 1]}")
    if offsets[0] != 0 or offsets[-1] != shape[0]:
        raise UserError(f"the groups cover rows {offsets[0]} to {offsets[-1]}, {parameter} has rows 0 to {shape[0]}")
    return RowBlocks(offsets, names, shape, weights, parameter)


def by_row(
    shape: Sequence[int],
    names: Sequence[str] | None = None,
    weights: str | Tensor = "sqrt_size",
    parameter: str = "the parameter",
) -> Partition:
    """Partition by row: each row of the parameter is a group, as in feature selection."""
    names = RowNames(shape[0]) if names is None else names
    return _by_dimension(0, shape, names, weights, parameter)


def by_column(
    shape: Sequence[int],
    names: Sequence[str],
    weights: str | Tensor = "sqrt_size",
    parameter: str = "the parameter",
) -> Partition:
    """Partition by column: each column of the parameter is a group, such as the weights of one label."""
    if len(shape) < 2:
        raise UserError(f"{parameter} {tuple(shape)} has no columns to group")
    return _by_dimension(1, shape, names, weights, parameter)


def _by_dimension(dimension, shape, names, weights, parameter) -> Partition:
    """Partition along one dimension: one group for each index of the dimension."""
    if len(names) != shape[dimension]:
        raise UserError(f"{len(names)} names for the {shape[dimension]} {_noun(dimension)} of {parameter}")
    return Partition(_along(torch.arange(len(names)), dimension, shape), names, shape, weights, parameter)


def _along(ids: Tensor, dimension: int, shape: Sequence[int]) -> Tensor:
    """Partition along one dimension: a vector of group ids, reshaped to broadcast against the parameter."""
    return ids.view([-1 if d == dimension else 1 for d in range(len(shape))])


def _noun(dimension: int) -> str:
    """Partition along one dimension: the noun for this dimension in messages, such as rows or columns."""
    return ("rows", "columns")[dimension] if dimension < 2 else f"entries along dimension {dimension}"


def _checked_ids(ids: Tensor, groups: int, shape: torch.Size, parameter: str) -> Tensor:
    """Partition: check the group ids and reshape them to as many dimensions as the parameter has."""
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise UserError(f"group ids of {parameter} must be integers, got {ids.dtype}")
    if ids.dim() > len(shape):
        raise UserError(f"group ids {tuple(ids.shape)} have more dimensions than {parameter} {tuple(shape)}")
    ids = ids.long().cpu().view([1] * (len(shape) - ids.dim()) + list(ids.shape))
    for d, (have, want) in enumerate(zip(ids.shape, shape, strict=True)):
        if have not in (1, want):
            raise UserError(f"groups say {have} {_noun(d)}, {parameter} has {want} {_noun(d)}")
    wrong = (ids < -1) | (ids >= groups)
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise UserError(
            f"group id {ids[tuple(where)]} at {where} of {parameter}: expected -1 (free) to {groups - 1}, "
            f"as there are {groups} names"
        )
    return ids


def _row_after_row(ids: Tensor, shape: torch.Size) -> bool:
    """Whether the groups of a partition are contiguous blocks of rows, and each row lies in a group."""
    flat = ids.flatten()
    one_a_row = len(shape) > 0 and ids.shape[0] == shape[0] == len(flat)
    return one_a_row and not (flat < 0).any() and not (flat.diff() < 0).any()


def _row_offsets(count: Tensor) -> Tensor:
    """Partition into blocks of contiguous rows: the first row of each group, then the number of rows."""
    return torch.cat([count.new_zeros(1), count.cumsum(0)])
