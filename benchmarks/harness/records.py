"""Records of finished runs: what a metric is called in tables, whether a run has converged, the CSV of all runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.harness.spec import Spec, short

COLUMNS = """nonzero rows_alive groups_alive groups weights_peak rows_peak seconds_prepare seconds_fit seconds
seconds_cpu peak_memory_mb strength stationarity""".split()
OPTIONAL_COLUMNS = """perplexity_open dev_perplexity_open parameters weights objective duality_gap near_gap
entries""".split()


class Metric(NamedTuple):
    """How a metric is called in tables, and the factor that it is shown with."""

    name: str
    scale: float = 1.0


METRICS = {
    "f1": Metric("F1", 100.0),
    "accuracy": Metric("accuracy", 100.0),
    "uas": Metric("UAS", 100.0),
    "las": Metric("LAS", 100.0),
    "similarity": Metric("similarity", 100.0),
}


def metric_of(key: str) -> Metric:
    """The metric of a key of metrics.json."""
    return METRICS.get(key, Metric(key))


def converged(record: Mapping, bound: float | None) -> bool:
    """Whether the relative gap or the stationarity of a run is at most the bound; a run with neither has converged."""
    measures = [ratio(record.get("near_gap"), record.get("objective")), record.get("stationarity")]
    return bound is None or min((x for x in measures if x is not None), default=0.0) <= bound


def ratio(part: float | None, total: float | None) -> float | None:
    """part / total; None where either is missing."""
    return None if part is None or total is None else part / total


def csv_of(spec: Spec, records: Sequence[Mapping]) -> str:
    """All records as CSV, a line for each run."""
    metric = spec.metric
    columns = ["row", "method", "pass", *map(short, spec.across), spec.seed_column, f"dev_{metric}", metric, *COLUMNS]
    columns += [key for key in spec.shows if key not in columns]
    columns += [column for column in OPTIONAL_COLUMNS if any(column in record for record in records)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *([r.get(c) for c in columns] for r in records)])
    return text.getvalue()
