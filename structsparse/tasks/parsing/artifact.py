"""The artifact of a parser: templates and relation names in `model.json`, keys and weights in `weights.safetensors`.

Only features with nonzero weights are stored. A feature is stored as a hashed key, so the folder contains no words of
the treebank.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from scipy import sparse

from structsparse.artifacts.folder import (
    COMMON_FIELDS,
    DESCRIPTION,
    WEIGHTS,
    Fields,
    check_fields,
    check_weights,
    errors_in,
    read_tensors,
    write_model,
)
from structsparse.artifacts.keys import EXPECTED_KEYS, are_keys, decode_keys, keep_living_
from structsparse.artifacts.tables import decode_table, encode_table
from structsparse.base.errors import UserError
from structsparse.corpora.treebank import RULES
from structsparse.structures.projective import ProjectiveTree
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.templates import ArcTemplate, check_attributes, parse
from structsparse.tasks.parsing.model import ArcScorer, Parser
from structsparse.tasks.parsing.predictor import DependencyParser
from structsparse.tasks.parsing.relations import Relations
from structsparse.weights.batch import Sizes

KIND = "parser"  # the value of the field `kind` in model.json


def unfit(parser: Parser) -> str | None:
    """The reason why a parser cannot be stored in an artifact; None if it can be stored."""
    if type(parser.scorer) is ArcScorer:
        return None
    return f"{type(parser.scorer)} cannot be put into an artifact, ArcScorer (model=arcs) can"


def save(folder: Path, model: DependencyParser) -> int:
    """Write the artifact of a parser (keys and nonzero weights in float32) atomically; return its size in bytes."""
    if (reason := unfit(model.parser)) is not None:
        raise UserError(reason)
    state = {"table": model.parser.scorer.table.detach().cpu().float().numpy()}
    templates, keys = keep_living_(state, ["table"], model.index)
    state["table"] = state["table"][:, 0]
    tensors, described = {"keys": keys}, None
    if model.relations is not None:
        state["relations.table"] = model.relations.weights.toarray()
        of_relations, tensors["relations.keys"] = keep_living_(state, ["relations.table"], model.relations.index)
        described = {"names": list(model.relations.names), "templates": of_relations}
    for name, array in state.items():
        with errors_in(folder):
            _check_finite(name, array)
        tensors |= encode_table(name, array)
    description = {
        "kind": KIND,
        "projective": isinstance(model.parser.structure, ProjectiveTree),
        "single_root": model.parser.structure.single_root,
        "punctuation": model.rule,
        "templates": templates,
        "relations": described,
    }
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return write_model(folder, description, safetensors.numpy.save(tensors))


def load(folder: Path, description: dict) -> DependencyParser:
    """Read the artifact of a parser that `save` has written; an error names the damaged file and the reason."""
    with errors_in(folder / DESCRIPTION):
        check_fields(description, _FIELDS)
        for line in [*description["templates"], *(description["relations"] or {"templates": ()})["templates"]]:
            _check_template(line)
    with errors_in(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), description["sha256"])
        index = decode_keys(ArcIndex, _one, description["templates"], tensors)
        table = decode_table(tensors, "table", (len(index),))
        _check_finite("table", table)
        relations = None if description["relations"] is None else _relations(description["relations"], tensors)
        if tensors:
            raise UserError(f"tensor {min(tensors)} has no place in a parser")
    with torch.device("meta"):
        parser = Parser(ArcScorer(Sizes(len(index), 1, 0, ())), description["projective"], description["single_root"])
    parser.load_state_dict({"scorer.table": torch.tensor(table)[:, None]}, assign=True)
    return DependencyParser(index, parser.requires_grad_(False).eval(), relations, description["punctuation"])


def _relations(described: dict, tensors: dict) -> Relations:
    """The relation classifier in a parser's artifact, from the field `relations` of model.json and the tensors."""
    names = tuple(described["names"])
    index = decode_keys(ArcIndex, _one, described["templates"], tensors, "relations.keys")
    table = decode_table(tensors, "relations.table", (len(index), len(names)))
    _check_finite("relations.table", table)
    return Relations(names, index, sparse.csr_array(table))


def _one(line: str) -> list[ArcTemplate]:
    """Parse a template line of a parser's artifact; the result is a list of one template, as `decode_keys` expects."""
    return [parse(line)]


def _check_template(line: str) -> None:
    """Raise an error if a template in a parser's artifact is not the canonical name of an arc template."""
    template = parse(line)
    if template.name != line:
        raise UserError(f"template {line!r} is not the name of one template, expected {template.name!r}")
    check_attributes([template])


def _check_finite(name: str, array: np.ndarray) -> None:
    """Raise an error if an array of weights in a parser's artifact holds NaN or infinity."""
    check_weights(name, array)
    if array.size and array.min() == -np.inf:
        raise UserError(f"{name} holds a weight that is infinite, expected numbers")


def _are_names(value: object) -> bool:
    """Whether a value in a parser's artifact is a list of distinct names of dependency relations."""
    return isinstance(value, list) and all(map(_is_name, value)) and len({*value}) == len(value) > 0


def _is_name(value: object) -> bool:
    """Whether a value in a parser's artifact can be a relation name: nonempty text without tabs and line breaks."""
    return isinstance(value, str) and value != "" and not {*value} & {*"\t\n\r"}


def _are_relations(value: object) -> bool:
    """Whether the field `relations` of a parser's artifact is valid: null, or names and templates of relations."""
    if not isinstance(value, dict):
        return value is None
    return {*value} == {"names", "templates"} and _are_names(value["names"]) and are_keys(value["templates"])


_FIELDS: Fields = COMMON_FIELDS | {
    "kind": (lambda value: value == KIND, f'"{KIND}"'),
    "projective": (lambda value: type(value) is bool, "true or false"),
    "single_root": (lambda value: type(value) is bool, "true or false"),
    "punctuation": (lambda value: value in RULES, f"one of {', '.join(RULES)}"),
    "templates": (lambda value: bool(value) and are_keys(value), EXPECTED_KEYS),
    "relations": (_are_relations, f"null, or distinct names and templates with {EXPECTED_KEYS}"),
}
