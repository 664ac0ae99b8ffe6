"""Layouts of weight tables, and the kinds of layout that each group maker supports.

A group maker is a function `groups(shape, layout, ..., parameter=name)` that returns the groups of one parameter. The
decorator `over` declares which kinds of layout it supports and which forms of groups it makes. So options that do not
fit each other are refused before any data are read. A maker without the decorator counts as supporting every layout.
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
ANY = "any"  # for group makers that need only the shape of the table

Maker = Callable[..., "Partition | Forest | Cover"]


class TableLayout:
    """What the rows and columns of a weight table stand for. Each task has its own subclass, identified by `kind`."""

    kind: ClassVar[str] = "rows"
    reduced: bool = False  # whether dead rows were removed, so that row numbers in files of groups are invalid

    def named_rows(self) -> Mapping[str, Sequence[int]]:
        """The rows of the weight table that each name in a file of groups stands for."""
        return {}

    def frequency(self, name: str) -> Tensor | None:
        """Counts of each row of the weight table in the training data, by name of the count; None if there are none."""
        return None

    def chain_lengths(self) -> Tensor | None:
        """The number of equal weights of the full table that each entry of a collapsed table stands for.

        None if each entry stands for one weight.
        """
        return None


class Declared(NamedTuple):
    """What a group maker declares: the kinds of layout that it supports, and the forms of groups that it makes."""

    kinds: tuple[str, ...] = (ANY,)
    forms: tuple[type, ...] = FORMS

    def fits(self, kind: str) -> bool:
        """Whether the group maker supports weight table layouts of this kind."""
        return kind in self.kinds or ANY in self.kinds


_DECLARED: dict[Maker, Declared] = {}


def over(*kinds: str, makes: type | tuple[type, ...]) -> Callable[[Maker], Maker]:
    """Decorator of a group maker: declares the kinds of layout it supports and the forms of groups it makes."""

    def declare(maker: Maker) -> Maker:
        """Register the declaration of a group maker and return the maker unchanged."""
        _DECLARED[maker] = Declared(kinds, makes if isinstance(makes, tuple) else (makes,))
        return maker

    return declare


def declared(maker: Maker) -> Declared:
    """The declaration of a group maker (see `over`), also if the maker is wrapped in functools.partial."""
    return _DECLARED.get(callee(maker), Declared())
