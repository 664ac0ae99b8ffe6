"""Templates of features of arcs: a small readable language, and what each template's name means.

    h.word                          the head's form; h, m: head and modifier, h-1, m+2: tokens beside them
    h.word & m.upos                 a conjunction
    between.upos                    what stands between the two: see BETWEEN
    direction, distance, length     on which side the head is; that, and how far away; how far away on either side
    bias                            nothing at all
    {h,m}.{word,lemma} & x          braces: one template for each of their alternatives, all combinations of several
    h.$ & m.$ for $ in upos, xpos   one template for each value of the sign

`variants` of a list of lines conjoin each template with direction, distance or (plain) nothing. What looks at the
modifier alone is the same for all heads, which chooses none: its plain variant is conjoined with length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from structsparse.base.errors import UserError

BETWEEN = {  # of the tokens between head and modifier
    "upos": "which parts of speech there are",
    "verbs": "how many verbs and auxiliaries: none, one or more",
    "punctuation": "how many tokens of punctuation: none, one or more",
    "verbs_punctuation": "both of these",
    "conjunctions": "whether there is a coordinating conjunction",
}
VERBS, MARKS, LINKS = ("VERB", "AUX"), ("PUNCT",), ("CCONJ", "CONJ")  # of Universal Dependencies
ROOT, BEFORE, AFTER = "<root>", "<before>", "<after>"  # values of tokens that are no words; no value begins so
PLACES = ("direction", "distance", "length")
VARIANTS = {"plain": None, "direction": "direction", "distance": "distance"}
REACH = 9  # tokens beside head and modifier that can be looked at

_TOKEN = re.compile(r"([hm])([+-]\d)?\.([A-Za-z_][A-Za-z_0-9]*)")
_FOR = re.compile(r"(.*)\sfor\s+\$\s+in\s+(.+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
LEXICAL = ("word", "lemma", "lower")
ENDINGS = tuple(f"suffix{size}" for size in range(1, 5))


@dataclass(frozen=True)
class ArcTemplate:
    """A conjunction of attributes of tokens, of what is between, and of where the two stand to each other."""

    tokens: tuple[tuple[str, int, str], ...] = ()  # end (h or m), offset, attribute
    between: str | None = None
    place: str | None = None  # one of PLACES

    @property
    def name(self) -> str:
        parts = [f"{end}{offset:+d}.{name}" if offset else f"{end}.{name}" for end, offset, name in self.tokens]
        parts += [f"between.{self.between}"] if self.between else []
        return " & ".join([*parts, *([self.place] if self.place else [])]) or "bias"

    def __str__(self) -> str:
        return self.name

    @property
    def attributes(self) -> set[str]:
        return {name for _, _, name in self.tokens}

    @property
    def blind(self) -> bool:
        """Whether it says nothing that could tell one head from another."""
        return self.place is None and self.between is None and all(end == "m" for end, _, _ in self.tokens)

    @property
    def variant(self) -> str:
        return "plain" if self.place in (None, "length") else self.place

    @property
    def coarser(self) -> ArcTemplate | None:
        """What says less of the same: direction for distance, nothing for direction; then parts of speech for words and
        for endings."""
        if self.place == "distance":
            return replace(self, place="direction")
        if self.place == "direction":
            plain = replace(self, place=None)
            return replace(plain, place="length") if plain.blind else plain
        finer = (*LEXICAL, *ENDINGS)
        tags = {(end, offset, "upos" if name in finer else name) for end, offset, name in self.tokens}
        tokens = tuple(sorted(tags))
        return None if tokens == self.tokens else replace(self, tokens=tokens)

    @property
    def kind(self) -> str:
        """What it looks at, as tables of kinds have it."""
        if self.between:
            return "between"
        ends = {end for end, _, _ in self.tokens}
        if not ends:
            return "bias"
        lexical = {end for end, _, name in self.tokens if name in LEXICAL}
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
    """One template, as its name has it."""
    tokens, between, place = [], None, None
    for part in (part.strip() for part in line.split("&")):
        found = _TOKEN.fullmatch(part)
        if found:
            tokens.append((found[1], int(found[2] or 0), found[3]))
        elif part.startswith("between.") and part.removeprefix("between.") in BETWEEN and between is None:
            between = part.removeprefix("between.")
        elif part in PLACES and place is None:
            place = part
        elif part != "bias" or line.strip() != "bias":
            raise UserError(
                f"template {line!r}: {part!r} is not understood; write h.word, m+1.upos, between.upos (or "
                f"{', '.join(BETWEEN)}), {', '.join(PLACES)}, and & between them; or bias alone"
            )
    if len({*tokens}) < len(tokens):
        raise UserError(f"template {line!r} names the same attribute of a token twice")
    return ArcTemplate(tuple(sorted(tokens)), between, place)


def lines_of(line: str) -> list[str]:
    """The lines that a line with braces and signs stands for."""
    found = _FOR.fullmatch(line.strip())
    if found:
        values = [value.strip() for value in found[2].split(",")]
        return [one for value in values for one in lines_of(found[1].replace("$", value))]
    if "$" in line:
        raise UserError(f"template {line!r}: $ stands for nothing; end the line with: for $ in upos, xpos")
    pieces = _BRACES.split(line)
    choices = [[p] if k % 2 == 0 else [choice.strip() for choice in p.split(",")] for k, p in enumerate(pieces)]
    return ["".join(chosen) for chosen in product(*choices)]


def expand(lines: Iterable[str], variants: Sequence[str] = ("plain",)) -> list[ArcTemplate]:
    """All templates of a list of lines, in order; the same template twice is an error that names it."""
    for variant in variants:
        if variant not in VARIANTS:
            raise UserError(f"features.variants has {variant!r}, expected some of {', '.join(VARIANTS)}")
    if not variants:
        raise UserError(f"features.variants is empty, expected some of {', '.join(VARIANTS)}")
    bases = [parse(one) for line in lines for one in lines_of(str(line))]
    if not bases:
        raise UserError("features.templates is empty; at least one template is needed, for example h.upos & m.upos")
    return _distinct([varied(base, variant) for base in bases for variant in variants])


def as_written(lines: Iterable[str]) -> list[ArcTemplate]:
    """The same of templates that look at arcs which are chosen already, so that each of them may stand alone."""
    return _distinct([parse(one) for line in lines for one in lines_of(str(line))])


def _distinct(found: list[ArcTemplate]) -> list[ArcTemplate]:
    seen: set[ArcTemplate] = set()
    for template in found:
        if template in seen:
            raise UserError(f"template {template.name!r} is given twice")
        seen.add(template)
    return found


def varied(base: ArcTemplate, variant: str) -> ArcTemplate:
    place = VARIANTS[variant]
    if base.place is not None:
        if place is not None:
            raise UserError(f"template {base.name!r} has a {base.place} already; leave features.variants=[plain]")
        return base
    return ArcTemplate(base.tokens, base.between, "length" if place is None and base.blind else place)
