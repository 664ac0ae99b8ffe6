"""Filters of templates, and the sets of templates that the paper names."""

import math
from collections import Counter

import numpy as np
import pytest
from omegaconf import OmegaConf

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.known.tagging import planted
from structsparse.corpora.splits import SentenceSplits
from structsparse.features.filters import at_random, by_gain, gains
from structsparse.features.information import mutual_information
from structsparse.tasks.tagging.data import prepare
from structsparse.tasks.tagging.features.filters import TokenCandidates
from structsparse.tasks.tagging.features.templates import expand
from tests.support.runs import ROOT


def templates_of(name: str):
    base, chosen = (OmegaConf.load(ROOT / "conf" / "features" / f"{file}.yaml") for file in ("_templates", name))
    return expand(OmegaConf.merge(base, chosen).templates)


def kinds(templates) -> Counter:
    """How many templates there are of each attribute and n-gram size; none mixes attributes or leaves a gap."""
    for template in templates:
        offsets = [offset for _, offset in template.atoms]
        assert len({name for name, _ in template.atoms}) == 1
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    return Counter((template.atoms[0][0], len(template.atoms)) for template in templates)


def reach(templates, attribute: str) -> tuple[int, int]:
    offsets = [offset for template in templates for name, offset in template.atoms if name == attribute]
    return min(offsets), max(offsets)


def toy(words: str, tags: str) -> Sentences:
    """A sentence for each word of letters, a letter a token."""
    lengths = [len(word) for word in words.split()]
    columns = {name: Column.from_strings("".join(text.split())) for name, text in (("word", words), ("tag", tags))}
    return Sentences(columns, np.r_[0, np.cumsum(lengths)], "toy")


# --- the sets of templates


def test_the_96_templates_for_chunking():
    templates = templates_of("martins_chunking")
    expected = {("pos", n): 12 - n for n in range(1, 6)} | {("word", n): 12 - n for n in range(1, 4)}
    assert kinds(templates) == expected | {("shape", n): 12 - n for n in (1, 2)}
    assert len(templates) == 96
    assert {reach(templates, name) for name in ("pos", "word", "shape")} == {(-5, 5)}


def test_the_452_templates_for_entities():
    chunking, entities = templates_of("martins_chunking"), templates_of("martins_entities")
    assert [t.name for t in entities[:96]] == [t.name for t in chunking]
    found = kinds(entities[96:])
    assert found.pop(("shape", 3)) == 5
    for kind in ("prefix", "suffix"):
        for size in (1, 2, 3):
            assert [found.pop((f"{kind}{size}", n)) for n in (1, 2, 3)] == [13, 12, 11]
    for indicator in ("case", "punctuation", "digit"):
        assert [found.pop((indicator, n)) for n in (1, 2, 3, 4, 5)] == [11, 10, 9, 8, 7]
    assert not found
    assert len(entities) == len({t.name for t in entities}) == 452


# --- information gain


def by_enumeration(a, b) -> float:
    n, pairs, left, right = len(a), Counter(zip(a, b, strict=True)), Counter(a), Counter(b)
    return sum(c / n * math.log2(c * n / (left[x] * right[y])) for (x, y), c in pairs.items())


def test_mutual_information_is_the_sum_over_pairs():
    draw = np.random.default_rng(0)
    for _ in range(20):
        a, b = draw.integers(0, 7, 60), draw.integers(0, 4, 60)
        assert mutual_information(a, b) == pytest.approx(by_enumeration(a.tolist(), b.tolist()), abs=1e-12)
    assert mutual_information(a, a) == pytest.approx(by_enumeration(a.tolist(), a.tolist()))
    assert mutual_information(np.zeros(60, int), b) == 0


def test_gains_are_those_of_the_spelled_features():
    """Beyond the sentence every distance is a value of its own."""
    words, tags = "abcab ba cbba a", "XYYXY YX XYYX X"
    sentences, templates = toy(words, tags), expand(["word[0]", "word[-1]", "word[0..1]"])
    spelled = {template.name: [] for template in templates}
    for word in words.split():
        padded = f"<{word}>"
        for k in range(1, len(word) + 1):
            spelled["word[0]"].append(padded[k])
            spelled["word[-1]"].append(padded[k - 1])
            spelled["word[0..1]"].append(padded[k : k + 2])
    labels = list("".join(tags.split()))
    wanted = [by_enumeration(spelled[template.name], labels) for template in templates]
    np.testing.assert_allclose(gains(TokenCandidates(sentences, "tag", templates)), wanted, atol=1e-12)


def test_many_templates_gain_what_each_does_alone():
    sentences = planted(0, 30, 2, 2).train
    templates = templates_of("martins_chunking")
    together = gains(TokenCandidates(sentences, "tag", templates))
    for k in (0, 31, 32, 33, 64, 95):
        alone = gains(TokenCandidates(sentences, "tag", [templates[k]]))
        np.testing.assert_allclose(together[[k]], alone)


