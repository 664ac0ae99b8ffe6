"""A penalty from outside the package, with the base class's methods only, takes part in a run or is refused."""

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.penalties import Nonnegative, Penalty, Ridged
from structsparse.penalties.base import residual, row_norms

SMALL = ("reg.strength=0.3", "solver=fista", "batch=null", "trainer.max_epochs=8", "choose=last", "recipe=direct")


class LargestEntry(Penalty):
    """strength * max |W_i|: by Moreau's identity, its prox takes off the projection on a ball of the l1 norm."""

    def value(self, W):
        return self.strength * W.abs().max().double()

    @torch.no_grad()
    def prox_(self, W, steps):
        if isinstance(steps, torch.Tensor) and steps.numel() > 1:
            raise UserError("LargestEntry takes one step for all entries")
        radius = float(self.strength) * float(steps)
        size = W.abs().flatten().double().sort(descending=True).values
        if float(size.sum()) <= radius:
            return W.zero_()
        means = (size.cumsum(0) - radius) / torch.arange(1, len(size) + 1)
        cut = float(means[(size > means).nonzero()[-1]])
        return W.clamp_(-cut, cut)

    def gap(self, W, grad):
        return row_norms(residual(self.prox_, W, grad))

    def critical(self, grad_at_zero):
        return grad_at_zero.abs().sum().double()


class Capped(Penalty):
    """strength * sum min(|W_i|, 1): not convex, and zero is a local optimum for strengths from |gradient| on."""

    convex = False

    def value(self, W):
        return self.strength * W.abs().clamp(max=1).sum(dtype=torch.float64)

    @torch.no_grad()
    def prox_(self, W, steps):
        cut = self.strength.to(W.dtype) * steps
        shrunk = W.sign() * (W.abs() - cut).clamp(min=0, max=1)
        better = cut * shrunk.abs() + (shrunk - W) ** 2 / 2 <= cut * W.abs().clamp(max=1)
        return W.copy_(torch.where(better, shrunk, W))

    def gap(self, W, grad):
        return row_norms(residual(self.prox_, W, grad))

    def critical(self, grad_at_zero):
        return None


def test_a_convex_penalty_trains_and_gets_its_certificate(run):
    result = run("reg=l1", "reg._target_=tests.penalties.test_outside.LargestEntry", "reg.every=1", *SMALL)
    assert (result.status, result.errors) == (0, "")
    metrics = result.metrics
    assert metrics["critical_strength"] > metrics["strength"] > 0
    assert 0 < metrics["duality_gap"] < metrics["objective"]
    assert 0 <= metrics["near_gap"] <= metrics["duality_gap"]
    table = result.checkpoint()["state_dict"]["tagger.scorer.table"].abs()
    assert (table == table.max()).sum() > 10


def test_what_cannot_be_proved_is_null(run):
    options = (
        "reg=l1",
        "reg._target_=tests.penalties.test_outside.Capped",
        "reg.relative=false",
        "reg.every=1",
        *SMALL,
    )
    result = run(*options, "reg.strength=1e-3")
    assert (result.status, result.errors) == (0, "")
    assert result.metrics["critical_strength"] is None
    assert result.metrics["duality_gap"] is None
    assert result.metrics["near_gap"] is None
    assert result.metrics["stationarity"] is not None
    assert "no strength of this penalty makes every weight zero" in run(*options, "reg.relative=true").errors


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("solver=owlqn",), "OWLQN knows L1"),
        (("solver=sgd", "batch=32", "+reg.budget=3"), "has no disjoint groups to count"),
        (("recipe=reweighted",), "is for reg=group_lasso, group_linf or sparse_group_lasso"),
        (("+reg.groups=${groups}",), "LargestEntry takes no groups"),
        (("reg.parameters=['*']",), "matches every parameter"),
    ],
)
def test_where_it_cannot_serve_it_is_refused_with_the_reason(options, reason, run):
    result = run("reg=l1", "reg._target_=tests.penalties.test_outside.LargestEntry", "reg.every=1", *SMALL, *options)
    assert result.status == 2
    assert reason in result.errors


def test_it_works_within_the_wrappers():
    W, grad = torch.tensor([3.0, -2.0, 0.5]), torch.tensor([0.2, -0.4, 0.1], dtype=torch.float64)
    within = LargestEntry(1.0)
    assert Ridged(within, 0.0).conjugate(grad) == within.conjugate(grad)
    assert Nonnegative(within).prox_(W.clone(), 1.0).tolist() == [2.0, 0.0, 0.5]
    assert within.held(W.double()).all()
    assert Nonnegative(Ridged(within, 2.0)).held(W).all()
    assert not within.takes_metric(W, torch.tensor([1.0, 2.0, 3.0]))
    with pytest.raises(UserError, match="LargestEntry does not count the weights that a collapsed one stands for"):
        Nonnegative(within).for_chains(torch.ones(3))
    assert [Capped(1.0).held(W), Ridged(Capped(1.0), 1.0).held(W), Capped(1.0).conjugate(grad)] == [None] * 3
