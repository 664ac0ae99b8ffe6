"""Features of arcs: the language of templates, and keys and rows against a reading of strings, arc by arc."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from structsparse.base.errors import UserError
from structsparse.corpora.planted.trees import planted_treebank
from structsparse.features import filters
from structsparse.features.attributes import attribute
from structsparse.tasks.parsing.features.arc_keys import ArcKeys, gold_arcs
from structsparse.tasks.parsing.features.filters import ArcCandidates
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.templates import ArcTemplate, expand, informative, lines_of, parse

CONF = OmegaConf.load(Path(__file__).parents[4] / "conf" / "features" / "parsing.yaml")
LISTED = expand(CONF.templates, CONF.variants)
ALL = [template for template in LISTED if not template.morphological]
ATTRIBUTES = ("word", "lemma", "suffix1", "suffix2", "upos", "xpos")
VERBS, BINS = ("VERB", "AUX"), ("1", "2", "3", "4", "5", "6-10", "11+")


@pytest.fixture(scope="module")
def trees():
    return planted_treebank(seed=0, train=12, dev=6, test=1, nonprojective=0.05)


def spelled(treebank, template):
    """What a template says of each arc, in words: by sentence, by modifier, by head."""
    columns = {name: attribute(treebank, name).strings() for name in ATTRIBUTES}
    found = []
    for begin, end in zip(treebank.offsets[:-1].tolist(), treebank.offsets[1:].tolist(), strict=True):
        size = end - begin + 1  # with the root

        def look(place, name, begin=begin, size=size):
            if place == 0:
                return "ROOT"
            return columns[name][begin + place - 1] if 0 < place < size else ("BEFORE" if place < 0 else "AFTER")

        for m in range(1, size):
            for h in (h for h in range(size) if h != m):
                at = {"h": h, "m": m}
                parts = [(e, o, n, look(at[e] + o, n)) for e, o, n in template.tokens]
                tags = [look(p, "upos") for p in range(min(h, m) + 1, max(h, m))]
                verbs, marks = (min(2, sum(tag in some for tag in tags)) for some in (VERBS, ("PUNCT",)))
                between = {
                    None: None, "upos": frozenset(tags), "verbs": verbs, "punctuation": marks,
                    "verbs_punctuation": (verbs, marks), "conjunctions": "CCONJ" in tags,
                }[template.between]  # fmt: skip
                apart = abs(h - m)
                bin = BINS[apart - 1] if apart <= 5 else BINS[5 + (apart > 10)]
                place = {None: None, "direction": h > m, "distance": (h > m, bin), "length": bin}[template.place]
                found.append((tuple(parts), between, place))
    return found


def partition(values):
    """Which places have the same value, as numbers by first appearance."""
    first = {}
    return [first.setdefault(value, len(first)) for value in values]


@pytest.mark.parametrize("k", range(0, 684, 7))
def test_keys_tell_apart_what_words_tell_apart(trees, k):
    look = ArcKeys(trees.train, ALL)
    assert partition(look.keys(k).tolist()) == partition(spelled(trees.train, ALL[k]))


def test_no_two_templates_share_a_key(trees):
    look = ArcKeys(trees.train, ALL)
    keys = [np.unique(look.keys(k)) for k in range(len(ALL))]
    assert len(np.unique(np.concatenate(keys))) == sum(map(len, keys))


@pytest.mark.parametrize("min_count", [1, 3])
def test_rows_are_those_of_a_dictionary(trees, min_count):
    templates = ALL[::23]
    index, spoken = ArcIndex.fit(trees.train, templates, min_count), []
    for k, template in enumerate(templates):
        counts = Counter(spelled(trees.train, template))
        spoken.append({feature for feature, count in counts.items() if count >= min_count})
        assert index.offsets[k + 1] - index.offsets[k] == len(spoken[k])
    for part in (trees.train, trees.dev):
        bags, said = index.bags(part), [spelled(part, template) for template in templates]
        row_of = {}
        for arc in range(len(said[0])):
            known = [(k, said[k][arc]) for k in range(len(templates)) if said[k][arc] in spoken[k]]
            rows = bags.ids[bags.offsets[arc] : bags.offsets[arc + 1]].tolist()
            assert len(rows) == len(known)
            for (k, feature), row in zip(known, rows, strict=True):
                assert index.offsets[k] <= row < index.offsets[k + 1]
                assert row_of.setdefault((k, feature), row) == row
        assert len({*row_of.values()}) == len(row_of)


@pytest.mark.parametrize("min_count", [1, 3])
def test_features_that_share_the_first_bits_of_their_keys_share_a_row_within_their_template(trees, min_count):
    templates, bits = ALL[::23], 4
    index, look = ArcIndex.fit(trees.train, templates, min_count, bits), ArcKeys(trees.dev, templates)
    first = [ArcKeys(trees.train, templates).keys(k) >> np.uint64(64 - bits) for k in range(len(templates))]
    own = [{key for key, count in Counter(keys.tolist()).items() if count >= min_count} for keys in first]
    assert np.diff(index.offsets).tolist() == list(map(len, own))
    assert max(np.diff(index.offsets)) == 2**bits
    bags, row_of = index.bags(trees.dev), {}
    for arc in range(look.count):
        keys = [(k, int(look.keys(k)[arc] >> np.uint64(64 - bits))) for k in range(len(templates))]
        rows = bags.ids[bags.offsets[arc] : bags.offsets[arc + 1]].tolist()
        known = [(k, key) for k, key in keys if key in own[k]]
        assert len(rows) == len(known)
        for (k, key), row in zip(known, rows, strict=True):
            assert index.offsets[k] <= row < index.offsets[k + 1]
            assert row_of.setdefault((k, key), row) == row
    assert len({*row_of.values()}) == len(row_of)


def test_a_part_of_the_templates_has_the_same_keys(trees):
    whole, part = ArcKeys(trees.dev, ALL), ArcKeys(trees.dev, ALL[5::50])
    for k, template in enumerate(part.templates):
        assert np.array_equal(part.keys(k), whole.keys(ALL.index(template)))


def test_living_rows_are_found_as_before(trees):
    index = ArcIndex.fit(trees.train, ALL[::40])
    alive = np.random.default_rng(0).random(len(index)) < 0.3
    smaller, new_row = index.keep(alive)
    expected, found = index.bags(trees.dev).renumber(new_row), smaller.bags(trees.dev)
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.offsets, expected.offsets)


def test_gold_arcs(trees):
    treebank, gold = trees.train, gold_arcs(trees.train)
    place = 0
    for begin, end in zip(treebank.offsets[:-1].tolist(), treebank.offsets[1:].tolist(), strict=True):
        for m in range(1, end - begin + 1):
            for h in range(end - begin + 1):
                if h != m:
                    assert gold[place] == (treebank.heads[begin + m - 1] == h)
                    place += 1
    assert place == len(gold)
    assert gold.sum() == treebank.tokens


def test_gain_of_arcs_is_that_of_the_words(trees):
    templates, gold = ALL[::60], gold_arcs(trees.train).tolist()
    found = filters.gains(ArcCandidates(trees.train, templates))
    for template, gain in zip(templates, found.tolist(), strict=True):
        said = spelled(trees.train, template)
        both, one, other = Counter(zip(said, gold, strict=True)), Counter(said), Counter(gold)
        total = len(gold)
        wanted = sum(n / total * np.log2(n * total / (one[a] * other[b])) for (a, b), n in both.items())
        assert gain == pytest.approx(wanted, abs=1e-9)
    kept, (note,) = filters.by_gain(ArcCandidates(trees.train, ALL), 5, True, 0)
    assert len(kept) == 5
    assert "5 of 684" in note


# --- the language


def test_the_grammar_has_as_many_templates_as_the_paper():
    assert len(ALL) == 684
    assert Counter(template.variant for template in ALL) == {"plain": 228, "direction": 228, "distance": 228}
    assert not any(template.blind for template in ALL)


def test_templates_of_morphology_are_few():
    assert 0 < len(LISTED) - len(ALL) <= 60


@pytest.mark.parametrize("template", [*ALL[::11], *LISTED[len(ALL) :: 5]], ids=str)
def test_names_are_templates(template):
    assert parse(template.name) == template
    assert template.kind


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("h.word & m.upos", "word, tag"), ("h.suffix2 & m.lemma", "endings"), ("h.shape & m.lemma", "shapes"),
        ("h.lemma & m.suffix1 & m+1.upos", "context, endings"), ("h.word & m.shape & h-1.upos", "context, shapes"),
        ("h.word & m.lemma & h-1.upos", "context, two words"), ("m.upos & m-1.upos", "context of one"),
        ("h.suffix1 & between.upos", "between"), ("bias", "bias"), ("m.suffix2 & length", "modifier"),
        ("h.feats.case & m.upos", "morphology"), ("m.feats & between.upos", "between"),
    ],
)  # fmt: skip
def test_kinds_of_templates(line, kind):
    assert parse(line).kind == kind


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("h.word", ["h.word"]),
        ("{h,m}.{word,upos}", ["h.word", "h.upos", "m.word", "m.upos"]),
        ("h.$ & m.$ for $ in upos, xpos", ["h.upos & m.upos", "h.xpos & m.xpos"]),
        ("{h-1.$ & h+1.$, m.$} & h.$ for $ in upos", ["h-1.upos & h+1.upos & h.upos", "m.upos & h.upos"]),
    ],
)
def test_lines_stand_for_many(line, expected):
    assert lines_of(line) == expected


@pytest.mark.parametrize(
    "line",
    ["", "head.word", "h.word &", "h.word & h.word", "between.words", "h.upos & direction & length", "h.$",
     "h.word & bias", "m.upos for $ in"],
)  # fmt: skip
def test_what_is_not_understood_is_named(line):
    with pytest.raises(UserError, match="template"):
        expand([line])


def test_faults_of_a_list_are_named():
    for lines, variants, words in (
        (["h.word", "{h,m}.word"], ["plain"], "twice"), (["h.word"], ["far"], "far"), ([], ["plain"], "empty"),
        (["h.word"], [], "variants is empty"), (["h.word & length"], ["direction"], "length already"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            expand(lines, variants)


def test_what_sees_the_modifier_alone_is_told_how_far_the_head_is():
    assert expand(["m.word", "bias", "h.word"], ["plain"]) == [
        ArcTemplate((("m", 0, "word"),), None, "length"), ArcTemplate((), None, "length"),
        ArcTemplate((("h", 0, "word"),)),
    ]  # fmt: skip


def test_a_column_with_one_value_says_nothing(trees):
    columns = dict(trees.train.columns)
    columns["lemma"] = type(columns["lemma"])(["_"], np.zeros(trees.train.tokens, np.int32))
    treebank = type(trees.train)(**{**vars(trees.train), "columns": columns})
    kept, (note,) = informative(treebank, ALL)
    assert not any("lemma" in template.attributes for template in kept)
    assert "lemma has one value only" in note
    whole, (note,) = informative(treebank, ALL, constant_too=True)
    assert whole == ALL
    assert f"{len(ALL) - len(kept)} of {len(ALL)} templates repeat coarser ones" in note
    assert informative(trees.train, ALL) == informative(trees.train, ALL, constant_too=True) == (ALL, [])
