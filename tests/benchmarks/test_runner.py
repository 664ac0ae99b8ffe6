"""Tables of many runs: what is run, what is not run again, what a failure does, and what the tables say."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from benchmarks.harness import feature_counts as counts
from benchmarks.harness import living_templates as kinds
from benchmarks.harness import runner as experiments
from benchmarks.harness import tables
from benchmarks.harness.runner import Run, Runner, records, runs_of
from benchmarks.harness.spec import Experiment, Row, read
from structsparse.base.errors import UserError
from structsparse.corpora.known.tagging import files
from structsparse.groups import by_row_blocks
from structsparse.penalties import GroupLasso, SparseGroupLasso
from structsparse.tasks.tagging.features.templates import expand, parse
from structsparse.training.search.reweighting import fill_up_
from structsparse.training.stage import StageResult
from tests.support.runs import PLANTED, ROOT, SMALL

# Says what it was told, after as many seconds as it was told; without a sound if it is to fail.
STAND_IN = """
import json, os, pathlib, sys, time

def main():
    told = dict(option.split("=", 1) for option in sys.argv[1:])
    folder = pathlib.Path(told.pop("hydra.run.dir"))
    (folder / "starts.txt").open("a").write("x")
    time.sleep(float(told.get("sleep", 0)))
    if told.get("fail"):
        print("some words", file=sys.stderr)
        raise SystemExit("error: " + told["fail"])
    if told.get("die"):
        os.kill(os.getpid(), int(told["die"]))
    found = {"f1": float(told.get("f1", 0.5)) + 0.01 * int(told.get("seed", 0)), "dev_f1": 0.5, "pid": os.getpid()}
    found |= {"nonzero": int(told["size"]), "parent": os.getppid(), "told": told}
    (folder / "metrics.json").write_text(json.dumps(found))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return path


def experiment(*rows: Row, passes=None, **other) -> Experiment:
    return Experiment("toy", "A toy", rows, passes or {"run": ()}, **other)


def row(name: str, *options: str, method: str = "some", seeds=(0,), **other) -> Row:
    return Row(name, method, ("size=7", *options), seeds, **other)


def starts(run: Run) -> int:
    """How often it was run since its folder was made."""
    path = run.folder / "starts.txt"
    return len(path.read_text()) if path.is_file() else 0


# --- what there is to run


def test_the_experiments_of_the_paper_are_read_and_their_options_compose():
    from tests.runs.test_train import composed

    for name in ("chunking", "ner_esp", "ner_ned"):
        found = read(f"martins2011/{name}")
        assert {row.name for row in found.rows} >= {found.reference, *found.memory, *found.kinds}
        assert any(row.selects for row in found.rows)
        for row in {row.method: row for row in found.rows}.values():
            composed(*row.options, *list(found.passes.values())[-1])
        (quick,) = read(f"martins2011/{name}", quick=True).passes
        assert quick == next(iter(found.passes))
    for name in ("chunking_sizes", "chunking_bytes", "martins2011/parsing"):
        for row in {row.method: row for row in read(name).rows}.values():
            composed(*row.options)
    for row in read("martins2011/parsing_memory", quick=True).rows:
        composed(*row.options)
    for name, quick in (("tuning", False), ("splits", False), ("splits", True), ("ptb", True)):
        found = read(f"nelakanti2013/{name}", quick)
        for run in {run.row.entry: run for run in runs_of(found, ROOT)}.values():
            composed(*run.options)
    budgets = [row.name for row in read("martins2011/chunking").rows if row.name.startswith("sparseptron_mira")]
    assert budgets == [f"sparseptron_mira-{budget}" for budget in (10, 20, 30, 40, 50)]


