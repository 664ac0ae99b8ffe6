"""`structsparse`: use a model that a run has left behind: a tagger, a parser, a language model or a classifier.

Everything heavy is imported after the arguments are understood, so that --help and a misspelt option answer at once.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from structsparse import __version__
from structsparse.base.errors import UserError

_PREDICT = """\
A tagger reads tokens in columns, one a line, an empty line after each sentence, and writes them with the predicted tag
as one column more, at the end. A tag column that is already there is kept. Columns at the end that the model does not
need may be absent. Sentences are tagged and written as they arrive; memory does not grow with the input.

--marginals adds a column: the probability of the predicted tag at that token, over all tag sequences.
--nbest N writes every sentence up to N times, the best tags first, each time under a line such as
#rank=1,score=12.345678,probability=0.912345 : what the model scores the sequence, and its probability. A sentence with
fewer than N tag sequences is written so many times. With --marginals the probability of each of its tags follows.

A parser reads CoNLL-U (or CoNLL-X) and writes it again with the heads of its trees, and their relations, or _ if the
model has learnt none. Heads that are already there are not looked at. Comments, multiword tokens and empty nodes stay;
what spoke of another tree (deps) becomes _. --nbest N writes the N best trees in the same way, --marginals adds
ArcProbability=P to the last column: how probable the arc of the word is, over all trees.

A language model reads text as it did in training (a sentence a line, words parted by spaces, unless it was trained
otherwise) and writes a line for every word and for the end of every sentence, </s>: the word, a tab, and the natural
logarithm of its probability after the words before it. A word outside the vocabulary is scored as <unk>, and a third
column says so. An empty line follows each sentence. It, too, writes as sentences arrive.

A classifier reads a document a line and writes a line for each: its label and, parted by tabs, CLASS=PROBABILITY for
every class (what it scores, if the model was trained under another loss than the logistic one), or a number. Given
FILEs, plain or gzipped, each is a document, and its name comes first."""

_EVALUATE = """\
A tagger: compares its tags with those in FILE: precision, recall and F1 of every type and of all, counted over whole
spans, and accuracy over tokens; where the tags are no spans, over tokens alone. Tags that FILE writes in another
scheme than the model does are converted first.

A parser: the share of the words that get the head of the treebank in FILE (uas), and its relation too (las), each
also without punctuation, which is what it was in training; the share of whole trees that are right, and of sentences
whose roots are.

A language model: the perplexity of the text in FILE, plain or gzipped, over the words in the vocabulary (and the ends
of sentences) and, as perplexity_open, over all words, where those outside count as <unk>.

A classifier: accuracy over the documents in FILE, precision, recall and F1 of every class and their mean, or the mean
squared error of numbers. FILE is a folder with a folder for each label, or a table (.csv, .tsv, .jsonl, perhaps .gz)
with a column of texts and one of labels."""

_NEXT = """\
Writes the most probable next words after a context, the last words of a text, a line each: the probability, the word,
and what each context that ends the text adds to its score, from the empty one, (any), on. The probability is exp of
their sum, divided by the same of all words. A context that begins with <s> begins its sentence."""

_SAMPLE = """\
Writes sentences drawn from the model, one a line, each word according to its probability. The same seed draws the same
sentences."""

_EXPORT = """\
Writes the living contexts of the model as text.

