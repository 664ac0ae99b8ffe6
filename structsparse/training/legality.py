"""Legality of a stage: whether its model, loss, groups and penalties fit the task, and what to choose instead.

A task declares the layout of its table and the classes of models and losses that fit. A group maker declares the kinds
of layout that it works over and the forms of groups that it makes; a penalty class, the forms that it takes. Parts
from outside this package that declare nothing are accepted.
"""

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
    """Refuse a model, loss or groups made for another task, and groups that a penalty cannot take."""
    kind = task.layout.kind
    _check_part("model", stage.scorer, task.models, kind)
    _check_part("loss", stage.loss, task.losses, kind)
    for term in stage.terms:
        check_groups(term, kind)


def check_groups(term: Term, kind: str) -> None:
    """Refuse groups that do not fit the table of a task, or the penalty of their term."""
    penalty, prefix = term.kind, "" if term.name == "reg" else f"{term.name}."
    reason = _mismatch(penalty, term.groups, kind, prefix)
    if reason is not None:
        raise UserError(reason)


def refusal(task: str, reg: str, groups: str) -> str | None:
    """Why the options task=, reg= and groups= do not fit each other, None if they do; reads the yaml files alone."""
    layout, penalty = resolved(contents("task", task)["_target_"]).layout, contents("reg", reg)
    maker = None if penalty.get("groups") is None else resolved(contents("groups", groups)["_target_"])
    return _mismatch(resolved(penalty["_target_"]), maker, layout.kind)


def _mismatch(penalty: type[Penalty], groups: Callable | None, kind: str, prefix: str = "") -> str | None:
    """Why groups do not fit a kind of table or a penalty, and what fits; `prefix` is the term that they belong to."""
    maker = Declared() if groups is None else declared(groups)
    typed = f"{prefix}groups={option('groups', groups) or callee(groups).__name__}" if groups else ""
    if groups is None:
        problem = None if None in penalty.takes else f"{penalty.__name__} needs {_forms(penalty)}"
    elif not maker.fits(kind):
        problem = f"{typed} is for a table of {' or '.join(maker.kinds)}, the table of this task is one of {kind}"
    elif not _taken(maker, penalty):
        makes = " or ".join(WORDS[form] for form in maker.forms)
        problem = f"{typed} makes {makes}, {penalty.__name__} takes {_forms(penalty)}"
    else:
        problem = None
    return problem and f"{problem}: {_choices(prefix, penalty, kind)}"


def option(part: str, chosen: Callable) -> str | None:
    """The name of the option (a yaml file of conf/PART) that stands for a class or function, if there is one."""
    return next((name for name, target in targets(part).items() if resolved(target) is callee(chosen)), None)


@cache
def targets(part: str) -> dict[str, str]:
    """What each option of a part of the configuration makes: {option: dotted path of a class or function}."""
    options = {path.stem: _own_keys(part, path.stem) for path in sorted((configuration_folder() / part).glob("*.yaml"))}
    return {name: keys["_target_"] for name, keys in options.items() if "_target_" in keys}


@cache
def contents(part: str, name: str) -> dict[str, object]:
    """The keys of one option of a part, those of its bases in the same folder included."""
    keys: dict[str, object] = {}
    for base in _read(part, name).get("defaults", ()):
        if isinstance(base, str) and not base.startswith(("_self_", "/", "override ")):
            keys |= contents(part, base.partition("@")[0])
    return keys | _own_keys(part, name)


def _own_keys(part: str, name: str) -> dict[str, object]:
    """The keys that an option writes itself: under the name of its part, if it sets other parts as well."""
    content = _read(part, name)
    return content.get(part) or {key: value for key, value in content.items() if key != "defaults"}


@cache
def _read(part: str, name: str) -> dict:
    return yaml.safe_load((configuration_folder() / part / f"{name}.yaml").read_text(encoding="utf-8")) or {}


@cache
def resolved(target: str) -> Callable:
    """The class or function of a dotted path."""
    return pkgutil.resolve_name(target)


def _check_part(part: str, chosen: Callable, fitting: Sequence[Callable], kind: str) -> None:
    if _fits(callee(chosen), fitting):
        return
    names = [name for name, target in targets(part).items() if _fits(resolved(target), fitting, own=False)]
    typed = option(part, chosen) or callee(chosen).__name__
    raise UserError(f"{part}={typed} does not fit a table of {kind}: choose {part}={', '.join(names)}")


def _fits(chosen: Callable, fitting: Sequence[Callable], own: bool = True) -> bool:
    """Whether a class or function is one of those declared. One from outside the package is accepted (`own`)."""
    if own and chosen.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return True
    return any(chosen is one or (_is_class(chosen, one) and issubclass(chosen, one)) for one in fitting)


def _is_class(*objects: object) -> bool:
    return all(isinstance(one, type) for one in objects)


def _forms(penalty: type[Penalty]) -> str:
    return " or ".join(WORDS[form] for form in penalty.takes)


def _choices(prefix: str, penalty: type[Penalty], kind: str) -> str:
    """The groups that fit both the table and the penalty; then those of the table that are for other penalties."""
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
    """The options of reg whose penalties take one of these forms of groups."""
    classes = {name: resolved(target) for name, target in targets("reg").items()}
    penalties = {name: kind for name, kind in classes.items() if isinstance(kind, type) and issubclass(kind, Penalty)}
    return [name for name, penalty in penalties.items() if set(forms) & set(penalty.takes)]


def _taken(maker: Declared, penalty: type[Penalty]) -> bool:
    return bool(set(maker.forms) & set(penalty.takes))


def _particular(item: tuple[str, Declared]) -> bool:
    """Groups of this kind of table before those that need its shape alone."""
    return ANY in item[1].kinds