def test_rows_that_vary_stand_for_one_each(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("""
        seeds: [3, 4]
        common: [a=1]
        passes: {dev: [], test: [b=2]}
        rows:
          x: {options: [c=3], vary: {d: [5, 6]}, paper: [{test: 0.5}, {test: 0.6}]}
          y: {seeds: [9], method: why}
    """)
    found = read(str(path))
    assert [(row.name, row.method, row.paper) for row in found.rows] == [
        ("x-5", "x", {"test": 0.5}), ("x-6", "x", {"test": 0.6}), ("y", "why", {}),
    ]  # fmt: skip
    runs = runs_of(found, tmp_path)
    assert [(run.part, run.seed, run.options) for run in runs if run.row.name == "x-6"] == [
        ("dev", 3, ("a=1", "c=3", "d=6", "seed=3")), ("dev", 4, ("a=1", "c=3", "d=6", "seed=4")),
        ("test", 3, ("a=1", "c=3", "d=6", "b=2", "seed=3")), ("test", 4, ("a=1", "c=3", "d=6", "b=2", "seed=4")),
    ]  # fmt: skip
    assert len({run.folder for run in runs}) == len(runs) == 10
    assert {run.row.name for run in runs_of(found, tmp_path, only=["x"])} == {"x-5", "x-6"}
    assert {(run.row.name, run.seed) for run in runs_of(found, tmp_path, only=["x-5"], seeds=[7])} == {("x-5", 7)}


def test_a_row_that_varies_in_two_ways_stands_for_every_combination(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("""
        metric: perplexity
        over: data.part
        seeds: [tune, 2]
        script: other.py
        converged: 0.5
        reference: x
        quick: [a=0]
        curves: {one: {x: a, y: [p], rows: [x], against: best}}
        rows:
          x: {vary: {a: [1, 2, 3], b: [u, v]}}
          y: {seeds: [7, 8]}
    """)
    found = read(str(path))
    assert [row.name for row in found.rows] == ["x-1-u", "x-1-v", "x-2-u", "x-2-v", "x-3-u", "x-3-v", "y"]
    assert found.rows[3].options == ("a=2", "b=v")
    assert found.rows[3].varied == {"a": 2, "b": "v"}
    assert (found.script, found.repeated, found.curves[0].against) == (ROOT / "other.py", "part", "best")
    runs = runs_of(found, tmp_path, only=["x"])
    assert len(runs) == 12
    assert runs[0].options[-1] == "data.part=tune"
    assert runs[0].name == "x-1-u run part tune"
    quick = read(str(path), quick=True)  # two values of each, and one seed of what every corpus has
    assert [row.name for row in quick.rows] == ["x-1-u", "x-1-v", "x-2-u", "x-2-v", "y"]
    assert {run.options[-1] for run in runs_of(quick, tmp_path)} == {"seed=0"}
    assert quick.rows[0].options == ("a=1", "b=u", "a=0")


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("rows: {}", "expected rows"),
        ("rows: {x: {}}\nsedes: [1]", "'sedes' is not understood"),
        ("rows: {x: {option: [a=1]}}", "row x: 'option' is not understood"),
        ("rows: {x: {vary: {a: [1, 2]}, paper: [{}]}}", "2 values and 1 papers"),
        ("rows: {x: {vary: a}}", "row x: vary is 'a', expected a mapping"),
        ("rows: {x: {vary: {a: 3}}}", "row x: vary: a is 3, expected a list"),
        ("rows: {x: {vary: {a: []}}}", "0 values"),
        ("rows: {x: {}}\ncurves: {c: {x: a, y: [b]}}", "curve c: expected x, y and rows"),
        ("rows: {x: {}}\ncurves: {c: {x: a, y: [b], rows: [z]}}", "curve c names 'z'"),
        ("rows: {x: {}}\ncurves: {c: {x: a, y: [b], rows: [x], z: 1}}", "curve c: 'z' is not understood"),
        ("rows: {x: {}}\nreference: y", "reference names 'y'"),
        ("rows: {x: {}}\nkinds: [x, z]", "kinds names 'z'"),
        ("rows: {x: [", "line"),
        ("rows: {x: {options: [\"${a}\"]}}", "a"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(tmp_path, text, fragment):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=fragment.replace("$", r"\$")) as refused:
        read(str(path))
    assert str(path) in str(refused.value)


def test_what_does_not_exist_is_refused(capsys, tmp_path):
    assert experiments.main(["martins2011/nothing"]) == 2
    assert "martins2011/chunking" in capsys.readouterr().err
    (tmp_path / "some.yaml").write_text("rows: {x: {}}")
    assert experiments.main([str(tmp_path / "some.yaml"), "--only", "y", "--folder", str(tmp_path)]) == 2
    assert "--only y" in capsys.readouterr().err
    assert experiments.main([str(tmp_path / "some.yaml"), "--seeds", "a"]) == 2
    assert experiments.main([str(tmp_path / "some.yaml"), "--jobs", "0"]) == 2


# --- running


def test_what_is_finished_is_not_run_again_unless_its_options_are_others(tmp_path, script, capsys):
    runs = runs_of(experiment(row("a", seeds=(0, 1)), row("b"), script=script), tmp_path)
    assert Runner(2).run(runs) == []
    assert [starts(run) for run in runs] == [1, 1, 1]
    (runs[0].folder / "marker").touch()
    again = runs_of(experiment(row("a", seeds=(0, 1)), row("b", "f1=0.6"), script=script), tmp_path)
    Runner(1).run(again)
    assert "2 of 3 runs are finished already" in capsys.readouterr().out
    assert (again[0].folder / "marker").is_file()
    assert [record["f1"] for record in records(again)] == [0.5, 0.51, 0.6]
    (again[1].folder / "metrics.json").unlink()  # as if it had been stopped
    assert [run.finished for run in again] == [True, False, True]


def test_a_row_that_fails_stops_no_other_and_is_said_so(tmp_path, script, capsys):
    runs = runs_of(experiment(row("a"), row("bad", "fail=no such thing"), row("c"), script=script), tmp_path)
    (failed,) = Runner(1).run(runs)
    assert failed.row.name == "bad"
    said = capsys.readouterr().out
    assert "error: no such thing" in said
    assert "some words" in (failed.folder / "log.txt").read_text()
    assert [record["row"] for record in records(runs)] == ["a", "c"]
    mended = runs_of(experiment(row("a"), row("bad"), row("c"), script=script), tmp_path)
    assert Runner(1).run(mended) == []
    assert [starts(run) for run in mended] == [1, 1, 1]


def test_each_run_is_a_process_of_its_own_that_costs_what_it_costs(tmp_path, script):
    runs = runs_of(experiment(row("a", "sleep=0.3"), script=script), tmp_path)
    Runner(1).run(runs)
    (record,) = records(runs)
    assert record["seconds"] > 0.3 > record["seconds_cpu"] > 0


def test_runs_are_forked_from_one_that_has_imported_and_are_processes_all_the_same(tmp_path, script):
    script.write_text(script.read_text().replace("import json", "import this\nimport json", 1))  # which says a poem
    runs = runs_of(experiment(row("a", seeds=(0, 1, 2)), row("bad", "fail=x"), row("b"), script=script), tmp_path)
    Runner(1).run(runs)
    found = records(runs)
    assert len({record["parent"] for record in found}) == 1
    assert len({record["pid"] for record in found}) == len(found) == 4
    logs = [(run.folder / "log.txt").read_text() for run in runs]
    assert "Beautiful" in logs[0]
    assert "Beautiful" not in logs[1] + logs[2]
    assert "error: x" in logs[3]


def test_what_dies_is_said_so_and_stops_no_other(tmp_path, script, capsys):
    runs = runs_of(experiment(row("a", f"die={signal.SIGKILL:d}"), row("b"), script=script), tmp_path)
    (failed,) = Runner(1).run(runs)
    assert failed.row.name == "a"
    assert failed.state["status"] == -signal.SIGKILL
    assert "failed with status -9" in capsys.readouterr().out


def test_a_script_that_cannot_be_imported_is_shown(tmp_path, script, capsys):
    script.write_text("import nothing_of_this_name\n")
    runs = runs_of(experiment(row("a"), row("b"), script=script), tmp_path)
    assert {run.name for run in Runner(2).run(runs)} == {run.name for run in runs}
    assert "nothing_of_this_name" in capsys.readouterr().out


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_stops_the_processes_and_the_same_command_goes_on(tmp_path, script, signum):
    path = tmp_path / "some.yaml"
    path.write_text(
        f"script: {script}\n"
        "rows: {a: {options: [size=1]}, slow: {options: [size=2, sleep=60]}, later: {options: [size=3]}}"
    )
    code = (
        "import signal, sys; from benchmarks.harness import runner; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # which a shell may have switched off
        f"sys.exit(runner.main({[str(path), '--folder', str(tmp_path / 'out')]!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    slow = tmp_path / "out" / "some" / "rows" / "slow" / "run-0"
    with subprocess.Popen([sys.executable, "-c", code], **options) as process:
        try:
            deadline = time.monotonic() + 60
            while not (slow / "starts.txt").is_file() and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(signum)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "the same command goes on" in errors
    rows = list(csv.DictReader((slow.parents[2] / "table.csv").open()))
    assert [line["row"] for line in rows] == ["a"]
    assert not (slow / "metrics.json").is_file()
    path.write_text(path.read_text().replace("sleep=60", "sleep=0"))
    found = runs_of(read(str(path)), tmp_path / "out" / "some")
    assert Runner(1).run(found) == []
    assert [starts(run) for run in found] == [1, 1, 1]


def test_rows_of_train_py_make_a_table(tmp_path, capsys):
    """Two that end, one that train.py refuses."""
    path = tmp_path / "tiny.yaml"
    small = [option for option in (*PLANTED, *SMALL) if not option.startswith(("recipe=", "reg=", "seed="))]
    select = ["preset=sparseptron", "reg.budget=2", "trainer.max_epochs=2", "recipe.refit.trainer.max_epochs=1"]
    unwanted = ("batch=", "solver=", "choose=", "reg.strength=")
    rows = {
        "sparse": {"options": select, "selects": True, "method": "sparseptron"},
        "refused": {"options": ["preset=mira", "reg=l3"]},
    }
    common = [option for option in small if not option.startswith((*unwanted, "trainer."))]
    path.write_text(
        json.dumps({"title": "Tiny", "common": common, "kinds": ["sparse"], "memory": ["sparse"], "rows": rows})
    )
    assert experiments.main([str(path), "--folder", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "failed: refused run seed 0" in said.err
    folder = tmp_path / "out" / "tiny"
    (line,) = csv.DictReader((folder / "table.csv").open())
    run = folder / "rows" / "sparse" / "run-0"
    assert (run / "model").is_dir()
    assert not (run / "checkpoints").exists()  # a finished run of a parser would leave a gigabyte
    metrics = json.loads((run / "metrics.json").read_text())
    assert float(line["f1"]) == metrics["f1"]
    assert float(line["dev_f1"]) == metrics["dev_f1"] != metrics["f1"]
    assert int(line["nonzero"]) == metrics["nonzero"] > 0
    assert line["groups_alive"] == "2"
    text = (folder / "table.md").read_text()
    assert "# Tiny" in text
    assert f"{100 * metrics['f1']:.2f}" in text
    assert "dev chooses **sparse**" in text
    assert (folder / "f1.png").is_file()
    assert (folder / "features.png").is_file()
    counted = kinds.count_kinds([folder / "rows" / "sparse" / "run-0"])
    assert sum(living for (by, _), (living, _) in counted.items() if by == "kind") == 2
    assert sum(total for (by, _), (_, total) in counted.items() if by == "kind") == 5


def test_the_proximal_step_of_the_figures_is_the_same_on_the_trie_and_on_the_tree(tmp_path):
    found = read("nelakanti2013/prox", quick=True)
    assert Runner(1).run(runs_of(found, tmp_path, only=["heap_trie-3", "heap_tree-3"])) == []
    trie, tree = records(runs_of(found, tmp_path, only=["heap_trie-3", "heap_tree-3"]))
    assert (trie["tree"], tree["tree"]) == ("trie", "collapsed")
    assert trie["weights"] == trie["entries"] == tree["weights"] > tree["entries"]
    assert trie["written_out"] == tree["written_out"] == trie["nonzero"] > tree["nonzero"] > 0
    assert trie["penalty"] == pytest.approx(tree["penalty"], rel=1e-12)
    tables.write(tmp_path, found, [trie, tree])
    assert "milliseconds" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure_3a.png").is_file()


# --- tables


def record(name, dev, test, size, seed=0, part="run", method="m", **other) -> dict:
    said = {"row": name, "method": method, "pass": part, "seed": seed, "folder": "/nowhere"}
    return said | {"dev_f1": dev, "f1": test, "nonzero": size, "seconds_cpu": 3.0, "peak_memory_mb": 100.0} | other


def test_means_and_standard_errors():
    found = tables.Figures.of([0.1, 0.4, 0.7])
    assert found.mean == pytest.approx(0.4)
    assert found.error == pytest.approx(0.3 / math.sqrt(3))
    assert found.shown(1, 100) == "40.0 ± 17.3"
    assert tables.Figures.of([0.25]).shown(2, 100) == "25.00"
    assert tables.Figures.of([None, None]).shown(2) == ""


def test_dev_is_of_the_first_pass_and_test_of_the_last():
    toy = experiment(row("a", seeds=(0, 1)), passes={"dev": (), "test": ("x=1",)})
    found = [record("a", 0.5, 0.1, 10, 0, "dev"), record("a", 0.7, 0.2, 10, 1, "dev")]
    found += [record("a", 0.99, 0.8, 20, 0, "test"), record("a", 0.99, 0.9, 30, 1, "test")]
    (line,) = tables.lines_of(toy, found)
    assert (line.dev.mean, line.test.mean, line.weights.mean) == pytest.approx((0.6, 0.85, 25))
    assert tables.lines_of(toy, found[:2])[0].test.count == 0


def test_further_figures_have_a_column_each():
    toy = experiment(row("a", seeds=(0, 1)), shows=("sentence_accuracy", "distinct_values"))
    found = [record("a", 0.5, 0.1, 10, seed) | {"sentence_accuracy": 0.25, "distinct_values": 8} for seed in (0, 1)]
    table = tables.table_of(toy, tables.lines_of(toy, found))
    (cells,) = [dict(zip(table.header, line, strict=True)) for line in table.rows]
    assert cells["sentence accuracy"].startswith("25.00")
    assert cells["distinct values"].startswith("8.0")


def test_the_choice_is_by_dev_among_the_rows_that_select():
    rows = [row("all", method="all"), row("x-1", method="x", selects=True), row("x-2", method="x", selects=True)]
    toy = experiment(*rows, reference="all")
    found = [record("all", 0.9, 0.5, 1000), record("x-1", 0.7, 0.99, 10), record("x-2", 0.8, 0.6, 100)]
    lines = tables.lines_of(toy, found)
    assert tables.chosen(lines, lambda line: line.row.selects).row.name == "x-2"
    said = "\n".join(tables.remarks(toy, lines))
    assert "dev chooses **x-2**: test F1 60.00 with 100 weights" in said
    assert "Of x, dev chooses x-2" in said
    assert "x-2 is +10.00 against all on test, with 10.0 % of its weights" in said
    level = [*lines[1:], lines[1]._replace(row=row("x-3", selects=True), dev=lines[2].dev)]
    assert tables.chosen(level, lambda line: True).row.name == "x-3"  # as good and smaller


def test_published_figures_stand_beside(tmp_path):
    toy = experiment(row("a", paper={"test": 0.931, "weights": 5300396}), row("b"), row("not run"))
    found = [record("a", 0.9, 0.5, 1000), record("b", 0.8, 0.4, 10)]
    table = tables.table_of(toy, tables.lines_of(toy, found))
    assert [line[0] for line in table.rows] == ["a", "b"]
    shown = [dict(zip(table.header, line, strict=True)) for line in table.rows]
    assert (shown[0]["paper test"], shown[0]["paper weights"]) == ("93.10", "5,300,396")
    assert (shown[1]["paper test"], shown[1]["paper weights"]) == ("", "")
    tables.write(tmp_path, toy, found)
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [(line["row"], float(line["f1"]), int(line["nonzero"])) for line in lines] == [
        ("a", 0.5, 1000),
        ("b", 0.4, 10),
    ]


def test_an_experiment_without_results_makes_a_table_all_the_same(tmp_path):
    tables.write(tmp_path, experiment(row("a")), [])
    assert "A toy" in (tmp_path / "table.md").read_text()


def counted(tmp_path, name: str, lines: list[tuple]) -> str:
    report = tmp_path / name / "report"
    report.mkdir(parents=True)
    text = "\n".join("\t".join(map(str, line)) for line in [("stage", "epoch", "step", "rows", "weights"), *lines])
    (report / "counts.tsv").write_text(text + "\n")
    return str(tmp_path / name)


def test_features_over_epochs_run_through_all_stages(tmp_path):
    select = [("select", k // 2, k + 1, 5, 10 * (k + 1)) for k in range(4)]  # two epochs of two steps
    refit = [("refit", k, k + 1, 5, 7 + k) for k in range(3)]
    sparse = counted(tmp_path, "sparse", [*select, *refit])
    whole = counted(tmp_path, "whole", [("fit", k, k + 1, 9, 400) for k in range(3)])
    found = counts.read_counts(tmp_path / "sparse" / "report" / "counts.tsv")
    np.testing.assert_allclose(found.epochs, [0.5, 1, 1.5, 2, 3, 4, 5])
    assert found.features.tolist() == [10, 20, 30, 40, 7, 8, 9]
    toy = experiment(row("sparse"), row("whole"), reference="whole", memory=("sparse", "whole"))
    figures = [
        record("sparse", 0.5, 0.5, 9, folder=sparse),
        record("whole", 0.5, 0.5, 400, weights_peak=400, folder=whole),
    ]
    lines = tables.lines_of(toy, figures)
    assert [line.peak.mean for line in lines] == [0.1, 1.0]
    late = counted(tmp_path, "late", refit)
    (line,) = tables.lines_of(experiment(row("late")), [record("late", 0.5, 0.5, 9, folder=late)])
    assert line.peak.count == 0
    tables.write(tmp_path, toy, figures)
    assert "sparse held 40 at most (10.0%), 40 (10.0%) while selecting" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "features.png").is_file()


# --- kinds of templates


def test_kinds_and_places_of_templates():
    names = "word[0] pos[-2..-1] shape[3..4] prefix2[-1..1] suffix3[1] case[-5..-4] digit[0] punctuation[5]".split()
    found = [(kinds.kind_of(t), kinds.place_of(t)) for t in expand(names)]
    assert found == [
        ("words, 1-grams", "at the token"), ("parts of speech, 2-grams", "before it, within 2"),
        ("shapes, 2-grams", "after it, farther"), ("prefixes, 3-grams", "at the token"),
        ("suffixes, 1-grams", "after it, within 2"), ("case, 2-grams", "before it, farther"),
        ("digits, 1-grams", "at the token"), ("punctuation, 1-grams", "after it, farther"),
    ]  # fmt: skip
    assert kinds.kind_of(parse("word[0] & pos[-1]")[0]) == "conjunctions"


def test_living_templates_are_counted_by_kind_over_runs(tmp_path):
    names = ["word[0]", "word[1]", "word[0..1]", "pos[0]"]
    for k, living in enumerate((["word[0]", "word[0..1]"], ["word[0]", "pos[0]", "word[1]"])):
        (tmp_path / f"{k}" / "report").mkdir(parents=True)
        lines = ["group\tlives", *(f"{name}\t{'yes' if name in living else 'no'}" for name in names)]
        (tmp_path / f"{k}" / "report" / "groups.tsv").write_text("\n".join(lines) + "\n")
    found = kinds.count_kinds([tmp_path / "0", tmp_path / "1"])
    assert {key[1]: value for key, value in found.items() if key[0] == "kind"} == {
        "words, 1-grams": (1.5, 2), "words, 2-grams": (0.5, 1), "parts of speech, 1-grams": (0.5, 1),
    }  # fmt: skip
    table = kinds.kinds_table(kinds.level({"here": found, "there": {("kind", "words, 1-grams"): (0.0, 11)}}))
    cells = {line[0]: line[1:] for line in table.rows}
    assert cells["words, 1-grams"] == ("1.5 of 11 +", "0 of 11")
    assert cells["parts of speech, 1-grams"] == ("0.5 of 1 +", "0 of 1")
    alone = {line[0]: line[1] for line in kinds.kinds_table({"here": found}).rows}
    assert alone["words, 1-grams"] == "1.5 of 2 ++"
    apart = kinds.kinds_table({"here": found, "there": {("kind", "case, 1-grams"): (1.0, 2)}})
    assert ("case, 1-grams", "", "1 of 2 +") in apart.rows
    assert sum(float(cell.split()[0]) for cell in alone.values()) == 2 * 2.5  # once by kind, once by place
    (tmp_path / "0" / "report" / "groups.tsv").write_text("group\tlives\nB-NP\tyes\n")  # labels
    assert kinds.count_kinds([tmp_path / "0"]) is None
    assert kinds.count_kinds([tmp_path / "2"]) is None


# --- dev sentences that are trained on


def test_joined_dev_sentences_are_all_of_them_under_the_same_values(tmp_path):
    text = {"train": "the D O\ncat N B-X\n\na D O\n\n", "dev": "dog N B-Y\nthe D O\n\n", "test": "a D O\n\n"}
    for part, lines in text.items():
        (tmp_path / part).write_text(lines)
    paths = [str(tmp_path / part) for part in ("train", "dev", "test")]
    rest = (["word", "pos", "tag"], "iob2", "repair", "auto", 0.5, 0)
    apart, both = files(*paths, *rest), files(*paths, *rest, join_dev=True)
    assert both.joined
    assert not apart.joined
    for name in ("word", "pos", "tag"):
        wanted = apart.train.columns[name].strings() + apart.dev.columns[name].strings()
        assert both.train.columns[name].strings() == wanted
        assert both.dev.columns[name].strings() == apart.dev.columns[name].strings()
    assert both.train.lengths.tolist() == [2, 1, 2]
    held_out = files(paths[0], None, paths[2], *rest, join_dev=True)
    assert held_out.train.columns["word"].strings() == ["the", "cat", "a"]  # in their old order
    assert len(held_out.dev) == 1


def test_dev_cannot_choose_once_it_is_trained_on(run, tmp_path):
    for part in ("train", "dev", "test"):
        (tmp_path / part).write_text("the D O\ncat N B-X\n\na D O\nshoe N B-X\n\n")
    data = (
        "data=files",
        *(f"data.{part}={tmp_path / part}" for part in ("train", "dev", "test")),
        "data.join_dev=true",
    )
    done = run(data=data)
    assert done.status == 0, done.errors
    assert "train 4 sentences" in done.output
    assert "dev is trained on as well" in done.output
    assert done.metrics["dev_f1"] >= 0
    for options in (("choose=best",), ("patience=3",), ("path=3",)):
        refused = run(*options, folder="refused", data=data)
        assert refused.status == 2
        assert "data.join_dev=true" in refused.errors


# --- rounds until so many groups live


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


def test_whole_groups_survive_if_asked_for():
    groups = by_row_blocks((4, 2), "ab", [0, 2, 4])
    W = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert torch.equal(SparseGroupLasso(groups, 1.0, 0.5).survivors(W), W != 0)
    whole = SparseGroupLasso(groups, 1.0, 0.5, whole=True).survivors(W)
    assert whole[:2].all()
    assert not whole[2:].any()
