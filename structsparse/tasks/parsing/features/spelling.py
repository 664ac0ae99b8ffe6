"""Spelling of arc features of a parser: readable names such as `h.upos=NOUN & distance=left 2`, from an arc."""

from __future__ import annotations

from structsparse.features.attributes import attribute
from structsparse.kernels.features.arc_keys import FAR, NEAR
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.templates import AFTER, BEFORE, LINKS, MARKS, ROOT, VERBS, ArcTemplate

_HOW_MANY = "none", "one", "more"  # how many verbs or punctuation marks are between head and modifier


class ArcSpeller:
    """Spelling of arc features: callable that gives the readable name of a template's feature on an arc.

    An example is `h.upos=NOUN & between.verbs=one & distance=left 2`."""

    def __init__(self, arcs: ArcKeys) -> None:
        self.arcs = arcs
        names = {name for template in arcs.templates for name in template.attributes}
        names |= {"upos"} if arcs.reads_between else {*()}
        self.columns = {name: attribute(arcs.sentences, name) for name in names}

    def __call__(self, template: ArcTemplate, arc: int) -> str:
        """The spelling of the feature that an arc template has on an arc."""
        sentence, head, modifier = self.arcs.ends(arc)
        parts = []
        for (end, offset, name), part in zip(template.tokens, template.name.split(" & "), strict=False):
            place = (head if end == "h" else modifier) + offset
            parts.append(f"{part}={self._value(sentence, place, name)}")
        if template.between:
            parts.append(f"between.{template.between}={self._between(sentence, head, modifier, template.between)}")
        if template.place:
            parts.append(f"{template.place}={_distance(head, modifier, template.place)}")
        return " & ".join(parts) or template.name

    def _value(self, sentence: int, place: int, name: str) -> str:
        """Spelling of arc features: the value of a word attribute at a position of a sentence.

        Words are counted from 1; position 0 is the root."""
        first, last = self.arcs.sentences.offsets[sentence : sentence + 2].tolist()
        if place <= 0:
            return ROOT if place == 0 else BEFORE
        if place > last - first:
            return AFTER
        column = self.columns[name]
        return column.values[column.codes[first + place - 1]]

    def _between(self, sentence: int, head: int, modifier: int, kind: str) -> str:
        """Spelling of arc features: the summary of the words between head and modifier; `kind` is in `BETWEEN`."""
        tags = [self._value(sentence, k, "upos") for k in range(min(head, modifier) + 1, max(head, modifier))]
        verbs, marks = (_HOW_MANY[min(2, sum(tag in tags_of_kind for tag in tags))] for tags_of_kind in (VERBS, MARKS))
        return {
            "upos": ",".join(sorted({*tags})) or "nothing",
            "verbs": verbs,
            "punctuation": marks,
            "verbs_punctuation": f"{verbs},{marks}",
            "conjunctions": "some" if any(tag in LINKS for tag in tags) else "none",
        }[kind]


def _distance(head: int, modifier: int, kind: str) -> str:
    """Spelling of arc features: the direction, distance or length of an arc, as `left`, `left 2` or `2`."""
    side, apart = "right" if head > modifier else "left", abs(head - modifier)
    length = str(apart) if apart <= NEAR else f"{NEAR + 1}-{FAR}" if apart <= FAR else f"{FAR + 1}+"
    return {"direction": side, "distance": f"{side} {length}", "length": length}[kind]
