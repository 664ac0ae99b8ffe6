"""Subcommands of `structsparse` for parsers: predict and evaluate.

Heavy modules are imported when one runs.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, BinaryIO

from structsparse.base.commands import ModelCommands, Subcommand, argument, positive_int
from structsparse.base.console import note, source, write_output
from structsparse.base.errors import UserError

if TYPE_CHECKING:
    from structsparse.corpora.treebank import Treebank
    from structsparse.tasks.parsing.predictor import DependencyParser, Trees
    from structsparse.tasks.parsing.scores import TreeScore

PROBABILITY = "ArcProbability"  # as the last column names it


def predict(options: argparse.Namespace, model: DependencyParser) -> None:
    from structsparse.corpora.conllu import TreebankStream

    stream, seen = TreebankStream(source(options), heads=False), {*()}
    with write_output(options) as output:
        for treebank in stream:
            seen |= {name for name, column in treebank.columns.items() if {*column.values} != {"_"}}
            if options.nbest is None:
                _write(output, treebank, model.parse(treebank, options.marginals))
            else:
                _write_nbest(options, model, treebank, output)
            output.flush()
    for text in stream.notes:
        note(f"{stream.name}: {text}")
    for name, count in model.columns.items():
        if name not in seen:
            note(f"{stream.name}: {name} is _ throughout, {count} of the templates of the model look at it")


def _write(output: BinaryIO, treebank: Treebank, trees: Trees) -> None:
    from structsparse.corpora.conllu import write_treebank

    remarks = None if trees.chances is None else [f"{PROBABILITY}={chance:.6f}" for chance in trees.chances.tolist()]
    write_treebank(output, treebank, trees.heads, trees.relations, remarks)


def _write_nbest(options: argparse.Namespace, model: DependencyParser, treebank: Treebank, output: BinaryIO) -> None:
    for sentence, ranked in enumerate(model.nbest(treebank, options.nbest, options.marginals)):
        alone = treebank.select([sentence])
        for rank, (trees, score, probability) in enumerate(ranked, start=1):
            output.write(f"#rank={rank},score={score:.6f},probability={probability:.6f}\n".encode())
            _write(output, alone, trees)


def evaluate(options: argparse.Namespace, model: DependencyParser) -> None:
    from structsparse.corpora.conllu import read_treebank

    if not options.file.is_file():
        raise UserError(f"{options.file}: no such file, expected one of CoNLL-U")
    treebank = read_treebank(options.file)
    for text in treebank.notes:
        note(f"{options.file}: {text}")
    model.parse(treebank.select(slice(1)))  # the first call prepares what later ones use
    begin = time.perf_counter()
    trees = model.parse(treebank)
    seconds = time.perf_counter() - begin
    figures = _score(options, model, treebank, trees).result()
    figures |= {"tokens_per_second": treebank.tokens / seconds, "punctuation": model.rule}
    print(json.dumps(figures, indent=2) if options.json else _table(figures))


def _score(options: argparse.Namespace, model: DependencyParser, treebank: Treebank, trees: Trees) -> TreeScore:
    """Relations that the model does not know are wrong, and named."""
    from structsparse.corpora.treebank import punctuation
    from structsparse.tasks.parsing.scores import TreeScore

    score, marks, known = TreeScore(), punctuation(treebank, model.rule), ()
    if trees.relations is not None:
        gold = treebank.columns["deprel"].recoded(trees.relations.values)
        for name in gold.values[len(trees.relations.values) :]:
            note(f"{options.file}: relation {name} is unknown to the model, every one of its arcs counts as wrong")
        known = gold.codes, trees.relations.codes
    score.add(treebank.heads.astype("int64"), trees.heads, treebank.offsets, marks, *known)
    return score


def _table(figures: dict) -> str:
    lines = [f"{'':<10}     all  without punctuation"]
    for name in ("uas", "las", "complete"):
        if name in figures:
            lines.append(f"{name:<10}  {figures[name]:6.4f}  {figures[f'{name}_no_punct']:6.4f}")
    size = f"{figures['sentences']:,} sentences, {figures['tokens']:,} tokens"
    speed = f"{figures['tokens_per_second']:,.0f} tokens per second"
    return "\n".join([*lines, f"{'roots':<10}  {figures['root_accuracy']:6.4f}", f"{size}, {speed}"])


PREDICT = """\
Parsers read CoNLL-U (or CoNLL-X) and write it again with the heads of the predicted trees and their relations, or _ if
the model has no relations. Heads in the input are ignored. Comments, multiword tokens and empty nodes are kept; DEPS
become _. --nbest N writes the N best trees, as for taggers. --marginals adds ArcProbability=P to the last column: the
probability of the word's predicted arc."""

EVALUATE = """\
Parsers: unlabelled and labelled attachment scores (uas, las) against the treebank, each also without punctuation as
defined in training; the share of sentences whose whole tree is right, and of those whose roots are."""

COMMANDS = ModelCommands(
    "a parser",
    "parsers",
    (
        Subcommand(
            "predict",
            predict,
            PREDICT,
            ("structsparse predict runs/parsing/model < in.conllu > out.conllu",),
            (
                argument("--nbest", metavar="N", type=positive_int, help="the N best trees of every sentence"),
                argument("--marginals", action="store_true", help="add the probability of each predicted arc"),
            ),
        ),
        Subcommand("evaluate", evaluate, EVALUATE, ("structsparse evaluate runs/parsing/model test.conllu",)),
    ),
)
