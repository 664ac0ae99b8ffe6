"""Callbacks for online solvers: averaged weights between epochs, and counts of feature rows and weights."""

from __future__ import annotations

import lightning

from structsparse.solvers.base import solver_of


class Mean(lightning.Callback):
    """Weight averaging: between epochs the model has the averaged weights of the solver, also in checkpoints."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Put the weights of the last update back in place of the averages."""
        for optimizer in trainer.optimizers:
            solver_of(optimizer).resume()

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._take_mean(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._take_mean(trainer)

    def _take_mean(self, trainer: lightning.Trainer) -> None:
        """Replace the weights by the averages that the solver keeps."""
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
