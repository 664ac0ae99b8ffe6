"""Growing weight tables: rows are added when features need them, and zero rows are dropped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from structsparse.weights.feature_tables import GrowingTable
from structsparse.weights.notes import notes_of

LEAST = 1024  # memory is reserved for at least this number of rows


class PartialTable(GrowingTable):
    """Base of scorers with a growing weight table: only the rows in use are in memory, all other rows are zero.

    A column is a buffer with one entry per row in use, such as the feature of the row. To add rows, `reserve` reserves
    memory, a compiled loop fills the new rows, and `hold` sets the number of rows in use."""

    growth = 2.0  # factor by which the reserved memory grows when it is full

    def __init__(self, width: int, columns: Sequence[tuple[str, torch.dtype]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(0, width))  # [rows in use, width], the weights
        notes_of(self.table).grows = self
        self.columns = tuple(name for name, _ in columns)
        for name, dtype in columns:
            self.register_buffer(name, torch.zeros(0, dtype=dtype))  # a column: one entry per row in use
        # memory of the table and of each column, with room for more rows; None: no memory is reserved
        self._room: tuple[Tensor, ...] | None = None

    @property
    def held(self) -> int:
        """The number of rows in use of the growing table."""
        return len(self.table)

    def reserve(self, extra: int) -> tuple[Tensor, ...]:
        """Reserve memory of the growing table for `extra` more rows than are in use.

        Returns the reserved memory of the table and of each column."""
        reserved = self._room is not None and (self.held == 0 or self.table.data_ptr() == self._room[0].data_ptr())
        if not reserved or len(self._room[0]) < self.held + extra:
            room = max(self.held + extra, int(self.growth * self.held), LEAST)
            old = self._rows()
            self._room = tuple(tensor.new_empty(room, *tensor.shape[1:]) for tensor in old)
            for new, tensor in zip(self._room, old, strict=True):
                new[: self.held] = tensor
            self.hold(self.held)
        return self._room

    def hold(self, held: int) -> None:
        """Set how many rows of the growing table's reserved memory are in use."""
        self.table.data, *columns = (tensor[:held] for tensor in self._room)
        self._set_columns(columns)

    def set_rows(self, weights: Tensor, *columns: Tensor) -> None:
        """Replace all rows of the growing table: their `weights` [rows, width] and their columns, each [rows]."""
        self.table.data = weights
        self._set_columns(columns)
        self._room = None

    @torch.no_grad()
    def release(self) -> Tensor | None:
        """Drop the zero rows of the growing table; returns the old indices of the other rows.

        Returns None if no row is dropped."""
        kept = (self.table != 0).any(dim=1).nonzero().flatten()
        if len(kept) == self.held:
            return None
        self.set_rows(*(tensor[kept] for tensor in self._rows()))
        return kept

    def stale(self) -> None:
        """Do nothing for a growing table without caches; a subclass that caches the weights invalidates its cache."""

    def _rows(self) -> tuple[Tensor, ...]:
        """The weights of the growing table, without gradient tracking, and its columns (one entry per row)."""
        return self.table.detach(), *(getattr(self, name) for name in self.columns)

    def _set_columns(self, columns: Sequence[Tensor]) -> None:
        """Replace the columns of the growing table, which hold one entry per row."""
        for name, column in zip(self.columns, columns, strict=True):
            setattr(self, name, column)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        """Make room in the growing table for the rows of a checkpoint, then load the rows."""
        held = len(state_dict[prefix + "table"])
        self.set_rows(*(tensor.new_zeros(held, *tensor.shape[1:]) for tensor in self._rows()))
        super()._load_from_state_dict(state_dict, prefix, *args)
