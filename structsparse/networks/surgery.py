"""Network surgery: removal of dead units (neurons, filters, embedding columns, attention heads) from a network.

A unit is dead if its incoming weights or its outgoing weights are all zero. A unit without incoming weights outputs a
constant, which is added to the bias of the next layer. In evaluation mode, the outputs of the network stay equal up to
rounding.

    slim, report = remove_dead(model)        # `slim` is a copy: to train it, make a new optimizer
    save(folder, slim, report); slim = load(folder, Network())"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.base.files import atomic_file, write_text
from structsparse.networks.attention import SlimAttention, dead_heads, without_heads
from structsparse.networks.wiring import CONVOLUTIONS, Link, links, plain, shared_layers, units_of, width_of

DESCRIPTION, WEIGHTS = "surgery.json", "weights.safetensors"
ATTENTIONS = (nn.MultiheadAttention, SlimAttention)
UNITS = {
    **dict.fromkeys(ATTENTIONS, "head"),
    **dict.fromkeys(CONVOLUTIONS, "filter"),
    nn.Embedding: "column",
    nn.Linear: "neuron",
}


@dataclass
class Layer:
    """Surgery report on one layer: numbers of units and parameters, before and after dead units are removed."""

    name: str
    unit: str  # neuron, filter, column or head
    units_before: int
    units_after: int
    parameters_before: int
    parameters_after: int
    kept: str = ""  # how many dead units could not be removed, and why; empty if none


@dataclass
class Report:
    """Surgery report on a network, layer by layer, after the removal of dead units.

    `shapes` has the parameter shapes of each layer, for `rebuild`."""

    layers: list[Layer]
    parameters_before: int
    parameters_after: int
    shapes: dict[str, dict] = field(default_factory=dict)

    HEADER = ("layer", "unit", "units before", "after", "parameters before", "after", "kept")

    def rows(self) -> list[tuple]:
        """The rows of the surgery report: a row for each layer, then a row for the whole network."""
        found = [(x.name, x.unit, x.units_before, x.units_after, x.parameters_before, x.parameters_after, x.kept)
                 for x in self.layers]  # fmt: skip
        return [*found, ("all", "", "", "", self.parameters_before, self.parameters_after, "")]

    def __str__(self) -> str:
        cells = [self.HEADER, *([str(cell) for cell in row] for row in self.rows())]
        widths = [max(len(row[k]) for row in cells) for k in range(len(self.HEADER))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
        return "\n".join(line.rstrip() for line in lines)


@torch.no_grad()
def remove_dead(model: nn.Module, strict: bool = False) -> tuple[nn.Module, Report]:
    """Network surgery: a copy of the model without dead units, and a report on each layer.

    A dead unit that cannot be removed safely stays, and the report says why. If `strict`, such a unit is an error. The
    remaining units keep their order. An attention returns only the attention weights of living heads.

    Layers are found by tracing the forward functions (`networks.wiring`). If a forward function cannot be traced, only
    the children of the module are traced. In that case, compare the outputs of both models with `difference`."""
    slim = _copy(model)
    before = {name: (_units(m), _numbers(m)) for name, m in _layers(slim)}
    kept = _slim_attentions(slim)
    wires = links(slim)
    # repeat, because the removal of units may make other units dead
    while sum(_slim_link(slim, link, kept) for link in wires):
        pass
    for link in wires:
        if link.problem and (dead := int(_constants(slim.get_submodule(link.producer))[0].sum())):
            kept[link.producer] = f"{dead}: {link.problem}"
    if strict and kept:
        name, why = next(iter(kept.items()))
        raise UserError(f"dead units of {name} cannot be removed ({why})")
    layers = [
        Layer(name, _unit(m), before[name][0], _units(m), before[name][1], _numbers(m), kept.get(name, ""))
        for name, m in _layers(slim)
    ]
    return slim, Report(layers, _numbers(model), _numbers(slim), shapes(slim))


def _copy(model: nn.Module) -> nn.Module:
    """Deep copy of a network before surgery; refuses a network that torch cannot copy."""
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # torch cannot copy a weight computed from other parameters (weight_norm)
        raise UserError(f"{type(model).__name__} cannot be copied, so nothing is cut: {error}") from error


@torch.no_grad()
def difference(model: nn.Module, slim: nn.Module, *inputs, **options) -> float:
    """Largest absolute difference between a network's outputs before and after surgery, in evaluation mode."""
    largest, modes = 0.0, [(m, m.training) for one in (model, slim) for m in one.modules()]
    try:
        outputs = [_tensors(one.eval()(*inputs, **options)) for one in (model, slim)]
    finally:
        for m, mode in modes:
            m.training = mode
    for one, other in zip(*outputs, strict=True):
        if one.shape != other.shape:
            raise UserError(f"the outputs have shapes {tuple(one.shape)} and {tuple(other.shape)}")
        largest = max(largest, float((one - other).abs().max()) if one.numel() else 0.0)
    return largest


# --- surgery on two layers: the units of a producer layer, which a consumer layer reads


