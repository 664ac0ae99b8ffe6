"""Benchmarks of the repository: every name that they import from the package exists, as no test runs them."""

import ast
import importlib
import pkgutil

import pytest

from tests.support.runs import ROOT

FILES = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_imported_names_exist(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("structsparse", "benchmarks")):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    pkgutil.resolve_name(f"{node.module}.{alias.name}")  # a module that is not imported yet
