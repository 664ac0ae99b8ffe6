"""Tables of paired rows over tasks and splits: runs, means and differences against plain numpy, the choice of dev."""

import csv
import math

import numpy as np
import pytest

from benchmarks.harness import figures, living_templates, paired, runner
from benchmarks.harness.paired import (
    CHOICE,
    difference,
    differences,
    mean_over_places,
    merged,
    over_seeds,
    results_of,
)
from benchmarks.harness.runner import Runner, records, runs_of
from benchmarks.harness.spec import Row, Spec, read_spec
from structsparse.base.errors import UserError

TASKS, SPLITS = ("science", "sports", "religion"), (0, 1, 2, 3)
YAML = """
    title: Some
    note: |
        What is
        compared.
    metric: accuracy
    over: {data.pair: [science, sports], data.split: [0, 1, 2]}
    common: [a=1]
    against: [ridge]
    rows:
      ridge: {options: [b=2], paper: {science: 0.9, sports: 0.8}}
      brown: {options: [b=3], against: [permuted]}
      permuted: {seeds: [1]}
"""


def row(name: str, **other) -> Row:
    return Row(name, name, (), SPLITS, entry=name, **other)


def toy(*rows: Row, **other) -> Spec:
    defaults = {"metric": "accuracy", "over": "data.split", "across": {"data.pair": TASKS}} | other
    return Spec("toy", "A toy", rows, {"run": ()}, **defaults)


def record(name: str, task: str, split: int, score: float, **other) -> dict:
    labels = {"row": name, "method": name, "pass": "run", "pair": task, "split": split, "folder": "/nowhere"}
    return labels | {"accuracy": score, "dev_accuracy": score, "nonzero": 10} | other


def drawn(*names: str, seed: int = 0) -> tuple[list[dict], dict[str, np.ndarray]]:
    """Records and the same scores as arrays [tasks, splits]."""
    rng = np.random.default_rng(seed)
    scores = {name: rng.uniform(0.5, 1, (len(TASKS), len(SPLITS))) for name in names}
    return [
        record(name, task, split, own[t, s])
        for name, own in scores.items()
        for t, task in enumerate(TASKS)
        for s, split in enumerate(SPLITS)
    ], scores


# --- what is run


def test_each_row_is_run_with_every_combination(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(YAML)
    spec = read_spec(str(path))
    assert (spec.over, spec.seed_column, spec.note) == ("data.split", "split", "What is compared.")
    assert spec.places == (("science",), ("sports",))
    runs = runs_of(spec, tmp_path)
    own = [run for run in runs if run.row.name == "ridge"]
    assert [run.options for run in own] == [
        ("a=1", "b=2", f"data.pair={task}", f"data.split={split}")
        for task in ("science", "sports")
        for split in range(3)
    ]
    assert [run.seed for run in runs if run.row.name == "permuted"] == [1, 1]  # the row's own
    assert len({run.folder for run in runs}) == len({run.name for run in runs}) == len(runs) == 14
    assert {run.seed for run in runs_of(spec, tmp_path, seeds=[7])} == {7}
    quick = read_spec(str(path), quick=True)
    assert quick.places == ((),)
    assert quick.paired
    assert {run.options[-1] for run in runs_of(quick, tmp_path)} == {"seed=0"}


def test_over_may_be_a_single_option(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("over: data.part\nseeds: [1, 2]\nrows: {x: {}}")
    spec = read_spec(str(path))
    assert not spec.paired
    assert [run.folder.name for run in runs_of(spec, tmp_path)] == ["run-1", "run-2"]
    assert [run.options for run in runs_of(spec, tmp_path)] == [("data.part=1",), ("data.part=2",)]


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("over: {a: 3}\nrows: {x: {}}", "over: a is 3, expected a list"),
        ("over: {a: [1], b: []}\nrows: {x: {}}", "over: b has no values"),
        ("over: {}\nrows: {x: {}}", "expected an option"),
        ("over: [a, b]\nrows: {x: {}}", "expected an option"),
        ("over: {a: [1]}\nseeds: [1]\nrows: {x: {}}", "expected an option"),
        ("against: [y]\nrows: {x: {}}", "against names 'y'"),
        ("rows: {x: {against: [z]}}", "against names 'z'"),
        ("rows: {x: {against: z}}", "against is 'z', expected a list"),
    ],
)
def test_mistakes_in_a_specification_are_refused(tmp_path, text, fragment):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=fragment):
        read_spec(str(path))


