"""Checks that the model, loss, groups and penalties of a stage fit the task, with messages that list what fits.

- A task declares the layout of its weight table, and the model and loss classes that fit.
- A function that makes groups declares the kinds of weight table that fit, and the forms of its groups (disjoint,
  nested, overlapping).
- A penalty class declares the forms of groups that it accepts.

Classes from outside this package that declare nothing are accepted."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import yaml

from structsparse.base.configuration import configuration_folder
from structsparse.base.errors import UserError
from structsparse.base.partials import callee
from structsparse.groups import Cover, Forest, Partition
from structsparse.groups.layouts import ANY, Declared, declared
from structsparse.penalties import Penalty

if TYPE_CHECKING:
    from structsparse.training.stage import Stage
    from structsparse.training.task import Task
    from structsparse.training.terms import Term

WORDS = {Partition: "disjoint groups", Forest: "nested groups", Cover: "overlapping groups", None: "no groups"}


def check(task: Task, stage: Stage) -> None:
    """Legality check: refuse a model, loss or groups of another task, and groups that a penalty does not accept."""
    kind = task.layout.kind
    _check_part("model", stage.scorer, task.models, kind)
    _check_part("loss", stage.loss, task.losses, kind)
    for term in stage.terms:
        check_groups(term, kind)


def check_groups(term: Term, kind: str) -> None:
    """Legality check: refuse groups in `reg` or `also` that do not fit the penalty or the weight table of the task.

    `kind` is the kind of the weight table, such as `arcs`."""
    penalty, prefix = term.kind, "" if term.name == "reg" else f"{term.name}."
    reason = _mismatch(penalty, term.groups, kind, prefix)
    if reason is not None:
        raise UserError(reason)


def ignored_groups(groups: str, target: str, reg: str) -> UserError:
    """Legality check: the error for an option groups= that has no effect, since the penalty of the run takes no groups.

    `groups` and `reg` are the choices of the run; `target` is the dotted path of the function that makes the groups."""
    maker = declared(resolved(target))
    choices = ", ".join(_regs(maker.forms))
    return UserError(f"groups={groups} makes {_makes(maker)}, reg={reg} takes no groups: choose reg={choices}")


def refusal(task: str, reg: str, groups: str) -> str | None:
    """Legality check: the reason why the options task=, reg= and groups= do not fit each other; None if they fit.

    Only the yaml files of conf/ are read."""
    layout, penalty = resolved(contents("task", task)["_target_"]).layout, contents("reg", reg)
    maker = None if penalty.get("groups") is None else resolved(contents("groups", groups)["_target_"])
    return _mismatch(resolved(penalty["_target_"]), maker, layout.kind)


def _mismatch(penalty: type[Penalty], groups: Callable | None, kind: str, prefix: str = "") -> str | None:
    """Legality check: the reason why groups do not fit a weight table or a penalty; None if they fit.

    The reason lists choices that fit. `kind` is the kind of the weight table. `prefix` is written before `groups=` in
    the reason: the name of the penalty term and a dot, or nothing for the term `reg`."""
    maker = Declared() if groups is None else declared(groups)
    typed = f"{prefix}groups={option('groups', groups) or callee(groups).__name__}" if groups else ""
    if penalty.tables and kind not in penalty.tables:
        tables = " or ".join(penalty.tables)
        return f"{penalty.__name__} is for a table of {tables}, the table of this task is one of {kind}"
    if groups is None:
        problem = None if None in penalty.takes else f"{penalty.__name__} needs {_forms(penalty)}"
    elif not maker.fits(kind):
        problem = f"{typed} is for a table of {' or '.join(maker.kinds)}, the table of this task is one of {kind}"
    elif not _taken(maker, penalty):
        problem = f"{typed} makes {_makes(maker)}, {penalty.__name__} takes {_forms(penalty)}"
    else:
        problem = None
    return problem and f"{problem}: {_choices(prefix, penalty, kind)}"


def option(part: str, chosen: Callable) -> str | None:
    """Legality check: the name of the option (a yaml file in conf/PART) for a class or function.

    The result is None if there is no such file."""
    return next((name for name, target in targets(part).items() if resolved(target) is callee(chosen)), None)


@cache
def targets(part: str) -> dict[str, str]:
    """Legality check: for each option in a folder (part) of conf/, the dotted path of its class or function."""
    options = {path.stem: _own_keys(part, path.stem) for path in sorted((configuration_folder() / part).glob("*.yaml"))}
    return {name: keys["_target_"] for name, keys in options.items() if "_target_" in keys}


@cache
def contents(part: str, name: str) -> dict[str, object]:
    """Legality check: the keys and values of one option in a part (folder) of conf/, including those of base files."""
    keys: dict[str, object] = {}
    for base in _read(part, name).get("defaults", ()):
        if isinstance(base, str) and not base.startswith(("_self_", "/", "override ")):
            keys |= contents(part, base.partition("@")[0])
    return keys | _own_keys(part, name)


def _own_keys(part: str, name: str) -> dict[str, object]:
    """Legality check: the keys and values in the yaml file of an option, without those of base files.

    If the file sets several parts of the configuration, only the keys under the name `part` count."""
    content = _read(part, name)
    return content.get(part) or {key: value for key, value in content.items() if key != "defaults"}


@cache
def _read(part: str, name: str) -> dict:
    """Legality check: the content of the yaml file of an option in conf/."""
    return yaml.safe_load((configuration_folder() / part / f"{name}.yaml").read_text(encoding="utf-8")) or {}


@cache
def resolved(target: str) -> Callable:
    """Legality check: the class or function that a dotted path names."""
    return pkgutil.resolve_name(target)


def _check_part(part: str, chosen: Callable, fitting: Sequence[Callable], kind: str) -> None:
    """Legality check: refuse a model or loss that does not fit the task; the message lists the options that fit."""
    if _fits(callee(chosen), fitting):
        return
    names = [name for name, target in targets(part).items() if _fits(resolved(target), fitting, own=False)]
    typed = option(part, chosen) or callee(chosen).__name__
    raise UserError(f"{part}={typed} does not fit a table of {kind}: choose {part}={', '.join(names)}")


def _fits(chosen: Callable, fitting: Sequence[Callable], own: bool = True) -> bool:
    """Legality check: whether a class or function is one that a task declares, or a subclass of such a class.

    If `own` is true, a class from outside this package is always accepted."""
    if own and chosen.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return True
    return any(chosen is one or (_is_class(chosen, one) and issubclass(chosen, one)) for one in fitting)


def _is_class(*objects: object) -> bool:
    """Legality check: whether all arguments are classes, as `issubclass` requires."""
    return all(isinstance(one, type) for one in objects)


def _makes(maker: Declared) -> str:
    """Legality check: the forms of groups that a group maker declares, in words."""
    return " or ".join(WORDS[form] for form in maker.forms)


def _forms(penalty: type[Penalty]) -> str:
    """Legality check: the forms of groups that a penalty accepts, in words."""
    return " or ".join(WORDS[form] for form in penalty.takes)


def _choices(prefix: str, penalty: type[Penalty], kind: str) -> str:
    """Legality check: text for an error message, which lists the choices of groups that fit.

    Groups that fit both the weight table and the penalty come first. Groups that fit the table with other penalties
    follow."""
    makers = {name: declared(resolved(target)) for name, target in targets("groups").items()}
    over_it = {name: maker for name, maker in makers.items() if maker.fits(kind)}
    names = [name for name, maker in sorted(over_it.items(), key=_particular) if _taken(maker, penalty)]
    text = f"choose {prefix}groups={', '.join(names)}" if names else "no groups fit"
    by_forms: dict[tuple[type, ...], list[str]] = {}
    for name, maker in over_it.items():
        if not _taken(maker, penalty) and ANY not in maker.kinds:
            by_forms.setdefault(maker.forms, []).append(name)
    choices = [f"groups={', '.join(group)} with reg={', '.join(_regs(forms))}" for forms, group in by_forms.items()]
    return "; or ".join([text, *choices])


def _regs(forms: Sequence[type]) -> list[str]:
    """Legality check: the options of reg that have groups, and whose penalty classes accept one of the given forms."""
    classes = {name: resolved(target) for name, target in targets("reg").items()}
    penalties = {name: kind for name, kind in classes.items() if isinstance(kind, type) and issubclass(kind, Penalty)}
    accepting = [name for name, penalty in penalties.items() if set(forms) & set(penalty.takes)]
    return [name for name in accepting if contents("reg", name).get("groups") is not None]


def _taken(maker: Declared, penalty: type[Penalty]) -> bool:
    """Legality check: whether a penalty accepts at least one of the forms of groups that a group maker declares."""
    return bool(set(maker.forms) & set(penalty.takes))


def _particular(item: tuple[str, Declared]) -> bool:
    """Legality check, sort key: whether groups fit every kind of weight table; such groups are listed last."""
    return ANY in item[1].kinds
