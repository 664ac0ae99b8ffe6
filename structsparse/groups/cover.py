"""Overlapping groups: the class `Cover`, and functions that make covers from rows, entries and disjoint groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups.group_weights import checked_weights
from structsparse.groups.partition import Partition, by_row
from structsparse.kernels.groups import cover as kernels

FAMILIES = 1024  # maximum number of families (sets of disjoint groups) into which a cover may be divided


class Cover(nn.Module):
    """Overlapping groups of the entries of one parameter; each group is a set of atoms.

    Atoms are the disjoint groups of a Partition: rows, entries, or blocks of rows. An atom may lie in many groups.
    Group g holds the atoms members[offsets[g] : offsets[g + 1]]. Entries that lie in no group are free: unpenalised and
    always alive.
    - `size`: the number of entries of each group.
    - `weights`: the factor of each group in a penalty, in a form that Partition accepts.
    - `multiplicity`: the number of groups of each atom.
    """

    def __init__(
        self,
        atoms: Partition,
        members: Tensor | Sequence[int],
        offsets: Tensor | Sequence[int],
        names: Sequence[str] | None = None,
        weights: str | Tensor = "sqrt_size",
    ):
        super().__init__()
        self.atoms, self.shape, self.parameter = atoms, atoms.shape, atoms.parameter
        members, offsets = _integers(members, "members"), _integers(offsets, "offsets")
        self.names = Numbered("group", max(0, len(offsets) - 1)) if names is None else names
        _check_sets(members, offsets, self.names, atoms)
        multiplicity = torch.bincount(members, minlength=len(atoms))
        self.atoms_entries = int(atoms.size.sum())
        self.free = atoms.free or bool((multiplicity == 0).any())
        self.register_buffer("members", members.int())
        self.register_buffer("offsets", offsets)
        self.register_buffer("multiplicity", multiplicity)
        self.register_buffer("owner", torch.repeat_interleave(offsets.diff()).int(), persistent=False)
        self.register_buffer("size", self.gather(atoms.size.double()).long())
        self.register_buffer("weight", checked_weights(weights, self.size, self.names))
        self.register_buffer("starts", torch.cat([self.size.new_zeros(1), self.size.cumsum(0)]), persistent=False)
        self.copies = int(self.starts[-1])  # total size of all groups; an entry in two groups counts twice
        self._entries, self._pairs = None, None  # caches of the methods `entries` and `pairs`, computed on first use

    def __len__(self) -> int:
        return len(self.names)

    def extra_repr(self) -> str:
        """Cover of overlapping groups: the number of groups and the parameter, for the printed form of the module."""
        return f"{len(self)} overlapping groups over {self.parameter} {tuple(self.shape)}"

    def sums(self, X: Tensor) -> Tensor:
        """Cover of overlapping groups: the sum of X over the entries of each group (float64 tensor [groups])."""
        return self.gather(self.atoms.sums(X))

    def norms(self, W: Tensor) -> Tensor:
        """Cover of overlapping groups: the Euclidean norm of W on each group (float64 tensor [groups]).

        The gradient of a zero norm is zero.
        """
        recorded = W.requires_grad and torch.is_grad_enabled()
        squares = self.gather(self.atoms.sums(W * W) if recorded else self.atoms.norms(W).square())
        if not squares.requires_grad:
            return squares.sqrt()
        positive = squares > 0
        return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)

    def nonzeros(self, W: Tensor) -> Tensor:
        """Cover of overlapping groups: the number of nonzero entries of W in each group (float64 tensor [groups])."""
        return self.gather(self.atoms.nonzeros(W))

    def alive(self, W: Tensor) -> Tensor:
        """Cover of overlapping groups: for each group, whether it has a nonzero entry of W (bool tensor [groups])."""
        return self.gather(self.atoms.alive(W).double()) != 0

    def gather(self, values: Tensor) -> Tensor:
        """Cover of overlapping groups: for each group, the sum of `values` over its atoms (float64 tensor [groups]).

        `values` holds one number per atom. Groups are unions of disjoint atoms.
        """
        if values.device.type == "cpu" and not (values.requires_grad and torch.is_grad_enabled()):
            sums = torch.empty(len(self), dtype=torch.float64)
            values = values.double().contiguous()
            kernels.gather(values.numpy(), self.members.numpy(), self.offsets.numpy(), sums.numpy())
            return sums
        sums = torch.zeros(len(self), dtype=torch.float64, device=values.device)
        return sums.index_add(0, self.owner, values.double().index_select(0, self.members))

    def scatter(self, values: Tensor) -> Tensor:
        """Cover of overlapping groups: for each atom, the sum of `values` over its groups (float64 tensor [atoms]).

        `values` holds one number per group. Groups are unions of disjoint atoms.
        """
        sums = torch.zeros(len(self.atoms), dtype=torch.float64, device=values.device)
        return sums.index_add(0, self.members, values.double().index_select(0, self.owner))

    def expand(self, values: Tensor, fill: float | bool) -> Tensor:
        """Cover of overlapping groups: expand `values`, one per atom, to one value per entry.

        Groups are unions of disjoint atoms. Entries in no group get `fill`. The result is broadcastable against the
        parameter.
        """
        return self.atoms.expand(torch.where(self.multiplicity > 0, values, fill), fill)

    def covered(self) -> Tensor:
        """Cover of overlapping groups: bool mask of the entries that lie in at least one group.

        The mask is broadcastable against the parameter.
        """
        return self.expand(self.multiplicity > 0, fill=False)

    def spared(self, W: Tensor) -> Tensor:
        """Cover of overlapping groups: bool mask of the entries that lie in no zero group.

        A group is zero if all its entries of W are zero. The mask is broadcastable against the parameter.
        """
        return self.expand(self.scatter(~self.alive(W)) == 0, fill=True)

    def apply_(self, W: Tensor, operate: Callable[[Tensor, Cover], object]) -> Tensor:
        """Cover of overlapping groups: apply operate(tensor, cover) in place to W, or to parts without a shared group.

        Here W is the only part."""
        operate(W, self)
        return W

    def entries(self) -> tuple[Tensor | None, Tensor]:
        """Cover of overlapping groups: flat positions of the entries sorted by atom, and the start of each atom.

        Groups are unions of disjoint atoms. The positions are None if the parameter is already sorted by atom.
        """
        if self._entries is None or self._entries[1].device != self.members.device:
            sizes, ids = self.atoms.size, self.atoms.ids.expand(self.shape).flatten()
            order = None
            if self.atoms.offsets is None and not (self.atoms.aligned and self.atoms.ids.shape == self.shape):
                order = ids.argsort(stable=True)[self.shape.numel() - self.atoms_entries :]
            self._entries = order, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return self._entries

    def pairs(self, in_order: bool = True) -> tuple[Tensor, Tensor]:
        """Cover of overlapping groups: the position and the group of each copy of an entry, group by group.

        An entry has a copy in each group that contains it. With `in_order`, positions are flat positions in the
        parameter, otherwise indices into the entries sorted by atom. Groups are unions of disjoint atoms.
        """
        if self._pairs is None or self._pairs[0].device != self.members.device:
            _, bounds = self.entries()
            members = self.members.long()
            lengths = self.atoms.size[members]
            owner = self.owner.long().repeat_interleave(lengths, output_size=self.copies)
            skipped = bounds[members] - lengths.cumsum(0) + lengths
            places = torch.arange(self.copies, device=members.device)
            places = places + skipped.repeat_interleave(lengths, output_size=self.copies)
            self._pairs = places, owner
        places, owner = self._pairs
        order = self.entries()[0]
        return (order[places] if in_order and order is not None else places), owner

    @cached_property
    def nested(self) -> bool:
        """Whether the groups of a Cover are nested: of any two groups that share entries, one contains the other."""
        largest_first = self.offsets.diff().argsort(descending=True, stable=True)
        sets = self.members.cpu().numpy(), self.offsets.cpu().numpy(), largest_first.cpu().numpy()
        return bool(kernels.nested(*sets, len(self.atoms)))

    def outline(self) -> Cover:
        """A Cover of a shorter vector, in which each atom of these overlapping groups becomes one entry.

        Groups are unions of disjoint atoms. A new group has the entries of its old atoms.
        """
        atoms = by_row((len(self.atoms),), self.atoms.names, "one", f"the atoms of {self.parameter}")
        return Cover(atoms, self.members, self.offsets, self.names, self.weight)

    def subset(self, groups: Tensor) -> Cover:
        """A Cover with only the selected overlapping groups, in the order of the selection."""
        lengths = self.offsets.diff()[groups]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        within = torch.arange(int(offsets[-1])) - torch.repeat_interleave(offsets[:-1], lengths)
        members = self.members[torch.repeat_interleave(self.offsets[:-1][groups], lengths) + within]
        names = [self.names[g] for g in groups.tolist()]
        return Cover(self.atoms, members, offsets, names, self.weight[groups])

    def colours(self) -> Tensor:
        """Cover of overlapping groups: the index of the family of each group (int64 tensor [groups]).

        A family is a set of disjoint groups. A greedy graph colouring finds the families. It starts with the largest
        groups.
        """
        most = int(self.multiplicity.max()) if len(self.atoms) else 0
        if most > FAMILIES:
            name = self.atoms.names[int(self.multiplicity.argmax())]
            raise UserError(
                f"{name} of {self.parameter} lies in {most} groups, which takes as many families of disjoint groups: "
                f"expected at most {FAMILIES}; take an exact penalty, reg=overlap"
            )
        order = self.offsets.diff().argsort(descending=True, stable=True)
        sets = self.members.numpy(), self.offsets.numpy()
        return torch.from_numpy(kernels.colours(*sets, order.numpy(), self.multiplicity.numpy()))

    def families(self) -> list[Partition]:
        """The groups of a Cover as a list of Partitions of disjoint groups, with the same names and weights.

        In each Partition, entries that lie only in groups of other Partitions are unpenalised.
        """
        colours = self.colours()
        return [self._family((colours == c).nonzero()[:, 0]) for c in range(int(colours.max()) + 1)]

    def _family(self, groups: Tensor) -> Partition:
        """A Partition of the selected groups of a Cover; the selected groups must be disjoint."""
        rank = torch.full((len(self),), -1)
        rank[groups] = torch.arange(len(groups))
        rank = rank[self.owner.long()]
        ids = torch.full((len(self.atoms),), -1)
        ids[self.members[rank >= 0].long()] = rank[rank >= 0]
        names = [self.names[g] for g in groups.tolist()]
        return Partition(self.atoms.expand(ids, fill=-1), names, self.shape, self.weight[groups], self.parameter)


class Numbered(Sequence):
    """Names of the groups of a Cover, or of its atoms (sets of entries that no group divides), made on demand.

    The names are a noun with an index, such as `group 0` and `group 1`."""

    def __init__(self, noun: str, count: int):
        self.noun, self.numbers = noun, range(count)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [f"{self.noun} {i}" for i in self.numbers[number]]
        return f"{self.noun} {self.numbers[number]}"


def cover_rows(
    shape: Sequence[int],
    members: Tensor | Sequence,
    offsets: Tensor | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    weights: str | Tensor = "sqrt_size",
    parameter: str = "the parameter",
) -> Cover:
    """A Cover of overlapping groups of rows of a parameter.

    `members` holds a list of rows for each group. If `offsets` are given, `members` is one list, and group g has the
    rows members[offsets[g] : offsets[g + 1]].
    """
    return Cover(by_row(shape, weights="one", parameter=parameter), *_compressed(members, offsets), names, weights)


def cover_entries(
    shape: Sequence[int],
    members: Tensor | Sequence,
    offsets: Tensor | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    weights: str | Tensor = "sqrt_size",
    parameter: str = "the parameter",
) -> Cover:
    """A Cover of overlapping groups of entries of a parameter, given by flat positions.

    `members` holds a list of positions for each group. If `offsets` are given, `members` is one list, and group g has
    the positions members[offsets[g] : offsets[g + 1]].
    """
    shape = torch.Size(shape)
    ids = torch.arange(shape.numel()).view(shape)
    atoms = Partition(ids, Numbered("entry", shape.numel()), shape, "one", parameter)
    return Cover(atoms, *_compressed(members, offsets), names, weights)


def cover_families(families: Sequence[Partition]) -> Cover:
    """A Cover of all groups of several Partitions of the same parameter, without empty groups.

    The atoms of the Cover are the largest sets of entries that no Partition divides.
    """
    if len({family.shape for family in families}) != 1:
        shapes = ", ".join(str(tuple(family.shape)) for family in families)
        raise UserError(f"families of groups must be of one parameter: expected one shape, got {shapes or 'no family'}")
    wide = torch.broadcast_tensors(*[family.ids for family in families])
    ids = [ids.flatten() for ids in wide]
    code = torch.zeros_like(ids[0])
    for family, group in zip(families, ids, strict=True):
        code = torch.unique(code * (len(family) + 1) + group + 1, return_inverse=True)[1]
    atoms = int(code.max()) + 1 if len(code) else 0
    first = torch.empty(atoms, dtype=torch.long)
    first[code] = torch.arange(len(code))  # for each atom (set that no Partition divides), one of its entries
    shape, parameter = families[0].shape, families[0].parameter
    partition = Partition(code.view(wide[0].shape), Numbered("atom", atoms), shape, "one", parameter)
    of_atoms = [group[first] for group in ids]  # for each Partition, the group of each atom
    shifts = torch.tensor([0, *(len(family) for family in families)]).cumsum(0).tolist()
    owner = torch.cat([group[group >= 0] + shift for group, shift in zip(of_atoms, shifts, strict=False)])
    members = torch.cat([(group >= 0).nonzero()[:, 0] for group in of_atoms])
    lengths = torch.bincount(owner, minlength=shifts[-1])
    offsets = torch.cat([lengths.new_zeros(1), lengths[lengths > 0].cumsum(0)])
    names = [name for family in families for name in family.names]
    names = [name for name, length in zip(names, lengths.tolist(), strict=True) if length]
    weights = torch.cat([family.weight for family in families])[lengths > 0]
    return Cover(partition, members[owner.argsort(stable=True)], offsets, names, weights)


def _compressed(members, offsets) -> tuple:
    """Cover of overlapping groups: the members of all groups in one list, and the offset of each group in it."""
    if offsets is not None:
        return members, offsets
    lengths = torch.tensor([len(group) for group in members], dtype=torch.long)
    flat = [m for group in members for m in group]
    return flat, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _integers(values, what: str) -> Tensor:
    """Members or offsets of a Cover as an int64 vector; raises UserError if values are not integers."""
    values = torch.as_tensor(values)
    if values.numel() == 0:
        values = values.long()
    if values.is_floating_point() or values.dtype == torch.bool or values.dim() != 1:
        raise UserError(f"the {what} of a cover must be a list of integers, got {values.dtype} {tuple(values.shape)}")
    return values.long().cpu().contiguous()


def _check_sets(members: Tensor, offsets: Tensor, names: Sequence[str], atoms: Partition) -> None:
    """Refuse mistakes in the member lists of the groups of a Cover; raises UserError.

    Groups may overlap. The members of a group are indices of atoms (sets of entries that no group divides). A list must
    not be empty, have an index that is out of range, or have an index twice."""
    of = atoms.parameter
    if len(offsets) != len(names) + 1:
        raise UserError(f"{len(names)} groups of {of} need {len(names) + 1} offsets, got {len(offsets)}")
    if offsets[0] != 0 or offsets[-1] != len(members):
        raise UserError(f"the offsets go from {offsets[0]} to {offsets[-1]}, there are {len(members)} members of {of}")
    lengths = offsets.diff()
    if (lengths < 0).any():
        g = int((lengths < 0).nonzero()[0])
        raise UserError(f"the members of group {names[g]} start at {offsets[g]} and end before, at {offsets[g + 1]}")
    if (lengths == 0).any():
        raise UserError(f"group {names[int((lengths == 0).nonzero()[0])]} of {of} has no members")
    wrong = (members < 0) | (members >= len(atoms))
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise UserError(
            f"group {names[_group_at(offsets, at)]} of {of} has the member {members[at]}: expected 0 to "
            f"{len(atoms) - 1}"
        )
    at = kernels.repeated(members.numpy(), offsets.numpy(), len(atoms))
    if at >= 0:
        raise UserError(f"group {names[_group_at(offsets, at)]} of {of} has {atoms.names[int(members[at])]} twice")


def _group_at(offsets: Tensor, at: int) -> int:
    """Cover of overlapping groups: the group of the member at index `at` in the list of the members of all groups."""
    return int(torch.searchsorted(offsets, at, right=True)) - 1