def test_a_table_is_made_of_real_processes(tmp_path, capsys):
    script = tmp_path / "stand_in.py"
    script.write_text("""
import json, pathlib, sys

def main():
    options = dict(option.split("=", 1) for option in sys.argv[1:])
    score = 0.5 + 0.1 * int(options["b"]) + 0.01 * int(options["data.split"])
    score += 0.05 * (options["data.pair"] == "sports")
    results = {"accuracy": score, "dev_accuracy": score, "nonzero": 3, "split": "by date"}
    pathlib.Path(options["hydra.run.dir"], "metrics.json").write_text(json.dumps(results))

if __name__ == "__main__":
    main()
""")
    path = tmp_path / "some.yaml"
    path.write_text(YAML.replace("{seeds: [1]}", "{options: [b=1]}") + f"\n    script: {script}\n")
    assert runner.main([str(path), "--folder", str(tmp_path), "--jobs", "2"]) == 0
    text = (tmp_path / "some" / "table.md").read_text()
    assert text in capsys.readouterr().out
    assert "| ridge | 71.00 ± 0.58 | 76.00 ± 0.58 | 73.50 ± 0.58 |" in text
    assert "| ridge, published | 90.00 | 80.00 | 85.00 |" in text
    assert (
        "The gain of brown survives its control permuted: +20.00 ± 0.00, better in 6 and worse in 0 of 6 runs." in text
    )
    lines = list(csv.DictReader((tmp_path / "some" / "table.csv").open()))
    assert {(line["pair"], line["split"]) for line in lines} == {
        (t, str(s)) for t in ("science", "sports") for s in range(3)
    }
    assert (tmp_path / "some" / "differences.png").stat().st_size > 1000
    results = records(runs_of(read_spec(str(path)), tmp_path / "some"))
    assert len(results) == 18
    assert Runner(1).run(runs_of(read_spec(str(path)), tmp_path / "some")) == []


# --- what the table says


def test_means_and_standard_errors_equal_those_of_numpy():
    results, scores = drawn("a", "b")
    board = results_of(toy(row("a"), row("b")), results)
    for name, own in scores.items():
        for t, task in enumerate(TASKS):
            figures = over_seeds(board.scores(name), task)
            assert figures.mean == pytest.approx(own[t].mean())
            assert figures.error == pytest.approx(np.std(own[t], ddof=1) / 2)
        mean = mean_over_places(board.scores(name), board.places)
        assert mean.mean == pytest.approx(own.mean())
        assert mean.error == pytest.approx(np.std(own.mean(axis=0), ddof=1) / 2)


def test_paired_differences_equal_those_of_numpy():
    results, scores = drawn("a", "b", "c")
    spec = toy(row("a", against=("c",)), row("b"), row("c"), against=("b",))
    pairs = {(pair.row, pair.other): pair for pair in differences(results_of(spec, results[::-1]))}
    assert [(key, pair.is_control) for key, pair in pairs.items()] == [
        (("a", "c"), True), (("a", "b"), False), (("c", "b"), False),
    ]  # fmt: skip
    for (one, other), pair in pairs.items():
        expected = scores[one] - scores[other]
        assert pair.all.mean == pytest.approx(expected.mean())
        assert pair.all.error == pytest.approx(np.std(expected, ddof=1) / math.sqrt(expected.size))
        assert [f.mean for f in pair.places] == pytest.approx(expected.mean(axis=1))
        assert [f.error for f in pair.places] == pytest.approx(np.std(expected, ddof=1, axis=1) / 2)
        assert (pair.better, pair.worse) == ((expected > 0).sum(), (expected < 0).sum())
        assert pair.all.count == expected.size


