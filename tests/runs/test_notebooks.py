"""Every notebook runs in a fresh kernel, uses structsparse as installed, and is stored without outputs."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.slow
def test_it_runs_and_shows_tables_and_pictures(path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the kernel imports this checkout
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}  # the folder in which the kernel starts
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert {"image/png", "text/markdown"} <= set(shown)


def test_it_is_stored_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


def test_it_imports_structsparse_as_installed(path):
    code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert "sys.path" not in code
    assert not re.search(r"^(import train|from train )", code, re.MULTILINE)


def test_its_text_holds_no_figure_typed_by_hand(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            assert re.findall(r"\b\d[\d.,]*", re.sub(r"`[^`]*`", "", cell.source)) == []
