"""Subcommands of `structsparse` for language models: predict, evaluate, next, sample and export.

Modules that are slow to import are imported only when a subcommand runs."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from structsparse.base.commands import (
    OUTPUT,
    ModelCommands,
    Subcommand,
    argument,
    nonnegative_int,
    positive_float,
    positive_int,
)
from structsparse.base.console import note, source, write_output

if TYPE_CHECKING:
    from structsparse.corpora.text import EncodedText, ProvisionalText
    from structsparse.tasks.lm.predictor import LanguageModel, NextWord


def predict(options: argparse.Namespace, model: LanguageModel) -> None:
    """Subcommand `structsparse predict` of language models: write the log-probability of every word of a text."""
    with write_output(options) as output:
        for coded, text in model.stream(source(options)):
            output.write(_scored_lines(model, coded, text).encode())
            output.flush()


def _scored_lines(model: LanguageModel, coded: ProvisionalText, text: EncodedText) -> str:
    """Language-model subcommand `predict`: the output lines for the sentences of a text.

    Each word, and each sentence end `</s>`, has a line with its log-probability. Unknown words have a third column,
    `<unk>`. An empty line follows every sentence."""
    from structsparse.corpora.text_reading import END, UNKNOWN

    lines = []
    for word, value, known in model.scored_words(coded, text):
        lines.append(f"{word}\t{value:.6f}" + ("" if known else f"\t{UNKNOWN}"))
        if word == END:
            lines.append("")
    return "\n".join([*lines, ""])


def evaluate(options: argparse.Namespace, model: LanguageModel) -> None:
    """Subcommand `structsparse evaluate` of language models: print the perplexity of a text file."""
    model.log_probabilities(model.encode([[]]))  # compile functions and fill caches before the clock starts
    begin = time.perf_counter()
    figures = model.evaluate(options.file)
    figures["tokens_per_second"] = figures["tokens"] / (time.perf_counter() - begin)
    print(json.dumps(figures, indent=2) if options.json else _table(figures))


def _table(figures: dict) -> str:
    """Language-model subcommand `evaluate`: console lines with the perplexities of a text, its size and the speed."""
    from structsparse.corpora.text_reading import UNKNOWN

    known, open_ = f"{figures['perplexity']:12,.2f}", f"{figures['perplexity_open']:12,.2f}"
    size = f"{figures['sentences']:,} sentences, {figures['tokens']:,} tokens"
    return f"""\
perplexity      {known}   over {figures["targets"]:,} words and sentence ends in the vocabulary
perplexity_open {open_}   over all, {figures["unknown"]:,} unknown words counted as {UNKNOWN}
{size}, {figures["tokens_per_second"]:,.0f} tokens per second"""


def next(options: argparse.Namespace, model: LanguageModel) -> None:
    """Subcommand `structsparse next` of language models: print the most probable next words after a context.

    Each line has the probability, the word, and what each suffix of the context adds to the word's score."""
    from structsparse.corpora.text_reading import UNKNOWN

    unknown = model.unknown_words(options.context)
    if unknown:
        note(f"{', '.join(unknown)}: unknown to the model, counted as {UNKNOWN}")
    for word in model.next_words(options.context, options.count):
        print(f"{word.probability:.6f}\t{word.word}\t{_reasons(word)}")


def _reasons(word: NextWord) -> str:
    """Language-model subcommand `next`: a string that lists what each suffix of the context adds to a word's score."""
    parts = (f"{' '.join(part.context) or '(any)'} -> {part.weight:+.2f}" for part in word.parts)
    return ", ".join(parts)


def sample(options: argparse.Namespace, model: LanguageModel) -> None:
    """Subcommand `structsparse sample` of language models: print random sentences drawn from the model."""
    for sentence in model.sample(options.count, options.seed, options.temperature, options.start):
        print(" ".join(sentence))


def export(options: argparse.Namespace, model: LanguageModel) -> None:
    """Subcommand `structsparse export` of language models: write contexts with nonzero weights as tsv or arpa text."""
    from structsparse.tasks.lm.export import FORMATS

    with write_output(options) as output:
        for text in FORMATS[options.format](model):
            output.write(text.encode())


PREDICT = """\
Language models read text in the format of their training text (by default one sentence per line, words separated by
spaces). They write one line for every word and for the end of every sentence, </s>: the word, a tab, and the natural
logarithm of its probability given the words before it. A word outside the vocabulary is scored as <unk>, as a third
column then says. An empty line follows each sentence. Sentences are scored and written as they arrive."""

EVALUATE = """\
Language models: the perplexity of the text in FILE, plain or gzipped, over words of the vocabulary and sentence ends;
perplexity_open also counts words outside the vocabulary, as <unk>."""

NEXT = """\
Writes the most probable next words after a context, one per line: the probability, the word, and what each context
that ends the text adds to the word's score, beginning with the empty context, (any). The probability is proportional
to exp of their sum. A context that begins with <s> begins its sentence."""

SAMPLE = """\
Writes random sentences, one per line, each word drawn with its probability. The same seed gives the same sentences."""

EXPORT = """\
Writes the living contexts of the model as text.

tsv   one line per weight: the context, the word, what the context adds to its score, its probability there
arpa  the back-off format that other toolkits read; it gives exactly the same probabilities"""

TEMPERATURE = "draw in proportion to probability^(1/T); below 1, likely words become more likely (default: 1)"
COMMANDS = ModelCommands(
    "a language model",
    "language models",
    (
        Subcommand("predict", predict, PREDICT, ("structsparse predict runs/lm/model < text.txt > scored.txt",)),
        Subcommand("evaluate", evaluate, EVALUATE, ("structsparse evaluate runs/lm/model text.txt.gz",)),
        Subcommand(
            "next",
            next,
            NEXT,
            ('structsparse next runs/lm/model "of the" -n 10', 'structsparse next runs/lm/model "<s>"'),
            (
                argument("context", metavar="CONTEXT", help="the words before, in quotes"),
                argument(
                    "-n", dest="count", metavar="N", type=positive_int, default=10, help="how many words (default: 10)"
                ),
            ),
            purpose="the most probable next words of a language model, and why",
        ),
        Subcommand(
            "sample",
            sample,
            SAMPLE,
            (
                "structsparse sample runs/lm/model -n 5 --seed 1",
                'structsparse sample runs/lm/model --start "the company" --temperature 0.7',
            ),
            (
                argument("-n", dest="count", metavar="N", type=positive_int, default=1, help="how many (default: 1)"),
                argument("--seed", metavar="SEED", type=nonnegative_int, default=0, help="(default: 0)"),
                argument("--start", metavar="WORDS", default="", help="what each sentence begins with, in quotes"),
                argument("--temperature", metavar="T", type=positive_float, default=1.0, help=TEMPERATURE),
            ),
            purpose="random sentences of a language model",
        ),
        Subcommand(
            "export",
            export,
            EXPORT,
            (
                "structsparse export runs/lm/model --format arpa --output model.arpa",
                "structsparse export runs/lm/model --format tsv | sort -t \"$(printf '\\t')\" -k 3 -g -r | head",
            ),
            (argument("--format", choices=("arpa", "tsv"), required=True, help="of the output"), OUTPUT),
            purpose="a language model as text",
        ),
    ),
)
