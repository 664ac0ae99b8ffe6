"""An explanation (see explain) as plain text."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator

WIDTH = 100
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def clean(text: str) -> str:
    """Without what steers a terminal or turns the direction of what follows, and what no file in UTF-8 can hold."""
    kept = "".join(" " if _steers(letter) else letter for letter in text)
    return kept.encode("utf-8", "replace").decode("utf-8")


def _steers(letter: str) -> bool:
    control = unicodedata.category(letter) == "Cc" and letter not in "\n\t"
    return control or unicodedata.bidirectional(letter) in DIRECTIONS


def plain(text: str) -> str:
    """On one line."""
    return " ".join(clean(text).split())


def text(told) -> str:
    """`told`: an explain.Explanation"""
    parts = [f"{plain(told.title)}: {told.living:,} of {told.weights:,} weights are not zero"]
    for name, members in told.tops:
        parts.append(_heading(f"words for {name}") + _filled(", ".join(f"{m.word} {m.weight:.3g}" for m in members)))
    for kind in told.kinds:
        parts.append(_heading(f"groups ({kind.name}): {kind.living:,} live, {kind.dead:,} are dead") + _groups(kind))
    parts += ["\n".join(_document(told, document)) for document in told.documents]
    return "\n\n".join(parts) + "\n"


def _heading(said: str) -> str:
    said = plain(said)
    return f"{said}\n{'-' * len(said)}\n"


def _filled(said: str, indent: str = "") -> str:
    return textwrap.fill(plain(said), WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def _groups(kind) -> str:
    lines = []
    for group in kind.shown:
        mark = f"lives {group.norm:9.3g}" if group.lives else "dead           "
        words = " ".join(member.word for member in group.members)
        more = f" and {group.size - len(group.members):,} more" if group.size > len(group.members) else ""
        lines.append(plain(f"{mark}  {group.name}: {words}{more}"))
    return "\n".join(lines)


def _document(told, document) -> Iterator[str]:
    sure = "" if document.certainty is None else f" ({document.certainty:.2f})"
    yield _heading(f"{document.part} {document.name}: {document.label}, taken for {document.predicted}{sure}").rstrip()
    if document.sentences:
        yield f"selected  {told.measure:>8}  sentence"
    for sentence in document.sentences:
        said = plain("".join(piece for piece, _ in sentence.pieces))
        first = f"{'yes' if sentence.lives else 'no':<8}  {sentence.change:+8.3f}  "
        yield textwrap.fill(first + said, WIDTH, subsequent_indent=" " * len(first))
    for phrase in document.phrases:
        yield _filled(bracketed(phrase), "    ")


def bracketed(phrase) -> str:
    """(a living phrase [a dead one])"""
    if not phrase.children:
        return plain(phrase.words[0]) if phrase.lives else f"[{plain(phrase.words[0])}]"
    inner = " ".join(map(bracketed, phrase.children))
    return f"({inner})" if phrase.lives else f"[{' '.join(map(plain, phrase.words))}]"
