"""The best and the k best dependency trees, against enumeration, other algorithms and each other."""

import math

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.structures.nonprojective import NonprojectiveTree
from structsparse.structures.projective import ProjectiveTree
from tests.support.parses import INF, KINDS, TREES, close, enumerated, problem

SEEDS = range(4)
NATIVE = {name: tree for name, tree in TREES.items() if name.endswith("native")}


@pytest.fixture(params=TREES)
def tree(request):
    return TREES[request.param]


@pytest.fixture(params=NATIVE)
def native(request):
    return NATIVE[request.param]


def whole(scores):
    """Scores with few distinct values: many exact ties."""
    return torch.where(scores > -INF, scores.round().clamp(-1, 1), scores)


def with_trees(tree, scores, lengths):
    """The sentences that have a tree."""
    some = tree.log_partition(scores, lengths) > -INF
    return scores[some], lengths[some]


# --- the best


@pytest.mark.parametrize("bars", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("seed", SEEDS)
def test_best_is_that_of_enumeration(tree, seed, bars):
    scores, lengths = with_trees(tree, *problem(seed, batch=40, bars=bars)[::2])
    found = tree.best(scores, lengths)
    for b, (heads, worth) in enumerate(enumerated(tree, scores, lengths)):
        assert torch.equal(found[b, : lengths[b]], heads[worth.argmax()])
    assert (found[torch.arange(5) >= lengths[:, None]] == 0).all()


@pytest.mark.parametrize("bars", [0.0, 0.4])
@pytest.mark.parametrize("seed", SEEDS)
def test_ties_are_broken_deterministically(tree, seed, bars):
    scores, lengths = with_trees(tree, *problem(seed, batch=40, bars=bars)[::2])
    scores = whole(scores)
    found = tree.best(scores, lengths)
    for b, (heads, worth) in enumerate(enumerated(tree, scores, lengths)):
        mine = (heads == found[b, : lengths[b]]).all(1)
        assert mine.sum() == 1
        assert worth[mine] == worth.max()
    assert torch.equal(tree.best(scores, lengths), found)
    assert torch.equal(tree.best(scores.flip(0), lengths.flip(0)).flip(0), found)


def contracted(scores):
    """Heads of the best tree of scores {node: {head: score}}, root 0, by the textbook recursion of Chu and Liu."""
    heads = {m: max(row, key=row.get) for m, row in scores.items()}
    cycle = next((found for m in heads if (found := walked(heads, m))), None)
    if cycle is None:
        return heads
    new, entries, exits = ("cycle", *cycle), {}, {}
    smaller = {new: {}}
    for m, row in scores.items():
        for h, worth in row.items():
            if m in cycle and h not in cycle and worth - row[heads[m]] > smaller[new].get(h, -INF):
                smaller[new][h], entries[h] = worth - row[heads[m]], m
            elif m not in cycle:
                at = new if h in cycle else h
                if worth > smaller.setdefault(m, {}).get(at, -INF):
                    smaller[m][at] = worth
                    exits[m] = h if at is new else exits.get(m)
    result = contracted(smaller)
    entry = result.pop(new)
    result = {m: exits[m] if h == new else h for m, h in result.items()}
    return {**result, **{m: heads[m] for m in cycle}, entries[entry]: entry}


def walked(heads, m):
    """The cycle that contains m."""
    seen = [m]
    while heads.get(seen[-1], 0) != 0:
        if heads[seen[-1]] == m:
            return seen
        if heads[seen[-1]] in seen:
            return None
        seen.append(heads[seen[-1]])
    return None


def textbook(scores, single_root):
    """Heads of the best tree of scores [n + 1, n + 1]; a single root by trying every token."""
    n = len(scores) - 1
    table = {m: {h: float(scores[m, h]) for h in range(n + 1) if h != m} for m in range(1, n + 1)}
    tries = [table]
    if single_root:
        tries = [{m: {h: x for h, x in row.items() if h or m == r} for m, row in table.items()} for r in table]
        tries = [one for one in tries if all(one.values())]
    found = [contracted(one) for one in tries]
    worths = [sum(table[m][h] for m, h in heads.items()) for heads in found]
    best = found[int(np.argmax(worths))]
    return [best[m] for m in range(1, n + 1)]


@pytest.mark.parametrize("single_root", [False, True])
def test_best_is_that_of_the_textbook_on_a_thousand_sentences(single_root):
    scores, _, lengths = problem(9, batch=1000, n=12)
    found = NonprojectiveTree(single_root).best(scores, lengths)
    for b, n in enumerate(lengths.tolist()):
        assert found[b, :n].tolist() == textbook(scores[b, : n + 1, : n + 1], single_root)


@pytest.mark.parametrize("n", [12, 60])
def test_best_is_that_of_ufal_on_a_thousand_sentences(n):
    ufal = pytest.importorskip("ufal.chu_liu_edmonds")
    scores, _, lengths = problem(10, batch=1000, n=n)
    found = NonprojectiveTree().best(scores, lengths)
    for b, size in enumerate(lengths.tolist()):
        theirs, _ = ufal.chu_liu_edmonds(scores[b, : size + 1, : size + 1].nan_to_num().numpy())
        assert found[b, :size].tolist() == theirs[1:]


def test_nested_cycles_are_expanded_right():
    """Scores that decrease from token to token make cycles within cycles."""
    for seed in range(200):
        draw = torch.Generator().manual_seed(seed)
        levels = torch.arange(15).double().mul(3).unsqueeze(0) - torch.arange(15).double().sub(1).unsqueeze(1).abs()
        scores = levels - 50.0 * (torch.arange(15) == 0) + torch.rand(15, 15, generator=draw, dtype=torch.float64)
        for single_root in (False, True):
            found = NonprojectiveTree(single_root).best(scores[None], torch.tensor([14]))
            assert found[0].tolist() == textbook(scores, single_root)


@pytest.mark.parametrize("size", [1e3, 1e9, 1e15])
def test_no_score_outweighs_the_single_root(size):
    """The root is by far the best head of every token: a numeric penalty would swamp the other scores."""
    scores, _, lengths = problem(11, batch=20, n=6, shortest=2)
    scores = scores.round()
    scores[:, :, 0] += size
    for kind in KINDS:
        for route in KINDS[kind]:
            found = route(True).best(scores, lengths)
            for b, (heads, worth) in enumerate(enumerated(route(True), scores - size * _root(7), lengths)):
                mine = (heads == found[b, : lengths[b]]).all(1)
                assert worth[mine] == worth.max()


def _root(size):
    return (torch.arange(size) == 0).double()


def test_the_projective_tree_is_the_best_tree_if_that_is_projective():
    scores, _, lengths = problem(12, batch=300, n=6)
    for single_root in (False, True):
        crossing, nested = NonprojectiveTree(single_root), ProjectiveTree(single_root)
        free, bound = crossing.best(scores, lengths), nested.best(scores, lengths)
        above, below = crossing.score(scores, free, lengths), crossing.score(scores, bound, lengths)
        assert (above >= below - 1e-12).all()
        assert 0.2 < ((above - below).abs() < 1e-12).double().mean() < 0.9


@pytest.mark.parametrize(("kind", "name"), [("nonprojective", "tree"), ("projective", "projective tree")])
def test_a_sentence_without_a_tree_is_named(kind, name):
    scores, _, lengths = problem(0, n=3, shortest=3)
    scores[2, 1, 2:] = scores[2, 3, 1:3] = -INF  # tokens 1 and 3 have no other head than the root
    tree = KINDS[kind][0]
    tree(False).best(scores, lengths)
    with pytest.raises(UserError, match=f"Sentence 2 of the batch has no {name} with a single root"):
        tree(True).best(scores, lengths)
    scores[2, 1, 0] = -INF
    with pytest.raises(UserError, match=f"Sentence 2 of the batch has no {name}: too many arcs are forbidden"):
        tree(False).best(scores, lengths)


# --- the k best


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("bars", [0.0, 0.4])
def test_the_k_best_are_those_of_enumeration_for_every_k(native, n, bars):
    scores, _, lengths = problem(n, batch=6, n=n, bars=bars)
    truth = [(heads[order], worth[order]) for heads, worth in enumerated(native, scores, lengths)
             for order in [worth.argsort(descending=True)]]  # fmt: skip
    for k in range(1, max(len(heads) for heads, _ in truth) + 2):
        found, totals = native.best_k(scores, lengths, k)
        for b, (heads, worth) in enumerate(truth):
            count = min(k, int((worth > -INF).sum()))
            assert torch.equal(found[b, :count, : lengths[b]], heads[:count])
            close(totals[b, :count], worth[:count])
            assert (totals[b, count:] == -INF).all()
            assert (found[b, count:] == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 3, 50, 1500])
