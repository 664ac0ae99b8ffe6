"""The reconstruction loss on sparse rows against the same sum over a dense matrix, with its gradients by autograd."""

import pytest
import torch
from torch.autograd import gradcheck

from structsparse.base.errors import UserError
from structsparse.losses import PMIReconstruction, reconstruction
from structsparse.losses.reconstruction import SparseRows

OPTIONS = {
    "all alike": {},
    "entries": {"weighting": "entries", "rest": 0.2},
    "only entries": {"weighting": "entries"},
    "glove": {"weighting": "glove", "most": 5.0},
}
DIMENSIONS, WORDS, CONTEXTS = 4, 6, 9


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, a dictionary, a dense matrix with zeros and an empty row, and counts."""
    rng = torch.Generator().manual_seed(0)
    codes = torch.randn(DIMENSIONS, WORDS, generator=rng, dtype=torch.float64)
    dictionary = torch.randn(DIMENSIONS, CONTEXTS, generator=rng, dtype=torch.float64)
    matrix = torch.randn(WORDS, CONTEXTS, generator=rng, dtype=torch.float64)
    matrix *= torch.rand(WORDS, CONTEXTS, generator=rng) < 0.4
    matrix[2] = 0
    counts = torch.randint(1, 10, (WORDS, CONTEXTS), generator=rng)
    return codes.requires_grad_(), dictionary.requires_grad_(), matrix, counts


def sparse_rows(matrix: torch.Tensor, counts: torch.Tensor) -> SparseRows:
    row, column = matrix.nonzero(as_tuple=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(row, minlength=len(matrix)).cumsum(0)])
    return SparseRows(matrix[row, column], column, starts, counts[row, column])


def dense_loss(name: str, codes, dictionary, matrix, counts) -> torch.Tensor:
    """The formula, for every pair of a word and a context."""
    there = (matrix != 0).double()
    weights = {
        "all alike": torch.ones_like(matrix),
        "entries": torch.where(there > 0, 1.0, 0.2),
        "only entries": there,
        "glove": there * (counts / 5.0).clamp(max=1) ** 0.75,
    }[name]
    return (weights * (matrix - codes.T @ dictionary) ** 2).sum() / 2


@pytest.fixture(params=[3, 1 << 16])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(reconstruction, "ENTRIES", request.param)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("name", OPTIONS)
def test_the_loss_and_its_gradients_are_those_of_the_dense_matrix(name):
    codes, dictionary, matrix, counts = example()
    rows, loss = sparse_rows(matrix, counts), PMIReconstruction(**OPTIONS[name])
    expected = dense_loss(name, codes, dictionary, matrix, counts)
    found = loss(codes, dictionary, rows)
    torch.testing.assert_close(found, expected)
    slopes = torch.autograd.grad(expected, (codes, dictionary))
    torch.testing.assert_close(torch.autograd.grad(found, (codes, dictionary)), slopes)
    assert gradcheck(lambda a, d: loss(a, d, rows), (codes, dictionary))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_loss_runs_without_data(name):
    codes, dictionary, matrix, counts = example()
    rows = SparseRows(*(part.to("meta") for part in sparse_rows(matrix, counts)))
    loss = PMIReconstruction(**OPTIONS[name])(codes.to("meta"), dictionary.to("meta"), rows)
    assert loss.is_meta
    assert loss.shape == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "pmi"}, "loss.weighting is pmi"),
        ({"rest": 2.0}, "loss.rest is 2.0"),
        ({"most": 0.0}, "loss.most=0.0"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(UserError, match=message):
        PMIReconstruction(**options)
