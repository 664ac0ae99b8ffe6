"""Penalties attached to a network: which parameters they are on, and the prox after each step of a plain loop."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from structsparse.base.errors import UserError
from structsparse.groups import by_row, modules
from structsparse.networks.attach import attach, proximal
from structsparse.penalties import L1, GroupLasso
from structsparse.solvers.base import solver_of
from structsparse.solvers.fista import FISTA


class Network(nn.Module):
    """Some of everything."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0), 2, enable_nested_tensor=False
        )
        self.convolution = nn.Conv1d(8, 6, 3)
        self.across = nn.MultiheadAttention(6, 3, kdim=4, vdim=5, batch_first=True)
        self.up = nn.ConvTranspose1d(6, 4, 2)
        self.output = nn.Linear(4, 3)

    def forward(self, words):
        x = self.convolution(self.encoder(self.embedding(words)).transpose(1, 2))
        x, _ = self.across(x.transpose(1, 2), x.transpose(1, 2)[..., :4], x.transpose(1, 2)[..., :5])
        return self.output(self.up(x.transpose(1, 2)).transpose(1, 2))


def test_attach_takes_names_functions_and_mappings():
    model = Network()
    by_name = attach("group_lasso", model, groups="module_rows", parameters="*linear1.weight", strength=0.5)
    assert list(by_name) == [f"encoder.layers.{k}.linear1.weight" for k in (0, 1)]
    assert all(isinstance(p, GroupLasso) and float(p.strength) == 0.5 for p in by_name.values())
    by_function = attach(GroupLasso, model, groups=modules.rows, parameters="*linear1.weight", strength=0.5)
    by_mapping = attach(GroupLasso, model, modules.linear_rows(model, "*linear1.weight"), strength=0.5)
    for name, penalty in by_name.items():
        for other in (by_function[name], by_mapping[name]):
            assert torch.equal(penalty.groups.ids, other.groups.ids)
            assert list(penalty.groups.names) == list(other.groups.names)
    assert isinstance(attach("l1", model, parameters="output.*", strength=1.0)["output.bias"], L1)
    sparse = attach("sparse_group_lasso", model, "module_columns", "output.*", "one", strength=1.0, mix=0.3)
    assert sparse["output.weight"].mix == 0.3
    assert sparse["output.weight"].groups.weight.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"penalty": "lasso"}, "unknown penalty 'lasso'.*group_lasso"),
        ({"groups": "rows"}, "groups='rows' is no unit.*module_rows"),
        ({"parameters": "x*"}, "'x\\*' matches no linear layer"),
        ({"penalty": "l1", "groups": None, "parameters": "x*"}, "'x\\*' matches no parameter"),
        ({"groups": {"nowhere": by_row((2, 2))}}, "'nowhere'"),
        ({"strenght": 1e-3}, "GroupLasso has no option 'strenght', it takes groups, strength; did you mean strength"),
        ({"mix": 0.5}, "GroupLasso has no option 'mix', it takes groups, strength$"),
        ({"penalty": "sparse_group_lasso"}, "SparseGroupLasso needs the option 'mix', it takes groups, strength, mix"),
        ({"penalty": "l1"}, "L1 has no option 'groups', it takes strength, weights"),
        ({"groups": None}, "GroupLasso needs the option 'groups'"),
    ],
)
def test_attach_names_what_is_wrong(options, expected):
    with pytest.raises(UserError, match=expected):
        attach(**{"penalty": "group_lasso", "model": Network(), "groups": "module_rows", "strength": 1.0, **options})


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)])
def test_a_loop_without_lightning_applies_the_prox_of_the_step_taken(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    twin = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    twin.load_state_dict(model.state_dict())
    penalties = attach("group_lasso", model, groups="module_rows", parameters="0.weight", strength=0.05)
    optimizer, other = make(model.parameters(), lr=0.03), make(twin.parameters(), lr=0.03)
    handle = proximal(optimizer, model, penalties)
    x = torch.randn(20, 4, dtype=torch.float64)
    y = x[:, :2].tanh()
    for step in range(30):
        if step == 25:
            handle.remove()
        for net, solver in ((model, optimizer), (twin, other)):
            solver.zero_grad()
            F.mse_loss(net(x), y).backward()
            solver.step()
        if step < 25:
            with torch.no_grad():
                weight = twin[0].weight
                penalties["0.weight"].prox_(weight, solver_of(other).effective_step(other.param_groups[0], weight))
        for one, two in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(one, two)


def test_a_strong_penalty_ends_with_rows_that_are_exactly_zero():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    penalties = attach("group_lasso", model, groups="module_rows", parameters="0.weight", strength=0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    proximal(optimizer, model, penalties)
    x = torch.randn(64, 4)
    for _ in range(300):
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :1].tanh()).backward()
        optimizer.step()
    alive = penalties["0.weight"].groups.alive(model[0].weight)
    assert 0 < int(alive.sum()) < 8
    assert not model[0].weight[~alive].any()


def test_the_loop_refuses_what_it_cannot_follow():
    model = nn.Sequential(nn.Linear(2, 2))
    penalties = attach("group_lasso", model, groups="module_rows", strength=1.0)
    with pytest.raises(UserError, match="weight_decay"):
        proximal(torch.optim.Adam(model.parameters(), weight_decay=0.1), model, penalties)
    with pytest.raises(UserError, match="not among those"):
        proximal(torch.optim.Adam([model[0].bias]), model, penalties)
    with pytest.raises(UserError, match="'x'"):
        proximal(torch.optim.Adam(model.parameters()), model, {"x": L1(1.0)})


def test_a_penalty_that_takes_any_option_is_given_all_of_them():
    def make(strength, **options):
        return L1(strength * options["factor"])

    assert (
        float(attach(make, Network(), parameters="output.bias", strength=2.0, factor=3.0)["output.bias"].strength) == 6
    )


def test_the_prox_follows_the_learning_rate_of_a_loaded_state():
    """`load_state_dict` replaces the parameter groups of an optimizer."""
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    proximal(optimizer, model, {"weight": L1(1.0)})
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 0.25
    with torch.no_grad():
        model.weight.fill_(1.0)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    assert model.weight.tolist() == [[0.75] * 3]


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.5), FISTA], ids=["sgd", "fista"])
def test_penalties_are_not_applied_twice(make):
    model = nn.Linear(3, 1)
    optimizer = make(model.parameters())
    handle = proximal(optimizer, model, {"weight": L1(1.0)})
    with pytest.raises(UserError, match="applies penalties already, a second call would apply them twice"):
        proximal(optimizer, model, {"bias": L1(1.0)})
    handle.remove()
    proximal(optimizer, model, {"bias": L1(1.0)})
