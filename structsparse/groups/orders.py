"""Overlapping groups from a partial order of feature templates, coarse before fine (Martins et al. 2011, Figure 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups.cover import Cover
from structsparse.groups.partition import by_row_blocks

Order = Tensor | Iterable[tuple[str, str]] | Callable[[str, str], bool]


def coarse_to_fine(
    shape: Sequence[int],
    names: Sequence[str],
    offsets: Sequence[int] | Tensor,
    order: Order,
    weights: str | Tensor = "sqrt_size",
    parameter: str = "the parameter",
) -> Cover:
    """Overlapping groups from an order of templates: a template can be nonzero only if all coarser ones are nonzero.

    Template k has the rows offsets[k] : offsets[k + 1]. The group of a template holds the rows of the template and of
    every *finer* template. If the group of a coarse template becomes zero, all finer templates are zero too. The finest
    templates lie in the most groups and are penalised most.

    `order` has one of three forms. A cycle is an error. Relations that follow from others may be left out.
    - A bool matrix, where order[a, b] is true if template a is coarser than template b.
    - Pairs (finer, coarser) of names.
    - A function below(a, b) of two names, which is true if template a is coarser than template b.
    """
    atoms = by_row_blocks(shape, names, offsets, "one", parameter)
    finer = closure(as_matrix(order, names), names)
    group = finer | torch.eye(len(names), dtype=torch.bool)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), group.sum(1).cumsum(0)])
    return Cover(atoms, group.nonzero()[:, 1], starts, names, weights)


def as_matrix(order: Order, names: Sequence[str]) -> Tensor:
    """An order of templates as a bool matrix: entry [a, b] is true if template a is coarser than template b.

    `order` has one of the forms that `coarse_to_fine` takes. The diagonal of a given matrix is ignored.
    """
    count = len(names)
    if callable(order):
        order = torch.tensor([[bool(order(a, b)) for b in names] for a in names], dtype=torch.bool).view(count, count)
    elif not isinstance(order, Tensor):
        order = _from_pairs(order, names)
    if order.dtype != torch.bool or order.shape != (count, count):
        raise UserError(
            f"an order of {count} templates must be a bool matrix ({count}, {count}), got {order.dtype} "
            f"{tuple(order.shape)}"
        )
    return order.cpu() & ~torch.eye(count, dtype=torch.bool)


def closure(below: Tensor, names: Sequence[str]) -> Tensor:
    """The transitive closure of an order of templates: if a is coarser than b, and b than c, then a is coarser than c.

    `below` and the result are bool matrices. Entry [a, b] is true if template a is coarser than template b. Raises
    UserError if the order has a cycle.
    """
    reached = below
    while True:
        further = reached | (reached.float() @ reached.float() > 0)
        if torch.equal(further, reached):
            break
        reached = further
    if reached.diagonal().any():
        raise UserError(
            f"the order of templates has a cycle: {' is coarser than '.join(_cycle(below, reached, names))}; "
            "expected a partial order"
        )
    return reached


def _from_pairs(pairs: Iterable[tuple[str, str]], names: Sequence[str]) -> Tensor:
    """The matrix of an order of templates that is given as pairs (finer, coarser) of names."""
    place = {name: k for k, name in enumerate(names)}
    below = torch.zeros(len(names), len(names), dtype=torch.bool)
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise UserError(f"an order of templates is a list of pairs (finer, coarser), got {pair!r}")
        for name in pair:
            if name not in place:
                expected = f"one of the {len(names)} templates {_first_names(names)}"
                raise UserError(f"the order names {name!r}, expected {expected}")
        finer, coarser = pair
        below[place[coarser], place[finer]] = True
    return below


def _first_names(names: Sequence[str]) -> str:
    """The first five names in an order of templates, for an error message."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _cycle(below: Tensor, reached: Tensor, names: Sequence[str]) -> list[str]:
    """The names of the templates along a shortest cycle of an order; the first name is repeated at the end."""
    start = int(reached.diagonal().nonzero()[0])
    paths = [[start]]
    for path in paths:  # breadth-first search: the loop appends longer paths to `paths`
        if below[path[-1], start]:
            return [names[k] for k in [*path, start]]
        visited = {k for other in paths for k in other}
        paths += [[*path, k] for k in below[path[-1]].nonzero()[:, 0].tolist() if k not in visited]
    raise AssertionError("there is no cycle")
