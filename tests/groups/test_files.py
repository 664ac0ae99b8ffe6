"""Groups from files: every format says the same, and every mistake is named with its file, group and row."""

import json

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.features.layout import TemplateLayout
from structsparse.groups import Partition
from structsparse.groups.cover import Cover
from structsparse.groups.files import from_file
from structsparse.groups.forest import Forest
from structsparse.penalties import GroupLasso

SHAPE = (8, 3)
DISJOINT = {"a": [0, 5], "b": [2], "c": [7, 6, 1]}
OVERLAPPING = {"a": [0, 1, 2], "b": [2, 3], "c": [7]}
NESTED = {"groups": {"top": [0], "left": [1, 2], "right": [3], "low": [4, 5], "other": [6]},
          "parents": {"left": "top", "right": "top", "low": "left"}}  # fmt: skip
SUBTREES = {"top": {0, 1, 2, 3, 4, 5}, "left": {1, 2, 4, 5}, "right": {3}, "low": {4, 5}, "other": {6}}


def write(folder, content, kind, text=None):
    """The same content in each of the formats."""
    path = folder / f"groups.{kind}"
    if text is not None or kind != "npz":
        path.write_text(json.dumps(content) if text is None and kind == "json" else text or as_yaml(content))
        return path
    groups = content.get("groups", content)
    names = list(groups)
    arrays = {
        "members": np.array([row for rows in groups.values() for row in rows], dtype=np.int32),
        "offsets": np.cumsum([0, *(len(rows) for rows in groups.values())]),
        "names": np.array(names),
    }
    if "weights" in content:
        arrays["weights"] = np.array([content["weights"][name] for name in names])
    if "parents" in content:
        above = content["parents"]
        arrays["parents"] = np.array([names.index(above[name]) if name in above else -1 for name in names])
    np.savez(path, **arrays)
    return path


def as_yaml(content, indent=""):
    lines = []
    for key, value in content.items():
        nested = isinstance(value, dict)
        lines.append(f"{indent}{key}:" + ("" if nested else f" {json.dumps(value)}"))
        lines += [as_yaml(value, indent + "  ").rstrip("\n")] if nested else []
    return "\n".join(lines) + "\n"


def rows_of(groups):
    """For each group its rows, found by lighting one row after the other."""
    found = {name: set() for name in groups.names}
    for row in range(groups.shape[0]):
        W = torch.zeros(groups.shape)
        W[row] = 1.0
        for name, lives in zip(groups.names, groups.alive(W).tolist(), strict=True):
            found[name] |= {row} if lives else set()
    return found


@pytest.mark.parametrize("kind", ["json", "yaml", "yml", "npz"])
@pytest.mark.parametrize(
    ("content", "expected", "made"),
    [
        (DISJOINT, {name: set(rows) for name, rows in DISJOINT.items()}, Partition),
        ({"groups": DISJOINT}, {name: set(rows) for name, rows in DISJOINT.items()}, Partition),
        (OVERLAPPING, {name: set(rows) for name, rows in OVERLAPPING.items()}, Cover),
        (NESTED, SUBTREES, Forest),
    ],
    ids=["disjoint", "under groups", "overlapping", "nested"],
)
def test_every_format_says_the_same(tmp_path, kind, content, expected, made):
    groups = from_file(SHAPE, path=write(tmp_path, content, kind), parameter="table")
    assert type(groups) is made
    assert rows_of(groups) == expected
    assert groups.size.tolist() == [3 * len(rows) for rows in expected.values()]
    assert groups.parameter == "table"


@pytest.mark.parametrize("kind", ["json", "yaml", "npz"])
@pytest.mark.parametrize("content", [{"groups": DISJOINT}, {"groups": OVERLAPPING}, NESTED])
def test_weights_in_the_file_come_before_the_rule(tmp_path, kind, content):
    given = {name: 0.5 + k for k, name in enumerate(content["groups"])}
    path = write(tmp_path, {**content, "weights": given}, kind)
    assert from_file(SHAPE, path=path, weights="one").weight.tolist() == list(given.values())
    path = write(tmp_path, content, kind)
    groups = from_file(SHAPE, path=path, weights="log2_size")
    assert groups.weight.tolist() == torch.log2(1 + groups.size.double()).tolist()


def test_rows_by_name_and_by_number(tmp_path):
    path = write(tmp_path, {"a": ["r1", 0], "b": ["r7"]}, "json")
    assert rows_of(from_file(SHAPE, path=path, names=[f"r{k}" for k in range(8)])) == {"a": {0, 1}, "b": {7}}


