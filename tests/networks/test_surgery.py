"""Removing dead units: the outputs stay, on random inputs, whatever is dead; what cannot go stays and says why."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn

from structsparse.base.errors import UserError
from structsparse.networks.attention import SlimAttention
from structsparse.networks.surgery import difference, load, remove_dead, save

CLOSE = 1e-12  # in float64

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask"),
]


@pytest.fixture(autouse=True)
def in_float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@torch.no_grad()
def spread(model):
    """Biases that are not zero, so that constants matter."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_()
    return model


@torch.no_grad()
def kill(layer, rows=(), columns=()):
    layer.weight[[int(row) for row in rows]] = 0
    layer.weight[:, [int(column) for column in columns]] = 0


def slimmed(model, *inputs, **options):
    """The slim model and its report; it does what the model does, in both modes, and the model is as it was."""
    state = copy.deepcopy(model.state_dict())
    slim, report = remove_dead(model)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert report.parameters_after == sum(p.numel() for p in slim.parameters())
    assert report.parameters_before == sum(p.numel() for p in model.parameters())
    assert difference(model, slim, *inputs, **options) < CLOSE
    if not any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()):
        with torch.no_grad():
            one, other = model.train()(*inputs, **options), slim.train()(*inputs, **options)
        torch.testing.assert_close(other, one, rtol=CLOSE, atol=CLOSE)
    return slim, report


def units(report):
    return {layer.name: (layer.units_before, layer.units_after) for layer in report.layers}


def kept(report):
    return {layer.name: layer.kept for layer in report.layers if layer.kept}


class Functional(nn.Module):
    """Layers called by hand."""

    def __init__(self, between=torch.relu):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.between = between

    def forward(self, x):
        return self.third(F.dropout(self.between(self.second(F.gelu(self.first(x)))), 0.0, self.training) * 2.0 + 1.0)


# Linear layers

ACTIVATIONS = [nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.ELU, nn.Softplus, nn.Identity, lambda: nn.ReLU(True)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5,), (1, 5), (7, 5), (2, 3, 5), (0, 5)])
def test_random_dead_neurons(activation, shape):
    for trial in range(6):
        generator = torch.Generator().manual_seed(trial)
        model = spread(
            nn.Sequential(nn.Linear(5, 8), activation(), nn.Linear(8, 6, bias=trial % 2 == 0), activation(),
                          nn.Dropout(0.0), nn.Linear(6, 3, bias=trial % 3 > 0))
        )  # fmt: skip
        constant = [torch.rand(8, generator=generator) < 0.4, torch.rand(6, generator=generator) < 0.3]
        unread = [torch.rand(8, generator=generator) < 0.2, torch.rand(6, generator=generator) < 0.2]
        for c, u in zip(constant, unread, strict=True):
            c[0] = u[0] = False
        for k in (0, 1):
            kill(model[2 * k], rows=constant[k].nonzero()[:, 0])
            kill(model[2 if k == 0 else 5], columns=unread[k].nonzero()[:, 0])
        slim, report = slimmed(model, torch.randn(shape))
        living = [int((~(c | u)).sum()) for c, u in zip(constant, unread, strict=True)]
        assert units(report) == {"0": (8, living[0]), "2": (6, living[1]), "5": (3, 3)}
        assert (slim[0].out_features, slim[2].in_features, slim[2].out_features) == (living[0], living[0], living[1])
        assert not kept(report)


def test_sums_of_whole_numbers_stay_the_same_to_the_last_bit():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape))
    kill(model[0], rows=[1, 2])
    kill(model[2], rows=[5], columns=[4, 2])
    slim, report = remove_dead(model)
    x = torch.randint(-5, 6, (50, 5)).double()
    assert torch.equal(model(x), slim(x))
    assert units(report) == {"0": (8, 5), "2": (6, 5), "4": (3, 3)}


