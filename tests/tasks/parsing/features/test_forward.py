"""Templates of arcs chosen one after another, against dictionaries and torch."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import planted
from structsparse.kernels.features import forward as kernels
from structsparse.tasks.parsing.features.filters import ArcCandidates, by_addition
from structsparse.tasks.parsing.features.forward import ForwardModels, forward_selection
from structsparse.tasks.parsing.features.templates import expand
from structsparse.tasks.tagging.features.filters import TokenCandidates
from structsparse.tasks.tagging.features.templates import expand as expand_of_tokens
from tests.support.runs import ROOT, run_here

TEMPLATES = expand(
    ["h.upos & m.upos", "h.word & m.word", "m-1.upos & h.lemma", "h.upos & m.upos & between.upos"],
    ["plain", "direction", "distance"],
)
RIDGE, RATE = 3.0, 0.5


@pytest.fixture(scope="module")
def trees():
    return planted(0, 60, 5, 5, 0.1).train


def model_of(treebank, templates=TEMPLATES, seed=0) -> ForwardModels:
    return ForwardModels(treebank, templates, RIDGE, RATE, np.random.default_rng(seed))


def loss_of(treebank, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Minus the log-likelihood of all heads, word by word: scores [arcs], weights [arcs], those of a word all equal"""
    total, arc = scores.new_zeros(()), 0
    for begin, end in zip(treebank.offsets[:-1].tolist(), treebank.offsets[1:].tolist(), strict=True):
        words = end - begin
        for m in range(1, words + 1):
            others = [h for h in range(words + 1) if h != m]
            own = scores[arc : arc + words]
            right = others.index(int(treebank.heads[begin + m - 1]))
            total = total + weights[arc] * (own.logsumexp(0) - own[right])
            arc += words
    return total


def test_features_are_numbered_as_they_come():
    draw = np.random.default_rng(0)
    values = draw.integers(0, 2**63, 50).astype(np.uint64)
    keys = np.concatenate([values, values[draw.integers(0, 50, 400)]])
    slots, known, ids = np.empty(1024, np.int32), np.empty(450, np.uint64), np.empty(450, np.int32)
    for some in (keys, keys[::-1].copy(), np.zeros(450, np.uint64)):
        count = kernels.number_features(some, 10, slots, known, ids)
        order = {}
        assert ids.tolist() == [order.setdefault(key, len(order)) for key in some.tolist()]
        assert count == len(order)


def test_slopes_and_curvatures_are_those_of_the_softmax(trees):
    model, draw = model_of(trees), np.random.default_rng(1)
    model.scores[:] = draw.normal(size=model.scores.shape) * 3
    model._differentiate()
    ones = torch.ones(model.arcs.count, dtype=torch.float64)
    for which in range(2):
        scores = torch.from_numpy(model.scores[which]).double().requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(trees, scores, ones), scores, create_graph=True)
        bent = []
        for arc in range(0, model.arcs.count, 97):
            (row,) = torch.autograd.grad(slope[arc], scores, retain_graph=True)
            bent.append(float(row[arc]))
        np.testing.assert_allclose(model.state[:, 2 * which], -slope.detach().numpy(), atol=1e-5)
        np.testing.assert_allclose(model.state[::97, 2 * which + 1], bent, atol=1e-5)


def by_dictionary(model: ForwardModels, k: int) -> tuple[float, np.ndarray]:
    """The gain of template k, and the steps of its features arc by arc: [2, arcs]"""
    keys = model.arcs.keys(k).tolist()
    sums = defaultdict(lambda: np.zeros((2, 4)))
    for key, half, state in zip(keys, model.half.tolist(), model.state.astype(float), strict=True):
        sums[key][half] += state
    steps, total = {}, 0.0
    for key, found in sums.items():
        steps[key] = np.zeros(2)
        for which in range(2):
            slope, bent = found[which, 2 * which : 2 * which + 2]
            steps[key][which] = RATE * slope / (bent + RIDGE)
            slope, bent = found[1 - which, 2 * which : 2 * which + 2]
            total += steps[key][which] * slope - 0.5 * bent * steps[key][which] ** 2
    return total, np.array([steps[key] for key in keys]).T


def test_gains_and_steps_are_those_of_dictionaries(trees):
    model = model_of(trees)
    for k in (3, 0, 10):
        total, steps = by_dictionary(model, k)
        assert model.gain(k) == pytest.approx(total, rel=1e-4)
        before = model.scores.copy()
        model.add(k)
        np.testing.assert_allclose(model.scores - before, steps, atol=1e-5)


