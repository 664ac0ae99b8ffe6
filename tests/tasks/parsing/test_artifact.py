"""A parser that was left behind: it says what the model said, tells what it cannot read, and never guesses."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
import torch
from scipy.sparse import csr_array

from structsparse import load
from structsparse.artifacts import folder as model_files
from structsparse.artifacts.quantization import ArtifactOptions, quantize_
from structsparse.base.errors import UserError
from structsparse.corpora.treebank import Treebank
from structsparse.tasks.parsing import predictor
from structsparse.tasks.parsing.artifact import save
from tests.support.parsers import corpus, made
from tests.support.runs import ROOT, litter

KINDS = {
    "plain": {},
    "heads alone": {"labels": False},
    "projective": {"projective": True},
    "single root": {"single_root": True},
    "both": {"projective": True, "single_root": True, "dead": 0.0},
    "seldom features left out": {"min_count": 3},
    "features that share a few bits are one": {"bits": 5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_and_read_again_predicts_what_the_module_does(kind, tmp_path):
    found = made(**KINDS[kind])
    size = save(tmp_path / "model", found.model)
    again = load(tmp_path / "model")
    assert size == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "weights.safetensors"]
    for part, treebank in found.data.splits.parts.items():
        trees, heads = again.parse(treebank), found.heads(part)
        np.testing.assert_array_equal(trees.heads, heads)
        if found.module.labelling is None:
            assert trees.relations is None
        else:
            numbers = np.arange(len(treebank))
            _, codes = found.module.labelling.codes(part, numbers, heads)
            assert trees.relations.strings() == [again.relations.names[code] for code in codes]
    assert (again.rule, again.parser.structure.single_root) == ("upos", found.model.parser.structure.single_root)


def test_the_score_of_an_artifact_is_that_of_the_run(tmp_path):
    found = made()
    save(tmp_path / "model", found.model)
    again, test = load(tmp_path / "model"), found.data.splits.test
    result = found.module.evaluate(found.data.batches("test", 4)).result()
    trees = again.parse(test)
    right = trees.heads == test.heads
    assert result["uas"] == right.mean()
    same = np.array(trees.relations.strings()) == np.array(test.columns["deprel"].strings())
    assert result["las"] == (right & same).mean()
    words = ~found.data.splits.punctuation("test")
    assert result["las_no_punct"] == (right & same)[words].mean()


def test_only_what_lives_is_kept(tmp_path):
    found = made()
    save(tmp_path / "model", found.model)
    known = json.loads((tmp_path / "model" / "model.json").read_text())
    weights = found.module.parser.scorer.table.detach().numpy()[:, 0]
    assert sum(count for count, _ in known["templates"].values()) == np.count_nonzero(weights)
    assert found.data.index.names[0] not in known["templates"]
    again = load(tmp_path / "model")
    assert sorted(again.parser.scorer.table[:, 0].tolist()) == sorted(weights[weights != 0].tolist())
    assert again.relations.weights.nnz == found.model.relations.weights.nnz
    text = (tmp_path / "model" / "model.json").read_text()
    assert not any(word in text for word in found.data.splits.train.columns["lemma"].values if len(word) > 2)


def test_words_that_training_has_not_seen_are_no_obstacle(tmp_path):
    """What a feature means does not depend on the other words of the input."""
    found = made()
    save(tmp_path / "model", found.model)
    again, other = load(tmp_path / "model"), corpus(seed=5).test
    whole = again.parse(other)
    np.testing.assert_array_equal(whole.heads, found.model.parse(other).heads)
    for k in range(len(other)):
        alone, own = again.parse(other.select([k])), slice(*other.offsets[k : k + 2])
        np.testing.assert_array_equal(alone.heads, whole.heads[own])
        assert alone.relations.strings() == whole.relations.strings()[own]


def test_how_many_sentences_are_taken_at_a_time_changes_nothing(monkeypatch):
    found, test = made(), corpus().test
    whole = found.model.parse(test, probabilities=True)
    monkeypatch.setattr(predictor, "BATCH", 1)
    one_by_one = found.model.parse(test, probabilities=True)
    np.testing.assert_array_equal(whole.heads, one_by_one.heads)
    np.testing.assert_allclose(whole.probabilities, one_by_one.probabilities, rtol=1e-12)
    nothing = found.model.parse(test.select(slice(0)))
    assert (len(nothing.heads), len(nothing.relations)) == (0, 0)


@pytest.mark.parametrize("projective", [False, True])
def test_the_probabilities_of_all_trees_are_those_of_their_arcs(projective):
    found = made(projective=projective)
    short = first_words(corpus().test, 4)
    best = found.model.parse(short, probabilities=True)
    for k, ranked in enumerate(found.model.ranked(short, 1000, probabilities=True)):
        own = slice(*short.offsets[k : k + 2])
        np.testing.assert_array_equal(ranked[0].words.heads, best.heads[own])
        assert ranked[0].words.relations.strings() == best.relations.strings()[own]
        scores, odds = np.array([tree.score for tree in ranked]), np.array([tree.probability for tree in ranked])
        assert odds.sum() == pytest.approx(1, abs=1e-6)
        assert (np.diff(scores) <= 0).all()
        heads = np.stack([tree.words.heads for tree in ranked])  # [trees, words]
        for tree in ranked[:5]:
            np.testing.assert_allclose(tree.words.probabilities, odds @ (heads == tree.words.heads), atol=1e-6)
        np.testing.assert_allclose(best.probabilities[own], odds @ (heads == best.heads[own]), atol=1e-6)
    with pytest.raises(UserError, match="0 best trees"):
        found.model.ranked(short, 0)


def first_words(treebank: Treebank, count: int) -> Treebank:
    """The first words of each sentence, without their trees."""
    first = (np.arange(treebank.tokens) - np.repeat(treebank.offsets[:-1], treebank.lengths)) < count
    return Treebank(
        {name: column.take(np.flatnonzero(first)) for name, column in treebank.columns.items()},
        np.concatenate([[0], np.cumsum(np.minimum(treebank.lengths, count))]),
        treebank.source,
        heads=np.full(first.sum(), -1, np.int32),
        lines=treebank.lines[first],
        blocks=treebank.blocks,
    )


def test_an_artifact_is_used_without_what_trained_it(tmp_path):
    save(tmp_path / "model", made().model)
    code = (
        "import sys; from structsparse import load;"
        f"load(__import__('pathlib').Path({str(tmp_path / 'model')!r}));"
        "print([name for name in ('lightning', 'hydra', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


# --- few bits


@pytest.mark.parametrize("bits", [3, 7])
def test_a_rounded_parser_is_read_to_the_bit(bits, tmp_path):
    found = made()
    whole, small = save(tmp_path / "whole", found.model), ArtifactOptions(bits=bits)
    model = found.model
    with torch.no_grad():
        quantize_(model.parser.scorer.table, bits)
    model = replace(model, relations=model.relations.small(small, found.data.splits.train))
    assert save(tmp_path / "model", model) < whole
    again, test = load(tmp_path / "model"), found.data.splits.test
    weights = model.parser.scorer.table.detach()
    assert sorted(again.parser.scorer.table[:, 0].tolist()) == sorted(weights[weights != 0].tolist())
    np.testing.assert_array_equal(again.parse(test).heads, model.parse(test).heads)
    assert again.parse(test).relations.strings() == model.parse(test).relations.strings()
    assert len(np.unique(again.relations.weights.data)) <= 2**bits - 2


def test_short_keys_are_found_as_the_artifact_finds_them(tmp_path):
    """Also those that are mistaken."""
    found, small = made(), ArtifactOptions(mistaken=2.0**-5)
    alive = found.module.parser.scorer.table.detach().numpy()[:, 0] != 0
    short = found.data.shortened(small.guard, alive)
    relations = found.model.relations.small(small, found.data.splits.train)
    model = replace(found.model, index=short.short, relations=relations)
    assert save(tmp_path / "model", model) < save(tmp_path / "whole", found.model)
    again = load(tmp_path / "model")
    for part in ("dev", "test"):
        trees = again.parse(found.data.splits.parts[part])
        own = model.parse(found.data.splits.parts[part])
        np.testing.assert_array_equal(trees.heads, own.heads)
        assert trees.relations.strings() == own.relations.strings()
        ids, known = short.arrays[part].bags.ids, found.data.arrays[part].bags.ids
        assert set(ids.tolist()) <= set(np.flatnonzero(alive).tolist())
        assert len(ids) >= alive[known].sum()
    result = found.module.evaluate(short.batches("test", 4)).result()
    assert result["uas"] == (again.parse(found.data.splits.test).heads == found.data.splits.test.heads).mean()


# --- faults


def changed(folder, change) -> None:
    """Change what model.json says."""
    known = json.loads((folder / "model.json").read_text())
    change(known)
    (folder / "model.json").write_text(json.dumps(known))


def renamed(old: str, new: str):
    def change(known):
        known["templates"] = {new if name == old else name: count for name, count in known["templates"].items()}

    return change


FAULTS = {
    "projective is": lambda known: known.update(projective=0),
    "single_root is": lambda known: known.update(single_root=None),
    "punctuation is": lambda known: known.update(punctuation="marks"),
    "templates is {}": lambda known: known.update(templates={}),
    "templates is": lambda known: known["templates"].update({"h.xpos": [0, 40]}),
    "keys": lambda known: known["templates"].update({"h.xpos": [1, 40]}),
    "'h.misc & m.upos': a word has no misc": renamed("h.upos & m.upos", "h.misc & m.upos"),
    "looks at deprel, which a parser predicts": renamed("h.upos & m.upos", "h.deprel & m.upos"),
    "is not the name of one template": renamed("h.upos & m.upos", "m.upos & h.upos"),
    "'between' is not understood": renamed("h.upos & m.upos", "h.upos & between"),
    "relations is": lambda known: known["relations"].update(names=["a", "a"]),
    'relations is {"names": \\["a\\\\': lambda known: known["relations"].update(names=["a\tb"]),
    "relations is missing": lambda known: known.pop("relations"),
    "relations.keys": lambda known: known["relations"]["templates"].update({"h.xpos": [1, 40]}),
    "relations.table.* (holds|has)": lambda known: known["relations"].update(names=["a", "b"]),
    "has no place in a parser": lambda known: known.update(relations=None),
    "words is unknown": lambda known: known.update(words=[]),
    "SHA-256": lambda known: known.update(sha256="0"),
    "newer structsparse": lambda known: known.update(format=99),
}


@pytest.fixture(scope="module")
def model():
    """One that has few weights for relations, which are written without their zeros."""
    model = made().model
    table = model.relations.weights.toarray()
    table[np.random.default_rng(0).random(table.shape) < 0.8] = 0
    return replace(model, relations=replace(model.relations, weights=csr_array(table)))


@pytest.mark.parametrize("reason", FAULTS)
def test_a_description_that_is_wrong_is_refused(reason, model, tmp_path):
    save(tmp_path / "model", model)
    changed(tmp_path / "model", FAULTS[reason])
    with pytest.raises(UserError, match=reason) as fault:
        load(tmp_path / "model")
    assert "\n" not in str(fault.value)
    assert str(tmp_path / "model") in str(fault.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("table", np.nan, "table holds a weight that is NaN or infinite"),
        ("table", -np.inf, "table holds a weight that is infinite"),
        ("relations.table.values", np.inf, "relations.table holds a weight that is NaN or infinite"),
        ("relations.table.labels", "more", "relations.table.labels has .* more than"),
        ("keys", "more", "tensor keys has .* more than"),
        ("relations.keys", "more", "tensor relations.keys has .* more than"),
        ("keys", None, "tensor keys is missing"),
        ("more", 0.0, "tensor more has no place in a parser"),
    ],
)
def test_weights_that_are_wrong_are_refused(name, value, reason, model, tmp_path):
    folder = tmp_path / "model"
    save(folder, model)
    tensors = dict(safetensors.numpy.load_file(folder / "weights.safetensors"))
    if value is None:
        del tensors[name]
    elif value == "more":
        tensors[name] = np.r_[tensors[name], np.full(30, 7, np.uint8)]
    else:
        tensors[name] = tensors.get(name, np.zeros(3, np.float32)).copy()
        tensors[name].flat[0] = value
    known = json.loads((folder / "model.json").read_text())
    kept = {key: known[key] for key in known if key not in ("format", "structsparse", "sha256")}
    model_files.write_model(folder, kept, safetensors.numpy.save(tensors))
    with pytest.raises(UserError, match=reason):
        load(folder)


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_file_cut_short_or_lost_is_named(name, model, tmp_path):
    folder = tmp_path / "model"
    save(folder, model)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=name):
        load(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: cannot be read"):
        load(folder)


def test_a_weight_too_large_is_refused_and_nothing_is_half_written(tmp_path):
    found = made()
    save(tmp_path / "model", found.model)
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    with torch.no_grad():
        found.module.parser.scorer.table[-1] = torch.inf
    with pytest.raises(UserError, match="NaN or infinite"):
        save(tmp_path / "model", found.model)
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert not litter(tmp_path)


def test_another_scorer_is_refused(tmp_path):
    found = made()
    found.module.parser.scorer = torch.nn.Linear(1, 1)
    with pytest.raises(UserError, match=r"Linear'> cannot be put into an artifact, ArcScorer \(model=arcs\) can"):
        save(tmp_path / "model", found.model)
    assert not (tmp_path / "model").exists()
