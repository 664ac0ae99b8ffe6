"""A classifier that was left behind: it says what the model said, tells what it cannot read, and never guesses."""

import io
import json
import sys

import numpy as np
import pytest
import safetensors.numpy
import torch

from structsparse import load
from structsparse.artifacts import folder as model_files
from structsparse.artifacts.coding import encode_words
from structsparse.artifacts.quantization import quantize_
from structsparse.base.errors import UserError
from structsparse.cli import main as cli
from structsparse.corpora.documents import DocumentReading, DocumentSplits, tokenize
from structsparse.corpora.planted.documents import planted_documents
from structsparse.features.word_groups import planted
from structsparse.features.words import bag
from structsparse.tasks.textcat.artifact import save
from structsparse.tasks.textcat.data import prepare, with_groups
from structsparse.tasks.textcat.predictor import Classifier
from tests.support.runs import litter, run_here
from tests.tasks.textcat.test_task import L1, SIZES, TEXTCAT


def corpus(classes: int = 2) -> DocumentSplits:
    return planted_documents(seed=0, classes=classes, **SIZES)


def made(classes: int = 2, extra: bool = False, loss: str = "logistic", **options):
    """A model of weights that were drawn, most of them zero, the corpus, and scores of the test part by hand."""
    documents, draw = corpus(classes), np.random.default_rng(classes)
    words = bag(documents, **options)
    words = with_groups(words, planted) if extra else words
    shape = (len(words.layout), classes) if classes > 2 else (len(words.layout),)
    table = (draw.normal(size=shape) * (draw.random(shape) < 0.1)).astype(np.float32)
    bias = draw.normal(size=shape[1:] or (1,)).astype(np.float32)
    scores = words.matrix(documents.test) @ table.astype(np.float64) + bias.astype(np.float64)
    return Classifier.of(words, table, bias, documents.classes, documents.reading, loss), documents, scores


