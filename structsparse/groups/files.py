"""Files of groups of rows: JSON, YAML or npz.

A JSON or YAML file holds a mapping in one of three forms:

    {"colours": [0, 1, 2], "shapes": ["round", "square"]}               rows by index or by name
    {"groups": {...}, "weights": {"colours": 1.5, "shapes": 2}}         with a weight for each group
    {"groups": {...}, "parents": {"warm colours": "colours"}}           nested: a group has its children's rows too

An npz file holds arrays: `members` (rows), `offsets` and `names`. Group g has the rows members[offsets[g] : offsets[g +
1]]. The arrays `weights` and `parents` (index of the parent group, -1 for none) are optional. Rows in no group are not
penalised.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups.cover import cover_rows
from structsparse.groups.forest import Forest
from structsparse.groups.layouts import ANY, FORMS, TableLayout, over
from structsparse.groups.partition import Partition


class Written(NamedTuple):
    """The groups as a file states them, before row names are replaced by row indices."""

    names: list[str]  # names of the groups
    rows: Sequence  # for each group, a list of row indices and names; from npz: the arrays (members, offsets)
    weights: Mapping[str, float] | None  # {name of a group: weight}; None: the file has no weights
    parents: Mapping[str, str] | None  # {name of a group: name of its parent}; None: the file has no parents


@over(ANY, makes=FORMS)
def from_file(
    shape: Sequence[int],
    layout: TableLayout | None = None,
    path: str | Path = "",
    *,
    names: Sequence[str] | None = None,
    overlap: str = "allow",
    weights: str | Tensor = "sqrt_size",
    parameter: str = "the parameter",
) -> nn.Module:
    """Groups of rows of a parameter, read from a file: a Forest, a Cover or a Partition.

    The result is a Forest if the file has parents, a Cover if groups overlap, else a Partition. With
    `overlap="refuse"`, a row in two groups is an error. `names` are the names of the rows. With a `layout` of feature
    templates, the name of a template stands for all rows of the template. Weights in the file replace `weights`.
    """
    path = Path(path)
    if overlap not in ("allow", "refuse"):
        raise UserError(f"groups of {path}: overlap={overlap!r}, expected allow or refuse")
    if layout is not None and layout.reduced:
        raise UserError(
            f"groups of {path} number the rows of the full table, but dead rows have been removed before this stage; "
            "use recipe=direct or select_refit"
        )
    if not len(shape):
        raise UserError(f"groups of {path}: {parameter} is a single number, expected rows")
    written = read(path)
    members, offsets = _resolved(path, written, _row_names(path, names, layout))
    _check(path, written.names, members, offsets, shape[0], parameter)
    weights = weights if written.weights is None else weights_of(path, written)
    if written.parents is None:
        _refuse_empty(path, written.names, offsets.diff())
    else:
        return _forest(path, written, members, offsets, shape, weights, parameter)
    twice = _in_two(members, offsets, shape[0])
    if twice is None:
        ids = torch.full((shape[0],), -1)
        ids[members] = torch.repeat_interleave(offsets.diff())
        partition = Partition(ids.view(-1, *[1] * (len(shape) - 1)), written.names, shape, weights, parameter)
        partition.whole = True
        return partition
    if overlap == "refuse":
        row, one, other = twice
        one, other = written.names[one], written.names[other]
        raise UserError(f"{path}: row {row} is in groups {one} and {other}; expected disjoint groups")
    return cover_rows(shape, members, offsets, written.names, weights, parameter)


# Reading a file


def read(path: Path) -> Written:
    """Read a file of groups (JSON, YAML or npz) into a `Written`; rows may still be given by name."""
    if path.suffix not in READERS:
        raise UserError(f"groups of {path}: expected a file ending in {', '.join(READERS)}")
    try:
        return READERS[path.suffix](path)
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path} of groups") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} could not be read: {error}") from error


def _read_json(path: Path) -> Written:
    """Read a JSON file of groups; refuses repeated keys."""

    def unique(pairs: list[tuple]) -> dict:
        """The (key, value) pairs of a JSON object in a file of groups, as a dict; refuses repeated keys."""
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise UserError(f"{path}: the key {key!r} occurs twice")
            seen.add(key)
        return dict(pairs)

    try:
        return _written(path, json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}; expected JSON") from error
    except RecursionError as error:
        raise UserError(f"{path}: lists are nested too deeply") from error


class _UniqueLoader(yaml.SafeLoader):
    """YAML loader for files of groups that refuses repeated keys.

    yaml.SafeLoader would silently use the last of several equal keys.
    """

    def construct_mapping(self, node, deep=False):
        """A YAML mapping of a file of groups as a dict; refuses repeated keys."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                message = f"the key {key.value!r} occurs twice"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Written:
    """Read a YAML file of groups; refuses repeated keys."""
    try:
        # safe: _UniqueLoader is a SafeLoader, which runs no code from the file
        return _written(path, yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueLoader))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: {error.problem}; expected YAML") from error
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{path}: {error}; expected YAML") from error


