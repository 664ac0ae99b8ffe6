"""What another sample of sentences would have changed: the paired bootstrap over the items of dev and test.

A run says in `report/items.tsv` how many parts of each item (words of a sentence) it got right. The difference of two
rows is that of their means over seeds; items are drawn anew, with replacement, the same ones for both rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structsparse.base.files import write_text
from structsparse.report.tables import Table, tsv

FILE = Path("report") / "items.tsv"
DRAWS = 2000
PARTS = "dev", "test"


class Items(NamedTuple):
    right: np.ndarray  # [items]
    of: np.ndarray  # [items]


class Resampled(NamedTuple):
    """How much better a row is than another: the difference, its standard error, and the share of draws above zero."""

    mean: float
    error: float
    above: float


def write(folder: Path, items: Mapping[str, Items]) -> None:
    """Of a run, part by part, into its folder of reports."""
    rows = [(part, int(r), int(n)) for part, own in items.items() for r, n in zip(*own, strict=True)]
    write_text(folder / FILE.name, tsv(Table(("part", "right", "of"), rows)))


def read(run: Path) -> dict[str, Items]:
    """Nothing where the run says nothing of its items."""
    if not (run / FILE).is_file():
        return {}
    lines = [line.split("\t") for line in (run / FILE).read_text().splitlines()[1:]]
    found = {}
    for part in PARTS:
        numbers = np.array([line[1:] for line in lines if line[0] == part], np.int64).reshape(-1, 2)
        found[part] = Items(*numbers.T)
    return found


def resampled(mine: Sequence[Items], theirs: Sequence[Items], seed: int = 0) -> Resampled:
    """Of all seeds of two rows on the same items."""
    of = mine[0].of
    shares = [np.mean([items.right for items in some], axis=0) for some in (mine, theirs)]
    apart = shares[0] - shares[1]  # [items]
    drawn = np.random.default_rng(seed).multinomial(len(of), np.full(len(of), 1 / len(of)), DRAWS)  # [draws, items]
    differences = drawn @ apart / np.maximum(drawn @ of, 1)
    return Resampled(float(apart.sum() / of.sum()), float(differences.std(ddof=1)), float((differences > 0).mean()))


def table(board, pairs: Sequence[tuple[str, str]], scale: float, read=read) -> Table | None:
    """A line for each pair of rows and place; None where no run says anything of its items."""
    known: dict[str, dict[tuple, dict[str, Items]]] = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        records = board.found.get(name, {})
        known[name] = {run: items for run, record in records.items() if (items := read(Path(record["folder"])))}
    rows = []
    for row, other in pairs:
        for place in board.places:
            runs = [[items for (where, _), items in known[name].items() if where == place] for name in (row, other)]
            if all(runs):
                found = [resampled(*([items[part] for items in some] for some in runs)) for part in PARTS]
                cells = [f"{scale * f.mean:+.2f} ± {scale * f.error:.2f} ({f.above:.3f})" for f in found]
                rows.append((row, other, place, *cells))
    return Table(("row", "less", "place", *PARTS), rows) if rows else None
