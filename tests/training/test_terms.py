"""Several penalties in one objective, each on parameters of its own."""

import re

import torch


def weights(run, name):
    return run.checkpoint()["state_dict"][f"tagger.{name}"]


def test_further_penalties_hold_other_parameters(run):
    options = ("solver=adam", "solver.lr=0.05", "batch=null", "trainer.max_epochs=40")
    alone = run(*options)
    before = {name: weights(alone, name) for name in ("transitions", "start")}
    own = ("+reg@also.chain=l2", "also.chain.parameters=[transitions]", "also.chain.strength=50")
    both = run(*options, *own)
    assert (both.status, both.errors) == (0, "")
    assert weights(both, "transitions").norm() < 0.1 * before["transitions"].norm()
    assert (weights(both, "start") - before["start"]).abs().max() > 0  # free, but everything moves
    # both terms are in the objective
    metrics, found = both.metrics, weights(both, "transitions").double()
    own = 25 * float(found.square().sum())
    assert metrics["objective"] >= metrics["strength"] * float(weights(both, "scorer.table").abs().sum()) + own
    assert both.metrics["stationarity"] < 0.5


def test_strengths_may_be_relative_each_to_its_own_critical_one(run):
    options = ("+reg@also.chain=l1", "also.chain.parameters=[transitions]", "also.chain.relative=true")
    found = run(*options, "also.chain.strength=1.01", "batch=null", "solver=sgd", "solver.lr=0.01")
    assert (weights(found, "transitions") == 0).all()
    assert (weights(found, "scorer.table") != 0).any()


def test_no_parameter_bears_two_penalties(run):
    found = run("+reg@also.more=l1", "also.more.parameters=['*table','start']")
    assert found.status == 2
    assert found.errors == "error: also.more.parameters: scorer.table already bears the penalty of reg\n"


def test_a_pattern_that_matches_nothing_says_where_it_stands(run):
    found = run("+reg@also.more=l1", "also.more.parameters=[bias]")
    assert found.errors.startswith("error: also.more.parameters: 'bias' matches no parameter; there are transitions")


def test_weights_may_be_kept_from_falling_below_zero(run):
    free = weights(run(), "scorer.table")
    found = run("reg.nonnegative=true")
    assert (free < 0).any()
    kept = weights(found, "scorer.table")
    assert (kept >= 0).all()
    assert (kept > 0).any()
    assert torch.equal(kept == 0, kept <= 0)
    assert found.metrics["stationarity"] is not None


def test_the_critical_strength_of_a_term_leaves_the_others_at_their_best(run):
    alone = run("reg=group_lasso", "batch=null", "solver=fista", "trainer.max_epochs=1").metrics["critical_strength"]
    chain = ("+reg@also.chain=l2", "also.chain.parameters=[transitions]", "also.chain.strength=1e-6")
    found = run("reg=group_lasso", "batch=null", "solver=fista", "trainer.max_epochs=1", *chain)
    assert abs(found.metrics["critical_strength"] / alone - 1) < 0.02


def test_a_budget_and_reweighting_are_for_the_first_term(run):
    chain = ("+reg@also.chain=l2", "also.chain.parameters=[transitions]", "reg=group_lasso", "trainer.max_epochs=2")
    cut = run(*chain, "solver=sgd", "solver.lr=0.1", "reg.budget=2", "reg.every=3")
    assert (cut.status, cut.metrics["groups_alive"]) == (0, 2)
    weighed = run(*chain, "recipe=reweighted", "solver=fista", "batch=null", "reg.strength=0.3")
    assert (weighed.status, weighed.errors) == (0, "")


def test_groups_that_do_not_fit_the_penalty_are_refused_with_a_way_out(run):
    for choice in ("reg=group_lasso", "reg=group_mcp", "reg=group_linf"):
        for groups, form, others in (
            ("coarse_to_fine", "overlapping", "overlap"),
            ("template_tree", "nested", "tree_l2"),
        ):
            result = run(choice, f"groups={groups}", "recipe=direct", "solver=sgd")
            assert result.status == 2
            assert f"groups={groups} makes {form} groups" in result.errors
            assert "disjoint groups: choose groups=feature, label, template" in result.errors
            assert re.search(f"groups={groups} with reg=[a-z0-9_, ]*{others}", result.errors)
    assert "groups.heads needs a value" in run("reg=group_lasso", "groups=module_heads").errors
