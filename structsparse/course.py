"""How a run went: what its stages have noted on their way, a table each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from structsparse.report import Table, tsv, write_text

if TYPE_CHECKING:
    from structsparse.recipe import Outcome

NOTED = {  # what a stage's figures call it -> file and columns
    "cuts": ("budget.tsv", ("step", "parameter", "strength")),
    "counts": ("counts.tsv", ("epoch", "step", "rows", "weights")),
    "outer": ("outer.tsv", ("epoch", "primal", "dual", "flips", "living")),  # of ADMM; residuals are mean squares
}


def write(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Of all stages, one after the other; no file of what none of them has noted."""
    for key, (name, header) in NOTED.items():
        lines = [(o.figures["stage"], *line) for o in outcomes for line in o.figures.get(key) or ()]
        if lines:
            write_text(folder / name, tsv(Table(("stage", *header), lines)))
