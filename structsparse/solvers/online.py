"""Online structured perceptron and MIRA: compiled sweeps that update a model's weight tables after each sentence.

A training step learns from a block of sentences, and the proxes of the penalties follow the block. The sweeps run on
the CPU."""

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
    """Sweep of an online solver: a compiled pass that updates a model's weights after each sentence."""

    def __init__(self, model: nn.Module, solver: Online) -> None:
        self.model, self.solver = model, solver

    @abstractmethod
    def check(self) -> None:
        """Raise an error if the online sweep does not support this model."""

    @abstractmethod
    def sweep(self, passage, rule: UpdateRule, clock: int) -> tuple[float, float, int]:
        """Online sweep: learn from a block of sentences (passage), one after the other.

        `clock` is the count of training sentences before this block. Returns the sum of losses, the sum of step sizes,
        and the change in the count of nonzero weights."""

    def _release(self, scorer: GrowingTable) -> None:
        """Remove all-zero rows from a growing table after an online sweep.

        If the solver averages the weights, a zero row may still have a nonzero mean. Its removal sets the mean to zero.
        Rows are then removed only if a prox has changed weights since the last removal."""
        state = self.solver.state[scorer.table]
        if self.solver.average and not state.pop("killed", False):
            return
        survivors = scorer.release()
        if survivors is not None and "past" in state:
            state["past"] = state["past"][survivors]


@runtime_checkable
class SweptModel(Protocol):
    """A model that has a compiled online sweep over its sentences."""

    def sweeper(self, solver: Online) -> Sweeper:
        """The sweeper by which an online solver trains this model."""


class Online(Solver):
    """Base of online solvers: `sweep` learns from a block of sentences, one sentence at a time.

    `step` calls the closure, and the closure calls `sweep`. With `average`, the weights between epochs are the mean of
    the weights over all sentences. Once a prox has changed weights, the mean is sparse: it is set to zero for each
    weight that is now zero."""

    needs_closure = True
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
        self.counted = False  # whether the count `living` is up to date
        self.living = 0  # number of nonzero weights after the last sweep
        self.rows = 0  # number of table rows (features) in memory

    @torch.no_grad()
    def step(self, closure=None):
        """Online step over a block of sentences: call the closure, which calls `sweep`."""
        if closure is None:
            raise UserError(f"{self.name} learns from sentences: call step(closure) with a closure that calls sweep")
        return closure()

    def rate(self, group: dict) -> float:
        """The sum of all step sizes of the online solver in the last block of sentences."""
        return group["taken"]

    def metric(self, group: dict, parameter: Tensor) -> float:
        """The metric of online solvers: 1, the same step size for all weights."""
        return 1.0

    def place_(self, group: dict, parameter: Tensor) -> None:
        """Prepare an online solver for a prox: with averaging, store a copy of the weights."""
        self.counted = False
        if notes_of(parameter).grows is not None:
            notes_of(parameter).grows.stale()
        if self.average:
            self.before_prox[parameter] = parameter.detach().clone()

    # --- sweeps over a block of sentences

    @torch.no_grad()
    def sweep(self, model: nn.Module, loss: nn.Module, passage) -> Tensor:
        """Learn online from a block of sentences, in order; returns the mean loss per sentence.

        The loss of a sentence is computed with the weights before its update."""
        self.check(model, loss)
        self.resume()  # in case a validation has replaced the weights by their mean
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
        """State of the online solver for a checkpoint, with a running mean of the weights that is up to date."""
        self._add_prox_to_mean()
        return super().state_dict()

    def check(self, model: nn.Module, loss: nn.Module) -> None:
        """Raise an error if the online solver does not support this model, loss, device or dtype."""
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

    # --- the running mean of the weights

    def past(self, parameter: Tensor, room: int) -> Tensor:
        """The array, with at least `room` table rows, from which an online solver computes the mean weights.

        The entry of a weight is a sum over all changes of this weight. The summand of a change is its size times the
        count of sentences before it."""
        state = self.state[parameter]
        past = state.get("past")
        if past is None or len(past) < room:
            state["past"] = parameter.new_zeros(room, *parameter.shape[1:])
            if past is not None:
                state["past"][: len(past)] = past
        return state["past"]

    def _add_prox_to_mean(self) -> None:
        """Online solver: update the running mean of the weights for the changes made by the last prox."""
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
        """Online solver: replace the weights by their mean over all sentences so far, until `resume`."""
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
        """Online solver: restore the weights that `take_mean` has replaced."""
        for parameter, state in self.state.items():
            if "now" in state:
                parameter.data = state.pop("now")


class OnlinePerceptron(Online):
    """Online structured perceptron: w += rate * (features of the gold labels - features of the best rival).

    The best rival is the labelling (or parse tree) with the highest score. Under the hinge loss, the score includes the
    margin. The rate is lr / epoch^decay in the epochs 1, 2, ..."""

    def __init__(self, params, lr: float = 1.0, decay: float = 0.5, average: bool = False) -> None:
        super().__init__(params, lr, decay, average)


class OnlineMIRA(Online):
    """Online MIRA, sentence by sentence: w += step * (features of the gold labels - features of the best rival).

    The best rival is the labelling (or parse tree) with the highest score. Under the hinge loss, the score includes the
    margin. The step size is lr * min(cap, loss / ||d||^2), where d is the difference of features above."""

    passive = True

    def __init__(self, params, lr: float = 1.0, cap: float = 1.0, average: bool = True) -> None:
        if not cap > 0:
            raise UserError(f"solver.cap is {cap}; it must be positive")
        super().__init__(params, lr, 0.0, average)
        self.cap = float(cap)
