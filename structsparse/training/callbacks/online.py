"""Callbacks for online solvers: averaged weights between epochs, and counts of feature rows and weights."""

from __future__ import annotations

import lightning

from structsparse.solvers.base import solver_of


class Mean(lightning.Callback):
    """Online solver callback for weight averaging: between epochs the model has the averaged weights of the solver.

    Checkpoints therefore hold the averaged weights."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Online solver callback: at the start of an epoch, replace the averaged weights by the latest weights."""
        for optimizer in trainer.optimizers:
            solver_of(optimizer).resume()

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Online solver callback: put the averaged weights into the model before a validation."""
        self._take_mean(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Online solver callback: put the averaged weights into the model at the end of an epoch."""
        self._take_mean(trainer)

    def _take_mean(self, trainer: lightning.Trainer) -> None:
        """Online solver callback: replace the weights by the averages that the solver keeps."""
        for optimizer in trainer.optimizers:
            solver_of(optimizer).take_mean()


class Counts(lightning.Callback):
    """Online solver callback for counts of feature rows in memory and of nonzero weights, block by block.

    The solver counts after each block of sentences, before the prox that follows the block. `history` holds a tuple
    (epoch, step, count of rows, count of weights) for each block."""

    def __init__(self) -> None:
        self.history: list[tuple[int, int, int, int]] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        """Online solver callback: record the counts of feature rows and nonzero weights after a block of sentences."""
        (optimizer,) = trainer.optimizers
        if solver_of(optimizer).needs_sentences:
            self.history.append((trainer.current_epoch, trainer.global_step, optimizer.rows, optimizer.living))

    def state_dict(self) -> dict:
        """Online solver callback: the recorded counts of rows and weights, for a checkpoint."""
        return {"history": self.history}

    def load_state_dict(self, state: dict) -> None:
        """Online solver callback: restore the recorded counts of rows and weights from a checkpoint."""
        self.history = [tuple(line) for line in state["history"]]
