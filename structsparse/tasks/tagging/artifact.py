"""The artifact of a tagger: `model.json` describes it, `weights.safetensors` holds its numbers.

Only living features are stored: their keys, template by template, and their weights other than zero, each in as few
bytes as possible (`artifacts/tables.py`). Nothing in the folder is ever executed; everything is checked before use.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.numpy
import torch

from structsparse.artifacts.folder import (
    COMMON,
    DESCRIPTION,
    KEYS,
    WEIGHTS,
    are_keys,
    are_strings,
    blaming,
    check_fields,
    each_is,
    parts,
    read_tensors,
    write,
)
from structsparse.artifacts.tables import check_numbers, index_of, keep_living_, packed, unpacked
from structsparse.base.errors import UserError
from structsparse.corpora.tags import SCHEMES
from structsparse.features.attributes import OF_WORD
from structsparse.structures.edges import EdgeChain
from structsparse.tasks.tagging.edges import EdgeScorer
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import parse
from structsparse.tasks.tagging.model import DenseScorer, RecurrentScorer, SparseScorer, SumScorer, Tagger
from structsparse.tasks.tagging.predictor import SequenceTagger
from structsparse.weights.batch import Sizes
from structsparse.weights.observed_pairs import PairScorer

if TYPE_CHECKING:
    from structsparse.tasks.tagging.data import TaggingData  # imports Lightning, which a predictor does without

__all__ = ["living", "load", "parts", "save", "unfit"]
KIND = None  # the value of `kind` in model.json, which taggers leave out
EDGES = "edges.table"


def save(folder: Path, tagger: Tagger, data: TaggingData) -> int:
    """Write the living part of a tagger, whole or not at all, in float32; the bytes of the folder."""
    if (reason := unfit(tagger)) is not None:
        raise UserError(reason)
    scorer, used = _described(tagger.scorer), {type(module) for module in tagger.modules()}
    state, tables = _state(tagger), _tables(tagger)
    templates, keys = keep_living_(state, tables, data.index if data.told is None else data.told)
    tensors, edges = {"keys": keys}, {}
    if tagger.edges is not None:
        index = data.edges.index if data.edges_told is None else data.edges_told
        edges["templates"], tensors["edges.keys"] = keep_living_(state, [EDGES], index)
        edges["steps"] = data.edges.steps.T.tolist()
    for name, array in state.items():
        with blaming(folder):
            check_numbers(name, array)
        tensors |= packed(name, array)
    weights = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    description = {
        "labels": list(data.labels),
        "scheme": data.scheme,
        "columns": list(data.splits.train.columns),
        "tag": data.tag,
        "dense": list(data.dense) if DenseScorer in used else [],
        "codes": {name: list(v) for name, v in data.codes.items()} if RecurrentScorer in used else {},
        "scorer": scorer,
        "templates": templates,
        **({"edges": edges} if edges else {}),
    }
    return write(folder, description, weights)


def living(tagger: Tagger, rows: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Which features have a weight, bool [rows], and which features of edges, if there are any."""
    state, none = _state(tagger), np.zeros(rows, bool)
    edges = (state[EDGES] != 0).any(axis=1) if EDGES in state else None
    return np.logical_or.reduce([none, *((state[name] != 0).any(axis=1) for name in _tables(tagger))]), edges


def _state(tagger: Tagger) -> dict[str, np.ndarray]:
    """All weights, float32, tables with their zeros."""
    weights = tagger.state_dict()
    weights |= {name: scorer.dense() for name, scorer in _tables(tagger).items() if _pairs(scorer)}
    if tagger.edges is not None:
        weights[EDGES] = tagger.edges.dense()
    return {name: tensor.detach().cpu().float().numpy() for name, tensor in weights.items()}


def load(folder: Path, description: dict) -> SequenceTagger:
    """Read a tagger that `save` has written; errors name the damaged file and the reason."""
    with blaming(folder / DESCRIPTION):
        check_fields(description, _FIELDS, _OPTIONAL)
        columns, tagger = _needed(description), _empty_tagger(description)
        if "edges" in description:
            EdgeChain(torch.tensor(description["edges"]["steps"]).T, len(description["labels"]))  # checks them
    with blaming(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), description["sha256"])
        index = index_of(TokenIndex, parse, description["templates"], tensors)
        edges, scorer = _edges(description, tensors)
        tagger = _fill_(tagger, tensors)
        tagger.edges = scorer
    return SequenceTagger(
        labels=tuple(description["labels"]),
        scheme=description["scheme"],
        layout=tuple(description["columns"]),
        columns=columns,
        tag_column=description["tag"],
        index=index,
        dense=tuple(description["dense"]),
        vocabularies={name: {v: k for k, v in enumerate(vs, start=1)} for name, vs in description["codes"].items()},
        tagger=tagger,
        edges=edges,
    )


# The settings of the project's own scorers; no others are saved or built.
_SETTINGS = {
    SparseScorer: lambda scorer: {},
    DenseScorer: lambda scorer: {},
    RecurrentScorer: lambda scorer: {
        "embedding": scorer.embeddings[0].embedding_dim,
        "hidden": scorer.forwards.hidden_size,
    },
    SumScorer: lambda scorer: {"parts": [_described(part) for part in scorer.parts]},
}
_BY_NAME = {kind.__name__: kind for kind in _SETTINGS}


