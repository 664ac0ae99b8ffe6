"""Coarse before fine: the groups of a partial order of templates."""

import itertools

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups.orders import closure, coarse_to_fine
from structsparse.penalties import OverlappingGroupLasso

NAMES = ["p", "w", "pp", "wp", "ww"]
PAIRS = [("w", "p"), ("pp", "p"), ("wp", "pp"), ("wp", "w"), ("ww", "wp")]  # finer, coarser
FINER = {"p": "p w pp wp ww", "w": "w wp ww", "pp": "pp wp ww", "wp": "wp ww", "ww": "ww"}
OFFSETS = [0, 2, 5, 7, 8, 12]


def rows_of(cover, name):
    places, owner = cover.pairs()
    return sorted({int(i) // cover.shape[1] for i in places[owner == list(cover.names).index(name)]})


def below(a, b):
    return b in FINER[a].split()


MATRIX = torch.tensor([[below(a, b) for b in NAMES] for a in NAMES])


@pytest.mark.parametrize("order", [PAIRS, below, MATRIX], ids=["pairs", "function", "matrix"])
def test_a_group_holds_its_own_rows_and_those_of_all_finer_templates(order):
    cover = coarse_to_fine((12, 3), NAMES, OFFSETS, order)
    spans = dict(zip(NAMES, itertools.pairwise(OFFSETS), strict=True))
    for name in NAMES:
        assert rows_of(cover, name) == sorted(row for b in FINER[name].split() for row in range(*spans[b]))
    assert list(cover.names) == NAMES
    assert cover.size.tolist() == [3 * len(rows_of(cover, name)) for name in NAMES]
    assert not cover.free


def test_a_fine_template_lives_only_if_no_coarser_group_is_dead():
    """Whatever lives after the prox, a living template lies in living groups only; finer ones die first."""
    cover = coarse_to_fine((12, 3), NAMES, OFFSETS, PAIRS, "one")
    seen = set()
    for seed in range(40):
        W = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        OverlappingGroupLasso(cover, 0.25 * (1 + seed % 8)).prox_(W, 1.0)
        living = [bool(rows.any()) for rows in W.split([2, 3, 2, 1, 4])]
        seen.add(tuple(living))
        for a, b in itertools.product(range(5), repeat=2):
            assert not living[b] or living[a] or not MATRIX[a, b]
    assert len(seen) >= 4


def test_what_follows_need_not_be_said():
    chain = torch.zeros(50, 50, dtype=torch.bool)
    chain[range(49), range(1, 50)] = True
    assert torch.equal(closure(chain, range(50)), torch.ones(50, 50).triu(1) > 0)


def test_templates_without_rows_are_no_group_to_pay_for():
    cover = coarse_to_fine((3, 2), ["p", "w"], [0, 3, 3], [("w", "p")])
    assert cover.weight.tolist()[1] == 0
    assert cover.size.tolist() == [6, 0]


def make(order, names=NAMES, offsets=OFFSETS):
    return coarse_to_fine((12, 3), names, offsets, order)


WRONG = {
    "p is coarser than w is coarser than p;": lambda: make([("p", "w"), ("w", "p")]),
    "w is coarser than wp is coarser than ww is coarser than w;": lambda: make([*PAIRS, ("w", "ww")]),
    "the order names 'x', expected one of the 5 templates p, w, pp, wp, ww": lambda: make([("x", "p")]),
    "pairs (finer, coarser), got 'wp'": lambda: make(["wp"]),
    "must be a bool matrix (5, 5), got torch.bool (4, 4)": lambda: make(torch.zeros(4, 4, dtype=torch.bool)),
    "must be a bool matrix (5, 5), got torch.float32": lambda: make(torch.zeros(5, 5)),
    "5 groups of the parameter need 6 offsets, got 3": lambda: make(PAIRS, offsets=[0, 2, 12]),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named(message):
    with pytest.raises(UserError) as error:
        WRONG[message]()
    assert message in str(error.value)
