"""Words of the next year: drift models of word counts against exponential forgetting, one origin after the other.

python benchmarks/drift_words.py fomc      FOMC minutes, 2004 to 2023, 3,000 words without the 200 most frequent
python benchmarks/drift_words.py sotu      State of the Union, 2014 to 2023, 1,000 words without the 100 most frequent

Each origin reads up to a year, learns from the years before it, and is scored by nats per word of that year. The
vocabulary is that of the years before. Forgetting mixes the counts of year t, weighted by g^(T - t), with `mass` words
of the mean frequencies; g and mass are those that were best for the last three years before the origin. `last` and
`all` are g = 0 and g = 1. Differences are paired by origin.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from drift_planted import FEATURES, paired
from timing import print_table, set_threads

from structsparse.corpora.known.dated import dated
from structsparse.losses.counts import PoissonCounts
from structsparse.penalties import Drift
from structsparse.penalties.drift import Likelihood
from structsparse.solvers import NewtonCG
from structsparse.tasks.temporal.data import prepare
from structsparse.tasks.temporal.model import DriftModel

CORPORA = {"fomc": (range(2004, 2024), 3000, 200, 200), "sotu": (range(2014, 2024), 1000, 100, 100)}
DATE = r"MeetingDate=(\d{4}-\d{2}-\d{2})"
MODELS = {
    "ar1": {"prior": "ar1"},
    "ar1_shared": {"prior": "ar1", "share": "all"},
    "rw": {"prior": "rw"},
    "rw_shared": {"prior": "rw", "share": "all"},
    "bridge": {"prior": "bridge"},
    "ar1, dispersion 3": {"prior": "ar1", "dispersion": 3.0},
    "ar1, dispersion 10": {"prior": "ar1", "dispersion": 10.0},
}
DECAYS, MASSES = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0), (30.0, 100.0, 300.0, 1000.0, 3000.0)
ROUNDS, TUNED = 40, 3  # iterations of EM; years that forgetting is tuned on


def data_of(name, until):
    """The word counts of a corpus up to a year."""
    _, most, skip, least = CORPORA[name]
    corpus = dated(
        name, None, "text", DATE if name == "fomc" else "date", None, None, None, [], [], 0, None, "year", until, 1,
        least, 1, 1, True, "letters", True, {},
    )  # fmt: skip
    return prepare(corpus, {**FEATURES, "most": most, "skip": skip, "smoothing": 300.0})


def fitted(data, dispersion=1.0, **options):
    """Nats per word of a drift model, fitted by EM."""
    batch, loss, layout = data.batch("train"), PoissonCounts(dispersion), data.layout()
    layout.noise = dispersion
    penalty = Drift(1 / batch.items, **options)
    penalty.fit(layout)
    model = DriftModel(data.periods, len(data.names), False)
    solver = NewtonCG(model.parameters(), newton=2, iterations=8)
    solver.attach({model.table: penalty})
    for _ in range(ROUNDS):
        solver.sweep(model, loss, batch)
        with torch.no_grad():
            scores = model(batch)
        curvature = batch.design.squares(loss.second(scores, batch.targets), data.periods)
        known = Likelihood(curvature, loss(scores, batch.targets).sum(), None, batch.targets.numel())
        penalty.outer_update(model.table.detach(), known)
    test = data.batch("test")
    with torch.no_grad():
        shares = torch.log_softmax(model(test), dim=1)
    return float(-(test.targets * shares).sum() / test.targets.sum())


def forgetting(counts, background, decay, mass):
    """The frequencies of words after some years of counts, by exponential forgetting."""
    ages = np.arange(len(counts))[::-1]
    mixed = (np.where(ages == 0, 1.0, decay ** ages.astype(float))[:, None] * counts).sum(axis=0) + mass * background
    return mixed / mixed.sum()


def forgetting_rows(data):
    """Nats per word of exponential forgetting and of its ends, each with options tuned on the last years of train."""
    batch, test = data.batch("train"), data.batch("test").targets.numpy().sum(axis=0)
    counts, background = batch.targets.numpy(), np.exp(data.of_items.background)

    def nats(year, before, options):
        """Nats per word of a year, from the counts of those before."""
        return -(year * np.log(forgetting(before, background, *options))).sum() / year.sum()

    rows = {}
    for name, decays in {"forgetting": DECAYS, "last": DECAYS[:1], "all": DECAYS[-1:]}.items():
        grid = list(product(decays, MASSES))
        errors = [sum(nats(counts[-k], counts[:-k], options) for k in range(1, TUNED + 1)) for options in grid]
        rows[name] = float(nats(test, counts, grid[int(np.argmin(errors))]))
    return rows


def origin(job):
    """Nats per word of all rows at one origin."""
    set_threads(1)
    name, until = job
    data = data_of(name, until)
    return {**{row: fitted(data, **options) for row, options in MODELS.items()}, **forgetting_rows(data)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--jobs", type=int, default=1, help="parallel processes")
    parser.add_argument("--json", type=Path, help="write the figures to this file as one flat object")
    parser.add_argument("--quick", action="store_true", help="the first two origins")
    options = parser.parse_args()
    jobs = [(options.corpus, year) for year in CORPORA[options.corpus][0]][: 2 if options.quick else None]
    rows = {}
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for (_, year), found in zip(jobs, pool.map(origin, jobs), strict=True):
            print(year, {row: round(value, 4) for row, value in found.items()}, flush=True)
            for row, value in found.items():
                rows.setdefault(row, []).append(value)
    figures, lines = {}, []
    for row, values in rows.items():
        mean, se, wins, _ = (0.0, 0.0, 0, 1.0) if row == "ar1" else paired(values, rows["ar1"])
        figures |= {f"nll_{row}": float(np.mean(values)), f"over_ar1_{row}": mean, f"se_{row}": se}
        lines.append((row, f"{np.mean(values):.4f}", f"{mean:+.4f}", f"{se:.4f}", f"{wins}/{len(values)}"))
    print_table("nats per word", ("row", "nats", "minus ar1", "se", "worse in"), lines)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
