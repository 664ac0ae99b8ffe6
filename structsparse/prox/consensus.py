"""Prox and updates of consensus ADMM for overlapping groups.

Each group has a copy of its weights. The prox pulls the weights towards all copies. Then the copies are updated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse.groups.cover import Cover
from structsparse.kernels.memory import walkable
from structsparse.kernels.prox import consensus as kernels
from structsparse.prox.overlaps import set_arrays
from structsparse.prox.steps import Steps


@torch.no_grad()
def towards_consensus_(
    W: Tensor, cover: Cover, targets: Tensor, rho: Tensor, entry_strength: Steps, steps: Steps
) -> Tensor:
    """Prox of the squared distance of the weights to the consensus copies of overlapping groups, plus an l1 norm.

    An entry has one copy t for each group that contains the entry. The penalty is

        entry_strength * ||V||_1 + rho / 2 * sum of (V - t)^2 over the copies t of each entry.

    rho is the step parameter of ADMM. `targets` holds the sum of the copies of each entry, sorted by atom (set of
    entries that no group divides). For an entry with m copies, the solution is

        V = soft(W * (1 - share) + mean of copies * share, entry_strength * share / (rho * m)).

    soft(x, cut) is the soft threshold, and share is 1 / (1 + 1 / (steps * rho * m)).
    """
    counts = torch.broadcast_to(cover.expand(cover.multiplicity.double(), fill=0.0), W.shape)
    bound = torch.where(counts > 0, counts, 1.0)
    share = torch.where(counts > 0, 1 / (1 + 1 / (rho * steps * bound)), 0.0)
    cut = entry_strength * share / (rho * bound)
    V = W * (1 - share) + share * (in_place_of_atoms(cover, targets).view(W.shape) / bound)
    return W.copy_(V - torch.clamp(V, -cut, cut))


def in_place_of_atoms(cover: Cover, values: Tensor) -> Tensor:
    """Consensus prox: reorder values of entries from the order of atoms to the order of the parameter.

    An atom is a set of entries that no group divides. Entries in no group get zero.
    """
    order = cover.entries()[0]
    return values if order is None else values.new_zeros(cover.shape.numel()).index_copy(0, order, values)


@torch.no_grad()
def update_consensus_(
    W: Tensor, cover: Cover, reach: Tensor, copies: Tensor, duals: Tensor, copy_sums: Tensor, dual_sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Consensus ADMM after the prox: update of the copies and dual variables of overlapping groups.

    In each group, with z = W + duals: copies <- group prox of z, duals <- z - copies. `reach` holds the threshold of
    the group prox for each group. `copy_sums` and `dual_sums` get, for each entry, the sums of its copies and of its
    dual variables. Returns the norm of W - copies, the norm of the copies, and the norm of W. In these norms, an entry
    of W counts once for each group that contains it.
    """
    order, bounds = cover.entries()
    flat = W.flatten().double() if order is None else W.flatten().double()[order]
    if walkable(W) and copies.device.type == "cpu":
        bounds, *sets = set_arrays(cover, over_atoms=False)
        state = (array.numpy() for array in (copies, duals, copy_sums, dual_sums))
        if len(flat) == len(cover.atoms) and bool((cover.atoms.size == 1).all()):
            counts = cover.multiplicity.double().numpy()
            squares = kernels.consensus_of_singles(flat.numpy(), *sets[:2], counts, reach.numpy(), *state)
        else:
            squares = kernels.consensus(flat.numpy(), bounds, *sets, reach.numpy(), *state)
        return tuple(torch.tensor(squares, dtype=torch.float64).sqrt())
    places, owner = cover.pairs(in_order=False)
    x = flat[places]
    z = x + duals
    norm = torch.zeros_like(reach).index_add(0, owner, z.square()).sqrt()
    factor = torch.where(norm <= reach, 0.0, 1 - reach / norm)
    copies.copy_(z * factor[owner])
    duals.copy_(z - copies)
    copy_sums.zero_().index_add_(0, places, copies)
    dual_sums.zero_().index_add_(0, places, duals)
    return (x - copies).norm(), copies.norm(), x.norm()


@torch.no_grad()
def spared_by_copies(cover: Cover, copies: Tensor) -> Tensor:
    """Consensus ADMM after the prox: mask of the entries that lie in no group whose copy is all zero.

    The mask is a bool vector in the order of the parameter.
    """
    _, owner = cover.pairs()
    living = torch.zeros(len(cover), dtype=torch.float64, device=copies.device)
    living = living.index_add(0, owner, (copies != 0).double()) > 0
    return torch.broadcast_to(cover.expand(cover.scatter(~living) == 0, fill=True), cover.shape).flatten()
