"""Reports on a trained tagger: counts of nonzero weights and groups, and tables of nonzero groups and features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from structsparse.base.arrays import ranges
from structsparse.base.files import atomic_file, write_text
from structsparse.corpora.columns import Column, Sentences, write_columns
from structsparse.features.keys import Bags
from structsparse.features.layout import TemplateLayout, by_template
from structsparse.groups import Cover, Forest, Partition, hasse
from structsparse.report import living_groups
from structsparse.report.tables import Table, tsv
from structsparse.tasks.tagging.data import LARGE_BATCH, TaggingData, table_name
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.training.selected_groups import selected_groups
from structsparse.training.stage import GroupCount, StageResult, selecting_stage
from structsparse.weights.observed_pairs import Pairs, PairScorer, pairs_of

MOST_FEATURES = 100_000  # largest number of rows in the tables of features and edge features


def feature_weights(result: StageResult) -> Tensor | None:
    """Tagger report: the weights of sparse features, [features, labels]; None if there are no sparse features."""
    weights = dict(result.module.named_parameters())
    name = table_name(weights)
    if name is None:
        return None
    scorer = result.module.get_submodule(name.rpartition(".")[0])
    return _for_numpy(scorer.dense() if isinstance(scorer, PairScorer) else weights[name])


def _for_numpy(weights: Tensor) -> Tensor:
    """Tagger report: convert weights to a dtype of numpy (float32 or float64), on the CPU."""
    return weights.detach().cpu().to(torch.promote_types(weights.dtype, torch.float32))


def template_groups(data: TaggingData, shape: Sequence[int], pairs: Pairs | None = None) -> Partition:
    """Tagger report: groups of the feature weights, one group for each token template."""
    return by_template(shape, TemplateLayout(data.index.names, data.index.offsets, data.labels, pairs=pairs))


def sparsity(data: TaggingData, first: StageResult, last: StageResult) -> dict[str, object]:
    """Tagger report: counts of features, weights and groups, before and after feature selection.

    The groups are those of the penalty or, if no penalty has groups, the token templates."""
    labels = len(data.labels)
    weights = feature_weights(last)
    if weights is None:
        return dict.fromkeys(("features", "weights", "nonzero", "rows_alive", "groups", "groups_alive"))
    paired = pairs_of(first.module.tagger.scorer) is not None
    counts: dict[str, object] = {
        "features": len(data.index),
        "weights": len(data.sizes.pairs()) if paired else len(data.index) * labels,
        "nonzero": int((weights != 0).sum()),
        "rows_alive": int((weights != 0).any(dim=1).sum()),
    }
    if data.scheme is not None:
        counts["scheme"] = data.scheme
    counts |= _edge_counts(data, last)
    alive = template_groups(last.data, weights.shape).alive(weights)
    counts |= (first.group_count() or GroupCount(len(alive), int(alive.sum())))._asdict()
    living = [name for name, lives in zip(data.index.names, alive.tolist(), strict=True) if lives]
    return counts | _planted_shares({*data.splits.truth}, living)


def _edge_counts(data: TaggingData, last: StageResult) -> dict[str, object]:
    """Tagger report: counts of edge features and edge weights, and of all nonzero parameters."""
    if data.edges is None:
        return {}
    return {
        "edge_features": len(data.edges.index),
        "edge_weights": len(data.edges.pairs),
        "edge_nonzero": int((last.module.tagger.edges.table != 0).sum()),
        "parameters_nonzero": sum(int((p != 0).sum()) for p in last.module.parameters()),
    }


def _planted_shares(planted: set[str], living: Sequence[str]) -> dict[str, float]:
    """Tagger report: precision and recall of templates with nonzero weights, compared with the planted templates."""
    if not planted:
        return {}
    right = len(planted & {*living})
    return {"planted_precision": right / len(living) if living else 0.0, "planted_recall": right / len(planted)}


def group_table(data: TaggingData, first: StageResult, last: StageResult) -> Table | None:
    """Tagger report: a table of the groups of the penalty.

    If no penalty has groups, the table has the token templates instead, with the norms of their weights."""
    for name in first.penalties:
        table = selected_groups(first, name, data.splits.truth)
        if table is not None:
            return table
    weights = feature_weights(last)
    if weights is None:
        return None
    pairs = pairs_of(last.module.tagger.scorer)
    if pairs is not None:  # only (feature, label) pairs seen in training have weights
        weights = weights[torch.from_numpy(pairs.rows).long(), torch.from_numpy(pairs.labels).long()]
    templates = template_groups(last.data, weights.shape, pairs)
    return living_groups.group_table(templates, weights, truth=data.splits.truth)


def feature_table(result: StageResult) -> Table | None:
    """Tagger report: a table of the token features with nonzero weights, largest norms first."""
    weights, data = feature_weights(result), result.data
    if weights is None:
        return None
    return _described(weights, data.index, data.labels, data, data.arrays["train"].bags)


def edge_table(result: StageResult) -> Table | None:
    """Tagger report: a table of the edge features with nonzero weights, largest norms first."""
    edges, data = result.data.edges, result.data
    if edges is None:
        return None
    weights = _for_numpy(result.module.tagger.edges.dense())
    return _described(weights, edges.index, edges.names(data.labels), data, edges.bags["train"])


def _described(weights: Tensor, index: TokenIndex, labels: Sequence[str], data: TaggingData, bags: Bags) -> Table:
    """Tagger report: a table of features, with readable name, norm and nonzero weights of each feature."""
    norms = weights.norm(dim=1).numpy()
    rows = np.argsort(-norms, kind="stable")[: min(int((norms > 0).sum()), MOST_FEATURES)]
    names = index.describe(rows, data.splits.train, bags)
    values = weights.numpy()[rows]  # [reported features, labels], their weights
    orders = np.argsort(-np.abs(values), axis=1, kind="stable")
    lines = []
    for name, norm, row, order in zip(names, norms[rows].tolist(), values.tolist(), orders.tolist(), strict=True):
        lines.append((name, norm, " ".join(f"{labels[k]}={row[k]:.4g}" for k in order if row[k] != 0)))
    return Table(("feature", "norm", "weights"), lines)


def write_report(folder: Path, data: TaggingData, results: Sequence[StageResult], last: StageResult) -> Table | None:
    """Write the report on a tagger (tables of groups and features) into a folder; return the table of groups."""
    first = selecting_stage(results)
    table = group_table(data, first, last)
    if table is not None:
        living_groups.write_groups(folder, table)
    _write_order(folder, first)
    write_predictions(folder, last)
    for name, features in (("features.tsv", feature_table(last)), ("edges.tsv", edge_table(last))):
        if features is not None:
            write_text(folder / name, tsv(features))
    return table


@torch.no_grad()
def write_predictions(folder: Path, last: StageResult) -> None:
    """Tagger report: write dev and test as files of columns, with the predicted tags as the last column."""
    module, data = last.module, last.data
    for part in ("dev", "test"):
        sentences, predicted = data.splits.parts[part], np.empty(data.splits.parts[part].tokens, np.int32)
        for batch in data.batches(part, LARGE_BATCH):
            batch = module.transfer_batch_to_device(batch, module.device, 0)
            starts, lengths = sentences.offsets[batch.sentences.cpu().numpy()], batch.lengths.cpu().numpy()
            predicted[ranges(starts, lengths)] = module.predict_step(batch).cpu().numpy()
        column = Column(list(data.labels), predicted)
        with atomic_file(folder / f"predictions_{part}.txt") as file:
            name = _unused(sentences, "predicted")
            write_columns(file, sentences.with_column(name, column), [*data.columns, name])


def _unused(sentences: Sentences, name: str) -> str:
    """Tagger report: a name for a new column that no column of the sentences has."""
    return name if name not in sentences.columns else _unused(sentences, f"{name}_")


def type_table(test: Mapping[str, object]) -> Table:
    """Tagger report: precision, recall, F1 and counts of each type, from the scores of the test part.

    The types are those of spans or, if tags are not spans, the tags."""
    header = ("type", "precision", "recall", "f1", "gold", "predicted")
    rows = [(name, *(of[key] for key in header[1:])) for name, of in sorted(test["types"].items())]
    return Table(header, rows)


def _write_order(folder: Path, first: StageResult) -> None:
    """Tagger report: write the Hasse diagram of nested or overlapping groups as order.txt and order.png."""
    for name, penalty in first.penalties.items():
        groups = penalty.groups
        if not isinstance(groups, Forest | Cover) or len(groups) > hasse.LARGEST:
            continue
        alive = groups.alive(first.weights[name])
        write_text(folder / "order.txt", hasse.hasse_text(groups, alive=alive))
        with atomic_file(folder / "order.png") as file:
            hasse.hasse_figure(groups, alive=alive).savefig(file, format="png", dpi=150)