def test_only_runs_of_both_rows_are_paired():
    results, scores = drawn("a", "b")
    some = [r for r in results if not (r["row"] == "a" and r["pair"] == "sports" and r["split"] == 2)]
    board = results_of(toy(row("a"), row("b")), some)
    kept = np.ones_like(scores["a"], bool)
    kept[1, 2] = False
    pair = difference(board, "a", "b")
    assert pair.all.mean == pytest.approx((scores["a"] - scores["b"])[kept].mean())
    assert pair.all.count == kept.sum()
    assert mean_over_places(board.scores("a"), board.places).mean == pytest.approx(
        scores["a"][:, kept.all(axis=0)].mean()
    )
    assert mean_over_places(board.scores("a"), board.places).count == 3
    nothing = results_of(toy(row("a"), row("b")), [r for r in some if r["row"] == "a"])
    assert differences(nothing) == []


def test_lower_is_better_of_errors():
    results = [
        record(name, task, split, 0.0, mse=mse + 0.1 * split)
        for name, mse in (("a", 2.0), ("b", 3.0))
        for task in TASKS
        for split in SPLITS
    ]
    pair = difference(results_of(toy(row("a"), row("b"), metric="mse"), results), "a", "b")
    assert pair.all.mean == pytest.approx(1.0)
    assert pair.better == 12


def test_ties_on_dev_go_to_the_smaller_model():
    dev = {  # of a, b, c: dev, weights
        ("science", 0): [(0.9, 50), (0.9, 40), (0.8, 1)],
        ("science", 1): [(0.9, 50), (0.7, 40), (0.9, 60)],
        ("sports", 0): [(0.9, 50), (0.9, 50), (0.91, 90)],
        ("sports", 1): [(0.5, 50), (0.5, 50), (0.5, 50)],  # of equal ones the first
    }
    results = [
        record(name, *run, 0.1 * k, dev_accuracy=values[k][0], nonzero=values[k][1])
        for run, values in dev.items()
        for k, name in enumerate("abc")
    ]
    results += [record("outside", *run, 1.0) for run in dev]
    rows = [*(row(name, selects=True) for name in "abc"), row("outside")]
    board = results_of(toy(*rows, across={"data.pair": ("science", "sports")}), results)
    assert {run: r["row"] for run, r in board.records[CHOICE].items()} == dict(zip(dev, "baca", strict=True))
    assert board.scores(CHOICE) == pytest.approx(dict(zip(dev, (0.1, 0.0, 0.2, 0.0), strict=True)))
    assert "dev chooses in 4 runs: a 2" in "\n".join(paired.remarks(board, []))
    without = [r for r in results if not (r["row"] == "b" and r["split"] == 1)]  # nobody knows what dev would choose
    assert set(results_of(toy(*rows), without).records[CHOICE]) == {("science", 0), ("sports", 0)}


def test_gains_that_do_not_survive_their_control_are_reported():
    lift = {"real": 0.02, "noise": 0.0}
    rng = np.random.default_rng(1)
    results = []
    for name, gained in lift.items():
        for task in TASKS:
            for split in SPLITS:
                base, noise = 0.8 + 0.01 * split, 0.005 * rng.standard_normal() + 0.001
                results += [record(name, task, split, base + gained + noise), record(f"{name}_twin", task, split, base)]
    rows = [row(f"{name}{end}", against=(f"{name}_twin",) * (not end)) for name in lift for end in ("", "_twin")]
    board = results_of(toy(*rows), results)
    pairs = differences(board)
    assert [pair.survives for pair in pairs] == [True, False]
    assert 0 < pairs[1].all.mean < 2 * pairs[1].all.error
    sentences = paired.remarks(board, pairs)
    assert "The gain of real survives its control real_twin: +" in sentences[0]
    assert "The gain of noise does not survive its control noise_twin: " in sentences[1]
    once = results_of(toy(*rows), [r for r in results if (r["pair"], r["split"]) == ("science", 0)])
    assert paired.remarks(once, differences(once)) == []  # one run proves nothing


