"""Overlapping groups: the distance of the sequential prox, one family after the other, from the exact one.

A single prox of random weights, exact and sequential, at shares of the strength at which all of them would die. The
distance is relative to the norm of the exact result, the excess to its objective; median and largest of ten draws.
Coarse to fine: templates of our language, each group with all finer ones; random: groups of ten rows.
"""

import statistics

import torch
from timing import arguments, print_table, write_json

from structsparse.groups import cover_rows
from structsparse.groups.orders import coarse_to_fine
from structsparse.penalties import OverlappingGroupLasso, SequentialGroupLasso
from structsparse.tasks.tagging.features.groups import template_order
from structsparse.tasks.tagging.features.templates import expand

TEMPLATES = [
    "1-5-grams of pos[-2..2]",
    "1-5-grams of word[-2..2]",
    "1-3-grams of shape[-2..2]",
    "1-3-grams of case[-1..1]",
]
SHARES, DRAWS, LABELS = (0.05, 0.1, 0.3), 10, 5


def covers(draw):
    names = [template.name for template in expand(TEMPLATES)]
    sizes = torch.randint(1, 40, (len(names),), generator=draw)
    ends = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    yield "coarse_to_fine", coarse_to_fine((int(ends[-1]), LABELS), names, ends, template_order(names))
    members = [torch.randperm(300, generator=draw)[:10].sort().values.tolist() for _ in range(90)]
    yield "random", cover_rows((300, LABELS), members)


def compared(cover, W, share):
    """Relative distance and relative excess of the objective."""
    exact, sequential = OverlappingGroupLasso(cover, 1.0), SequentialGroupLasso(cover, 1.0)
    strength = share * float(exact.critical(W))
    exact.strength = sequential.strength = strength
    best, found = exact.prox_(W.clone(), 1.0), sequential.prox_(W.clone(), 1.0)

    def objective(V):
        return float(exact.value(V) + (V - W).square().sum() / 2)

    return float((found - best).norm() / best.norm()), objective(found) / objective(best) - 1


def main():
    options = arguments(__doc__)
    figures, rows = {}, []
    for share in SHARES:
        drawn = {}
        for seed in range(DRAWS):
            draw = torch.Generator().manual_seed(seed)
            for name, cover in covers(draw):
                W = torch.randn(cover.shape, generator=draw, dtype=torch.float64)
                drawn.setdefault(name, []).append(compared(cover, W, share))
        for name, pairs in drawn.items():
            distances, excesses = zip(*pairs, strict=True)
            cells = statistics.median(distances), max(distances), statistics.median(excesses)
            rows.append([f"{name}, {share}", *cells])
            figures[f"sequential_distance_{name}_at_{share}"] = cells[0]
            figures[f"sequential_excess_{name}_at_{share}"] = cells[2]
    print_table("Sequential against exact", ["groups, share of critical", "distance", "largest", "excess"], rows)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
