"""Tables of results: their renderings, and means with standard errors."""

import io
import math

import numpy as np
import pytest
from rich.console import Console

from structsparse.report.tables import Mean, Table, console_table, markdown, tsv, without_empty_columns

TABLE = Table(("group", "norm", "size"), [("a|b", 0.123456789, 12345), ("c", math.inf, 1)])


def test_markdown_rounds_and_escapes():
    assert markdown(TABLE).splitlines() == [
        "| group | norm | size |",
        "| --- | --- | --- |",
        "| a\\|b | 0.1235 | 12,345 |",
        "| c | inf | 1 |",
    ]


def test_tab_separated_values_are_exact():
    assert tsv(TABLE) == "group\tnorm\tsize\na|b\t0.123456789\t12345\nc\tinf\t1\n"


def test_a_long_table_is_cut_on_the_console():
    output = io.StringIO()
    long = Table(("group", "norm"), [(f"g{k}", k) for k in range(30)])
    Console(file=output, width=60).print(console_table(long, "living groups", most=25))
    assert "g24" in output.getvalue()
    assert "g25" not in output.getvalue()
    assert "5 more in the report" in " ".join(output.getvalue().split())


def test_empty_columns_are_left_out_but_never_the_first():
    table = Table(("row", "dev", "test"), [("", "", "1"), ("", "", "")])
    assert without_empty_columns(table) == Table(("row", "test"), [("", "1"), ("", "")])


def test_a_mean_has_the_standard_error_of_its_runs():
    values = [0.5, 0.75, None, 0.625]
    mean = Mean.of(values)
    assert (mean.mean, mean.count) == (0.625, 3)
    assert mean.error == pytest.approx(np.std([0.5, 0.75, 0.625], ddof=1) / math.sqrt(3))
    assert mean.text(2, 100) == "62.50 ± 7.22"
    assert mean.signed(1, 100) == "+62.5 ± 7.2"
    assert Mean.of([-1234.5]).text(1) == Mean.of([-1234.5]).signed(1) == "-1,234.5"
    assert Mean.of([None]).text(2) == Mean.of([]).signed(2) == ""
