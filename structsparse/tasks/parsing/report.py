"""Reports on a trained parser: counts of features, and tables of templates, features and relations with weights."""

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
from structsparse.report.tables import Table, tsv
from structsparse.tasks.parsing.data import ParsingData
from structsparse.tasks.parsing.growing import GrowingArcScorer
from structsparse.tasks.parsing.relations import Relations
from structsparse.training.selected_groups import selected_groups
from structsparse.training.stage import GroupCount, StageResult, selecting_stage

TABLE = "parser.scorer.table"  # the name of the parameter with the weights of arc features
MOST_FEATURES = 100_000  # the largest number of rows in features.tsv and relations.tsv


def template_groups(data: ParsingData) -> Partition:
    """Parser report: groups of the weights, one group for each arc template."""
    return by_template((len(data.index), 1), data.layout)


def living_templates(result: StageResult) -> list[str]:
    """Parser report: the names of the living arc templates, which have a nonzero weight."""
    table = result.module.parser.scorer.table.detach()
    alive = template_groups(result.data).alive(table).tolist()
    return [name for name, lives in zip(result.data.index.names, alive, strict=True) if lives]


def count_features(data: ParsingData, first: StageResult) -> int:
    """Parser report: the number of arc features in training.

    A growing weight table has rows for some features only. The number is then the sum of the group sizes of the
    penalty. If the penalty has no groups, the features are counted in the treebank."""
    if not isinstance(first.module.parser.scorer, GrowingArcScorer):
        return len(data.index)
    groups = first.penalties[TABLE].groups if TABLE in first.penalties and first.data is data else None
    return int(data.counted_layout.offsets[-1]) if groups is None else int(groups.size.sum())


def sparsity(data: ParsingData, first: StageResult, last: StageResult) -> dict[str, object]:
    """Parser report: counts of features, weights and groups, before and after feature selection.

    Groups are those of the penalty in the stage `first`, or the templates if this penalty has no groups."""
    nonzero = int(torch.count_nonzero(last.module.parser.scorer.table))
    counts = dict.fromkeys(("features", "weights"), count_features(data, first))
    counts |= dict.fromkeys(("nonzero", "rows_alive"), nonzero)
    living = living_templates(last)
    groups = first.group_count() or GroupCount(len(data.templates), len(living))
    counts |= groups._asdict() | {"templates_alive": len(living)}
    return counts | ({} if last.module.labelling is None else last.module.labelling.figures())


def feature_table(last: StageResult) -> Table:
    """Parser report: a table of the arc features with nonzero weights, largest weights first.

    The columns are the readable name and the weight."""
    weights, data = last.module.parser.scorer.table.detach().cpu().double().numpy()[:, 0], last.data
    rows = heaviest(np.abs(weights))
    names = data.index.describe(rows, data.splits.train, data.arrays["train"].computed_bags)
    return Table(("feature", "weight"), list(zip(names, weights[rows].tolist(), strict=True)))


def relation_table(data: ParsingData, model: Relations) -> Table:
    """Parser report: a table of the relation features with nonzero weights, largest norms first.

    The columns are the readable name, the norm of the weights, and the weight for each relation."""
    norms = np.sqrt(model.weights.power(2).sum(axis=1))
    rows, train = heaviest(norms), data.splits.train
    heads = train.heads.astype(np.int64)
    names, lines = model.index.describe(rows, train, model.index.bags_chosen(train, heads), heads), []
    ends, codes, values = (
        array.tolist() for array in (model.weights.indptr, model.weights.indices, model.weights.data)
    )
    for name, row in zip(names, rows.tolist(), strict=True):
        entries = slice(ends[row], ends[row + 1])
        weights = sorted(zip(values[entries], codes[entries], strict=True), key=lambda pair: -abs(pair[0]))
        lines.append((name, float(norms[row]), " ".join(f"{model.names[k]}={weight:.4g}" for weight, k in weights)))
    return Table(("feature", "norm", "weights"), lines)


def heaviest(norms: np.ndarray) -> np.ndarray:
    """Parser report: the indices of the rows with the largest nonzero norms, largest first, at most `MOST_FEATURES`."""
    rows = np.flatnonzero(norms)
    if len(rows) > MOST_FEATURES:  # np.partition is faster than a sort of all rows
        least = np.partition(norms[rows], -MOST_FEATURES)[-MOST_FEATURES]
        rows = rows[norms[rows] >= least]
    return rows[np.argsort(-norms[rows], kind="stable")[:MOST_FEATURES]]


def kinds_table(data: ParsingData, last: StageResult) -> Table:
    """Parser report: a table with the counts of all arc templates and of living ones, by kind and by variant."""
    living, lines = {*living_templates(last)}, []
    templates = data.templates
    for by, value_of in (("kind", lambda t: t.kind), ("variant", lambda t: t.variant)):
        counts = Counter(map(value_of, templates))
        alive = Counter(value_of(t) for t in templates if t.name in living)
        lines += [(by, value, count, alive[value]) for value, count in counts.items()]
    return Table(("by", "value", "templates", "living"), lines)


def write_report(folder: Path, data: ParsingData, results: Sequence[StageResult], last: StageResult) -> Table:
    """Write the report on a parser (groups, kinds, features, relations) into a folder; return the table of groups."""
    table = group_table(selecting_stage(results), last)
    living_groups.write_groups(folder, table)
    write_text(folder / "kinds.tsv", tsv(kinds_table(data, last)))
    bootstrap.write_items(folder, {part: sentence_scores(last, part) for part in bootstrap.PARTS})
    write_text(folder / "features.tsv", tsv(feature_table(last)))
    if last.module.labelling is not None:
        write_text(folder / "relations.tsv", tsv(relation_table(last.data, last.module.labelling.model)))
    return table


@torch.no_grad()
def sentence_scores(result: StageResult, part: str) -> bootstrap.ItemScores:
    """Parser report: the number of words with a correct head in each sentence, for the paired bootstrap test."""
    arrays, module = result.data.arrays[part], result.module
    right = np.zeros(len(arrays), np.int64)
    for batch in result.data.whole(part):
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        hit = module.predict_step(batch) == batch.gold
        inside = torch.arange(hit.shape[1], device=hit.device) < batch.lengths[:, None]
        right[batch.sentences.cpu().numpy()] = (hit & inside).sum(1).cpu().numpy()
    return bootstrap.ItemScores(right, arrays.lengths)


def group_table(first: StageResult, last: StageResult) -> Table:
    """Parser report: a table of the groups of the penalty in the stage `first`.

    If this penalty has no groups, the table has the arc templates, with the norms of the final weights."""
    table = selected_groups(first, TABLE)
    if table is not None:
        return table
    return living_groups.group_table(template_groups(last.data), last.module.parser.scorer.table.detach())
