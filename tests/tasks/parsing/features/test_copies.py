"""Copies among arc templates, against a comparison of what all templates say of all arcs in words."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from structsparse.corpora.planted.trees import planted_treebank
from structsparse.tasks.parsing.features import copies
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.copies import without_copies
from structsparse.tasks.parsing.features.spelling import ArcSpeller
from structsparse.tasks.parsing.features.templates import expand

CONF = OmegaConf.load(Path(__file__).parents[4] / "conf" / "features" / "parsing.yaml")
LINES = ["{h,m}.{word,lemma,upos,xpos}", "h.$ & m.$ for $ in word, lemma, upos, xpos", "h.lemma & h.upos & m.xpos",
         "h.lemma & m.xpos", "m.upos & between.{upos,verbs,conjunctions}", "m-1.upos & m+1.xpos"]  # fmt: skip


@pytest.fixture(scope="module")
def trees():
    return planted_treebank(seed=0, train=8, dev=1, test=1).train


def first_alike(treebank, templates):
    """For each template, the index of the first one that groups all arcs as it does, by the words of its features."""
    arcs = ArcKeys(treebank, templates)
    spell, seen, result = ArcSpeller(arcs), {}, []
    for k, template in enumerate(templates):
        number = {}
        groups = tuple(number.setdefault(spell(template, arc), len(number)) for arc in range(arcs.count))
        result.append(seen.setdefault(groups, k))
    return result


@pytest.mark.parametrize("sample", [30, 10_000])
def test_only_the_first_of_templates_that_say_the_same_stays(trees, sample, monkeypatch):
    monkeypatch.setattr(copies, "SAMPLE", sample)  # with few arcs, templates agree that differ on all arcs
    same = trees.with_column("xpos", trees.columns["upos"])
    for treebank in (trees, same):
        templates = expand(LINES, ["plain", "direction"])
        firsts = first_alike(treebank, templates)
        wanted = [template for k, template in enumerate(templates) if firsts[k] == k]
        kept, (note,) = without_copies(treebank, templates)
        assert kept == wanted
        assert note.startswith(f"{len(templates) - len(kept)} of {len(templates)} templates are copies of others")
        assert without_copies(treebank, templates, copies_too=True)[0] == templates


def test_equal_tag_columns_make_copies_of_the_templates_of_one(trees):
    templates = [t for t in expand(CONF.templates, CONF.variants) if not t.morphological]
    before, _ = without_copies(trees, templates)
    kept, _ = without_copies(trees.with_column("xpos", trees.columns["upos"]), templates)
    assert not any(t.attributes == {"xpos"} for t in kept)
    assert any(t.attributes == {"xpos"} for t in before)


def test_without_copies_there_is_no_note(trees):
    templates = expand(["h.word", "m.upos"], ["direction"])
    assert without_copies(trees, templates) == (templates, [])
