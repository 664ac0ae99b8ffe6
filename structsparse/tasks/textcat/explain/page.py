"""The explanation of a text classifier as an HTML page, which loads no other files and works without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from structsparse.tasks.textcat.explain.explanation import (
    ExplainedDocument,
    ExplainedSentence,
    Explanation,
    GroupSummary,
)
from structsparse.tasks.textcat.explain.style import LEVELS, SCRIPT, STYLE, shade
from structsparse.tasks.textcat.explain.text import clean
from structsparse.tasks.textcat.explain.tree import drawing

TREES = 6  # maximum number of parse trees drawn per document
# content security policy of the page: inline styles and scripts only
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MINUS = "\N{MINUS SIGN}"
# how the page names the value that a sentence changes; the keys are the values of `Explanation.measure`
MEASURED = {
    "log-probability": "the log-probability of its class",
    "score": "the score of its class",
    "number": "the predicted number",
}


def page(explanation: Explanation) -> str:
    """The HTML page of an explanation, which is the content of explanation.html."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>What the model looks at: {_safe(explanation.title)}</title><style>{STYLE}</style></head><body>",
            *_top(explanation),
            "<main>",
            *_documents(explanation),
            *_words(explanation),
            *_kinds(explanation),
            f"</main><script>{SCRIPT}</script></body></html>",
            "",
        ]
    )


def _safe(text: str) -> str:
    """HTML page of an explanation: a text with HTML characters escaped and control characters replaced."""
    return escape(clean(text))


def number(value: float, form: str) -> str:
    """HTML page of an explanation: a formatted number with a typographic minus sign; zero has no sign."""
    digits = format(value, form)
    digits = digits.lstrip("+-") if not any(digit in digits for digit in "123456789") else digits
    return digits.replace("-", MINUS)