def test_the_gain_foretells_what_held_out_sentences_gain(trees):
    """To second order, so for a small step."""
    model = ForwardModels(trees, TEMPLATES, RIDGE, 0.01, np.random.default_rng(0))
    found = model.gain(0)

    def losses() -> float:
        held = [torch.from_numpy(model.half != which).double() for which in range(2)]
        return sum(
            float(loss_of(trees, torch.from_numpy(s).double(), w)) for s, w in zip(model.scores, held, strict=True)
        )

    before = losses()
    model.add(0)
    assert before - losses() == pytest.approx(found, rel=0.02)


def test_many_steps_end_where_squares_hold_them(trees):
    """The slope of each feature on the half that it is fitted to is then its weight times the ridge."""
    model = model_of(trees)
    model.add(4)
    for _ in range(60):
        model.fit(4)
    sums = model._sums(model.ids[4], model.weights[4].shape[1])
    for which in range(2):
        np.testing.assert_allclose(sums[:, which, 2 * which], RIDGE * model.weights[4][which], atol=2e-3)


def test_what_is_known_by_heart_gains_nothing(trees):
    """Each template alone: words that never come again say nothing of held-out sentences."""
    numbered = trees.with_column("word", type(trees.columns["word"]).from_strings(map(str, range(trees.tokens))))
    model = model_of(numbered)
    names = [template.name for template in TEMPLATES]
    assert abs(model.gain(names.index("h.word & m.word"))) < 1e-3 < model.gain(names.index("h.upos & m.upos"))


def test_a_template_that_says_the_same_again_is_not_taken(trees):
    """With the same values under another name: their order of taking does not hold them together."""
    column = trees.columns["upos"]
    twin = trees.with_column("xpos", column)
    templates = expand(
        [
            "{h.upos & m.upos, h.xpos & m.xpos, h.upos & m.xpos} & distance",
            "h.lemma & distance",
            "m-1.upos & m.upos & h.upos",
        ]
    )
    model = model_of(twin, templates)
    taken, gains = forward_selection(model, 3, 10, 3)
    twins = {0, 1, 2}
    assert len(twins & {*taken[:2]}) == 1
    assert gains[0] == max(gains)


def test_the_filter_says_what_it_has_done_and_depends_on_the_seed_alone(trees):
    options = {"count": 4, "ridge": RIDGE, "rate": RATE, "tries": 2, "again": 1}
    kept, (note,) = by_addition(ArcCandidates(trees, TEMPLATES), seed=0, **options)
    again, _ = by_addition(ArcCandidates(trees, TEMPLATES), seed=0, **options)
    assert kept == again
    assert len({*kept}) == 4
    assert [TEMPLATES.index(t) for t in kept] == sorted(TEMPLATES.index(t) for t in kept)
    assert "4 of 12 templates by forward selection" in note


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 13}, r"filter\.count"),
        ({"ridge": 0}, r"filter\.ridge"),
        ({"rate": 2.0}, r"filter\.rate"),
        ({"tries": True}, r"filter\.tries"),
        ({"again": -1}, r"filter\.again"),
    ],
)
def test_what_cannot_be_is_refused(trees, options, said):
    known = {"count": 4, "ridge": RIDGE, "rate": RATE, "tries": 2, "again": 1}
    with pytest.raises(UserError, match=said):
        by_addition(ArcCandidates(trees, TEMPLATES), seed=0, **known | options)


def test_templates_of_tokens_are_refused(trees):
    candidates = TokenCandidates(trees, "upos", expand_of_tokens(["word[0]", "word[1]"]))
    with pytest.raises(UserError, match="task=parsing"):
        by_addition(candidates, 1, 0, RIDGE, RATE, 1, 0)


def test_the_options_reach_a_run(tmp_path):
    some = ("task=parsing", "data.train=40", "data.dev=10", "data.test=10", "task.labels=false", "trainer.max_epochs=1")
    how = ("reg=none", "recipe=direct", "loss=hinge", "solver=online_mira", "batch=null")
    chosen = ("filter=forward", "filter.count=3", "filter.tries=0.1")
    done = run_here(*how, *chosen, folder=tmp_path / "run", data=some, base=())
    assert done.status == 0, done.errors
    assert "3 of 570 templates by forward selection" in done.output
    assert done.metrics["groups"] == 3


def test_the_configuration_names_what_the_filter_takes():
    conf = OmegaConf.load(ROOT / "conf" / "filter" / "forward.yaml")
    assert {*conf} == {"_target_", "_partial_", "count", "seed", "ridge", "rate", "tries", "again"}
