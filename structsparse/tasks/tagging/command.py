"""Subcommands of `structsparse` for taggers: predict and evaluate.

Heavy modules are imported when one runs.
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

    from structsparse.corpora.columns import Column, Sentences
    from structsparse.corpora.columns_streamed import ColumnStream
    from structsparse.tasks.tagging.predictor import Model
    from structsparse.tasks.tagging.scores import SpanScore
    from structsparse.training.scores import AccuracyScore

PREDICTED, PROBABILITY = "predicted tag", "its probability"  # nobody can give these names: --columns parts at spaces


def predict(options: argparse.Namespace, model: Model) -> None:
    if options.nbest is not None and model.edges is not None:
        raise UserError("--nbest: a model with features of label pairs (features.edges) tells its best sequence only")
    from structsparse.corpora.columns_streamed import ColumnStream

    stream = ColumnStream(source(options), comments=_comments(options), **_layout(options, model, model.columns))
    with write_output(options) as output:
        _predict_stream(options, model, stream, output)
    for text in stream.notes:
        note(f"{stream.name}: {text}")


def evaluate(options: argparse.Namespace, model: Model) -> None:
    sentences = _read(options, model, options.file, (*model.columns, model.tag_column))
    model.tag(sentences.select(slice(1)))  # the first call prepares what later ones use
    begin = time.perf_counter()
    predicted = model.tag(sentences)
    seconds = time.perf_counter() - begin
    score = _score(model, sentences, predicted.codes)
    figures = {
        **score.result(),
        "sentences": len(sentences),
        "tokens": sentences.tokens,
        "tokens_per_second": sentences.tokens / seconds,
    }
    print(json.dumps(figures, indent=2) if options.json else _table(figures))


def _predict_stream(options: argparse.Namespace, model: Model, stream: ColumnStream, output: BinaryIO) -> None:
    from structsparse.corpora.columns import write_columns

    for sentences in stream:
        chances = model.marginals(sentences) if options.marginals else None
        if options.nbest is None:
            predicted = model.tag(sentences)
            columns = {PREDICTED: predicted} | _probabilities(chances, predicted.codes)
            write_columns(output, replace(sentences, columns=sentences.columns | columns), tabs=stream.tabbed)
        else:
            _write_nbest(options, model, sentences, chances, stream.tabbed, output)
        output.flush()


def _write_nbest(
    options: argparse.Namespace,
    model: Model,
    sentences: Sentences,
    chances: np.ndarray | None,  # [tokens, labels]
    tabs: bool,
    output: BinaryIO,
) -> None:
    from structsparse.corpora.columns import token_lines

    spaced = any(" " in label for label in model.labels)
    lines, separator = token_lines(list(sentences.columns.values()), tabs or spaced)
    code = {label: k for k, label in enumerate(model.labels)}
    for begin, ranked in zip(sentences.offsets.tolist(), model.nbest(sentences, options.nbest), strict=False):
        for rank, (tags, score, probability) in enumerate(ranked, start=1):
            written = [f"#rank={rank},score={score:.6f},probability={probability:.6f}"]
            for token, tag in enumerate(tags, start=begin):
                fields = [lines[token], tag]
                if chances is not None:
                    fields.append(f"{chances[token, code[tag]]:.6f}")
                written.append(separator.join(fields))
            output.write("\n".join([*written, "", ""]).encode())


def _probabilities(chances: np.ndarray | None, labels: np.ndarray) -> dict[str, Column]:
    """The column of how probable these labels are, if it is wanted: chances [tokens, labels], labels [tokens]."""
    from structsparse.corpora.columns import Column

    if chances is None:
        return {}
    return {PROBABILITY: Column.from_strings([f"{chance:.6f}" for chance in chances[range(len(labels)), labels]])}


def _read(options: argparse.Namespace, model: Model, source, needed: Sequence[str]) -> Sentences:
    """The whole input."""
    from structsparse.corpora.columns import read_columns

    sentences = read_columns(source, comments=_comments(options), **_layout(options, model, needed))
    for text in sentences.notes:
        note(f"{sentences.source}: {text}")
    return sentences


def _layout(options: argparse.Namespace, model: Model, needed: Sequence[str]) -> dict:
    """The names of the input's columns, as the options say or as the corpus that the model was trained on had them,
    and which may be absent."""
    names = list(model.layout) if options.columns is None else _names(options.columns)
    for name in needed:
        if name not in names:
            raise UserError(f"--columns {options.columns} lacks {name}, which is needed here")
    needless = names[max(names.index(name) for name in needed) + 1 :] if needed else names[1:]
    return {"names": names, "optional": frozenset(needless)}


def _comments(options: argparse.Namespace) -> str:
    return options.comments or "auto"


def _names(columns: str) -> list[str]:
    """Every column is read, because every one is written again."""
    names = columns.replace(",", " ").split()
    return [f"column {k}" if name == "_" else name for k, name in enumerate(names, start=1)]


def _score(model: Model, sentences: Sentences, predicted) -> SpanScore | AccuracyScore:
    """Gold tags in the model's scheme; those that it does not know are wrong, and named."""
    from structsparse.corpora.tags import convert, detect_scheme
    from structsparse.tasks.tagging.scores import SpanScore
    from structsparse.training.scores import AccuracyScore

    gold = sentences.columns[model.tag_column]
    if model.scheme is not None:
        written = detect_scheme(sentences, model.tag_column)
        gold, stray = convert(sentences, model.tag_column, written, model.scheme)
        if stray:
            note(f"{sentences.source}: {stray:,} tags outside the {written} scheme were repaired")
    gold = gold.recoded(model.labels)
    for name in gold.values[len(model.labels) :]:
        note(f"{sentences.source}: label {name} is unknown to the model, every one of its tags counts as wrong")
    score = (AccuracyScore if model.scheme is None else SpanScore)(gold.values)
    score.add(gold.codes, predicted, sentences.offsets)
    return score


def _table(figures: dict) -> str:
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
