"""SVG drawings of parse trees in the explanation of a text classifier.

The words are on a line at the bottom. Branches to phrases that are not selected are grey and dashed."""

from __future__ import annotations

from html import escape

from structsparse.tasks.textcat.explain.phrases import Phrase
from structsparse.tasks.textcat.explain.style import shade
from structsparse.tasks.textcat.explain.text import bracketed, clean

LETTER, GAP, LEVEL, MARGIN = (
    7.3,
    14.0,
    30.0,
    14.0,
)  # sizes in pixels: width of a letter, gap between words, height of a level, margin of the drawing


def drawing(phrase: Phrase, scale: float) -> str:
    """The SVG drawing of a parse tree; `scale` is the absolute weight that is shown in full colour."""
    height = MARGIN + LEVEL * levels(phrase)
    marks: list[str] = []
    _, width = _draw(phrase, MARGIN, height, scale, marks)
    marks.sort(key=lambda mark: not mark.startswith("<path"))  # draw edges first, so that nodes cover them
    width, height = width - GAP + MARGIN, height + LEVEL
    label = escape(f"Parse tree with dead phrases in brackets: {bracketed(phrase)}")
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg {size} role="img" aria-label="{label}">' + "".join(marks) + "</svg>"


def levels(phrase: Phrase) -> int:
    """SVG drawing of a parse tree: the maximum number of edges from a phrase to one of its words."""
    return 1 + max(map(levels, phrase.children)) if phrase.children else 0


def _draw(phrase: Phrase, left: float, floor: float, scale: float, marks: list[str]) -> tuple[float, float]:
    """SVG drawing of a parse tree: draw a phrase by adding SVG elements to `marks`.

    Returns two x coordinates: the middle of the phrase, and the beginning of the next phrase."""
    state = "lives" if phrase.lives else "dead"
    if not phrase.children:
        width = LETTER * max(len(phrase.words[0]), 1)
        marks.append(_leaf(phrase, left + width / 2, width, floor, scale))
        return left + width / 2, left + width + GAP
    middles, at = [], left
    for child in phrase.children:
        middle, at = _draw(child, at, floor, scale, marks)
        middles.append(middle)
    x, y = (middles[0] + middles[-1]) / 2, floor - LEVEL * levels(phrase)
    for child, middle in zip(phrase.children, middles, strict=True):
        below = floor - LEVEL * levels(child)
        marks.append(f'<path class="{"lives" if child.lives else "dead"}" d="{_edge(x, y, middle, below)}"/>')
    words = escape(clean(" ".join(phrase.words)))
    marks.append(f'<circle class="{state}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{words}</title></circle>')
    if phrase.label:
        label = escape(clean(phrase.label))
        marks.append(f'<text class="label {state}" x="{x + 7:.1f}" y="{y - 4:.1f}">{label}</text>')
    return x, at


def _edge(x: float, y: float, to: float, below: float) -> str:
    """SVG drawing of a parse tree: the path of an edge, a curve down from a node, then a straight line to the child."""
    bend = min(y + 26, below - 3.5)
    return f"M{x:.1f} {y + 3.5:.1f}C{x:.1f} {y + 16:.1f} {to:.1f} {y + 10:.1f} {to:.1f} {bend:.1f}V{below - 3.5:.1f}"


def _leaf(phrase: Phrase, x: float, width: float, floor: float, scale: float) -> str:
    """SVG drawing of a parse tree: the SVG elements of a word, with a background colour for the word's weight."""
    word, state = escape(clean(phrase.words[0])), "lives" if phrase.lives else "dead"
    back = ""
    if phrase.weight:
        back = (
            f'<rect class="{shade(phrase.weight, scale)}" x="{x - width / 2 - 3:.1f}" y="{floor + 2:.1f}" '
            f'width="{width + 6:.1f}" height="20" rx="3"/>'
        )
    return f'{back}<text class="{state}" x="{x:.1f}" y="{floor + 17:.1f}">{word}</text>'
