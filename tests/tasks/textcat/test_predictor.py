"""Classifiers in use: the verbs of every model, probabilities, the words that are needed."""

import json

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.features.words import bag
from tests.support.classifiers import SIZES, random_classifier


def test_words_without_weight_are_left_out():
    model, documents, _ = random_classifier()
    assert all(model.table != 0)
    assert set(model.bag.layout.words) < set(documents.train.words)
    full, _, _ = random_classifier(weighting="tfidf")
    assert len(full.bag.layout.words) == len(bag(documents).layout.words)


def test_probabilities_are_those_of_the_logistic_loss():
    model, documents, scores = random_classifier()
    values = model.probabilities(model.scores(documents.test))
    np.testing.assert_allclose(values[:, 1], 1 / (1 + np.exp(-scores)))
    np.testing.assert_allclose(values.sum(axis=1), 1)
    assert (values.argmax(axis=1) == model.decide(scores)).all()
    model, documents, scores = random_classifier(3)
    powers = np.exp(scores)
    np.testing.assert_allclose(
        model.probabilities(model.scores(documents.test)), powers / powers.sum(axis=1, keepdims=True)
    )
    model, documents, _ = random_classifier(loss="squared_hinge")
    with pytest.raises(UserError, match="has no probabilities"):
        model.probabilities(model.scores(documents.test))


# --- the verbs of every model


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_predict_takes_texts_and_files(classes, tmp_path):
    model, documents, scores = random_classifier(classes, loss="logistic" if classes else "squared")
    texts = documents.test.texts
    if classes:
        codes = scores.argmax(axis=1) if classes > 2 else (scores > 0).astype(int)
        expected = [documents.classes[code] for code in codes.tolist()]
    else:
        expected = pytest.approx(scores.tolist())
    assert model.predict(texts) == expected
    assert model.predict(texts[0]) == model.predict(texts)[:1]
    assert model.predict([]) == []
    (tmp_path / "lines").write_text("\n".join(text.replace("\n", " ") for text in texts) + "\n")
    assert model.predict(tmp_path / "lines") == expected


def test_nbest_are_the_classes_by_score():
    model, documents, scores = random_classifier(3)
    marginals = model.marginals(documents.test.texts)
    for ranked, row, probabilities in zip(model.nbest(documents.test.texts, 2), scores, marginals, strict=True):
        codes = np.argsort(-row)[:2]
        assert [best.label for best in ranked] == [documents.classes[code] for code in codes]
        assert [best.score for best in ranked] == pytest.approx(row[codes].tolist())
        assert [best.probability for best in ranked] == [probabilities[best.label] for best in ranked]
    two, documents, scores = random_classifier(2, loss="squared_hinge")
    (ranked,) = two.nbest(documents.test.texts[0])
    assert [best.label for best in ranked] == [documents.classes[k] for k in ([1, 0] if scores[0] > 0 else [0, 1])]
    assert [best.score for best in ranked] == pytest.approx([abs(scores[0]), -abs(scores[0])])
    assert ranked[0].probability is None


def test_evaluate_takes_labelled_texts_tables_and_folders(tmp_path):
    model, documents, scores = random_classifier(3)
    texts, labels = documents.test.texts, [documents.classes[code] for code in documents.test.labels.tolist()]
    figures = model.evaluate(texts, labels)
    assert figures["accuracy"] == pytest.approx((scores.argmax(axis=1) == documents.test.labels).mean())
    assert figures["documents"] == SIZES["test"]
    rows = [{"body": text, "kind": label} for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert model.evaluate(str(tmp_path / "test.jsonl"), text="body", label="kind") == figures
    for k, row in enumerate(rows):
        (tmp_path / "test" / row["kind"]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "test" / row["kind"] / f"{k}.txt").write_text(row["body"])
    assert model.evaluate(tmp_path / "test") == figures
    assert model.evaluate(texts[:2], ["strange", "label"])["accuracy"] == 0
    assert model.unknown_labels(["strange", labels[0]]) == ["strange"]
    numbers, documents, scores = random_classifier(0, loss="squared")
    error = numbers.evaluate(documents.test.texts, documents.test.labels.tolist())["mse"]
    assert error == pytest.approx(np.mean((scores - documents.test.labels) ** 2))


def test_what_a_classifier_cannot_answer_is_refused_with_the_reason(tmp_path):
    model, documents, _ = random_classifier(loss="squared_hinge")
    numbers, *_ = random_classifier(0, loss="squared")
    texts = documents.test.texts
    for call, reason in (
        (lambda: model.marginals(texts), "classes with loss=squared_hinge: it has no probabilities"),
        (lambda: numbers.marginals(texts), "predicts a number: it has no probabilities"),
        (lambda: numbers.nbest(texts), "has no classes to rank"),
        (lambda: model.nbest(texts, 0), "the 0 best classes"),
        (lambda: model.predict([3]), r"reads documents \(str\), got 3"),
        (lambda: model.predict(None), r"reads documents \(str\), got None"),
        (lambda: model.predict(tmp_path / "nowhere"), "nowhere: no such file or folder"),
        (lambda: model.evaluate(texts), "labels are missing"),
        (lambda: model.evaluate(texts, ["a"]), "60 documents and 1 labels"),
        (lambda: numbers.evaluate(texts[:1], ["high"]), "expected numbers as labels"),
        (lambda: model.evaluate("nowhere"), "nowhere: no such file or folder"),
    ):
        with pytest.raises(UserError, match=reason):
            call()