def _written(path: Path, content) -> Written:
    """Check the parsed content of a JSON or YAML file of groups; split it into groups, weights and parents."""
    if isinstance(content, dict) and isinstance(content.get("groups"), dict):
        unknown = set(content) - {"groups", "weights", "parents"}
        if unknown:
            raise UserError(f"{path}: {sorted(map(str, unknown))[0]!r} stands beside groups; expected weights, parents")
        groups, weights, parents = content["groups"], content.get("weights"), content.get("parents")
    else:
        groups, weights, parents = content, None, None
    for what, part in (("groups", groups), ("weights", weights), ("parents", parents)):
        if not (isinstance(part, dict) or (part is None and what != "groups")):
            raise UserError(f"{path}: {what} are a {type(part).__name__}, expected {{group: ...}}")
    for name, rows in groups.items():
        if not isinstance(rows, list):
            raise UserError(f"{path}: group {name} is {rows!r}, expected a list of rows")
    text = {str(name): rows for name, rows in groups.items()}
    if len(text) < len(groups):
        raise UserError(f"{path}: two groups have the same name, one as a number, one as a text")
    return Written(list(text), list(text.values()), weights and _by_text(weights), parents and _by_text(parents))


def _by_text(part: dict) -> dict[str, object]:
    """A mapping from a file of groups with its keys turned into strings."""
    return {str(name): value for name, value in part.items()}


def _read_npz(path: Path) -> Written:
    """Read an npz file of groups: the arrays members, offsets, names and, optionally, weights and parents."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("members", "offsets", "names", "weights", "parents")
                      if name in file}  # fmt: skip
    except (ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise UserError(f"{path} is no npz file of plain numbers and texts: {error}") from error
    for name in ("members", "offsets", "names"):
        if name not in arrays:
            raise UserError(f"{path} holds no array {name!r}; expected members, offsets, names")
    members, offsets, names = arrays["members"], arrays["offsets"], [str(name) for name in arrays["names"].tolist()]
    for name, array in (("members", members), ("offsets", offsets)):
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise UserError(f"{path}: {name} are {array.dtype} {array.shape}, expected a vector of integers")
    steps = np.diff(offsets.astype(np.int64))
    if len(offsets) != len(names) + 1 or offsets[0] != 0 or offsets[-1] != len(members) or (steps < 0).any():
        raise UserError(
            f"{path}: {len(names)} names and {len(members)} members need {len(names) + 1} rising offsets from 0 to "
            f"{len(members)}, got {len(offsets)}: {offsets.tolist()[:3]} ..."
        )
    if len(set(names)) < len(names):
        raise UserError(f"{path}: the group {next(n for n in names if names.count(n) > 1)!r} occurs twice")
    rows = (members.astype(np.int64), offsets.astype(np.int64))
    return Written(names, rows, _column(path, arrays, "weights", names), _parent_names(path, arrays, names))


def _column(path: Path, arrays: dict, what: str, names: list[str]) -> dict | None:
    """An optional array of an npz file of groups, as {group name: number}; None if the file has no such array."""
    if what not in arrays:
        return None
    if arrays[what].shape != (len(names),):
        raise UserError(f"{path}: {what} have shape {arrays[what].shape}, expected one for each of {len(names)} groups")
    return dict(zip(names, arrays[what].tolist(), strict=True))


def _parent_names(path: Path, arrays: dict, names: list[str]) -> dict[str, str] | None:
    """The parents in an npz file of groups: {name of a group: name of its parent}; None without an array `parents`."""
    numbers = _column(path, arrays, "parents", names)
    if numbers is None:
        return None
    for name, above in numbers.items():
        if not isinstance(above, int) or not -1 <= above < len(names):
            raise UserError(f"{path}: the parent of group {name} is {above}, expected -1 to {len(names) - 1}")
    return {name: names[above] for name, above in numbers.items() if above >= 0}


READERS = {".json": _read_json, ".yaml": _read_yaml, ".yml": _read_yaml, ".npz": _read_npz}


# From the content of a file to groups of rows


def _row_names(path: Path, names: Sequence[str] | None, layout: TableLayout | None) -> dict[str, Sequence[int]]:
    """Names that a file of groups may use: {name of a row or of a feature template: indices of its rows}."""
    if names is not None:
        rows = {name: (row,) for row, name in enumerate(names)}
        if len(rows) < len(names):
            raise UserError(f"groups of {path}: two rows have the same name")
        return rows
    return {} if layout is None else layout.named_rows()


def _resolved(path: Path, written: Written, row_names: Mapping[str, Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Row indices of all groups of a file in one list, and the offset of each group in the list."""
    if isinstance(written.rows, tuple):
        return tuple(torch.from_numpy(part) for part in written.rows)
    members: list[int] = []
    offsets = [0]
    for name, rows in zip(written.names, written.rows, strict=True):
        for row in rows:
            members.extend(_numbers(path, name, row, row_names))
        offsets.append(len(members))
    return torch.tensor(members, dtype=torch.long), torch.tensor(offsets)


