"""Reweighted rounds: repeated until so many groups live; the largest groups of the round before fill up."""

import csv

import pytest
import torch

from structsparse.groups import by_row_blocks
from structsparse.penalties import GroupLasso
from structsparse.training.search.reweighting import fill_up_
from structsparse.training.stage import StageResult


def outcome(weights: list[float], base: list[float]) -> StageResult:
    """Four groups of two rows."""
    groups = by_row_blocks((8, 1), "abcd", [0, 2, 4, 6, 8], torch.tensor(base))
    module = torch.nn.ParameterDict({"table": torch.nn.Parameter(torch.tensor(weights).repeat_interleave(2)[:, None])})
    return StageResult(None, module, {"table": GroupLasso(groups, 1.0)})


@pytest.mark.parametrize(
    ("alive", "count", "left"),
    [
        ([True, False, False, False], 2, "ad"),  # of the others the largest for its weight
        ([True, False, False, False], 1, "a"),
        ([False, False, False, False], 2, "ad"),  # c has the larger norm, but weighs four times as much
        ([False, False, False, False], 3, "acd"),
        ([False, False, True, False], 3, "acd"),
    ],
)
def test_the_largest_of_the_round_before_fill_up(alive, count, left):
    now = outcome([1.0, 0.0, 2.0, 3.0], [1.0, 1.0, 4.0, 2.0])
    before = now.module["table"].detach().clone()
    fill_up_(now, {"table": torch.tensor(alive)}, count)
    living = now.penalties["table"].groups.alive(now.module["table"].detach())
    assert "".join(name for name, lives in zip("abcd", living.tolist(), strict=True) if lives) == left
    kept = living.repeat_interleave(2)[:, None]
    assert torch.equal(now.module["table"].detach(), before * kept)


BACKWARD = (
    *("recipe=backward", "reg=sparse_group_lasso", "reg.whole=true", "reg.strength=0.02", "solver=fista", "batch=null"),
    *("trainer.max_epochs=8", "recipe.again.trainer.max_epochs=3", "recipe.refit.trainer.max_epochs=1"),
)


@pytest.mark.parametrize("until", [1, 3])
def test_rounds_leave_as_many_groups_as_are_wanted(run, until):
    done = run(*BACKWARD, f"recipe.again.reg.reweight.until={until}")
    assert done.status == 0, done.errors
    assert done.metrics["groups_alive"] == until
    with (done.folder / "report" / "groups.tsv").open() as file:
        assert sum(line["lives"] == "yes" for line in csv.DictReader(file, delimiter="\t")) == until
    with (done.folder / "report" / "features.tsv").open() as file:
        used = {line["feature"].split("[")[0] for line in csv.DictReader(file, delimiter="\t")}
    assert len(used) <= until


def test_too_few_rounds_are_said_so_and_bad_numbers_refused(run):
    few = run(*BACKWARD, "recipe.again.reg.reweight={rounds: 1, until: 1, growth: 1.0}")
    assert few.status == 2
    assert "groups live after 1 rounds, 1 are wanted" in few.errors
    none = run(*BACKWARD, "recipe.again.reg.reweight={rounds: 3, until: 0}", folder="none")
    assert "reg.reweight.until is 0" in none.errors
    first = run("reg=group_lasso", "solver=fista", "batch=null", "+reg.reweight={rounds: 3, until: 2}", folder="first")
    assert "for a stage after another one" in first.errors
