"""What an experiment says is to be run: rows, what they vary, figures; read from benchmarks/tables/NAME.yaml."""

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
_KEYS = {"title", "metric", "script", "seeds", "over", "common", "quick", "passes", "reference", "converged"}
_KEYS |= {"memory", "kinds", "curves", "rows", "note", "against", "shows"}
_ROW_KEYS = {"method", "options", "seeds", "selects", "paper", "vary", "against"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    method: str
    options: tuple[str, ...]
    seeds: tuple[int | str, ...]
    selects: bool = False
    paper: Mapping[str, float] = field(default_factory=dict)
    entry: str = ""  # what it is one of, if that varies
    varied: Mapping[str, object] = field(default_factory=dict)
    against: tuple[str, ...] = ()  # its own controls


@dataclass(frozen=True)
class Experiment:
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
    across: Mapping[str, tuple] = field(default_factory=dict)  # further options and the values each row is run with
    against: tuple[str, ...] = ()  # rows that all others are paired with
    note: str = ""
    shows: tuple[str, ...] = ()  # further columns of metrics.json

    @property
    def repeated(self) -> str:
        """What a run's seed is called in tables."""
        return short(self.over)

    @property
    def places(self) -> tuple[tuple, ...]:
        """What each row is run with beside its seed: a value of each option of `across`; one () where there is none."""
        return tuple(product(*self.across.values()))

    @property
    def paired(self) -> bool:
        """Whether rows are compared run by run."""
        return bool(self.across or self.against or any(row.against for row in self.rows))


def short(option: str) -> str:
    """`split` of data.split"""
    return option.rpartition(".")[2]


def read(name: str, quick: bool = False) -> Experiment:
    """The experiment of this name, or in this file."""
    path = Path(name) if name.endswith(".yaml") else TABLES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(str(p.relative_to(TABLES).with_suffix("")) for p in TABLES.rglob("*.yaml")))
        raise UserError(f"table {name!r}: no file {path}; there are {known}")
    try:
        said = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(said, dict) or not said.get("rows"):
        raise UserError(f"{path}: expected rows, a mapping of names to what they run")
    _refuse_unknown(said, _KEYS, path)
    if not isinstance(said["rows"], dict) or not all(isinstance(row, dict) for row in said["rows"].values()):
        raise UserError(f"{path}: expected rows, a mapping of names to what they run")
    if quick:
        said |= {"over": "seed", "rows": {key: {**row, "seeds": [0]} for key, row in said["rows"].items()}}
    over, across, seeds = _over(said, path)
    last = _list(said, "quick", [], path) if quick else []
    rows = [row for key, value in said["rows"].items() for row in _rows(str(key), value, said, seeds, last, path)]
    names = {row.name for row in rows} | {row.entry for row in rows}
    rows = [replace(row, against=_alike(row, rows)) for row in rows]
    wanted = {key: _list(said, key, [], path) for key in ("memory", "kinds")}
    against = tuple(map(str, _list(said, "against", [], path)))
    for other in (*against, *(other for row in rows for other in row.against)):
        if other not in {row.name for row in rows}:
            raise UserError(f"{path}: against names {other!r}, which is no row; there are {', '.join(sorted(names))}")
    curves = tuple(_curve(name, curve, f"{path}: curve {name}") for name, curve in (said.get("curves") or {}).items())
    named = [*wanted.items(), ("reference", [said["reference"]] if said.get("reference") else [])]
    for key, some in [*named, *((f"curve {curve.name}", curve.rows) for curve in curves)]:
        for row in some:
            if row not in names:
                raise UserError(f"{path}: {key} names {row!r}, which is no row; there are {', '.join(sorted(names))}")
    known = said.get("passes") or {"run": []}
    passes = {str(key): tuple(_list(known, key, [], f"{path}: passes")) for key in known}
    return Experiment(
        Path(name).with_suffix("").name if name.endswith(".yaml") else name, said.get("title", name),
        tuple(_few(rows) if quick else rows),
        dict(list(passes.items())[:1]) if quick else passes, said.get("reference"),
        tuple(wanted["memory"]), tuple(wanted["kinds"]), said.get("metric", "f1"), over,
        ROOT / said.get("script", "train.py"), said.get("converged"), curves, across, against,
        " ".join(str(said.get("note", "")).split()), tuple(map(str, _list(said, "shows", [], path))),
    )  # fmt: skip


