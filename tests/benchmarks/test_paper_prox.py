"""The paper's two algorithms, and its propositions, on contexts of real and of random texts."""

from functools import cache

import numpy as np
import pytest
import torch

from benchmarks.paper_prox import ALGORITHMS
from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.corpora.known import texts
from structsparse.corpora.text import encode
from structsparse.groups import by_parents
from structsparse.penalties import L1, Nonnegative, SquaredL2, TreeGroupLassoMax
from structsparse.solvers.fista import FISTA
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.groups import ContextLayout, by_suffix
from structsparse.tasks.lm.model import NgramModel
from structsparse.weights.notes import notes_of
from tests.support.forests import FORESTS, limit_of, random_parents, random_steps, random_weights, slow_tree_prox

algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


@cache
def contexts(kind: str, order: int = 6) -> ContextTree:
    if kind == "reference":  # of Python, as it comes with it
        common = {"min_count": 1, "limit": 3000, "lower": False, "classes": False}
        text = texts.files(None, None, None, sentences="text", tokens="words", held_out=0.01, **common).train
    else:  # few words, so that contexts are met again, and some sentences twice
        draw = np.random.default_rng(len(kind))
        lines = [["abc"[k] for k in draw.integers(0, 3, draw.integers(1, 12))] for _ in range(40)]
        text = encode(lines + lines[:5])
    return ContextTree.build(text, order)


@algorithms
@pytest.mark.parametrize("layout", [name for name in FORESTS if name != "no nodes"])
def test_each_is_the_composition_of_projections(layout, algorithm):
    forest = FORESTS[layout]()
    for seed in range(12):
        W, strength = random_weights(forest.shape, seed), 0.03 * 1.7 ** (seed % 8)
        if seed % 3 == 0:
            W = (4 * W).round() / 4 + 0.0  # pivots and tops of heaps are tied
        steps = random_steps(forest.shape, seed) if seed % 2 else 0.6
        expected = slow_tree_prox(W, forest, strength, 0.0, steps, largest=True)
        found = ALGORITHMS[algorithm](W.clone(), forest, strength, steps)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert not found[found == 0].signbit().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["random text", "another random text", "reference"])
def test_all_agree_on_contexts_as_trie_and_as_tree(kind, dtype):
    trie = contexts(kind)
    for tree in (trie, trie.collapse()[0]):
        forest = by_suffix((tree.entries,), ContextLayout(tree))
        for seed in range(3):
            W = random_weights((tree.entries,), seed, dtype)
            steps = random_steps((tree.entries,), seed).to(dtype)
            found = [algorithm(W.clone(), forest, 0.1 * 3.0**seed, steps) for algorithm in ALGORITHMS.values()]
            for other in found[1:]:
                torch.testing.assert_close(other, found[0], rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)
                assert 0 < int((other != 0).sum()) < tree.entries


