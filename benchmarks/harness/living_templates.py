"""Living templates by kind: words or parts of speech, size of n-grams, where they look.

Templates of arcs: the words and neighbours they look at, and whether with direction or distance.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from benchmarks.harness.spec import Spec, short
from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.report.tables import Table, markdown
from structsparse.tasks.parsing.features import templates as arc_templates
from structsparse.tasks.parsing.features.templates import ArcTemplate
from structsparse.tasks.tagging.features.templates import Template, parse

KINDS = {"word": "words", "lower": "words", "pos": "parts of speech", "shape": "shapes"}
KINDS |= {f"prefix{size}": "prefixes" for size in range(1, 5)} | {f"suffix{size}": "suffixes" for size in range(1, 5)}
KINDS |= {"case": "case", "punctuation": "punctuation", "digit": "digits"}
SOME, MOST = 0.1, 0.6  # shares of living templates of a kind that are marked + and ++

Kind = tuple[str, str]  # (by what, kind), such as ("place", "at the token")
KindCounts = Mapping[Kind, tuple[float, int]]  # living templates (mean over runs), all templates


def kind_of(template: Template) -> str:
    """The kind of a template of tokens: `parts of speech, 2-grams`, or a conjunction if it mixes attributes."""
    names = {KINDS.get(name, name) for name, _ in template.atoms}
    size = len(template.atoms)
    return f"{names.pop()}, {size}-grams" if len(names) == 1 else "conjunctions"


def place_of(template: Template) -> str:
    """Where a template of tokens looks, relative to its token."""
    offsets = [offset for _, offset in template.atoms]
    if min(offsets) <= 0 <= max(offsets):
        return "at the token"
    near = min(map(abs, offsets)) <= 2
    return f"{'before' if max(offsets) < 0 else 'after'} it, {'within 2' if near else 'farther'}"


def kinds_of_template(template: Template | ArcTemplate) -> tuple[Kind, ...]:
    """All kinds that a template belongs to."""
    if isinstance(template, ArcTemplate):
        return ("kind", template.kind), ("variant", template.variant)
    return ("kind", kind_of(template)), ("place", place_of(template))


def living_templates(path: Path) -> dict[Template | ArcTemplate, bool] | None:
    """Whether each template in a report/groups.tsv lives; None if the groups are not templates."""
    if not path.is_file():
        return None
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for read in (lambda name: parse(name)[0], arc_templates.parse):
        try:
            return {read(row["group"]): row["lives"] == "yes" for row in rows}
        except UserError:
            continue  # not a name of such a template
    return None


def count_kinds(folders: Sequence[Path]) -> dict[Kind, tuple[float, int]] | None:
    """Living templates by kind, their mean over runs, and all templates; None if no run has templates."""
    runs = [living_templates(folder / "report" / "groups.tsv") for folder in folders]
    runs = [templates for templates in runs if templates is not None]
    if not runs:
        return None
    totals: Counter[Kind] = Counter()
    for templates in runs:  # a random filter keeps other templates in each
        totals |= Counter(kind for template in templates for kind in kinds_of_template(template))
    living = Counter(kind for run in runs for t, lives in run.items() if lives for kind in kinds_of_template(t))
    return {key: (living[key] / len(runs), total) for key, total in totals.items()}


def kinds_table(columns: Mapping[str, KindCounts]) -> Table:
    """A column for each model: how many templates of a kind live, of how many; + if some do, ++ if most do."""
    keys = sorted({key for column in columns.values() for key in column})
    rows = [(key[1], *(_cell(*column[key]) if key in column else "" for column in columns.values())) for key in keys]
    return Table(("templates", *columns), rows)


def _cell(living: float, total: int) -> str:
    mark = "++" if living >= MOST * total else "+" if living >= SOME * total else ""
    return f"{living:.3g} of {total} {mark}".strip()


def with_equal_totals(columns: Mapping[str, KindCounts]) -> dict[str, dict]:
    """The columns of one table, which has the same templates in all: those that a filter removed do not live."""
    totals: dict[Kind, int] = {}
    for column in columns.values():
        for key, (_, total) in column.items():
            totals[key] = max(total, totals.get(key, 0))
    return {
        name: {key: (column.get(key, (0.0, 0))[0], total) for key, total in totals.items()}
        for name, column in columns.items()
    }


def kinds_of(spec: Spec, records: Sequence[Mapping]) -> Table | None:
    """Living templates by kind of the rows in spec.kinds."""
    columns = _columns(spec, records)
    return kinds_table(columns) if columns else None


def _columns(spec: Spec, records: Sequence[Mapping]) -> dict:
    """A column for each row in spec.kinds and each place."""
    keys, columns = [*map(short, spec.across)], {}
    for name, place in product(spec.kinds, spec.places):
        runs = [r for r in records if r["row"] == name and r["pass"] == spec.last_pass]
        folders = [Path(r["folder"]) for r in runs if tuple(r[key] for key in keys) == place]
        counts = count_kinds(folders)
        if counts is not None:
            columns[" ".join(map(str, (*place, name)))] = counts
    return with_equal_totals(columns)


def write_comparison(path: Path, done: Sequence[tuple[Spec, Sequence[Mapping]]]) -> None:
    """Write the kinds of several tables (languages, say) side by side: path.md and path.csv."""
    columns = {f"{spec.name} {row}": c for spec, records in done for row, c in _columns(spec, records).items()}
    table = kinds_table(columns)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.header, *table.rows])
    write_text(path.with_suffix(".csv"), text.getvalue())
    write_text(path.with_suffix(".md"), markdown(table))
