"""Subcommands of `structsparse` for taggers: predict and evaluate.

Slow imports happen only when a subcommand runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from structsparse.base.commands import ModelCommands, Subcommand, argument, positive_int
from structsparse.base.console import note, source, write_output
from structsparse.base.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from structsparse.corpora.columns import Sentences
    from structsparse.tasks.tagging.predictor import SequenceTagger

# Names of the output columns that `predict` adds. Their spaces exclude a clash with names of input columns.
PREDICTED, PROBABILITY = "predicted tag", "its probability"


def predict(options: argparse.Namespace, model: SequenceTagger) -> None:
    """Subcommand `predict` of taggers: write the input columns and a further column with the predicted tags."""
    from structsparse.corpora.columns_streamed import ColumnStream

    if options.nbest is not None and model.edges is not None:
        raise UserError("--nbest: a model with features of edges (features.edges) predicts its best sequence only")
    stream = ColumnStream(source(options), **_layout(options, model, model.columns))
    with write_output(options) as output:
        for sentences in stream:
            shares = model.probabilities(sentences) if options.marginals else None
            if options.nbest is None:
                _write_tags(model, sentences, shares, stream.tabbed, output)
            else:
                _write_nbest(options, model, sentences, shares, stream.tabbed, output)
            output.flush()
    for text in stream.notes:
        note(f"{stream.name}: {text}")


def _write_tags(
    model: SequenceTagger,
    sentences: Sentences,
    shares: np.ndarray | None,  # tag probabilities, float32 [tokens, labels]; None: not requested
    tabs: bool,
    output: BinaryIO,
) -> None:
    """Subcommand `predict` of taggers: write sentences with a column of predicted tags.

    If `shares` is given, a further column has the probability of each predicted tag."""
    from structsparse.corpora.columns import Column, write_columns

    tags = model.tag(sentences)
    columns = sentences.columns | {PREDICTED: tags}
    if shares is not None:
        values = [f"{share:.6f}" for share in shares[range(len(tags)), tags.codes]]
        columns |= {PROBABILITY: Column.from_strings(values)}
    write_columns(output, replace(sentences, columns=columns), tabs=tabs)


def _write_nbest(
    options: argparse.Namespace,
    model: SequenceTagger,
    sentences: Sentences,
    shares: np.ndarray | None,  # tag probabilities, float32 [tokens, labels]; None: not requested
    tabs: bool,
    output: BinaryIO,
) -> None:
    """Subcommand `predict` of taggers: write each sentence up to N times, with its N best tag sequences.

    A comment line before each tag sequence gives rank, score and probability."""
    from structsparse.corpora.columns import token_lines

    spaced = any(" " in label for label in model.labels)
    lines, separator = token_lines(list(sentences.columns.values()), tabs or spaced)
    code = {label: k for k, label in enumerate(model.labels)}
    for begin, ranked in zip(sentences.offsets.tolist(), model.nbest(sentences, options.nbest), strict=False):
        for rank, (tags, score, probability) in enumerate(ranked, start=1):
            block = [f"#rank={rank},score={score:.6f},probability={probability:.6f}"]
            for token, tag in enumerate(tags, start=begin):
                fields = [lines[token], tag]
                if shares is not None:
                    fields.append(f"{shares[token, code[tag]]:.6f}")
                block.append(separator.join(fields))
            output.write("\n".join([*block, "", ""]).encode())


def evaluate(options: argparse.Namespace, model: SequenceTagger) -> None:
    """Subcommand `evaluate` of taggers: token accuracy and span F1 on a file of tagged columns."""
    from structsparse.corpora.columns import read_columns

    needed = (*model.columns, model.tag_column)
    sentences = read_columns(options.file, **_layout(options, model, needed))
    for text in sentences.notes:
        note(f"{sentences.source}: {text}")
    model.tag(sentences.select(slice(1)))  # compile functions and fill caches before time is measured
    begin = time.perf_counter()
    tags = model.tag(sentences)
    seconds = time.perf_counter() - begin
    score, notes = model.score(sentences, tags)
    for text in notes:
        note(text)
    sizes = {"sentences": len(sentences), "tokens": sentences.tokens}
    figures = {**score.result(), **sizes, "tokens_per_second": sentences.tokens / seconds}
    print(json.dumps(figures, indent=2) if options.json else _table(figures))


def _layout(options: argparse.Namespace, model: SequenceTagger, needed: Sequence[str]) -> dict:
    """Subcommands of taggers: keyword arguments for reading the input columns.

    The column names are those of the option --columns or, by default, of the training corpus."""
    from structsparse.tasks.tagging.predictor import optional_columns

    names = list(model.layout) if options.columns is None else _names(options.columns)
    for name in needed:
        if name not in names:
            raise UserError(f"--columns {options.columns} lacks {name}, which is needed here")
    return {
        "names": names,
        "optional": optional_columns(names, needed),
        "comments": options.comments or "auto",
    }


def _names(columns: str) -> list[str]:
    """Subcommands of taggers: the column names in the option --columns; each `_` becomes a generated name."""
    names = columns.replace(",", " ").split()
    return [f"column {k}" if name == "_" else name for k, name in enumerate(names, start=1)]


def _table(figures: dict) -> str:
    """Subcommand `evaluate` of taggers: a text table of precision, recall and F1 of each type, accuracy and speed.

    If the tags encode spans, the types are the types of spans. Otherwise each tag is a type."""
    kinds = dict(sorted(figures["types"].items()))
    if "f1" in figures:
        counts = {key: sum(kind[key] for kind in kinds.values()) for key in ("gold", "predicted")}
        kinds["all"] = {key: figures[key] for key in ("precision", "recall", "f1")} | counts
    width = max(map(len, [*kinds, "type"]))
    lines = [f"{'type':<{width}}  precision  recall      f1      gold  predicted"]
    for name, of in kinds.items():
        ratios = f"{of['precision']:9.4f}  {of['recall']:6.4f}  {of['f1']:6.4f}"
        lines.append(f"{name:<{width}}  {ratios}  {of['gold']:8,}  {of['predicted']:9,}")
    size = f"{figures['sentences']:,} sentences, {figures['tokens']:,} tokens"
    lines.append(f"{size}, accuracy {figures['accuracy']:.4f}, {figures['tokens_per_second']:,.0f} tokens per second")
    return "\n".join(lines)


PREDICT = """\
Taggers read tokens in columns, one token per line, with an empty line after each sentence. They write every line again
with the predicted tag as an additional last column; a tag column in the input is kept. Columns at the end that the
model does not need may be missing. Sentences are tagged and written as they arrive, in constant memory.
--marginals adds a column with the probability of the predicted tag at that token.
--nbest N writes every sentence up to N times, the best tag sequence first, each after a line such as
#rank=1,score=12.345678,probability=0.912345 with the score and the probability of the whole sequence."""