def test_a_template_stands_for_its_rows(tmp_path):
    layout = TemplateLayout(["word[0]", "pos[0]", "pos[-1]"], np.array([0, 3, 5, 8]), ["x", "y", "z"])
    path = write(tmp_path, {"a": ["pos[0]", "word[0]"], "b": [6]}, "yaml")
    assert rows_of(from_file(SHAPE, layout, path=path)) == {"a": {0, 1, 2, 3, 4}, "b": {6}}


def test_rows_that_nobody_names_are_free_for_a_penalty(tmp_path):
    groups = from_file(SHAPE, path=write(tmp_path, DISJOINT, "json"))
    W = GroupLasso(groups, strength=1e6).prox_(torch.ones(SHAPE), 1.0)
    assert W[[3, 4]].tolist() == [[1.0] * 3] * 2
    assert not W[[0, 1, 2, 5, 6, 7]].any()


def test_a_nested_group_may_repeat_the_rows_of_those_inside(tmp_path):
    content = {"groups": {name: sorted(rows) for name, rows in SUBTREES.items()}, "parents": NESTED["parents"]}
    plain = from_file(SHAPE, path=write(tmp_path, NESTED, "json"))
    assert torch.equal(from_file(SHAPE, path=write(tmp_path, content, "json")).ids, plain.ids)


def test_a_group_that_only_holds_others_may_be_empty(tmp_path):
    content = {"groups": {"low": [1], "top": []}, "parents": {"low": "top"}}
    assert rows_of(from_file(SHAPE, path=write(tmp_path, content, "json"))) == {"low": {1}, "top": {1}}


def test_random_nested_files_are_the_sets_they_say(tmp_path):
    generator = np.random.default_rng(0)
    for trial in range(50):
        count = int(generator.integers(1, 9))
        above = [int(generator.integers(-1, k)) if k else -1 for k in range(count)]
        order = generator.permutation(count)  # parents need not come first
        owner = generator.integers(-1, count, size=12)
        sets = {k: {row for row in range(12) if owner[row] == k} for k in range(count)}
        for k in reversed(range(count)):
            if above[k] >= 0:
                sets[above[k]] |= sets[k]
        if not all(sets.values()):
            continue
        repeat = trial % 2
        listed = {k: sorted(sets[k]) if repeat else [r for r in range(12) if owner[r] == k] for k in range(count)}
        content = {
            "groups": {f"g{k}": listed[k] for k in order.tolist()},
            "parents": {f"g{k}": f"g{above[k]}" for k in range(count) if above[k] >= 0},
        }
        groups = from_file((12, 2), path=write(tmp_path, content, ("json", "yaml", "npz")[trial % 3]))
        assert rows_of(groups) == {f"g{k}": sets[k] for k in order.tolist()}


MISTAKES = {
    "row out of range": (DISJOINT | {"d": [8]}, {}, ("group d", "row 8", "rows 0 to 7")),
    "negative row": (DISJOINT | {"d": [-1]}, {}, ("group d", "row -1")),
    "row twice": ({"a": [1, 2, 1]}, {}, ("group a", "row 1 twice")),
    "empty group": (DISJOINT | {"d": []}, {}, ("group d is empty",)),
    "overlap refused": (OVERLAPPING, {"overlap": "refuse"}, ("row 2", "groups a and b")),
    "overlap what": (OVERLAPPING, {"overlap": "maybe"}, ("overlap='maybe'", "allow or refuse")),
    "no group": ({}, {}, ("no group",)),
    "cycle": ({"groups": {"a": [1], "b": [2]}, "parents": {"a": "b", "b": "a"}}, {}, ("cycle", "a", "b")),
    "unrelated": ({"groups": {"a": [1], "b": [1], "c": [2]}, "parents": {"c": "b"}}, {}, ("row 1", "a and b")),
    "siblings": ({"groups": {"t": [], "a": [1], "b": [0, 1]}, "parents": {"a": "t", "b": "t"}}, {}, ("row 1",)),
    "empty leaf": ({"groups": {"a": [1], "b": []}, "parents": {"b": "a"}}, {}, ("group b is empty",)),
}


