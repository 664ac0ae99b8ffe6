"""The penalty terms of an objective: `reg`, then the entries of `also`, each with a penalty, groups and a strength."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.base.partials import callee
from structsparse.groups.layouts import TableLayout
from structsparse.penalties import Nonnegative, Penalty, Ridged
from structsparse.weights.notes import notes_of

ITEMS = "items"  # value of the option `relative`: the strength is relative to the sum of the losses, not their mean


@dataclass
class Term:
    """One penalty term of an objective, for all parameters whose names match its patterns.

    `name` is the part of the configuration that describes the term: `reg` or `also.NAME`."""

    name: str
    penalty: Callable[..., Penalty]
    groups: Callable | None
    strength: float
    relative: bool | str  # unit of `strength`; true: critical strength, `items`: 1 / number of items, false: 1
    nonnegative: bool
    parameters: Sequence[str]
    ridge: float | None = None  # strength of an additional squared penalty, in the unit of `strength`

    def on(self, parameter: nn.Parameter, name: str, layout: TableLayout) -> Penalty:
        """Penalty term: the penalty of one parameter, with groups made for the layout of the parameter."""
        growing = notes_of(parameter).grows
        if self.groups is None:
            groups = None
        elif growing is None:
            groups = self.groups(tuple(parameter.shape), layout, parameter=name)
        else:
            groups = growing.groups_of(self.groups, layout, name)
        penalty = self.penalty(strength=self.strength, **({} if groups is None else {"groups": groups}))
        if self.ridge is not None and not self.ridge >= 0:
            raise UserError(f"{self.name}.ridge is {self.ridge}; expected a number, at least 0")
        if self.ridge:
            penalty = Ridged(penalty, self.ridge)
        if self.nonnegative:
            penalty = Nonnegative(penalty)
        penalty.fit(layout)
        lengths = layout.chain_lengths()
        if lengths is not None:
            self._for_chains(penalty, lengths)
        return penalty

    @property
    def kind(self) -> type[Penalty]:
        """Penalty term: the class of the penalty; the base class `Penalty` if a function makes the penalty."""
        kind = callee(self.penalty)
        return kind if isinstance(kind, type) and issubclass(kind, Penalty) else Penalty

    @property
    def binds_all(self) -> bool:
        """Penalty term: whether the penalty may apply to every parameter of the model, with none left unpenalised."""
        return self.kind.binds_all

    def foresee(self) -> None:
        """Penalty term: refuse options that the penalty does not understand, before any groups are made.

        The options of a penalty with groups cannot be checked so early."""
        if self.groups is None:
            self.penalty(strength=self.strength)

    def foresee_reweighting(self) -> None:
        """Penalty term: refuse reweighting of groups if the penalty does not support it."""
        if self.nonnegative or self.ridge or not self.kind.reweightable:
            raise UserError(
                f"{self.name}.reweight (recipe=reweighted, backward) is for {self.name}=group_lasso, group_linf or "
                f"sparse_group_lasso, without {self.name}.nonnegative and {self.name}.ridge"
            )

    def _for_chains(self, penalty: Penalty, lengths: Tensor) -> None:
        """Penalty term: adapt the penalty to entries that each replace a chain of equal weights (model.collapse).

        `lengths` holds the number of weights that each entry replaces. The penalty counts all these weights."""
        try:
            penalty.for_chains(lengths)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from error


def place(
    terms: Sequence[Term],
    parameters: Mapping[str, nn.Parameter],
    layout: TableLayout | None,
    others: Mapping[str, TableLayout] | None = None,
) -> list[tuple[Term, dict[str, Penalty]]]:
    """Penalty terms of an objective: each term, with a penalty for each of its parameters by name.

    `layout` is the layout of the weight table. `others` holds the layouts of parameters that have a different
    layout."""
    layout, layouts = layout or TableLayout(), others or {}
    return [
        (term, {name: term.on(parameters[name], name, layouts.get(name, layout)) for name in names})
        for term, names in zip(terms, borne(terms, list(parameters)), strict=True)
    ]


def borne(terms: Sequence[Term], parameters: Sequence[str]) -> list[list[str]]:
    """Penalty terms of an objective: the parameter names of each term; no parameter may have two penalties."""
    bearer: dict[str, str] = {}
    for term in terms:
        for name in penalised(term.parameters, parameters, term.name, term.binds_all):
            if name in bearer:
                brief = name.removeprefix("tagger.")
                raise UserError(f"{term.name}.parameters: {brief} already bears the penalty of {bearer[name]}")
            bearer[name] = term.name
    return [[name for name in parameters if bearer.get(name) == term.name] for term in terms]


def penalised(patterns: Sequence[str], names: Sequence[str], where: str = "reg", binds_all: bool = False) -> list[str]:
    """The names of the parameters that match the patterns of a penalty term.

    A pattern without a match is an error. Patterns that together match all parameters are an error unless `binds_all`.
    `where` is the name of the term for error messages."""
    short = [name.removeprefix("tagger.") for name in names]
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name, brief in zip(names, short, strict=True) if fnmatchcase(brief, pattern)}
        if not found:
            raise UserError(f"{where}.parameters: {pattern!r} matches no parameter; there are {', '.join(short)}")
        chosen |= found
    if not chosen:
        raise UserError(f"{where}.parameters is empty; name those to be penalised, of {', '.join(short)}")
    if len(chosen) == len(names) > 1 and not binds_all:
        raise UserError(f"{where}.parameters={list(patterns)} matches every parameter; name those to be penalised")
    return [name for name in names if name in chosen]


def critical_strength(penalties: Mapping[str, Penalty], at_zero: Mapping[str, Tensor]) -> float | None:
    """The critical strength of a penalty term: the smallest at which all parameters of the term are zero.

    `at_zero` holds the gradients of the mean loss at zero weights. The result is None if no strength makes the
    parameters zero."""
    found = [penalty.critical(at_zero[name]) for name, penalty in penalties.items()]
    return max((float(value) for value in found if value is not None), default=None)


def set_strength(term: Term, penalties: Mapping[str, Penalty], critical: float | None, items: int) -> None:
    """Make the relative strength of a penalty term absolute; an absolute strength does not change.

    Depending on `term.relative`, the strength is multiplied by the critical strength or divided by the number of items.
    """
    if term.relative not in (True, False, ITEMS):
        raise UserError(f"{term.name}.relative={term.relative}: expected true, false or {ITEMS}")
    if term.relative == ITEMS:
        critical = 1 / items
    elif not term.relative:
        return
    if critical is None:
        raise UserError(
            f"{term.name}.relative=true, but no strength of this penalty makes every weight zero; set it to false"
        )
    for penalty in penalties.values():
        penalty.strength = term.strength * critical
        if term.ridge:
            penalty.ridge = term.ridge * critical
