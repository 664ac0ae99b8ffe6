"""The explanation of a text classifier as plain text."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator

from structsparse.tasks.textcat.explain.explanation import ExplainedDocument, Explanation, GroupKind
from structsparse.tasks.textcat.explain.phrases import Phrase

WIDTH = 100  # maximum number of characters in a line
# Unicode classes of the characters that change the writing direction
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def clean(text: str) -> str:
    """Plain text of an explanation: replace characters that cannot be shown.

    Control characters and marks of writing direction become spaces. Characters that UTF-8 cannot encode become question
    marks."""
    visible = "".join(" " if _is_control(letter) else letter for letter in text)
    return visible.encode("utf-8", "replace").decode("utf-8")


def _is_control(letter: str) -> bool:
    """Plain text of an explanation: whether a character is a control character or changes the writing direction."""
    control = unicodedata.category(letter) == "Cc" and letter not in "\n\t"
    return control or unicodedata.bidirectional(letter) in DIRECTIONS


def one_line(text: str) -> str:
    """Plain text of an explanation: clean a text, and put it on one line."""
    return " ".join(clean(text).split())


def text(explanation: Explanation) -> str:
    """The plain text of an explanation, which is the content of explanation.txt."""
    title = one_line(explanation.title)
    parts = [f"{title}: {explanation.living:,} of {explanation.weights:,} weights are nonzero"]
    for name, words in explanation.top_words:
        listed = ", ".join(f"{word.word} {word.weight:.3g}" for word in words)
        parts.append(_heading(f"words for {name}") + _filled(listed))
    for kind in explanation.kinds:
        heading = _heading(f"groups ({kind.name}): {kind.living:,} living, {kind.dead:,} dead")
        parts.append(heading + _group_lines(kind))
    parts += ["\n".join(_document_lines(document)) for document in explanation.documents]
    return "\n\n".join(parts) + "\n"


def _heading(title: str) -> str:
    """Plain text of an explanation: a heading, underlined with hyphens."""
    title = one_line(title)
    return f"{title}\n{'-' * len(title)}\n"


def _filled(content: str, indent: str = "") -> str:
    """Plain text of an explanation: a text wrapped into lines of at most WIDTH characters."""
    return textwrap.fill(
        one_line(content), WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )


def _group_lines(kind: GroupKind) -> str:
    """Plain text of an explanation: a line for each word group of a kind, with norm, name and words."""
    lines = []
    for group in kind.shown:
        mark = f"lives {group.norm:9.3g}" if group.lives else "dead           "
        words = " ".join(word.word for word in group.words)
        more = f" and {group.size - len(group.words):,} more" if group.size > len(group.words) else ""
        lines.append(one_line(f"{mark}  {group.name}: {words}{more}"))
    return "\n".join(lines)


def _document_lines(document: ExplainedDocument) -> Iterator[str]:
    """Plain text of an explanation: the lines about a document, with heading, sentences and parse trees."""
    sure = "" if document.probability is None else f" ({document.probability:.2f})"
    title = f"{document.part} {document.name}: {document.label}, predicted {document.predicted}{sure}"
    yield _heading(title).rstrip()
    if document.sentences:
        yield "selected    change  sentence"
    for sentence in document.sentences:
        first = f"{'yes' if sentence.lives else 'no':<8}  {sentence.change:+8.3f}  "
        yield textwrap.fill(first + one_line(sentence.text), WIDTH, subsequent_indent=" " * len(first))
    for phrase in document.phrases:
        yield _filled(bracketed(phrase), "    ")


def bracketed(phrase: Phrase) -> str:
    """Plain text of an explanation: a parse tree in brackets.

    Selected phrases are in (parentheses), other phrases in [brackets]."""
    if not phrase.children:
        return one_line(phrase.words[0]) if phrase.lives else f"[{one_line(phrase.words[0])}]"
    inner = " ".join(map(bracketed, phrase.children))
    return f"({inner})" if phrase.lives else f"[{' '.join(map(one_line, phrase.words))}]"
