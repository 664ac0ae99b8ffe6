"""Ridge and then a sparse part beside it: what dev must show before a sparser model replaces ridge."""

from types import SimpleNamespace

import numpy as np
import pytest

from structsparse.training.search.candidates import Candidate, Rules, Setting
from structsparse.training.search.ridge_search import RidgeSearch

ITEMS = 200


def candidate(mistakes: int, loss: float, metric: str = "accuracy") -> Candidate:
    """A model that is wrong on the first items of dev; under mse its squared error on these is 1."""
    wrong = np.arange(ITEMS) < mistakes
    right = wrong if metric == "mse" else ~wrong
    counts = np.stack([right, np.ones(ITEMS), np.ones(ITEMS)], axis=1).astype(np.int64)
    return Candidate({metric: right.mean(), "loss": loss, "groups": None, "weights": 100 - mistakes}, counts)


def search(choose: str = "best", metric: str = "accuracy") -> RidgeSearch:
    rules = Rules(ratio=0.5, last=0.1, patience=3, choose=choose, ties="loss")
    setting = Setting(None, rules, None, SimpleNamespace(metric=metric), None, False, None)
    return RidgeSearch(setting, None, None, {})


@pytest.mark.parametrize(
    ("fewer", "loss", "chosen"),
    [
        (0, 0.1, 0),  # as many right: a smaller loss is no evidence
        (2, 0.1, 0),  # two documents, whose standard error is 1.4
        (8, 0.1, 1),  # eight documents, whose standard error is 2.8
        (8, 0.2, 1),  # no larger loss
        (8, 0.3, 0),
        (-4, 0.1, 0),
    ],
)
@pytest.mark.parametrize("metric", ["accuracy", "mse"])
def test_a_sparse_model_replaces_ridge_only_where_dev_gives_evidence(fewer, loss, chosen, metric):
    models = [candidate(10, 0.2, metric), candidate(10 - fewer, loss, metric)]
    assert search(metric=metric)._chosen(models) == chosen


def test_of_several_with_evidence_the_best_is_taken():
    models = [candidate(20, 0.3), candidate(12, 0.2), candidate(10, 0.2), candidate(10, 0.1), candidate(5, 0.4)]
    assert search()._chosen(models) == 3


def test_the_smallest_within_a_standard_error_needs_no_evidence():
    ridge, small = candidate(10, 0.2), candidate(10, 0.3)
    small.row["weights"] = 5
    assert search("one_se")._chosen([ridge, small]) == 1
    assert search("best")._chosen([ridge, small]) == 0


@pytest.mark.parametrize(
    ("choose", "losses", "ends"),
    [
        ("best", (0.2, 0.3), False),
        ("best", (0.2, 0.3, 0.4), True),
        ("best", (0.2, 0.3, 0.2), False),
        ("best", (0.2, 0.1, 0.3, 0.4), True),
        ("one_se", (0.2, 0.3, 0.4), False),
    ],
)
def test_the_path_ends_where_larger_losses_rule_out_that_ridge_is_replaced(choose, losses, ends):
    assert search(choose)._hopeless([candidate(10, loss) for loss in losses]) is ends