@pytest.mark.parametrize("between", [torch.relu, F.elu, torch.tanh, F.silu, lambda x: x.sigmoid(), lambda x: x])
def test_layers_called_by_hand(between):
    model = spread(Functional(between))
    kill(model.first, rows=[0, 3])
    kill(model.second, rows=[1], columns=[5])
    kill(model.third, columns=[0, 1])
    _, report = slimmed(model, torch.randn(4, 5))
    assert units(report) == {"first": (8, 5), "second": (6, 4), "third": (3, 3)}


def test_what_dies_by_the_death_of_others_goes_too():
    model = spread(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)))
    kill(model[4], columns=[0, 1])
    with torch.no_grad():
        model[2].weight[2:, 7] = 0  # unit 7 is read by dead units only
        model[2].weight[4, [k for k in range(8) if k != 3]] = 0  # unit 4 reads a constant only
    kill(model[0], rows=[3])
    _, report = slimmed(model, torch.randn(4, 5))
    assert units(report) == {"0": (8, 6), "2": (6, 3), "4": (3, 3)}


def test_a_layer_keeps_one_unit():
    model = spread(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)))
    kill(model[0], rows=range(8))
    _, report = slimmed(model, torch.randn(4, 5))
    assert units(report)["0"] == (8, 1)
    assert "needs one unit" in kept(report)["0"]


def test_nothing_dead_nothing_changed():
    model = spread(Functional())
    slim, report = slimmed(model, torch.randn(4, 5))
    assert report.parameters_after == report.parameters_before
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), slim.parameters(), strict=True))


def test_what_is_left_learns_as_before():
    model = spread(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)))
    kill(model[2], columns=[1, 4])
    slim, _ = remove_dead(model)
    slim[0].bias.requires_grad_(True)
    x, y = torch.randn(9, 5), torch.randn(9, 3)
    for net in (model, slim):
        F.mse_loss(net(x), y).backward()
    stays = [0, 2, 3, 5, 6, 7]
    torch.testing.assert_close(slim[0].weight.grad, model[0].weight.grad[stays])
    torch.testing.assert_close(slim[2].weight.grad, model[2].weight.grad[:, stays])
    model[0].weight.requires_grad_(False)
    assert not remove_dead(model)[0][0].weight.requires_grad


def test_dropout_between_counts_as_its_mean():
    model = spread(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)))
    kill(model[0], rows=[2])
    slim, report = slimmed(model, torch.randn(4, 5))
    assert units(report)["0"] == (8, 7)
    x = torch.zeros(40_000, 5)
    torch.testing.assert_close(slim.train()(x).mean(0), model.train()(x).mean(0), atol=0.05, rtol=0)


def test_embedding_columns():
    model = spread(nn.Sequential(nn.Embedding(9, 6, padding_idx=0), nn.Dropout(0.0), nn.Linear(6, 4)))
    kill(model[0], columns=[1, 5])
    kill(model[2], columns=[2])
    slim, report = slimmed(model, torch.randint(0, 9, (3, 5)))
    assert units(report)["0"] == (6, 3)
    assert slim[0].embedding_dim == 3


def test_float32_too():
    model = spread(nn.Sequential(nn.Linear(5, 64), nn.GELU(), nn.Linear(64, 3))).float()
    kill(model[0], rows=range(0, 64, 2))
    slim, _ = remove_dead(model)
    assert slim[2].bias.dtype == torch.float32
    assert difference(model, slim, torch.randn(100, 5).float()) < 1e-5


# Convolutions


def images(dimensions, size=9):
    return torch.randn(3, 2, *[size] * dimensions)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, "circular", "reflect", "replicate", "valid"])
