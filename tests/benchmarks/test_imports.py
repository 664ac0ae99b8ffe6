"""Benchmarks of the repository: every name that they import from the package exists, as no test runs them."""

import ast
import importlib

import pytest

from tests.support.runs import ROOT

FILES = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_imported_names_exist(file):
    missing = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("structsparse", "benchmarks")):
            missing += [alias.name for alias in node.names if not exists(node.module, alias.name)]
    assert missing == []


def exists(module: str, name: str) -> bool:
    """Whether a module has this name. Benchmarks are read, not imported: their peers need not be installed."""
    if module.startswith("benchmarks"):
        place = ROOT / module.replace(".", "/")
        return (place / f"{name}.py").exists() or name in defined(place.with_suffix(".py"))
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def defined(file) -> set[str]:
    """Functions, classes and variables that a file defines at its top level."""
    body = ast.parse(file.read_text()).body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    return names | {n.id for target in assigned for n in ast.walk(target) if isinstance(n, ast.Name)}
