"""Wiring of a network: for each layer, the layer that reads its units, and the operations between the two layers.

The forward functions are traced by torch.fx four times: in training and in evaluation mode, each with and without
optional arguments. A link joins a layer to the layer that reads its units. It counts only if all four graphs agree. If
a forward function cannot be traced, the children of the module are traced instead."""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from structsparse.networks.attention import SlimAttention

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (nn.Linear, *CONVOLUTIONS, nn.Embedding)
ENCODERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)

ENTRYWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Tanhshrink, nn.Softshrink,
    nn.Hardshrink, nn.Threshold,
)  # fmt: skip
# modules whose output equals the input; the output of dropout does so only on average
NOTHING_MODULES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
ENTRYWISE_NAMES = (
    "relu relu6 leaky_relu elu selu celu gelu silu mish tanh sigmoid softplus softsign logsigmoid hardtanh hardswish "
    "hardsigmoid tanhshrink softshrink hardshrink threshold relu_ tanh_ sigmoid_ abs square exp"
).split()
ENTRYWISE = {getattr(space, name) for space in (torch, F) for name in ENTRYWISE_NAMES if hasattr(space, name)}
ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div}
NOTHING = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d}
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_POOLS = tuple(getattr(nn, f"Adaptive{kind}Pool{d}d") for kind in ("Max", "Avg") for d in (1, 2, 3))
POOLS = {getattr(F, f"{kind}_pool{d}d") for kind in ("max", "adaptive_max", "adaptive_avg") for d in (1, 2, 3)}


class Between(NamedTuple):
    """Wiring: an operation between two layers of a network, such as an activation or a pool.

    `apply` computes the effect of the operation on constant units: [units] -> [units].
    """

    what: str  # name and arguments of the operation, for comparisons and messages
    apply: Callable[[Tensor], Tensor] | None = None
    flattens: bool = False  # whether the operation flattens positions, so that a unit gets several entries
    pools: bool = False  # whether the operation pools neighbouring positions
    borders: bool = False  # whether zero padding changes a constant unit near the border


class Link(NamedTuple):
    """Wiring: a link from a layer to its reader: the layer `consumer` alone reads the units of the layer `producer`.

    If the units cannot be removed, `problem` says why.
    """

    producer: str
    between: tuple[Between, ...] = ()
    consumer: str = ""
    problem: str = ""

    def same(self, other: Link) -> bool:
        """Whether two wiring links (pairs of a layer and its reader) have the same reader, problem and operations."""
        return self.signature() == other.signature()

    def signature(self) -> tuple:
        """The parts of a wiring link (a layer and its reader) that must agree in all traced graphs of the network."""
        return self.consumer, self.problem, [part.what for part in self.between]


def links(model: nn.Module) -> list[Link]:
    """Wiring of a network: each layer whose units might be removed, with the layer that reads the units.

    Each pair of such layers is a `Link`. The list has the order of `named_modules`."""
    found: dict[str, Link] = {}
    _collect(model, "", found)
    for name, layer in model.named_modules():
        if type(layer) in ENCODERS:
            found[_path(name, "linear1")] = _feed_forward(name, layer)
    faults = shared_layers(model)
    order = {name: k for k, (name, _) in enumerate(model.named_modules())}
    checked = [_check(model, link, faults) for link in found.values() if link.producer in order]
    return sorted(checked, key=lambda link: order[link.producer])


def plain(name: str, layer: nn.Module, faults: dict[str, str]) -> str:
    """Wiring: the reason why the units of a layer cannot be removed (hooks, shared weights, ...); empty if none."""
    if name in faults:
        return faults[name]
    if layer._forward_hooks or layer._forward_pre_hooks:
        return f"{name} has hooks"
    if isinstance(layer, CONVOLUTIONS) and layer.groups != 1:
        return f"{name} has blocks of channels (groups={layer.groups})"
    if isinstance(layer, nn.Embedding) and layer.max_norm is not None:
        return f"{name} bounds the length of its vectors (max_norm)"
    return ""


def _check(model: nn.Module, link: Link, faults: dict[str, str]) -> Link:
    """Wiring: fill in the `problem` of a link (a layer and its reader) if units of the layer cannot be removed.

    The reasons are that one of the two layers must not change, or that their shapes do not match."""
    ends = [name for name in (link.producer, link.consumer) if name]
    problem = next((why for name in ends if (why := plain(name, model.get_submodule(name), faults))), link.problem)
    if not problem and link.consumer:
        problem = _mismatch(model.get_submodule(link.producer), model.get_submodule(link.consumer), link)
    return link._replace(problem=problem)


