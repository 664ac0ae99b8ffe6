"""Mixtures with Kneser-Ney against sums over the vocabulary, and the share that dev chooses against a grid."""

import numpy as np
import pytest
import torch

from structsparse import load
from structsparse.corpora.text import encode
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.kneser_ney import KneserNey
from structsparse.tasks.lm.mixture import Mixture
from structsparse.tasks.lm.model import NgramModel
from structsparse.tasks.lm.predictor import LanguageModel
from tests.support.language_models import DenseModel, sentences
from tests.tasks.lm.test_task import language_data, lm  # noqa: F401

SHARES = 0.0, 0.3, 1.0
BEST = ("preset=lm_best",)
COLLAPSED = "reg=tree_linf", "model.collapse=true", "model.alpha=1"


def mixture_of(seed: int, size: float, alpha: float = 0.8, base: str = "unigram") -> tuple[NgramModel, Mixture]:
    """A model with random weights of a size, and its mixtures."""
    model = NgramModel(ContextTree.build(encode(sentences(seed)), 4), alpha, base).double()
    weights = np.random.default_rng(seed).normal(size=len(model.table), scale=size)
    with torch.no_grad():
        model.table.copy_(torch.from_numpy(weights))
    return model, Mixture(model)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("alpha", "base"), [(1.0, "none"), (0.8, "unigram")])
def test_probabilities_are_weighted_geometric_means(share, alpha, base):
    model, mixture = mixture_of(1, 0.7, alpha, base)
    tree, mixed = model.tree, mixture.model(share)
    start = None if model.base is None else model.base.numpy()
    trained = DenseModel(LanguageModel.of(tree, model.table.detach().numpy(), alpha, start))
    counted = KneserNey(tree)
    text = encode(sentences(2, 15, 12), tree.vocabulary)
    places, expected = tree.locate(text), []
    for target, node in zip(text.targets.tolist(), places.node.tolist(), strict=True):
        begin = target - text.history[target]
        by_word = trained.probabilities([tree.vocabulary.name(code) for code in text.codes[begin:target].tolist()])
        masses = np.array([*by_word.values()]) ** (1 - share) * counted.distribution(node) ** share
        expected.append(np.log(masses[text.codes[target]] / masses.sum()))
    np.testing.assert_allclose(mixed.log_probabilities(places).detach(), expected, atol=1e-10)


@pytest.mark.parametrize("size", [0.0, 0.5, 3.0])
def test_no_share_is_better_on_dev_than_the_one_chosen(size):
    model, mixture = mixture_of(3, size)
    dev = model.tree.locate(encode(sentences(4, 30), model.tree.vocabulary))
    losses = [-float(mixture.model(share).log_probabilities(dev).mean()) for share in np.linspace(0, 1, 21)]
    chosen = mixture.chosen_share(dev)
    assert -float(mixture.model(chosen).log_probabilities(dev).mean()) <= min(losses) + 1e-9
    assert abs(np.linspace(0, 1, 21)[int(np.argmin(losses))] - chosen) <= 0.05


def test_dev_may_choose_kneser_ney_alone_or_the_trained_model_alone():
    model, mixture = mixture_of(5, 100.0)  # weights of this size make nearly every word impossible
    dev = model.tree.locate(encode(sentences(5), model.tree.vocabulary))
    assert mixture.chosen_share(dev) > 0.9
    with torch.no_grad():  # Kneser-Ney is a worse fit of its own training text than relative frequencies
        mixture.trained = mixture.kneser_ney
        mixture.kneser_ney = torch.from_numpy(np.random.default_rng(0).normal(size=len(model.table), scale=100))
    assert mixture.chosen_share(dev) < 0.1


@pytest.mark.parametrize("options", [BEST, COLLAPSED], ids=" ".join)
def test_a_run_tests_and_exports_the_mixture(options, lm):  # noqa: F811
    options = *options, "trainer.max_epochs=20"
    runs = {share: lm(*options, f"model.kneser_ney={share}", folder=share) for share in ("0", "dev", "1")}
    assert {run.status for run in runs.values()} == {0}, [run.errors for run in runs.values()]
    metrics = {share: run.metrics for share, run in runs.items()}
    assert 0 < metrics["dev"]["kneser_ney"] < 1
    assert metrics["dev"]["dev_perplexity"] < min(metrics["0"]["dev_perplexity"], metrics["1"]["dev_perplexity"])
    assert metrics["dev"]["objective"] == metrics["0"]["objective"]
    texts = language_data().texts
    known = texts.test.known[texts.test.targets]
    for run in runs.values():
        values = load(run.folder / "model").log_probabilities(texts.test)[known]
        assert np.exp(-values.mean()) == pytest.approx(run.metrics["perplexity"], rel=1e-5)
    alone = KneserNey(ContextTree.build(texts.train, 3)).log_probabilities(texts.test)
    assert metrics["1"]["perplexity"] == pytest.approx(np.exp(-alone[known].mean()), rel=1e-9)