def test_the_gain_finds_what_says_the_label_and_falls_for_rare_features_unless_chance_is_taken_off():
    draw = np.random.default_rng(1)
    label = draw.integers(0, 3, 600)
    noisy = np.where(draw.random(600) < 0.7, label, draw.integers(0, 3, 600))
    columns = {
        "tag": Column.from_strings(map(str, label)),
        "says": Column.from_strings(map(str, noisy)),
        "noise": Column.from_strings(map(str, draw.integers(0, 3, 600))),
        "rare": Column.from_strings(map(str, range(600))),  # a value of its own at each token
    }
    sentences = Sentences(columns, np.arange(0, 601, 10), "drawn")
    templates = expand(["noise[0]", "rare[0]", "says[0]"])
    candidates = TokenCandidates(sentences, "tag", templates)
    chosen = [by_gain(candidates, 1, over_chance, 0)[0] for over_chance in (False, True)]
    assert [[t.name for t in some] for some in chosen] == [["rare[0]"], ["says[0]"]]
    shuffled = draw.permutation(columns["tag"].codes)
    over = dict(zip(("noise", "rare", "says"), gains(candidates, shuffled), strict=True))
    assert over["rare"] == pytest.approx(0, abs=1e-9)
    assert abs(over["noise"]) < 0.02 < over["says"]


# --- what is kept


def test_random_subsets_keep_the_order_and_depend_on_the_seed_alone():
    templates = templates_of("martins_chunking")
    candidates = TokenCandidates(None, "tag", templates)
    place = {template.name: k for k, template in enumerate(templates)}
    drawn = [[place[t.name] for t in at_random(candidates, 20, seed)[0]] for seed in (0, 0, 1)]
    assert all(some == sorted(set(some)) and len(some) == 20 for some in drawn)
    assert drawn[0] == drawn[1] != drawn[2]
    often = Counter(k for seed in range(200) for k in (place[t.name] for t in at_random(candidates, 48, seed)[0]))
    assert len(often) == 96
    assert max(often.values()) - min(often.values()) < 60  # 100 each, seven standard deviations of 7


@pytest.mark.parametrize("count", [0, 4, True, "2"])
def test_a_count_that_cannot_be_kept_is_refused(count):
    templates = expand(["word[0]", "word[1]", "word[2]"])
    with pytest.raises(UserError, match=r"filter\.count"):
        at_random(TokenCandidates(None, "tag", templates), count, 0)
    with pytest.raises(UserError, match=r"filter\.count"):
        by_gain(TokenCandidates(toy("ab", "XY"), "tag", templates), count, False, 0)


def test_only_the_templates_that_pass_are_ever_built(monkeypatch):
    splits, built = planted(0, 30, 5, 5), []
    from structsparse.tasks.tagging import data as tagging

    fit = tagging.TokenIndex.fit.__func__
    monkeypatch.setattr(
        tagging.TokenIndex, "fit", classmethod(lambda cls, s, t, *rest: built.append(len(t)) or fit(cls, s, t, *rest))
    )
    names = [template.name for template in templates_of("martins_chunking")]
    keep = lambda candidates: at_random(candidates, count=5, seed=3)  # noqa: E731
    data = prepare(splits, names, choose=keep)
    assert built == [5]
    assert set(data.index.names) < set(names)
    assert any("5 of 96 templates" in note for note in data.notes)


def test_the_filter_sees_training_alone(run):
    """Dev and test labels that contradict it change nothing."""
    splits = planted(0, 60, 20, 20)

    def turned(part):
        codes = part.columns["tag"].codes
        return part.with_column("tag", Column(part.columns["tag"].values, codes[::-1].copy()))

    other = SentenceSplits("turned", splits.train, turned(splits.dev), turned(splits.test), "iob2")
    names = [template.name for template in templates_of("martins_chunking")]
    keep = lambda candidates: by_gain(candidates, count=7, over_chance=True, seed=0)  # noqa: E731
    first, second = (prepare(s, names, choose=keep, scheme=None).index.names for s in (splits, other))
    assert first == second


def test_the_options_reach_a_run(run):
    done = run("filter=random", "filter.count=2", "filter.seed=4")
    assert done.status == 0, done.errors
    assert "2 of 5 templates, drawn at random with seed 4" in done.output
    assert done.metrics["groups"] == 2
    gain = run("filter=gain", "filter.count=3", folder="gain")
    assert gain.metrics["groups"] == 3
    assert "by information gain" in gain.output
    refused = run("filter=gain", "filter.count=6", folder="refused")
    assert refused.status == 2
    assert "from 1 to 5" in refused.errors
