"""Every notebook runs from a fresh kernel, and is kept without what it printed."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_it_runs_and_shows_tables_and_pictures(path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}  # where the kernel of this interpreter starts
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert {"image/png", "text/markdown"} <= set(shown)


def test_it_is_kept_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


def test_its_text_holds_no_figure_typed_by_hand(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            assert re.findall(r"\b\d[\d.,]*", re.sub(r"`[^`]*`", "", cell.source)) == []
