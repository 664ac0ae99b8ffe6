"""Sums over dependency trees: kernels and torch against enumeration, finite differences, torch-struct, each other."""

import math
from fractions import Fraction

import numba
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.losses.structured import CRF, Hinge, Perceptron
from structsparse.structures.nonprojective import NonprojectiveTree
from structsparse.structures.projective import ProjectiveTree
from tests.support.parses import INF, KINDS, TREES, all_trees, close, expected, problem, real

SEEDS = range(4)
NATIVE = {name: tree for name, tree in TREES.items() if name.endswith("native")}


@pytest.fixture(params=TREES)
def tree(request):
    return TREES[request.param]


def weighted(tree, scores, lengths):
    """Totals, and the gradient of their weighted sum."""
    scores, weights = scores.clone().requires_grad_(), torch.linspace(-1.0, 2.0, len(lengths), dtype=torch.float64)
    totals = tree.log_partition(scores, lengths)
    return totals.detach(), torch.autograd.grad((totals * weights).sum(), scores)[0], weights[:, None, None]


# --- against enumeration


def count_of(is_projective, single_root, n):
    """The number of trees: Cayley's formula; for projective ones that of Fuss and Catalan."""
    if is_projective:
        return math.comb(3 * n - 2, n - 1) // n if single_root else math.comb(3 * n, n) // (2 * n + 1)
    return n ** (n - 1) if single_root else (n + 1) ** (n - 1)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("is_projective", [False, True])
def test_enumeration_is_complete(is_projective, single_root):
    for n in range(1, 6):
        assert len(all_trees(n, is_projective, single_root)) == count_of(is_projective, single_root, n)


@pytest.mark.parametrize("bars", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("seed", SEEDS)
def test_log_partition_and_its_gradient_are_those_of_enumeration(tree, seed, bars):
    scores, _, lengths = problem(seed, batch=9, bars=bars)
    totals, marginals = expected(tree, scores, lengths)
    found, gradient, weights = weighted(tree, scores, lengths)
    close(found, totals)
    close(gradient, weights * marginals)
    close(tree.log_partition(scores, lengths), totals)  # without a gradient, other code runs
    close(tree.marginals(scores, lengths), marginals)


@pytest.mark.parametrize("scale", [10.0, 50.0, 300.0, 2000.0])
@pytest.mark.parametrize("root", [0.0, -500.0, 500.0, 3e4])
def test_large_scores_are_summed_right(tree, scale, root):
    scores, _, lengths = problem(int(scale), scale=scale)
    scores[:, :, 0] += root
    totals, marginals = expected(tree, scores, lengths)
    close(tree.log_partition(scores, lengths), totals)
    found = tree.marginals(scores, lengths)
    close(found, marginals)
    least = 1e-15 if isinstance(tree, ProjectiveTree) else 1e-290  # the smallest value right to all digits
    close(found.clamp_min(least).log(), marginals.clamp_min(least).log())


def exact_determinant(rows):
    """The determinant of a matrix of fractions."""
    rows, total = [list(row) for row in rows], Fraction(1)
    while rows:
        pivot = next((row for row in rows if row[-1] != 0), None)
        if pivot is None:
            return Fraction(0)
        total *= pivot[-1] * (-1) ** (len(rows) - 1 - rows.index(pivot))
        rows.remove(pivot)
        rows = [[x - row[-1] / pivot[-1] * y for x, y in zip(row[:-1], pivot[:-1], strict=True)] for row in rows]
    return total


def exact_sum(powers, single_root, without=None):
    """The sum of the trees whose arcs weigh 2 ** powers [n + 1, n + 1], by the matrix-tree theorem."""
    n = len(powers) - 1
    weights = [
        [Fraction(2) ** k if (m, h) != without else 0 for h, k in enumerate(row)] for m, row in enumerate(powers)
    ]
    laplacian = [[-weights[m][h] for h in range(1, n + 1)] for m in range(1, n + 1)]
    for m in range(1, n + 1):
        heads = range(1 if single_root else 0, n + 1)
        laplacian[m - 1][m - 1] = sum(weights[m][h] for h in heads if h != m)
        if single_root:  # Koo et al. 2007
            laplacian[m - 1][0] = weights[m][0]
    return exact_determinant(laplacian)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("spread", [10, 75, 300])  # of powers of two: standard deviations of 6, 43 and 173
def test_sums_are_those_of_exact_fractions(single_root, spread):
    draw = torch.Generator().manual_seed(spread)
    powers = torch.randint(-spread, spread + 1, (9, 9), generator=draw)
    total = exact_sum(powers.tolist(), single_root)
    log_total = math.log(total.numerator) - math.log(total.denominator)
    marginals = torch.zeros(1, 9, 9, dtype=torch.float64)
    for m, h in real(torch.tensor([8]), 8)[0].nonzero().tolist():
        marginals[0, m, h] = float(1 - exact_sum(powers.tolist(), single_root, without=(m, h)) / total)
    scores, lengths = (powers.double() * math.log(2))[None], torch.tensor([8])
    for route in KINDS["nonprojective"]:
        close(route(single_root).log_partition(scores, lengths)[0].item(), log_total, 1e-14)
        found = route(single_root).marginals(scores, lengths)
        close(found, marginals, 1e-12)
        close(found.clamp_min(1e-290).log(), marginals.clamp_min(1e-290).log())


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 17, 32])
def test_zero_scores_count_the_trees(tree, n):
    count = count_of(isinstance(tree, ProjectiveTree), tree.single_root, n)
    found = tree.log_partition(torch.zeros(1, n + 1, n + 1), torch.tensor([n]))
    close(found, torch.tensor([math.log(count)], dtype=torch.float64))


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_are_finite_differences(tree, seed):
    scores, gold, lengths = problem(seed, batch=3, n=4)
    scores = torch.where(real(lengths, 4), scores, 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: tree.log_partition(s, lengths), scores)
    assert torch.autograd.gradcheck(lambda s: tree.score(s, gold, lengths), scores)