def unfit(tagger: Tagger) -> str | None:
    """Why this tagger's scorer cannot be put into an artifact; None if it can."""
    scorers = [tagger.scorer, *getattr(tagger.scorer, "parts", ())]
    known = (*_SETTINGS, PairScorer)
    strange = next((type(scorer) for scorer in scorers if type(scorer) not in known), None)
    if strange is None:
        return None
    return f"{strange} cannot be put into an artifact; these scorers can: {', '.join(_BY_NAME)}"


def _described(scorer: torch.nn.Module) -> dict:
    kind = SparseScorer if _pairs(scorer) else type(scorer)  # what tells them apart is where the zeros are
    return {"class": kind.__name__, **_SETTINGS[kind](scorer)}


def _pairs(scorer: torch.nn.Module) -> bool:
    return type(scorer) is PairScorer


def _built(description: dict, sizes: Sizes) -> torch.nn.Module:
    settings = dict(description)
    name = settings.pop("class", None)
    if name not in _BY_NAME:
        raise UserError(f"scorer class {name!r} is unknown, expected one of {', '.join(_BY_NAME)}")
    if "parts" in settings:
        settings["parts"] = [partial(_built, part) for part in settings["parts"]]
    return _BY_NAME[name](sizes, **settings)


def _tables(tagger: Tagger) -> dict[str, torch.nn.Module]:
    """The parameters that have a row per feature, and whose they are."""
    kinds = (SparseScorer, PairScorer)
    return {f"{name}.table": module for name, module in tagger.named_modules() if type(module) in kinds}


def _edges(known: dict, tensors: dict) -> tuple[TokenIndex | None, EdgeScorer | None]:
    """The features that are conjoined with steps and what scores them, if there are any."""
    if "edges" not in known:
        return None, None
    index = index_of(TokenIndex, parse, known["edges"]["templates"], tensors, "edges.keys")
    steps = np.array(known["edges"]["steps"], np.int64).T  # [2, steps]
    dense = unpacked(tensors, EDGES, (len(index), steps.shape[1]))
    check_numbers(EDGES, dense)
    return index, EdgeScorer.of(steps, len(known["labels"]), dense).requires_grad_(False).eval()


def _fill_(tagger: Tagger, tensors: dict) -> Tagger:
    """Give an empty tagger its weights; every tensor must find its place."""
    state = {}
    for name, empty in tagger.state_dict().items():
        array = unpacked(tensors, name, tuple(empty.shape))
        check_numbers(name, array)
        state[name] = torch.tensor(array)
    if tensors:
        raise UserError(f"tensor {min(tensors)} has no place in this model")
    tagger.load_state_dict(state, assign=True)
    return tagger.requires_grad_(False).eval()


def _keys_and_steps(value: object) -> bool:
    if not isinstance(value, dict) or {*value} != {"templates", "steps"} or not isinstance(value["steps"], list):
        return False
    pairs = all(isinstance(pair, list) and [type(label) for label in pair] == [int, int] for pair in value["steps"])
    small = pairs and all(0 <= label < 2**31 for pair in value["steps"] for label in pair)
    return bool(value["steps"]) and small and are_keys(value["templates"])


_FIELDS = COMMON | {
    "labels": (lambda value: bool(value) and are_strings(value) and len({*value}) == len(value), "distinct strings"),
    "scheme": (lambda value: value is None or value in SCHEMES, f"null or one of {', '.join(SCHEMES)}"),
    "columns": (lambda value: are_strings(value) and len({*value}) == len(value), "distinct strings"),
    "tag": (lambda value: isinstance(value, str), "a string"),
    "dense": (are_strings, "a list of strings"),
    "codes": (lambda value: each_is(value, are_strings), "a list of strings for each attribute"),
    "scorer": (lambda value: isinstance(value, dict), "a class and its settings"),
    "templates": (lambda value: are_keys(value), KEYS),
    "edges": (lambda value: _keys_and_steps(value), f"templates with {KEYS}, and pairs of labels"),
}
_OPTIONAL = ("edges",)


def _needed(known: dict) -> tuple[str, ...]:
    """The columns that its templates and attributes are made from."""
    lines = [*known["templates"], *known.get("edges", {}).get("templates", ())]
    for line in lines:
        if [template.name for template in parse(line)] != [line]:
            raise UserError(f"template {line!r} is not the name of one template")
    layout, used = known["columns"], set()
    atoms = [name for line in lines for name, _ in parse(line)[0].atoms]
    for name in (*atoms, *known["dense"], *known["codes"]):
        column = name if name in layout else "word"
        if column not in layout or name not in (*layout, *OF_WORD):
            raise UserError(f"attribute {name!r} is neither a column ({', '.join(layout)}) nor made from the word")
        used.add(column)
    if known["tag"] in used:
        raise UserError(f"tag {known['tag']!r} is a column that the templates look at, expected one that they predict")
    if known["tag"] not in layout:
        raise UserError(f"tag is {known['tag']!r}, expected one of the columns ({', '.join(layout)})")
    return tuple(name for name in layout if name in used)


def _empty_tagger(known: dict) -> Tagger:
    """The modules without their numbers: takes no memory, draws nothing at random."""
    rows, labels = sum(count for count, _ in known["templates"].values()), len(known["labels"])
    sizes = Sizes(rows, labels, len(known["dense"]), tuple(len(values) + 1 for values in known["codes"].values()))
    try:
        with torch.device("meta"):
            return Tagger(_built(known["scorer"], sizes), labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"scorer {known['scorer']} cannot be built ({str(error).splitlines()[0]})") from None
