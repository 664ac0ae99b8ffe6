"""A budget of living groups: the penalty strength is chosen so that at most `budget` groups stay nonzero."""

from __future__ import annotations

from collections.abc import Mapping

import lightning
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.prox import Steps
from structsparse.solvers.base import solver_of
from structsparse.training.callbacks.proximal import ProximalStep
from structsparse.weights.notes import notes_of


class Budget(ProximalStep):
    """Proximal steps with a strength chosen so that at most `budget` groups of each parameter live.

    The prox is applied at every `every`-th step, before validation and at the end. Each group has a strength at which
    the prox would set the group to zero. The strength chosen lies halfway between the smallest such strength of a kept
    group and the largest of a dead group. If few enough groups live, nothing is shrunk.

    Overlapping groups (SequentialGroupLasso) are cut family by family. Each family has the whole budget, or (`shared`)
    a share in proportion to its number of groups, at least one. NestedGroupLasso applies the budget exactly; a dead
    group takes the groups within it along, so fewer may live.

    After `freeze` epochs the choice of groups is final: dead groups stay dead, living groups are shrunk no more.

    `cuts` holds (step, parameter, strength) of every shrinkage. The penalty keeps the last strength, the largest one
    if there are several families."""

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
        self.most = {name: self._most(name, penalty) for name, penalty in self.penalties.items()}
        self.cuts: list[tuple[int, str, float]] = []

    def _most(self, name: str, penalty: Penalty) -> list[int]:
        """The number of groups that may live in each family of disjoint groups of a parameter."""
        families = penalty.families
        if not families:
            raise UserError(
                f"reg.budget={self.budget}: {type(penalty).__name__} of {name} has no disjoint groups to count; "
                "choose group_lasso, sparse_group_lasso, group_linf, nested or overlap_sequential"
            )
        if not penalty.shared:
            return [self.budget] * len(families)
        if self.budget < len(families):
            raise UserError(
                f"reg.budget={self.budget} is shared by {len(families)} families; expected at least one for each"
            )
        most = [1] * len(families)
        for _ in range(self.budget - len(families)):  # one more for the family with the most groups per place
            most[max(range(len(families)), key=lambda k: families[k] / most[k])] += 1
        return most

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Refuse solvers and models that cannot be trained to a budget; set the strengths to those of the last cut."""
        (optimizer,) = trainer.optimizers
        solver = solver_of(optimizer)
        if solver.carries_penalties:
            raise UserError(
                f"{solver.name} needs its strength before a step, and a budget tells it after; "
                "choose another solver, or a path of strengths"
            )
        if self.freeze is not None and any(notes_of(p).grows is not None for p in module.parameters()):
            raise UserError(f"reg.freeze={self.freeze}: rows of model=growing come and go; take model=sparse, or null")
        for name, penalty in self.penalties.items():  # strength of the last cut, 0 before the first cut
            penalty.strength = max((s for _, cut, s in self.cuts[-len(self.most[name]) :] if cut == name), default=0.0)
        super().on_train_start(trainer, module)

    @torch.no_grad()
    def shrink(self, name: str, parameter: Tensor, steps: Steps) -> None:
        """Apply the prox of a parameter with the strength that meets the budget."""
        if self.frozen:
            return
        taken = []

        def choose(family: int, strengths: Tensor) -> tuple[float, Tensor]:
            """The strength for a family, and the groups that this strength sets to zero: bool [groups]."""
            most = self.most[name][family]
            strength, lives = float(self.needed(strengths, most)), torch.zeros_like(strengths, dtype=torch.bool)
            if strength > 0:
                self.cuts.append((self.count, name, strength))
                taken.append(strength)
                lives[strengths.topk(most).indices] = True  # of equal strengths, any may be kept
            return strength, ~lives

        self.penalties[name].cut_(parameter, steps, choose)
        if taken:
            self.penalties[name].strength = max(taken)

    def needed(self, strengths: Tensor, most: int) -> Tensor:
        """The strength halfway between those at which the last kept group and the first dropped group would die.

        `strengths` [groups] are the strengths at which the groups would die. If at most `most` groups live, the
        result is 0."""
        if len(strengths) <= most:
            return strengths.new_zeros(())
        first = strengths.topk(most + 1).values[-2:]
        return torch.where(first[1] > 0, first.mean(), 0.0)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Apply the pending prox; after `freeze` epochs, make the choice of groups final."""
        super().on_train_epoch_end(trainer, module)
        if self.freeze is not None and trainer.current_epoch + 1 >= self.freeze and not self.frozen:
            self._freeze()

    def _freeze(self) -> None:
        """Make the present living groups final: they become the support of each parameter."""
        self.frozen = True
        for name, (_, _, parameter) in self.targets.items():
            mask = self.penalties[name].survivors(parameter.detach())
            self.support[name] = mask & self.support[name] if name in self.support else mask

    def state_dict(self) -> dict:
        return {**super().state_dict(), "frozen": self.frozen, "support": self.support, "cuts": self.cuts}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.frozen, self.support = state["frozen"], dict(state["support"])
        self.cuts = [tuple(entry) for entry in state["cuts"]]