def _slim_link(model: nn.Module, link: Link, kept: dict[str, str]) -> bool:
    """Network surgery: remove the dead units of a producer layer; returns whether any unit was removed."""
    if link.problem:
        return False
    producer, consumer = model.get_submodule(link.producer), model.get_submodule(link.consumer)
    constant, value = _constants(producer)
    for part in link.between:
        value = part.apply(value.clone())
    weight = _read_by(consumer, units_of(producer))  # row u has the weights of the consumer that read unit u
    unread = (weight == 0).all(1)
    stays = _not_foldable(link, consumer) & (value != 0) | ~value.isfinite()
    gone = unread | (constant & ~stays)
    left = f"{int((constant & stays & ~unread).sum())}: their constant meets the zeros around the input"
    kept.pop(link.producer, None)
    if gone.all() and len(gone):
        gone[0], left = False, "1: a layer needs one unit"
    if (constant & ~gone).any() or (unread & ~gone).any():
        kept[link.producer] = left
    if not gone.any():
        return False
    _fold(consumer, torch.where(gone & ~unread, value, 0.0))
    _cut_units(producer, ~gone)
    _cut_inputs(consumer, ~gone)
    return True


def _constants(producer: nn.Module) -> tuple[Tensor, Tensor]:
    """Network surgery: which units of a layer have only zero weights, and the biases of all units.

    A unit with zero weights outputs its bias, a constant. Both results have one element per unit."""
    weight = producer.weight.T if isinstance(producer, nn.Embedding) else producer.weight.flatten(1)
    bias = None if isinstance(producer, nn.Embedding) else producer.bias
    return (weight == 0).all(1), weight.new_zeros(len(weight)) if bias is None else bias.detach().clone()


def _read_by(consumer: nn.Module, units: int) -> Tensor:
    """Network surgery: the weights of the consumer layer that read each unit of the producer.

    Row u of the result has the weights that read unit u. After nn.Flatten, the consumer has several inputs for each
    unit, one per position.
    """
    weight = consumer.weight.transpose(0, 1)  # [inputs, outputs, *kernel]
    return weight.reshape(units, -1)


def _not_foldable(link: Link, consumer: nn.Module) -> bool:
    """Network surgery: whether zero padding keeps a constant unit from being replaced by a bias of the consumer.

    Near the border, a convolution or pool mixes the constant output of the unit with zeros."""
    return any(part.borders for part in link.between) or (isinstance(consumer, CONVOLUTIONS) and _pads_zeros(consumer))


def _pads_zeros(convolution: nn.Module) -> bool:
    """Network surgery: whether a convolution pads its input with zeros."""
    if convolution.padding_mode != "zeros" or convolution.padding == "valid":
        return False
    if convolution.padding == "same":
        return any(size > 1 for size in convolution.kernel_size)
    return any(convolution.padding)


