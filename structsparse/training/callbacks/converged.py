"""Callback for early stopping when the solver reports convergence."""

from __future__ import annotations

import lightning

from structsparse.solvers.base import solver_of


class StopWhenConverged(lightning.Callback):
    """Callback that stops training, after a last validation, once all solvers have converged."""

    def on_train_batch_end(self, trainer: lightning.Trainer, module, outputs, batch, batch_idx: int) -> None:
        """Convergence callback: request a validation and the end of training if all solvers have converged."""
        if all(solver_of(optimizer).converged for optimizer in trainer.optimizers):
            trainer.check_val_every_n_epoch = 1  # validate at the end of this epoch; this model may be the best
            trainer.should_stop = True
