"""`structsparse`: predict and evaluate with a model that a run has left behind.

Everything heavy is imported after the arguments are understood, so that --help and a misspelt option answer at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from structsparse import __version__
from structsparse.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from structsparse.corpora.columns import Column, Sentences
    from structsparse.corpora.stream import ColumnStream
    from structsparse.metrics import AccuracyScore, SpanScore
    from structsparse.predictor import Model

PREDICTED, PROBABILITY = "predicted tag", "its probability"  # nobody can give these names: --columns parts at spaces

_PREDICT = """\
Reads tokens in columns, one a line, an empty line after each sentence, and writes them with the predicted tag as one
column more, at the end. A tag column that is already there is kept. Columns at the end that the model does not need
may be absent. Sentences are tagged and written as they arrive; memory does not grow with the input.

--marginals adds a column: the probability of the predicted tag at that token, over all tag sequences.
--nbest N writes every sentence up to N times, the best tags first, each time under a line such as
#rank=1,score=12.345678,probability=0.912345 : what the model scores the sequence, and its probability. A sentence with
fewer than N tag sequences is written so many times. With --marginals the probability of each of its tags follows."""

_EVALUATE = """\
Compares the model's tags with those in FILE: precision, recall and F1 of every type and of all, counted over whole
spans, and accuracy over tokens; where the tags are no spans, over tokens alone. Tags that FILE writes in another
scheme than the model does are converted first."""

_PREDICT_EXAMPLE = """\
examples:
  structsparse predict runs/ner/model < sentences.txt > tagged.txt
  structsparse predict runs/ner/model --input sentences.txt --output tagged.txt --columns word,_,pos
  tail -f sentences.txt | structsparse predict runs/ner/model --marginals
  structsparse predict runs/ner/model --nbest 5 < sentences.txt"""

_EVALUATE_EXAMPLE = """\
examples:
  structsparse evaluate runs/ner/model test.txt
  structsparse evaluate runs/ner/model test.txt --json > scores.json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 2 for what the user can mend, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except UserError as error:
        return _failed(str(error))
    except BrokenPipeError:  # who read our output has seen enough
        _forget_output()
    except OSError as error:
        _forget_output()
        return _failed(f"the output could not be written ({error.strerror})")
    except MemoryError:
        _forget_output()
        return _failed("there is too little memory for this; ask for fewer sequences (--nbest) or cut long sentences")
    except KeyboardInterrupt:
        _forget_output()
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="structsparse", description="Predict and evaluate with a trained model.")
    parser.add_argument("--version", action="version", version=f"structsparse {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    predict = _command(commands, "predict", "tag sentences", _PREDICT, _PREDICT_EXAMPLE, _predict)
    predict.add_argument("--input", metavar="FILE", type=Path, help="the sentences (default: standard input)")
    predict.add_argument(
        "--output", metavar="FILE", type=Path, help="written whole or not at all (default: standard output)"
    )
    predict.add_argument("--nbest", metavar="N", type=_count, help="the N best tag sequences of every sentence")
    predict.add_argument("--marginals", action="store_true", help="add how probable each predicted tag is")
    evaluate = _command(
        commands, "evaluate", "score a model on tagged sentences", _EVALUATE, _EVALUATE_EXAMPLE, _evaluate
    )
    evaluate.add_argument("file", metavar="FILE", type=Path, help="sentences with their right tags")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def _command(commands, name: str, purpose: str, description: str, examples: str, run: Callable):
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser(name, help=purpose, description=description, epilog=examples, formatter_class=raw)
    command.set_defaults(run=run)
    command.add_argument("model", metavar="MODEL", type=Path, help="folder with model.json and weights.safetensors")
    command.add_argument(
        "--columns",
        metavar="NAMES",
        help="all columns of the input in order, parted by commas, _ for one without a name "
        "(default: those of the corpus that the model was trained on)",
    )
    command.add_argument(
        "--comments",
        choices=("auto", "always", "never"),
        default="auto",
        help="skip lines that begin with #: if their columns do not fit (auto, the default), always or never",
    )
    return command


def _predict(options: argparse.Namespace) -> None:
    from structsparse.artifact import load
    from structsparse.corpora.stream import ColumnStream
    from structsparse.files import written_whole

    if options.output is not None and options.output.exists() and not options.output.is_file():
        raise UserError(f"{options.output}: is no regular file, expected one that can be replaced")
    model = load(options.model)
    if options.nbest is not None and model.edges is not None:
        raise UserError("--nbest: a model with features of label pairs (features.edges) tells its best sequence only")
    source = sys.stdin.buffer if options.input is None else options.input
    stream = ColumnStream(source, comments=options.comments, **_layout(options, model, model.columns))
    if options.output is None:
        _predict_stream(options, model, stream, sys.stdout.buffer)
    else:
        with written_whole(options.output) as file:
            _predict_stream(options, model, stream, file)
    for note in stream.notes:
        _note(f"{stream.place}: {note}")


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
    from structsparse.corpora.columns import lines_of

    spaced = any(" " in label for label in model.labels)
    lines, separator = lines_of(list(sentences.columns.values()), tabs or spaced)
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
    if chances is None:
        return {}
    from structsparse.corpora.columns import Column

    return {PROBABILITY: Column.from_strings([f"{chance:.6f}" for chance in chances[range(len(labels)), labels]])}


def _evaluate(options: argparse.Namespace) -> None:
    from structsparse.artifact import load

    model = load(options.model)
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


def _read(options: argparse.Namespace, model: Model, source, needed: Sequence[str]) -> Sentences:
    """The whole input."""
    from structsparse.corpora.columns import read_columns

    sentences = read_columns(source, comments=options.comments, **_layout(options, model, needed))
    for note in sentences.notes:
        _note(f"{sentences.source}: {note}")
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


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _names(columns: str) -> list[str]:
    """Every column is read, because every one is written again."""
    names = columns.replace(",", " ").split()
    return [f"column {k}" if name == "_" else name for k, name in enumerate(names, start=1)]


def _score(model: Model, sentences: Sentences, predicted) -> SpanScore | AccuracyScore:
    """Gold tags in the model's scheme; those that it does not know are wrong, and named."""
    from structsparse.corpora.tags import convert, detect_scheme
    from structsparse.metrics import AccuracyScore, SpanScore

    gold = sentences.columns[model.tag_column]
    if model.scheme is not None:
        written = detect_scheme(sentences, model.tag_column)
        gold, stray = convert(sentences, model.tag_column, written, model.scheme)
        if stray:
            _note(f"{sentences.source}: {stray:,} tags outside the {written} scheme were repaired")
    gold = gold.recoded(model.labels)
    for name in gold.values[len(model.labels) :]:
        _note(f"{sentences.source}: label {name} is unknown to the model, every one of its tags counts as wrong")
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


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _failed(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 2


def _forget_output() -> None:
    """What could not be written must not be tried again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