def test_dead_filters(dimensions, padding):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    options = {"padding": 1, "padding_mode": padding} if isinstance(padding, str) and padding != "valid" else {}
    options = options or {"padding": padding}
    model = spread(nn.Sequential(kind(2, 6, 3, padding=1), nn.Tanh(), kind(6, 5, 3, stride=2, **options), nn.ReLU(),
                                 kind(5, 2, 1)))  # fmt: skip
    kill(model[0], rows=[1, 4])
    kill(model[2], rows=[0], columns=[5])
    slim, report = slimmed(model, images(dimensions))
    assert units(report) == {"0": (6, 3), "2": (5, 4), "4": (2, 2)}
    assert (slim[0].out_channels, slim[2].in_channels, slim[2].out_channels) == (3, 3, 4)


@pytest.mark.parametrize("padding", [1, "same", (0, 1)])
def test_a_constant_among_zeros_stays_unless_it_is_zero(padding):
    model = spread(nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3, padding=padding)))
    kill(model[0], rows=[1, 2, 3])
    kill(model[2], columns=[3])
    with torch.no_grad():
        model[0].bias[1:4] = torch.tensor([0.5, -0.5, 0.5])
    _, report = slimmed(model, images(2))
    assert units(report)["0"] == (6, 4)
    assert "zeros around" in kept(report)["0"]


POOLS = [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1, count_include_pad=False),
         nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(2)]  # fmt: skip


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_pools_and_a_flatten_between(pool):
    places = pool(torch.zeros(1, 6, 7, 7))[0, 0].numel()
    model = spread(
        nn.Sequential(nn.Conv2d(2, 6, 3), nn.GELU(), pool, nn.Dropout2d(0.0), nn.Flatten(), nn.Linear(6 * places, 4))
    )
    kill(model[0], rows=[1, 4])
    kill(model[5], columns=range(3 * places, 4 * places))
    kill(model[5], columns=[0])  # one place of a unit is not all of it
    _, report = slimmed(model, images(2))
    assert units(report) == {"0": (6, 3), "5": (4, 4)}


