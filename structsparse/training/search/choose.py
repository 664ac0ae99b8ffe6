"""Choosing among fitted models by their score or loss on dev: the rank of a model, and the table of all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from structsparse.base.files import write_text
from structsparse.report.tables import Table, markdown, tsv
from structsparse.training.scores import gain

SCORE, LOSS = BY = "score", "loss"  # figures on dev by which models can be ranked

Row = Mapping[str, object]  # a table line: value by column name, such as `weights`, `loss` and the metric


def rank(row: Row, metric: str, by: str = SCORE) -> tuple[float, int]:
    """Choosing among models: the rank by score or loss on dev, then by number of weights; the smallest rank is best."""
    return (-gain(metric, row[metric]) if by == SCORE else row["loss"]), row["weights"]


def write_rows(stem: Path, rows: Sequence[Row], best: Row) -> None:
    """Choosing among models: write tables with a line for each model, in which the best model is marked.

    The tables are `stem`.tsv and `stem`.md."""
    lines = [(*row.values(), "yes" if row is best else "") for row in rows]
    table = Table((*rows[0], "best"), lines)
    write_text(stem.with_suffix(".tsv"), tsv(table))
    write_text(stem.with_suffix(".md"), markdown(table))