KINDS = {
    "counts": {},
    "classes": {"classes": 3},
    "numbers": {"classes": 0, "loss": "squared"},
    "tfidf": {"weighting": "tfidf"},
    "idf alone": {"weighting": "tfidf", "normalize": False, "min_count": 3},
    "groups as features": {"extra": True, "weighting": "log"},
    "all": {"classes": 3, "extra": True, "weighting": "tfidf", "loss": "squared_hinge"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_and_read_again_scores_the_same(kind, tmp_path):
    model, documents, scores = made(**KINDS[kind])
    bytes_ = save(tmp_path / "model", model)
    again = load(tmp_path / "model")
    assert bytes_ == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "weights.safetensors"]
    for texts in (documents.test.texts, documents.test.texts[:1], []):  # in other vocabularies than it was trained in
        found = again.scores(again.read(texts))
        np.testing.assert_allclose(found, scores[: len(texts)], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.scores(documents.test), scores)
    if not model.bag.weighting.normalize:
        needed = 0 if kind != "groups as features" else len(documents.groups)
        assert len(again.table) < 0.5 * len(bag(documents).layout) + needed or needed
        assert len(again.table) <= len(model.table)


def test_words_without_a_weight_are_left_out():
    model, documents, _ = made()
    assert all(model.table != 0)
    assert set(model.bag.layout.words) < set(documents.train.words)
    whole, _, _ = made(weighting="tfidf")
    assert len(whole.bag.layout.words) == len(bag(documents).layout.words)


def test_probabilities_are_those_of_the_logistic_loss():
    model, documents, scores = made()
    found = model.probabilities(model.scores(documents.test))
    np.testing.assert_allclose(found[:, 1], 1 / (1 + np.exp(-scores)))
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert (found.argmax(axis=1) == model.decide(scores)).all()
    model, documents, scores = made(3)
    powers = np.exp(scores)
    np.testing.assert_allclose(
        model.probabilities(model.scores(documents.test)), powers / powers.sum(axis=1, keepdims=True)
    )
    model, documents, _ = made(loss="squared_hinge")
    with pytest.raises(UserError, match="has no probabilities"):
        model.probabilities(model.scores(documents.test))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run, and its test part as a folder and as tables."""
    folder = tmp_path_factory.mktemp("textcat")
    found = run_here(*L1, folder=folder / "run", data=TEXTCAT, base=())
    assert found.status == 0, found.errors
    test = corpus().test
    rows = [{"text": text, "label": test.classes[code]} for text, code in zip(test.texts, test.labels, strict=True)]
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for k, row in enumerate(rows):
        (folder / "test" / row["label"]).mkdir(parents=True, exist_ok=True)
        (folder / "test" / row["label"] / f"{k}.txt").write_text(row["text"])
    return found


def called(capsys, *arguments) -> tuple[int, str, str]:
    status = cli.main([*map(str, arguments)])
    return status, *capsys.readouterr()


def test_the_program_scores_a_model_as_its_run_did(run, capsys):
    for what in ("test.jsonl", "test"):
        status, output, _ = called(capsys, "evaluate", run.folder / "model", run.folder.parent / what, "--json")
        assert status == 0
        figures = json.loads(output)
        assert figures["accuracy"] == pytest.approx(run.metrics["accuracy"])
        assert figures["macro_f1"] == pytest.approx(run.metrics["macro_f1"])
        assert figures["documents"] == SIZES["test"]
    status, output, _ = called(capsys, "evaluate", run.folder / "model", run.folder.parent / "test")
    assert f"accuracy {run.metrics['accuracy']:.4f}" in output


def test_a_label_that_the_model_lacks_is_wrong_and_named(run, tmp_path, capsys):
    (tmp_path / "odd.csv").write_text('body,kind\n"some words",class0\n"other words",strange\n')
    status, output, errors = called(
        capsys, "evaluate", run.folder / "model", tmp_path / "odd.csv", "--text", "body", "--label", "kind", "--json"
    )
    assert status == 0
    assert json.loads(output)["accuracy"] <= 0.5
    assert "label strange is unknown" in errors


def test_the_program_predicts_lines_and_files(run, tmp_path, capsys, monkeypatch):
    model, test = load(run.folder / "model"), corpus().test
    lines = test.texts[:5]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join([*lines, ""]).encode())))
    status, output, _ = called(capsys, "predict", run.folder / "model")
    assert status == 0
    found = [line.split("\t") for line in output.splitlines()]
    chances = model.probabilities(model.scores(model.read(lines)))
    assert [line[0] for line in found] == [model.classes[k] for k in chances.argmax(axis=1)]
    for line, row in zip(found, chances, strict=True):
        assert [field.split("=") for field in line[1:]] == [
            [name, f"{value:.6f}"] for name, value in zip(model.classes, row, strict=True)
        ]
    paths = [tmp_path / f"{k}.txt" for k in range(2)]
    for path, text in zip(paths, lines, strict=False):
        path.write_text(text.replace(" ", "\n"))
    status, output, _ = called(capsys, "predict", run.folder / "model", *paths)
    assert [line.split("\t") for line in output.splitlines()] == [
        [str(path), *line] for path, line in zip(paths, found, strict=False)
    ]
    (tmp_path / "lines").write_text("\n".join(lines))
    status, _, _ = called(
        capsys, "predict", run.folder / "model", "--input", tmp_path / "lines", "--output", tmp_path / "out"
    )
    assert (status, (tmp_path / "out").read_text().splitlines()) == (0, ["\t".join(line) for line in found])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("predict", "MODEL", "--nbest", "3"), "--nbest is for taggers"),
        (("evaluate", "MODEL", "nowhere"), "nowhere: no such file"),
        (("next", "MODEL", "a"), "is a classifier; `structsparse next` is for language models"),
        (("predict", "MODEL", "nowhere.txt"), "nowhere.txt"),
        (("predict", "MODEL", "a", "--input", "b"), "give one of them"),
    ],
)
def test_what_the_program_cannot_do_is_said_in_a_sentence(arguments, reason, run, capsys):
    arguments = [str(run.folder / "model") if argument == "MODEL" else argument for argument in arguments]
    status, _, errors = called(capsys, *arguments)
    assert (status, errors.count("\n")) == (2, 1)
    assert reason in errors


def test_options_of_classifiers_are_for_classifiers(tmp_path, capsys):
    found = run_here("trainer.max_epochs=1", folder=tmp_path / "run", data=("data=planted", "data.train=30"))
    assert found.status == 0, found.errors
    status, _, errors = called(capsys, "predict", found.folder / "model", "some.txt")
    assert (status, "FILE is for classifiers" in errors) == (2, True)


def changed(folder, change) -> None:
    """Change what model.json says."""
    known = json.loads((folder / "model.json").read_text())
    change(known)
    (folder / "model.json").write_text(json.dumps(known))


def retold(folder, **tensors) -> None:
    """Change tensors so that the checksum cannot tell."""
    old = safetensors.numpy.load_file(folder / "weights.safetensors")
    known = json.loads((folder / "model.json").read_text())
    kept = {key: known[key] for key in known if key not in ("format", "structsparse", "sha256")}
    model_files.write(folder, kept, safetensors.numpy.save({**old, **tensors}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rounded_classifier_is_read_to_the_bit(kind, tmp_path):
    model, documents, _ = made(**KINDS[kind])
    whole = save(tmp_path / "whole", model)
    quantize_(torch.from_numpy(model.table), 6)
    assert save(tmp_path / "model", model) <= whole
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.table, model.table)
    assert len(np.unique(again.table)) <= 63
    np.testing.assert_allclose(again.scores(again.read(documents.test.texts)), model.scores(documents.test), rtol=1e-6)


def test_a_folder_that_is_no_model_says_what_is_wrong(tmp_path):
    model, *_ = made(3, extra=True)
    folder = tmp_path / "model"
    faults = {
        "classes is": lambda known: known.update(classes=["a", "a"]),
        "loss is": lambda known: known.update(loss="perceptron"),
        "reading is": lambda known: known.update(reading={"tokens": 3}),
        "expected one of words": lambda known: known["reading"].update(tokens="bytes"),
        "weighting is": lambda known: known.update(weighting=["counts"]),
        "tensor factors is missing": lambda known: known.update(weighting="tfidf"),
        "does not hold": lambda known: known.update(words=known["words"] - 1),
        "words is": lambda known: known.update(words=["a"]),
        "extra is": lambda known: known.update(extra=-1),
        "has no place": lambda known: known.update(extra=0),
        "words is missing": lambda known: known.pop("words"),
        "SHA-256": lambda known: known.update(sha256="0"),
    }
    for reason, change in faults.items():
        save(folder, model)
        changed(folder, change)
        with pytest.raises(UserError, match=reason):
            load(folder)
    save(folder, model)
    words = list(load(folder).bag.layout.words)
    retold(folder, words=encode_words([words[1], *words[1:]]))
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
        retold(folder, **{name: changed_tensor})
        with pytest.raises(UserError, match=reason):
            load(folder)


def test_a_weight_too_large_is_refused_and_nothing_is_half_written(tmp_path):
    model, *_ = made()
    save(tmp_path / "model", model)
    before = (tmp_path / "model" / "model.json").read_bytes()
    model.table[0] = np.inf
    with pytest.raises(UserError, match="NaN, infinite or too large"):
        save(tmp_path / "model", model)
    assert (tmp_path / "model" / "model.json").read_bytes() == before
    assert not litter(tmp_path)


def test_an_artifact_reads_text_as_training_did(tmp_path):
    reading = DocumentReading(tokens="letters", lower=False)
    texts, labels = ["Big 1st dogs", "small Cats", "Big Cats 2"], np.array([0, 1, 1])
    parts = [tokenize(["a", "b", "c"], texts, labels, ("n", "y"), reading)] * 3
    data = prepare(DocumentSplits("own", *parts, reading=reading), {})
    table = np.arange(1.0, 1 + len(data.bag.layout))
    model = Classifier.of(data.bag, table, np.zeros(1), data.classes, reading, "logistic")
    save(tmp_path / "model", model)
    again = load(tmp_path / "model")
    assert again.reading == reading
    np.testing.assert_allclose(again.scores(again.read(texts)), data.matrices["train"] @ table)
