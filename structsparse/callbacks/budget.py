"""So many groups and no more: the strength follows from the budget, not the budget from the strength."""

from __future__ import annotations

from collections.abc import Mapping

import lightning
import torch
from torch import Tensor

from structsparse.callbacks.proximal import ProximalStep
from structsparse.errors import UserError
from structsparse.penalties import GroupLasso, Penalty, SequentialGroupLasso
from structsparse.prox import Steps


class Budget(ProximalStep):
    """At every `every`-th step, before validation and at the end, each parameter's penalty takes the smallest strength
    that leaves it at most `budget` living groups: halfway between those at which the last group to live and the first
    one to die would die. Where no more live than that, nothing is shrunk. Groups that overlap (SequentialGroupLasso)
    are cut family by family, each family with the budget to itself, or (`shared`) with its share of it, by its number
    of groups, at least one: then no more than the budget live of the atoms whose groups are nested, as coarse to fine.

    After `freeze` epochs the living groups are settled: the dead stay dead, the living are shrunk no more.

    `sequence` holds (step, parameter, strength) of every time that groups were shrunk; the penalty keeps the last, of
    several families the largest."""

    def __init__(
        self,
        penalties: Mapping[str, Penalty],
        budget: int,
        every: int = 1,
        freeze: int | None = None,
        support: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(penalties, every, 0, support)
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
            raise UserError(f"reg.budget={budget}: expected a number of groups, at least 1")
        if freeze is not None and not (isinstance(freeze, int) and freeze >= 1):
            raise UserError(f"reg.freeze={freeze}: expected a number of epochs, at least 1, or null")
        self.budget, self.freeze, self.frozen = budget, freeze, False
        self.parts = {name: self._parts(name, penalty) for name, penalty in self.penalties.items()}
        self.most = {name: self._most(self.penalties[name], parts) for name, parts in self.parts.items()}
        self.sequence: list[tuple[int, str, float]] = []

    def _parts(self, name: str, penalty: Penalty) -> list[Penalty]:
        """What has a budget: the groups of a penalty, or each of its families of disjoint ones."""
        if isinstance(penalty, SequentialGroupLasso) and penalty.mix == 0:
            return [GroupLasso(family, 0.0) for family in penalty.groups.families()]
        if not hasattr(penalty, "entering"):
            raise UserError(
                f"reg.budget={self.budget}: {type(penalty).__name__} of {name} has no disjoint groups to count; "
                "choose group_lasso, sparse_group_lasso, group_linf or overlap_sequential"
            )
        return [penalty]

    def _most(self, penalty: Penalty, parts: list[Penalty]) -> list[int]:
        """How many groups may live in each of the parts."""
        if not getattr(penalty, "shared", False):
            return [self.budget] * len(parts)
        if self.budget < len(parts):
            raise UserError(
                f"reg.budget={self.budget} is shared by {len(parts)} families; expected at least one for each"
            )
        most = [1] * len(parts)
        for _ in range(self.budget - len(parts)):  # to the one that has least for its size
            most[max(range(len(parts)), key=lambda k: len(parts[k].groups) / most[k])] += 1
        return most

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        (optimizer,) = trainer.optimizers
        if hasattr(optimizer, "attach"):
            raise UserError(
                f"{type(optimizer).__name__} needs its strength before a step, and a budget tells it after; "
                "choose another solver, or a path of strengths"
            )
        if self.freeze is not None and any(hasattr(p, "grows") for p in module.parameters()):
            raise UserError(f"reg.freeze={self.freeze}: rows of model=growing come and go; take model=sparse, or null")
        for name, penalty in self.penalties.items():  # that of the last cut, none before the first
            penalty.strength = max(
                (s for _, cut, s in self.sequence[-len(self.parts[name]) :] if cut == name), default=0.0
            )
        super().on_train_start(trainer, module)
        for name, (_, _, parameter) in self.targets.items():
            self.parts[name] = [part.to(parameter.device) for part in self.parts[name]]

    @torch.no_grad()
    def shrink(self, name: str, parameter: Tensor, steps: Steps) -> None:
        if self.frozen:
            return
        for part, most in zip(self.parts[name], self.most[name], strict=True):
            strengths = part.entering(torch.where(parameter == 0, 0.0, parameter / steps))  # at which groups would die
            strength = float(self.needed(strengths, most))
            if strength > 0:
                part.strength = strength
                part.prox_(parameter, steps)
                last = torch.ones_like(strengths, dtype=torch.bool).index_fill_(0, strengths.topk(most).indices, False)
                parameter.masked_fill_(part.groups.expand(last, fill=False), 0.0)  # ties are for rounding to decide
                self.sequence.append((self.count, name, strength))
        self.penalties[name].strength = max(float(part.strength) for part in self.parts[name])

    def needed(self, strengths: Tensor, most: int) -> Tensor:
        """The strength that leaves no more than `most` alive, of those at which each group would die; 0 where there are
        no more."""
        if len(strengths) <= most:
            return strengths.new_zeros(())
        first = strengths.topk(most + 1).values[-2:]
        return torch.where(first[1] > 0, first.mean(), 0.0)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        super().on_train_epoch_end(trainer, module)
        if self.freeze is not None and trainer.current_epoch + 1 >= self.freeze and not self.frozen:
            self._freeze()

    def _freeze(self) -> None:
        self.frozen = True
        for name, (_, _, parameter) in self.targets.items():
            mask = self.penalties[name].survivors(parameter.detach())
            self.support[name] = mask & self.support[name] if name in self.support else mask

    def state_dict(self) -> dict:
        return {**super().state_dict(), "frozen": self.frozen, "support": self.support, "sequence": self.sequence}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.frozen, self.support = state["frozen"], dict(state["support"])
        self.sequence = [tuple(entry) for entry in state["sequence"]]
