"""The tables of benchmarks/tables: each is read, and every option that they use composes."""

import pytest

from benchmarks.harness.runner import Run, runs_of
from benchmarks.harness.spec import ROOT, TABLES, read_spec
from tests.runs.test_train import composed

NAMES = sorted(str(path.relative_to(TABLES).with_suffix("")) for path in TABLES.rglob("*.yaml"))
PARTS = ("task", "preset", "reg", "solver", "model", "loss", "groups", "data", "recipe", "features", "filter")


def uses(run: Run) -> set[tuple]:
    """What a run relies on: each choice, and each option together with the choices of its task, preset and part."""
    pairs = [option.lstrip("+~").partition("=") for option in run.options]
    choices = {key: value for key, _, value in pairs if key in PARTS}
    used = {(key, value) for key, _, value in pairs if "." not in key and key not in ("seed", "batch", "cache", "grid")}
    context = ("task", "preset")
    return used | {
        (key, *(choices.get(part) for part in (*context, key.partition(".")[0]))) for key, _, _ in pairs if "." in key
    }


def few_runs_with_all_uses() -> list[Run]:
    """Runs of all tables that together use all that any run uses."""
    specs = [read_spec(name, quick) for name in NAMES for quick in (False, True)]
    runs = [(uses(run), run) for spec in specs if spec.script.name == "train.py" for run in runs_of(spec, ROOT)]
    seen: set[tuple] = set()
    chosen = []
    for used, run in sorted(runs, key=lambda pair: -len(pair[0])):
        if not used <= seen:
            seen |= used
            chosen.append(run)
    return chosen


@pytest.mark.parametrize("run", few_runs_with_all_uses(), ids=lambda run: f"{run.spec.name}: {run.name}")
def test_options_of_tables_compose(run):
    assert composed(*run.options).task.name


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_read(name):
    spec, quick = read_spec(name), read_spec(name, quick=True)
    assert spec.name == quick.name == name
    assert list(quick.passes) == [spec.first_pass]
    assert {row.entry for row in quick.rows} == {row.entry for row in spec.rows}


def test_a_table_of_the_paper_has_its_rows():
    spec = read_spec("martins2011/chunking")
    assert {row.name for row in spec.rows} >= {spec.reference, *spec.memory, *spec.kinds}
    assert any(row.selects for row in spec.rows)
    budgets = [row.name for row in spec.rows if row.name.startswith("sparseptron_mira")]
    assert budgets == [f"sparseptron_mira-{budget}" for budget in (10, 20, 30, 40, 50)]