def _over(said: Mapping, path: Path) -> tuple[str, dict[str, tuple], list]:
    """The option that a row's runs differ in and its values, and between them further options with theirs."""
    over = said.get("over", "seed")
    if isinstance(over, str):
        return over, {}, _list(said, "seeds", [0], path)
    if not isinstance(over, dict) or not over or "seeds" in said:
        raise UserError(f"{path}: over is {over!r}, expected an option (and seeds) or a mapping of options to lists")
    values = {str(key): _list(over, key, [], f"{path}: over") for key in over}
    if not all(values.values()):
        raise UserError(f"{path}: over: {next(key for key in values if not values[key])} has no values")
    *places, last = values
    return last, {key: tuple(values[key]) for key in places}, values[last]


def _few(rows: Sequence[Row]) -> list[Row]:
    """Those with the first two values of each varied option."""
    values: dict[tuple[str, str], dict] = {}
    for row in rows:
        for key, value in row.varied.items():
            values.setdefault((row.entry, key), {})[value] = None
    return [row for row in rows if all(v in list(values[row.entry, key])[:2] for key, v in row.varied.items())]


def _curve(name: str, said: object, where: str) -> Curve:
    if not isinstance(said, dict) or not {"x", "y", "rows"} <= set(said):
        raise UserError(f"{where}: expected x, y and rows")
    _refuse_unknown(said, {"x", "y", "rows", "against"}, where)
    y, rows = (tuple(map(str, _list(said, key, [], where))) for key in ("y", "rows"))
    return Curve(name, said["x"], y, rows, said.get("against"))


def _list(said: Mapping, key: str, default: list, where: object) -> list:
    """What is no list is no mistake to guess about."""
    value = said.get(key, default)
    if not isinstance(value, list):
        raise UserError(f"{where}: {key} is {value!r}, expected a list")
    return value


def _rows(name: str, said: dict, whole: dict, seeds: list[int], last: list[str], path: Path) -> Iterator[Row]:
    """The rows that one entry stands for."""
    _refuse_unknown(said, _ROW_KEYS, f"{path}: row {name}")
    where = f"{path}: row {name}"
    options = (*_list(whole, "common", [], path), *_list(said, "options", [], where))
    common = {"method": said.get("method", name), "seeds": tuple(_list(said, "seeds", seeds, where))}
    common |= {"selects": bool(said.get("selects")), "against": tuple(map(str, _list(said, "against", [], where)))}
    if "vary" not in said:
        yield Row(name, options=(*options, *last), paper=said.get("paper") or {}, entry=name, **common)
        return
    keys = said["vary"]
    if not isinstance(keys, dict) or not keys:
        raise UserError(f"{where}: vary is {keys!r}, expected a mapping of options to lists of values")
    combinations = list(product(*(_list(keys, key, [], f"{where}: vary") for key in keys)))
    papers = said.get("paper") or [{}] * len(combinations)
    if not combinations or len(papers) != len(combinations):
        raise UserError(f"{where} has {len(combinations)} values and {len(papers)} papers; one for each is expected")
    for values, paper in zip(combinations, papers, strict=True):
        varied = dict(zip(keys, values, strict=True))
        own = (*options, *(f"{key}={value}" for key, value in varied.items()), *last)
        yield Row("-".join(map(str, (name, *values))), options=own, paper=paper, entry=name, varied=varied, **common)


def _alike(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """Its controls; in the place of one that varies as the row does, the one of the same values."""
    names = {other.name for other in rows}
    own = {name: "-".join(map(str, (name, *row.varied.values()))) for name in row.against}
    return tuple(own[name] if name not in names and own[name] in names else name for name in row.against)


def _refuse_unknown(said: Mapping, known: set[str], where: object) -> None:
    unknown = sorted(set(said) - known)
    if unknown:
        raise UserError(f"{where}: {unknown[0]!r} is not understood; there are {', '.join(sorted(known))}")
