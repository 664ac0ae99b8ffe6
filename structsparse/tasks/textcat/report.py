"""Reports on a trained text classifier: tables of words and word groups with nonzero weights, and an explanation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from structsparse.base.files import write_text
from structsparse.groups import Cover
from structsparse.penalties import Penalty
from structsparse.report import living_groups
from structsparse.report.tables import Table, markdown, tsv
from structsparse.tasks.textcat.data import DocumentData
from structsparse.tasks.textcat.explain import explain
from structsparse.tasks.textcat.model import BagClassifier
from structsparse.training import certificate
from structsparse.training.stage import StageResult

MOST_ROWS = 10_000  # maximum number of rows in a table of words or groups
_MOST_SHOWN = 100  # maximum number of words in words.md


def write_words(folder: Path, data: DocumentData, model: BagClassifier) -> Table:
    """Text classifier report: write words.tsv and words.md, and return the table of words for the console.

    The tables list the words with nonzero weights."""
    table = word_table(data, model)
    write_text(folder / "words.tsv", tsv(table))
    write_text(folder / "words.md", markdown(Table(table.header, table.rows[:_MOST_SHOWN])))
    return table


def write_groups(folder: Path, data: DocumentData, first: StageResult) -> Table | None:
    """Text classifier report: write groups.tsv, groups.md and groups.png, and return the table of word groups.

    `first` is the stage that selects words. If its penalty has no word groups, nothing is written, and the result is
    None."""
    for name, penalty in first.penalties.items():
        if penalty.groups is not None:
            table = group_table(data, first, name, penalty)
            living_groups.write_groups(folder, table)
            return table
    return None


def write_explanation(folder: Path, data: DocumentData, first: StageResult, last: StageResult) -> None:
    """Text classifier report: write the explanation of the final classifier.

    `last` is the stage of the final classifier. `first` is the stage that selects words; its penalty may have word
    groups."""
    model = last.module.model
    table, bias = (p.detach().cpu().numpy() for p in (model.table, model.bias))
    covers = {name: p.groups for name, p in first.penalties.items() if isinstance(p.groups, Cover)}
    name, cover = next(iter(covers.items()), (None, None))
    alive = None if cover is None else first.living_groups()[name].cpu().numpy()
    loss = last.module.loss.kind
    explanation = explain.explain(data.labelled, data.bag, table, bias, cover, data.shown, loss, alive)
    explain.write(folder, explanation)


def word_table(data: DocumentData, model: BagClassifier) -> Table:
    """Text classifier report: a table of the words with nonzero weights, sorted by their effect on scores.

    The effect is the norm of the word's weights, times the root mean square of the word's values in the training
    documents."""
    table, layout = model.table.detach().cpu().numpy(), data.bag.layout
    table = table[:, None] if table.ndim == 1 else table  # [words, 1], or [words, classes] for more than two classes
    squares = data.columns.power(2).sum(axis=0) / data.items
    moves = np.sqrt(np.square(table).sum(axis=1) * squares)
    order = np.argsort(-moves, kind="stable")[: min(MOST_ROWS, int((table != 0).any(axis=1).sum()))]
    names = data.classes if table.shape[1] > 1 else ("weight",)
    columns = *table.T, moves, layout.documents, layout.counts
    numbers = zip(*(column[order].tolist() for column in columns), strict=True)
    rows = [(layout.words[row], *values) for row, values in zip(order.tolist(), numbers, strict=True)]
    return Table(("word", *names, "moves scores by", "documents", "count"), rows)


def group_table(data: DocumentData, first: StageResult, name: str, penalty: Penalty) -> Table:
    """Text classifier report: a table of the word groups of a penalty.

    `first` is the stage with this penalty. The table has at most `MOST_ROWS` groups, those with the largest norms."""
    groups, weights = penalty.groups, dict(first.module.named_parameters())[name].detach().cpu()
    would_wake = certificate.violated(penalty, weights, first.at_end[name].cpu()) if name in first.at_end else None
    if len(groups) > MOST_ROWS:
        chosen = groups.norms(weights).argsort(descending=True, stable=True)[:MOST_ROWS]
        groups, would_wake = groups.subset(chosen), None if would_wake is None else would_wake[chosen]
    return living_groups.group_table(groups, weights, would_wake=would_wake, truth=data.truth)


def planted_scores(data: DocumentData, first: StageResult, rows_alive: np.ndarray) -> dict[str, float]:
    """Text classifier report: precision and recall of the selected word groups against planted groups.

    Planted groups are the word groups that decide the classes of synthetic documents. For real documents, the result is
    empty. If the penalty has other groups, a planted group counts as selected if one of its words has a nonzero
    weight."""
    truth = {*data.truth}
    if not truth:
        return {}
    alive = first.living_groups()
    names = {name: first.penalties[name].groups.names for name in alive}
    living = {names[name][k] for name, mask in alive.items() for k in mask.nonzero()[:, 0].tolist()}
    if not truth <= {group for name in alive for group in names[name]}:
        layout = data.bag.layout
        words_alive = {layout.words[row] for row in np.flatnonzero(rows_alive).tolist()}
        living = {name for name, members in data.labelled.groups.items() if words_alive & {*members}}
    right = len(truth & living)
    return {"planted_precision": right / len(living) if living else 0.0, "planted_recall": right / len(truth)}
