"""Screening of rows: which rows of a table may be left out at a strength, as their groups will stay dead."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from structsparse.groups import Partition
from structsparse.penalties import Penalty


@dataclass(frozen=True)
class Screen:
    """Which rows of a table stand in which group. Data and table can be narrowed to some of the rows.

    An entry is a row of the parameter; in a table of observed pairs several entries belong to one row of features."""

    table: str  # the name of the parameter
    rows: int  # rows of features
    row_of: Tensor  # int64 [entries], the row of features of each entry
    group_of: Tensor  # int64 [entries], the group of each entry; -1: none, the row always stays

    @classmethod
    def of(cls, table: str, penalty: Penalty, rows: int, row_of: Tensor) -> Screen:
        """The screen of a table under a penalty; all rows stay where groups are not made of rows."""
        return cls(table, rows, row_of, _group_of(penalty, row_of))

    def rows_of_groups(self, groups: Tensor) -> Tensor:
        """The rows in these groups (bool [groups]) and in none: bool [rows]"""
        stays = self.group_of < 0
        if not stays.all():
            stays |= groups.to(stays.device)[self.group_of.clamp(min=0)]
        rows = torch.ones(self.rows, dtype=torch.bool, device=stays.device)
        rows[self.row_of] = False
        rows[self.row_of[stays]] = True
        return rows

    def entries_of_rows(self, rows: Tensor) -> Tensor:
        """The entries of these rows (bool [rows]): bool [entries]"""
        return rows.to(self.row_of.device)[self.row_of]


def _group_of(penalty: Penalty, row_of: Tensor) -> Tensor:
    """The group of each entry, if each row stands in one: int64 [entries], else -1. Without groups an entry is one."""
    entries, groups = len(row_of), penalty.groups
    free = torch.full((entries,), -1, device=row_of.device)
    if groups is None:
        return torch.arange(entries, device=row_of.device) if penalty.by_entry else free
    if not isinstance(groups, Partition) or groups.whole or len(groups.ids) != entries != groups.ids.numel():
        return free
    ids = groups.ids.flatten().to(row_of.device)
    same = (row_of[1:] != row_of[:-1]) | (ids[1:] == ids[:-1])
    return ids if bool(same.all()) else free
