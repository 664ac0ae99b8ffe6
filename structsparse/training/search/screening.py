"""Screening of features: which rows of a weight table can be left out because their groups will stay dead."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from structsparse.groups import Partition
from structsparse.penalties import Penalty


@dataclass(frozen=True)
class Screen:
    """Screening of features: the group of each entry of a weight table, to find the feature rows of dead groups.

    An entry is a row of the parameter tensor. Usually each feature row is one entry. In a table of observed (feature,
    label) pairs, each pair is an entry, and the pairs of one feature form a feature row."""

    table: str  # parameter name of the weight table
    rows: int  # number of feature rows
    row_of: Tensor  # int64 [entries], the feature row of each entry
    group_of: Tensor  # int64 [entries], the group of each entry; -1: in no group, always kept

    @classmethod
    def of(cls, table: str, penalty: Penalty, rows: int, row_of: Tensor) -> Screen:
        """Screening of features: make the screen of a weight table with a penalty.

        If the groups do not consist of whole rows, no row can be left out."""
        return cls(table, rows, row_of, _group_of(penalty, row_of))

    def rows_of_groups(self, groups: Tensor) -> Tensor:
        """Screening of features: a bool array that marks the rows in the selected groups, and the rows in no group.

        `groups` (bool array over groups) marks the selected groups."""
        stays = self.group_of < 0
        if not stays.all():
            stays |= groups.to(stays.device)[self.group_of.clamp(min=0)]
        rows = torch.ones(self.rows, dtype=torch.bool, device=stays.device)
        rows[self.row_of] = False
        rows[self.row_of[stays]] = True
        return rows

    def entries_of_rows(self, rows: Tensor) -> Tensor:
        """Screening of features: a bool array that marks the entries of the selected rows.

        `rows` (bool array over feature rows) marks the selected rows."""
        return rows.to(self.row_of.device)[self.row_of]


def _group_of(penalty: Penalty, row_of: Tensor) -> Tensor:
    """Screening of features: the group of each entry (int64 array [entries]).

    All groups are -1 (always kept) unless each row lies in a single group. If a penalty is a sum over entries and has
    no groups, each entry is a group."""
    entries, groups = len(row_of), penalty.groups
    free = torch.full((entries,), -1, device=row_of.device)
    if groups is None:
        return torch.arange(entries, device=row_of.device) if penalty.by_entry else free
    if not isinstance(groups, Partition) or groups.whole or len(groups.ids) != entries != groups.ids.numel():
        return free
    ids = groups.ids.flatten().to(row_of.device)
    same = (row_of[1:] != row_of[:-1]) | (ids[1:] == ids[:-1])
    return ids if bool(same.all()) else free
