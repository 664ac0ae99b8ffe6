"""A tree of phrases as a drawing: its words on a line, dead branches grey and broken."""

from __future__ import annotations

from html import escape

from structsparse.tasks.textcat.explain.text import bracketed, clean

LETTER, GAP, LEVEL, MARGIN = 7.3, 14.0, 30.0, 14.0  # pixels: a letter, between words, between levels, around all


def drawing(phrase, scale: float) -> str:
    """phrase: a phrases.Phrase with children"""
    height = MARGIN + LEVEL * levels(phrase)
    marks: list[str] = []
    _, width = _draw(phrase, MARGIN, height, scale, marks)
    marks.sort(key=lambda mark: not mark.startswith("<path"))  # what is named stands before the lines
    width, height = width - GAP + MARGIN, height + LEVEL
    said = escape(f"Parse tree; brackets are around dead phrases: {bracketed(phrase)}")
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg {size} role="img" aria-label="{said}">' + "".join(marks) + "</svg>"


def levels(phrase) -> int:
    """How many edges there are at most from it to a word."""
    return 1 + max(map(levels, phrase.children)) if phrase.children else 0


def _draw(phrase, left: float, floor: float, scale: float, marks: list[str]) -> tuple[float, float]:
    """Draws what is below from `left` on; the middle of it, and where the next one begins."""
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
    said = escape(clean(" ".join(phrase.words)))
    marks.append(f'<circle class="{state}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{said}</title></circle>')
    if phrase.label:
        label = escape(clean(phrase.label))
        marks.append(f'<text class="label {state}" x="{x + 7:.1f}" y="{y - 4:.1f}">{label}</text>')
    return x, at


def _edge(x: float, y: float, to: float, below: float) -> str:
    """Falls from a node in a curve, then straight down to what is below."""
    bend = min(y + 26, below - 3.5)
    return f"M{x:.1f} {y + 3.5:.1f}C{x:.1f} {y + 16:.1f} {to:.1f} {y + 10:.1f} {to:.1f} {bend:.1f}V{below - 3.5:.1f}"


def _leaf(phrase, x: float, width: float, floor: float, scale: float) -> str:
    from structsparse.tasks.textcat.explain.page import shade

    word, state = escape(clean(phrase.words[0])), "lives" if phrase.lives else "dead"
    back = ""
    if phrase.weight:
        back = (
            f'<rect class="{shade(phrase.weight, scale)}" x="{x - width / 2 - 3:.1f}" y="{floor + 2:.1f}" '
            f'width="{width + 6:.1f}" height="20" rx="3"/>'
        )
    return f'{back}<text class="{state}" x="{x:.1f}" y="{floor + 17:.1f}">{word}</text>'
