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
    """Budget callback: proximal steps with a strength such that at most `budget` groups of each parameter live.

    The prox is applied at every `every`-th step, before validation and at the end of training. The critical strength of
    a group is the strength at which the prox sets the group to zero. The groups with the largest critical strengths are
    kept. The chosen strength lies halfway between the smallest critical strength of a kept group and the largest of a
    dropped group. If at most `budget` groups live already, the prox changes nothing.

    Overlapping groups (SequentialGroupLasso) form families, which are sets of disjoint groups. Each family may keep
    `budget` groups. If the penalty has the option `shared`, all families together may keep `budget` groups. This number
    is then divided in proportion to the families' numbers of groups.

    With nested groups (NestedGroupLasso), a group that becomes zero sets all groups inside it to zero. Fewer than
    `budget` groups may then live.

    After `freeze` epochs the choice of groups is final: dead groups stay dead, and living groups are no longer shrunk.

    `cuts` holds (step, parameter, strength) for each prox that has changed weights. After a prox, the strength of the
    penalty is set to the chosen strength (with several families, to the largest)."""

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
        """Budget callback: the maximum number of living groups for each family of disjoint groups of a parameter."""
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
        # Every family (set of disjoint groups) has the limit 1 at first. Each step raises the limit of the family with
        # the largest ratio of groups to limit.
        for _ in range(self.budget - len(families)):
            most[max(range(len(families)), key=lambda k: families[k] / most[k])] += 1
        return most

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Budget callback: refuse unfit solvers and models; set the penalty strengths of a resumed run.

        The solver must not apply penalties within its own steps. A resumed run begins with the strength of its last
        prox, a new run with 0."""
        (optimizer,) = trainer.optimizers
        solver = solver_of(optimizer)
        if solver.carries_penalties:
            raise UserError(
                f"{solver.name} needs its strength before a step, and a budget tells it after; "
                "choose another solver, or a path of strengths"
            )
        if self.freeze is not None and any(notes_of(p).grows is not None for p in module.parameters()):
            raise UserError(f"reg.freeze={self.freeze}: rows of model=growing come and go; take model=sparse, or null")
        for name, penalty in self.penalties.items():
            penalty.strength = max((s for _, cut, s in self.cuts[-len(self.most[name]) :] if cut == name), default=0.0)
        super().on_train_start(trainer, module)

    @torch.no_grad()
    def shrink(self, name: str, parameter: Tensor, steps: Steps) -> None:
        """Budget callback: apply the prox of a parameter with the strength that meets the budget."""
        if self.frozen:
            return
        taken = []

        def choose(family: int, strengths: Tensor) -> tuple[float, Tensor]:
            """Budget callback: choose the strength for a family of disjoint groups, and mark the groups to set to zero.

            `strengths` holds the critical strength of each group of the family."""
            most = self.most[name][family]
            strength, lives = float(self.needed(strengths, most)), torch.zeros_like(strengths, dtype=torch.bool)
            if strength > 0:
                self.cuts.append((self.count, name, strength))
                taken.append(strength)
                lives[strengths.topk(most).indices] = True  # if groups tie at the limit, any of them may be kept
            return strength, ~lives

        self.penalties[name].cut_(parameter, steps, choose)
        if taken:
            self.penalties[name].strength = max(taken)

    def needed(self, strengths: Tensor, most: int) -> Tensor:
        """Budget callback: the strength between the critical strengths of the last kept and the first dropped group.

        The result lies halfway between the two, or is 0 if no group must be dropped. `most` is the maximum number of
        groups to keep. `strengths` holds the critical strength of each group, at which the prox makes it zero."""
        if len(strengths) <= most:
            return strengths.new_zeros(())
        first = strengths.topk(most + 1).values[-2:]
        return torch.where(first[1] > 0, first.mean(), 0.0)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Budget callback: apply the prox if it is due; after `freeze` epochs, make the choice of groups final."""
        super().on_train_epoch_end(trainer, module)
        if self.freeze is not None and trainer.current_epoch + 1 >= self.freeze and not self.frozen:
            self._freeze()

    def _freeze(self) -> None:
        """Budget callback: make the present choice of groups final.

        From now on, only entries of living groups may be nonzero."""
        self.frozen = True
        for name, (_, _, parameter) in self.targets.items():
            mask = self.penalties[name].survivors(parameter.detach())
            self.support[name] = mask & self.support[name] if name in self.support else mask

    def state_dict(self) -> dict:
        """Budget callback: the strengths applied so far and the final choice of groups, for a checkpoint."""
        return {**super().state_dict(), "frozen": self.frozen, "support": self.support, "cuts": self.cuts}

    def load_state_dict(self, state: dict) -> None:
        """Budget callback: restore the strengths applied so far and the final choice of groups from a checkpoint."""
        super().load_state_dict(state)
        self.frozen, self.support = state["frozen"], dict(state["support"])
        self.cuts = [tuple(entry) for entry in state["cuts"]]
