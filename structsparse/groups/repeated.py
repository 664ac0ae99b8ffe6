"""Nested or overlapping groups that are the same in every column of a table, such as the dimensions of word vectors."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups.cover import Cover, Numbered
from structsparse.groups.forest import Forest
from structsparse.groups.partition import Partition

COLUMNS = 4096  # columns of a part of a table
GROWTH = 1.25  # parts of a table have as many columns as a power of it, so that few covers are made


class RepeatedForest(Forest):
    """Forest of nested groups that is repeated in every column of a table: a group is a subtree in one column.

    `ids` [rows] is the node of each row, -1 for free rows. Functions of nodes return arrays [nodes, columns]. A table
    may have any number of columns, so that some columns of the parameter can be processed alone."""

    repeated = True

    def __init__(
        self,
        parents: Sequence[int] | Tensor,
        ids: Tensor,
        names: Sequence[str],
        shape: Sequence[int],
        weights: str | Tensor = "sqrt_size",
        parameter: str = "the parameter",
    ):
        if len(shape) != 2:
            raise UserError(f"{parameter} {tuple(shape)} has no columns, in each of which a forest would be repeated")
        super().__init__(parents, ids, names, shape[:1], weights, parameter)
        self.host = self.parents.cpu().long(), self.own.ids.cpu()  # stays on the CPU, for other numbers of columns
        self.shape, self.names = torch.Size(shape), ColumnNames(names, shape[1])
        self.node_names = names
        self.weight, self.size = self.weight[:, None], self.size[:, None]
        place = torch.arange(len(names)) if self.place is None else self.place.long()
        places = torch.where(ids < 0, -1, place[ids.clamp(min=0)]) if len(names) else ids
        self.register_buffer("places", places.to(torch.int32))  # for each row, the place of its node in level order

    def extra_repr(self) -> str:
        """Repeated forest: the numbers of nodes and levels in each column, for the printed form of the module."""
        return f"{len(self.node_names)} nodes, {self.height} levels in each column of {tuple(self.shape)}"

    @property
    def ids(self) -> Tensor:
        """Repeated forest of groups: the node of each row, -1 for free rows (int64 tensor [rows, 1])."""
        return self.own.ids[:, None]

    def check(self, W: Tensor) -> None:
        """Repeated forest of groups: raise UserError if a table has not the rows of the parameter."""
        if W.dim() != 2 or W.shape[0] != self.shape[0]:
            raise UserError(
                f"these groups are of {self.parameter} with {self.shape[0]} rows, got a tensor {tuple(W.shape)}"
            )

    def in_memory(self, W: Tensor) -> bool:
        """Repeated forest of groups: no kernel for the groups of one forest can work on a table with many."""
        self.check(W)
        return False

    def sums(self, X: Tensor) -> Tensor:
        """Repeated forest of groups: the sum of X over each subtree in each column: float64 [nodes, columns]."""
        self.check(X)
        return self.add_up(self.own_sums(X))

    def own_sums(self, X: Tensor) -> Tensor:
        """Repeated forest: the sum of X over the own entries of each node in each column: float64 [nodes, columns].

        Own entries of a node are those that belong to no node below it."""
        totals = X.new_zeros(len(self.node_names) + 1, X.shape[1], dtype=torch.float64)
        return totals.index_add(0, self.own.ids.remainder(len(totals)), X.double())[:-1]

    def maxima(self, W: Tensor) -> Tensor:
        """Repeated forest of groups: the largest absolute value of each subtree in each column: [nodes, columns]."""
        return self.plain(W).maxima(W).view(len(self.node_names), W.shape[1])

    def expand(self, values: Tensor, fill: float) -> Tensor:
        """Repeated forest of groups: expand values [nodes, columns] to one value per entry, [rows, columns].

        Free rows get `fill`."""
        return torch.cat([values, values.new_full((1, *values.shape[1:]), fill)])[self.own.ids]

    def add_up(self, values: Tensor) -> Tensor:
        """Repeated forest of groups: for each node and column, the sum of `values` over its subtree."""
        levels = list(self._by_level(values))
        for k in range(self.height - 1, 0, -1):
            levels[k - 1] = levels[k - 1].index_add(0, self._parents_at(k), levels[k])
        return self.in_nodes(torch.cat(levels)) if levels else values

    def add_down(self, values: Tensor) -> Tensor:
        """Repeated forest of groups: for each node and column, the sum of `values` over the path from its root."""
        levels = list(self._by_level(values))
        for k in range(1, self.height):
            levels[k] = levels[k] + levels[k - 1].index_select(0, self._parents_at(k))
        return self.in_nodes(torch.cat(levels)) if levels else values

    def parts(self, X: Tensor) -> Sequence[Tensor]:
        """Repeated forest of groups: parts of the table X, which have some of its columns each."""
        return [part.contiguous() for part in X.split(COLUMNS, dim=1)]

    def plain(self, W: Tensor) -> Forest:
        """Repeated forest of groups: the groups of the table W as one forest, which has the nodes of every column."""
        columns = W.shape[1]
        if columns not in self.scratch:
            self.scratch.clear()  # only the last number of columns is remembered
            forest = self._plain(columns).to(W.device)
            forest.weight = self.weight.expand(-1, columns).flatten()
            self.scratch[columns] = forest
        return self.scratch[columns]

    def _plain(self, columns: int) -> Forest:
        """Repeated forest of groups: one forest over a table of so many columns, with weights of one.

        Node k of column c is node k * columns + c."""
        numbers = torch.arange(columns)
        parents, ids = self.host
        below = torch.where(parents[:, None] < 0, -1, parents[:, None] * columns + numbers).flatten()
        owners = torch.where(ids[:, None] < 0, -1, ids[:, None] * columns + numbers)
        names = ColumnNames(self.node_names, columns)
        return Forest(below, owners, names, (self.shape[0], columns), "one", self.parameter)

    def _by_level(self, values: Tensor) -> Sequence[Tensor]:
        """Repeated forest of groups: values [nodes, columns] of each level, in level order."""
        return self.in_levels(values).split(torch.as_tensor(self.levels).diff().tolist())

    def _parents_at(self, level: int) -> Tensor:
        """Repeated forest of groups: for each node of a level, the place of its parent within the level above."""
        levels = self.levels.tolist()
        return self.above[levels[level] : levels[level + 1]].long() - levels[level - 1]


class RepeatedCover(Cover):
    """Cover of overlapping groups of rows that is repeated in every column of a table.

    A group holds some rows of one column. `groups` lists the rows of each group of a column, `names` their names. The
    prox works on tables with any number of columns, so that some columns of the parameter can be processed alone."""

    node_names = ()  # the groups are no nodes, one for each row

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        names: Sequence[str],
        shape: Sequence[int],
        weights: str = "sqrt_size",
        parameter: str = "the parameter",
    ):
        self.of_column, self.how = (groups, names), (weights, parameter)
        super().__init__(*_repeated(groups, shape, parameter), ColumnNames(names, shape[1], by_column=True), weights)
        self.parts = {}  # covers of parts of the table, by their number of columns

    def apply_(self, W: Tensor, operate: Callable[[Tensor, Cover], object]) -> Tensor:
        """Repeated cover: apply operate(table, cover) in place to parts of the table W, which have some of its columns.

        Each part has further columns of zeros, up to a number of columns for which a cover may exist already."""
        if W.dim() != 2 or W.shape[0] != self.shape[0]:
            raise UserError(
                f"these groups are of {self.shape[0]} rows of {self.parameter}, got a tensor {tuple(W.shape)}"
            )
        for part in W.split(COLUMNS, dim=1):
            size = math.ceil(GROWTH ** math.ceil(math.log(part.shape[1], GROWTH))) if part.shape[1] else 0
            table = torch.zeros(len(W), size, dtype=W.dtype, device=W.device)
            table[:, : part.shape[1]] = part
            if size not in self.parts:
                names, (weights, parameter) = ColumnNames(self.of_column[1], size, by_column=True), self.how
                arrays = _repeated(self.of_column[0], (len(W), size), parameter)
                self.parts[size] = Cover(*arrays, names, weights).to(W.device)
            operate(table, self.parts[size])
            part.copy_(table[:, : part.shape[1]])
        return W


def _repeated(
    groups: Sequence[Sequence[int]], shape: Sequence[int], parameter: str
) -> tuple[Partition, Tensor, Tensor]:
    """Repeated cover: the entries of a table as atoms, and the members and offsets of the groups of each column."""
    rows, columns = torch.tensor([row for group in groups for row in group]), torch.arange(shape[1])
    members = (rows * shape[1] + columns[:, None]).flatten()
    lengths = torch.tensor([len(group) for group in groups]).repeat(shape[1])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    ids = torch.arange(shape[0] * shape[1]).view(*shape)
    return Partition(ids, Numbered("entry", ids.numel()), shape, "one", parameter), members, offsets


class ColumnNames(Sequence):
    """Names of the groups of a repeated forest or cover, such as `tree 1.2 of column 5`, made on demand.

    All columns of a group follow each other or, with `by_column`, all groups of a column."""

    def __init__(self, names: Sequence[str], columns: int, by_column: bool = False):
        self.stems, self.columns, self.by_column = names, columns, by_column

    def __len__(self) -> int:
        return len(self.stems) * self.columns

    def __getitem__(self, group):
        if isinstance(group, slice):
            return [self[k] for k in range(*group.indices(len(self)))]
        number = range(len(self))[group]
        node, column = divmod(number, self.columns)
        if self.by_column:
            column, node = divmod(number, len(self.stems))
        return f"{self.stems[node]} of column {column}"
