"""What a finished run says of itself: figures, the groups that live, the features that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from structsparse.base.files import atomic_file, write_text
from structsparse.features.keys import Bags
from structsparse.features.layout import TemplateLayout, by_template
from structsparse.groups import Cover, Forest, Partition, hasse
from structsparse.report import living_groups
from structsparse.report import tables as report
from structsparse.tasks.tagging.data import TaggingData, table_name
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.training import certificate
from structsparse.training.stage import GroupCount, StageResult, selecting_stage
from structsparse.weights.observed_pairs import Pairs, PairScorer, pairs_of

MOST_FEATURES = 100_000  # in the report


def table_of(result: StageResult) -> Tensor | None:
    """The weights of the sparse features, if the model has any: [rows, labels]"""
    weights = dict(result.module.named_parameters())
    name = table_name(weights)
    if name is None:
        return None
    scorer = result.module.get_submodule(name.rpartition(".")[0])
    table = (scorer.dense() if isinstance(scorer, PairScorer) else weights[name]).detach().cpu()
    return table.to(torch.promote_types(table.dtype, torch.float32))  # numpy knows no bfloat16


def templates_of(data: TaggingData, shape: Sequence[int], pairs: Pairs | None = None) -> Partition:
    return by_template(shape, TemplateLayout(data.index.names, data.index.offsets, data.labels, pairs=pairs))


def sparsity(data: TaggingData, first: StageResult, last: StageResult) -> dict[str, object]:
    """Counts before and after. Groups are those of the penalty that selected, templates where it had none."""
    labels = len(data.labels)
    weights = table_of(last)
    if weights is None:
        return dict.fromkeys(("features", "weights", "nonzero", "rows_alive", "groups", "groups_alive"))
    paired = pairs_of(first.module.tagger.scorer) is not None
    counts: dict[str, object] = {
        "features": len(data.index),
        "weights": len(data.sizes.pairs()) if paired else len(data.index) * labels,
        "nonzero": int((weights != 0).sum()),
        "rows_alive": int((weights != 0).any(dim=1).sum()),
    }
    counts |= _of_edges(data, last)
    living = templates_of(last.data, weights.shape).alive(weights)
    counts |= (first.group_count() or GroupCount(len(living), int(living.sum())))._asdict()
    return counts | _found(data, [name for name, a in zip(data.index.names, living.tolist(), strict=True) if a])


def _of_edges(data: TaggingData, last: StageResult) -> dict[str, object]:
    """Features that are conjoined with steps, and all numbers that are not zero, those of steps and ends as well."""
    if data.edges is None:
        return {}
    return {
        "edge_features": len(data.edges.index),
        "edge_weights": len(data.edges.pairs),
        "edge_nonzero": int((last.module.tagger.edges.table != 0).sum()),
        "parameters_nonzero": sum(int((p != 0).sum()) for p in last.module.parameters()),
    }


def _found(data: TaggingData, living: list[str]) -> dict[str, float]:
    """How much of the planted truth the living templates are, and how much of it they hold."""
    truth = set(data.splits.truth)
    if not truth:
        return {}
    right = len(truth & set(living))
    return {"planted_precision": right / len(living) if living else 0.0, "planted_recall": right / len(truth)}


def group_table(data: TaggingData, first: StageResult, last: StageResult) -> report.Table | None:
    """The selecting penalty's groups with the weights it gave them; templates with their final weights otherwise."""
    for name, penalty in first.penalties.items():
        groups = penalty.groups
        if groups is None or len(groups.names) > living_groups.MOST_GROUPS:
            continue
        weights = dict(first.module.named_parameters())[name].detach()
        enters = penalty.entering(first.at_zero[name]) if name in first.at_zero else None
        wanted = certificate.violated(penalty, weights, first.at_end[name]) if first.module.loss.smooth else None
        return living_groups.group_table(groups, weights, enters, wanted, data.splits.truth)
    weights = table_of(last)
    if weights is None:
        return None
    pairs = pairs_of(last.module.tagger.scorer)
    if pairs is not None:  # there are no other weights than those of pairs
        weights = weights[torch.from_numpy(pairs.rows).long(), torch.from_numpy(pairs.labels).long()]
    return living_groups.group_table(templates_of(last.data, weights.shape, pairs), weights, truth=data.splits.truth)


def feature_table(result: StageResult) -> report.Table | None:
    """The living features in words, the heaviest first (so many as anybody reads), with their non-zero weights."""
    weights, data = table_of(result), result.data
    if weights is None:
        return None
    return _described(weights, data.index, data.labels, data, data.arrays["train"].bags)


def edge_table(result: StageResult) -> report.Table | None:
    """The same of the features that are conjoined with steps from label to label."""
    edges, data = result.data.edges, result.data
    if edges is None:
        return None
    weights = result.module.tagger.edges.dense().detach().cpu()
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))  # numpy knows no bfloat16
    return _described(weights, edges.index, edges.names(data.labels), data, edges.bags["train"])


def _described(
    weights: Tensor, index: TokenIndex, labels: Sequence[str], data: TaggingData, bags: Bags
) -> report.Table:
    norms = weights.norm(dim=1).numpy()
    rows = np.argsort(-norms, kind="stable")[: min(int((norms > 0).sum()), MOST_FEATURES)]
    names = index.describe(rows, data.splits.train, bags)
    values = weights.numpy()[rows]  # [rows, labels]
    orders = np.argsort(-np.abs(values), axis=1, kind="stable")
    lines = []
    for name, norm, own, order in zip(names, norms[rows].tolist(), values.tolist(), orders.tolist(), strict=True):
        said = [f"{labels[k]}={own[k]:.4g}" for k in order if own[k] != 0]
        lines.append((name, norm, " ".join(said)))
    return report.Table(("feature", "norm", "weights"), lines)


def write_report(
    folder: Path, data: TaggingData, results: Sequence[StageResult], last: StageResult
) -> report.Table | None:
    """Of all stages; `last` is what remains of the last one."""
    first = selecting_stage(results)
    table = group_table(data, first, last)
    if table is not None:
        living_groups.write_groups(folder, table)
    _write_order(folder, first)
    features = feature_table(last)
    if features is not None:
        write_text(folder / "features.tsv", report.tsv(features))
    edges = edge_table(last)
    if edges is not None:
        write_text(folder / "edges.tsv", report.tsv(edges))
    return table


def _write_order(folder: Path, first: StageResult) -> None:
    """Which groups contain which, of structures that have an order."""
    weights = dict(first.module.named_parameters())
    for name, penalty in first.penalties.items():
        groups = penalty.groups
        if not isinstance(groups, Forest | Cover) or len(groups) > hasse.LARGEST:
            continue
        alive = groups.alive(weights[name].detach())
        write_text(folder / "order.txt", hasse.hasse_text(groups, alive=alive))
        with atomic_file(folder / "order.png") as file:
            hasse.hasse_figure(groups, alive=alive).savefig(file, format="png", dpi=150)
