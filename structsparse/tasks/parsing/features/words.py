"""Features of arcs in words, as one arc that has them shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from structsparse.features.attributes import attribute
from structsparse.kernels.features.arc_keys import FAR, NEAR
from structsparse.tasks.parsing.features.templates import AFTER, BEFORE, LINKS, MARKS, ROOT, VERBS, ArcTemplate

if TYPE_CHECKING:
    from structsparse.tasks.parsing.features.index import Looks

_HOW_MANY = "none", "one", "more"


class Speller:
    """What a template says of an arc, `h.upos=NOUN & between.verbs=one & distance=left 2`."""

    def __init__(self, look: Looks) -> None:
        self.look = look
        names = {name for template in look.templates for name in template.attributes}
        names |= {"upos"} if any(template.between for template in look.templates) else {*()}
        self.columns = {name: attribute(look.sentences, name) for name in names}

    def __call__(self, template: ArcTemplate, arc: int) -> str:
        sentence, head, modifier = self.look.ends(arc)
        said = []
        for (end, offset, name), part in zip(template.tokens, template.name.split(" & "), strict=False):
            place = (head if end == "h" else modifier) + offset
            said.append(f"{part}={self._value(sentence, place, name)}")
        if template.between:
            said.append(f"between.{template.between}={self._between(sentence, head, modifier, template.between)}")
        if template.place:
            said.append(f"{template.place}={_place(head, modifier, template.place)}")
        return " & ".join(said) or template.name

    def _value(self, sentence: int, place: int, name: str) -> str:
        """Of the token at a place of a sentence, whose words are counted from 1 on."""
        first, last = self.look.sentences.offsets[sentence : sentence + 2].tolist()
        if place <= 0:
            return ROOT if place == 0 else BEFORE
        if place > last - first:
            return AFTER
        column = self.columns[name]
        return column.values[column.codes[first + place - 1]]

    def _between(self, sentence: int, head: int, modifier: int, what: str) -> str:
        tags = [self._value(sentence, k, "upos") for k in range(min(head, modifier) + 1, max(head, modifier))]
        verbs, marks = (_HOW_MANY[min(2, sum(tag in sort for tag in tags))] for sort in (VERBS, MARKS))
        return {
            "upos": ",".join(sorted({*tags})) or "nothing",
            "verbs": verbs,
            "punctuation": marks,
            "verbs_punctuation": f"{verbs},{marks}",
            "conjunctions": "some" if any(tag in LINKS for tag in tags) else "none",
        }[what]


def _place(head: int, modifier: int, what: str) -> str:
    side, apart = "right" if head > modifier else "left", abs(head - modifier)
    length = str(apart) if apart <= NEAR else f"{NEAR + 1}-{FAR}" if apart <= FAR else f"{FAR + 1}+"
    return {"direction": side, "distance": f"{side} {length}", "length": length}[what]
