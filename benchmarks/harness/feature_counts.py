"""How many features lived over the epochs of a run: report/counts.tsv."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure


class Counts(NamedTuple):
    """Living features of one run over its epochs, all stages one after the other."""

    epochs: np.ndarray  # float [entries]
    features: np.ndarray  # int [entries] weights that are not zero
    stages: tuple[str, ...]  # of each entry


def read_counts(path: Path) -> Counts:
    """report/counts.tsv: stage, epoch (from 0), step (within the stage), rows, weights."""
    with path.open(newline="") as file:
        entries = list(csv.DictReader(file, delimiter="\t"))
    epochs, before = [], 0.0
    stages = tuple(entry["stage"] for entry in entries)
    for stage in dict.fromkeys(stages):
        own = [entry for entry in entries if entry["stage"] == stage]
        length, steps = 1 + max(int(e["epoch"]) for e in own), max(1, *(int(e["step"]) for e in own), 1)
        epochs += [before + length * int(entry["step"]) / steps for entry in own]
        before += length
    return Counts(np.array(epochs), np.array([int(entry["weights"]) for entry in entries]), stages)


def counts_of(records: Sequence[Mapping], name: str, experiment) -> Counts | None:
    """Of the row's first run in the last pass, if it has counted."""
    last = list(experiment.passes)[-1]
    own = [record for record in records if record["row"] == name and record["pass"] == last]
    path = Path(own[0]["folder"]) / "report" / "counts.tsv" if own else None
    return read_counts(path) if path is not None and path.is_file() else None


def features_figure(counts: Mapping[str, Counts]) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, found in counts.items():
        axes.plot(found.epochs, found.features, linewidth=1, label=name)
    axes.set(xlabel="epochs", ylabel="features (weights that are not zero)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def peaks(counts: Mapping[str, Counts]) -> str:
    """The largest number of features that each held, in its first stage and in all."""
    largest = max(int(found.features.max()) for found in counts.values())
    said = []
    for name, found in counts.items():
        first = found.features[[stage == found.stages[0] for stage in found.stages]].max()
        peak = found.features.max()
        said.append(
            f"{name} held {peak:,} at most ({peak / largest:.1%}), {first:,} ({first / largest:.1%}) while selecting"
        )
    return "; ".join(said) + "."


def first_peak(record: Mapping) -> float | None:
    """Of the first stage, which selects, if its features were counted."""
    path = Path(record["folder"]) / "report" / "counts.tsv"
    if not path.is_file():
        return None
    found = read_counts(path)
    if found.stages[0] == "refit":  # a solver that goes from sentence to sentence came after one that does not
        return None
    return int(found.features[[stage == found.stages[0] for stage in found.stages]].max())
