"""Proximal steps against one pass over memory, a group lasso at the cost of its groups, proximal steps of trees.

Each step changes all of 80 million float32 weights in place; its time is a multiple of that of `mul_`, which must read
and write them too. Groups follow each other, their ends drawn at random; then rows of 22 labels, each a group. Beside
it stands the torch route, which is meant for other devices. Then a training step of a sparse tagger, 24 tokens with 96
templates, and the group lasso after it: every weight shrunk (`RowSGD`, `GroupLasso.prox_`), or a factor per group
(`ScaledSGD`).
"""

import time
from functools import partial
from unittest.mock import patch

import prox_trees
import torch
from timing import arguments, clock, compare, print_table, write_json

from structsparse.groups import by_row, by_row_blocks
from structsparse.penalties import L1, GroupLasso, SparseGroupLasso
from structsparse.solvers.scaled import ScaledSGD
from structsparse.solvers.sgd import RowSGD
from structsparse.weights.bags import BagGradient
from structsparse.weights.notes import notes_of

WEIGHTS = 80_000_000
LABELS = 22
COUNTS = {"M100": 100, "M10k": 10_000, "M1M": 1_000_000}
TINY = 1e-9  # strength: the weights stay what they are, however often they are shrunk
TEMPLATES, TOKENS, BATCHES = 96, 24, 40
TABLE = 78_000_000 // LABELS  # rows
RATE, STRENGTH = 0.05, 2e-3
PROOF = 120  # steps after which both hold the same
WALKABLE = "structsparse.groups.partition.walkable", "structsparse.prox.entries.walkable"


def random_blocks(rows, count, width=1, weights="one"):
    """Groups of rows one after the other, their ends drawn at random."""
    draw = torch.Generator().manual_seed(0)
    cuts = torch.randint(1, rows, (count - 1,), generator=draw).sort().values
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([rows])])
    return by_row_blocks((rows, width), range(count), offsets, weights)


def penalties():
    yield "l1", L1(TINY), (WEIGHTS, 1)
    for name, count in COUNTS.items():
        groups = random_blocks(WEIGHTS, count)
        yield f"group_l2_over_mul_{name}", GroupLasso(groups, TINY), groups.shape
        yield f"sparse_group_over_mul_{name}", SparseGroupLasso(groups, TINY, mix=0.5), groups.shape
    groups = by_row((WEIGHTS // LABELS, LABELS), weights="one")
    yield "group_l2_over_mul_rows", GroupLasso(groups, TINY), groups.shape
    yield "sparse_group_over_mul_rows", SparseGroupLasso(groups, TINY, mix=0.5), groups.shape


def torch_seconds(call, options):
    """One call by the torch route: it takes as long as a hundred of the others."""
    now = clock(options.threads)
    with patch(WALKABLE[0], lambda W: False), patch(WALKABLE[1], lambda W: False):
        begin = now()
        call()
        return now() - begin


def beside_memory(options):
    weights = torch.randn(WEIGHTS, generator=torch.Generator().manual_seed(1))
    figures = {}
    for name, penalty, shape in penalties():
        name = "l1_over_mul" if name == "l1" else name
        W = weights[: shape.numel() if isinstance(shape, torch.Size) else WEIGHTS].view(shape)
        ours = partial(penalty.prox_, W, 1.0)
        seconds = compare({"mul": partial(W.mul_, 1.0), "ours": ours}, options)
        figures[name] = seconds["ours"] / seconds["mul"]
        figures[f"torch_{name}"] = torch_seconds(ours, options) / seconds["mul"]
    return figures


class Contender:
    """A table under a group lasso, and what changes it."""

    def __init__(self, optimizer, groups):
        draw = torch.Generator().manual_seed(2)
        self.table = torch.nn.Parameter(0.01 * torch.randn(groups.shape, generator=draw))
        self.penalty, self.optimizer = GroupLasso(groups, STRENGTH), optimizer([self.table], lr=RATE)
        if self.optimizer.carries_penalties:
            self.optimizer.attach({self.table: self.penalty})

    def step(self, gradient):
        notes_of(self.table).pending[:] = [gradient]
        self.optimizer.step()
        if not self.optimizer.carries_penalties:
            self.penalty.prox_(self.table, RATE)

    def lap(self, gradients):
        for gradient in gradients:
            self.step(gradient)


def gradients(groups):
    """Each token has a row of every template, of which a few are frequent."""
    draw = torch.Generator().manual_seed(3)
    begin, size = groups.offsets[:-1], groups.offsets.diff()
    for _ in range(BATCHES):
        ids = begin + (torch.rand(TOKENS, TEMPLATES, generator=draw) ** 4 * size).long().clamp(max=size - 1)
        offsets = torch.arange(TOKENS + 1) * TEMPLATES
        yield BagGradient(ids.int().flatten(), offsets, 0.1 * torch.randn(TOKENS, LABELS, generator=draw))


def scaled(options):
    groups = random_blocks(TABLE, TEMPLATES, LABELS, "sqrt_size")
    groups.weight.mul_(torch.logspace(-1, 1.5, TEMPLATES))  # some groups die at once and come back with every step
    contenders = {"eager": Contender(RowSGD, groups), "scaled": Contender(ScaledSGD, groups)}
    batches = list(gradients(groups))
    for step in range(PROOF):
        for contender in contenders.values():
            contender.step(batches[step % BATCHES])
    eager, ours = contenders.values()
    ours.optimizer.flush()
    torch.testing.assert_close(ours.table, eager.table, rtol=1e-4, atol=2e-6)
    alive = int(groups.alive(eager.table).sum())
    assert alive == int(groups.alive(ours.table).sum())
    laps = {"eager": batches[:2], "scaled": batches}  # turns of about as long
    seconds = compare({name: partial(contenders[name].lap, lap) for name, lap in laps.items()}, options)
    seconds = {name: taken / len(laps[name]) for name, taken in seconds.items()}
    return {
        "scaled_speedup": seconds["eager"] / seconds["scaled"],
        "ms_step_eager": seconds["eager"] * 1e3,
        "ms_step_scaled": seconds["scaled"] * 1e3,
        "scaled_groups_alive": alive,
    }


def main():
    options = arguments(__doc__)
    begin = time.perf_counter()
    walls = beside_memory(options)
    print("CPU time, one thread" if options.threads == 1 else f"wall time, {options.threads} threads")
    rows = [
        [name.replace("_over_mul", ""), walls[name], walls[f"torch_{name}"]] for name in walls if name[:6] != "torch_"
    ]
    print_table(f"Prox of {WEIGHTS:,} float32 weights, times mul_", ["", "ours", "torch route"], rows)
    steps = scaled(options)
    rows = [
        [name, steps[f"ms_step_{name}"], steps[f"ms_step_{name}"] / steps["ms_step_scaled"]]
        for name in ("eager", "scaled")
    ]
    title = (
        f"Step and prox, {TABLE * LABELS:,} weights in {TEMPLATES} groups, {steps['scaled_groups_alive']} of them alive"
    )
    print_table(title, ["", "ms", "times scaled"], rows)
    trees = prox_trees.figures(options)
    prox_trees.report(trees)
    print(f"{time.perf_counter() - begin:.0f} seconds")
    write_json(options.json, {**walls, **steps, **trees})


if __name__ == "__main__":
    main()
