"""Layouts of weight tables, and the kinds of layout that each group maker supports.

A group maker is a function `groups(shape, layout, ..., parameter=name)` that returns the groups of one parameter. The
decorator `over` declares which kinds of layout a maker supports and which forms of groups it returns. Options that do
not fit each other are then refused before any data are read. A maker without the decorator counts as supporting every
layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from structsparse.base.partials import callee
from structsparse.groups.cover import Cover
from structsparse.groups.forest import Forest
from structsparse.groups.partition import Partition

FORMS = (Partition, Forest, Cover)  # disjoint, nested and overlapping groups
ANY = "any"  # declared by group makers that accept every layout, as they need only the shape of the table

Maker = Callable[..., "Partition | Forest | Cover"]


class TableLayout:
    """Base class of weight table layouts: what the rows and columns of a table stand for.

    Each task has a subclass, identified by `kind`.
    """

    kind: ClassVar[str] = "rows"
    reduced: bool = False  # whether rows of zeros were removed; row indices in files of groups are invalid then

    def named_rows(self) -> Mapping[str, Sequence[int]]:
        """Weight table layout: {name in a file of groups: rows with this name}; by default no names."""
        return {}

    def frequency(self, name: str) -> Tensor | None:
        """Weight table layout: how often each row occurs in training; by default None (unknown).

        `name` is the kind of count, such as "documents" or "counts".
        """
        return None

    def chain_lengths(self) -> Tensor | None:
        """Weight table layout: the number of equal weights that each entry of the table stands for.

        The option model.collapse merges equal weights into one entry. The result is None if nothing was merged.
        """
        return None


class Declared(NamedTuple):
    """What a group maker declares: the kinds of layout that it supports, and the forms of groups that it makes."""

    kinds: tuple[str, ...] = (ANY,)
    forms: tuple[type, ...] = FORMS

    def fits(self, kind: str) -> bool:
        """Whether a group maker supports weight table layouts of this kind."""
        return kind in self.kinds or ANY in self.kinds


_DECLARED: dict[Maker, Declared] = {}


def over(*kinds: str, makes: type | tuple[type, ...]) -> Callable[[Maker], Maker]:
    """Decorator of a group maker: declares the kinds of layout it supports and the forms of groups it makes."""

    def declare(maker: Maker) -> Maker:
        """Register the layouts and forms that a group maker declares; return the maker unchanged."""
        _DECLARED[maker] = Declared(kinds, makes if isinstance(makes, tuple) else (makes,))
        return maker

    return declare


def declared(maker: Maker) -> Declared:
    """The layouts and forms that a group maker (or a functools.partial of it) declares with the decorator `over`."""
    return _DECLARED.get(callee(maker), Declared())
