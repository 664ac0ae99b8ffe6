"""An explanation (see explain) as a page of its own: nothing is loaded, everything can be read without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from structsparse.tasks.textcat.explain.style import SCRIPT, STYLE
from structsparse.tasks.textcat.explain.text import clean
from structsparse.tasks.textcat.explain.tree import drawing

LEVELS = 4  # shades of a weight
TREES = 6  # drawn of one document
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MINUS = "\N{MINUS SIGN}"


def page(told) -> str:
    """`told`: an explain.Explanation"""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>What it looked at: {_safe(told.title)}</title><style>{STYLE}</style></head><body>",
            *_top(told),
            "<main>",
            *_documents(told),
            *_words(told),
            *_kinds(told),
            f"</main><script>{SCRIPT}</script></body></html>",
            "",
        ]
    )


def _safe(text: str) -> str:
    return escape(clean(text))


def number(value: float, form: str) -> str:
    """With a real minus sign; what rounds to zero has none."""
    said = format(value, form)
    said = said.lstrip("+-") if not any(digit in said for digit in "123456789") else said
    return said.replace("-", MINUS)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


# --- above all


def _top(told) -> Iterator[str]:
    links = [("documents", "Documents")] if told.documents else []
    links += [("words", "Words"), *([("groups", "Groups")] if told.kinds else [])]
    yield f'<header class="top"><p class="eyebrow">{_safe(told.title)}</p><h1>What it looked at</h1>'
    living, dead = (sum(getattr(kind, key) for kind in told.kinds) for key in ("living", "dead"))
    also = f"; {living:,} of {_plural(living + dead, 'group')} of words live" if told.kinds else ""
    yield f'<p class="lead">{told.living:,} of {_plural(told.weights, "weight")} are not zero{also}.</p>'
    yield from _legend(told)
    yield '<nav aria-label="Parts of this page">'
    yield "".join(f'<a href="#{to}">{name}</a>' for to, name in links) + "</nav></header>"


def _legend(told) -> Iterator[str]:
    against, towards = told.classes if len(told.classes) == 2 else ("any other class", "the class of the document")
    yield '<p class="legend"><span class="pair">'
    yield f'{_shades("n", reversed(range(1, LEVELS + 1)))} {_safe(against)}</span><span class="pair">'
    yield f"{_shades('p', range(1, LEVELS + 1))} {_safe(towards)}</span></p>"


def _shades(side: str, levels) -> str:
    return "".join(f'<i class="w {side}{level}" aria-hidden="true">&#8195;</i>' for level in levels)


# --- documents


def _documents(told) -> Iterator[str]:
    if not told.documents:
        return
    yield '<section id="documents" aria-labelledby="documents-title"><h2 id="documents-title">Documents</h2>'
    what = "the log-probability of its class" if told.measure == "log-odds" else "its score"
    what = "what is predicted" if told.numbers else what
    yield (
        '<p class="note">Sentences with a bar at their side are <mark class="kept">selected</mark>: their group lives. '
        f"The number is how much {what} loses when the sentence is left out.</p>"
    )
    for place, document in enumerate(told.documents):
        yield from _document(told, document, place)
    yield "</section>"


def _document(told, document, place: int) -> Iterator[str]:
    kept = sum(sentence.lives for sentence in document.sentences)
    yield f'<article class="document" aria-labelledby="d{place}"><header><h3 id="d{place}">{_safe(document.name)}</h3>'
    yield f"<p>{_safe(document.part)} <b>·</b> {_safe(document.label)} <b>·</b> {_verdict(told, document)}"
    yield f" <b>·</b> {kept} of {_plural(len(document.sentences), 'sentence')} selected</p></header>"
    if document.sentences:
        yield '<table class="sentences"><thead><tr><th scope="col">sentence</th>'
        yield f'<th scope="col" class="number">{told.measure}</th></tr></thead><tbody>'
        largest = max((abs(sentence.change) for sentence in document.sentences), default=0.0) or 1.0
        yield from (_sentence(told, sentence, largest) for sentence in document.sentences)
        yield "</tbody></table>"
    trees = [phrase for phrase in document.phrases if phrase.children]
    for phrase in trees[:TREES]:
        yield f'<figure class="tree" tabindex="0">{drawing(phrase, told.scale)}</figure>'
    if trees:
        more = f" {len(trees) - TREES} further trees are not drawn." if len(trees) > TREES else ""
        yield f'<p class="note">Grey, broken branches are phrases whose weights are all zero.{more}</p>'
    yield "</article>"


def _verdict(told, document) -> str:
    sure = "" if document.certainty is None else f" ({document.certainty:.2f})"
    if told.numbers:
        return f"predicted {_safe(document.predicted)}"
    if document.right:
        return f"recognised{sure}"
    return f'<em class="wrong">taken for {_safe(document.predicted)}{sure}</em>'


def _sentence(told, sentence, largest: float) -> str:
    said = "".join(_word(piece, weight, told.scale) for piece, weight in sentence.pieces)
    said = f'<mark class="kept">{said}</mark>' if sentence.lives else f'<span class="left">{said}</span>'
    state = "selected" if sentence.lives else "not selected"
    side, share = ("for" if sentence.change >= 0 else "against"), 100 * abs(sentence.change) / largest
    bar = f'<i class="bar {side}" style="width:{share / 2:.1f}%"></i>' if share >= 0.5 else ""
    return (
        f'<tr class="{"lives" if sentence.lives else "dead"}"><td dir="auto"><span class="hidden">{state}: </span>'
        f'{said}</td><td class="number"><span>{number(sentence.change, "+.3f")}</span>'
        f'<span class="track">{bar}</span></td></tr>'
    )


def _word(text: str, weight: float, scale: float) -> str:
    if weight == 0:
        return _safe(text)
    return f'<span class="w {shade(weight, scale)}" title="{number(weight, "+.3g")}">{_safe(text)}</span>'


def shade(weight: float, scale: float) -> str:
    """The class that colours a weight."""
    level = min(LEVELS, 1 + int(LEVELS * abs(weight) / scale))
    return f"{'p' if weight > 0 else 'n'}{level}"


# --- words and groups


def _words(told) -> Iterator[str]:
    yield '<section id="words" aria-labelledby="words-title"><h2 id="words-title">Words</h2><div class="columns">'
    for place, (name, members) in enumerate(told.tops):
        side = "n" if len(told.classes) == 2 and place == 0 else "p"
        largest = max((member.weight for member in members), default=1.0)
        yield f'<div class="column"><h3>{_safe(name)}</h3>'
        yield '<ol class="tops">' if members else '<p class="note">no word speaks for it</p>'
        for member in members:
            width = 100 * member.weight / largest
            yield (
                f'<li><span dir="auto">{_safe(member.word)}</span><span class="track wide"><i class="bar {side}" '
                f'style="width:{width:.1f}%"></i></span><span class="number">{member.weight:#.3g}</span></li>'
            )
        yield "</ol></div>" if members else "</div>"
    yield "</div></section>"


def _kinds(told) -> Iterator[str]:
    if not told.kinds:
        return
    yield '<section id="groups" aria-labelledby="groups-title"><h2 id="groups-title">Groups</h2>'
    for kind in told.kinds:
        living, dead = ([group for group in kind.shown if group.lives is lives] for lives in (True, False))
        yield f'<h3 class="kind">{_safe(kind.name)}</h3>'
        yield from _groups(told, living, f"{kind.living:,} live", kind.living)
        yield from _groups(told, dead, f"{kind.dead:,} are dead", kind.dead)
    yield "</section>"


def _groups(told, groups, said: str, count: int) -> Iterator[str]:
    if not groups:
        yield f'<p class="count">{said}</p>'
        return
    lives, more = groups[0].lives, f", {len(groups)} of them here" if count > len(groups) else ""
    order = "those of the largest norms first" if lives else "those of most words first"
    note = f'<span class="note">{more}, {order}</span>'
    yield f'<details class="groups {"lives" if lives else "dead"}" open><summary>{said}{note}</summary>'
    yield '<table class="groups"><thead class="hidden"><tr>'
    yield '<th scope="col">group</th><th scope="col">norm</th><th scope="col">words</th></tr></thead><tbody>'
    largest = max(group.norm for group in groups) or 1.0
    for group in groups:
        rest = group.size - len(group.members)
        words = " ".join(_word(member.word, member.weight, told.scale) for member in group.members)
        words += f' <span class="note">and {rest:,} more</span>' if rest else ""
        bar = f'<i class="bar plain" style="width:{100 * group.norm / largest:.1f}%"></i>' if group.lives else ""
        norm = f'<span>{group.norm:#.3g}</span><span class="track">{bar}</span>' if group.lives else "0"
        yield f'<tr><th scope="row">{_safe(group.name)}</th><td class="number">{norm}</td>'
        yield f'<td dir="auto">{words}</td></tr>'
    yield "</tbody></table></details>"
