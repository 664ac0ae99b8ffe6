"""The scheme of span tags: data in another scheme, and `task.scheme=auto`, under which dev chooses."""

import json
import re

import numpy as np
import pytest

from structsparse import load
from structsparse.corpora.columns import read_columns
from structsparse.corpora.known.tagging import planted
from structsparse.tasks.tagging.data import prepare
from structsparse.tasks.tagging.task import TaggingTask

TEMPLATES = ["word[0]", "suffix3[0]", "pos[-1..0]"]
AUTO = ("reg=group_lasso", "reg.strength=auto", "recipe=select_refit", "solver=fista", "batch=null", "choose=one_se")


@pytest.mark.parametrize("edges", [(), ("pos[0]",)])
def test_data_in_another_scheme_are_those_prepared_in_that_scheme(edges):
    corpus = planted(seed=3, train=80, dev=30, test=30)
    first, expected = (prepare(corpus, TEMPLATES, scheme=scheme, edges=edges) for scheme in ("iob2", "iobes"))
    found = first.in_scheme("iobes")
    assert found.labels == expected.labels != first.labels
    assert set(found.names) == set(expected.names)
    assert found.scheme == "iobes"
    assert found.sizes._replace(pairs=None) == expected.sizes._replace(pairs=None)
    for name in ("offsets", "labels", "links"):
        one, other = (getattr(data.sizes.pairs(), name) for data in (found, expected))
        np.testing.assert_array_equal(one, other)
    for part, arrays in expected.arrays.items():
        tags = [found.names[code] for code in found.arrays[part].gold]
        assert tags == [expected.names[code] for code in arrays.gold]
        assert tags == found.splits.parts[part].columns["tag"].strings()
        assert found.arrays[part].bags is first.arrays[part].bags  # features are not extracted again
    if edges:
        np.testing.assert_array_equal(found.edges.label_pairs, expected.edges.label_pairs)
        np.testing.assert_array_equal(found.edges.gold, expected.edges.gold)
        assert len(found.edges.pairs) == len(expected.edges.pairs)


def test_variants_are_there_for_auto_only():
    corpus = planted(seed=3, train=40, dev=10, test=10)
    features = {"lexicons": [], "clusters": None, "lexicons_lower": True, "templates": TEMPLATES, "min_count": 1}
    features |= {"dense": [], "codes": [], "edges": [], "cluster_text": None, "cluster_classes": 2}
    for scheme, first, names in (("auto", "iob2", ["iob2", "iobes"]), ("iobes", "iobes", []), ("iob1", "iob1", [])):
        task = TaggingTask(scheme=scheme)
        data = task.prepare(corpus, features, lambda candidates: (candidates.templates, []), 0)
        assert data.scheme == first
        assert [*task.variants(data)] == names
        assert all(variant.scheme == name for name, variant in task.variants(data).items())


# --- a corpus that only the scheme IOBES can tell


def tokens(generator, sentences):
    """Sentences of spans `a y` and `b`; `y` is inside a span after `a` and outside after `b`.

    From words alone, a chain knows of the word before by its tag only: B-X for `a` and `b` alike under IOB2."""
    lines = []
    for _ in range(sentences):
        for pair in generator.integers(0, 3, 6):
            lines += (["a B-X", "y I-X"], ["b B-X", "y O"], ["c O", "d O"])[pair]
        lines.append("")
    return "\n".join(lines)


@pytest.fixture
def corpus(tmp_path):
    generator, options = np.random.default_rng(5), ["data=files", "data.columns=[word,tag]"]
    for part, size in (("train", 80), ("dev", 40), ("test", 40)):
        (tmp_path / part).write_text(tokens(generator, size))
        options.append(f"data.{part}={tmp_path / part}")
    return (*options, "task=ner")


WORDS = "features.templates=['word[0]','suffix2[0]']"


def test_dev_takes_iobes_where_it_is_clearly_better(corpus, run, tmp_path):
    found = run(*AUTO, WORDS, "task.scheme=auto", data=corpus)
    assert found.status in (0, None), found.errors
    pattern = r"pilot  dev f1 under iobes (\S+) against iob2, standard error (\S+): iobes is taken"
    (line,) = re.findall(pattern, found.output)
    gained, error = (found.metrics[key] for key in ("variant_gain", "variant_gain_error"))
    assert [float(value) for value in line] == pytest.approx([gained, error], abs=1e-4)
    assert gained > 0.1 > 2 * error > 0
    assert found.metrics["scheme"] == "iobes"
    assert found.metrics["f1"] == 1
    assert json.loads((found.folder / "model" / "model.json").read_text())["scheme"] == "iobes"
    assert load(found.folder / "model").evaluate(tmp_path / "test")["f1"] == 1
    predicted = read_columns(found.folder / "report" / "predictions_test.txt", ["word", "tag", "predicted"])
    assert predicted.columns["predicted"].strings() == predicted.columns["tag"].strings()
    assert set(predicted.columns["tag"].strings()) == {"O", "B-X", "E-X", "S-X"}


def test_other_routes_and_given_schemes_do_not_ask_dev(corpus, run):
    fixed = run("reg=group_lasso", "reg.strength=0.01", "model=sparse", WORDS, "task.scheme=auto", data=corpus)
    entries = run("reg=l1", "reg.strength=auto", "model=pairs", WORDS, "task.scheme=auto", data=corpus)
    given = run(*AUTO, WORDS, "task.scheme=iob2", data=corpus)
    for found in (fixed, entries, given):
        assert found.status in (0, None), found.errors
        assert found.metrics["scheme"] == "iob2"
        assert "variant_gain" not in found.metrics
        assert found.metrics["f1"] < 0.95


def test_iob2_stays_where_iobes_gains_nothing(run):
    found = run(*AUTO, "task.scheme=auto", "data.dev=200")
    gained, error = found.metrics["variant_gain"], found.metrics["variant_gain_error"]
    assert found.metrics["scheme"] == "iob2"
    assert gained <= 2 * error
    assert "iob2 is taken" in found.output


def test_a_search_stopped_between_its_pilots_goes_on_to_the_same_end(corpus, run, monkeypatch):
    from structsparse.training.search.group_search import GroupSearch

    options = (*AUTO, WORDS, "task.scheme=auto")
    whole, fitted, done = run(*options, data=corpus), GroupSearch._fit, []

    def stop(self, *arguments, **options):
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return fitted(self, *arguments, **options)

    monkeypatch.setattr(GroupSearch, "_fit", stop)
    assert run(*options, data=corpus).status != 0
    monkeypatch.setattr(GroupSearch, "_fit", fitted)
    again = run(*options, "ckpt_path=last", data=corpus)
    assert again.metrics["scheme"] == "iobes"
    for key, value in whole.result.items():
        if isinstance(value, float) and key != "search_cost":  # a quotient of times
            assert again.result[key] == pytest.approx(value, rel=1e-6), key


def test_pilots_of_two_schemes_have_fingerprints_of_their_own(corpus, run):
    found = run(*AUTO, WORDS, "task.scheme=auto", data=corpus)
    one, other = (found.checkpoint(f"pilot/{scheme}")["fingerprint"] for scheme in ("iob2", "iobes"))
    assert one != other
