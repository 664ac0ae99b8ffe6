"""The artifact of a tagger: `model.json` describes the tagger, `weights.safetensors` has feature keys and weights.

Only features with nonzero weights are stored. The keys are hashes of the features, ordered by template. No code from
the folder is executed. Every field and tensor is checked before use.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.numpy
import torch

from structsparse.artifacts.folder import (
    COMMON_FIELDS,
    DESCRIPTION,
    WEIGHTS,
    are_strings,
    check_fields,
    check_weights,
    each_is,
    errors_in,
    read_tensors,
    write_model,
)
from structsparse.artifacts.keys import EXPECTED_KEYS, are_keys, decode_keys, keep_living_
from structsparse.artifacts.tables import decode_table, encode_table
from structsparse.base.errors import UserError
from structsparse.corpora.tags import SCHEMES
from structsparse.features.attributes import OF_WORD
from structsparse.features.word_lists import WordLists, are_word_lists
from structsparse.structures.edges import EdgeChain
from structsparse.tasks.tagging.edges import EdgeScorer
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import parse
from structsparse.tasks.tagging.model import DenseScorer, RecurrentScorer, SparseScorer, SumScorer, Tagger
from structsparse.tasks.tagging.predictor import SequenceTagger
from structsparse.weights.batch import Sizes
from structsparse.weights.observed_pairs import PairScorer

if TYPE_CHECKING:
    from structsparse.tasks.tagging.data import TaggingData

KIND = None  # value of the field `kind` in model.json; None: taggers have no such field
EDGES = "edges.table"  # name of the tensor with the weights of edge features


def save(folder: Path, tagger: Tagger, data: TaggingData) -> int:
    """Write the artifact of a tagger into a folder (all files or, on an error, none); return the size in bytes."""
    if (reason := unfit(tagger)) is not None:
        raise UserError(reason)
    scorer, used = _described(tagger.scorer), {type(module) for module in tagger.modules()}
    state, tables = _state(tagger), _tables(tagger)
    templates, keys = keep_living_(state, tables, data.index if data.short is None else data.short)
    tensors, edges = {"keys": keys}, {}
    if tagger.edges is not None:
        index = data.edges.index if data.short_edges is None else data.short_edges
        edges["templates"], tensors["edges.keys"] = keep_living_(state, [EDGES], index)
        edges["steps"] = data.edges.label_pairs.T.tolist()
    for name, array in state.items():
        with errors_in(folder):
            check_weights(name, array)
        tensors |= encode_table(name, array)
    weights = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    description = {
        "labels": list(data.labels),
        "scheme": data.scheme,
        "columns": list(data.columns),
        "tag": data.tag,
        "dense": list(data.dense) if DenseScorer in used else [],
        "codes": {name: list(v) for name, v in data.codes.items()} if RecurrentScorer in used else {},
        "scorer": scorer,
        "templates": templates,
        **({"edges": edges} if edges else {}),
        **({"lists": data.lists.described()} if data.lists.attributes else {}),
    }
    return write_model(folder, description, weights)


def living(tagger: Tagger, rows: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Masks of the features and of the edge features with nonzero weights, which a tagger's artifact stores.

    Both masks are bool arrays. The second is None if the tagger has no edge features."""
    state, none = _state(tagger), np.zeros(rows, bool)
    edges = (state[EDGES] != 0).any(axis=1) if EDGES in state else None
    return np.logical_or.reduce([none, *((state[name] != 0).any(axis=1) for name in _tables(tagger))]), edges


def _state(tagger: Tagger) -> dict[str, np.ndarray]:
    """The parameters for a tagger's artifact (name -> dense float32 array, zeros included)."""
    weights = tagger.state_dict()
    weights |= {name: scorer.dense() for name, scorer in _tables(tagger).items() if _pairs(scorer)}
    if tagger.edges is not None:
        weights[EDGES] = tagger.edges.dense()
    return {name: tensor.detach().cpu().float().numpy() for name, tensor in weights.items()}


def load(folder: Path, description: dict) -> SequenceTagger:
    """Read the artifact of a tagger that `save` has written; an error names the damaged file and the reason."""
    with errors_in(folder / DESCRIPTION):
        check_fields(description, _FIELDS, _OPTIONAL)
        columns, tagger = _needed(description), _empty_tagger(description)
        if "edges" in description:
            # check the label pairs: the constructor of EdgeChain raises an error if they are invalid
            EdgeChain(torch.tensor(description["edges"]["steps"]).T, len(description["labels"]))
    with errors_in(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), description["sha256"])
        index = decode_keys(TokenIndex, parse, description["templates"], tensors)
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
        lists=_lists(description),
    )


# The scorer classes that an artifact can store, each with a function that returns the settings of a scorer.
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
    """The reason why a tagger cannot be stored in an artifact; None if the tagger can be stored."""
    scorers = [tagger.scorer, *(tagger.scorer.parts if isinstance(tagger.scorer, SumScorer) else ())]
    supported = (*_SETTINGS, PairScorer)
    unsupported = next((type(scorer) for scorer in scorers if type(scorer) not in supported), None)
    if unsupported is None:
        return None
    return f"{unsupported} cannot be put into an artifact; these scorers can: {', '.join(_BY_NAME)}"


def _described(scorer: torch.nn.Module) -> dict:
    """The class name and the settings of a tagger's scorer, for model.json in the artifact."""
    # A PairScorer is stored as a SparseScorer, with zeros for (feature, label) pairs that have no weight.
    kind = SparseScorer if _pairs(scorer) else type(scorer)
    return {"class": kind.__name__, **_SETTINGS[kind](scorer)}