def _plural(count: int, noun: str) -> str:
    """HTML page of an explanation: a count with its noun, in the plural if needed, such as 1 group, 2 groups."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


# --- header of the page


def _top(explanation: Explanation) -> Iterator[str]:
    """HTML page of an explanation: the header with title, counts, legend and links."""
    kinds = explanation.kinds
    links = [("documents", "Documents")] if explanation.documents else []
    links += [("words", "Words"), *([("groups", "Groups")] if kinds else [])]
    yield f'<header class="top"><p class="eyebrow">{_safe(explanation.title)}</p><h1>What the model looks at</h1>'
    living, dead = sum(kind.living for kind in kinds), sum(kind.dead for kind in kinds)
    groups = f"; {living:,} of {_plural(living + dead, 'group')} of words live" if kinds else ""
    weights = f"{explanation.living:,} of {_plural(explanation.weights, 'weight')} are nonzero{groups}."
    yield f'<p class="lead">{weights}</p>'
    yield from _legend(explanation)
    yield '<nav aria-label="Parts of this page">'
    yield "".join(f'<a href="#{to}">{name}</a>' for to, name in links) + "</nav></header>"


def _legend(explanation: Explanation) -> Iterator[str]:
    """HTML page of an explanation: the legend with the colours of weights for and against a class."""
    classes = explanation.classes
    against, towards = classes if len(classes) == 2 else ("any other class", "the class of the document")
    yield '<p class="legend"><span class="pair">'
    yield f'{_shades("n", reversed(range(1, LEVELS + 1)))} {_safe(against)}</span><span class="pair">'
    yield f"{_shades('p', range(1, LEVELS + 1))} {_safe(towards)}</span></p>"


def _shades(side: str, levels: Iterable[int]) -> str:
    """HTML page of an explanation: colour samples of the legend, for weights of one sign."""
    return "".join(f'<i class="w {side}{level}" aria-hidden="true">&#8195;</i>' for level in levels)


# --- section of the documents


def _documents(explanation: Explanation) -> Iterator[str]:
    """HTML page of an explanation: the section with the explained documents."""
    if not explanation.documents:
        return
    yield '<section id="documents" aria-labelledby="documents-title"><h2 id="documents-title">Documents</h2>'
    reason = "a word in them has a weight"
    if explanation.kinds:
        reason = f"their group lives or, in documents outside training, {reason}"
    yield (
        f'<p class="note">A bar at the side marks <mark class="selected">selected</mark> sentences: {reason}. '
        f"The number is what {MEASURED[explanation.measure]} loses without the sentence.</p>"
    )
    for place, document in enumerate(explanation.documents):
        yield from _document(explanation, document, place)
    yield "</section>"


def _document(explanation: Explanation, document: ExplainedDocument, place: int) -> Iterator[str]:
    """HTML page of an explanation: one document with label, prediction, sentences and parse trees."""
    selected = sum(sentence.lives for sentence in document.sentences)
    yield f'<article class="document" aria-labelledby="d{place}"><header><h3 id="d{place}">{_safe(document.name)}</h3>'
    yield f"<p>{_safe(document.part)} <b>·</b> {_safe(document.label)} <b>·</b> {_verdict(explanation, document)}"
    yield f" <b>·</b> {selected} of {_plural(len(document.sentences), 'sentence')} selected</p></header>"
    if document.sentences:
        yield '<table class="sentences"><thead><tr><th scope="col">sentence</th>'
        yield f'<th scope="col" class="number">{explanation.measure}</th></tr></thead><tbody>'
        largest = max((abs(sentence.change) for sentence in document.sentences), default=0.0) or 1.0
        yield from (_sentence(sentence, largest, explanation.scale) for sentence in document.sentences)
        yield "</tbody></table>"
    trees = [phrase for phrase in document.phrases if phrase.children]
    for phrase in trees[:TREES]:
        yield f'<figure class="tree" tabindex="0">{drawing(phrase, explanation.scale)}</figure>'
    if trees:
        more = f" {len(trees) - TREES} more trees are not drawn." if len(trees) > TREES else ""
        yield f'<p class="note">Dashed grey branches are dead phrases.{more}</p>'
    yield "</article>"


def _verdict(explanation: Explanation, document: ExplainedDocument) -> str:
    """HTML page of an explanation: the prediction for a document, with correctness and probability."""
    sure = "" if document.probability is None else f" ({document.probability:.2f})"
    if explanation.measure == "number":
        return f"predicted {_safe(document.predicted)}"
    if document.right:
        return f"predicted correctly{sure}"
    return f'<em class="wrong">predicted {_safe(document.predicted)}{sure}</em>'


def _sentence(sentence: ExplainedSentence, largest: float, scale: float) -> str:
    """HTML page of an explanation: a table row with a sentence of a document.

    `largest` is the maximum absolute change by any sentence of the document. Weights of size `scale` have full
    colour."""
    words = "".join(_word(piece, weight, scale) for piece, weight in sentence.pieces)
    words = f'<mark class="selected">{words}</mark>' if sentence.lives else f'<span class="unselected">{words}</span>'
    state = "selected" if sentence.lives else "not selected"
    side, share = ("for" if sentence.change >= 0 else "against"), 100 * abs(sentence.change) / largest
    bar = f'<i class="bar {side}" style="width:{share / 2:.1f}%"></i>' if share >= 0.5 else ""
    return (
        f'<tr class="{"lives" if sentence.lives else "dead"}"><td dir="auto"><span class="hidden">{state}: </span>'
        f'{words}</td><td class="number"><span>{number(sentence.change, "+.3f")}</span>'
        f'<span class="track">{bar}</span></td></tr>'
    )


def _word(text: str, weight: float, scale: float) -> str:
    """HTML page of an explanation: a word, coloured by the weight of the word."""
    if weight == 0:
        return _safe(text)
    return f'<span class="w {shade(weight, scale)}" title="{number(weight, "+.3g")}">{_safe(text)}</span>'


# --- sections of words and of word groups


def _words(explanation: Explanation) -> Iterator[str]:
    """HTML page of an explanation: the section with the words of largest weight for each class."""
    yield '<section id="words" aria-labelledby="words-title"><h2 id="words-title">Words</h2><div class="columns">'
    for place, (name, words) in enumerate(explanation.top_words):
        side = "n" if len(explanation.classes) == 2 and place == 0 else "p"
        largest = max((word.weight for word in words), default=1.0)
        yield f'<div class="column"><h3>{_safe(name)}</h3>'
        yield '<ol class="tops">' if words else '<p class="note">no word has a weight for it</p>'
        for word in words:
            width = 100 * word.weight / largest
            yield (
                f'<li><span dir="auto">{_safe(word.word)}</span><span class="track wide"><i class="bar {side}" '
                f'style="width:{width:.1f}%"></i></span><span class="number">{word.weight:#.3g}</span></li>'
            )
        yield "</ol></div>" if words else "</div>"
    yield "</div></section>"


def _kinds(explanation: Explanation) -> Iterator[str]:
    """HTML page of an explanation: the section with the word groups, one kind after the other."""
    if not explanation.kinds:
        return
    yield '<section id="groups" aria-labelledby="groups-title"><h2 id="groups-title">Groups</h2>'
    for kind in explanation.kinds:
        living, dead = ([group for group in kind.shown if group.lives is lives] for lives in (True, False))
        yield f'<h3 class="kind">{_safe(kind.name)}</h3>'
        yield from _group_rows(living, f"{kind.living:,} living", kind.living, explanation.scale)
        yield from _group_rows(dead, f"{kind.dead:,} dead", kind.dead, explanation.scale)
    yield "</section>"


def _group_rows(groups: list[GroupSummary], title: str, count: int, scale: float) -> Iterator[str]:
    """HTML page of an explanation: the table of the selected, or of the unselected, word groups of one kind.

    `groups` are the groups to show. `count` is the number of groups, including those that are not shown."""
    if not groups:
        yield f'<p class="count">{title}</p>'
        return
    lives, more = groups[0].lives, f", {len(groups)} shown" if count > len(groups) else ""
    order = "largest norms first" if lives else "largest groups first"
    note = f'<span class="note">{more}, {order}</span>'
    yield f'<details class="groups {"lives" if lives else "dead"}" open><summary>{title}{note}</summary>'
    yield '<table class="groups"><thead class="hidden"><tr>'
    yield '<th scope="col">group</th><th scope="col">norm</th><th scope="col">words</th></tr></thead><tbody>'
    largest = max(group.norm for group in groups) or 1.0
    for group in groups:
        rest = group.size - len(group.words)
        words = " ".join(_word(word.word, word.weight, scale) for word in group.words)
        words += f' <span class="note">and {rest:,} more</span>' if rest else ""
        bar = f'<i class="bar plain" style="width:{100 * group.norm / largest:.1f}%"></i>' if group.lives else ""
        norm = f'<span>{group.norm:#.3g}</span><span class="track">{bar}</span>' if group.lives else "0"
        yield f'<tr><th scope="row">{_safe(group.name)}</th><td class="number">{norm}</td>'
        yield f'<td dir="auto">{words}</td></tr>'
    yield "</tbody></table></details>"
