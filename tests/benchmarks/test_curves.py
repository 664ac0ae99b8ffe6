"""Tables and figures of language models: lower is better, words are compared one by one, orders make a line."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.harness import curves, tables
from benchmarks.harness.curves import Curve
from benchmarks.harness.spec import Row, Spec
from structsparse.report.tables import Mean

ORDERS = (2, 3, 4)


def row(name: str, order: int | None = None, seeds=(1, 2), **other) -> Row:
    varied = {} if order is None else {"model.order": order}
    whole = name if order is None else f"{name}-{order}"
    return Row(whole, name, (), seeds, entry=name, varied=varied, **other)


def toy(*rows: Row, **other) -> Spec:
    defaults = {"metric": "perplexity", "over": "data.part"} | other
    return Spec("toy", "A toy", rows, {"run": ()}, **defaults)


def record(name: str, test: float, part: int = 1, dev: float | None = None, **other) -> dict:
    labels = {"row": name, "method": "m", "pass": "run", "part": part, "folder": "/nowhere", "nonzero": 10 * len(name)}
    return labels | {"perplexity": test, "dev_perplexity": test if dev is None else dev} | other


@pytest.fixture
def by_order() -> tuple[Spec, list[dict]]:
    """Two models by order on two parts; a is best at order 3."""
    rows = [row(name, order, selects=name == "a") for name in "ab" for order in ORDERS]
    values = {"a": (9.0, 5.0, 6.0), "b": (8.0, 7.0, 7.0)}
    results = [
        record(f"{name}-{order}", value + 0.5 * part, part, dev=value, parameters=100 * order**2)
        for name, own in values.items()
        for order, value in zip(ORDERS, own, strict=True)
        for part in (1, 2)
    ]
    curve = Curve("figure", "model.order", ("perplexity",), ("b", "a"), "best")
    return toy(*rows, reference="b", curves=(curve,)), results


def test_the_lowest_perplexity_is_chosen_and_the_highest_f1(by_order):
    spec, results = by_order
    lines = tables.results_of(spec, results)
    assert tables.best_on_dev(lines, lambda line: True, "perplexity").row.name == "a-3"
    assert tables.best_on_dev(lines, lambda line: True, "f1").row.name == "a-2"
    assert tables.reference_of(spec, lines).row.name == "b-3"  # of those as good the first
    text = "\n".join(tables.remarks(spec, lines))
    assert "dev chooses **a-3**: test perplexity 5.75 ± 0.25" in text
    assert "a-3 is -2.00 against b-3 on test" in text


def test_perplexities_are_shown_as_they_are_and_empty_columns_are_not(by_order):
    spec, results = by_order
    table = tables.table_of(spec, tables.results_of(spec, results))
    shown = [dict(zip(table.header, line, strict=True)) for line in table.rows]
    assert shown[1]["test perplexity"] == "5.75 ± 0.25"
    assert shown[1]["dev perplexity"] == "5.00 ± 0.00"
    assert shown[1]["parameters"] == "900 ± 0"
    assert not {"groups", "peak features", "open vocabulary", "gap", "paper test"} & set(table.header)


def test_lines_by_order_and_what_the_last_is_against(by_order, tmp_path):
    spec, results = by_order
    (curve,) = spec.curves

    def figures(row, key):
        return Mean.of(r[key] for r in results if r["row"] == row.name)

    first, second = curves.lines_of(curve, spec, figures)
    assert (first.label, second.label) == ("b", "a")
    assert second.xs == [2, 3, 4]
    assert second.means == pytest.approx([9.75, 5.75, 6.75])
    assert second.errors == pytest.approx([0.25] * 3)
    table = curves.table_of(curve, [first, second])
    assert table.header == ("perplexity", "order 2", "order 3", "order 4", "last / best")
    assert table.rows[1] == ("a", "9.75", "5.75", "6.75", f"{6.75 / 5.75:.4f}")
    grown = curve._replace(y=("parameters",), against=3)
    table = curves.table_of(grown, curves.lines_of(grown, spec, figures))
    assert table.header[-1] == "last / order 3"
    assert table.rows[0][-1] == f"{1600 / 900:.4f}"
    both = curve._replace(y=("parameters", "perplexity"))
    assert [line.label for line in curves.lines_of(both, spec, figures)][:2] == [
        "b: parameters",
        "b: perplexity",
    ]
    tables.write(tmp_path, spec, results)
    lines = list(csv.DictReader((tmp_path / "figure.csv").open()))
    assert [line["line"] for line in lines] == ["b"] * 3 + ["a"] * 3
    assert float(lines[-1]["mean"]) == 6.75
    assert (tmp_path / "figure.png").stat().st_size > 1000
    text = (tmp_path / "table.md").read_text()
    assert text.index("last / best") < text.index("dev perplexity")
    (first, *_) = csv.DictReader((tmp_path / "table.csv").open())
    assert (first["part"], first["perplexity"], first["parameters"]) == ("1", "9.5", "400")


def test_a_curve_of_one_figure_by_another(by_order, tmp_path):
    spec, results = by_order
    for r in results:
        order = int(r["row"][-1])
        r |= {"rows_peak": 1_000_000 * order, "peak_memory_mb": 300 + (20.5 if r["row"][0] == "a" else 40) * order}
    curve = Curve("memory", "rows_peak", ("peak_memory_mb",), ("a", "b"))
    tables.write(tmp_path, replace(spec, curves=(curve,)), results)
    lines = list(csv.DictReader((tmp_path / "memory.csv").open()))
    assert [(line["line"], float(line["rows_peak"])) for line in lines] == [(n, 1e6 * o) for n in "ab" for o in ORDERS]
    text = (tmp_path / "table.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    assert ["", "rows_peak", "peak_memory_mb"] in rows
    assert ["a", "3,000,000", "361.50"] in rows
    assert ["a, straight line: at", "0", "300.00"] in rows
    assert ["b, straight line: for each further", "1,000,000", "40.00"] in rows


def test_a_curve_has_gaps_where_orders_or_runs_are_missing(by_order):
    spec, results = by_order
    (curve,) = spec.curves
    some = [r for r in results if r["row"] not in ("a-3", "b-4")]

    def figures(row, key):
        return Mean.of(r[key] for r in some if r["row"] == row.name)

    some.remove(next(r for r in some if r["row"] == "a-2"))  # on one part alone
    table = curves.table_of(curve._replace(against=4), curves.lines_of(curve, spec, figures))
    assert table.rows == [("b", "8.75", "7.75", "", ""), ("a", "", "", "6.75", "1.0000")]


def test_words_are_compared_one_by_one_with_the_standard_error_of_their_differences(tmp_path):
    draw = np.random.default_rng(0)
    words, results, expected = [50, 80], [], []
    for part, count in enumerate(words, start=1):
        base, gained = draw.normal(-5, 2, count), draw.normal(0.2, 0.1, count)
        for name, values in (("mkn-3", base), ("a-3", base + gained)):
            folder = tmp_path / f"{name}-{part}" / "report"
            folder.mkdir(parents=True)
            np.save(folder / "log_probabilities.npy", values)
            results.append(record(name, math.exp(-values.mean()), part, folder=str(folder.parent)))
        expected.append((gained.mean(), gained.std(ddof=1) / math.sqrt(count)))
    results.append(record("b-3", 3.0, 1))  # nothing is known of its words
    spec = toy(row("a", 3), row("b", 3), row("mkn", 3), reference="mkn")
    table = tables.gains_of(spec, tables.results_of(spec, results), results)
    assert table.header == ("gain over mkn-3", "part 1", "part 2", "least, in standard errors")
    least = min(mean / error for mean, error in expected)
    assert table.rows == [("a-3", *(f"{mean:+.4f} ± {error:.4f}" for mean, error in expected), f"{least:+.1f}")]
    tables.write(tmp_path, spec, results)
    assert "gain over mkn-3" in (tmp_path / "table.md").read_text()
    assert tables.gains_of(toy(row("a", 3)), tables.results_of(toy(row("a", 3)), results), results) is None


def test_rows_that_have_not_converged_are_marked():
    spec = toy(*(row(name) for name in "abcd"), converged=1e-3)
    results = [
        record("a", 5.0, objective=2.0, near_gap=0.0019, stationarity=0.5),
        record("b", 5.0, objective=2.0, near_gap=0.5, stationarity=0.0009),
        record("c", 5.0, objective=2.0, near_gap=0.0021, stationarity=0.0011),
        record("d", 5.0),  # counted, not trained
    ]
    lines = tables.results_of(spec, results)
    assert [line.unconverged for line in lines] == [0, 0, 1, 0]
    table = tables.table_of(spec, lines)
    tests = [line[table.header.index("test perplexity")] for line in table.rows]
    assert tests == ["5.00", "5.00", "5.00 †", "5.00"]
    assert "(1 in all) that have not converged to 0.001" in "\n".join(tables.remarks(spec, lines))
    careless = toy(*(row(name) for name in "abcd"))
    assert not any(line.unconverged for line in tables.results_of(careless, results))