def _mismatch(producer: nn.Module, consumer: nn.Module, link: Link) -> str:
    """Wiring: the reason why the consumer layer does not read the producer's units one by one; empty if none.

    Units are indexed by the last dimension of a linear layer's output, and by the channel of a convolution's output.
    """
    convolved, flat = isinstance(producer, CONVOLUTIONS), any(part.flattens for part in link.between)
    if isinstance(consumer, CONVOLUTIONS) != (convolved and not flat):
        return f"{link.consumer} does not read the units of {link.producer} along their own dimension"
    if not convolved and (flat or any(part.pools for part in link.between)):
        return f"what stands between {link.producer} and {link.consumer} mixes units"
    units, read = units_of(producer), width_of(consumer)
    if read != units and not (flat and read % units == 0):
        return f"{link.consumer} reads {read} numbers, {link.producer} has {units} units"
    return ""


def units_of(layer: nn.Module) -> int:
    """Wiring: the number of output units of a layer."""
    return layer.weight.shape[1] if isinstance(layer, nn.Embedding) else layer.weight.shape[0]


def width_of(layer: nn.Module) -> int:
    """Wiring: the number of inputs of a layer; for an embedding, the number of columns."""
    return layer.weight.shape[1]


def shared_layers(model: nn.Module) -> dict[str, str]:
    """Wiring: layers that share a parameter, occur twice, or compute their weights: {name: reason}."""
    owners = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    names = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    faults = {}
    for name, m in model.named_modules():
        if any(p is not None and owners[id(p)] > 1 for p in m._parameters.values()):
            faults[name] = f"{name} shares a parameter with another layer"
        elif names[id(m)] > 1:
            faults[name] = f"{name} is in the model more than once"
        elif hasattr(m, "parametrizations") or "weight" in vars(m):
            faults[name] = f"{name} computes its weight (a parametrization)"
    return faults


def _feed_forward(name: str, layer: nn.Module) -> Link:
    """Wiring: the link from linear1 to linear2, which reads its units, in a transformer encoder or decoder layer."""
    producer, consumer = _path(name, "linear1"), _path(name, "linear2")
    if isinstance(layer.activation, nn.Module):
        part = _module_between(_path(name, "activation"), layer.activation)
    elif layer.activation in ENTRYWISE:
        part = Between(getattr(layer.activation, "__name__", "activation"), layer.activation)
    else:
        part = None
    if part is None:
        return Link(producer, problem=f"{_path(name, 'activation')} is not known to work entry by entry")
    return Link(producer, (part,), consumer)


class _Tracer(fx.Tracer):
    """Wiring: a torch.fx tracer that treats SlimAttention as a single operation."""

    def is_leaf_module(self, m: nn.Module, name: str) -> bool:
        """Wiring tracer: whether a module is a single operation of the graph, as SlimAttention is."""
        return isinstance(m, SlimAttention) or super().is_leaf_module(m, name)


def _collect(model: nn.Module, prefix: str, found: dict[str, Link]) -> None:
    """Wiring: find which layer reads the units of each layer inside a module; adds these pairs (links) to `found`.

    The forward function of the module is traced. If this fails, the children of the module are traced instead."""
    if type(model) in (*ENCODERS, *LAYERS, nn.MultiheadAttention, SlimAttention):
        return
    graphs = _graphs(model)
    if graphs is None:
        for name, child in model.named_children():
            _collect(child, _path(prefix, name), found)
        return
    first, *others = ({link.producer: link for link in _follow(model, graph)} for graph in graphs)
    for name, link in first.items():
        if not all(name in other and link.same(other[name]) for other in others):
            link = Link(name, problem=f"who reads {name} depends on the mode or on the arguments of the model")
        if link.consumer:
            link = link._replace(consumer=_path(prefix, link.consumer))
        found[_path(prefix, name)] = link._replace(producer=_path(prefix, name))


def _graphs(model: nn.Module) -> list[fx.Graph] | None:
    """Wiring: the four torch.fx graphs of a module; None if tracing fails.

    The module is traced twice in evaluation mode and twice in training mode. In each mode, the first graph takes the
    optional arguments as inputs, and the second graph has their default values."""
    parameters = inspect.signature(model.forward).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    modes = {m: m.training for m in model.modules()}
    graphs = []
    try:
        for training in (False, True):
            model.train(training)
            graphs += [_Tracer().trace(model), _Tracer().trace(model, concrete_args=defaults or None)]
    except Exception:  # a forward function that cannot be traced may raise any exception
        return None
    finally:
        for m, mode in modes.items():
            m.training = mode
    return graphs