EVALUATE = """\
Taggers: precision, recall and F1 of the spans of each type and of all, and the accuracy of the tags of tokens. Tags
that are not spans are scored by accuracy alone. Tags in another scheme than the model's are converted first."""

COLUMNS = (
    argument(
        "--columns",
        metavar="NAMES",
        help="all columns of the input in order, separated by commas, _ for a column that is not needed "
        "(default: the columns of the training corpus)",
    ),
    argument(
        "--comments",
        choices=("auto", "always", "never"),
        help="skip lines that begin with #: auto (default) skips those that do not have the expected columns",
    ),
)
COMMANDS = ModelCommands(
    "a tagger",
    "taggers",
    (
        Subcommand(
            "predict",
            predict,
            PREDICT,
            (
                "structsparse predict runs/ner/model < sentences.txt > tagged.txt",
                "structsparse predict runs/ner/model --input sentences.txt --output tagged.txt --columns word,_,pos",
                "structsparse predict runs/ner/model --nbest 5 < sentences.txt",
                "tail -f sentences.txt | structsparse predict runs/ner/model --marginals",
            ),
            (
                argument("--nbest", metavar="N", type=positive_int, help="the N best tag sequences of every sentence"),
                argument("--marginals", action="store_true", help="add the probability of each predicted tag"),
                *COLUMNS,
            ),
        ),
        Subcommand(
            "evaluate",
            evaluate,
            EVALUATE,
            (
                "structsparse evaluate runs/ner/model test.txt",
                "structsparse evaluate runs/ner/model test.txt --json > scores.json",
            ),
            COLUMNS,
        ),
    ),
)