@algorithms
def test_spams_finds_the_same_on_contexts(algorithm):
    from tests.prox.test_forest import spams_prox

    tree = contexts("reference", order=4)
    forest, W = by_suffix((tree.entries,), ContextLayout(tree)), random_weights((tree.entries,), 1)
    found = ALGORITHMS[algorithm](W.clone(), forest, 0.5, 0.6)
    expected = torch.empty_like(found)
    roots = []
    for root in range(0, tree.words, max(1, tree.words // 40)):  # theirs is quadratic: some of the words
        member = np.zeros(tree.entries, bool)
        member[root] = True
        for e in range(tree.words, tree.entries):
            member[e] = member[tree.entry_above[e]]
        rows = np.flatnonzero(member)
        place = np.cumsum(member) - 1
        parents = [-1 if e == root else int(place[tree.entry_above[e]]) for e in rows]
        alone = by_parents((len(rows),), parents, weights="one")
        expected[rows] = spams_prox(W[rows], alone, 0.3, "tree-linf")
        roots += rows.tolist()
    assert len(roots) > 60
    torch.testing.assert_close(found[roots], expected[roots], rtol=0, atol=1e-10)


def constant_paths(tree: ContextTree, W: torch.Tensor, seed: int) -> list[list[int]]:
    """Some non-branching paths of a trie, longest first, of which W now has one value on each."""
    children = np.bincount(tree.entry_above[tree.words :], minlength=tree.entries)
    draw, paths, taken = np.random.default_rng(seed), [], np.zeros(tree.entries, bool)
    for end in range(tree.entries - 1, tree.words, -1):
        path = [end]
        while tree.entry_above[path[-1]] >= 0 and children[tree.entry_above[path[-1]]] == 1:
            path.append(int(tree.entry_above[path[-1]]))
        path = path[: draw.integers(2, 6)]
        if len(path) > 1 and children[end] <= 1 and not taken[path].any():
            taken[path] = True
            W[path] = float(W[end])
            paths.append(path)
    return paths


@algorithms
@pytest.mark.parametrize("kind", ["random text", "reference"])
def test_proposition_1_constant_paths_stay_constant(kind, algorithm):
    tree = contexts(kind)
    forest, clipped = by_suffix((tree.entries,), ContextLayout(tree)), 0
    for seed in range(3):
        W = random_weights((tree.entries,), seed)
        paths = constant_paths(tree, W, seed)
        found = ALGORITHMS[algorithm](W.clone(), forest, 0.05 * 2.0**seed, 0.8)
        assert len(paths) > 20
        for path in paths:
            assert float((found[path] - found[path[0]]).abs().max()) <= 1e-14
            clipped += bool((found[path] != W[path]).any() and (found[path] != 0).all())
    assert clipped > 10


def project(values: np.ndarray, reach: float) -> np.ndarray:
    return np.minimum(values, limit_of(values.tolist(), [1.0] * len(values), reach))


@pytest.mark.parametrize("kind", ["random text", "reference"])
def test_proposition_2_one_projection_stands_for_those_of_a_path(kind):
    tree = contexts(kind)
    below: list[list[int]] = [[] for _ in range(tree.entries)]
    for e in range(tree.entries - 1, -1, -1):
        below[e].append(e)
        if tree.entry_above[e] >= 0:
            below[tree.entry_above[e]] += below[e]
    W, changed = random_weights((tree.entries,), 3).abs(), 0
    for path in constant_paths(tree, W, 3)[:60]:  # from its lower to its upper end
        values = W.numpy().copy()
        for reach in (0.02, 0.2, 1.0):
            composed = values.copy()
            for e in path:
                composed[below[e]] = project(composed[below[e]], reach)
            at_once = project(values[below[path[-1]]], reach * len(path))
            np.testing.assert_allclose(composed[below[path[-1]]], at_once, rtol=0, atol=1e-12)
            changed += 0 < at_once.max() < values[below[path[-1]]].max()
    assert changed > 20


def models():
    """Of a trie, and of its tree; which entry of the tree each of the trie belongs to."""
    trie = contexts("reference", order=7)
    tree, of = trie.collapse()
    assert tree.entries < 0.7 * trie.entries
    both = [NgramModel(t).double() for t in (trie, tree)]
    for model in both:
        chain = torch.from_numpy(model.tree.entry_chain).double()
        count = torch.from_numpy(model.tree.entry_count).double().clamp(min=0.5)
        notes_of(model.table).curvature = chain * count / model.targets
        with torch.no_grad():
            model.table[: trie.words] = count[: trie.words].log()
    return both, torch.from_numpy(of).long()


def collapsible(kind: str, model: NgramModel):
    """The penalty of a trie, or the one of the tree that is its sum over chains."""
    strength, chain = 0.4 / model.targets, torch.from_numpy(model.tree.entry_chain).double()
    if kind == "linf tree":
        return TreeGroupLassoMax(by_suffix(tuple(model.table.shape), ContextLayout(model.tree)), strength)
    return {"l1": L1, "squared l2": SquaredL2}[kind](strength, weights=chain)


@pytest.mark.parametrize("kind", ["linf tree", "l1", "squared l2"])
def test_the_tree_is_the_trie_in_every_step_of_a_training(kind):
    """Features of 1, where chains start at one value: as long as a training goes."""
    both, of = models()
    solvers = [FISTA([model.table], tolerance=0.0) for model in both]
    for model, solver in zip(both, solvers, strict=True):
        solver.attach({model.table: Nonnegative(collapsible(kind, model))})
    for _ in range(40):
        for model, solver in zip(both, solvers, strict=True):
            solver.step(lambda model=model, solver=solver: loss_of(model, solver))
        trie, tree = (model.table.detach() for model in both)
        torch.testing.assert_close(trie, tree[of], rtol=0, atol=1e-9)
    assert 0 < int((trie != 0).sum()) <= len(trie)
    assert solvers[0].shared["objective"] == pytest.approx(solvers[1].shared["objective"], rel=1e-12)
    assert (trie - tree[of]).abs().max() < 1e-9 < float(trie[len(both[0].shares) :].max())


def loss_of(model: NgramModel, solver: FISTA):
    solver.zero_grad()
    loss = model.surprise() / model.targets
    loss.backward()
    return loss


def test_what_they_cannot_walk_is_refused():
    forest = by_parents((8,), random_parents(8, 1))
    for name in ("random_pivot", "best_of_heap"):
        with pytest.raises(UserError, match=r"contiguous CPU memory: take prox\.forest_clip_"):
            ALGORITHMS[name](torch.zeros(8, 2)[:, 0], forest, 1.0, 1.0)
    assert ALGORITHMS["merged_heap"](torch.ones(8, 2)[:, 0], forest, 0.1, 1.0).equal(
        prox.forest_clip_(torch.ones(8), forest, 0.1, 0.0, 1.0)
    )
