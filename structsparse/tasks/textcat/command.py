"""Subcommands of `structsparse` for text classifiers: predict and evaluate.

Modules that are slow to import are imported only when a subcommand runs.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from structsparse.base.commands import ModelCommands, Subcommand, argument
from structsparse.base.console import note, source, write_output
from structsparse.base.errors import UserError

if TYPE_CHECKING:
    from structsparse.tasks.textcat.predictor import Classifier


def predict(options: argparse.Namespace, model: Classifier) -> None:
    """Subcommand `structsparse predict` of text classifiers: write the predicted class or number of each document."""
    if options.files and options.input is not None:
        raise UserError(f"--input {options.input} has a document in each line, FILEs are documents; give one of them")
    with write_output(options) as output:
        for name, text in _files(options.files) if options.files else _lines(source(options)):
            line = f"{_prediction(model, text)}\n"
            output.write((f"{name}\t{line}" if options.files else line).encode())
            output.flush()


def _files(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Text classifier subcommand `predict`: yield the name and the text of each file, which is one document."""
    from structsparse.corpora.document_files import content_of

    for path in paths:
        yield str(path), content_of(path)


def _lines(source: Path | io.BufferedIOBase) -> Iterator[tuple[str, str]]:
    """Text classifier subcommand `predict`: yield the number and the text of each line of a stream.

    Each line is a document, and is yielded as soon as it arrives.
    """
    from structsparse.corpora.document_files import content_of

    if isinstance(source, Path):
        source = io.BytesIO(content_of(source).encode())
    for number, line in enumerate(source, start=1):
        try:
            yield str(number), line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"line {number} of the input is not UTF-8 ({error.reason})") from None


def _prediction(model: Classifier, text: str) -> str:
    """Text classifier subcommand `predict`: the output line of a document.

    The line has the predicted class and the probabilities of all classes, or the scores if there are no probabilities.
    If the model predicts numbers, the line has only the number.
    """
    scores = model.scores(model.read([text]))
    if model.classes is None:
        return f"{scores[0]:.6g}"
    numbers = model.probabilities(scores)[0] if model.probabilistic else scores[0].reshape(-1)
    label = model.classes[int(model.decide(scores)[0])]
    names = model.classes if len(numbers) == len(model.classes) else model.classes[1:]
    return "\t".join([label, *(f"{name}={value:.6f}" for name, value in zip(names, numbers.tolist(), strict=True))])


def evaluate(options: argparse.Namespace, model: Classifier) -> None:
    """Subcommand `structsparse evaluate` of text classifiers: print the scores on labelled documents.

    The scores are accuracy and F1 for classes, and mean squared error for numbers.
    """
    from structsparse.corpora.document_files import read
    from structsparse.tasks.textcat.predictor import existing

    raw = read(existing(options.file), options.text or "text", options.label or "label")
    for name in model.unknown_labels(raw.labels):
        note(f"label {name} is unknown to the model: its documents count as wrong")
    begin = time.perf_counter()
    figures = model.evaluate(raw.texts, raw.labels)
    figures["documents_per_second"] = figures["documents"] / (time.perf_counter() - begin)
    print(json.dumps(figures, indent=2) if options.json else _table(figures))


def _table(figures: dict) -> str:
    """Text classifier subcommand `evaluate`: console lines with the scores and the speed."""
    size = f"{figures['documents']:,} documents, {figures['documents_per_second']:,.0f} per second"
    if "mse" in figures:
        return f"mse {figures['mse']:.6g}\n{size}"
    classes = figures["types"]
    width = max(map(len, [*classes, "class"]))
    lines = [f"{'class':<{width}}  precision  recall      f1      gold  predicted"]
    for name, of in classes.items():
        ratios = f"{of['precision']:9.4f}  {of['recall']:6.4f}  {of['f1']:6.4f}"
        lines.append(f"{name:<{width}}  {ratios}  {of['gold']:8,}  {of['predicted']:9,}")
    lines.append(f"accuracy {figures['accuracy']:.4f}, macro f1 {figures['macro_f1']:.4f}, {size}")
    return "\n".join(lines)


PREDICT = """\
Classifiers read one document per line and write one line for each: the label and, after tabs, CLASS=PROBABILITY for
every class. Models trained with another loss than the logistic one write CLASS=SCORE; models that predict a number
write the number. Given FILEs, plain or gzipped, each file is one document and its name comes first on its line."""

EVALUATE = """\
Classifiers: accuracy, precision, recall and F1 of every class, and their mean F1; the mean squared error for numbers.
FILE is a folder with one folder per label, or a table (.csv, .tsv, .jsonl, also .gz) with columns of texts and
labels."""

COMMANDS = ModelCommands(
    "a classifier",
    "classifiers",
    (
        Subcommand(
            "predict",
            predict,
            PREDICT,
            ("structsparse predict runs/textcat/model letter.txt mails/*.txt",),
            (argument("files", metavar="FILE", type=Path, nargs="*", help="documents, one per file"),),
        ),
        Subcommand(
            "evaluate",
            evaluate,
            EVALUATE,
            ("structsparse evaluate runs/textcat/model reviews.csv --text review --label stars",),
            (
                argument("--text", metavar="NAME", help="the column of the texts in a table (default: text)"),
                argument("--label", metavar="NAME", help="the column of the labels (default: label)"),
            ),
        ),
    ),
)
