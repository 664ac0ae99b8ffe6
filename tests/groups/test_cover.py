"""Overlapping groups: every answer against a scalar loop, every kind of atoms, both routes."""

import copy
import math

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import Cover, Partition, by_row_blocks, cover_entries, cover_families, cover_rows

SHAPE = (7, 4)
SETS = [[0, 1, 2], [2, 4], [4, 5, 1], [6], [1, 2, 4, 5]]  # row 3 is free


def scattered_atoms():
    """Atoms of entries that lie apart, one of them of size 0, and free entries."""
    ids = torch.tensor([0, 2, -1, 1] * 7).view(SHAPE)
    ids[5] = 4
    return Cover(Partition(ids, list("abcde"), SHAPE), [0, 1, 1, 4, 2, 0, 3], [0, 2, 4, 5, 7], list("wxyz"))


COVERS = {
    "rows": lambda: cover_rows(SHAPE, SETS),
    "entries": lambda: cover_entries(SHAPE, [[0, 5, 27], [5, 6, 7, 8], [27, 1]]),
    "blocks": lambda: Cover(by_row_blocks(SHAPE, list("abc"), [0, 3, 3, 7]), [0, 2, 1, 2], [0, 2, 4]),
    "scattered": scattered_atoms,
    "one dimension": lambda: cover_rows((5,), [[0, 1], [1, 4]]),
}
ROUTES = {"kernels": lambda W: W.contiguous(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}


@pytest.fixture(params=COVERS)
def cover(request):
    return COVERS[request.param]()


def positions(cover):
    """For each group the flat positions of its entries, by a loop."""
    ids = cover.atoms.ids.expand(cover.shape).flatten().tolist()
    members, offsets = cover.members.tolist(), cover.offsets.tolist()
    sets = [members[a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    return [[i for k in own for i, atom in enumerate(ids) if atom == k] for own in sets]


def random_weights(cover, dtype=torch.float64):
    return torch.randn(cover.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_norms_and_alive_are_those_of_a_loop(cover, dtype, route):
    W = random_weights(cover, dtype)
    W.view(-1)[positions(cover)[1]] = -0.0
    entries = W.flatten().tolist()
    W = ROUTES[route](W)
    expected = [[entries[i] for i in own] for own in positions(cover)]
    close = {"rtol": 1e-6 if dtype == torch.float32 else 1e-14, "atol": 1e-6 if dtype == torch.float32 else 1e-14}
    torch.testing.assert_close(cover.sums(W).tolist(), [math.fsum(own) for own in expected], **close)
    torch.testing.assert_close(cover.norms(W).tolist(), [math.hypot(*own) for own in expected], **close)
    assert cover.nonzeros(W).tolist() == [sum(value != 0 for value in own) for own in expected]
    assert cover.alive(W).tolist() == [any(own) for own in expected]
    dead = {i for group, own in zip(positions(cover), expected, strict=True) if not any(own) for i in group}
    spared = cover.spared(W).expand(cover.shape).flatten().tolist()
    assert spared == [i not in dead for i in range(W.numel())]
    assert not all(spared)


def test_sizes_multiplicities_and_free_entries_are_counted(cover):
    sizes = [len(own) for own in positions(cover)]
    assert cover.size.tolist() == sizes
    assert cover.copies == sum(sizes)
    assert cover.weight.tolist() == pytest.approx([math.sqrt(n) for n in sizes])
    counts = [sum(i in own for own in positions(cover)) for i in range(cover.shape.numel())]
    assert cover.expand(cover.multiplicity, fill=0).expand(cover.shape).flatten().tolist() == counts
    assert cover.covered().expand(cover.shape).flatten().tolist() == [n > 0 for n in counts]
    assert cover.free == (min(counts) == 0 or cover.atoms.free)


def test_pairs_are_the_entries_of_each_group(cover):
    places, owner = cover.pairs()
    assert owner.tolist() == [g for g, own in enumerate(positions(cover)) for _ in own]
    assert places.tolist() == [i for own in positions(cover) for i in own]
    order, bounds = cover.entries()
    inner, _ = cover.pairs(in_order=False)
    assert torch.equal(inner if order is None else order[inner], places)
    assert bounds[-1] == int(cover.atoms.size.sum())


def test_families_are_disjoint_and_make_up_the_cover(cover):
    W, found = random_weights(cover), {}
    families = cover.families()
    assert len(families) >= int(cover.multiplicity.max())
    for family in families:
        assert isinstance(family, Partition)
        found |= dict(
            zip(family.names, zip(family.weight.tolist(), family.norms(W).tolist(), strict=True), strict=True)
        )
    weights, norms = cover.weight.tolist(), cover.norms(W).tolist()
    assert sorted(found) == sorted(cover.names)
    for g, name in enumerate(cover.names):
        assert found[name] == pytest.approx((weights[g], norms[g]), abs=1e-14)


def test_few_families_are_found_for_an_interval_graph_and_many_are_refused():
    windows = cover_rows((300, 1), [list(range(i, i + 5)) for i in range(295)])
    assert len(windows.families()) == 5
    star = cover_rows((2000, 1), [[0, i] for i in range(1, 1500)])
    with pytest.raises(UserError, match=r"row 0 of the parameter lies in 1499 groups.*at most 1024"):
        star.families()


def test_a_cover_of_families_has_the_groups_of_all(cover):
    W, families = random_weights(cover), cover.families()
    back = cover_families(families)
    kept = [(n, w) for f in families for n, w, s in zip(f.names, f.weight, f.size, strict=True) if s]
    assert [name for name, _ in kept] == list(back.names)
    torch.testing.assert_close(back.weight.tolist(), [float(w) for _, w in kept])
    norms = torch.cat([family.norms(W)[family.size > 0] for family in families])
    torch.testing.assert_close(back.norms(W), norms)
    free = torch.stack([(f.ids < 0).expand(cover.shape) for f in families]).all(0)
    assert torch.equal(back.covered().expand(cover.shape), ~free)


def test_subset_keeps_names_weights_and_members(cover):
    chosen = torch.tensor([2, 0]) if len(cover) > 2 else torch.tensor([1])
    part, W = cover.subset(chosen), random_weights(cover)
    assert part.names == [cover.names[g] for g in chosen.tolist()]
    torch.testing.assert_close(part.norms(W), cover.norms(W)[chosen])
    assert torch.equal(part.weight, cover.weight[chosen])


def test_norms_have_a_zero_gradient_at_zero(cover):
    W = random_weights(cover)
    W.view(-1)[positions(cover)[1]] = 0
    W.requires_grad_()
    cover.norms(W).sum().backward()
    norms = cover.norms(W.detach())
    pull = cover.scatter(torch.where(norms > 0, 1 / norms, 0.0))
    torch.testing.assert_close(W.grad, W.detach() * cover.expand(pull, fill=0.0))
    assert W.grad.isfinite().all()


def test_millions_of_groups_are_made_and_asked_at_once():
    count = 300_000
    members = (torch.arange(count)[:, None] + torch.arange(3)).flatten() % count
    cover = cover_rows((count, 1), members, torch.arange(0, 3 * count + 1, 3))
    W = torch.rand(count, 1, dtype=torch.float64)
    squares = W[:, 0].square()
    torch.testing.assert_close(cover.norms(W), (squares + squares.roll(-1) + squares.roll(-2)).sqrt())
    assert cover.names[count - 1] == "group 299999"


def test_buffers_travel_in_the_state_and_between_devices(cover):
    state = copy.deepcopy(cover.state_dict())
    assert {"members", "offsets", "size", "weight"} <= set(state)
    other = copy.deepcopy(cover)
    other.weight.zero_()
    other.load_state_dict(state)
    assert torch.equal(other.weight, cover.weight)
    meta = copy.deepcopy(cover).to("meta")
    W = torch.empty(cover.shape, device="meta")
    for answer in (meta.norms(W), meta.alive(W), meta.sums(W)):
        assert (answer.device.type, answer.shape) == ("meta", (len(cover),))
    assert meta.spared(W).is_meta
    assert meta.pairs()[0].shape == (cover.copies,)


WRONG = {
    "group b of table has the member 7: expected 0 to 6": lambda: cover_rows(
        SHAPE, [[0], [1, 7]], names="ab", parameter="table"
    ),
    "has the member -1: expected 0 to 27": lambda: cover_entries(SHAPE, [[0, -1]]),
    "group group 1 of the parameter has row 3 twice": lambda: cover_rows(SHAPE, [[3], [3, 1, 3]]),
    "has entry 5 twice": lambda: cover_entries(SHAPE, [[5, 5]]),
    "group none of the parameter has no members": lambda: cover_rows(SHAPE, [[3], []], names=["one", "none"]),
    "2 groups of the parameter need 3 offsets, got 4": lambda: cover_rows(SHAPE, [1, 2, 3], [0, 1, 2, 3], ["a", "b"]),
    "the offsets go from 0 to 2, there are 3 members": lambda: cover_rows(SHAPE, [1, 2, 3], [0, 2]),
    "the members of group group 1 start at 2 and end before, at 1": lambda: cover_rows(SHAPE, [1, 2, 3], [0, 2, 1, 3]),
    "must be a list of integers, got torch.float32": lambda: cover_rows(SHAPE, [0.5, 1.0], [0, 2]),
    "the weight of group group 0 is nan": lambda: cover_rows(SHAPE, [[1]], weights=torch.tensor([math.nan])),
    "unknown group weights 'size'": lambda: cover_rows(SHAPE, [[1]], weights="size"),
    "got a tensor (7, 5)": lambda: cover_rows(SHAPE, [[1]]).norms(torch.zeros(7, 5)),
    "expected one shape, got (2,), (3,)": lambda: cover_families(
        [by_row_blocks((n,), ["all"], [0, n]) for n in (2, 3)]
    ),
    "expected one shape, got no family": lambda: cover_families([]),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named(message):
    with pytest.raises(UserError) as error:
        WRONG[message]()
    assert message in str(error.value)
