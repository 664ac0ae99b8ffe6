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
            missing += [name for alias in node.names if not exists(node.module, name := alias.name)]
    assert missing == []


def exists(module: str, name: str) -> bool:
    """Whether a module has this name, as an attribute or as a module in it."""
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False
