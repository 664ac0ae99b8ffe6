"""Layouts of weight tables, and the kinds of layout that each group maker works over.

A group maker is a function `groups(shape, layout, ..., parameter=name)` that returns the groups of one parameter. The
decorator `over` declares the kinds of layout that it reads and the forms of groups that it makes, so that options that
do not fit each other are refused before any data are read. A function without it is taken to work over any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from structsparse.base.partials import callee
from structsparse.groups.cover import Cover
from structsparse.groups.forest import Forest
from structsparse.groups.partition import Partition

FORMS = (Partition, Forest, Cover)
ANY = "any"  # the kind of a group maker that needs no more of a table than its shape

Maker = Callable[..., "Partition | Forest | Cover"]


class TableLayout:
    """What the rows and columns of a weight table stand for. Each task has one class of it, told apart by `kind`."""

    kind: ClassVar[str] = "rows"
    reduced: bool = False  # whether dead rows have left the table, so that row numbers of a file no longer hold

    def named_rows(self) -> Mapping[str, Sequence[int]]:
        """The rows that each name in a file of groups stands for."""
        return {}

    def frequency(self, name: str) -> Tensor | None:
        """How often each row occurs in training: a column of counts by its name, None if there is no such column."""
        return None

    def chain_lengths(self) -> Tensor | None:
        """How many equal weights of the full table each entry stands for; None if one each."""
        return None


class Declared(NamedTuple):
    """What a group maker declares."""

    kinds: tuple[str, ...] = (ANY,)
    forms: tuple[type, ...] = FORMS

    def fits(self, kind: str) -> bool:
        """Whether the maker works over layouts of this kind."""
        return kind in self.kinds or ANY in self.kinds


_DECLARED: dict[Maker, Declared] = {}


def over(*kinds: str, makes: type | tuple[type, ...]) -> Callable[[Maker], Maker]:
    """Declare the kinds of layout that a group maker works over, and the forms of groups that it makes."""

    def declare(maker: Maker) -> Maker:
        _DECLARED[maker] = Declared(kinds, makes if isinstance(makes, tuple) else (makes,))
        return maker

    return declare


def declared(maker: Maker) -> Declared:
    """What a group maker, or a partial application of it, has declared."""
    return _DECLARED.get(callee(maker), Declared())
