"""Subcommands of `structsparse` for drift models: predict, evaluate, trend and forecast.

Modules that are slow to import are imported only when a subcommand runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from structsparse.base.commands import OUTPUT, ModelCommands, Subcommand, argument, positive_int
from structsparse.base.console import source, write_output
from structsparse.base.errors import UserError

if TYPE_CHECKING:
    from structsparse.tasks.temporal.predictor import DriftPredictor, Row


def predict(options: argparse.Namespace, model: DriftPredictor) -> None:
    """Subcommand `structsparse predict` of drift models: write the forecast number or class of each line."""
    with write_output(options) as output:
        for row in rows(options):
            (value,) = model.predict([row])
            output.write(f"{value if isinstance(value, str) else format(value, '.6g')}\n".encode())
            output.flush()


def forecast(options: argparse.Namespace, model: DriftPredictor) -> None:
    """Subcommand `structsparse forecast` of drift models: write the forecast and its band for each line."""
    with write_output(options) as output:
        if model.words:
            for word, share in sorted(model.word_probabilities().items(), key=lambda pair: -pair[1]):
                output.write(f"{word}\t{share:.6g}\n".encode())
            return
        for row in rows(options):
            (one,) = model.forecast([row])
            output.write(("\t".join(f"{number:.6g}" for number in one) + "\n").encode())
            output.flush()


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Drift model subcommands: yield the rows of the input, a text in each line, or a JSON object with columns."""
    from structsparse.corpora.byte_streams import chunks, gunzipped, name_of, whole_lines

    stream, number = source(options), 0
    for piece, _ in whole_lines(gunzipped(name_of(stream), chunks(stream, "texts"))):
        for line in piece.decode(errors="replace").splitlines():
            number += 1
            yield _row(line, number) if line.startswith("{") else line


def _row(line: str, number: int) -> Row:
    """Drift model subcommands: the columns of a line that is a JSON object."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"line {number} of the input: {error}, expected a text or a JSON object") from None
    return row


def evaluate(options: argparse.Namespace, model: DriftPredictor) -> None:
    """Subcommand `structsparse evaluate` of drift models: print the score of forecasts for a table."""
    figures = model.evaluate(options.file)
    print(json.dumps(figures, indent=2) if options.json else "\n".join(f"{k:<10}{v:.6g}" for k, v in figures.items()))


def trend(options: argparse.Namespace, model: DriftPredictor) -> None:
    """Subcommand `structsparse trend` of drift models: print the weights of features in each period, with bands.

    Without words, the features that drift most are printed."""
    names = options.words or model.most_drifting(options.first, options.last, options.count)
    if not names:
        raise UserError("no feature of this model drifts; name a word to see its constant weight")
    print("feature\tperiod\tweight\tlow\thigh")
    for name in names:
        for point in model.trend(name):
            if _between(point.period, options, model):
                print("\t".join([name, point.period, *(f"{number:.6g}" for number in point[1:])]))


def _between(period: str, options: argparse.Namespace, model: DriftPredictor) -> bool:
    """Drift model subcommand `trend`: whether a period is one of those to be shown."""
    order = model.periods.index
    first, last = options.first or model.periods[0], options.last or model.periods[-1]
    for name in (first, last):
        if name not in model.periods:
            raise UserError(f"{name} is no period of this model, which has {model.periods[0]} to {model.periods[-1]}")
    return order(first) <= order(period) <= order(last)


PREDICT = """\
Drift models read a text in each line, or a JSON object with the columns that the model was trained with, and write
the number or class for the period after the last."""

EVALUATE = """\
Drift models: FILE is a table (.csv, .tsv or .jsonl) with the columns of texts and responses that the model was trained
with. Printed is the mean squared error or the accuracy of the forecasts by the weights of the last period."""

TREND = """\
Writes the weight of each WORD in each period, and the ends of a 95 % band around it, separated by tabs. Without
words, the features that drift most between the first and the last period are written."""

FORECAST = """\
Writes for each line of the input (a text, or a JSON object of columns) the forecast for the period after the last, and
the ends of a 95 % band, separated by tabs. A model of word counts writes the forecast probability of each word."""

COMMANDS = ModelCommands(
    "a drift model",
    "drift models",
    (
        Subcommand("predict", predict, PREDICT, ("structsparse predict runs/temporal/model < texts.txt",)),
        Subcommand("evaluate", evaluate, EVALUATE, ("structsparse evaluate runs/temporal/model new.csv",)),
        Subcommand(
            "trend",
            trend,
            TREND,
            ("structsparse trend runs/temporal/model inflation", "structsparse trend runs/temporal/model -n 3"),
            (
                argument("words", metavar="WORD", nargs="*", help="a feature of the model"),
                argument("--first", metavar="PERIOD", help="first period (default: that of the model)"),
                argument("--last", metavar="PERIOD", help="last period (default: that of the model)"),
                argument("-n", dest="count", metavar="N", type=positive_int, default=10, help="features without WORD"),
            ),
            purpose="weights of features over time",
        ),
        Subcommand(
            "forecast",
            forecast,
            FORECAST,
            ("structsparse forecast runs/temporal/model < texts.txt",),
            (argument("--input", metavar="FILE", type=Path, help="texts (default: standard input)"), OUTPUT),
            purpose="forecasts with bands",
        ),
    ),
)
