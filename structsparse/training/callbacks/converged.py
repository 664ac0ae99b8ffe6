"""The end of training by optimizers that know when they are done."""

from __future__ import annotations

import lightning


class StopWhenConverged(lightning.Callback):
    """Stops once all optimizers that can tell (`.converged`) say that they have converged; dev is looked at first."""

    def on_train_batch_end(self, trainer: lightning.Trainer, module, outputs, batch, batch_idx: int) -> None:
        told = [optimizer.converged for optimizer in trainer.optimizers if hasattr(optimizer, "converged")]
        if told and all(told):
            trainer.check_val_every_n_epoch = 1  # whichever epoch this is, its model may be the best
            trainer.should_stop = True