def test_several_tables_are_merged_into_one(tmp_path):
    results, scores = drawn("ridge", "brown")
    first = toy(row("ridge"), row("brown", against=("ridge",)), against=("ridge",), note="Topics.")
    movie = Spec(
        "movie", "Movies", (row("ridge"), row("parse", selects=True, against=("ridge",))), {"run": ()},
        metric="accuracy", over="data.split", across={"data": ("sentiment",)},
    )  # fmt: skip
    other = [
        {**record(name, "", split, value), "data": "sentiment"}
        for name, value in (("ridge", 0.7), ("parse", 0.75))
        for split in SPLITS
    ]
    board = merged([results_of(first, results), results_of(movie, other)])
    assert board.places == (*TASKS, "sentiment")
    assert [r.name for r in board.rows] == ["ridge", "brown", "parse"]
    assert mean_over_places(board.scores("ridge"), board.places).mean == pytest.approx(
        (3 * scores["ridge"].mean() + 0.7) / 4
    )
    assert (
        mean_over_places(board.scores("brown"), board.places).count == 0
    )  # no mean of other tasks than the others have
    assert difference(board, "parse", "ridge").places[-1].mean == pytest.approx(0.05)
    paired.write_together(tmp_path / "together", [(first, results), (movie, other)])
    text = (tmp_path / "together" / "table.md").read_text()
    assert "# A toy; Movies" in text
    assert "| row | science | sports | religion | sentiment | mean |" in text
    paired.write_together(tmp_path / "alone", [(first, results)])
    assert not (tmp_path / "alone").exists()


def test_rows_that_have_not_converged_are_marked():
    results = [
        record(name, task, split, 0.9, objective=2.0, near_gap=gap)
        for name, gap in (("a", 1e-4), ("b", 1e-2))
        for task in TASKS
        for split in SPLITS
    ]
    board = results_of(toy(row("a"), row("b"), converged=1e-3), results)
    table = paired.scores_table(board)
    means = [line[table.header.index("mean")] for line in table.rows]
    assert [mean.endswith("†") for mean in means] == [False, True]
    assert "not converged to 0.001" in paired.remarks(board, [])[-1]


# --- what varies: sizes, and kinds of templates by place


def test_scores_against_sizes_by_place():
    rows = [Row(f"some-{k}", "some", (), SPLITS, entry="some", varied={"budget": k}) for k in (1, 2)]
    results = [
        record(r.name, task, split, 0.5 + 0.1 * k + 0.01 * split, nonzero=10.0**k + split)
        for k, r in enumerate(rows, start=1)
        for task in TASKS[:2]
        for split in SPLITS[: 3 - k]
    ]
    figure = figures.sizes(results_of(toy(*rows, row("alone")), results))
    assert [axes.get_title() for axes in figure.axes] == list(TASKS)
    for axes, count in zip(figure.axes, (1, 1, 0), strict=True):
        assert len(axes.containers) == count
        for line, *_ in axes.containers:
            np.testing.assert_allclose(line.get_xydata(), [[10.5, 60.5], [100, 70]])


def test_kinds_of_templates_of_arcs_by_place(tmp_path):
    living = {"science": ["h.word & direction", "bias"], "sports": ["h.upos & m.upos"], "religion": []}
    names = ["h.word & direction", "bias", "h.upos & m.upos", "h.upos & m.upos & distance"]
    results = []
    for task, some in living.items():
        folder = tmp_path / task
        (folder / "report").mkdir(parents=True)
        lines = ["group\tlives", *(f"{name}\t{'yes' if name in some else 'no'}" for name in names)]
        (folder / "report" / "groups.tsv").write_text("\n".join(lines) + "\n")
        results.append(record("own", task, 0, 0.5, folder=str(folder)))
    spec = toy(row("own"), kinds=("own",))
    table = living_templates.kinds_of(spec, results)
    assert table.header == ("templates", *(f"{task} own" for task in TASKS))
    assert {line[0]: line[1:] for line in table.rows} == {
        "head": ("1 of 1 ++", "0 of 1", "0 of 1"),
        "bias": ("1 of 1 ++", "0 of 1", "0 of 1"),
        "tags": ("0 of 2", "1 of 2 +", "0 of 2"),
        "plain": ("1 of 2 +", "1 of 2 +", "0 of 2"),
        "direction": ("1 of 1 ++", "0 of 1", "0 of 1"),
        "distance": ("0 of 1", "0 of 1", "0 of 1"),
    }
    paired.write(tmp_path, spec, results)
    assert "## Living templates by kind" in (tmp_path / "table.md").read_text()
