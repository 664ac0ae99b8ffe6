"""Paired bootstrap test over the items of dev and test: the standard error of a difference between two systems.

An item is a sentence or document, for example. For each item, a run writes the number of correct units (such as words)
to `report/items.tsv`. The difference of two systems is the difference of their means over runs. Items are resampled
with replacement, the same items for both systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structsparse.base.files import write_text
from structsparse.report.tables import Table, tsv

FILE = Path("report") / "items.tsv"
DRAWS = 2000  # number of bootstrap samples
PARTS = "dev", "test"  # parts of a corpus on which systems are compared

# (place, seed) -> folder of the run; systems are compared separately for each place, such as each task
Runs = Mapping[tuple[str, object], Path]


class ItemScores(NamedTuple):
    """Paired bootstrap: for each item, the count of correct units and of all units, such as words."""

    right: np.ndarray  # [items], count of correct units
    total: np.ndarray  # [items], count of all units


class Resampled(NamedTuple):
    """The paired bootstrap of two systems: the difference of their scores, and how certain the difference is."""

    difference: float  # score of the first system, such as the share of correct units, minus that of the second
    error: float  # standard error of the difference
    above: float  # share of bootstrap samples in which the difference is positive


def write_items(folder: Path, items: Mapping[str, ItemScores]) -> None:
    """Paired bootstrap: write the item scores of a run on dev and test to items.tsv in its report folder."""
    rows = [(part, int(r), int(n)) for part, scores in items.items() for r, n in zip(*scores, strict=True)]
    write_text(folder / FILE.name, tsv(Table(("part", "right", "of"), rows)))


def read_items(run: Path) -> dict[str, ItemScores]:
    """Paired bootstrap: read the item scores of a run on dev and test from items.tsv; empty if there are none."""
    if not (run / FILE).is_file():
        return {}
    lines = [line.split("\t") for line in (run / FILE).read_text().splitlines()[1:]]
    items = {}
    for part in PARTS:
        numbers = np.array([line[1:] for line in lines if line[0] == part], np.int64).reshape(-1, 2)
        items[part] = ItemScores(*numbers.T)
    return items


def paired_bootstrap(runs: Sequence[ItemScores], other_runs: Sequence[ItemScores], seed: int = 0) -> Resampled:
    """Paired bootstrap of the difference of two systems; all runs of both systems are on the same items."""
    total = runs[0].total
    right, other_right = (np.mean([items.right for items in scores], axis=0) for scores in (runs, other_runs))
    difference = right - other_right  # [items], difference of the mean counts of correct units
    counts = resampled_counts(len(total), seed)
    return summarised(float(difference.sum() / total.sum()), counts @ difference / np.maximum(counts @ total, 1))


def resampled_counts(items: int, seed: int = 0) -> np.ndarray:
    """Paired bootstrap: how often each item is drawn in each bootstrap sample, int64 [samples, items]."""
    return np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), DRAWS)


def summarised(difference: float, samples: np.ndarray) -> Resampled:
    """Paired bootstrap: the result, from the difference over all items and the differences in bootstrap samples.

    Samples whose difference is NaN are left out."""
    samples = samples[~np.isnan(samples)]
    if len(samples) < 2:
        return Resampled(difference, float("nan"), float("nan"))
    return Resampled(difference, float(samples.std(ddof=1)), float((samples > 0).mean()))


def bootstrap_table(
    systems: Mapping[str, Runs], pairs: Sequence[tuple[str, str]], places: Sequence[str], scale: float
) -> Table | None:
    """Table of paired bootstraps, with a row for each pair of systems and each place (such as a task).

    The result is None if no run has item scores. `scale` multiplies the differences and errors in the table."""
    names = dict.fromkeys(name for pair in pairs for name in pair)
    scores = {name: _item_scores(systems.get(name, {})) for name in names}
    rows = []
    for pair in pairs:
        for place in places:
            ours, theirs = ([items for (at, _), items in scores[name].items() if at == place] for name in pair)
            if ours and theirs:
                results = [paired_bootstrap([i[part] for i in ours], [i[part] for i in theirs]) for part in PARTS]
                cells = [f"{scale * r.difference:+.2f} ± {scale * r.error:.2f} ({r.above:.3f})" for r in results]
                rows.append((*pair, place, *cells))
    return Table(("row", "less", "place", *PARTS), rows) if rows else None


def _item_scores(runs: Runs) -> dict[tuple[str, object], dict[str, ItemScores]]:
    """Paired bootstrap: the item scores of a system's runs, by place and seed; runs without scores are left out."""
    return {run: items for run, folder in runs.items() if (items := read_items(folder))}
