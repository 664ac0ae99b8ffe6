"""Groups of a parser's table: the order of arc templates, coarse before fine."""

from structsparse.groups.orders import coarse_to_fine
from structsparse.tasks.parsing.features.groups import arc_order
from structsparse.tasks.parsing.features.templates import expand


def test_the_order_of_arc_templates_has_few_levels():
    lines = ["h.upos & m.upos", "h.word & m.upos", "m.lemma", "bias"]
    names = [t.name for t in expand(lines, ["plain", "direction", "distance"])]
    order = dict(arc_order(names))
    assert order == {
        "h.upos & m.upos & direction": "h.upos & m.upos",
        "h.upos & m.upos & distance": "h.upos & m.upos & direction",
        "h.word & m.upos": "h.upos & m.upos",
        "h.word & m.upos & direction": "h.word & m.upos",
        "h.word & m.upos & distance": "h.word & m.upos & direction",
        "m.lemma & direction": "m.lemma & length",
        "m.lemma & distance": "m.lemma & direction",
        "direction": "length",
        "distance": "direction",
    }
    cover = coarse_to_fine((len(names), 1), names, range(len(names) + 1), order.items(), "one")
    assert cover.nested
    assert int(cover.colours().max()) == 3


def test_templates_that_are_missing_are_skipped():
    assert arc_order(["h.word & m.upos & distance", "h.upos & m.upos", "h.suffix2 & m.suffix2"]) == [
        ("h.word & m.upos & distance", "h.upos & m.upos"),
        ("h.suffix2 & m.suffix2", "h.upos & m.upos"),
    ]
