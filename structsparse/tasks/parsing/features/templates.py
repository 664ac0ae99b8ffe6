"""The template language of parsers: parsing of arc template lines such as `h.word & m.upos`, and template names.

    h.word                          the form of the head; h: head, m: modifier, h-1: the token before the head
    h.word & m.upos                 a conjunction
    between.upos                    the words between head and modifier, summarised as listed in BETWEEN
    direction                       the side of the head
    distance                        the side and the distance of the head
    length                          the distance of the head
    bias                            a feature that every arc has
    h.feats.case                    a morphological feature of the head; h.feats has all its morphological features
    {h,m}.{word,lemma} & x          braces: one template for each combination of alternatives
    h.$ & m.$ for $ in upos, xpos   one template for each value of $

The option `variants` lists what each template is conjoined with: direction, distance, or nothing (plain). The plain
variant of a template that reads only the modifier is conjoined with length. Otherwise all heads would get the same
score."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences
from structsparse.corpora.treebank import COLUMNS
from structsparse.features.attributes import MORPHOLOGY, OF_WORD, attribute, is_morphological

BETWEEN = {  # summaries of the words between head and modifier
    "upos": "which parts of speech there are",
    "verbs": "how many verbs and auxiliaries: none, one or more",
    "punctuation": "how many tokens of punctuation: none, one or more",
    "verbs_punctuation": "both of these",
    "conjunctions": "whether there is a coordinating conjunction",
}
VERBS, MARKS, LINKS = ("VERB", "AUX"), ("PUNCT",), ("CCONJ", "CONJ")  # tags: verbs, punctuation, conjunctions
ROOT, BEFORE, AFTER = "<root>", "<before>", "<after>"  # attribute values at places without a word
PLACES = ("direction", "distance", "length")  # what a template can read about the side and distance of the head
PREDICTED = "deprel"  # the column of relations, which templates must not read
VARIANTS = {"plain": None, "direction": "direction", "distance": "distance"}  # variant -> entry of PLACES

_TOKEN = re.compile(r"([hm])([+-]\d)?\.((?:feats\.)?[A-Za-z_][A-Za-z_0-9]*)")
_FOR = re.compile(r"(.*)\sfor\s+\$\s+in\s+(.+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
LEXICAL = ("word", "lemma", "lower")
ENDINGS = tuple(f"suffix{size}" for size in range(1, 5))


@dataclass(frozen=True)
class ArcTemplate:
    """An arc template: a conjunction of word attributes, a summary of words between the two ends, and a distance."""

    tokens: tuple[tuple[str, int, str], ...] = ()  # (end of the arc: h or m, offset, attribute)
    between: str | None = None  # a key of BETWEEN: how the words between head and modifier are summarised
    place: str | None = None  # direction, distance, length or none of them

    @property
    def name(self) -> str:
        """The canonical line of an arc template, such as `h.word & m+1.upos & between.verbs & distance`."""
        parts = [f"{end}{offset:+d}.{name}" if offset else f"{end}.{name}" for end, offset, name in self.tokens]
        parts += [f"between.{self.between}"] if self.between else []
        return " & ".join([*parts, *([self.place] if self.place else [])]) or "bias"

    def __str__(self) -> str:
        return self.name

    @property
    def attributes(self) -> set[str]:
        """The names of the word attributes that an arc template reads."""
        return {name for _, _, name in self.tokens}

    @property
    def morphological(self) -> bool:
        """Whether an arc template reads morphological features (the column feats of a treebank)."""
        return any(map(is_morphological, self.attributes))

    @property
    def blind(self) -> bool:
        """Whether an arc template reads only the modifier. Its feature is then the same for all heads."""
        return self.place is None and self.between is None and all(end == "m" for end, _, _ in self.tokens)

    @property
    def variant(self) -> str:
        """The variant of an arc template: plain, direction or distance."""
        return "plain" if self.place in (None, "length") else self.place

    @property
    def coarser(self) -> ArcTemplate | None:
        """The next coarser arc template; None if there is no coarser template.

        The first step that applies is taken: distance becomes direction; direction is left out; attributes that are
        words, lemmas, suffixes or morphological features become parts of speech."""
        if self.place == "distance":
            return replace(self, place="direction")
        if self.place == "direction":
            plain = replace(self, place=None)
            return replace(plain, place="length") if plain.blind else plain
        finer = (*LEXICAL, *ENDINGS)
        coarse = {name: "upos" if name in finer or is_morphological(name) else name for name in self.attributes}
        tags = {(end, offset, coarse[name]) for end, offset, name in self.tokens}
        tokens = tuple(sorted(tags))
        return None if tokens == self.tokens else replace(self, tokens=tokens)

    @property
    def kind(self) -> str:
        """The kind of an arc template in reports: head, modifier, two words, tags, between, ...

        The kind depends on which words and attributes the template reads."""
        if self.between:
            return "between"
        ends = {end for end, _, _ in self.tokens}
        if not ends:
            return "bias"
        lexical = {end for end, _, name in self.tokens if name in LEXICAL}
        if self.morphological:
            return "morphology"
        forms = self.attributes - {*LEXICAL, "upos", "xpos"}
        form = "endings" if forms & {*ENDINGS} else "shapes"
        if any(offset for _, offset, _ in self.tokens):
            if ends == {"h"} or ends == {"m"}:
                return "context of one"
            words = form if forms else ("two words", "words", "tags")[2 - len(lexical)]
            return f"context, {words}"
        if len(ends) == 1:
            return "head" if ends == {"h"} else "modifier"
        if forms:
            return form
        return {(): "tags", ("h",): "word, tag", ("m",): "tag, word", ("h", "m"): "two words"}[tuple(sorted(lexical))]


def parse(line: str) -> ArcTemplate:
    """Parse one arc template line without braces, such as `h.word & m.upos`."""
    tokens, between, place = [], None, None
    for part in (part.strip() for part in line.split("&")):
        token = _TOKEN.fullmatch(part)
        if token:
            tokens.append((token[1], int(token[2] or 0), token[3]))
        elif part.startswith("between.") and part.removeprefix("between.") in BETWEEN and between is None:
            between = part.removeprefix("between.")
        elif part in PLACES and place is None:
            place = part
        elif part != "bias" or line.strip() != "bias":
            raise UserError(
                f"template {line!r}: {part!r} is not understood; write h.word, m+1.upos, h.feats.case, "
                f"between.upos (or {', '.join(BETWEEN)}), {', '.join(PLACES)}, and & between them; or bias alone"
            )
    if len({*tokens}) < len(tokens):
        raise UserError(f"template {line!r} names the same attribute of a token twice")
    return ArcTemplate(tuple(sorted(tokens)), between, place)


def lines_of(line: str) -> list[str]:
    """Expand braces and `for $ in` in an arc template line to plain lines."""
    loop = _FOR.fullmatch(line.strip())
    if loop:
        values = [value.strip() for value in loop[2].split(",")]
        return [expanded for value in values for expanded in lines_of(loop[1].replace("$", value))]
    if "$" in line:
        raise UserError(f"template {line!r}: $ has no values; end the line with: for $ in upos, xpos")
    pieces = _BRACES.split(line)
    choices = [[p] if k % 2 == 0 else [choice.strip() for choice in p.split(",")] for k, p in enumerate(pieces)]
    return ["".join(chosen) for chosen in product(*choices)]


def expand(lines: Iterable[str], variants: Sequence[str] = ("plain",)) -> list[ArcTemplate]:
    """Parse all arc template lines in all variants, in order; a template that occurs twice is an error."""
    for variant in variants:
        if variant not in VARIANTS:
            raise UserError(f"features.variants has {variant!r}, expected some of {', '.join(VARIANTS)}")
    if not variants:
        raise UserError(f"features.variants is empty, expected some of {', '.join(VARIANTS)}")
    bases = [parse(expanded) for line in lines for expanded in lines_of(str(line))]
    if not bases:
        raise UserError("features.templates is empty; at least one template is needed, for example h.upos & m.upos")
    return _distinct([varied(base, variant) for base in bases for variant in variants])


def expand_plain(lines: Iterable[str]) -> list[ArcTemplate]:
    """Parse all arc template lines without variants, for classifiers of relations."""
    return _distinct([parse(expanded) for line in lines for expanded in lines_of(str(line))])


def _distinct(templates: list[ArcTemplate]) -> list[ArcTemplate]:
    """Return arc templates unchanged; raise an error if an arc template occurs twice."""
    seen: set[ArcTemplate] = set()
    for template in templates:
        if template in seen:
            raise UserError(f"template {template.name!r} is given twice")
        seen.add(template)
    return templates


def varied(base: ArcTemplate, variant: str) -> ArcTemplate:
    """An arc template in the given variant: plain, direction or distance."""
    place = VARIANTS[variant]
    if base.place is not None:
        if place is not None:
            raise UserError(f"template {base.name!r} has a {base.place} already; leave features.variants=[plain]")
        return base
    return ArcTemplate(base.tokens, base.between, "length" if place is None and base.blind else place)


def columns_of(template: ArcTemplate) -> set[str]:
    """The names of the treebank columns that an arc template reads."""
    columns = {
        MORPHOLOGY if is_morphological(name) else name if name in COLUMNS else "word" for name in template.attributes
    }
    return columns | {"upos"} if template.between else columns


def check_attributes(templates: Sequence[ArcTemplate]) -> None:
    """Raise an error if an arc template reads an unknown word attribute, or the relations that a parser predicts."""
    for template in templates:
        for name in sorted(template.attributes):
            if name == PREDICTED:
                raise UserError(f"template {template.name!r} looks at {name}, which a parser predicts")
            if name not in (*COLUMNS, *OF_WORD) and not is_morphological(name):
                attributes = ", ".join(
                    [*(column for column in COLUMNS if column != PREDICTED), f"{MORPHOLOGY}.case", *OF_WORD]
                )
                raise UserError(f"template {template.name!r}: a word has no {name}, it has {attributes}")


def informative(
    sentences: Sentences, templates: Sequence[ArcTemplate], constant_too: bool = False
) -> tuple[list[ArcTemplate], list[str]]:
    """The arc templates whose attributes all have two or more values in the given sentences, and notes for the user.

    With `constant_too`, all templates are kept, and a note says how many read a constant attribute.
    """
    names = sorted({name for template in templates for name in template.attributes})
    constant = [name for name in names if len(np.unique(attribute(sentences, name).codes)) < 2]
    varying = [template for template in templates if not template.attributes & {*constant}]
    count = f"{len(templates) - len(varying)} of {len(templates)}"
    if constant and constant_too:
        return list(templates), [f"{', '.join(constant)} has one value only: {count} templates repeat coarser ones"]
    if not varying:
        raise UserError(f"every template looks at {', '.join(constant)}, of which there is one value only")
    if len(varying) == len(templates):
        return varying, []
    return varying, [f"{', '.join(constant)} has one value only: {count} templates are left out"]
