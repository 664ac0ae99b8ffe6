"""Subcommands of `structsparse` for word vectors: predict, evaluate, neighbours, analogy and export.

Modules that are slow to import are imported only when a subcommand runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from structsparse.base.commands import OUTPUT, ModelCommands, Subcommand, argument, positive_int
from structsparse.base.console import note, source, write_output

if TYPE_CHECKING:
    from structsparse.tasks.embeddings.predictor import Neighbour, VectorTable


def predict(options: argparse.Namespace, model: VectorTable) -> None:
    """Subcommand `structsparse predict` of word vectors: write the vector of each word of a text, one on a line."""
    from structsparse.corpora.byte_streams import chunks, gunzipped, name_of, whole_lines

    stream, unknown = source(options), set()
    with write_output(options) as output:
        for piece, _ in whole_lines(gunzipped(name_of(stream), chunks(stream, "words"))):
            words = piece.decode(errors="replace").split()
            for word, vector in zip(words, model.predict([words])[0], strict=True):
                unknown |= set() if vector.any() else {word}
                output.write(f"{word}\t{' '.join(f'{number:.6g}' for number in vector.tolist())}\n".encode())
            output.flush()
    if unknown:
        note(f"{len(unknown)} words have no vector or the vector zero: {', '.join(sorted(unknown)[:5])}")


def evaluate(options: argparse.Namespace, model: VectorTable) -> None:
    """Subcommand `structsparse evaluate` of word vectors: print the scores on sets of words, or differences of them."""
    from structsparse.tasks.embeddings.artifact import load_any

    if options.against is None:
        figures, table = model.evaluate(options.file), _table
    else:
        figures, table = model.compare(load_any(options.against), options.file), _differences
    print(json.dumps(figures, indent=2) if options.json else table(figures))


def _table(figures: dict) -> str:
    """Word vector subcommand `evaluate`: console lines with the score and the coverage of each set."""
    sets = figures["sets"]
    width = max(map(len, [*sets, "set"]))
    lines = [f"{'set':<{width}}  spearman  accuracy    known       of"]
    for name, of in sets.items():
        scores = (f"{of[key]:8.4f}" if key in of else " " * 8 for key in ("spearman", "accuracy"))
        lines.append(f"{name:<{width}}  {'  '.join(scores)}  {of['known']:7,}  {_total(of):7,}")
    if "similarity" in figures:
        lines.append(f"mean spearman {figures['similarity']:.4f}")
    return "\n".join(lines)


def _total(of: dict) -> int:
    """Word vector subcommand `evaluate`: the number of all items of a set, which is the last of its figures."""
    return [*of.values()][-1]


def _differences(figures: dict) -> str:
    """Word vector subcommand `evaluate --against`: console lines with the difference of two models on each set."""
    sets = figures["sets"]
    width = max(map(len, [*sets, "mean spearman"]))
    lines = [f"{'set':<{width}}    model    other  difference ± error    known       of"]
    for name, of in sets.items():
        scores = [of.get("spearman", of.get("accuracy")), of["other"]]
        shown = "  ".join(f"{score:7.4f}" for score in scores)
        lines.append(f"{name:<{width}}  {shown}  {_difference(of)}  {of['known']:7,}  {_total(of):7,}")
    if "similarity" in figures:
        lines.append(f"{'mean spearman':<{width}}  {'':7}  {'':7}  {_difference(figures['similarity'])}")
    return "\n".join(lines)


def _difference(of: dict) -> str:
    """Word vector subcommand `evaluate --against`: a difference with its standard error."""
    return f"{of['difference']:+10.4f} ± {of['error']:.4f}"


def neighbours(options: argparse.Namespace, model: VectorTable) -> None:
    """Subcommand `structsparse neighbours` of word vectors: print the words nearest to a word, with the cosines."""
    _print(model.neighbours(options.word, options.count))


def analogy(options: argparse.Namespace, model: VectorTable) -> None:
    """Subcommand `structsparse analogy` of word vectors: print the words d for which a is to b as c is to d."""
    _print(model.analogy(*options.words, options.count))


def _print(near: list[Neighbour]) -> None:
    """Word vector subcommands: print words with their cosines, one on a line."""
    for word, cosine in near:
        print(f"{cosine:.4f}\t{word}")


def export(options: argparse.Namespace, model: VectorTable) -> None:
    """Subcommand `structsparse export` of word vectors: write the vectors in a format of other programs."""
    from structsparse.tasks.embeddings.export import FORMATS

    with write_output(options) as output:
        for piece in FORMATS[options.format](model):
            output.write(piece)


PREDICT = """\
Word vectors read words separated by spaces, and write one line for each: the word, a tab, and the numbers of its
vector. A word without a vector has zeros."""

EVALUATE = """\
Word vectors: FILE has pairs of words with human scores of similarity (three columns), or questions of analogy (four
words a line below lines ": KIND"), or options of sentence completion ("1a) It was a [dark] night.", with answers in
another file), or is a folder with such files. Without FILE, known sets on this machine are used, and the sentiment of
sentences is predicted from the means of their vectors.
Printed are Spearman's correlation or the accuracy, and how many pairs or questions have vectors. --against prints
differences to other word vectors over what both know, with standard errors from a paired bootstrap."""

NEIGHBOURS = "Writes the words whose vectors have the largest cosines to that of a word, one per line with the cosine."

ANALOGY = "Writes the words D for which A is to B as C is to D, best first, with the cosine to B - A + C."

EXPORT = """\
Writes the word vectors for other programs.

word2vec     text: a line with the numbers of words and dimensions, then a line for each word
glove        the same without the first line
npz          numpy arrays `words` and `vectors`
safetensors  the tensors `vectors` and `words` (UTF-8, one word per line)"""

COUNT = argument("-n", dest="count", metavar="N", type=positive_int, default=10, help="how many words (default: 10)")
COMMANDS = ModelCommands(
    "a model of word vectors",
    "word vectors",
    (
        Subcommand("predict", predict, PREDICT, ("structsparse predict runs/embeddings/model < words.txt",)),
        Subcommand(
            "evaluate",
            evaluate,
            EVALUATE,
            (
                "structsparse evaluate runs/embeddings/model wordsim/",
                "structsparse evaluate runs/embeddings/model wordsim/ --against glove.txt",
            ),
            (
                argument(
                    "--against",
                    metavar="OTHER",
                    type=Path,
                    help="another model of word vectors, or a file: print differences with standard errors",
                ),
            ),
            own_data=True,
        ),
        Subcommand(
            "neighbours",
            neighbours,
            NEIGHBOURS,
            ("structsparse neighbours runs/embeddings/model house",),
            (argument("word", metavar="WORD", help="a word of the text"), COUNT),
            purpose="the words nearest to a word",
        ),
        Subcommand(
            "analogy",
            analogy,
            ANALOGY,
            ("structsparse analogy runs/embeddings/model man king woman",),
            (argument("words", metavar=("A", "B", "C"), nargs=3, help="words of the text"), COUNT),
            purpose="words that complete an analogy",
        ),
        Subcommand(
            "export",
            export,
            EXPORT,
            ("structsparse export runs/embeddings/model --format word2vec --output vectors.txt",),
            (
                argument(
                    "--format", choices=("word2vec", "glove", "npz", "safetensors"), required=True, help="of the output"
                ),
                OUTPUT,
            ),
            purpose="word vectors for other programs",
        ),
    ),
)
