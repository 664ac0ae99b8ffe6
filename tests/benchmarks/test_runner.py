"""The harness of tables: specifications, runs, failures, and tables of means over seeds."""

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

from benchmarks.harness import feature_counts, living_templates, runner, tables
from benchmarks.harness.runner import Run, Runner, records, runs_of
from benchmarks.harness.spec import Row, Spec, read_spec
from structsparse.base.errors import UserError
from structsparse.report.tables import Mean
from structsparse.tasks.tagging.features.templates import expand, parse
from tests.support.runs import PLANTED, ROOT, SMALL

# Writes its options to metrics.json after `sleep` seconds; fails or dies if an option says so.
STAND_IN = """
import json, os, pathlib, sys, time

def main():
    options = dict(option.split("=", 1) for option in sys.argv[1:])
    folder = pathlib.Path(options.pop("hydra.run.dir"))
    (folder / "starts.txt").open("a").write("x")
    time.sleep(float(options.get("sleep", 0)))
    if options.get("fail"):
        print("some words", file=sys.stderr)
        raise SystemExit("error: " + options["fail"])
    if options.get("die"):
        os.kill(os.getpid(), int(options["die"]))
    f1 = float(options.get("f1", 0.5)) + 0.01 * int(options.get("seed", 0))
    results = {"f1": f1, "dev_f1": 0.5, "pid": os.getpid()}
    results |= {"nonzero": int(options["size"]), "parent": os.getppid(), "options": options}
    (folder / "metrics.json").write_text(json.dumps(results))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return path


def spec_of(*rows: Row, passes=None, **other) -> Spec:
    return Spec("toy", "A toy", rows, passes or {"run": ()}, **other)


def row(name: str, *options: str, method: str = "some", seeds=(0,), **other) -> Row:
    return Row(name, method, ("size=7", *options), seeds, **other)


def starts(run: Run) -> int:
    """How often it was run since its folder was made."""
    path = run.folder / "starts.txt"
    return len(path.read_text()) if path.is_file() else 0


# --- what there is to run


def test_a_row_that_varies_makes_a_row_for_each_value(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("""
        seeds: [3, 4]
        common: [a=1]
        passes: {dev: [], test: [b=2]}
        rows:
          x: {options: [c=3], vary: {d: [5, 6]}, paper: [{test: 0.5}, {test: 0.6}]}
          y: {seeds: [9], method: why}
    """)
    spec = read_spec(str(path))
    assert [(row.name, row.method, row.paper) for row in spec.rows] == [
        ("x-5", "x", {"test": 0.5}), ("x-6", "x", {"test": 0.6}), ("y", "why", {}),
    ]  # fmt: skip
    runs = runs_of(spec, tmp_path)
    assert [(run.part, run.seed, run.options) for run in runs if run.row.name == "x-6"] == [
        ("dev", 3, ("a=1", "c=3", "d=6", "seed=3")), ("dev", 4, ("a=1", "c=3", "d=6", "seed=4")),
        ("test", 3, ("a=1", "c=3", "d=6", "b=2", "seed=3")), ("test", 4, ("a=1", "c=3", "d=6", "b=2", "seed=4")),
    ]  # fmt: skip
    assert len({run.folder for run in runs}) == len(runs) == 10
    assert {run.row.name for run in runs_of(spec, tmp_path, only=["x"])} == {"x-5", "x-6"}
    assert {(run.row.name, run.seed) for run in runs_of(spec, tmp_path, only=["x-5"], seeds=[7])} == {("x-5", 7)}


def test_a_row_that_varies_two_options_makes_a_row_for_every_combination(tmp_path):
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
    spec = read_spec(str(path))
    assert [row.name for row in spec.rows] == ["x-1-u", "x-1-v", "x-2-u", "x-2-v", "x-3-u", "x-3-v", "y"]
    assert spec.rows[3].options == ("a=2", "b=v")
    assert spec.rows[3].varied == {"a": 2, "b": "v"}
    assert (spec.script, spec.seed_column, spec.curves[0].against) == (ROOT / "other.py", "part", "best")
    runs = runs_of(spec, tmp_path, only=["x"])
    assert len(runs) == 12
    assert runs[0].options[-1] == "data.part=tune"
    assert runs[0].name == "x-1-u run part tune"
    quick = read_spec(str(path), quick=True)  # two values of each, and one seed of what every corpus has
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
def test_mistakes_in_a_specification_are_refused(tmp_path, text, fragment):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=fragment.replace("$", r"\$")) as refused:
        read_spec(str(path))
    assert str(path) in str(refused.value)


def test_unknown_tables_rows_and_seeds_are_refused(capsys, tmp_path):
    assert runner.main(["martins2011/nothing"]) == 2
    assert "martins2011/chunking" in capsys.readouterr().err
    (tmp_path / "some.yaml").write_text("rows: {x: {}}")
    assert runner.main([str(tmp_path / "some.yaml"), "--only", "y", "--folder", str(tmp_path)]) == 2
    assert "--only y" in capsys.readouterr().err
    assert runner.main([str(tmp_path / "some.yaml"), "--seeds", "a"]) == 2
    assert runner.main([str(tmp_path / "some.yaml"), "--jobs", "0"]) == 2


# --- running


def test_finished_runs_are_not_repeated_unless_their_options_change(tmp_path, script, capsys):
    runs = runs_of(spec_of(row("a", seeds=(0, 1)), row("b"), script=script), tmp_path)
    assert Runner(2).run(runs) == []
    assert [starts(run) for run in runs] == [1, 1, 1]
    (runs[0].folder / "marker").touch()
    again = runs_of(spec_of(row("a", seeds=(0, 1)), row("b", "f1=0.6"), script=script), tmp_path)
    Runner(1).run(again)
    assert "2 of 3 runs are already finished" in capsys.readouterr().out
    assert (again[0].folder / "marker").is_file()
    assert [record["f1"] for record in records(again)] == [0.5, 0.51, 0.6]
    (again[1].folder / "metrics.json").unlink()  # as if it had been stopped
    assert [run.finished for run in again] == [True, False, True]


def test_a_failed_run_is_reported_and_the_others_continue(tmp_path, script, capsys):
    runs = runs_of(spec_of(row("a"), row("bad", "fail=no such thing"), row("c"), script=script), tmp_path)
    (failed,) = Runner(1).run(runs)
    assert failed.row.name == "bad"
    printed = capsys.readouterr().out
    assert "error: no such thing" in printed
    assert "some words" in (failed.folder / "log.txt").read_text()
    assert [record["row"] for record in records(runs)] == ["a", "c"]
    mended = runs_of(spec_of(row("a"), row("bad"), row("c"), script=script), tmp_path)
    assert Runner(1).run(mended) == []
    assert [starts(run) for run in mended] == [1, 1, 1]


def test_cpu_time_is_that_of_the_process_of_the_run(tmp_path, script):
    runs = runs_of(spec_of(row("a", "sleep=0.3"), script=script), tmp_path)
    Runner(1).run(runs)
    (record,) = records(runs)
    assert record["seconds"] > 0.3 > record["seconds_cpu"] > 0


def test_runs_are_separate_processes_forked_from_one_server(tmp_path, script):
    script.write_text(script.read_text().replace("import json", "import this\nimport json", 1))  # which says a poem
    runs = runs_of(spec_of(row("a", seeds=(0, 1, 2)), row("bad", "fail=x"), row("b"), script=script), tmp_path)
    Runner(1).run(runs)
    results = records(runs)
    assert len({record["parent"] for record in results}) == 1
    assert len({record["pid"] for record in results}) == len(results) == 4
    logs = [(run.folder / "log.txt").read_text() for run in runs]
    assert "Beautiful" in logs[0]
    assert "Beautiful" not in logs[1] + logs[2]
    assert "error: x" in logs[3]


def test_a_killed_run_is_reported_and_the_others_continue(tmp_path, script, capsys):
    runs = runs_of(spec_of(row("a", f"die={signal.SIGKILL:d}"), row("b"), script=script), tmp_path)
    (failed,) = Runner(1).run(runs)
    assert failed.row.name == "a"
    assert failed.state["status"] == -signal.SIGKILL
    assert "failed with status -9" in capsys.readouterr().out


def test_an_import_error_of_the_script_is_reported(tmp_path, script, capsys):
    script.write_text("import nothing_of_this_name\n")
    runs = runs_of(spec_of(row("a"), row("b"), script=script), tmp_path)
    assert {run.name for run in Runner(2).run(runs)} == {run.name for run in runs}
    assert "nothing_of_this_name" in capsys.readouterr().out


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_all_processes_and_the_same_command_continues(tmp_path, script, signum):
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
    assert "the same command continues" in errors
    rows = list(csv.DictReader((slow.parents[2] / "table.csv").open()))
    assert [line["row"] for line in rows] == ["a"]
    assert not (slow / "metrics.json").is_file()
    path.write_text(path.read_text().replace("sleep=60", "sleep=0"))
    results = runs_of(read_spec(str(path)), tmp_path / "out" / "some")
    assert Runner(1).run(results) == []
    assert [starts(run) for run in results] == [1, 1, 1]


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
    assert runner.main([str(path), "--folder", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert "failed: refused run seed 0" in printed.err
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
    counted = living_templates.count_kinds([folder / "rows" / "sparse" / "run-0"])
    assert sum(living for (by, _), (living, _) in counted.items() if by == "kind") == 2
    assert sum(total for (by, _), (_, total) in counted.items() if by == "kind") == 5


def test_the_benchmarked_proximal_step_is_equal_on_trie_and_collapsed_tree(tmp_path):
    spec = read_spec("nelakanti2013/prox", quick=True)
    assert Runner(1).run(runs_of(spec, tmp_path, only=["heap_trie-3", "heap_tree-3"])) == []
    trie, tree = records(runs_of(spec, tmp_path, only=["heap_trie-3", "heap_tree-3"]))
    assert (trie["tree"], tree["tree"]) == ("trie", "collapsed")
    assert trie["weights"] == trie["entries"] == tree["weights"] > tree["entries"]
    assert trie["written_out"] == tree["written_out"] == trie["nonzero"] > tree["nonzero"] > 0
    assert trie["penalty"] == pytest.approx(tree["penalty"], rel=1e-12)
    tables.write(tmp_path, spec, [trie, tree])
    assert "milliseconds" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure_3a.png").is_file()


# --- tables


def record(name, dev, test, size, seed=0, part="run", method="m", **other) -> dict:
    labels = {"row": name, "method": method, "pass": part, "seed": seed, "folder": "/nowhere"}
    return labels | {"dev_f1": dev, "f1": test, "nonzero": size, "seconds_cpu": 3.0, "peak_memory_mb": 100.0} | other


def test_means_and_standard_errors():
    results = Mean.of([0.1, 0.4, 0.7])
    assert results.mean == pytest.approx(0.4)
    assert results.error == pytest.approx(0.3 / math.sqrt(3))
    assert results.text(1, 100) == "40.0 ± 17.3"
    assert Mean.of([0.25]).text(2, 100) == "25.00"
    assert Mean.of([None, None]).text(2) == ""


def test_dev_figures_are_of_the_first_pass_and_test_figures_of_the_last():
    toy = spec_of(row("a", seeds=(0, 1)), passes={"dev": (), "test": ("x=1",)})
    results = [record("a", 0.5, 0.1, 10, 0, "dev"), record("a", 0.7, 0.2, 10, 1, "dev")]
    results += [record("a", 0.99, 0.8, 20, 0, "test"), record("a", 0.99, 0.9, 30, 1, "test")]
    (line,) = tables.results_of(toy, results)
    assert (line.dev.mean, line.test.mean, line.weights.mean) == pytest.approx((0.6, 0.85, 25))
    assert tables.results_of(toy, results[:2])[0].test.count == 0


def test_further_figures_have_their_columns():
    toy = spec_of(row("a", seeds=(0, 1)), shows=("sentence_accuracy", "distinct_values"))
    results = [record("a", 0.5, 0.1, 10, seed) | {"sentence_accuracy": 0.25, "distinct_values": 8} for seed in (0, 1)]
    table = tables.table_of(toy, tables.results_of(toy, results))
    (cells,) = [dict(zip(table.header, line, strict=True)) for line in table.rows]
    assert cells["sentence accuracy"].startswith("25.00")
    assert cells["distinct values"].startswith("8.0")


def test_dev_chooses_among_the_rows_that_may_be_selected():
    rows = [row("all", method="all"), row("x-1", method="x", selects=True), row("x-2", method="x", selects=True)]
    toy = spec_of(*rows, reference="all")
    results = [record("all", 0.9, 0.5, 1000), record("x-1", 0.7, 0.99, 10), record("x-2", 0.8, 0.6, 100)]
    lines = tables.results_of(toy, results)
    assert tables.best_on_dev(lines, lambda line: line.row.selects, "f1").row.name == "x-2"
    text = "\n".join(tables.remarks(toy, lines))
    assert "dev chooses **x-2**: test F1 60.00 with 100 weights" in text
    assert "Of x, dev chooses x-2" in text
    assert "x-2 is +10.00 against all on test, with 10.0 % of its weights" in text
    level = [*lines[1:], lines[1]._replace(row=row("x-3", selects=True), dev=lines[2].dev)]
    assert tables.best_on_dev(level, lambda line: True, "f1").row.name == "x-3"  # as good and smaller


def test_published_figures_have_their_columns(tmp_path):
    toy = spec_of(row("a", paper={"test": 0.931, "weights": 5300396}), row("b"), row("not run"))
    results = [record("a", 0.9, 0.5, 1000), record("b", 0.8, 0.4, 10)]
    table = tables.table_of(toy, tables.results_of(toy, results))
    assert [line[0] for line in table.rows] == ["a", "b"]
    shown = [dict(zip(table.header, line, strict=True)) for line in table.rows]
    assert (shown[0]["paper test"], shown[0]["paper weights"]) == ("93.10", "5,300,396")
    assert (shown[1]["paper test"], shown[1]["paper weights"]) == ("", "")
    tables.write(tmp_path, toy, results)
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [(line["row"], float(line["f1"]), int(line["nonzero"])) for line in lines] == [
        ("a", 0.5, 1000),
        ("b", 0.4, 10),
    ]


def test_a_table_without_results_is_written(tmp_path):
    tables.write(tmp_path, spec_of(row("a")), [])
    assert "A toy" in (tmp_path / "table.md").read_text()


def counted(tmp_path, name: str, lines: list[tuple]) -> str:
    report = tmp_path / name / "report"
    report.mkdir(parents=True)
    text = "\n".join("\t".join(map(str, line)) for line in [("stage", "epoch", "step", "rows", "weights"), *lines])
    (report / "counts.tsv").write_text(text + "\n")
    return str(tmp_path / name)


def test_feature_counts_run_through_all_stages(tmp_path):
    select = [("select", k // 2, k + 1, 5, 10 * (k + 1)) for k in range(4)]  # two epochs of two steps
    refit = [("refit", k, k + 1, 5, 7 + k) for k in range(3)]
    sparse = counted(tmp_path, "sparse", [*select, *refit])
    whole = counted(tmp_path, "whole", [("fit", k, k + 1, 9, 400) for k in range(3)])
    results = feature_counts.read_counts(tmp_path / "sparse" / "report" / "counts.tsv")
    np.testing.assert_allclose(results.epochs, [0.5, 1, 1.5, 2, 3, 4, 5])
    assert results.features.tolist() == [10, 20, 30, 40, 7, 8, 9]
    toy = spec_of(row("sparse"), row("whole"), reference="whole", memory=("sparse", "whole"))
    figures = [
        record("sparse", 0.5, 0.5, 9, folder=sparse),
        record("whole", 0.5, 0.5, 400, weights_peak=400, folder=whole),
    ]
    lines = tables.results_of(toy, figures)
    assert [line.peak.mean for line in lines] == [0.1, 1.0]
    late = counted(tmp_path, "late", refit)
    (line,) = tables.results_of(spec_of(row("late")), [record("late", 0.5, 0.5, 9, folder=late)])
    assert line.peak.count == 0
    tables.write(tmp_path, toy, figures)
    assert "sparse held 40 at most (10.0%), 40 (10.0%) while selecting" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "features.png").is_file()


# --- kinds of templates


def test_kinds_and_places_of_templates():
    names = "word[0] pos[-2..-1] shape[3..4] prefix2[-1..1] suffix3[1] case[-5..-4] digit[0] punctuation[5]".split()
    results = [(living_templates.kind_of(t), living_templates.place_of(t)) for t in expand(names)]
    assert results == [
        ("words, 1-grams", "at the token"), ("parts of speech, 2-grams", "before it, within 2"),
        ("shapes, 2-grams", "after it, farther"), ("prefixes, 3-grams", "at the token"),
        ("suffixes, 1-grams", "after it, within 2"), ("case, 2-grams", "before it, farther"),
        ("digits, 1-grams", "at the token"), ("punctuation, 1-grams", "after it, farther"),
    ]  # fmt: skip
    assert living_templates.kind_of(parse("word[0] & pos[-1]")[0]) == "conjunctions"


def test_living_templates_are_counted_by_kind_over_runs(tmp_path):
    names = ["word[0]", "word[1]", "word[0..1]", "pos[0]"]
    for k, living in enumerate((["word[0]", "word[0..1]"], ["word[0]", "pos[0]", "word[1]"])):
        (tmp_path / f"{k}" / "report").mkdir(parents=True)
        lines = ["group\tlives", *(f"{name}\t{'yes' if name in living else 'no'}" for name in names)]
        (tmp_path / f"{k}" / "report" / "groups.tsv").write_text("\n".join(lines) + "\n")
    results = living_templates.count_kinds([tmp_path / "0", tmp_path / "1"])
    assert {key[1]: value for key, value in results.items() if key[0] == "kind"} == {
        "words, 1-grams": (1.5, 2), "words, 2-grams": (0.5, 1), "parts of speech, 1-grams": (0.5, 1),
    }  # fmt: skip
    table = living_templates.kinds_table(
        living_templates.with_equal_totals({"here": results, "there": {("kind", "words, 1-grams"): (0.0, 11)}})
    )
    cells = {line[0]: line[1:] for line in table.rows}
    assert cells["words, 1-grams"] == ("1.5 of 11 +", "0 of 11")
    assert cells["parts of speech, 1-grams"] == ("0.5 of 1 +", "0 of 1")
    alone = {line[0]: line[1] for line in living_templates.kinds_table({"here": results}).rows}
    assert alone["words, 1-grams"] == "1.5 of 2 ++"
    apart = living_templates.kinds_table({"here": results, "there": {("kind", "case, 1-grams"): (1.0, 2)}})
    assert ("case, 1-grams", "", "1 of 2 +") in apart.rows
    assert sum(float(cell.split()[0]) for cell in alone.values()) == 2 * 2.5  # once by kind, once by place
    (tmp_path / "0" / "report" / "groups.tsv").write_text("group\tlives\nB-NP\tyes\n")  # labels
    assert living_templates.count_kinds([tmp_path / "0"]) is None
    assert living_templates.count_kinds([tmp_path / "2"]) is None
