"""The bag-of-words classifier and its losses against loops over documents."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import sparse

from structsparse.losses.pointwise import Logistic, Squared, SquaredHinge
from structsparse.tasks.textcat import model as textcat_model
from structsparse.tasks.textcat.data import DocumentBatch, tensor_of
from structsparse.tasks.textcat.model import BagClassifier, outputs_of
from structsparse.tasks.textcat.task import ClassifierModule
from tests.support.classifiers import data_of

LOSSES = {"logistic": Logistic, "squared": Squared, "squared_hinge": SquaredHinge}


def plain_loss(kind: str, scores: np.ndarray, target: float) -> float:
    """The loss of one document, by the formula of its docstring."""
    if scores.ndim and kind == "logistic":
        return float(np.log(np.exp(scores).sum()) - scores[int(target)])
    ys = np.array([1.0 if k == target else -1.0 for k in range(len(scores))]) if scores.ndim else np.array([target])
    total = 0.0
    for f, y in zip(np.atleast_1d(scores), ys, strict=True):
        total += {
            "logistic": np.log(1 + np.exp(-y * f)),
            "squared": (f - y) ** 2 / 2,
            "squared_hinge": max(0.0, 1 - y * f) ** 2,
        }[kind]
    return float(total)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_and_gradients_match_their_formulas(kind, classes):
    draw = np.random.default_rng(classes)
    matrix = sparse.csr_array(draw.poisson(0.5, (9, 7)).astype(float))
    targets = draw.integers(0, classes, 9) if classes > 2 else draw.choice([-1.0, 1.0], 9)
    model, loss = BagClassifier(7, outputs_of(tuple("abcd"[:classes]))), LOSSES[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(draw.normal(size=parameter.shape)))
    assert (loss.kind, loss.smooth) == (kind, True)

    def mean(table: np.ndarray, bias: np.ndarray) -> float:
        scores = matrix.toarray() @ table + bias
        return float(np.mean([plain_loss(kind, f, y) for f, y in zip(scores, targets, strict=True)]))

    table, bias = (p.detach().numpy().copy() for p in (model.table, model.bias))
    batch = DocumentBatch.of(matrix, targets, np.arange(9), 9)
    for transposed in (batch.transposed, None):
        model.zero_grad()
        values = loss(model(batch.matrix, transposed), batch.targets)
        assert values.shape == (9,)
        assert float(values.detach().mean()) == pytest.approx(mean(table, bias), rel=1e-12)
        values.mean().backward()
        for array, gradient in ((table, model.table.grad), (bias, model.bias.grad)):
            for place in np.ndindex(array.shape):
                before = array[place]
                array[place] = before + 1e-6
                above = mean(table, bias)
                array[place] = before - 1e-6
                slope = (above - mean(table, bias)) / 2e-6
                array[place] = before
                assert float(gradient[place]) == pytest.approx(slope, abs=1e-7)


def test_the_logistic_loss_is_exact_in_its_tails():
    scores = torch.tensor([-800.0, -40.0, 40.0, 800.0], dtype=torch.float64, requires_grad=True)
    loss = Logistic()(scores, torch.ones(4, dtype=torch.float64))
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.tensor([800.0, 40.0, np.exp(-40.0), 0.0], dtype=torch.float64))
    assert float(scores.grad[2]) == pytest.approx(-np.exp(-40.0))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("classes", [2, 3])
def test_the_training_step_runs_on_the_meta_device(kind, classes):
    """No step looks at a value, so that nothing waits for a GPU."""
    data = data_of(classes)
    module = ClassifierModule(
        BagClassifier(len(data.bag.layout), data.outputs), LOSSES[kind](), torch.optim.SGD, data.score, ()
    ).to("meta")
    batch = next(iter(data.batches("train", 8)))
    moved = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    moved = {name: v.to("meta") if isinstance(v, torch.Tensor) else v for name, v in moved.items()}
    loss = module.step(DocumentBatch(**moved))
    assert (loss.shape, loss.device.type) == ((), "meta")
    loss.backward()
    assert module.model.table.grad.shape == module.model.table.shape
    assert module.model.bias.grad.shape == (data.outputs,)


def test_products_entry_by_entry_equal_dense_products():
    matrix = sparse.random_array((6, 5), density=0.5, rng=np.random.default_rng(0), format="csr")
    rows, dense = tensor_of(matrix), torch.rand(5, 3, dtype=torch.float64)
    expected = torch.from_numpy(matrix.toarray()) @ dense
    torch.testing.assert_close(textcat_model._product(rows, dense), expected)
    result = torch.zeros(6, 3, dtype=torch.float64)
    places, columns, values = textcat_model._entries(rows)
    result.index_add_(0, places, textcat_model._scaled(dense[columns], values))
    torch.testing.assert_close(result, expected)
    dense = torch.from_numpy(matrix.toarray())
    torch.testing.assert_close(textcat_model._transposed_product(rows, expected), dense.T @ expected)
