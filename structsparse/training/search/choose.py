"""Choosing among fitted models by their score or loss on dev: the rank of a model, and the table of all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.report.tables import Table, markdown, tsv
from structsparse.training.scores import gain

ONE_SE, BEST, LAST = RULES = "one_se", "best", "last"  # rules that choose among models along a path
DRAWS = 1000  # bootstrap samples of the items of dev
EVIDENCE = 2.0  # a model replaces a given model if it is better by more than this number of paired standard errors
CHUNK = 50  # bootstrap samples in memory at a time
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


def smallest(counts: Sequence[np.ndarray], sizes: Sequence[object], rule: str, lower: bool = False) -> int:
    """Choice among models: the index of the model that a rule takes.

    For each model, `counts` has an array [dev items, 3] with right, gold and predicted counts, and `sizes` its size.
    The rules are:

    - one_se: the smallest model whose score is within one paired standard error of the best score
    - best: the model with the best score, and among equal scores the smallest
    - last: the last model

    If `lower` is set, lower scores are better."""
    if rule not in RULES:
        raise UserError(f"choose={rule}: expected {', '.join(RULES)}")
    if rule == LAST:
        return len(counts) - 1
    scores = np.array([score(c) for c in counts]) * (-1 if lower else 1)
    best = min(range(len(scores)), key=lambda k: (-scores[k], sizes[k]))
    if rule == BEST:
        return best
    within = [k for k, near in enumerate(within_one_se(counts, lower)) if near]
    return min(within, key=lambda k: (sizes[k], -scores[k]))


def within_one_se(counts: Sequence[np.ndarray], lower: bool = False) -> list[bool]:
    """Choice among models: for each model, whether its score is within one paired standard error of the best score."""
    scores = np.array([score(c) for c in counts]) * (-1 if lower else 1)
    best = int(scores.argmax())
    return (scores >= scores[best] - paired_errors(counts, best)).tolist()


def low_losses(losses: Sequence[np.ndarray]) -> list[bool]:
    """Choice among models: for each model, whether its mean loss is within one paired standard error of the least.

    `losses` has the losses of the dev items for each model."""
    least = min(losses, key=np.mean)
    return [bool(np.mean(items - least) <= mean_error(items - least)) for items in losses]


def mean_error(values: np.ndarray) -> float:
    """Choice among models: the standard error of the mean of values of dev items, such as differences of losses."""
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def paired_gain(counts: np.ndarray, default: np.ndarray, lower: bool = False) -> tuple[float, float]:
    """Choice among models: by how much a model scores better than a default model, and the paired standard error.

    `counts` and `default` have right, gold and predicted counts of both models (int64 [dev items, 3]). If `lower` is
    set, lower scores are better."""
    error = paired_errors([counts, default], 1)[0]
    return (score(counts) - score(default)) * (-1 if lower else 1), float(error)


def clearly_better(counts: Sequence[np.ndarray], lower: bool = False) -> list[bool]:
    """Choice among models: for every model, whether it beats the first one by more than two paired standard errors."""
    gains = [paired_gain(of_model, counts[0], lower) for of_model in counts]
    return [difference > EVIDENCE * error for difference, error in gains]


def score(counts: np.ndarray) -> float:
    """Choice among models: the score 2 right / (gold + predicted), from the summed counts of all items.

    It is F1 for spans. If all gold and predicted counts are 1, it is the mean of the right counts."""
    right, gold, predicted = counts.sum(axis=0).tolist()
    return 2 * right / max(gold + predicted, 1)


def paired_errors(counts: Sequence[np.ndarray], best: int, seed: int = 0) -> np.ndarray:
    """Choice among models: the standard errors of the score differences between each model and the model `best`.

    Paired bootstrap: the dev items are resampled with replacement, the same items for all models."""
    stacked = np.concatenate(counts, axis=1)  # [items, 3 * models]
    items, generator = len(stacked), np.random.default_rng(seed)
    samples = []
    for _ in range(0, DRAWS, CHUNK):
        draws = generator.multinomial(items, np.full(items, 1 / items), CHUNK)  # [draws, items]
        sums = (draws @ stacked).reshape(CHUNK, len(counts), 3)
        samples.append(2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1))
    samples = np.concatenate(samples)  # [draws, models]
    return (samples - samples[:, [best]]).std(axis=0, ddof=1)
