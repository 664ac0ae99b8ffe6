"""Artifacts of classifiers: loaded as saved, exact when quantized, and refused with the reason when damaged."""

import json

import numpy as np
import pytest
import safetensors.numpy
import torch

from structsparse import load
from structsparse.artifacts import folder as model_files
from structsparse.artifacts.coding import encode_words
from structsparse.artifacts.quantization import quantize_
from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentReading, DocumentSplits, tokenize
from structsparse.features.words import bag
from structsparse.tasks.textcat.artifact import save
from structsparse.tasks.textcat.data import prepare
from structsparse.tasks.textcat.predictor import Classifier
from tests.support.classifiers import random_classifier
from tests.support.runs import litter

KINDS = {
    "counts": {},
    "classes": {"classes": 3},
    "numbers": {"classes": 0, "loss": "squared"},
    "binary": {"weighting": "binary"},
    "tfidf": {"weighting": "tfidf"},
    "sublinear": {"weighting": "sublinear", "log_ratio": 0.5},
    "log ratios alone": {"log_ratio": 1.0},
    "idf alone": {"weighting": "tfidf", "normalize": False, "min_count": 3},
    "groups as features": {"extra": True, "weighting": "log"},
    "all": {"classes": 3, "extra": True, "weighting": "tfidf", "log_ratio": 0.5, "loss": "squared_hinge"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_classifier_scores_as_the_saved_one(kind, tmp_path):
    model, documents, scores = random_classifier(**KINDS[kind])
    size = save(tmp_path / "model", model)
    loaded = load(tmp_path / "model")
    assert size == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "weights.safetensors"]
    for texts in (documents.test.texts, documents.test.texts[:1], []):  # with other vocabularies than that of training
        result = loaded.scores(loaded.read(texts))
        np.testing.assert_allclose(result, scores[: len(texts)], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.scores(documents.test), scores)
    if not model.bag.weighting.normalize:
        needed = 0 if kind != "groups as features" else len(documents.groups)
        assert len(loaded.table) < 0.5 * len(bag(documents).layout) + needed or needed
        assert len(loaded.table) <= len(model.table)


def change_description(folder, change) -> None:
    """Change model.json."""
    description = json.loads((folder / "model.json").read_text())
    change(description)
    (folder / "model.json").write_text(json.dumps(description))


def change_tensors(folder, **tensors) -> None:
    """Change tensors and the checksum."""
    old = safetensors.numpy.load_file(folder / "weights.safetensors")
    description = json.loads((folder / "model.json").read_text())
    fields = {key: value for key, value in description.items() if key not in ("format", "structsparse", "sha256")}
    model_files.write_model(folder, fields, safetensors.numpy.save({**old, **tensors}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_classifier_is_exact(kind, tmp_path):
    model, documents, _ = random_classifier(**KINDS[kind])
    full_size = save(tmp_path / "full", model)
    quantize_(torch.from_numpy(model.table), 6)
    assert save(tmp_path / "model", model) <= full_size
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.table, model.table)
    assert len(np.unique(loaded.table)) <= 63
    np.testing.assert_allclose(
        loaded.scores(loaded.read(documents.test.texts)), model.scores(documents.test), rtol=1e-6, atol=1e-7
    )


def test_damaged_models_are_refused_with_the_reason(tmp_path):
    model, *_ = random_classifier(3, extra=True)
    folder = tmp_path / "model"
    faults = {
        "classes is": lambda fields: fields.update(classes=["a", "a"]),
        "loss is": lambda fields: fields.update(loss="perceptron"),
        "reading is": lambda fields: fields.update(reading={"tokens": 3}),
        "expected one of words": lambda fields: fields["reading"].update(tokens="bytes"),
        "weighting is": lambda fields: fields.update(weighting=["counts"]),
        "tensor factors is missing": lambda fields: fields.update(weighting="tfidf"),
        "does not hold": lambda fields: fields.update(words=fields["words"] - 1),
        "words is": lambda fields: fields.update(words=["a"]),
        "extra is": lambda fields: fields.update(extra=-1),
        "has no place": lambda fields: fields.update(extra=0),
        "words is missing": lambda fields: fields.pop("words"),
        "SHA-256": lambda fields: fields.update(sha256="0"),
    }
    for reason, change in faults.items():
        save(folder, model)
        change_description(folder, change)
        with pytest.raises(UserError, match=reason):
            load(folder)
    save(folder, model)
    words = list(load(folder).bag.layout.words)
    change_tensors(folder, words=encode_words([words[1], *words[1:]]))
    with pytest.raises(UserError, match="expected distinct words"):
        load(folder)
    for name, value, reason in (
        ("table.values", np.nan, "NaN or infinite"),
        ("members.ids", 99, "members.ids holds 99"),
        ("members.offsets", 7, "members.offsets decrease"),
    ):
        save(folder, model)
        changed_tensor = safetensors.numpy.load_file(folder / "weights.safetensors")[name].copy()
        changed_tensor.flat[0] = value
        change_tensors(folder, **{name: changed_tensor})
        with pytest.raises(UserError, match=reason):
            load(folder)


def test_a_weight_that_is_too_large_is_refused_and_nothing_is_written(tmp_path):
    model, *_ = random_classifier()
    save(tmp_path / "model", model)
    before = (tmp_path / "model" / "model.json").read_bytes()
    model.table[0] = np.inf
    with pytest.raises(UserError, match="NaN, infinite or too large"):
        save(tmp_path / "model", model)
    assert (tmp_path / "model" / "model.json").read_bytes() == before
    assert not litter(tmp_path)


def test_a_loaded_classifier_reads_text_as_training_did(tmp_path):
    reading = DocumentReading(tokens="letters", lower=False)
    texts, labels = ["Big 1st dogs", "small Cats", "Big Cats 2"], np.array([0, 1, 1])
    parts = [tokenize(["a", "b", "c"], texts, labels, ("n", "y"), reading)] * 3
    data = prepare(DocumentSplits("corpus", *parts, reading=reading), {})
    table = np.arange(1.0, 1 + len(data.bag.layout))
    model = Classifier.of(data.bag, table, np.zeros(1), data.classes, reading, "logistic")
    save(tmp_path / "model", model)
    loaded = load(tmp_path / "model")
    assert loaded.reading == reading
    np.testing.assert_allclose(loaded.scores(loaded.read(texts)), data.matrices["train"] @ table)