@pytest.mark.filterwarnings("ignore:.*arg_constraints")
@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_torch_struct_agrees(kind, single_root):
    """For nonprojective trees torch-struct is right to four digits only: it adds 1e-5 to every weight."""
    struct = pytest.importorskip("torch_struct")
    scores, _, lengths = problem(7, batch=6, n=8, scale=1.0, shortest=3)
    scores = torch.where(real(lengths, 8), scores, 0.0)
    theirs = scores[:, 1:, 1:].transpose(1, 2).contiguous()  # heads by modifiers, the root on the diagonal
    theirs.diagonal(0, 1, 2).copy_(scores[:, 1:, 0])
    theirs.requires_grad_()
    model = struct.DependencyCRF if kind == "projective" else struct.NonProjectiveDependencyCRF
    truth = model(theirs, lengths=lengths, multiroot=not single_root).partition
    (marginals,) = torch.autograd.grad(truth.sum(), theirs)
    tolerance = 1e-10 if kind == "projective" else 2e-3
    found, tree = KINDS[kind][0](single_root).marginals(scores, lengths), KINDS[kind][0](single_root)
    close(tree.log_partition(scores, lengths), truth.detach(), tolerance)
    close(found[:, 1:, 0], marginals.diagonal(0, 1, 2), tolerance)
    close(found[:, 1:, 1:], (marginals - torch.diag_embed(marginals.diagonal(0, 1, 2))).transpose(1, 2), tolerance)


# --- batches


@pytest.mark.parametrize("garbage", [0.0, 1e9, -INF])
def test_ignored_scores_do_not_matter(tree, garbage):
    scores, gold, lengths = problem(1)
    wide = torch.full((5, 9, 9), garbage, dtype=torch.float64)
    wide[:, :6, :6] = torch.where(real(lengths, 5), scores, garbage)
    totals, gradient, _ = weighted(tree, scores, lengths)
    again, wider, _ = weighted(tree, wide, lengths)
    close(again, totals)
    close(wider[:, :6, :6], gradient)
    assert (gradient[~real(lengths, 5)] == 0).all()
    assert (wider[~real(lengths, 8)] == 0).all()
    best = tree.best(wide, lengths)
    assert torch.equal(best[:, :5], tree.best(scores, lengths))
    assert (best[torch.arange(8) >= lengths[:, None]] == 0).all()
    longer = torch.cat([gold, gold.new_full((5, 3), 8)], 1)
    close(tree.score(wide, longer, lengths), tree.score(scores, gold, lengths))
    heads, worth = tree.best_k(wide, lengths, 4)
    assert torch.equal(heads[:, :, :5], tree.best_k(scores, lengths, 4)[0])
    assert torch.equal(worth, tree.best_k(scores, lengths, 4)[1])


