"""The template language of taggers: parse template lines such as `word[0] & pos[-1]`.

    word[0]                      one template: the current word
    suffix3[0] & pos[-1]         a conjunction
    pos[-1..0]                   an n-gram: the conjunction of one attribute at consecutive offsets
    1-grams of word[-2..2]       every 1-gram inside the window: five templates
    1-3-grams of pos[-2..2]      all 1-, 2- and 3-grams inside the window: 5 + 4 + 3 templates

The name of a template is a template line that parses to the same template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from structsparse.base.errors import UserError

_NAME = r"[A-Za-z_][A-Za-z_0-9]*"
_ATOM = re.compile(rf"({_NAME})\[\s*([+-]?\d+)\s*(?:\.\.\s*([+-]?\d+)\s*)?\]")
_GRAMS = re.compile(rf"(\d+)(?:-(\d+))?-grams\s+of\s+({_NAME})\[\s*([+-]?\d+)\s*\.\.\s*([+-]?\d+)\s*\]")


@dataclass(frozen=True)
class Template:
    """A token template: a conjunction of (attribute, offset) pairs, which gives each token one feature."""

    atoms: tuple[tuple[str, int], ...]  # pairs (attribute, offset from the token)

    @property
    def name(self) -> str:
        """The name of a token template as a template line, such as `suffix3[0] & pos[-1..0]`."""
        parts, atoms = [], list(self.atoms)
        while atoms:
            attribute, first = atoms[0]
            run = 1
            while run < len(atoms) and atoms[run] == (attribute, first + run):
                run += 1
            last = first + run - 1
            parts.append(f"{attribute}[{first}]" if run == 1 else f"{attribute}[{first}..{last}]")
            atoms = atoms[run:]
        return " & ".join(parts)

    def __str__(self) -> str:
        return self.name


def is_name(name: str) -> bool:
    """Whether a token template can spell the name of an attribute, such as a column."""
    return re.fullmatch(_NAME, name) is not None


def parse(line: str) -> list[Template]:
    """Parse one token template line; a line with `-grams of` gives several templates, other lines one."""
    grams = _GRAMS.fullmatch(line.strip())
    if grams:
        return _ngrams(line, *grams.groups())
    atoms: list[tuple[str, int]] = []
    for part in line.split("&"):
        atom = _ATOM.fullmatch(part.strip())
        if not atom:
            raise UserError(
                f"template {line!r}: {part.strip()!r} is not understood; write word[0], suffix3[0] & pos[-1], "
                "pos[-1..0] or 1-3-grams of pos[-2..2]"
            )
        attribute, first, last = atom[1], int(atom[2]), int(atom[3] or atom[2])
        if last < first:
            raise UserError(f"template {line!r}: {part.strip()!r} runs backwards; the smaller offset goes first")
        atoms += [(attribute, offset) for offset in range(first, last + 1)]
    if len(set(atoms)) < len(atoms):
        raise UserError(f"template {line!r} names the same attribute and offset twice")
    return [Template(tuple(atoms))]


def _ngrams(line: str, shortest: str, longest: str | None, attribute: str, first: str, last: str) -> list[Template]:
    """The n-gram token templates of a line such as `1-3-grams of pos[-2..2]`."""
    low, high = int(shortest), int(longest or shortest)
    begin, end = int(first), int(last)
    if not 1 <= low <= high <= end - begin + 1:
        raise UserError(f"template {line!r}: no {low}- to {high}-grams fit a window of {end - begin + 1} offsets")
    return [
        Template(tuple((attribute, offset) for offset in range(start, start + size)))
        for size in range(low, high + 1)
        for start in range(begin, end - size + 2)
    ]


def expand(lines: Iterable[str]) -> list[Template]:
    """Parse all token template lines, in order; a repeated template is an error."""
    templates = [template for line in lines for template in parse(str(line))]
    if not templates:
        raise UserError("features.templates is empty; at least one template is needed, for example word[0]")
    seen: set[str] = set()
    for template in templates:
        if template.name in seen:
            raise UserError(f"template {template.name!r} is given twice")
        seen.add(template.name)
    return templates
