"""Groups by the units of layers: each group is what a loop over units finds, and kills just that unit."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import nn

from structsparse.base.errors import UserError
from structsparse.groups import Partition, modules
from structsparse.groups.modules import BY_MODULE

CONF = str(Path(__file__).resolve().parents[2] / "conf")


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


def entries(groups):
    """For each group the set of index tuples of its entries."""
    ids = groups.ids.expand(groups.shape)
    return {name: {tuple(where) for where in (ids == g).nonzero().tolist()} for g, name in enumerate(groups.names)}


def select(shape, **chosen):
    """Index tuples whose coordinate along each given dimension is among those chosen: select(shape, d0=[1, 2])."""
    grid = torch.cartesian_prod(*[torch.arange(n) for n in shape]).view(-1, len(shape)).tolist()
    return {tuple(where) for where in grid if all(where[int(d[1:])] in some for d, some in chosen.items())}


def test_rows_and_columns_of_linear_layers():
    model = Network()
    found = modules.linear_rows(model)
    assert sorted(found) == sorted(
        [f"encoder.layers.{k}.linear{j}.weight" for k in (0, 1) for j in (1, 2)] + ["output.weight"]
    )
    groups = found["encoder.layers.0.linear1.weight"]
    assert groups.names[11] == "encoder.layers.0.linear1 row 11"
    assert list(groups.names) == [f"encoder.layers.0.linear1 row {k}" for k in range(12)]
    assert entries(groups) == {name: select((12, 8), d0=[k]) for k, name in enumerate(groups.names)}
    groups = modules.linear_columns(model)["output.weight"]
    assert entries(groups) == {f"output column {k}": select((3, 4), d1=[k]) for k in range(4)}


def test_filters_and_channels_of_convolutions():
    model = Network()
    shape = (6, 8, 3)
    assert sorted(modules.convolution_filters(model)) == ["convolution.weight", "up.weight"]
    groups = modules.convolution_filters(model)["convolution.weight"]
    assert entries(groups) == {f"convolution filter {k}": select(shape, d0=[k]) for k in range(6)}
    groups = modules.convolution_channels(model)["convolution.weight"]
    assert entries(groups) == {f"convolution channel {k}": select(shape, d1=[k]) for k in range(8)}
    groups = modules.convolution_filters(model)["up.weight"]  # [channels, filters, kernel]
    assert entries(groups) == {f"up filter {k}": select((6, 4, 2), d1=[k]) for k in range(4)}


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d])
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_dead_filter_gives_nothing_and_a_dead_channel_is_not_read(kind, blocks):
    torch.manual_seed(0)
    layer = kind(4, 6, 2, groups=blocks, bias=False)
    x = torch.randn(2, 4, *[5] * (layer.weight.dim() - 2))
    for make, count in ((modules.convolution_filters, 6), (modules.convolution_channels, 4)):
        groups = make(layer)["weight"]
        assert len(groups) == count
        for k in range(count):
            kernel = layer.weight.detach().clone()
            kernel[(groups.ids == k).expand_as(kernel)] = 0
            changed = torch.func.functional_call(layer, {"weight": kernel}, x)
            if count == 6:
                expected = layer(x).detach().clone()
                expected[:, k] = 0
            else:
                without = x.clone()
                without[:, k] = 0
                expected = layer(without)
            torch.testing.assert_close(changed, expected)


def test_heads_of_an_attention():
    model = Network()
    found = modules.attention_heads(model)
    assert len(found) == 2 * 2 + 4
    groups = found["encoder.layers.1.self_attn.in_proj_weight"]
    assert list(groups.names) == [f"encoder.layers.1.self_attn head {k}" for k in range(2)]
    for k, own in enumerate(entries(groups).values()):
        assert own == select((24, 8), d0=[part * 8 + k * 4 + j for part in range(3) for j in range(4)])
    groups = found["encoder.layers.1.self_attn.out_proj.weight"]
    assert list(entries(groups).values()) == [select((8, 8), d1=range(4 * k, 4 * k + 4)) for k in range(2)]
    for part, width in (("q", 6), ("k", 4), ("v", 5)):
        groups = found[f"across.{part}_proj_weight"]
        assert list(entries(groups).values()) == [select((6, width), d0=[2 * k, 2 * k + 1]) for k in range(3)]


def test_heads_of_an_attention_made_of_linear_layers():
    model = nn.ModuleDict({name: nn.Linear(6, 6) for name in ("query", "key", "value", "mix")})
    found = modules.projection_heads(model, 3, ["query", "key", "value"], "mix")
    assert sorted(found) == ["key.weight", "mix.weight", "query.weight", "value.weight"]
    assert list(entries(found["key.weight"]).values()) == [select((6, 6), d0=[2 * k, 2 * k + 1]) for k in range(3)]
    assert list(entries(found["mix.weight"]).values()) == [select((6, 6), d1=[2 * k, 2 * k + 1]) for k in range(3)]
    assert found["key.weight"].names[1] == "key head 1"
    with pytest.raises(UserError, match="cannot be divided among 4 heads"):
        modules.projection_heads(model, 4, "query")
    with pytest.raises(UserError, match="name layers of queries"):
        modules.projection_heads(model, 3)


def test_embeddings_and_whole_layers():
    model = Network()
    groups = modules.embedding_columns(model)["embedding.weight"]
    assert entries(groups) == {f"embedding column {k}": select((7, 8), d1=[k]) for k in range(8)}
    groups = modules.embedding_rows(model)["embedding.weight"]
    assert entries(groups) == {f"embedding row {k}": select((7, 8), d0=[k]) for k in range(7)}
    found = modules.whole_layers(model)
    assert entries(found["convolution.weight"]) == {"convolution": select((6, 8, 3))}
    assert found["output.weight"].size.tolist() == [12]
    assert not any("attn" in name or "across" in name for name in found)


def test_every_unit_travels_weighs_and_is_chosen_by_pattern():
    model = Network()
    for make in BY_MODULE.values():
        found = make(model, weights="one")
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        for name, groups in found.items():
            assert isinstance(groups, Partition)
            assert groups.shape == shapes[name]
            assert groups.parameter == name
            assert bool((groups.weight == 1).all())
            assert not groups.free
        one = next(iter(found))
        assert list(make(model, parameters=one)) == [one]
        with pytest.raises(UserError, match="matches no"):
            make(model, parameters="nothing.*")
        with pytest.raises(UserError, match="ReLU has no"):
            make(nn.ReLU())


def test_a_shared_weight_is_grouped_once_under_its_own_name():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5), nn.Linear(3, 5))
    model[1].weight = model[0].weight
    model[2].weight = model[1].weight
    assert list(modules.linear_rows(model)) == ["0.weight"]


def test_a_layer_without_a_shape_is_refused():
    with pytest.raises(UserError, match="run the model once"):
        modules.linear_rows(nn.Sequential(nn.LazyLinear(3)))


@pytest.mark.parametrize(
    ("make", "shape", "options", "expected"),
    [
        (modules.columns, (4,), {}, "no columns"),
        (modules.rows, (), {}, "no rows"),
        (modules.filters, (4, 3), {}, "no convolution"),
        (modules.channels, (4, 3), {}, "no convolution"),
        (modules.channels, (4, 3, 2), {"blocks": 3}, "3 equal blocks"),
        (modules.heads, (4, 3), {"heads": 3}, "4 rows"),
        (modules.heads, (4, 3), {"heads": 2, "along": "columns"}, "3 columns"),
        (modules.heads, (4, 3), {"heads": 2, "stacked": 3}, "3 x 2 heads"),
        (modules.heads, (4, 3), {"heads": 0}, "0 heads"),
        (modules.heads, (4, 3), {"heads": 2, "along": "sides"}, "along='sides'"),
    ],
)
def test_shapes_that_do_not_fit_are_named(make, shape, options, expected):
    with pytest.raises(UserError, match=expected) as error:
        make(shape, None, parameter="here.weight", **options)
    assert "here.weight" in str(error.value)


@pytest.mark.parametrize("choice", ["module_rows", "module_columns", "module_layers", "module_heads", "module_filters"])
def test_every_unit_can_be_chosen_on_the_command_line(choice):
    shape = (6, 4, 3) if choice == "module_filters" else (6, 4)
    changes = ["groups.heads=2"] if choice == "module_heads" else []
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("config", ["reg=group_lasso", f"groups={choice}", "groups.weights=one", *changes])
    groups = instantiate(config.reg.groups)(shape, None, parameter="net.0.weight")
    count = {"module_rows": 6, "module_columns": 4, "module_layers": 1, "module_heads": 2, "module_filters": 6}
    assert len(groups) == count[choice]
    assert groups.names[0].startswith("net.0")
    assert groups.weight.tolist() == [1.0] * count[choice]


def test_groups_of_a_file_can_be_chosen_on_the_command_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("a: [0, 1]\nb: [3]\n")
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("config", ["reg=group_lasso", "groups=file", f"groups.path={path}"])
    groups = instantiate(config.reg.groups)((4, 2), None, parameter="net.0.weight")
    assert groups.ids.flatten().tolist() == [0, 0, -1, 1]
