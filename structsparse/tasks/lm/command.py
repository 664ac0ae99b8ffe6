"""What the program does with a language model."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from structsparse.base.console import note, source, write_output
from structsparse.corpora.text import UNKNOWN
from structsparse.tasks.lm.export import FORMATS
from structsparse.training.scores import Perplexity

if TYPE_CHECKING:
    from structsparse.corpora.text import Coded, Text
    from structsparse.tasks.lm.predictor import LanguageModel, NextWord


def predict(options: argparse.Namespace, model: LanguageModel) -> None:
    with write_output(options) as output:
        for coded, text in model.stream(source(options)):
            output.write(_scored(model, coded, text).encode())
            output.flush()


def _scored(model: LanguageModel, coded: Coded, text: Text) -> str:
    """A line for every target, an empty one after every sentence."""
    words = ["</s>", *coded.words]
    chances = [f"{chance:.6f}" for chance in model.log_probabilities(text).tolist()]
    known = text.known[text.targets].tolist()
    lines = []
    for code, chance, is_known in zip(coded.codes.tolist(), chances, known, strict=True):
        lines.append(f"{words[code]}\t{chance}" + ("" if is_known else f"\t{UNKNOWN}"))
        if code == 0:
            lines.append("")
    return "\n".join([*lines, ""])


def evaluate(options: argparse.Namespace, model: LanguageModel) -> None:
    model.log_probabilities(model.encode([[]]))  # the first call prepares what later ones use
    begin, score, sentences = time.perf_counter(), Perplexity(), 0
    for coded, text in model.stream(options.file):
        score.add(model.log_probabilities(text), text.known[text.targets])
        sentences += len(coded.ends)
    seconds = time.perf_counter() - begin
    figures = score.result()
    tokens = figures["targets"] + figures["unknown"]
    figures |= {"sentences": sentences, "tokens": tokens, "tokens_per_second": tokens / seconds}
    print(json.dumps(figures, indent=2) if options.json else _table(figures))


def _table(figures: dict) -> str:
    known, open_ = f"{figures['perplexity']:12,.2f}", f"{figures['perplexity_open']:12,.2f}"
    size = f"{figures['sentences']:,} sentences, {figures['tokens']:,} tokens"
    return f"""\
perplexity      {known}   over {figures["targets"]:,} words and ends of sentences in the vocabulary
perplexity_open {open_}   over all, {figures["unknown"]:,} unknown words counted as {UNKNOWN}
{size}, {figures["tokens_per_second"]:,.0f} tokens per second"""


def next(options: argparse.Namespace, model: LanguageModel) -> None:
    unknown = model.unknown_words(options.context)
    if unknown:
        note(f"{', '.join(unknown)}: unknown to the model, counted as {UNKNOWN}")
    for word in model.next_words(options.context, options.count):
        print(f"{word.probability:.6f}\t{word.word}\t{_why(word)}")


def _why(word: NextWord) -> str:
    parts = (f"{' '.join(part.context) or '(any)'} -> {part.weight:+.2f}" for part in word.parts)
    return ", ".join(parts)


def sample(options: argparse.Namespace, model: LanguageModel) -> None:
    for sentence in model.sample(options.count, options.seed, options.temperature, options.start):
        print(" ".join(sentence))


def export(options: argparse.Namespace, model: LanguageModel) -> None:
    with write_output(options) as output:
        for text in FORMATS[options.format](model):
            output.write(text.encode())