def _numbers(path: Path, group: str, row, row_names: Mapping[str, Sequence[int]]) -> Sequence[int]:
    """The row indices for one item of a group in a file: the item is a row index or a name."""
    if isinstance(row, int) and not isinstance(row, bool) and abs(row) < 2**62:
        return (row,)
    if isinstance(row, str) and row in row_names:
        return row_names[row]
    if isinstance(row, str):
        hint = f"; there are {', '.join(list(row_names)[:5])}, ..." if row_names else "; the rows have no names here"
        raise UserError(f"{path}: group {group} has the unknown row {row!r}{hint}")
    raise UserError(f"{path}: group {group} has the row {row!r}, expected a number or a name")


def _check(path: Path, names: list[str], members: Tensor, offsets: Tensor, rows: int, parameter: str) -> None:
    """Refuse a file of groups with no group, with rows that the parameter lacks, or with repeated rows in a group."""
    if not names:
        raise UserError(f"{path} holds no group")
    owner = torch.repeat_interleave(offsets.diff())
    wrong = (members < 0) | (members >= rows)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise UserError(f"{path}: group {names[owner[at]]} has row {members[at]}, {parameter} has rows 0 to {rows - 1}")
    code = (owner * rows + members).sort().values
    again = code[1:][code.diff() == 0]
    if len(again):
        raise UserError(f"{path}: group {names[int(again[0]) // rows]} has row {int(again[0]) % rows} twice")


def _refuse_empty(path: Path, names: list[str], sizes: Tensor) -> None:
    """Refuse a file of groups that has a group without rows."""
    if (sizes == 0).any():
        raise UserError(f"{path}: group {names[int((sizes == 0).nonzero()[0])]} is empty")


def _in_two(members: Tensor, offsets: Tensor, rows: int) -> tuple[int, int, int] | None:
    """Find a row that lies in two groups of a file: returns the row and both groups.

    Returns None if all groups are disjoint.
    """
    crowded = torch.bincount(members, minlength=rows) > 1
    if not crowded.any():
        return None
    row = int(crowded.nonzero()[0])
    one, other = torch.repeat_interleave(offsets.diff())[members == row][:2].tolist()
    return row, one, other


def _forest(path: Path, written: Written, members: Tensor, offsets: Tensor, shape, weights, parameter: str) -> Forest:
    """A Forest of the nested groups of a file of groups with parents.

    A row belongs to the deepest group that lists the row, and to all ancestors of that group. The ancestors need not
    list the row.
    """
    names, parents = written.names, _parents(path, written)
    ids = torch.full((shape[0],), -1).view(-1, *[1] * (len(shape) - 1))
    try:
        depth = Forest(parents, ids, names, shape, "one", parameter).depth
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    owner = torch.repeat_interleave(offsets.diff())
    order = depth[owner].argsort(stable=True)  # the deepest group of each row comes last
    order = order[members[order].argsort(stable=True)]
    rows, owner = members[order], owner[order]
    same = rows[1:] == rows[:-1]
    upper, lower, row = owner[:-1][same], owner[1:][same], rows[1:][same]
    above = lower
    for _ in range(int((depth[lower] - depth[upper]).max()) if len(row) else 0):
        above = torch.where(depth[above] > depth[upper], parents[above], above)
    if (above != upper).any():
        k = int((above != upper).nonzero()[0])
        one, other = names[upper[k]], names[lower[k]]
        raise UserError(f"{path}: row {row[k]} is in groups {one} and {other}, neither of which lies above the other")
    last = torch.ones(len(rows), dtype=torch.bool)
    last[:-1] = ~same
    ids.view(-1)[rows[last]] = owner[last]
    forest = Forest(parents, ids, names, shape, weights, parameter)
    _refuse_empty(path, names, forest.size if shape[0] else torch.ones(1))
    return forest


def _parents(path: Path, written: Written) -> Tensor:
    """The index of the parent group of each group in a file, -1 for none (int64 tensor [groups])."""
    number = {name: k for k, name in enumerate(written.names)}
    parents = torch.full((len(number),), -1)
    for child, parent in written.parents.items():
        for name in (child, parent):
            if name is not None and str(name) not in number:
                raise UserError(f"{path}: parents name {name!r}, which is no group")
        if parent is not None:
            parents[number[child]] = number[str(parent)]
    return parents


def weights_of(path: Path, written: Written) -> Tensor:
    """The weights of the groups in a file that has weights (float64 tensor [groups])."""
    for what, these, those in (
        ("no weight for the group", written.names, written.weights),
        ("a weight for the unknown group", written.weights, written.names),
    ):
        missing = [name for name in these if name not in those]
        if missing:
            raise UserError(f"{path}: there is {what} {missing[0]}")
    for name, weight in written.weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise UserError(f"{path}: the weight of group {name} is {weight!r}, expected a number")
    return torch.tensor([float(written.weights[name]) for name in written.names], dtype=torch.float64)
