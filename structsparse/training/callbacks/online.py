"""Callbacks of online solvers: means of weights between epochs, and counts of rows and weights."""

from __future__ import annotations

import lightning

from structsparse.solvers.base import solver_of


class Mean(lightning.Callback):
    """Weight averaging: between epochs, in validation and in checkpoints the weights are the means of the solver."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        for optimizer in trainer.optimizers:
            solver_of(optimizer).resume()

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._take_mean(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._take_mean(trainer)

    def _take_mean(self, trainer: lightning.Trainer) -> None:
        for optimizer in trainer.optimizers:
            solver_of(optimizer).take_mean()


class Counts(lightning.Callback):
    """Counts of feature rows in memory and of nonzero weights, after each block of sentences and before its prox.
    `history` holds (epoch, step, rows, weights)."""

    def __init__(self) -> None:
        self.history: list[tuple[int, int, int, int]] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        (optimizer,) = trainer.optimizers
        if solver_of(optimizer).needs_sentences:
            self.history.append((trainer.current_epoch, trainer.global_step, optimizer.rows, optimizer.living))

    def state_dict(self) -> dict:
        return {"history": self.history}

    def load_state_dict(self, state: dict) -> None:
        self.history = [tuple(line) for line in state["history"]]
