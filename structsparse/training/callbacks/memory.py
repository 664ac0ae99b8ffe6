"""Outer iterations of penalties with memory: after an epoch, the penalty learns from the weights (a step of EM)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from structsparse.penalties import Penalty
from structsparse.training.callbacks.proximal import ProximalStep

CALM = 3  # training ends after so many outer iterations in a row that hardly raise the objective


class Outer(NamedTuple):
    """The record of an outer iteration of a penalty with memory."""

    epoch: int
    objective: float  # log posterior or a lower bound of the log evidence, see `Drift.outer_update`
    noise: float
    shape: float


class MemorySteps(ProximalStep):
    """Outer iterations of penalties with memory: callback that updates them after each epoch but the last one.

    In the last epoch, the weights are fitted to the memory that the checkpoint has. Training ends once the objective
    rises by at most `tolerance` per residual, three times in a row."""

    def __init__(
        self,
        penalties: Mapping[str, Penalty],
        tolerance: float,
        every: int | None = 1,
        warmup: int = 0,
        support: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(penalties, every, warmup, support)
        self.tolerance, self.calm, self.memory = tolerance, 0, []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        """Penalties with memory: after the last batch of an epoch, let them learn from the weights."""
        if batch_idx + 1 < trainer.num_training_batches or trainer.current_epoch + 1 == trainer.max_epochs:
            return
        if self.calm >= CALM:
            trainer.check_val_every_n_epoch = 1  # validate at the end of this epoch
            trainer.should_stop = True
            return
        parameters = dict(module.named_parameters())
        for name, penalty in self.penalties.items():
            if penalty.remembers:
                self._update(trainer.current_epoch, penalty, parameters[name].detach(), module.likelihood(batch))
                latest = self.memory[-1]._asdict()
                figures = {f"prior/{key}": value for key, value in latest.items() if key != "epoch"}
                for logger in trainer.loggers:
                    logger.log_metrics(figures, step=trainer.global_step)
        if self.carrier is not None:
            self.carrier.renew()

    def _update(self, epoch: int, penalty: Penalty, W: Tensor, likelihood) -> None:
        """Penalties with memory: update one penalty, and count the updates that hardly raised the objective."""
        objective, noise, shape = (float(part) for part in penalty.outer_update(W, likelihood))
        before = self.memory[-1].objective if self.memory else -math.inf
        self.memory.append(Outer(epoch, objective, noise, shape))
        calm = abs(objective - before) <= self.tolerance * likelihood.items
        self.calm = self.calm + 1 if calm else 0

    def state_dict(self) -> dict:
        """Penalties with memory: records and counters, for a checkpoint; the memory is saved with the module."""
        return super().state_dict() | {"calm": self.calm, "memory": [*map(tuple, self.memory)]}

    def load_state_dict(self, state: dict) -> None:
        """Penalties with memory: restore records and counters."""
        super().load_state_dict(state)
        self.calm, self.memory = state["calm"], [Outer(*line) for line in state["memory"]]
