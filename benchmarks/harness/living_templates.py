"""Which kinds of templates live: words or parts of speech, n-grams of which size, where they look; of arcs, which ends
they look at, and whether with direction or distance."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from benchmarks.harness.spec import short
from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.report.tables import Table, markdown
from structsparse.tasks.parsing.features import templates as arc_templates
from structsparse.tasks.parsing.features.templates import ArcTemplate
from structsparse.tasks.tagging.features.templates import Template, parse

KINDS = {"word": "words", "lower": "words", "pos": "parts of speech", "shape": "shapes"}
KINDS |= {f"prefix{size}": "prefixes" for size in range(1, 5)} | {f"suffix{size}": "suffixes" for size in range(1, 5)}
KINDS |= {"case": "case", "punctuation": "punctuation", "digit": "digits"}
SOME, MOST = 0.1, 0.6  # shares of a kind that live, from which on it is marked + and ++


def kind_of(template: Template) -> str:
    """`parts of speech, 2-grams`; what mixes attributes is a conjunction."""
    names = {KINDS.get(name, name) for name, _ in template.atoms}
    size = len(template.atoms)
    return f"{names.pop()}, {size}-grams" if len(names) == 1 else "conjunctions"


def place_of(template: Template) -> str:
    """Where it looks."""
    offsets = [offset for _, offset in template.atoms]
    if min(offsets) <= 0 <= max(offsets):
        return "at the token"
    near = min(map(abs, offsets)) <= 2
    return f"{'before' if max(offsets) < 0 else 'after'} it, {'within 2' if near else 'farther'}"


def sorts(template: Template | ArcTemplate) -> tuple[tuple[str, str], ...]:
    """(by what, kind) for each way to sort it."""
    if isinstance(template, ArcTemplate):
        return ("kind", template.kind), ("variant", template.variant)
    return ("kind", kind_of(template)), ("place", place_of(template))


def living_templates(path: Path) -> dict[Template | ArcTemplate, bool] | None:
    """Of report/groups.tsv, whether each template lives; None where the groups are no templates."""
    if not path.is_file():
        return None
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for read in (lambda name: parse(name)[0], arc_templates.parse):
        try:
            return {read(row["group"]): row["lives"] == "yes" for row in rows}
        except UserError:
            continue  # the name of something else
    return None


def count_kinds(folders: Sequence[Path]) -> dict[tuple[str, str], tuple[float, int]] | None:
    """(by what, kind) -> (living ones, mean over the runs; all of them)"""
    found = [living_templates(folder / "report" / "groups.tsv") for folder in folders]
    found = [templates for templates in found if templates is not None]
    if not found:
        return None
    totals: Counter[tuple[str, str]] = Counter()
    for templates in found:  # a filter that draws leaves others in each
        totals |= Counter(sort for template in templates for sort in sorts(template))
    living = Counter(sort for templates in found for t, lives in templates.items() if lives for sort in sorts(t))
    return {key: (living[key] / len(found), total) for key, total in totals.items()}


def kinds_table(columns: Mapping[str, Mapping[tuple[str, str], tuple[float, int]]]) -> Table:
    """A column for each model: how many templates of a kind live, of how many; + if some do, ++ if most do."""
    keys = sorted({key for column in columns.values() for key in column})
    rows = []
    for key in keys:
        rows.append((key[1], *(_cell(*column[key]) if key in column else "" for column in columns.values())))
    return Table(("templates", *columns), rows)


def _cell(living: float, total: int) -> str:
    mark = "++" if living >= MOST * total else "+" if living >= SOME * total else ""
    return f"{living:.3g} of {total} {mark}".strip()


def level(columns: Mapping[str, Mapping]) -> dict[str, dict]:
    """Models of one experiment have the same templates: what a filter left out of one of them does not live there."""
    totals: dict[tuple[str, str], int] = {}
    for column in columns.values():
        for key, (_, total) in column.items():
            totals[key] = max(total, totals.get(key, 0))
    return {
        name: {key: (column.get(key, (0.0, 0))[0], total) for key, total in totals.items()}
        for name, column in columns.items()
    }


def kinds_of(experiment, records: Sequence[Mapping]) -> Table | None:
    """Of the rows that the experiment names for it."""
    columns = _kind_columns(experiment, records)
    return kinds_table(columns) if columns else None


def _kind_columns(experiment, records: Sequence[Mapping]) -> dict:
    """A column for each row, and for each place that it is run at (a language, say)."""
    last, keys = list(experiment.passes)[-1], [*map(short, experiment.across)]
    columns = {}
    for name, place in product(experiment.kinds, experiment.places):
        own = [r for r in records if r["row"] == name and r["pass"] == last and tuple(r[key] for key in keys) == place]
        counted = count_kinds([Path(record["folder"]) for record in own])
        if counted is not None:
            columns[" ".join(map(str, (*place, name)))] = counted
    return level(columns)


def write(path: Path, done: Sequence[tuple[object, Sequence[Mapping]]]) -> None:
    """Experiments side by side (languages, say): path.md and path.csv."""
    columns = {
        f"{experiment.name} {row}": column
        for experiment, records in done
        for row, column in _kind_columns(experiment, records).items()
    }
    table = kinds_table(columns)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.header, *table.rows])
    write_text(path.with_suffix(".csv"), text.getvalue())
    write_text(path.with_suffix(".md"), markdown(table))