def test_a_batch_is_its_sentences(tree):
    scores, _, lengths = problem(2, batch=40, n=12)
    together = tree.log_partition(scores, lengths), tree.marginals(scores, lengths), tree.best(scores, lengths)
    for b, n in enumerate(lengths.tolist()):
        alone, size = scores[b : b + 1, : n + 1, : n + 1], torch.tensor([n])
        close(tree.log_partition(alone, size)[0], together[0][b])
        close(tree.marginals(alone, size)[0], together[1][b, : n + 1, : n + 1])
        assert torch.equal(tree.best(alone, size)[0], together[2][b, :n])


def test_strided_scores_give_the_same(tree):
    scores, gold, lengths = problem(3)
    turned = scores.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert torch.equal(weighted(tree, turned, lengths)[1], weighted(tree, scores, lengths)[1])
    assert torch.equal(tree.best(turned, lengths), tree.best(scores, lengths))
    assert torch.equal(tree.score(turned, gold, lengths), tree.score(scores, gold, lengths))


@pytest.mark.parametrize("scale", [1.0, 20.0, 80.0])
@pytest.mark.parametrize("bars", [0.0, 0.5])
@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_routes_agree_on_longer_sentences(kind, single_root, bars, scale):
    native, general = (route(single_root) for route in KINDS[kind])
    scores, _, lengths = problem(4, batch=12, n=33, bars=bars, scale=scale)
    (totals, gradient, _), (others, theirs, _) = (weighted(tree, scores, lengths) for tree in (native, general))
    close(totals, others)
    close(gradient, theirs, 1e-9)
    some = totals > -INF
    assert some.any()
    close(native.marginals(scores, lengths)[some][:, 1:].sum((1, 2)), lengths[some].double())
    assert torch.equal(native.best(scores[some], lengths[some]), general.best(scores[some], lengths[some]))


