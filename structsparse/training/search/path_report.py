"""Path report: the table and the picture of a path of strengths, with the strength that dev chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from structsparse.base.files import atomic_file
from structsparse.report.living_groups import norm_heatmap
from structsparse.training.search.choose import write_rows

Row = Mapping[str, object]  # table line of a strength: `share` of the critical strength, score, groups, weights, ...


def write(folder: Path, rows: Sequence[Row], chosen: Row, metric: str) -> None:
    """Path report: write the table (path.tsv, path.md) and the picture (path.png)."""
    write_rows(folder / "path", rows, chosen)
    with atomic_file(folder / "path.png") as file:
        picture(rows, chosen, metric).savefig(file, format="png", dpi=150)


def log(folder: Path, rows: Sequence[Row], chosen: Row, metric: str, norms: Mapping[str, tuple]) -> None:
    """Path report: log a path to TensorBoard: score, living groups and weights of each row, and pictures.

    `norms` has, for each penalised parameter, the names of its groups and their norms at each strength."""
    board = TensorBoardLogger(folder, name="tensorboard", version="").experiment
    for k, row in enumerate(rows):
        for key in (metric, "groups", "weights"):
            if row.get(key) is not None:
                board.add_scalar(f"search/{key}", row[key], k)
    board.add_figure("search/path", picture(rows, chosen, metric))
    for name, (groups, lines) in norms.items():
        board.add_figure(f"search/group_norms/{name}", norm_heatmap(lines, groups))
    board.close()


def picture(rows: Sequence[Row], chosen: Row, metric: str) -> Figure:
    """Path report: the picture of two curves over the strength: the score on dev, and sparsity.

    Sparsity is the number of living groups, or of nonzero weights if there are no groups. A row with strength 0, the
    pilot of a group search, becomes a horizontal line."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    path = [row for row in rows if row["share"] > 0]
    for key, label in ((metric, "after all stages"), (f"selected {metric}", "as selected")):
        scored = [(row["share"], row[key]) for row in path if row.get(key) is not None]
        if scored and (key == metric or len(scored) < len(path) or any(row[key] != row[metric] for row in path)):
            axes.plot(*zip(*scored, strict=True), marker="o", label=label)
    for row in rows:
        if row["share"] == 0:
            axes.axhline(row[metric], color="C2", linestyle="--", label="all groups")
    if chosen["share"] > 0:
        axes.axvline(chosen["share"], color="0.8", zorder=0)
    axes.set(xscale="log", xlabel="strength, as a share of the critical one", ylabel=f"{metric} on dev")
    axes.set_xticks([row["share"] for row in path], [f"{row['share']:.3g}" for row in path], rotation=45, fontsize=7)
    axes.set_xticks([], minor=True)
    axes.invert_xaxis()
    by_groups = rows[0]["groups"] is not None
    counted = "groups" if by_groups else "selected weights" if "selected weights" in rows[0] else "weights"
    right = axes.twinx()
    right.step([row["share"] for row in path], [row[counted] for row in path], where="mid", color="0.6")
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_ylabel(f"living {'groups' if by_groups else 'weights'}", color="0.5")
    axes.legend(fontsize=8)
    return figure