def _pairs(scorer: torch.nn.Module) -> bool:
    """Whether a scorer for a tagger's artifact has weights only for (feature, label) pairs seen in training."""
    return type(scorer) is PairScorer


def _built(description: dict, sizes: Sizes) -> torch.nn.Module:
    """Build the scorer that model.json of a tagger's artifact describes, with parameters of the given sizes."""
    settings = dict(description)
    name = settings.pop("class", None)
    if name not in _BY_NAME:
        raise UserError(f"scorer class {name!r} is unknown, expected one of {', '.join(_BY_NAME)}")
    if "parts" in settings:
        settings["parts"] = [partial(_built, part) for part in settings["parts"]]
    return _BY_NAME[name](sizes, **settings)


def _tables(tagger: Tagger) -> dict[str, torch.nn.Module]:
    """The scorers of sparse features in a tagger's artifact (name of the weight table -> scorer)."""
    kinds = (SparseScorer, PairScorer)
    return {f"{name}.table": module for name, module in tagger.named_modules() if type(module) in kinds}


def _edges(description: dict, tensors: dict) -> tuple[TokenIndex | None, EdgeScorer | None]:
    """The index and the scorer of edge features in a tagger's artifact; (None, None) without edge features."""
    if "edges" not in description:
        return None, None
    index = decode_keys(TokenIndex, parse, description["edges"]["templates"], tensors, "edges.keys")
    steps = np.array(description["edges"]["steps"], np.int64).T  # [2, edges], the two label indices of each edge
    dense = decode_table(tensors, EDGES, (len(index), steps.shape[1]))
    check_weights(EDGES, dense)
    return index, EdgeScorer.of(steps, len(description["labels"]), dense).requires_grad_(False).eval()


def _fill_(tagger: Tagger, tensors: dict) -> Tagger:
    """Copy the weights in a tagger's artifact into an empty tagger; an unknown tensor is an error."""
    state = {}
    for name, empty in tagger.state_dict().items():
        array = decode_table(tensors, name, tuple(empty.shape))
        check_weights(name, array)
        state[name] = torch.tensor(array)
    if tensors:
        raise UserError(f"tensor {min(tensors)} has no place in this model")
    tagger.load_state_dict(state, assign=True)
    return tagger.requires_grad_(False).eval()


def _are_edges(value: object) -> bool:
    """Whether the field `edges` of a tagger's artifact is valid: templates of edge features, and label pairs."""
    if not isinstance(value, dict) or {*value} != {"templates", "steps"} or not isinstance(value["steps"], list):
        return False
    pairs = all(isinstance(pair, list) and [type(label) for label in pair] == [int, int] for pair in value["steps"])
    small = pairs and all(0 <= label < 2**31 for pair in value["steps"] for label in pair)
    return bool(value["steps"]) and small and are_keys(value["templates"])


_FIELDS = COMMON_FIELDS | {
    "labels": (lambda value: bool(value) and are_strings(value) and len({*value}) == len(value), "distinct strings"),
    "scheme": (lambda value: value is None or value in SCHEMES, f"null or one of {', '.join(SCHEMES)}"),
    "columns": (lambda value: are_strings(value) and len({*value}) == len(value), "distinct strings"),
    "tag": (lambda value: isinstance(value, str), "a string"),
    "dense": (are_strings, "a list of strings"),
    "codes": (lambda value: each_is(value, are_strings), "a list of strings for each attribute"),
    "scorer": (lambda value: isinstance(value, dict), "a class and its settings"),
    "templates": (lambda value: are_keys(value), EXPECTED_KEYS),
    "lists": (are_word_lists, "a lexicon and clusters"),
    "edges": (lambda value: _are_edges(value), f"templates with {EXPECTED_KEYS}, and pairs of labels"),
}
_OPTIONAL = ("edges", "lists")  # fields that may be missing in model.json


def _needed(description: dict) -> tuple[str, ...]:
    """The input columns that the tagger in an artifact reads, derived from the templates in model.json."""
    lines = [*description["templates"], *description.get("edges", {}).get("templates", ())]
    for line in lines:
        if [template.name for template in parse(line)] != [line]:
            raise UserError(f"template {line!r} is not the name of one template")
    layout, tag, used = description["columns"], description["tag"], set()
    made = (*OF_WORD, *_lists(description).attributes)  # attributes made from the word
    atoms = [name for line in lines for name, _ in parse(line)[0].atoms]
    for name in (*atoms, *description["dense"], *description["codes"]):
        column = name if name in layout else "word"
        if column not in layout or name not in (*layout, *made):
            raise UserError(f"attribute {name!r} is neither a column ({', '.join(layout)}) nor made from the word")
        used.add(column)
    if tag in used:
        raise UserError(f"tag {tag!r} is a column that the templates look at, expected one that they predict")
    if tag not in layout:
        raise UserError(f"tag is {tag!r}, expected one of the columns ({', '.join(layout)})")
    return tuple(name for name in layout if name in used)


def _lists(description: dict) -> WordLists:
    """The word lists (lexicons and clusters) in the artifact of a tagger; empty lists if it has none."""
    return WordLists.restored(description["lists"]) if "lists" in description else WordLists()


def _empty_tagger(description: dict) -> Tagger:
    """Build the tagger that model.json of an artifact describes, with empty parameters.

    The parameters are on the device `meta`, which needs no memory."""
    rows, labels = sum(count for count, _ in description["templates"].values()), len(description["labels"])
    sizes = Sizes(
        rows, labels, len(description["dense"]), tuple(len(values) + 1 for values in description["codes"].values())
    )
    try:
        with torch.device("meta"):
            return Tagger(_built(description["scorer"], sizes), labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"scorer {description['scorer']} cannot be built ({str(error).splitlines()[0]})") from None
