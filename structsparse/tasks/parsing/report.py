"""What a finished run of a parser says of itself: figures, the templates that live, and which kinds of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from structsparse.base.files import write_text
from structsparse.features.layout import by_template
from structsparse.groups import Partition
from structsparse.report import bootstrap, living_groups
from structsparse.report import tables as report
from structsparse.tasks.parsing.data import ParsingData
from structsparse.tasks.parsing.growing import GrowingArcScorer
from structsparse.tasks.parsing.relations import Relations
from structsparse.training import certificate
from structsparse.training.stage import GroupCount, StageResult, selecting_stage

TABLE = "parser.scorer.table"
MOST_FEATURES = 100_000  # in the report


def templates_of(data: ParsingData) -> Partition:
    return by_template((len(data.index), 1), data.layout)


def living_templates(result: StageResult) -> list[str]:
    table = result.module.parser.scorer.table.detach()
    alive = templates_of(result.data).alive(table).tolist()
    return [name for name, lives in zip(result.data.index.names, alive, strict=True) if lives]


def features_of(data: ParsingData, first: StageResult) -> int:
    """How many there are in training, whether a model has rows for all of them or not."""
    if not isinstance(first.module.parser.scorer, GrowingArcScorer):
        return len(data.index)
    groups = first.penalties[TABLE].groups if TABLE in first.penalties and first.data is data else None
    return int(data.counted().offsets[-1]) if groups is None else int(groups.size.sum())


def sparsity(data: ParsingData, first: StageResult, last: StageResult) -> dict[str, object]:
    """Counts before and after. Groups are those of the penalty that selected, templates where it had none."""
    nonzero = int(torch.count_nonzero(last.module.parser.scorer.table))
    counts = dict.fromkeys(("features", "weights"), features_of(data, first))
    counts |= dict.fromkeys(("nonzero", "rows_alive"), nonzero)
    living = living_templates(last)
    groups = first.group_count() or GroupCount(len(data.templates), len(living))
    counts |= groups._asdict() | {"templates_alive": len(living)}
    return counts | ({} if last.module.labelling is None else last.module.labelling.figures())


def feature_table(last: StageResult) -> report.Table:
    """The living features in words, the heaviest first."""
    weights, data = last.module.parser.scorer.table.detach().cpu().double().numpy()[:, 0], last.data
    rows = heaviest(np.abs(weights))
    names = data.index.describe(rows, data.splits.train, data.arrays["train"].made)
    return report.Table(("feature", "weight"), list(zip(names, weights[rows].tolist(), strict=True)))


def relation_table(data: ParsingData, model: Relations) -> report.Table:
    """The same of the features that tell relations, with their weights for those that they speak for or against."""
    norms = np.sqrt(model.weights.power(2).sum(axis=1))
    rows, train = heaviest(norms), data.splits.train
    heads = train.heads.astype(np.int64)
    names, lines = model.index.describe(rows, train, model.index.bags_chosen(train, heads), heads), []
    ends, codes, values = (of.tolist() for of in (model.weights.indptr, model.weights.indices, model.weights.data))
    for name, row in zip(names, rows.tolist(), strict=True):
        own = slice(ends[row], ends[row + 1])
        told = sorted(zip(values[own], codes[own], strict=True), key=lambda of: -abs(of[0]))
        said = " ".join(f"{model.names[k]}={weight:.4g}" for weight, k in told)
        lines.append((name, float(norms[row]), said))
    return report.Table(("feature", "norm", "weights"), lines)


def heaviest(norms: np.ndarray) -> np.ndarray:
    """The rows that live, those of the largest norm first, so many as anybody reads."""
    rows = np.flatnonzero(norms)
    if len(rows) > MOST_FEATURES:  # sorting all would take longer than finding out which are worth it
        least = np.partition(norms[rows], -MOST_FEATURES)[-MOST_FEATURES]
        rows = rows[norms[rows] >= least]
    return rows[np.argsort(-norms[rows], kind="stable")[:MOST_FEATURES]]


def kinds_table(data: ParsingData, last: StageResult) -> report.Table:
    """How many templates of each kind and variant there are and live."""
    living, lines = {*living_templates(last)}, []
    templates = data.templates
    for what, of in (("kind", lambda t: t.kind), ("variant", lambda t: t.variant)):
        every, alive = Counter(map(of, templates)), Counter(of(t) for t in templates if t.name in living)
        lines += [(what, name, count, alive[name]) for name, count in every.items()]
    return report.Table(("by", "value", "templates", "living"), lines)


def write_report(
    folder: Path, data: ParsingData, results: Sequence[StageResult], last: StageResult
) -> report.Table | None:
    """Of all stages; `last` is what remains of the last one."""
    first = selecting_stage(results)
    table = _groups(first, last)
    living_groups.write_groups(folder, table)
    write_text(folder / "kinds.tsv", report.tsv(kinds_table(data, last)))
    bootstrap.write_items(folder, {part: items_of(last, part) for part in bootstrap.PARTS})
    write_text(folder / "features.tsv", report.tsv(feature_table(last)))
    if last.module.labelling is not None:
        told = relation_table(last.data, last.module.labelling.model)
        write_text(folder / "relations.tsv", report.tsv(told))
    return table


@torch.no_grad()
def items_of(result: StageResult, part: str) -> bootstrap.ItemScores:
    """How many words of each sentence have the right head, in the order of the treebank."""
    arrays, module = result.data.arrays[part], result.module
    right = np.zeros(len(arrays), np.int64)
    for batch in result.data.whole(part):
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        hit = module.predict_step(batch) == batch.gold
        inside = torch.arange(hit.shape[1], device=hit.device) < batch.lengths[:, None]
        right[batch.sentences.cpu().numpy()] = (hit & inside).sum(1).cpu().numpy()
    return bootstrap.ItemScores(right, arrays.lengths)


def _groups(first: StageResult, last: StageResult) -> report.Table:
    """The selecting penalty's groups with the weights it gave them; templates with their final weights otherwise."""
    penalty = first.penalties.get(TABLE)
    if penalty is None or penalty.groups is None or len(penalty.groups.names) > living_groups.MOST_GROUPS:
        return living_groups.group_table(templates_of(last.data), last.module.parser.scorer.table.detach())
    weights = first.module.parser.scorer.table.detach()
    enters = penalty.entering(first.at_zero[TABLE]) if TABLE in first.at_zero else None
    wanted = certificate.violated(penalty, weights, first.at_end[TABLE]) if first.module.loss.smooth else None
    return living_groups.group_table(penalty.groups, weights, enters, wanted)
