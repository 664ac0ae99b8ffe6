"""The subcommands of `structsparse` for language models: predict, evaluate, next, sample, export."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from structsparse.base.console import note, source, write_output
from structsparse.corpora.text import END, UNKNOWN
from structsparse.tasks.lm.export import FORMATS

if TYPE_CHECKING:
    from structsparse.corpora.text import Coded, Text
    from structsparse.tasks.lm.predictor import LanguageModel, NextWord


def predict(options: argparse.Namespace, model: LanguageModel) -> None:
    """`structsparse predict`: the log-probability of every word of a text."""
    with write_output(options) as output:
        for coded, text in model.stream(source(options)):
            output.write(_scored_lines(model, coded, text).encode())
            output.flush()


def _scored_lines(model: LanguageModel, coded: Coded, text: Text) -> str:
    """A line for every word and sentence end with its log-probability, an empty line after every sentence."""
    lines = []
    for word, value, known in model.scored_words(coded, text):
        lines.append(f"{word}\t{value:.6f}" + ("" if known else f"\t{UNKNOWN}"))
        if word == END:
            lines.append("")
    return "\n".join([*lines, ""])


def evaluate(options: argparse.Namespace, model: LanguageModel) -> None:
    """`structsparse evaluate`: the perplexity of a text file."""
    model.log_probabilities(model.encode([[]]))  # the first call fills the caches
    begin = time.perf_counter()
    figures = model.evaluate(options.file)
    figures["tokens_per_second"] = figures["tokens"] / (time.perf_counter() - begin)
    print(json.dumps(figures, indent=2) if options.json else _table(figures))


def _table(figures: dict) -> str:
    """The perplexities of a text for reading."""
    known, open_ = f"{figures['perplexity']:12,.2f}", f"{figures['perplexity_open']:12,.2f}"
    size = f"{figures['sentences']:,} sentences, {figures['tokens']:,} tokens"
    return f"""\
perplexity      {known}   over {figures["targets"]:,} words and sentence ends in the vocabulary
perplexity_open {open_}   over all, {figures["unknown"]:,} unknown words counted as {UNKNOWN}
{size}, {figures["tokens_per_second"]:,.0f} tokens per second"""


def next(options: argparse.Namespace, model: LanguageModel) -> None:
    """`structsparse next`: the most probable next words after a context, and why."""
    unknown = model.unknown_words(options.context)
    if unknown:
        note(f"{', '.join(unknown)}: unknown to the model, counted as {UNKNOWN}")
    for word in model.next_words(options.context, options.count):
        print(f"{word.probability:.6f}\t{word.word}\t{_reasons(word)}")


def _reasons(word: NextWord) -> str:
    """What each context adds to the score of a next word."""
    parts = (f"{' '.join(part.context) or '(any)'} -> {part.weight:+.2f}" for part in word.parts)
    return ", ".join(parts)


def sample(options: argparse.Namespace, model: LanguageModel) -> None:
    """`structsparse sample`: random sentences of the model."""
    for sentence in model.sample(options.count, options.seed, options.temperature, options.start):
        print(" ".join(sentence))


def export(options: argparse.Namespace, model: LanguageModel) -> None:
    """`structsparse export`: the living contexts as text."""
    with write_output(options) as output:
        for text in FORMATS[options.format](model):
            output.write(text.encode())