def _fold(consumer: nn.Module, value: Tensor) -> None:
    """Network surgery: add the effect of units with constant outputs, `value` [units], to the consumer's bias."""
    if not (value != 0).any():
        return
    weight = consumer.weight.transpose(0, 1).double()  # [inputs, outputs, *kernel]
    inputs = value.double().repeat_interleave(len(weight) // len(value))
    _add_to_bias(consumer, torch.einsum("i,io->o", inputs, weight.flatten(2).sum(2) if weight.dim() > 2 else weight))


def _add_to_bias(layer: nn.Module, brings: Tensor) -> None:
    """Network surgery: add a vector to the bias of a layer; a layer without a bias gets a bias."""
    if layer.bias is None:
        layer.bias = nn.Parameter(brings.to(layer.weight.dtype), layer.weight.requires_grad)
    else:
        layer.bias.copy_(layer.bias.double() + brings)


def _cut_units(producer: nn.Module, stays: Tensor) -> None:
    """Network surgery: remove the units of the producer layer that the bool array `stays` does not mark."""
    if isinstance(producer, nn.Embedding):
        producer.weight = _cut(producer.weight, stays, 1)
    else:
        producer.weight = _cut(producer.weight, stays, 0)
        producer.bias = None if producer.bias is None else _cut(producer.bias, stays, 0)
    _resize(producer)


def _cut_inputs(consumer: nn.Module, stays: Tensor) -> None:
    """Network surgery: remove the consumer's inputs from units that the bool array `stays` does not mark."""
    consumer.weight = _cut(consumer.weight, stays.repeat_interleave(width_of(consumer) // len(stays)), 1)
    _resize(consumer)


def _cut(parameter: nn.Parameter, stays: Tensor, dimension: int) -> nn.Parameter:
    """Network surgery: copy a layer parameter, with only the indices of one dimension that `stays` marks."""
    return nn.Parameter(parameter.detach().index_select(dimension, stays.nonzero()[:, 0]), parameter.requires_grad)


def _resize(layer: nn.Module) -> None:
    """Network surgery: set the size attributes of a layer (out_channels, ...) to the shape of its weight."""
    if isinstance(layer, nn.Embedding):
        layer.embedding_dim = layer.weight.shape[1]
    elif isinstance(layer, CONVOLUTIONS):
        layer.out_channels, layer.in_channels = layer.weight.shape[:2]
    else:
        layer.out_features, layer.in_features = layer.weight.shape


# --- surgery on attention heads


def _slim_attentions(model: nn.Module) -> dict[str, str]:
    """Network surgery: replace every attention that has dead heads by a SlimAttention.

    Returns {name: reason} for each attention whose dead heads could not be removed.
    """
    kept, faults = {}, shared_layers(model)
    for name, m in list(model.named_modules()):
        if type(m) not in ATTENTIONS:
            continue
        dead = dead_heads(m)
        problem = plain(name, m, faults) or plain(f"{name}.out_proj", m.out_proj, faults)
        if isinstance(m, nn.MultiheadAttention) and (m.bias_k is not None or m.add_zero_attn):
            problem = problem or f"{name} adds keys of its own (add_bias_kv, add_zero_attn)"
        if not name:
            problem = problem or "an attention on its own cannot be replaced inside itself; put it in a module"
        if dead.all():
            dead[0], kept[name] = False, "1: a layer needs one unit"
        if dead.any() and problem:
            kept[name] = f"{int(dead.sum())}: {problem}"
        elif dead.any():
            model.set_submodule(name, without_heads(m, dead))
    _refuse_nested(model)
    return kept


def _refuse_nested(model: nn.Module) -> None:
    """Network surgery: disable nested tensors in encoders that contain a SlimAttention.

    SlimAttention takes padded tensors only."""
    for m in model.modules():
        if isinstance(m, nn.TransformerEncoder) and any(isinstance(part, SlimAttention) for part in m.modules()):
            m.enable_nested_tensor = m.use_nested_tensor = False


# --- saving and loading of networks after surgery


def shapes(model: nn.Module) -> dict[str, dict]:
    """Shapes of layers after surgery; `rebuild` uses them to make a small network from a full one."""
    return {
        name: {"attention": m.options()} if isinstance(m, SlimAttention) else _shapes(m) for name, m in _layers(model)
    }


def _shapes(layer: nn.Module) -> dict[str, list[int]]:
    """Shape of each parameter of a layer before or after surgery, by name."""
    return {key: list(p.shape) for key, p in layer._parameters.items() if p is not None}


@torch.no_grad()
def rebuild(model: nn.Module, found: Mapping[str, Mapping]) -> nn.Module:
    """Repeat network surgery on a full network in place: shrink its layers to the shapes in `found`.

    `found` is a result of the function `shapes`. The weights must be loaded afterwards."""
    for name, sizes in found.items():
        try:
            layer = model.get_submodule(name)
        except AttributeError as error:
            raise UserError(f"the model has no layer {name!r}, which the small one had as {dict(sizes)}") from error
        if "attention" in sizes:
            some = next(layer.parameters())
            model.set_submodule(name, SlimAttention(**sizes["attention"]).to(some).train(layer.training))
        elif sizes != _shapes(layer):
            for key, size in sizes.items():
                setattr(layer, key, nn.Parameter(layer.weight.new_zeros(size)))
            _resize(layer)
    _refuse_nested(model)
    return model


def save(folder: Path | str, slim: nn.Module, report: Report) -> None:
    """Save a network after surgery: weights as safetensors, shapes and report as JSON, no executable code."""
    folder = Path(folder)
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in slim.state_dict().items()}
    with atomic_file(folder / WEIGHTS) as file:
        file.write(safetensors.torch.save(tensors))
    about = {"shapes": report.shapes, "layers": [vars(layer) for layer in report.layers]}
    about |= {"parameters_before": report.parameters_before, "parameters_after": report.parameters_after}
    write_text(folder / DESCRIPTION, json.dumps(about, indent=1) + "\n")


def load(folder: Path | str, model: nn.Module) -> nn.Module:
    """Load the weights of a network after surgery into a new full model, whose layers shrink to the saved shapes."""
    path = Path(folder) / DESCRIPTION
    try:
        about = json.loads(path.read_text())
        rebuild(model, about["shapes"])
        model.load_state_dict(safetensors.torch.load_file(path.with_name(WEIGHTS)))
    except UserError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder} does not hold a small {type(model).__name__}: {error}") from error
    return model


# --- layers and their units


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Network surgery: the layers of a network that have units, by name; layers inside an attention are left out."""
    inside = {id(part) for m in model.modules() if isinstance(m, ATTENTIONS) for part in m.children()}
    return [(name, m) for name, m in model.named_modules() if isinstance(m, tuple(UNITS)) and id(m) not in inside]


def _unit(layer: nn.Module) -> str:
    """Surgery report: what the units of a layer are called (neuron, filter, column or head)."""
    return next(unit for kind, unit in UNITS.items() if isinstance(layer, kind))


def _units(layer: nn.Module) -> int:
    """Surgery report: the number of units of a layer (neurons, filters, columns or heads)."""
    return layer.num_heads if isinstance(layer, ATTENTIONS) else units_of(layer)


def _numbers(module: nn.Module) -> int:
    """Surgery report: the number of scalar parameters of a module."""
    return sum(p.numel() for p in module.parameters())


def _tensors(output) -> list[Tensor]:
    """All tensors in the nested outputs of a network, for the comparison before and after surgery."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
