"""AdamW on columns against torch's AdamW with a parameter for each column; and on `meta`, where no value is read."""

import numpy as np
import pytest
import torch
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.losses import PMIReconstruction
from structsparse.penalties import L1, TreeGroupLasso
from structsparse.solvers import ColumnAdamW
from structsparse.tasks.embeddings.data import WordBatch, WordData
from structsparse.tasks.embeddings.groups import trees_of_dimensions
from structsparse.tasks.embeddings.task import VectorModule, codes
from structsparse.weights.columns import columns

ROWS, COLUMNS, BATCHES = 7, 6, ([0, 3], [5, 1], [3, 2], [4, 0])
OPTIONS = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}


def table(seed: int = 0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed)).double())


def losses(parts: torch.Tensor) -> torch.Tensor:
    """A loss of each column, of [rows, columns]."""
    return ((parts - torch.linspace(-1, 1, ROWS)[:, None]).square() * torch.arange(1, ROWS + 1)[:, None]).sum(0) / 2


def test_the_dense_gradient_of_columns_is_that_of_indexing():
    indices, one, other = torch.tensor([4, 1]), table(), table()
    (columns(one, indices).sin() * torch.arange(2)).sum().backward()
    (other[:, indices].sin() * torch.arange(2)).sum().backward()
    assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("penalty", ["none", "l1", "tree"])
def test_each_column_takes_its_own_steps_of_adamw(penalty):
    """The route of the test: each column is a parameter of its own, whose optimizer steps when its batch comes."""
    groups = trees_of_dimensions((ROWS, COLUMNS), trees=1, branching=[2, 2])
    penalties = {"none": None, "l1": L1(0.05), "tree": TreeGroupLasso(groups, 0.05)}
    together, free = table(), torch.nn.Parameter(torch.ones(3).double())
    apart = [torch.nn.Parameter(together[:, [k]].detach().clone()) for k in range(COLUMNS)]
    own_free = torch.nn.Parameter(free.detach().clone())
    solver = ColumnAdamW([together, free], whole=0.5, **OPTIONS)
    solvers = [torch.optim.AdamW([column], weight_decay=0.0, **OPTIONS) for column in apart]
    plain = torch.optim.AdamW([own_free], **{**OPTIONS, "lr": 0.05}, weight_decay=0.0)
    for batch in BATCHES * 3:
        solver.zero_grad()
        (losses(columns(together, torch.tensor(batch))).mean() + free.square().sum()).backward()
        solver.step()
        plain.zero_grad()
        own_free.square().sum().backward()
        plain.step()
        if penalties[penalty] is not None:
            (group,) = solver.param_groups
            solver.prox_(penalties[penalty], together.data, 0.0)  # nothing is known of this tensor: nothing happens
            with torch.no_grad():
                step = solver.rate(group) * solver.metric(group, together)
                solver.prox_(penalties[penalty], together, step)
        for k in batch:
            solvers[k].zero_grad()
            (losses(apart[k]).sum() / len(batch)).backward()
            solvers[k].step()
            if penalties[penalty] is not None:
                _prox_of_a_column(penalties[penalty], solvers[k], apart[k], COLUMNS / len(batch))
        torch.testing.assert_close(together.detach(), torch.cat([c.detach() for c in apart], dim=1))
        torch.testing.assert_close(free, own_free)
    assert penalty == "none" or (together == 0).any()


@pytest.mark.parametrize(("whole", "shares"), [(None, (1 / 3, 1, 1)), (0.2, (0.2, 0.2, 0.2))])
def test_parameters_that_move_as_a_whole_have_a_share_of_the_rate(whole, shares):
    """The first step of AdamW has the length of the rate in each entry."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 9), (1, 9), (4,))]
    solver = ColumnAdamW(parameters, lr=0.1, whole=whole)
    sum(parameter.sum() for parameter in parameters).backward()
    solver.step()
    for parameter, share in zip(parameters, shares, strict=True):
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, -0.1 * share))


@torch.no_grad()
def _prox_of_a_column(penalty, optimizer, column, share) -> None:
    state = optimizer.state[column]
    square = state["exp_avg_sq"] / (1 - OPTIONS["betas"][1] ** float(state["step"]))
    penalty.prox_(column, share * OPTIONS["lr"] / (square.sqrt() + OPTIONS["eps"]))


def word_data(words: int = 9) -> WordData:
    rng = np.random.default_rng(0)
    matrix = sparse.random_array((words, words), density=0.5, rng=rng, dtype=np.float32, format="csr")
    names = tuple(f"w{k}" for k in range(words))
    return WordData("random", names, np.arange(words, 0, -1), matrix, np.ones_like(matrix.data))


@pytest.mark.parametrize("weighting", ["none", "glove"])
@pytest.mark.parametrize("solver", [ColumnAdamW, torch.optim.AdamW])
def test_the_step_of_word_vectors_asks_for_no_value(solver, weighting):
    data = word_data()
    model = codes(data, 7, biases=weighting == "glove")
    module = VectorModule(model, PMIReconstruction(weighting), solver, data).to("meta")
    batch = next(iter(data.batches("train", 4))).to("meta")
    optimizer = solver([{"params": [model.table], "weight_decay": 0.0}, {"params": [*model.parameters()][1:]}])
    module.step(batch).backward()
    optimizer.step()
    model.constrain_()
    groups = trees_of_dimensions(tuple(model.table.shape), trees=1, branching=[2, 2])
    for penalty in (L1(0.1), TreeGroupLasso(groups, 0.1).to("meta")):
        moved = penalty.prox_(model.table.detach()[:, batch.words], torch.ones(7, 4, device="meta"))
        assert moved.is_meta
    assert model.table.is_meta
    assert all(len(state) == 3 for state in optimizer.state.values())


def test_a_batch_is_the_same_on_another_device():
    data = word_data()
    batch = WordBatch("train", torch.tensor([3, 1]), 0, data)
    assert batch.to("cpu") is batch
    assert [part.shape for part in batch.to("meta").rows] == [part.shape for part in batch.rows]
    model = codes(data, 3, biases=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    dense = torch.from_numpy(data.matrix.toarray()[[3, 1]])
    made = model.table[:, [3, 1]].T @ model.dictionary + model.word_bias[0, [3, 1]][:, None] + model.context_bias
    expected = (dense - made).square().sum() / 2
    torch.testing.assert_close(model.loss(PMIReconstruction(), batch.words, batch.rows), expected)


@pytest.mark.parametrize(
    ("options", "message"), [({"betas": (0.9, 1.0)}, "solver.betas is"), ({"lr": -1.0}, "zero or positive")]
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(UserError, match=message):
        ColumnAdamW([torch.nn.Parameter(torch.zeros(2, 2))], **options)
