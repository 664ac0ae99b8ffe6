"""Groups of modules: the units of neural network layers, such as neurons, filters and attention heads.

There are two functions for each kind of unit:
- A function `groups(shape, layout, parameter=name)` groups one parameter by its shape. The files
  conf/groups/module_*.yaml name these functions.
- A function in `BY_MODULE` groups all layers of a model and returns {parameter name: Partition}. It is used by
  `structsparse.networks.attach.attach`.

Biases are not penalised: a unit whose weights are all zero outputs a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups.layouts import ANY, over
from structsparse.groups.partition import Partition

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)

Weights = str | Tensor
Patterns = str | Sequence[str]


class UnitNames(Sequence):
    """Groups of modules: the names of the units of a layer, such as `encoder.0.linear1 row 0`, made on demand."""

    def __init__(self, parameter: str, noun: str, count: int):
        layer = parameter
        for ending in ("in_proj_weight", "weight"):
            layer = layer.removesuffix(f".{ending}") if "." in layer else layer.removesuffix(ending)
        self.stem, self.units = f"{layer} {noun}".lstrip(), range(count)

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, unit):
        return [f"{self.stem} {k}" for k in self.units[unit]] if isinstance(unit, slice) else self._name(unit)

    def _name(self, unit: int) -> str:
        """Groups of modules: the name of one unit of the layer."""
        return f"{self.stem} {self.units[unit]}"


# Groups of one parameter, from the shape of the parameter


@over(ANY, makes=Partition)
def rows(shape: Sequence[int], layout=None, weights: Weights = "sqrt_size", parameter: str = "the parameter"):
    """Groups of modules: one group per row, such as a neuron of a linear layer or a word of an embedding."""
    return _along(shape, 0, "row", shape[0] if len(shape) else 0, weights, parameter)


@over(ANY, makes=Partition)
def columns(shape: Sequence[int], layout=None, weights: Weights = "sqrt_size", parameter: str = "the parameter"):
    """Groups of modules: one group per column, such as an input of a linear layer or a dimension of an embedding."""
    return _along(shape, 1, "column", shape[1] if len(shape) > 1 else 0, weights, parameter)


@over(ANY, makes=Partition)
def filters(shape: Sequence[int], layout=None, weights: Weights = "sqrt_size", parameter: str = "the parameter"):
    """Groups of modules: one group per output filter of a convolution with weights [filters, channels, *kernel]."""
    _check_kernel(shape, parameter)
    return _along(shape, 0, "filter", shape[0], weights, parameter)


@over(ANY, makes=Partition)
def channels(
    shape: Sequence[int], layout=None, weights: Weights = "sqrt_size", parameter: str = "the parameter", blocks: int = 1
):
    """Groups of modules: one group per input channel of a convolution.

    With `blocks` > 1, as in nn.Conv2d(groups=blocks), each block of filters reads different channels.
    """
    _check_kernel(shape, parameter)
    return _blocked(shape, "channel", blocks, weights, parameter)


@over(ANY, makes=Partition)
def heads(
    shape: Sequence[int],
    layout=None,
    weights: Weights = "sqrt_size",
    parameter: str = "the parameter",
    *,
    heads: int,
    along: str = "rows",
    stacked: int = 1,
):
    """Groups of modules: attention heads, as rows of a query, key or value matrix or columns of the output matrix.

    `along` is "rows" or "columns". `stacked` is the number of matrices in the parameter, 3 for
    nn.MultiheadAttention.in_proj_weight. The rows of a head in all stacked matrices form one group.
    """
    if along not in ("rows", "columns"):
        raise UserError(f"heads of {parameter}: along={along!r}, expected rows or columns")
    dimension = 0 if along == "rows" else 1
    length = shape[dimension] if len(shape) > dimension else 0
    if heads < 1 or stacked < 1 or length % (heads * stacked):
        what = f"{heads} heads" if stacked == 1 else f"{stacked} x {heads} heads"
        raise UserError(f"the {length} {along} of {parameter} {tuple(shape)} cannot be divided among {what}")
    width = length // (heads * stacked)
    ids = torch.arange(heads).repeat_interleave(width).repeat(stacked)
    ids = ids.view([-1 if d == dimension else 1 for d in range(len(shape))])
    return Partition(ids, UnitNames(parameter, "head", heads), shape, weights, parameter)


@over(ANY, makes=Partition)
def layers(shape: Sequence[int], layout=None, weights: Weights = "sqrt_size", parameter: str = "the parameter"):
    """Groups of modules: one group of all entries of the parameter, such as the weight matrix of a layer."""
    ids = torch.zeros([1] * len(shape), dtype=torch.long)
    name = parameter.removesuffix(".weight")
    return Partition(ids, [name], shape, weights, parameter)


def _along(shape, dimension: int, noun: str, count: int, weights: Weights, parameter: str) -> Partition:
    """Groups of modules: the units along one dimension of the parameter of a layer."""
    if len(shape) <= dimension:
        raise UserError(f"{parameter} {tuple(shape)} has no {noun}s to group; choose other parameters or groups")
    ids = torch.arange(count).view([-1 if d == dimension else 1 for d in range(len(shape))])
    return Partition(ids, UnitNames(parameter, noun, count), shape, weights, parameter)


def _blocked(shape, noun: str, blocks: int, weights: Weights, parameter: str) -> Partition:
    """Groups of modules: units along dimension 1 of a convolution weight, separate for each block of dimension 0."""
    if blocks == 1:
        return _along(shape, 1, noun, shape[1], weights, parameter)
    if shape[0] % blocks:
        raise UserError(f"{parameter} {tuple(shape)} cannot be cut into {blocks} equal blocks along dimension 0")
    block = torch.arange(blocks).repeat_interleave(shape[0] // blocks)
    ids = block[:, None] * shape[1] + torch.arange(shape[1])
    ids = ids.view(*shape[:2], *[1] * (len(shape) - 2))
    return Partition(ids, UnitNames(parameter, noun, blocks * shape[1]), shape, weights, parameter)


def _check_kernel(shape: Sequence[int], parameter: str) -> None:
    """Groups of modules: refuse a parameter that is not the weight of a convolution."""
    if len(shape) < 3:
        raise UserError(
            f"{parameter} {tuple(shape)} is no convolution: expected [filters, channels, *kernel]; choose module_rows "
            "or module_columns for a matrix"
        )


# Groups of all layers of one kind in a model


def linear_rows(model: nn.Module, parameters: Patterns = "*", weights: Weights = "sqrt_size") -> dict[str, Partition]:
    """Groups of modules: the neurons of every linear layer of a model, with the weights into each neuron."""
    layers = _matrices(model, nn.Linear)
    return _groups(model, "linear layer", layers, parameters, lambda name, m: rows(m.weight.shape, None, weights, name))


def linear_columns(
    model: nn.Module, parameters: Patterns = "*", weights: Weights = "sqrt_size"
) -> dict[str, Partition]:
    """Groups of modules: the inputs of every linear layer of a model, with the weights that read each input."""
    layers = _matrices(model, nn.Linear)
    return _groups(
        model, "linear layer", layers, parameters, lambda name, m: columns(m.weight.shape, None, weights, name)
    )


def convolution_filters(
    model: nn.Module, parameters: Patterns = "*", weights: Weights = "sqrt_size"
) -> dict[str, Partition]:
    """Groups of modules: the output filters of every convolution of a model.

    The filters of a transposed convolution lie along dimension 1.
    """

    def make(name: str, m: nn.Module) -> Partition:
        """Groups of modules: the output filters of one convolution of the model."""
        if isinstance(m, TRANSPOSED):
            return _blocked(m.weight.shape, "filter", m.groups, weights, name)
        return filters(m.weight.shape, None, weights, name)

    return _groups(model, "convolution", _matrices(model, (*CONVOLUTIONS, *TRANSPOSED)), parameters, make)


def convolution_channels(
    model: nn.Module, parameters: Patterns = "*", weights: Weights = "sqrt_size"
) -> dict[str, Partition]:
    """Groups of modules: the input channels of every convolution of a model.

    The channels of a transposed convolution lie along dimension 0.
    """

    def make(name: str, m: nn.Module) -> Partition:
        """Groups of modules: the input channels of one convolution of the model."""
        if isinstance(m, TRANSPOSED):
            return _along(m.weight.shape, 0, "channel", m.weight.shape[0], weights, name)
        return channels(m.weight.shape, None, weights, name, m.groups)

    return _groups(model, "convolution", _matrices(model, (*CONVOLUTIONS, *TRANSPOSED)), parameters, make)


def attention_heads(
    model: nn.Module, parameters: Patterns = "*", weights: Weights = "sqrt_size"
) -> dict[str, Partition]:
    """Groups of modules: the heads of every nn.MultiheadAttention of a model.

    The query, key and value rows of a head form one group, and the output columns another group. A head is dead if its
    output columns are zero. For groups of output columns only, call attention_heads(model, "*out_proj.weight").
    """

    def find() -> Iterator[tuple[str, Tensor, nn.Module]]:
        """Groups of modules: yields (name, matrix, module) for the projection matrices of nn.MultiheadAttention."""
        for prefix, m in model.named_modules():
            if isinstance(m, nn.MultiheadAttention):
                for part in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
                    if getattr(m, part) is not None:
                        yield f"{prefix}.{part}", getattr(m, part), m
                yield f"{prefix}.out_proj.weight", m.out_proj.weight, m

    def make(name: str, m: nn.MultiheadAttention) -> Partition:
        """Groups of modules: the attention heads in one projection matrix."""
        if name.endswith("out_proj.weight"):
            return heads(m.out_proj.weight.shape, None, weights, name, heads=m.num_heads, along="columns")
        weight = getattr(m, name.rpartition(".")[2])
        stacked = 3 if name.endswith("in_proj_weight") else 1
        return heads(weight.shape, None, weights, name, heads=m.num_heads, stacked=stacked)

    return _groups(model, "nn.MultiheadAttention", find(), parameters, make)


def projection_heads(
    model: nn.Module, heads: int, inputs: Patterns = (), outputs: Patterns = (), weights: Weights = "sqrt_size"
) -> dict[str, Partition]:
    """Groups of modules: the heads of an attention that is built of linear layers.

    Heads are rows of the layers whose names match `inputs` (queries, keys, values), and columns of the layers that
    match `outputs`. Example: projection_heads(model, 8, ["*.query", "*.value"], "*.out").
    """
    by_name = {}
    for patterns, along in ((inputs, "rows"), (outputs, "columns")):
        patterns = [f"{pattern}.weight" for pattern in ([patterns] if isinstance(patterns, str) else patterns)]
        if patterns:
            split = _heads_along(heads, along, weights)
            by_name |= _groups(model, "linear layer", _matrices(model, nn.Linear), patterns, split)
    if not by_name:
        raise UserError("projection_heads: name layers of queries, keys and values in inputs, or of outputs in outputs")
    return by_name


def _heads_along(count: int, along: str, weights: Weights) -> Callable[[str, nn.Module], Partition]:
    """Groups of modules: returns a function that groups the weight of a linear layer by attention head."""
    return lambda name, m: heads(m.weight.shape, None, weights, name, heads=count, along=along)


def embedding_columns(
    model: nn.Module, parameters: Patterns = "*", weights: Weights = "sqrt_size"
) -> dict[str, Partition]:
    """Groups of modules: the dimensions of every embedding of a model, one group per column."""
    layers = _matrices(model, EMBEDDINGS)
    return _groups(model, "embedding", layers, parameters, lambda name, m: columns(m.weight.shape, None, weights, name))


def embedding_rows(
    model: nn.Module, parameters: Patterns = "*", weights: Weights = "sqrt_size"
) -> dict[str, Partition]:
    """Groups of modules: the words of every embedding of a model, one group per row."""
    layers = _matrices(model, EMBEDDINGS)
    return _groups(model, "embedding", layers, parameters, lambda name, m: rows(m.weight.shape, None, weights, name))


def whole_layers(model: nn.Module, parameters: Patterns = "*", weights: Weights = "sqrt_size") -> dict[str, Partition]:
    """Groups of modules: one group for the weight of each linear layer, convolution and embedding of a model."""
    matrices = _matrices(model, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, *EMBEDDINGS))
    return _groups(model, "layer", matrices, parameters, lambda name, m: layers(m.weight.shape, None, weights, name))


BY_MODULE: dict[str, Callable[..., dict[str, Partition]]] = {
    "module_rows": linear_rows,
    "module_columns": linear_columns,
    "module_filters": convolution_filters,
    "module_channels": convolution_channels,
    "module_heads": attention_heads,
    "module_embedding_columns": embedding_columns,
    "module_embedding_rows": embedding_rows,
    "module_layers": whole_layers,
}


def _matrices(model: nn.Module, kinds) -> Iterator[tuple[str, Tensor, nn.Module]]:
    """Groups of modules: yields (name of the weight, weight, layer) for all layers of the given kinds in a model.

    The output projection inside an nn.MultiheadAttention is left out.
    """
    inside = {id(m.out_proj) for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    for prefix, m in model.named_modules():
        if isinstance(m, kinds) and id(m) not in inside:
            yield f"{prefix}.weight", m.weight, m


def _groups(model: nn.Module, what: str, layers, patterns: Patterns, make) -> dict[str, Partition]:
    """Groups of modules: the groups of each layer weight whose name matches a pattern.

    make(name, layer) groups one weight. A shared parameter is grouped once, under the name that torch gives it.
    """
    canonical = {id(parameter): name for name, parameter in model.named_parameters()}
    candidates = {canonical[id(weight)]: m for _, weight, m in layers if id(weight) in canonical}
    if not candidates:
        raise UserError(f"{type(model).__name__} has no {what} with a weight to group")
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in candidates):
            raise UserError(f"{pattern!r} matches no {what}; there are {', '.join(candidates)}")
    chosen = {name: m for name, m in candidates.items() if any(fnmatchcase(name, p) for p in patterns)}
    return {name: make(_checked(name, m), m) for name, m in chosen.items()}


def _checked(name: str, m: nn.Module) -> str:
    """Groups of modules: the given name of a weight, after a check of its layer.

    Raises UserError if parameters of the layer are not initialised yet.
    """
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in m.parameters()):
        raise UserError(f"{name} has no shape yet; run the model once before grouping its units")
    return name