def test_an_average_over_zeros_around_is_no_constant():
    model = spread(nn.Sequential(nn.Conv2d(2, 6, 3), nn.AvgPool2d(3, 2, 1), nn.Conv2d(6, 2, 3)))
    kill(model[0], rows=[1])
    _, report = slimmed(model, images(2))
    assert units(report)["0"] == (6, 6)
    assert "zeros around" in kept(report)["0"]


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 5, 3), nn.Linear(5, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.adaptive_avg_pool2d(torch.tanh(self.second(x)), 1)
        return self.head(torch.flatten(x, 1))


def test_convolutions_called_by_hand():
    model = spread(Convolutional())
    kill(model.first, rows=[0])
    kill(model.second, rows=[1, 2])
    _, report = slimmed(model, images(2))
    assert units(report) == {"first": (6, 5), "second": (5, 3), "head": (3, 3)}


# What cannot go


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.third(self.second(torch.relu(self.first(x))) + x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        return self.second(self.first(self.first(x)))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        x = self.first(x)
        return self.second(x) + self.third(x)


class ByMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        x = self.first(x)
        return self.second(x) if self.training else self.third(x)


class ByArgument(ByMode):
    def forward(self, x, mask=None):
        x = self.first(x)
        return self.second(x) if mask is None else self.third(x)


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        return self.second(self.first(x)) + F.linear(x, self.first.weight)


def tied():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    model[2].weight = model[0].weight
    return model


def listed_twice():
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    model[0].register_forward_hook(lambda module, inputs, output: output + 1)
    return model


def hooked_between():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    model[1].register_forward_hook(lambda module, inputs, output: output.flip(-1))
    return model


def parametrized():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    nn.utils.parametrizations.weight_norm(model[2])
    return model


def masked():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    with torch.no_grad():
        return nn.utils.prune.identity(model[2], "weight") and model


def chain(*between, last=None):
    return lambda: nn.Sequential(nn.Linear(5, 5), *between, last or nn.Linear(5, 5))


REFUSED = {
    "BatchNorm": (chain(nn.BatchNorm1d(5)), "BatchNorm1d 1 reads the output of 0"),
    "LayerNorm": (chain(nn.LayerNorm(5), nn.ReLU()), "LayerNorm 1 reads"),
    "Softmax": (chain(nn.Softmax(-1)), "Softmax 1 reads"),
    "PReLU": (chain(nn.PReLU(5)), "PReLU 1 reads"),
    "pool": (chain(nn.MaxPool1d(3, 1, 1)), "mixes units"),
    "outputs": (lambda: nn.Sequential(nn.Linear(5, 5)), "outputs of the model"),
    "tied": (tied, "shares a parameter"),
    "listed twice": (listed_twice, "more than once"),
    "called twice": (Twice, "used 2 times"),
    "two readers": (Two, "several places"),
    "by mode": (ByMode, "depends on the mode"),
    "by argument": (ByArgument, "depends on the mode or on the arguments"),
    "by hand": (ByHand, "used elsewhere"),
    "hook": (hooked, "has hooks"),
    "hook between": (hooked_between, "ReLU 1 reads"),
    "parametrized": (parametrized, "ParametrizedLinear 2 reads"),
    "masked": (masked, "computes its weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_go_stays_and_says_why(case):
    make, why = REFUSED[case]
    model = spread(make().double())
    first = model.first if hasattr(model, "first") else model[0]
    kill(first, rows=[1, 2])
    _, report = slimmed(model, torch.randn(4, 5))
    assert report.parameters_after == report.parameters_before
    (reason, *_) = kept(report).values()
    assert reason.startswith("2: ")
    assert why in reason
    with pytest.raises(UserError, match=why):
        remove_dead(model, strict=True)


def test_a_model_that_cannot_be_copied_is_refused():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    nn.utils.prune.identity(model[1], "weight")
    with pytest.raises(UserError, match="cannot be copied"):
        remove_dead(model)


def test_the_width_of_a_residual_stays():
    model = spread(Residual())
    kill(model.first, rows=[1])
    kill(model.second, rows=[0, 2])
    _, report = slimmed(model, torch.randn(4, 5))
    assert units(report) == {"first": (5, 4), "second": (5, 5), "third": (2, 2)}
    assert "add reads the output of second" in kept(report)["second"]


def test_blocks_of_channels_stay():
    model = spread(nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.ReLU(), nn.Conv1d(4, 2, 3)))
    kill(model[0], rows=[1])
    _, report = slimmed(model, images(1))
    assert "groups=2" in kept(report)["0"]


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 5))
        self.outer = nn.Linear(5, 2)

    def forward(self, x):
        while float(x.detach().abs().max()) > 2:
            x = x / 2
        return self.outer(self.inner(x))


def test_where_a_model_cannot_be_traced_its_parts_are():
    model = spread(Untraceable())
    kill(model.inner[0], rows=[1, 2])
    kill(model.inner[2], rows=[1])
    _, report = slimmed(model, torch.randn(4, 5))
    assert units(report) == {"inner.0": (8, 6), "inner.2": (5, 5), "outer": (2, 2)}
    assert "outputs" in kept(report)["inner.2"]


# Attention


class Attend(nn.Module):
    """Self-attention, or attention to something else."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 4, **options)

    def forward(self, x, y=None, z=None, **options):
        y = x if y is None else y
        return self.attention(x, y, y if z is None else z, **options)[0]


@torch.no_grad()
def kill_heads(attention, silent=(), unread=()):
    """Value rows of some heads, output columns of others."""
    width = attention.head_dim
    for h in silent:
        if attention.in_proj_weight is None:
            attention.v_proj_weight[h * width : (h + 1) * width] = 0
        else:
            first = 2 * attention.embed_dim + h * width
            attention.in_proj_weight[first : first + width] = 0
    for h in unread:
        attention.out_proj.weight[:, h * width : (h + 1) * width] = 0


def padding(batch, time):
    mask = torch.zeros(batch, time, dtype=torch.bool)
    mask[0, time - 2 :] = True
    return mask


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": padding(3, 5)},
    "padding in numbers": {"key_padding_mask": torch.zeros(3, 5).double().masked_fill(padding(3, 5), -torch.inf)},
    "causal": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1), "is_causal": True},
    "numbers": {"attn_mask": torch.linspace(-2, 2, 25, dtype=torch.float64).view(5, 5)},
    "a mask per head": {"attn_mask": torch.linspace(-2, 2, 300, dtype=torch.float64).view(12, 5, 5).sin()},
    "both": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(2), "key_padding_mask": padding(3, 5)},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_dead_heads(masks, need_weights, batch_first, bias):
    model = spread(Attend(batch_first=batch_first, bias=bias))
    kill_heads(model.attention, silent=[2], unread=[0])
    x = torch.randn(3, 5, 12) if batch_first else torch.randn(5, 3, 12)
    slim, report = slimmed(model, x, need_weights=need_weights, **MASKS[masks])
    assert units(report) == {"attention": (4, 2)}
    assert isinstance(slim.attention, SlimAttention)
    assert slim.attention.living == [1, 3]
    again, report = remove_dead(slim)
    assert units(report) == {"attention": (2, 2)}
    with torch.no_grad():
        slim.attention.value.weight[:3] = 0
    again, report = slimmed(slim, x, need_weights=need_weights, **MASKS[masks])
    assert again.attention.living == [3]


def test_attention_to_something_of_another_width():
    model = spread(Attend(kdim=7, vdim=6, batch_first=True))
    kill_heads(model.attention, silent=[1], unread=[3])
    slim, report = slimmed(model, torch.randn(3, 5, 12), torch.randn(3, 4, 7), torch.randn(3, 4, 6))
    assert units(report) == {"attention": (4, 2)}
    assert slim.attention.value.in_features == 6


def test_attention_of_one_sequence():
    model = spread(Attend())
    kill_heads(model.attention, silent=[1])
    mask = torch.tensor([False, False, True, False, False])
    slimmed(model, torch.randn(5, 12), key_padding_mask=mask, attn_mask=torch.randn(4, 5, 5))
    slimmed(model, torch.randn(5, 12), key_padding_mask=mask)


def test_the_attention_weights_are_those_of_the_living_heads():
    model = spread(Attend(batch_first=True))
    kill_heads(model.attention, unread=[0, 2])
    slim, _ = remove_dead(model)
    x = torch.randn(3, 5, 12)
    for batch in (x, x[0]):
        everyone = model.attention(batch, batch, batch, average_attn_weights=False)[1]
        living = everyone[..., [1, 3], :, :]
        own = slim.attention(batch, batch, batch, average_attn_weights=False)[1]
        torch.testing.assert_close(own, living)
        torch.testing.assert_close(slim.attention(batch, batch, batch)[1], living.mean(-3))


def test_one_head_stays():
    model = spread(Attend())
    kill_heads(model.attention, silent=range(4))
    _, report = slimmed(model, torch.randn(5, 3, 12))
    assert units(report) == {"attention": (4, 1)}
    assert "needs one unit" in kept(report)["attention"]


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_attention_with_keys_of_its_own_stays(options):
    model = spread(Attend(**options))
    kill_heads(model.attention, silent=[1])
    _, report = slimmed(model, torch.randn(5, 3, 12))
    assert "keys of its own" in kept(report)["attention"]
    with pytest.raises(UserError, match="keys of its own"):
        remove_dead(model, strict=True)


def test_an_attention_alone_stays_and_a_shared_one():
    alone = spread(nn.MultiheadAttention(12, 4))
    kill_heads(alone, silent=[1])
    assert "put it in a module" in kept(remove_dead(alone)[1])[""]
    shared = nn.ModuleList([alone, alone])
    assert "more than once" in kept(remove_dead(shared)[1])["0"]


def test_what_a_slim_attention_cannot_take_is_refused():
    model = Attend()
    kill_heads(model.attention, silent=[1])
    slim, _ = remove_dead(model)
    x = torch.randn(5, 3, 12)
    with pytest.raises(UserError, match="attn_mask"):
        slim.attention(x, x, x, is_causal=True)


def encoder(layers=2, **options):
    options = {"batch_first": True, "dropout": 0.0, **options}
    norm = nn.LayerNorm(12) if options.get("norm_first") else None
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 10, **options), layers, norm,
                                 enable_nested_tensor=not options.get("norm_first"))  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True},
        {"activation": "gelu"},
        {"activation": nn.SiLU()},
        {"batch_first": False},
        {"bias": False},
        {"dropout": 0.2},
    ],
    ids=str,
)
def test_transformer_encoders(options):
    model = spread(encoder(**options))
    for k, layer in enumerate(model.layers):
        kill_heads(layer.self_attn, silent=[k], unread=[3])
        kill(layer.linear1, rows=[1, 2])
        kill(layer.linear2, columns=[4])
    x = torch.randn(3, 5, 12)
    slim, report = slimmed(model, x)
    expected = {"self_attn": (4, 2), "linear1": (10, 7), "linear2": (12, 12)}
    assert units(report) == {f"layers.{k}.{name}": size for k in (0, 1) for name, size in expected.items()}
    time = 5 if options.get("batch_first", True) else 3
    causal = nn.Transformer.generate_square_subsequent_mask(time)
    assert difference(model, slim, x, mask=causal, is_causal=True) < CLOSE
    with torch.inference_mode():
        for net in (model, slim):
            net.eval()(x)
            net.train()(x)


@pytest.mark.parametrize("first", [True, False])
def test_padded_sentences_in_an_encoder(first):
    model = spread(encoder())
    kill_heads(model.layers[0 if first else 1].self_attn, silent=[1], unread=[2])
    slim, _ = remove_dead(model)
    x, mask = torch.randn(3, 5, 12), padding(3, 5)
    with torch.no_grad():
        for mode in (True, False):
            one, other = (net.train(mode)(x, src_key_padding_mask=mask) for net in (model, slim))
            torch.testing.assert_close(other[~mask], one[~mask], rtol=CLOSE, atol=CLOSE)


def test_only_neurons_dead_in_an_encoder_keeps_its_fast_path():
    model = spread(encoder())
    kill(model.layers[0].linear1, rows=[0, 1, 2])
    slim, _ = remove_dead(model)
    x, mask = torch.randn(3, 5, 12), padding(3, 5)
    assert slim.use_nested_tensor
    with torch.no_grad():
        assert difference(model, slim, x, src_key_padding_mask=mask) < CLOSE


def test_an_activation_that_is_not_known_keeps_its_neurons():
    model = spread(encoder(layers=1, activation=lambda x: x.softmax(-1)))
    kill(model.layers[0].linear1, rows=[0])
    _, report = slimmed(model, torch.randn(3, 5, 12))
    assert "not known to work entry by entry" in kept(report)["layers.0.linear1"]


def test_a_whole_transformer():
    model = spread(nn.Transformer(12, 4, 1, 2, 10, dropout=0.0, batch_first=True))
    for part in (*model.encoder.layers, *model.decoder.layers):
        kill_heads(part.self_attn, unread=[1])
        kill(part.linear1, rows=[0])
    kill_heads(model.decoder.layers[1].multihead_attn, silent=[0, 1])
    source, target = torch.randn(3, 5, 12), torch.randn(3, 4, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    slim, report = slimmed(model, source, target, tgt_mask=mask, tgt_is_causal=True)
    assert units(report)["decoder.layers.1.multihead_attn"] == (4, 2)
    assert units(report)["decoder.layers.0.linear1"] == (10, 9)
    assert difference(model, slim, source, target) < CLOSE


class Classifier(nn.Module):
    """Embedding, encoder, mean, linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.encoder, self.output = nn.Embedding(9, 12), encoder(), nn.Linear(12, 3, bias=False)

    def forward(self, words, mask=None):
        return self.output(self.encoder(self.embedding(words), src_key_padding_mask=mask).mean(1))


def test_encoders_inside_a_model():
    model = spread(Classifier())
    kill_heads(model.encoder.layers[1].self_attn, silent=[1])
    kill(model.encoder.layers[0].linear2, columns=[1])
    kill(model.embedding, columns=[3])
    _, report = slimmed(model, torch.randint(0, 9, (3, 5)))
    assert units(report)["encoder.layers.1.self_attn"] == (4, 3)
    assert units(report)["encoder.layers.0.linear1"] == (10, 9)
    assert "TransformerEncoder encoder reads the output of embedding" in kept(report)["embedding"]


# Report and files


def test_the_report_adds_up():
    model = spread(Classifier())
    kill_heads(model.encoder.layers[1].self_attn, silent=[1])
    kill(model.encoder.layers[0].linear2, columns=[1])
    slim, report = remove_dead(model)
    for layer in report.layers:
        for net, size in ((model, layer.parameters_before), (slim, layer.parameters_after)):
            assert size == sum(p.numel() for p in net.get_submodule(layer.name).parameters())
    *layers, everything = report.rows()
    assert len(layers) == len(report.layers)
    norms = sum(p.numel() for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters())
    assert everything[4:6] == (sum(row[4] for row in layers) + norms, sum(row[5] for row in layers) + norms)
    text = str(report).splitlines()
    assert len(text) == len(report.layers) + 2
    assert text[-1].split() == ["all", str(report.parameters_before), str(report.parameters_after)]


@pytest.mark.parametrize("make", [Classifier, Convolutional, Functional])
def test_a_small_model_is_saved_and_loaded(tmp_path, make):
    model = spread(make())
    for m in model.modules():
        if isinstance(m, nn.MultiheadAttention):
            kill_heads(m, silent=[0])
        elif isinstance(m, nn.Linear | nn.Conv2d) and m is not getattr(model, "output", None):
            kill(m, rows=[0, 2])
    slim, report = remove_dead(model)
    save(tmp_path, slim, report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["surgery.json", "weights.safetensors"]
    assert json.loads((tmp_path / "surgery.json").read_text())["parameters_after"] == report.parameters_after
    loaded = load(tmp_path, make()).eval()
    assert {k: v.shape for k, v in loaded.state_dict().items()} == {k: v.shape for k, v in slim.state_dict().items()}
    x = torch.randint(0, 9, (3, 5)) if make is Classifier else images(2) if make is Convolutional else torch.randn(4, 5)
    assert torch.equal(loaded(x), slim.eval()(x))
    assert [str(m) for m in loaded.modules()] == [str(m) for m in slim.modules()]


def test_a_bias_that_the_surgery_made_is_loaded(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3, bias=False))

    model = spread(make())
    kill(model[0], rows=[1])
    slim, report = remove_dead(model)
    assert slim[2].bias is not None
    save(tmp_path, slim, report)
    x = torch.randn(4, 5)
    assert torch.equal(load(tmp_path, make())(x), slim(x))


def test_what_does_not_fit_is_not_loaded(tmp_path):
    slim, report = remove_dead(Functional())
    save(tmp_path, slim, report)
    with pytest.raises(UserError, match="no layer 'first'"):
        load(tmp_path, Residual().get_submodule("first"))
    with pytest.raises(UserError, match="does not hold a small Functional"):
        load(tmp_path / "nowhere", Functional())
    (tmp_path / "weights.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="does not hold a small Functional"):
        load(tmp_path, Functional())


def test_outputs_of_other_shapes_are_no_comparison():
    with pytest.raises(UserError, match="shapes"):
        difference(nn.Linear(5, 2), nn.Linear(5, 3), torch.randn(4, 5))
