"""The choice among fitted models by their score or loss on dev: the rank of a model, and the table of all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from structsparse.base.files import write_text
from structsparse.report.tables import Table, markdown, tsv
from structsparse.training.scores import gain

SCORE, LOSS = BY = "score", "loss"  # figures on dev by which models are ranked

Row = Mapping[str, object]  # a line of the table: a score under the name of its metric, `weights`, `loss`, ...


def rank(row: Row, metric: str, by: str = SCORE) -> tuple[float, int]:
    """The rank of a model by its score or loss on dev, then by its number of weights; less is better."""
    return (-gain(metric, row[metric]) if by == SCORE else row["loss"]), row["weights"]


def write_rows(stem: Path, rows: Sequence[Row], best: Row) -> None:
    """Write `stem`.tsv and `stem`.md, tables with a line for each model; the best model is marked."""
    lines = [(*row.values(), "yes" if row is best else "") for row in rows]
    table = Table((*rows[0], "best"), lines)
    write_text(stem.with_suffix(".tsv"), tsv(table))
    write_text(stem.with_suffix(".md"), markdown(table))
