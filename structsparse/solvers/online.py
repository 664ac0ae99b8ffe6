"""Online structured perceptron and MIRA: compiled sweeps that update a model's weight tables after each sentence.

In Lightning a training step is a block of sentences, after which the penalties are applied. Within the block the
weights change after each sentence, so several devices cannot share the work. `solver=sgd` and `solver=mira` with
`batch=1` do the same on any device, one step at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.kernels.solvers.online_chains import UpdateRule
from structsparse.losses.structured import Hinge, Perceptron
from structsparse.solvers.base import Solver
from structsparse.weights.feature_tables import GrowingTable
from structsparse.weights.notes import notes_of

__all__ = ["Online", "OnlineMIRA", "OnlinePerceptron", "Sweeper", "SweptModel", "UpdateRule"]


class Sweeper(ABC):
    """A sweep: a compiled pass over single sentences that updates the weights of a model for an online solver."""

    def __init__(self, model: nn.Module, solver: Online) -> None:
        self.model, self.solver = model, solver

    @abstractmethod
    def check(self) -> None:
        """Raise an error if the sweep does not support this model."""

    @abstractmethod
    def sweep(self, passage, rule: UpdateRule, clock: int) -> tuple[float, float, int]:
        """Learn from the sentences of a passage; `clock` is the number of sentences before it.

        Returns the sum of losses, the sum of step lengths, and the change in the number of nonzero weights."""

    def _release(self, scorer: GrowingTable) -> None:
        """Drop the zero rows of a growing table, and the same rows of the running mean.

        If the mean is used and no prox has made zeros since the last sweep, zero rows are kept, as they are zero by
        chance."""
        state = self.solver.state[scorer.table]
        if self.solver.average and not state.pop("killed", False):
            return
        survivors = scorer.release()
        if survivors is not None and "past" in state:
            state["past"] = state["past"][survivors]


@runtime_checkable
class SweptModel(Protocol):
    """A model that has a compiled sweep over its sentences."""

    def sweeper(self, solver: Online) -> Sweeper:
        """The sweep for this kind of model and table."""


class Online(Solver):
    """Base of online solvers: `sweep` learns from a block of sentences; `step` only calls the closure, which calls
    `sweep`.

    With `average` the weights between epochs are the mean of the weights after each sentence, including the changes by
    proxes. If proxes have made zeros, the mean is zero wherever the last weights are zero; otherwise nearly all weights
    of the mean would be nonzero."""

    needs_closure = True  # a sweep updates the weights itself: no gradients may accumulate
    needs_sentences = True
    host_only = True
    passive = False
    cap = math.inf

    def __init__(self, params, lr: float, decay: float, average: bool) -> None:
        if not lr > 0:
            raise UserError(f"solver.lr is {lr}; it must be positive")
        if not 0 <= decay <= 1:
            raise UserError(f"solver.decay is {decay}; it must be from 0 to 1")
        super().__init__(params, {"lr": lr, "taken": 0.0, "clock": 0})
        self.decay, self.average = decay, average
        self.before_prox: dict[Tensor, Tensor] = {}  # copies of the weights before the last prox
        self.sweeper: Sweeper | None = None
        self.counted = False  # whether `living` is up to date
        self.living = 0  # number of nonzero weights after the last sweep
        self.rows = 0  # number of feature rows in memory

    @torch.no_grad()
    def step(self, closure=None):
        """Call the closure, which calls `sweep`."""
        if closure is None:
            raise UserError(f"{self.name} learns from sentences: call step(closure) with a closure that calls sweep")
        return closure()

    def rate(self, group: dict) -> float:
        """The sum of the step lengths in the last block."""
        return group["taken"]

    def metric(self, group: dict, parameter: Tensor) -> float:
        return 1.0

    def place_(self, group: dict, parameter: Tensor) -> None:
        """Prepare for a prox, whose change must enter the mean and changes the number of nonzero weights."""
        self.counted = False
        if notes_of(parameter).grows is not None:
            notes_of(parameter).grows.stale()
        if self.average:
            self.before_prox[parameter] = parameter.detach().clone()

    # --- a block of sentences

    @torch.no_grad()
    def sweep(self, model: nn.Module, loss: nn.Module, passage) -> Tensor:
        """Learn from the sentences of a passage, in order; returns the mean loss, each loss being computed before the
        update."""
        self.check(model, loss)
        self.resume()  # in case a validation during the epoch took the mean
        self._add_prox_to_mean()
        if self.sweeper is None or self.sweeper.model is not model:
            self.sweeper = model.sweeper(self)
        group, table = self.param_groups[0], model.scorer.table
        if not self.counted:
            self.living, self.counted = int(torch.count_nonzero(table)), True
        rate = group["lr"] * (passage.epoch + 1) ** -self.decay
        rule = UpdateRule(float(loss.cost), rate, self.cap, self.passive, self.average)
        losses, taken, living = self.sweeper.sweep(passage, rule, group["clock"])
        self.living += living
        for each in self.param_groups:
            each["taken"] = taken
            each["clock"] += len(passage.sentences)
        self.rows = len(table)
        return torch.tensor(losses / len(passage.sentences), dtype=torch.float64)

    def state_dict(self) -> dict:
        """The optimizer's state, after adding pending prox changes to the running mean of the weights."""
        self._add_prox_to_mean()
        return super().state_dict()

    def check(self, model: nn.Module, loss: nn.Module) -> None:
        """Raise an error for models without a sweep, losses other than hinge and perceptron, other devices and
        types."""
        name = self.name
        if not isinstance(model, SweptModel):
            raise UserError(f"{name} has no sweep over sentences for a {type(model).__name__}; choose another solver")
        model.sweeper(self).check()
        if type(loss) not in (Hinge, Perceptron):
            raise UserError(f"{name} follows the best rival: take loss=perceptron or hinge, not {type(loss).__name__}")
        table = model.scorer.table
        if table.device.type != "cpu":
            raise UserError(f"{name} learns sentence by sentence on the CPU; on other devices take solver=sgd or mira")
        if table.dtype not in (torch.float32, torch.float64):
            kind = str(table.dtype).removeprefix("torch.")
            raise UserError(f"{name} moves float32 or float64 weights, not {kind} (trainer.precision)")

    # --- the mean of the weights

    def past(self, parameter: Tensor, room: int) -> Tensor:
        """The sum of all weight changes, each multiplied by the number of sentences before the change: [room, ...]."""
        state = self.state[parameter]
        past = state.get("past")
        if past is None or len(past) < room:
            state["past"] = parameter.new_zeros(room, *parameter.shape[1:])
            if past is not None:
                state["past"][: len(past)] = past
        return state["past"]

    def _add_prox_to_mean(self) -> None:
        """Add the weight changes by proxes since the last block to the running mean."""
        clock = self.param_groups[0]["clock"]
        for parameter, before in self.before_prox.items():
            state, move = self.state[parameter], parameter.detach() - before
            if move.any():
                state["shrunk"] = state["killed"] = True
            if "past" in state:
                state["past"][: len(move)].add_(move, alpha=clock)
        self.before_prox = {}

    @torch.no_grad()
    def take_mean(self) -> None:
        """Replace the weights by their mean so far, until `resume`."""
        self._add_prox_to_mean()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state.get(parameter, {})
                if "past" not in state or "now" in state or not group["clock"]:
                    continue
                now = state["now"] = parameter.detach()
                mean = now - state["past"][: len(now)] / group["clock"]
                if state.get("shrunk"):
                    mean[now == 0] = 0.0
                parameter.data = mean

    @torch.no_grad()
    def resume(self) -> None:
        """Restore the weights from before `take_mean`."""
        for parameter, state in self.state.items():
            if "now" in state:
                parameter.data = state.pop("now")


class OnlinePerceptron(Online):
    """Online structured perceptron: w += rate * (features of the gold labels - features of the best rival), rate = lr /
    epoch^decay."""

    def __init__(self, params, lr: float = 1.0, decay: float = 0.5, average: bool = False) -> None:
        super().__init__(params, lr, decay, average)


class OnlineMIRA(Online):
    """Online MIRA: w += lr * min(cap, loss / squared length) * (features of the gold labels - features of the best
    rival)."""

    passive = True

    def __init__(self, params, lr: float = 1.0, cap: float = 1.0, average: bool = True) -> None:
        if not cap > 0:
            raise UserError(f"solver.cap is {cap}; it must be positive")
        super().__init__(params, lr, 0.0, average)
        self.cap = float(cap)