@pytest.mark.parametrize("kind", ["json", "yaml", "npz"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path, kind, mistake):
    content, options, expected = MISTAKES[mistake]
    path = write(tmp_path, content, kind, "{}" if content == {} and kind != "npz" else None)
    with pytest.raises(UserError) as error:
        from_file(SHAPE, path=path, **options)
    for part in (str(path), *expected):
        assert part in str(error.value)


TEXTS = {
    "a group twice": ('{"a": [1],\n "a": [2]}', "a: [1]\na: [2]\n", ("'a' occurs twice",)),
    "no list": ('{"a": 3}', "a: 3\n", ("group a is 3", "list of rows")),
    "a list of groups": ("[[1], [2]]", "- [1]\n- [2]\n", ("groups are a list",)),
    "unknown row": ('{"a": ["x"]}', "a: [x]\n", ("group a", "unknown row 'x'")),
    "a half row": ('{"a": [0.5]}', "a: [0.5]\n", ("group a", "0.5")),
    "a truth for a row": ('{"a": [true]}', "a: [yes]\n", ("group a", "True")),
    "a huge row": ('{"a": [99999999999999999999]}', "a: [99999999999999999999]\n", ("group a", "99999999999999999999")),
    "unknown part": ('{"groups": {"a": [1]}, "wieghts": {}}', "groups: {a: [1]}\nwieghts: {}\n", ("'wieghts'",)),
    "no weight": ('{"groups": {"a": [1]}, "weights": {}}', "groups: {a: [1]}\nweights: {}\n", ("no weight", "a")),
    "a weight too many": (
        '{"groups": {"a": [1]}, "weights": {"a": 1, "b": 2}}', "groups: {a: [1]}\nweights: {a: 1, b: 2}\n",
        ("unknown group b",),
    ),
    "a weight in words": (
        '{"groups": {"a": [1]}, "weights": {"a": "big"}}', "groups: {a: [1]}\nweights: {a: big}\n", ("weight", "'big'"),
    ),
    "unknown parent": (
        '{"groups": {"a": [1]}, "parents": {"a": "b"}}', "groups: {a: [1]}\nparents: {a: b}\n", ("'b'", "no group"),
    ),
    "unknown child": (
        '{"groups": {"a": [1]}, "parents": {"b": "a"}}', "groups: {a: [1]}\nparents: {b: a}\n", ("'b'", "no group"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["json", "yaml"])
@pytest.mark.parametrize("mistake", TEXTS)
def test_mistakes_in_texts_are_named(tmp_path, kind, mistake):
    as_json, yaml, expected = TEXTS[mistake]
    path = write(tmp_path, None, kind, as_json if kind == "json" else yaml)
    with pytest.raises(UserError) as error:
        from_file(SHAPE, path=path)
    for part in (str(path), *expected):
        assert part in str(error.value)


def test_a_file_that_cannot_be_parsed_is_told_with_the_line(tmp_path):
    for kind, text, line in (("json", '{"a": [1],\n "b": [2,}', 2), ("yaml", "a: [1]\nb: [2\nc: 3\n", 3)):
        path = write(tmp_path, None, kind, text)
        with pytest.raises(UserError, match=f"{path}, line {line}"):
            from_file(SHAPE, path=path)
    path = tmp_path / "twice.yaml"
    path.write_text("a: [1]\nb: [2]\na: [3]\n")
    with pytest.raises(UserError, match="line 3: the key 'a' occurs twice"):
        from_file(SHAPE, path=path)


def test_files_that_are_none(tmp_path):
    (tmp_path / "groups.npz").write_bytes(b"no zip")
    (tmp_path / "groups.json").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "groups.npz", tmp_path / "groups.json", tmp_path / "absent.json", tmp_path / "groups.txt"):
        with pytest.raises(UserError, match=path.name):
            from_file(SHAPE, path=path)


def test_nothing_in_an_npz_is_executed(tmp_path):
    path = tmp_path / "groups.npz"
    np.savez(path, members=np.array([0]), offsets=np.array([0, 1]), names=np.array(["a"], dtype=object))
    with pytest.raises(UserError, match=r"groups\.npz"):
        from_file(SHAPE, path=path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"members": np.array([0.5, 1.0])}, "members"),
        ({"offsets": np.array([0, 1])}, "rising offsets"),
        ({"offsets": np.array([0, 3, 2])}, "rising offsets"),
        ({"names": np.array(["a", "a"])}, "'a' occurs twice"),
        ({"weights": np.array([1.0])}, "weights"),
        ({"parents": np.array([5, -1])}, "parent of group a is 5"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, change, expected):
    arrays = {"members": np.array([0, 1]), "offsets": np.array([0, 1, 2]), "names": np.array(["a", "b"])}
    np.savez(tmp_path / "groups.npz", **{**arrays, **change})
    with pytest.raises(UserError, match=expected):
        from_file(SHAPE, path=tmp_path / "groups.npz")
    del arrays["offsets"]
    np.savez(tmp_path / "groups.npz", **arrays)
    with pytest.raises(UserError, match="no array 'offsets'"):
        from_file(SHAPE, path=tmp_path / "groups.npz")


def test_two_rows_of_one_name(tmp_path):
    path = write(tmp_path, {"a": ["x"]}, "json")
    with pytest.raises(UserError, match="same name"):
        from_file((2, 2), path=path, names=["x", "x"])
