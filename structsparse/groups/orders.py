"""Groups from a partial order: coarse before fine (the paper's Figure 1)."""

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
    """A template, whose rows are offsets[k] to offsets[k + 1], lives only if all coarser ones may.

    The group of a template holds its own rows and those of every *finer* template, of all that lie above it in the
    order: as coarse precedes fine, G_a is the union of the rows of all b with a <= b. What a penalty on these groups
    leaves is what no dead group holds, and a template's rows lie in its own group and in those of all coarser ones.
    So when a coarse template's group dies, all finer templates die with it, and the finest ones, which lie in the
    most groups and pay for each, go first. (With the union over coarser ones instead, it would be coarse templates
    that need fine ones.) A group has its template's name.

    `order` is a bool matrix, order[a, b] saying that a is below (coarser than) b; or pairs (finer, coarser) of names;
    or a function below(a, b) of two names. What follows from two relations need not be said. A cycle is an error,
    which tells the names along it.
    """
    atoms = by_row_blocks(shape, names, offsets, "one", parameter)
    finer = closure(as_matrix(order, names), names)
    group = finer | torch.eye(len(names), dtype=torch.bool)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), group.sum(1).cumsum(0)])
    return Cover(atoms, group.nonzero()[:, 1], starts, names, weights)


def as_matrix(order: Order, names: Sequence[str]) -> Tensor:
    """Any way to say an order -> bool [a, b], a is below b; what a template is to itself does not matter."""
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
    """All that follows: below[a, c] where below[a, b] and below[b, c]. Refuses what goes round in a circle."""
    reached = below
    while True:
        further = reached | (reached.float() @ reached.float() > 0)
        if torch.equal(further, reached):
            break
        reached = further
    if reached.diagonal().any():
        raise UserError(
            f"the order of templates goes round: {' is coarser than '.join(_cycle(below, reached, names))}; "
            "expected a partial order"
        )
    return reached


def _from_pairs(pairs: Iterable[tuple[str, str]], names: Sequence[str]) -> Tensor:
    place = {name: k for k, name in enumerate(names)}
    below = torch.zeros(len(names), len(names), dtype=torch.bool)
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise UserError(f"an order of templates is a list of pairs (finer, coarser), got {pair!r}")
        for name in pair:
            if name not in place:
                raise UserError(f"the order names {name!r}, expected one of the {len(names)} templates {_some(names)}")
        finer, coarser = pair
        below[place[coarser], place[finer]] = True
    return below


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _cycle(below: Tensor, reached: Tensor, names: Sequence[str]) -> list[str]:
    """The names along a shortest way round from the first that has one, itself at both ends."""
    start = int(reached.diagonal().nonzero()[0])
    ways = [[start]]
    for way in ways:  # grows while it is read
        if below[way[-1], start]:
            return [names[k] for k in [*way, start]]
        known = {k for other in ways for k in other}
        ways += [[*way, k] for k in below[way[-1]].nonzero()[:, 0].tolist() if k not in known]
    raise AssertionError("there is no way round")
