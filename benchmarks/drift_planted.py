"""Planted drift: learned smoothness against shared smoothness and baselines, by the squared error of forecasts.

python benchmarks/drift_planted.py            20 seeds, 200 items a period
python benchmarks/drift_planted.py --items 50

Each seed draws 100 features (60 dead, 20 constant, 20 random walks), 10 periods to learn from, and an eleventh to
forecast. The rows eb_* learn from the 10 periods without dev. The baselines are tuned on the tenth period after fits to
the nine before it, and then fitted to all ten: ridge and lasso on the last period (one) or on all periods, and ridge
with squared differences between periods (ts).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import solveh_banded
from scipy.stats import wilcoxon
from timing import print_table, set_threads

import structsparse as ss
from structsparse.corpora.dated import KINDS
from structsparse.corpora.planted.drift import planted_drift
from structsparse.losses.pointwise import Squared
from structsparse.penalties import Drift
from structsparse.penalties.drift import Likelihood
from structsparse.solvers import NewtonCG
from structsparse.tasks.temporal import evidence
from structsparse.tasks.temporal.data import prepare
from structsparse.tasks.temporal.model import DriftModel
from structsparse.tasks.temporal.report import planted_scores

FEATURES = {
    "weighting": "log", "log_ratio": 0, "normalize": False, "min_count": 1, "vocabulary": "train", "extra": None,
    "group_strength": 0.1, "most": None, "skip": 0, "smoothing": 1.0,
}  # fmt: skip
ROUNDS = 100  # iterations of EM at most
TUNED = {  # grids of the baselines, in multiples of the items of a period
    "ridge": 10.0 ** np.arange(-2, 2.1, 0.5),
    "lasso": 10.0 ** np.arange(-2.5, 0.3, 0.25),
    "level": 10.0 ** np.arange(-1, 2.6, 0.5),
    "change": (0.3, 1, 3, 10, 30, 100, 1000),
}


def likelihood(model, batch):
    """The likelihood of the squared loss at the present weights."""
    with torch.no_grad():
        scores = model(batch)
    squares = (scores - batch.targets).square().sum()
    curvature = batch.design.squares(torch.ones_like(scores), len(model.table))
    return Likelihood(curvature, squares / 2, squares, len(scores))


def em(data, before=None, **options):
    """Fit a drift model by EM until the objective hardly rises; returns the model and its penalty."""
    batch, penalty = data.batch("train"), Drift(1 / data.items, **options)
    penalty.fit(data.layout())
    model = DriftModel(data.periods, len(data.names), True)
    if before is not None:
        model.table.data.copy_(before)
    solver, objective, calm = NewtonCG(model.parameters(), newton=2, iterations=8), -np.inf, 0
    solver.attach({model.table: penalty})
    for _ in range(ROUNDS):
        solver.sweep(model, Squared(), batch)
        last, objective = (
            objective,
            float(penalty.outer_update(model.table.detach(), likelihood(model, batch)).objective),
        )
        calm = calm + 1 if objective - last <= 1e-5 * batch.items else 0
        if calm >= 3:
            break
    return model, penalty


def kinds_of(model, penalty, data):
    """The class of each feature by evidence."""
    batch = data.batch("train")
    with torch.no_grad():
        slopes = -batch.design.pull(model(batch) - batch.targets, len(model.table)) / penalty.noise
    return evidence.classes(model.table.detach(), likelihood(model, batch).curvature / penalty.noise, slopes)[0]


def error(model, data):
    """Mean squared error of the forecasts for test."""
    batch = data.batch("test")
    with torch.no_grad():
        return float((model(batch) - batch.targets).square().mean())


def drift_rows(data):
    """The errors of drift models, and the classes that evidence finds."""
    errors, classes = {}, {}
    for prior in ("ar1", "rw"):
        model, penalty = em(data, prior=prior)
        errors[f"eb_{prior}"] = error(model, data)
        kinds = kinds_of(model, penalty, data)
        classes[prior] = planted_scores(data, kinds)
        kept = data.keep_kinds(kinds)
        errors[f"eb_{prior}_refit"] = error(em(kept, model.table.detach()[:, kinds > 0], prior=prior)[0], kept)
        errors[f"eb_{prior}_shared"] = error(em(data, prior=prior, share="all")[0], data)
    return errors, classes


def smooth_ridge(x, y, level, change):
    """Weights by period under level * w^2 + level * change * (differences between periods)^2, exactly."""
    periods, features = len(x), x[0].shape[1]
    size = periods * features
    bands = np.zeros((features + 1, size))
    right = np.concatenate([a.T @ b for a, b in zip(x, y, strict=True)])
    for t in range(periods):
        gram = x[t].T @ x[t] + level * (1 + change * ((t > 0) + (t < periods - 1))) * np.eye(features)
        for k in range(features):
            bands[: features - k, t * features + k] = gram[k:, k]
    if periods > 1:
        bands[features, :-features] = -level * change
    return solveh_banded(bands, right, lower=True).reshape(periods, features)


def ridge(x, y, strength):
    """Ridge regression without intercept."""
    return np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ y)


def lasso(x, y, strength):
    """Lasso without intercept; the strength is that of the summed squares / 2."""
    fit = ss.fit_linear(x, y, ss.penalties.L1(strength / len(y)), loss="squared", intercept=False)
    return np.asarray(fit.weights)


def baseline_rows(corpus, items):
    """The errors of the baselines, each tuned on the last period of train."""
    parts = [np.flatnonzero(corpus.period == t) for t in range(len(corpus.periods))]
    x, y = [corpus.values[part] for part in parts], [corpus.response[part] for part in parts]
    last = len(x) - 2  # the tenth period

    def tuned(fit, grid):
        """The error on test of the options that are best on the tenth period after a fit to those before."""
        errors = [np.square(y[last] - x[last] @ fit(x[:last], y[:last], *options)).mean() for options in grid]
        best = fit(x[: last + 1], y[: last + 1], *grid[int(np.argmin(errors))])
        return float(np.square(y[-1] - x[-1] @ best).mean())

    ones = [(items * strength,) for strength in TUNED["ridge"]]
    several = [(3 * items * strength,) for strength in TUNED["ridge"]]
    lassos = [(items * strength,) for strength in TUNED["lasso"]]
    all_lassos = [(3 * items * strength,) for strength in TUNED["lasso"]]
    series = [(level, change) for level in TUNED["level"] for change in TUNED["change"]]
    return {
        "ridge_one": tuned(lambda x, y, s: ridge(x[-1], y[-1], s), ones),
        "ridge_all": tuned(lambda x, y, s: ridge(np.concatenate(x), np.concatenate(y), s), several),
        "ridge_ts": tuned(lambda x, y, level, change: smooth_ridge(x, y, level, change)[-1], series),
        "lasso_one": tuned(lambda x, y, s: lasso(x[-1], y[-1], s), lassos),
        "lasso_all": tuned(lambda x, y, s: lasso(np.concatenate(x), np.concatenate(y), s), all_lassos),
    }


def paired(a, b):
    """Mean difference a - b over seeds, its standard error, in how many seeds a is larger, and Wilcoxon's p."""
    apart = np.array(a) - np.array(b)
    p = float(wilcoxon(apart).pvalue) if len(apart) > 4 else float("nan")
    return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(apart))), int((apart > 0).sum()), p


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--items", type=int, default=200, help="items of a period")
    parser.add_argument("--json", type=Path, help="write the figures to this file as one flat object")
    parser.add_argument("--quick", action="store_true", help="3 seeds")
    options = parser.parse_args()
    set_threads(1)
    rows, classes = {}, {"ar1": [], "rw": []}
    for seed in range(3 if options.quick else options.seeds):
        corpus = planted_drift(seed, 100, 20, 20, 10, options.items, 2000, 0.15, 1.0)
        errors, found = drift_rows(prepare(corpus, FEATURES))
        for name, value in {**errors, **baseline_rows(corpus, options.items)}.items():
            rows.setdefault(name, []).append(value)
        for prior, scores in found.items():
            classes[prior].append(scores)
        print(f"seed {seed}", {name: round(values[-1], 3) for name, values in rows.items()}, flush=True)
    report(rows, classes, options)


def report(rows, classes, options):
    """Print errors and classes, and write the figures."""
    figures, lines = {}, []
    for name, values in rows.items():
        mean, se, wins, p = paired(values, rows["eb_ar1"]) if name != "eb_ar1" else (0.0, 0.0, 0, 1.0)
        figures |= {
            f"mse_{name}": float(np.mean(values)),
            f"over_eb_ar1_{name}": mean,
            f"se_{name}": se,
            f"p_{name}": p,
        }
        lines.append((name, float(np.mean(values)), mean, se, f"{wins}/{len(values)}", f"{p:.1g}"))
    print_table("squared error of forecasts", ("row", "mse", "minus eb_ar1", "se", "worse in", "Wilcoxon p"), lines)
    lines = []
    for prior, scores in classes.items():
        for kind in KINDS:
            sides = [float(np.mean([of[f"{kind}_{side}"] for of in scores])) for side in ("precision", "recall")]
            figures |= {f"{prior}_{kind}_precision": sides[0], f"{prior}_{kind}_recall": sides[1]}
            lines.append((f"{prior} {kind}", *sides))
    print_table("classes by evidence", ("class", "precision", "recall"), lines)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
