"""Options of the command line: the presets that each task has, and what the summary says of them."""

import pytest

from structsparse.training.options import SIZES, expanded, other_presets
from tests.support.runs import ROOT

TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_three_presets_that_say_what_they_bring(task):
    lines = other_presets(task, "")
    assert [line.split(": ")[0] for line in lines] == [f"preset={size} of task={task}" for size in SIZES]
    assert all(line.split(": ")[1] for line in lines)
    assert other_presets(task, f"{task}_small") == lines[:2]


def test_a_preset_is_that_of_the_task():
    assert expanded(["task=lm", "preset=small"]) == ["task=lm", "preset=lm_small"]
    assert expanded(["preset=small", "seed=1"]) == ["preset=ner_small", "seed=1"]
    assert expanded(["task=lm", "preset=lm_best"]) == ["task=lm", "preset=lm_best"]


def test_the_summary_ends_with_the_other_presets(run):
    lines = run(data=("data=planted", "data.train=30", "data.dev=10", "data.test=10")).output.splitlines()
    assert lines[-3:] == other_presets("ner", "")
