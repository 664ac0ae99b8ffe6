"""Exact proximal steps of trees: ours against SPAMS; one entry for each node.

Shallow: a million nodes on 12 levels, an uneven number of children. Deep: 100,000 nodes that hang below one of the few
nodes before them, more than 5,000 levels. Both sides get the same float64 problem in the order they like best: ours
level by level, SPAMS depth first. Figures count a copy of the weights for ours, which works in place; SPAMS returns
new ones. The exponent is the slope of log time over log nodes from 10,000 to 10 million, the steeper of the two norms.
"""

import statistics
from functools import partial

import numpy as np
import scipy.sparse
import torch
from timing import arguments, clock, compare, print_table, write_json

from structsparse import prox
from structsparse.groups import by_parents

NODES, DEPTH = 1_000_000, 12
DEEP_NODES, REACH = 100_000, 34  # a parent among so many nodes before: about one level for each 17
GROWTH = 10_000, 100_000, 1_000_000, 10_000_000
STRENGTH = 0.6
SLOW_ROUNDS = 5
PROX = {"l2": prox.forest_shrink_, "linf": prox.forest_clip_}
NORMS = {"l2": "Euclidean norm", "linf": "largest entry"}


def shallow_parents(nodes, depth=DEPTH):
    """One root, then levels of equal size; some nodes have many children, many have none."""
    draw = np.random.default_rng(0)
    bounds = np.append(0, np.linspace(1, nodes, depth).astype(np.int64))
    parents = np.full(nodes, -1)
    for first, start, end in zip(bounds[:-2], bounds[1:-1], bounds[2:], strict=True):
        parents[start:end] = first + np.sort(draw.random(end - start) ** 2 * (start - first)).astype(np.int64)
    return torch.from_numpy(parents)


def deep_parents(nodes, reach=REACH):
    before = np.arange(nodes)
    least = np.maximum(0, before - reach)
    parents = least + (np.random.default_rng(0).random(nodes) * (before - least)).astype(np.int64)
    parents[0] = -1
    return torch.from_numpy(parents)