def test_the_k_best_of_five_tokens_are_those_of_enumeration(native, seed, k):
    scores, _, lengths = problem(seed, bars=0.2)
    found, totals = native.best_k(scores, lengths, k)
    for b, (heads, worth) in enumerate(enumerated(native, scores, lengths)):
        order = worth.argsort(descending=True)[: min(k, int((worth > -INF).sum()))]
        assert torch.equal(found[b, : len(order), : lengths[b]], heads[order])
        close(totals[b, : len(order)], worth[order])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_k_best_are_distinct_under_ties(native, seed):
    scores, _, lengths = problem(seed, bars=0.2)
    scores = whole(scores)
    for k in (7, 2000):
        found, totals = native.best_k(scores, lengths, k)
        for b, (_, worth) in enumerate(enumerated(native, scores, lengths)):
            count = min(k, int((worth > -INF).sum()))
            assert len(found[b, :count].unique(dim=0)) == count
            assert torch.equal(totals[b, :count], worth.sort(descending=True)[0][:count])
            close(native.score(scores[b].expand(count, -1, -1), found[b, :count], lengths[b].expand(count)),
                  totals[b, :count])  # fmt: skip
        assert torch.equal(native.best_k(scores, lengths, k)[0], found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_first_is_the_best_and_scores_descend(tree, dtype):
    scores, lengths = with_trees(tree, *problem(1, batch=12, n=15, bars=0.3, dtype=dtype)[::2])
    heads, totals = tree.best_k(scores, lengths, 6)
    close(totals[:, 0], tree.score(scores, tree.best(scores, lengths), lengths))
    for rank in range(6):
        some = totals[:, rank] > -INF
        close(tree.score(scores, heads[:, rank], lengths)[some], totals[some, rank])
    assert (totals[:, 1:] <= totals[:, :-1] + 1e-12).all()


def test_k_must_be_positive(native):
    scores, _, lengths = problem(0)
    with pytest.raises(UserError, match="k is 0, expected"):
        native.best_k(scores, lengths, 0)


def test_the_k_best_hold_most_of_the_probability(native):
    """On a longer sentence, their share agrees with the sum over all trees: none of the best is missed."""
    scores, _, lengths = problem(13, batch=4, n=9, scale=3.0, shortest=8)
    heads, totals = native.best_k(scores, lengths, 3000)
    share = (totals.logsumexp(1) - native.log_partition(scores, lengths)).exp()
    assert ((share > 0.9) & (share <= 1 + 1e-12)).all()
    marginals = torch.zeros(scores.shape, dtype=torch.float64)
    weights = (totals - native.log_partition(scores, lengths)[:, None]).exp()
    for m in range(9):
        marginals[:, m + 1].scatter_add_(1, heads[:, :, m], weights * (m < lengths)[:, None])
    assert math.isclose(float((native.marginals(scores, lengths) - marginals).clamp_max(0).sum()), 0, abs_tol=1e-10)
