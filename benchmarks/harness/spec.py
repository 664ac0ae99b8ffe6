"""Specification of a table: its rows, what they vary, its figures; read from benchmarks/tables/NAME.yaml or any file.

title      what the table shows
metric     the metric that dev chooses by and that the table shows: f1, perplexity, ...
script     the program that is run instead of train.py
seeds      the runs of each row; the table shows their means
over       the option that is set to each seed: `seed`, or data.part, ...; or {OPTION: [values], ..., LAST: [seeds]}:
           each row is run with every combination, and has a column for each value of the options before the last
common     options of all runs
quick      options of --quick, which come last (data=planted drops all options data.*); the first two values of each
           varied option are run, with seed 0
passes     options under which each row is run once more: dev figures are of the first pass, test figures of the last
reference  the row that others are compared with; if it varies, the one of its rows that is best on dev
against    rows that all others are paired with, run by run (where `over` has several options)
note       a few sentences below the title
converged  a run is marked unless its relative gap or its stationarity is at most this
shows      further figures of metrics.json, a column for each
memory     rows whose living features are drawn over epochs
kinds      rows whose living templates are counted by kind
curves     NAME: {x, y, rows, against}: a figure and a table of the columns `y` by the varied option or column `x`, a
           line for each row; `against` is a value of x, or `best`, that the last value is compared with
rows       NAME: {method, options, vary, seeds, selects, paper, against}: `method` is a line in the figure, `seeds` are
           the row's own, `selects: true` lets dev choose it, `paper` holds published figures {dev, test, weights},
           `against` lists its controls; `vary: {OPTION: [values]}` makes a row NAME-VALUE for each combination, and
           `paper` is then a list
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from benchmarks.harness.curves import Curve
from structsparse.base.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "benchmarks" / "tables"
KEYS = {"title", "metric", "script", "seeds", "over", "common", "quick", "passes", "reference", "converged"}
KEYS |= {"memory", "kinds", "curves", "rows", "note", "against", "shows"}
ROW_KEYS = {"method", "options", "seeds", "selects", "paper", "vary", "against"}


@dataclass(frozen=True)
class Row:
    """One row of a table: the options of its runs."""

    name: str
    method: str
    options: tuple[str, ...]
    seeds: tuple[int | str, ...]
    selects: bool = False
    paper: Mapping[str, float] = field(default_factory=dict)
    entry: str = ""  # the name of the row in the file, without the values that vary
    varied: Mapping[str, object] = field(default_factory=dict)
    against: tuple[str, ...] = ()  # its own controls


@dataclass(frozen=True)
class Spec:
    """What a table consists of; the module documents each part."""

    name: str
    title: str
    rows: tuple[Row, ...]
    passes: Mapping[str, tuple[str, ...]]
    reference: str | None = None
    memory: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    metric: str = "f1"
    over: str = "seed"
    script: Path = ROOT / "train.py"
    converged: float | None = None
    curves: tuple[Curve, ...] = ()
    across: Mapping[str, tuple] = field(
        default_factory=dict
    )  # the options of `over` before the last, with their values
    against: tuple[str, ...] = ()
    note: str = ""
    shows: tuple[str, ...] = ()

    @property
    def seed_column(self) -> str:
        """The column of the seed in tables: `part` of data.part."""
        return short(self.over)

    @property
    def places(self) -> tuple[tuple, ...]:
        """All combinations of the values of `across`, such as tasks or treebanks; a single empty one without it."""
        return tuple(product(*self.across.values()))

    @property
    def first_pass(self) -> str:
        return next(iter(self.passes))

    @property
    def last_pass(self) -> str:
        return list(self.passes)[-1]

    @property
    def paired(self) -> bool:
        """Whether rows are compared run by run."""
        return bool(self.across or self.against or any(row.against for row in self.rows))


def short(option: str) -> str:
    """The last part of an option: `split` of data.split."""
    return option.rpartition(".")[2]


def read_spec(name: str, quick: bool = False) -> Spec:
    """The specification of this name in benchmarks/tables, or in this file."""
    path = Path(name) if name.endswith(".yaml") or Path(name).is_file() else TABLES / f"{name}.yaml"
    content = _read(path, name)
    if quick:
        content |= {"over": "seed", "rows": {key: {**row, "seeds": [0]} for key, row in content["rows"].items()}}
    over, across, seeds = _over(content, path)
    last = _list(content, "quick", [], path) if quick else []
    rows = [row for key, entry in content["rows"].items() for row in _rows(str(key), entry, content, seeds, last, path)]
    rows = [replace(row, against=_matching_controls(row, rows)) for row in rows]
    named = {key: tuple(map(str, _list(content, key, [], path))) for key in ("memory", "kinds", "against", "shows")}
    curves = tuple(_curve(key, curve, f"{path}: curve {key}") for key, curve in (content.get("curves") or {}).items())
    _check_names(content, named, curves, rows, path)
    passes = content.get("passes") or {"run": []}
    passes = {str(key): tuple(_list(passes, key, [], f"{path}: passes")) for key in passes}
    return Spec(
        name=path.stem if path == Path(name) else name,
        title=content.get("title", name),
        rows=tuple(_first_values(rows) if quick else rows),
        passes=dict(list(passes.items())[:1]) if quick else passes,
        reference=content.get("reference"),
        metric=content.get("metric", "f1"),
        over=over,
        script=ROOT / content.get("script", "train.py"),
        converged=content.get("converged"),
        curves=curves,
        across=across,
        note=" ".join(str(content.get("note", "")).split()),
        **named,
    )


def _read(path: Path, name: str) -> dict:
    """The content of a specification, whose rows are mappings."""
    if not path.is_file():
        names = ", ".join(sorted(str(p.relative_to(TABLES).with_suffix("")) for p in TABLES.rglob("*.yaml")))
        raise UserError(f"table {name!r}: no file {path}; there are {names}")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    rows = content.get("rows") if isinstance(content, dict) else None
    if not rows or not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise UserError(f"{path}: expected rows, a mapping of names to what they run")
    _refuse_unknown(content, KEYS, path)
    return content


def _over(content: Mapping, path: Path) -> tuple[str, dict[str, tuple], list]:
    """The option that is set to each seed, further options with their values, and the seeds."""
    over = content.get("over", "seed")
    if isinstance(over, str):
        return over, {}, _list(content, "seeds", [0], path)
    if not isinstance(over, dict) or not over or "seeds" in content:
        raise UserError(f"{path}: over is {over!r}, expected an option (and seeds) or a mapping of options to lists")
    values = {str(key): _list(over, key, [], f"{path}: over") for key in over}
    if not all(values.values()):
        raise UserError(f"{path}: over: {next(key for key in values if not values[key])} has no values")
    *places, last = values
    return last, {key: tuple(values[key]) for key in places}, values[last]


def _rows(name: str, entry: dict, content: dict, seeds: list, last: list[str], path: Path) -> Iterator[Row]:
    """The rows of one entry, one for each combination of the values that it varies."""
    where = f"{path}: row {name}"
    _refuse_unknown(entry, ROW_KEYS, where)
    replaced = tuple(f"{option.partition('=')[0]}." for option in last)
    options = [*_list(content, "common", [], path), *_list(entry, "options", [], where)]
    options = [option for option in options if not option.startswith(replaced)] if last else options
    common = {"method": entry.get("method", name), "seeds": tuple(_list(entry, "seeds", seeds, where))}
    common |= {"selects": bool(entry.get("selects")), "against": tuple(map(str, _list(entry, "against", [], where)))}
    if "vary" not in entry:
        yield Row(name, options=(*options, *last), paper=entry.get("paper") or {}, entry=name, **common)
        return
    keys = entry["vary"]
    if not isinstance(keys, dict) or not keys:
        raise UserError(f"{where}: vary is {keys!r}, expected a mapping of options to lists of values")
    combinations = list(product(*(_list(keys, key, [], f"{where}: vary") for key in keys)))
    papers = entry.get("paper") or [{}] * len(combinations)
    if not combinations or len(papers) != len(combinations):
        raise UserError(f"{where} has {len(combinations)} values and {len(papers)} papers; one for each is expected")
    for values, paper in zip(combinations, papers, strict=True):
        varied = dict(zip(keys, values, strict=True))
        settings = (*options, *(f"{key}={value}" for key, value in varied.items()), *last)
        yield Row(
            "-".join(map(str, (name, *values))), options=settings, paper=paper, entry=name, varied=varied, **common
        )


def _matching_controls(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """The controls of a row; of a control that varies as the row does, the one with the same values."""
    names = {other.name for other in rows}
    same_values = {name: "-".join(map(str, (name, *row.varied.values()))) for name in row.against}
    return tuple(
        same_values[name] if name not in names and same_values[name] in names else name for name in row.against
    )


def _first_values(rows: Sequence[Row]) -> list[Row]:
    """The rows with the first two values of each varied option."""
    values: dict[tuple[str, str], dict] = {}
    for row in rows:
        for key, value in row.varied.items():
            values.setdefault((row.entry, key), {})[value] = None
    return [row for row in rows if all(v in list(values[row.entry, key])[:2] for key, v in row.varied.items())]


def _curve(name: str, content: object, where: str) -> Curve:
    if not isinstance(content, dict) or not {"x", "y", "rows"} <= set(content):
        raise UserError(f"{where}: expected x, y and rows")
    _refuse_unknown(content, {"x", "y", "rows", "against"}, where)
    y, rows = (tuple(map(str, _list(content, key, [], where))) for key in ("y", "rows"))
    return Curve(name, content["x"], y, rows, content.get("against"))


def _check_names(content: Mapping, named: Mapping, curves: Sequence[Curve], rows: Sequence[Row], path: Path) -> None:
    """Refuse names of rows that do not exist; controls must be single rows, others may be entries that vary."""
    names = {row.name for row in rows}
    entries = names | {row.entry for row in rows}
    uses = [("against", name, names) for name in (*named["against"], *(name for row in rows for name in row.against))]
    uses += [(key, name, entries) for key in ("memory", "kinds") for name in named[key]]
    uses += [("reference", content["reference"], entries)] if content.get("reference") else []
    uses += [(f"curve {curve.name}", name, entries) for curve in curves for name in curve.rows]
    for key, name, valid in uses:
        if name not in valid:
            raise UserError(f"{path}: {key} names {name!r}, which is no row; there are {', '.join(sorted(entries))}")


def _list(content: Mapping, key: str, default: list, where: object) -> list:
    """The list under a key; anything else is refused."""
    value = content.get(key, default)
    if not isinstance(value, list):
        raise UserError(f"{where}: {key} is {value!r}, expected a list")
    return value


def _refuse_unknown(content: Mapping, known: set[str], where: object) -> None:
    unknown = sorted(set(content) - known)
    if unknown:
        raise UserError(f"{where}: {unknown[0]!r} is not understood; there are {', '.join(sorted(known))}")