@pytest.mark.parametrize("name", NATIVE)
def test_results_are_bitwise_the_same_with_any_number_of_threads(name):
    tree, (scores, _, lengths) = NATIVE[name], problem(5, batch=100, n=12)
    threads, runs = numba.get_num_threads(), []
    try:
        for count in (1, 1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(count)
            runs.append([*weighted(tree, scores, lengths)[:2], tree.best(scores, lengths)])
    finally:
        numba.set_num_threads(threads)
    for run in runs[1:]:
        assert all(torch.equal(left, right) for left, right in zip(run, runs[0], strict=True))


# --- no tree, or very few


def test_without_an_allowed_tree_the_total_is_minus_infinity(tree):
    scores, _, lengths = problem(0, n=4, shortest=3)
    scores[1, 2] = -INF  # no head for token 2
    scores[2, 1:, 0] = -INF  # no arc from the root
    totals, gradient, _ = weighted(tree, scores, lengths)
    assert (totals[1:3] == -INF).all()
    assert (gradient[1:3] == 0).all()
    assert totals[[0, 3, 4]].isfinite().all()
    assert (tree.best_k(scores, lengths, 3)[1][1:3] == -INF).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_root_excludes_two_tokens_below_it(kind):
    scores = torch.zeros(1, 4, 4, dtype=torch.float64)
    scores[0, 1, 2:] = scores[0, 3, 1:3] = -INF  # tokens 1 and 3 have no other head
    lengths = torch.tensor([3])
    for route in KINDS[kind]:
        close(route(False).log_partition(scores, lengths), torch.tensor([3.0], dtype=torch.float64).log())
        assert route(True).log_partition(scores, lengths) == -INF
        assert (route(True).marginals(scores, lengths) == 0).all()


@pytest.mark.parametrize("child", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("rest", [0.0, -INF])
def test_a_token_without_another_head_is_the_child_of_the_root(tree, child, rest):
    """With a single root, at any position in the elimination and for any scores of the others."""
    scores, _, lengths = problem(6, batch=8, shortest=5, bars=0.2)
    scores[:, child, 1:] = -INF
    scores[1, :, 0] = rest
    scores[:, child, 0] = 0.5
    totals, marginals = expected(tree, scores, lengths)
    close(tree.log_partition(scores, lengths), totals)
    close(tree.marginals(scores, lengths), marginals)


@pytest.mark.parametrize("gap", [30.0, 400.0, 5000.0])
def test_tokens_that_prefer_each_other_are_still_below_the_root(gap):
    """Two tokens prefer each other to the root by a gap, but one must take the root. Subtraction would lose that."""
    scores = torch.zeros(1, 3, 3, dtype=torch.float64)
    scores[0, 1, 2], scores[0, 2, 1] = gap, gap
    truth = torch.tensor([gap + math.log(2 + math.exp(-gap))], dtype=torch.float64)
    for route in KINDS["nonprojective"]:
        close(route().log_partition(scores, torch.tensor([2])), truth, 1e-14)
        close(route().marginals(scores, torch.tensor([2]))[0, 1:, 0], torch.full((2,), 0.5, dtype=torch.float64), 1e-12)


# --- scores, costs, types and errors


def test_score_is_the_sum_of_the_arcs(tree):
    scores, gold, lengths = problem(0)
    found = tree.score(scores, gold, lengths)
    for b, n in enumerate(lengths.tolist()):
        close(found[b], sum(scores[b, m, gold[b, m - 1]] for m in range(1, n + 1)))


def test_cost_is_added_for_every_wrong_head(tree):
    scores, gold, lengths = problem(3)
    augmented = tree.add_cost(scores, gold, lengths, 2.5)
    other = gold.roll(1, 0)
    distance = ((other != gold) & (torch.arange(5) < lengths[:, None])).sum(1)
    gained = tree.score(augmented, other, lengths) - tree.score(scores, other, lengths)
    close(gained[distance > 0], 2.5 * distance[distance > 0].double())
    assert torch.equal(tree.score(augmented, gold, lengths), tree.score(scores, gold, lengths))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_totals_are_float64_and_gradients_in_the_type_of_the_scores(tree, dtype):
    scores, gold, lengths = problem(0, dtype=dtype)
    scores.requires_grad_()
    total = tree.log_partition(scores, lengths) - tree.score(scores, gold, lengths)
    assert total.dtype == torch.float64
    total.sum().backward()
    assert scores.grad.dtype == tree.marginals(scores, lengths).dtype == dtype
    close(tree.log_partition(scores.detach(), lengths), expected(tree, scores.detach(), lengths)[0])
    assert torch.equal(tree.best(scores, lengths), tree.best(scores.detach().double(), lengths))


@pytest.mark.parametrize("loss", [CRF, Hinge, Perceptron])
def test_losses_are_never_negative_and_zero_at_best(tree, loss):
    scores, _, lengths = problem(8, batch=20)
    scores.requires_grad_()
    with torch.no_grad():
        gold = tree.best(torch.randn(20, 6, 6, dtype=torch.float64), lengths)
    losses = loss(tree)(scores, gold, lengths)
    assert (losses >= 0).all()
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    close(gradient.sum((1, 2)), torch.zeros(20, dtype=torch.float64))  # n arcs are added, and n are removed
    sure = tree.add_cost(scores.detach(), gold, lengths, -1e3)
    close(loss(tree)(sure, gold, lengths), torch.zeros(20, dtype=torch.float64))


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_synchronisation_with_the_host(kind, single_root):
    scores, gold, lengths = (part.to("meta") for part in problem(0))
    scores.requires_grad_()
    tree = KINDS[kind][0](single_root)
    loss = CRF(tree)(scores, gold, lengths)
    loss.sum().backward()
    assert scores.grad.shape == scores.shape
    assert tree.marginals(scores, lengths).shape == scores.shape
    assert tree.add_cost(scores, gold, lengths).shape == scores.shape
    if kind == "projective":
        assert tree.best(scores, lengths).shape == gold.shape


def test_wrong_shapes_and_lengths_are_named():
    scores, _, lengths = problem(0)
    tree = NonprojectiveTree()
    with pytest.raises(UserError, match=r"scores have shape \(5, 6, 5\), expected \[batch, n \+ 1, n \+ 1\]"):
        tree.log_partition(scores[:, :, :5], lengths)
    with pytest.raises(UserError, match=r"lengths have shape \(4,\), expected \(5,\)"):
        tree.best(scores, lengths[:4])
    for wrong in (0, 6):
        with pytest.raises(UserError, match="expected from 1 to 5"):
            tree.log_partition(scores, torch.full_like(lengths, wrong))
