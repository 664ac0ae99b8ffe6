"""Living features over the epochs of a run, from its report/counts.tsv."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from benchmarks.harness.spec import Spec


class FeatureCounts(NamedTuple):
    """Living features of one run over its epochs, all stages one after the other."""

    epochs: np.ndarray  # float [entries]
    features: np.ndarray  # int [entries] nonzero weights
    stages: tuple[str, ...]  # of each entry

    @property
    def first_stage(self) -> np.ndarray:
        """The features in the first stage."""
        return self.features[[stage == self.stages[0] for stage in self.stages]]


def read_counts(path: Path) -> FeatureCounts:
    """Read report/counts.tsv: stage, epoch (from 0), step (within the stage), rows, weights."""
    with path.open(newline="") as file:
        entries = list(csv.DictReader(file, delimiter="\t"))
    epochs, before = [], 0.0
    stages = tuple(entry["stage"] for entry in entries)
    for stage in dict.fromkeys(stages):
        of_stage = [entry for entry in entries if entry["stage"] == stage]
        length, steps = 1 + max(int(e["epoch"]) for e in of_stage), max(1, *(int(e["step"]) for e in of_stage), 1)
        epochs += [before + length * int(entry["step"]) / steps for entry in of_stage]
        before += length
    return FeatureCounts(np.array(epochs), np.array([int(entry["weights"]) for entry in entries]), stages)


def counts_of(records: Sequence[Mapping], name: str, spec: Spec) -> FeatureCounts | None:
    """The counts of a row's first run in the last pass, None if it has none."""
    runs = [record for record in records if record["row"] == name and record["pass"] == spec.last_pass]
    path = Path(runs[0]["folder"]) / "report" / "counts.tsv" if runs else None
    return read_counts(path) if path is not None and path.is_file() else None


def features_figure(counts: Mapping[str, FeatureCounts]) -> Figure:
    """Living features by epoch, a line for each row."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, run in counts.items():
        axes.plot(run.epochs, run.features, linewidth=1, label=name)
    axes.set(xlabel="epochs", ylabel="features (nonzero weights)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def peaks(counts: Mapping[str, FeatureCounts]) -> str:
    """A sentence with the most features that each row held, in its first stage and in all."""
    largest = max(int(run.features.max()) for run in counts.values())
    parts = []
    for name, run in counts.items():
        first, peak = run.first_stage.max(), run.features.max()
        parts.append(
            f"{name} held {peak:,} at most ({peak / largest:.1%}), {first:,} ({first / largest:.1%}) while selecting"
        )
    return "; ".join(parts) + "."


def first_stage_peak(record: Mapping) -> float | None:
    """The most features that a run held in its first stage, which selects; None if they were not counted."""
    path = Path(record["folder"]) / "report" / "counts.tsv"
    if not path.is_file():
        return None
    counts = read_counts(path)
    return None if counts.stages[0] == "refit" else int(counts.first_stage.max())  # only some solvers count features