def _follow(model: nn.Module, graph: fx.Graph):
    """Wiring: yield, for each layer of a traced graph, a `Link` to the layer that reads its output.

    If there is no such layer, the field `problem` of the `Link` says why."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    read = [node.target.rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"]
    for node in graph.nodes:
        if node.op != "call_module" or type(model.get_submodule(node.target)) not in LAYERS:
            continue
        if calls[node.target] > 1:
            yield Link(node.target, problem=f"{node.target} is used {calls[node.target]} times")
        elif node.target in read:
            yield Link(node.target, problem=f"the weight of {node.target} is used elsewhere")
        else:
            link = _walk(model, node)
            if link.consumer and (calls[link.consumer] > 1 or link.consumer in read):
                link = Link(node.target, problem=f"{link.consumer}, which reads it, is used elsewhere too")
            yield link


def _walk(model: nn.Module, start: fx.Node) -> Link:
    """Wiring: follow the output of one layer through a traced graph to the layer that reads the output.

    Returns a `Link`, which names both layers and the operations between them.
    """
    between, node = [], start
    while True:
        if len(node.users) != 1:
            places = "several places" if node.users else "nowhere"
            return Link(start.target, problem=f"the output of {start.target} goes to {places}")
        (user,) = node.users
        if user.op == "output":
            return Link(start.target, problem=f"the units of {start.target} are outputs of the model")
        alone = list(user.all_input_nodes) == [node] and user.args and user.args[0] is node
        alone = alone and node not in [*user.args[1:], *user.kwargs.values()]
        if alone and user.op == "call_module" and type(model.get_submodule(user.target)) in LAYERS:
            return Link(start.target, tuple(between), user.target)
        part = _between(model, user) if alone else None
        if part is None:
            return Link(start.target, problem=f"{_called(model, user)} reads the output of {start.target}")
        between.append(part)
        node = user


def _called(model: nn.Module, node: fx.Node) -> str:
    """Wiring: the name of the module or function that a graph node calls, for messages."""
    if node.op == "call_module":
        return f"{type(model.get_submodule(node.target)).__name__} {node.target}"
    return getattr(node.target, "__name__", str(node.target))


def _between(model: nn.Module, node: fx.Node) -> Between | None:
    """Wiring: the operation of a graph node, if the operation keeps units separate; None otherwise."""
    if node.op == "call_module":
        return None if len(node.args) > 1 else _module_between(node.target, model.get_submodule(node.target))
    rest, options = node.args[1:], dict(node.kwargs)
    what = f"{_called(model, node)} {rest} {options}"
    target = getattr(torch.Tensor, node.target, None) if node.op == "call_method" else node.target
    name = node.target if node.op == "call_method" else None
    if target in NOTHING:
        return Between(_called(model, node), lambda x: x)
    if target is torch.flatten or name == "flatten":
        whole = (*rest, options.get("end_dim", -1))[1:2] == (-1,) and (*rest, options.get("start_dim", 0))[0] == 1
        return Between(what, lambda x: x, flattens=True) if whole else None
    if target in ENTRYWISE or name in ENTRYWISE_NAMES:
        return Between(what, lambda x: target(x, *rest, **options))
    if target in ARITHMETIC and len(rest) == 1 and isinstance(rest[0], int | float) and not options:
        return Between(what, lambda x: target(x, rest[0]))
    return Between(what, lambda x: x, pools=True) if target in POOLS and not options.get("return_indices") else None


def _module_between(name: str, m: nn.Module) -> Between | None:
    """Wiring: the operation of a module (activation, dropout, flatten, pool); None if the module may mix units."""
    kind, what = type(m), f"{type(m).__name__} {name}"
    if m._forward_hooks or m._forward_pre_hooks:
        return None
    if kind in ENTRYWISE_MODULES:
        return Between(what, m)
    if kind in NOTHING_MODULES:
        return Between(what, lambda x: x)
    if kind is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1):
        return Between(what, lambda x: x, flattens=True)
    if kind in (*MAX_POOLS, *ADAPTIVE_POOLS):
        return None if getattr(m, "return_indices", False) else Between(what, lambda x: x, pools=True)
    if kind in AVERAGE_POOLS and getattr(m, "divisor_override", None) is None:
        padded = any(_each(m.padding)) and m.count_include_pad
        return Between(what, lambda x: x, pools=True, borders=padded)
    return None


def _each(value) -> tuple:
    """Wiring: the padding of a pool as a tuple; a single number becomes a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def _path(prefix: str, name: str) -> str:
    """Wiring: the dotted name of a submodule, from the names of its parent and of itself."""
    return f"{prefix}.{name}" if prefix else name
