"""Subcommands of `structsparse` for parsers: predict and evaluate.

Modules that take long to import are imported only when a subcommand runs.
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
    from structsparse.tasks.parsing.predictor import DependencyParser, ParsedWords

PROBABILITY = "ArcProbability"  # the key of an arc probability in the last column (MISC) of CoNLL-U


def predict(options: argparse.Namespace, model: DependencyParser) -> None:
    """Subcommand `predict` of parsers: write CoNLL-U with the heads and relations of the predicted trees."""
    from structsparse.corpora.conllu import TreebankStream

    stream, filled = TreebankStream(source(options), heads=False), {*()}
    with write_output(options) as output:
        for treebank in stream:
            filled |= {name for name, column in treebank.columns.items() if {*column.values} != {"_"}}
            if options.nbest is None:
                _write(output, treebank, model.parse(treebank, options.marginals))
            else:
                _write_nbest(options, model, treebank, output)
            output.flush()
    for text in stream.notes:
        note(f"{stream.name}: {text}")
    for name, count in model.columns.items():
        if name not in filled:
            note(f"{stream.name}: {name} is _ throughout, {count} templates of the model read it")


def _write(output: BinaryIO, treebank: Treebank, words: ParsedWords) -> None:
    """Subcommand `predict` of parsers: write sentences as CoNLL-U with predicted heads and relations.

    If `words` has arc probabilities, the last column (MISC) gets the probability of each predicted arc."""
    from structsparse.corpora.conllu import write_treebank

    shares = words.probabilities
    remarks = None if shares is None else [f"{PROBABILITY}={share:.6f}" for share in shares.tolist()]
    write_treebank(output, treebank, words.heads, words.relations, remarks)


def _write_nbest(options: argparse.Namespace, model: DependencyParser, treebank: Treebank, output: BinaryIO) -> None:
    """Subcommand `predict` of parsers: write each sentence once for each of the N best trees.

    A comment line before each tree gives rank, score and probability."""
    for sentence, ranked in enumerate(model.ranked(treebank, options.nbest, options.marginals)):
        selected = treebank.select([sentence])
        for rank, (words, score, probability) in enumerate(ranked, start=1):
            output.write(f"#rank={rank},score={score:.6f},probability={probability:.6f}\n".encode())
            _write(output, selected, words)


def evaluate(options: argparse.Namespace, model: DependencyParser) -> None:
    """Subcommand `evaluate` of parsers: print attachment scores (UAS, LAS) on a treebank."""
    from structsparse.corpora.conllu import read_treebank

    if not options.file.is_file():
        raise UserError(f"{options.file}: no such file, expected one of CoNLL-U")
    treebank = read_treebank(options.file)
    for text in treebank.notes:
        note(f"{options.file}: {text}")
    model.parse(treebank.select(slice(1)))  # compile functions and fill caches before time is measured
    begin = time.perf_counter()
    words = model.parse(treebank)
    seconds = time.perf_counter() - begin
    score, notes = model.score(treebank, words)
    for text in notes:
        note(text)
    figures = score.result() | {"tokens_per_second": treebank.tokens / seconds, "punctuation": model.rule}
    print(json.dumps(figures, indent=2) if options.json else _table(figures))


def _table(figures: dict) -> str:
    """Subcommand `evaluate` of parsers: a text table of attachment scores with and without punctuation, and speed."""
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