class Problem:
    """A tree, its nodes in level order, and weights to shrink; ours and theirs."""

    def __init__(self, parents):
        self.forest = by_parents((len(parents),), parents, weights="one")
        if self.forest.order is not None:  # its nodes are in another order: rename them
            self.forest = by_parents((len(parents),), self.forest.above, weights="one")
        self.weights = torch.randn(len(parents), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.start = {dtype: self.weights.to(dtype) for dtype in (torch.float64, torch.float32)}
        self.out = {dtype: start.clone() for dtype, start in self.start.items()}

    def ours(self, norm, dtype=torch.float64):
        out = self.out[dtype].copy_(self.start[dtype])
        return PROX[norm](out, self.forest, STRENGTH, 0.0, 1.0)

    def ours_torch(self, norm):
        """The route for other devices, taken by memory that is not contiguous."""
        return PROX[norm](torch.stack([self.weights] * 2, 1)[:, 0], self.forest, STRENGTH, 0.0, 1.0)


class Spams:
    """The same for spams.proximalTree, which wants the nodes depth first."""

    def __init__(self, problem):
        import spams

        nodes = problem.forest.preorder().memory.nodes
        size, place = len(nodes), np.empty(len(nodes), np.int64)
        place[nodes] = np.arange(size)
        above = place[problem.forest.parents.numpy()[nodes[1:]]]
        entries = np.ones(size - 1, bool), (np.arange(1, size), above)
        self.tree = {
            "eta_g": np.ones(size),
            "groups": scipy.sparse.csc_matrix(entries, (size, size), dtype=bool),
            "own_variables": np.arange(size, dtype=np.int32),
            "N_own_variables": np.ones(size, np.int32),
        }
        self.single = {**self.tree, "eta_g": np.ones(size, np.float32)}
        self.weights = np.asfortranarray(problem.weights.numpy()[nodes][:, None])
        self.place, self.solve = place, spams.proximalTree

    def shrunk(self, norm, tree=None, weights=None):
        tree, weights = tree or self.tree, self.weights if weights is None else weights
        return self.solve(weights, tree, False, 1, lambda1=STRENGTH, regul=f"tree-{norm}")

    def shrunk_single(self, norm):
        return self.shrunk(norm, self.single, np.asfortranarray(self.weights, np.float32))

    def assert_equal(self, problem, norm):
        theirs = torch.from_numpy(self.shrunk(norm)[self.place, 0])
        torch.testing.assert_close(problem.ours(norm), theirs, rtol=0, atol=1e-10)
        torch.testing.assert_close(problem.ours(norm, torch.float32).double(), theirs, rtol=0, atol=1e-5)


def beside_spams(options):
    """Seconds of each contender, by tree and norm."""
    seconds = {}
    for name, parents in (("shallow", shallow_parents(NODES)), ("deep", deep_parents(DEEP_NODES))):
        problem = Problem(parents)
        theirs = Spams(problem)
        for norm in PROX:
            theirs.assert_equal(problem, norm)
            calls = {"ours": partial(problem.ours, norm), "spams": partial(theirs.shrunk, norm)}
            if name == "shallow":
                torch.testing.assert_close(problem.ours_torch(norm), problem.ours(norm), rtol=0, atol=1e-10)
                calls |= {
                    "ours_f32": partial(problem.ours, norm, torch.float32),
                    "spams_f32": partial(theirs.shrunk_single, norm),
                    "ours_torch": partial(problem.ours_torch, norm),
                }
            slow = name == "deep" and norm == "linf"
            seconds[name, norm] = (compare_slow if slow else compare)(calls, options)
        seconds[name, "levels"] = problem.forest.height
    return seconds


def compare_slow(calls, options):
    """`compare` where a call takes seconds and has been made before: its turns alone."""
    now, seconds = clock(options.threads), {name: [] for name in calls}
    for _ in range(1 if options.quick else SLOW_ROUNDS):
        for name, call in calls.items():
            begin = now()
            call()
            seconds[name].append(now() - begin)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def growth(options):
    """Seconds by number of nodes, for each norm."""
    seconds = {norm: {} for norm in PROX}
    for nodes in GROWTH:
        problem = Problem(shallow_parents(nodes))
        for norm in PROX:
            seconds[norm][nodes] = compare({"ours": partial(problem.ours, norm)}, options)["ours"]
    return seconds


def exponent(seconds):
    """Slope of the straight line through log time over log nodes."""
    nodes, taken = zip(*seconds.items(), strict=True)
    return float(np.polyfit(np.log(nodes), np.log(taken), 1)[0])


def figures(options):
    """What benchmarks/prox.py and the tables below are made of."""
    spams, grown = beside_spams(options), growth(options)
    shallow, deep = ({norm: spams[tree, norm] for norm in PROX} for tree in ("shallow", "deep"))
    found = {f"tree_{norm}_speedup_over_spams": taken["spams"] / taken["ours"] for norm, taken in shallow.items()}
    found |= {f"tree_{norm}_deep_speedup_over_spams": taken["spams"] / taken["ours"] for norm, taken in deep.items()}
    found |= {
        f"tree_{norm}_f32_speedup_over_spams": taken["spams_f32"] / taken["ours_f32"] for norm, taken in shallow.items()
    }
    found |= {f"tree_{norm}_torch_over_kernels": taken["ours_torch"] / taken["ours"] for norm, taken in shallow.items()}
    found |= {f"ms_tree_{norm}_{who}": 1e3 * s for norm, taken in shallow.items() for who, s in taken.items()}
    found |= {f"ms_tree_{norm}_deep_{who}": 1e3 * s for norm, taken in deep.items() for who, s in taken.items()}
    found |= {f"ms_tree_{norm}_{n}_nodes": 1e3 * s for norm, taken in grown.items() for n, s in taken.items()}
    found |= {f"tree_{norm}_growth_exponent": exponent(taken) for norm, taken in grown.items()}
    found["tree_deep_levels"] = spams["deep", "levels"]
    found["tree_growth_exponent"] = max(found[f"tree_{norm}_growth_exponent"] for norm in PROX)
    return found


def report(found):
    for tree, title in (
        ("", f"Tree of {NODES:,} nodes, {DEPTH} levels"),
        ("deep_", f"Tree of {DEEP_NODES:,} nodes, {found['tree_deep_levels']:,} levels"),
    ):
        rows = []
        for norm, words in NORMS.items():
            for who in ("ours", "spams", "ours_f32", "spams_f32", "ours_torch"):
                if f"ms_tree_{norm}_{tree}{who}" in found:
                    taken = found[f"ms_tree_{norm}_{tree}{who}"]
                    rows.append(
                        [f"{words}: {who.replace('_', ', ')}", taken, taken / found[f"ms_tree_{norm}_{tree}ours"]]
                    )
        print_table(title, ["", "ms", "times ours"], rows)
    rows = [
        [NORMS[norm], *(found[f"ms_tree_{norm}_{n}_nodes"] for n in GROWTH), found[f"tree_{norm}_growth_exponent"]]
        for norm in PROX
    ]
    print_table("Growth, in ms", ["nodes", *(f"{n:,}" for n in GROWTH), "exponent"], rows)


def main():
    options = arguments(__doc__)
    found = figures(options)
    print("CPU time, one thread" if options.threads == 1 else f"wall time, {options.threads} threads")
    report(found)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