tsv   a line for every weight: the context, the word, what the context adds to its score, its probability there
arpa  the back-off format that other toolkits read; it gives the same probabilities, exactly"""

_PREDICT_EXAMPLE = """\
examples:
  structsparse predict runs/ner/model < sentences.txt > tagged.txt
  structsparse predict runs/ner/model --input sentences.txt --output tagged.txt --columns word,_,pos
  tail -f sentences.txt | structsparse predict runs/ner/model --marginals
  structsparse predict runs/ner/model --nbest 5 < sentences.txt
  structsparse predict runs/parsing/model < in.conllu > out.conllu
  structsparse predict runs/lm/model < text.txt > scored.txt
  structsparse predict runs/textcat/model letter.txt mails/*.txt"""

_EVALUATE_EXAMPLE = """\
examples:
  structsparse evaluate runs/ner/model test.txt
  structsparse evaluate runs/ner/model test.txt --json > scores.json
  structsparse evaluate runs/parsing/model test.conllu
  structsparse evaluate runs/lm/model text.txt.gz
  structsparse evaluate runs/textcat/model reviews.csv --text review --label stars"""

_NEXT_EXAMPLE = """\
examples:
  structsparse next runs/lm/model "of the" -n 10
  structsparse next runs/lm/model "<s>\""""

_SAMPLE_EXAMPLE = """\
examples:
  structsparse sample runs/lm/model -n 5 --seed 1
  structsparse sample runs/lm/model --start "the company" --temperature 0.7"""

_EXPORT_EXAMPLE = """\
examples:
  structsparse export runs/lm/model --format arpa --output model.arpa
  structsparse export runs/lm/model --format tsv | sort -t "$(printf '\\t')" -k 3 -g -r | head"""


_WHOSE = {  # options that are for some kinds of models alone
    **dict.fromkeys(("columns", "comments"), ("taggers",)),
    **dict.fromkeys(("nbest", "marginals"), ("taggers", "parsers")),
    **dict.fromkeys(("files", "text", "label"), ("classifiers",)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 2 for what the user can mend, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
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
        return _failed("there is too little memory for this; ask for fewer results (--nbest) or cut long sentences")
    except KeyboardInterrupt:
        _forget_output()
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="structsparse", description="Use a model that a run has left behind.")
    parser.add_argument("--version", action="version", version=f"structsparse {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    purpose = "tag or parse sentences; with a language model, score the words of a text; classify documents"
    predict = _command(commands, "predict", purpose, _PREDICT, _PREDICT_EXAMPLE)
    help = "documents, one a file (classifiers only; default: one a line of the input)"
    predict.add_argument("files", metavar="FILE", type=Path, nargs="*", help=help)
    help = "the sentences, or documents, one a line (default: standard input)"
    predict.add_argument("--input", metavar="FILE", type=Path, help=help)
    _output(predict)
    structured = predict.add_argument_group("taggers and parsers only")
    help = "the N best tag sequences, or trees, of every sentence"
    structured.add_argument("--nbest", metavar="N", type=_count, help=help)
    structured.add_argument("--marginals", action="store_true", help="add how probable each predicted tag, or arc, is")
    _columns(predict.add_argument_group("taggers only"))
    purpose = "score a model on tagged sentences, a treebank, or labelled documents; the perplexity of a text"
    evaluate = _command(commands, "evaluate", purpose, _EVALUATE, _EVALUATE_EXAMPLE)
    evaluate.add_argument("file", metavar="FILE", type=Path, help="tagged sentences, a treebank, a text, ...")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    _columns(evaluate.add_argument_group("taggers only"))
    classifiers = evaluate.add_argument_group("classifiers only")
    classifiers.add_argument("--text", metavar="NAME", help="the column of texts in a table (default: text)")
    classifiers.add_argument("--label", metavar="NAME", help="the column of labels (default: label)")
    _language_commands(commands)
    return parser


def _language_commands(commands) -> None:
    words = _command(commands, "next", "the most probable next words, and why", _NEXT, _NEXT_EXAMPLE)
    words.add_argument("context", metavar="CONTEXT", help="the words before, in quotes")
    words.add_argument("-n", dest="count", metavar="N", type=_count, default=10, help="how many (default: 10)")
    sample = _command(commands, "sample", "draw sentences from a language model", _SAMPLE, _SAMPLE_EXAMPLE)
    sample.add_argument("-n", dest="count", metavar="N", type=_count, default=1, help="how many (default: 1)")
    sample.add_argument("--seed", metavar="SEED", type=_seed, default=0, help="(default: 0)")
    sample.add_argument("--start", metavar="WORDS", default="", help="what they begin with, in quotes")
    help = "draw in proportion to probability^(1/T): below 1 the likely becomes likelier (default: 1)"
    sample.add_argument("--temperature", metavar="T", type=_positive, default=1.0, help=help)
    export = _command(commands, "export", "a language model as text", _EXPORT, _EXPORT_EXAMPLE)
    export.add_argument("--format", choices=("arpa", "tsv"), required=True)
    _output(export)


def _command(commands, name: str, purpose: str, description: str, examples: str):
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser(name, help=purpose, description=description, epilog=examples, formatter_class=raw)
    command.set_defaults(command=name)
    command.add_argument("model", metavar="MODEL", type=Path, help="folder with model.json and weights.safetensors")
    return command


def _output(command) -> None:
    help = "written whole or not at all (default: standard output)"
    command.add_argument("--output", metavar="FILE", type=Path, help=help)


def _columns(command) -> None:
    command.add_argument(
        "--columns",
        metavar="NAMES",
        help="all columns of the input in order, parted by commas, _ for one without a name "
        "(default: those of the corpus that the model was trained on)",
    )
    command.add_argument(
        "--comments",
        choices=("auto", "always", "never"),
        help="skip lines that begin with #: if their columns do not fit (auto, the default), always or never",
    )


def _run(options: argparse.Namespace) -> None:
    """By the kind of the model."""
    from structsparse.base.console import check_output
    from structsparse.tasks.tagging.artifact import load

    check_output(options)
    model = load(options.model)
    kind, what, whose = _kind(model)
    command = getattr(kind, options.command, None)
    if command is None:
        raise UserError(f"{options.model} is {what}, `structsparse {options.command}` is for language models")
    for name, kinds in sorted(_WHOSE.items()):
        if whose not in kinds and getattr(options, name, None):
            shown = "FILE" if name == "files" else f"--{name}"
            raise UserError(f"{shown} is for {' and '.join(kinds)}, {options.model} is {what}")
    command(options, model)


def _kind(model: object) -> tuple[ModuleType, str, str]:
    """The commands for a model, and what it and its kind are called."""
    from structsparse.tasks.lm.predictor import LanguageModel
    from structsparse.tasks.parsing.predictor import DependencyParser
    from structsparse.tasks.tagging.predictor import Model

    if isinstance(model, Model):
        from structsparse.tasks.tagging import command as tagging

        return tagging, "a tagger", "taggers"
    if isinstance(model, DependencyParser):
        from structsparse.tasks.parsing import command as parsing

        return parsing, "a parser", "parsers"
    if isinstance(model, LanguageModel):
        from structsparse.tasks.lm import command as language

        return language, "a language model", "language models"
    from structsparse.tasks.textcat import command as documents

    return documents, "a classifier", "classifiers"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _failed(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 2


def _forget_output() -> None:
    """What could not be written must not be tried again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
