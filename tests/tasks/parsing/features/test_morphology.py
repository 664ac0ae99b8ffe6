"""Morphological features (the column FEATS of CoNLL-U) as attributes of arc templates."""

import io
import json
import re

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.conllu import read_treebank
from structsparse.corpora.known.treebanks import assembled
from structsparse.features.attributes import attribute
from structsparse.features.filters import all_of
from structsparse.tasks.parsing.artifact import load, save
from structsparse.tasks.parsing.data import prepare
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.spelling import ArcSpeller
from structsparse.tasks.parsing.features.templates import columns_of, expand
from structsparse.tasks.parsing.model import ArcScorer, Parser
from structsparse.tasks.parsing.predictor import DependencyParser
from structsparse.weights.batch import Sizes
from tests.support.conllu import row

FEATS = ["Case=Nom|Number=Sing", "Case=Acc|Number[psor]=Plur", "_", "Number=Plur", "case=gen", "s|acc"]
OPTIONS = {
    "templates": ["h.upos & m.upos", "h.feats.{case,number} & m.upos", "m.feats.number_psor"],
    "variants": ["direction"],
    "label_templates": ["m.upos", "m.feats.case"],
    "min_count": 1,
}


def treebank(feats=FEATS, relations=("a", "b")):
    lines = [
        row(k, f"w{k}", upos="NV"[k % 2], feats=value, head=k - 1, deprel=relations[k % len(relations)])
        for k, value in enumerate(feats, 1)
    ]
    return read_treebank(io.BytesIO("\n".join([*lines, "", ""]).encode()))


def data(feats=FEATS, **features):
    trees = treebank(feats)
    splits = assembled("trees", dict.fromkeys(("train", "dev", "test"), trees), "upos")
    return prepare(splits, OPTIONS | features, all_of, 0, projective=False, single_root=False, labels=True)


def value_of(feats, name):
    """A feature by a regular expression, case ignored; number_psor is written number[psor]."""
    written = re.escape(re.sub(r"_(\w+)$", r"[\1]", name))
    match = re.search(rf"(?:^|\|){written}=([^|]+)", feats, re.IGNORECASE)
    return match[1] if match else ""


@pytest.mark.parametrize("name", ["case", "number", "number_psor", "gender"])
def test_a_feature_of_the_column_is_an_attribute(name):
    column = attribute(treebank(), f"feats.{name}")
    assert column.strings() == [value_of(feats, name) for feats in FEATS]


def test_the_value_of_each_feature_by_hand():
    assert attribute(treebank(), "feats.case").strings() == ["Nom", "Acc", "", "", "gen", ""]
    assert attribute(treebank(), "feats.number_psor").strings() == ["", "Plur", "", "", "", ""]


def test_arcs_are_told_apart_by_case():
    trees, templates = treebank(), expand(["h.feats.case & m.feats.number"])
    arcs = ArcKeys(trees, templates)
    names = [ArcSpeller(arcs)(templates[0], arc) for arc in range(arcs.count)]
    keys = arcs.keys(0)
    assert all((keys[a] == keys[b]) == (names[a] == names[b]) for a in range(36) for b in range(36))
    assert "h.feats.case=Acc & m.feats.number=Plur" in names
    assert columns_of(templates[0]) == {"feats"}
    assert templates[0].coarser.name == "h.upos & m.upos"


def test_templates_of_morphology_need_morphology():
    whole, without = data(), data(["_"] * 6)
    assert [t.name for t in whole.templates] == [
        "h.upos & m.upos & direction", "h.feats.case & m.upos & direction", "h.feats.number & m.upos & direction",
        "m.feats.number_psor & direction",
    ]  # fmt: skip
    assert [t.name for t in without.templates] == ["h.upos & m.upos & direction"]
    assert [t.name for t in without.label_templates] == ["m.upos"]


def test_morphology_can_be_left_out():
    trees = treebank()
    splits = assembled("trees", dict.fromkeys(("train", "dev", "test"), trees), "upos")
    how = {"projective": False, "single_root": False, "labels": True}
    made = prepare(splits, OPTIONS | {"feats": False}, all_of, 0, **how)
    assert [t.name for t in made.templates] == ["h.upos & m.upos & direction"]
    with pytest.raises(UserError, match="every template reads feats, which is left out"):
        prepare(splits, OPTIONS | {"feats": False, "templates": ["h.feats"]}, all_of, 0, **how)
    with pytest.raises(UserError, match=r"features\.feats is 'no', expected true or false"):
        prepare(splits, OPTIONS | {"feats": "no"}, all_of, 0, **how)
    with pytest.raises(UserError, match=r"a word has no feats\.Case"):
        prepare(splits, OPTIONS | {"templates": ["h.feats.Case"]}, all_of, 0, **how)


def test_an_artifact_reads_morphology_from_its_input(tmp_path):
    templates = expand(["h.feats.case & m.feats.number", "h.upos & m.upos & direction"])
    index = ArcIndex.fit(treebank(), templates)
    parser = Parser(ArcScorer(Sizes(len(index), 1, 0, ())), False, False)
    with torch.no_grad():
        parser.scorer.table.copy_(torch.randn(len(index), 1, generator=torch.Generator().manual_seed(0)))
    save(tmp_path / "model", DependencyParser(index, parser, None, "upos"))
    model = load(tmp_path / "model", json.loads((tmp_path / "model" / "model.json").read_text()))
    assert model.columns == {"upos": 1, "feats": 1}

    def best(feats):
        """The heads of the best tree of treebank(feats), from scores of features spelled in words."""
        known = dict(
            zip(index.describe(range(len(index)), treebank()), parser.scorer.table[:, 0].tolist(), strict=True)
        )
        trees = treebank(feats)
        arcs = ArcKeys(trees, templates)
        spell, scores = ArcSpeller(arcs), torch.full((1, 7, 7), -torch.inf)
        for arc in range(arcs.count):
            _, head, modifier = arcs.ends(arc)
            scores[0, modifier, head] = sum(known.get(spell(template, arc), 0.0) for template in templates)
        return parser.structure.best(scores, torch.tensor([6]))[0].tolist()

    for feats in (FEATS, ["_"] * 6, FEATS[::-1]):
        file = tmp_path / "input.conllu"
        file.write_text(treebank(feats).blocks[0] + "\n\n")
        assert model.predict(file)[0].heads == best(feats)
    assert model.predict(treebank(FEATS)) != model.predict(treebank(["_"] * 6))
