"""TaskModule: the base class of the Lightning modules of all tasks, with optimizer, validation and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import lightning
import numpy as np
import torch
from torch import Tensor, nn

from structsparse.penalties import Penalty
from structsparse.solvers.base import solver_of
from structsparse.training.callbacks.checkpoints import FORMAT
from structsparse.weights.notes import notes_of


class TaskModule(lightning.LightningModule):
    """Base Lightning module of all tasks: it trains a model under a loss and scores the model on dev.

    A subclass defines `step`, the mean loss of a batch, and `count`, which adds the predictions for a batch to a
    score. A score has `counts`, which can be summed over processes, and a method `result()`."""

    host_only = False  # whether the model can run on the CPU only
    certified = True  # whether the gradients at zero and at the final weights are computed, for certificates

    def __init__(
        self,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        score: Callable,
        penalised: Sequence[str],
        final_lr: float,
        fingerprint: str,
    ) -> None:
        super().__init__()
        self.loss, self.make_optimizer, self.make_score = loss, optimizer, score
        self.penalised, self.final_lr = frozenset(penalised), final_lr
        self.fingerprint = fingerprint  # hash of the options and the data of the stage; stored in checkpoints
        self.scores = None

    @property
    def linear(self) -> bool:
        """Base Lightning module: whether the scores are linear in all parameters, and all parameters are in memory.

        A growing weight table, for example, is not wholly in memory."""
        raise NotImplementedError

    def step(self, batch) -> Tensor:
        """Base Lightning module: the mean loss over the items of a training step.

        With several processes, each returns the sum of its losses divided by the items of all processes."""
        raise NotImplementedError

    def penalty_value(self, penalties: Mapping[str, Penalty]) -> float:
        """Base Lightning module: the sum of the penalties, given by parameter name."""
        weights = dict(self.named_parameters())
        return sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())

    def count(self, batch, score) -> None:
        """Base Lightning module: add the predictions for a batch to a score."""
        raise NotImplementedError

    def training_step(self, batch, batch_idx: int) -> Tensor:
        """Base Lightning module: the loss of a batch in training, times the number of processes.

        Lightning averages gradients over processes. The factor turns this average into a sum."""
        return self.step(batch) * self.trainer.world_size

    def backward(self, loss: Tensor, *args, **kwargs) -> None:
        """Base Lightning module: run the backward pass, unless the solver needs no gradient or has already stepped."""
        if loss.requires_grad and solver_of(self.optimizers(use_pl_optimizer=False)).slopes:
            loss.backward(*args, **kwargs)

    def on_validation_epoch_start(self) -> None:
        """Base Lightning module: begin a validation on dev with an empty score."""
        self.scores = self.make_score()

    def validation_step(self, batch, batch_idx: int) -> None:
        """Base Lightning module: add the predictions for a batch of dev to the score."""
        self.count(batch, self.scores)

    def on_validation_epoch_end(self) -> None:
        """Base Lightning module: sum the counts of the dev score over all processes and log the score."""
        counts = torch.as_tensor(self.scores.counts, device=self.device)
        self.scores.counts = self.trainer.strategy.reduce(counts, reduce_op="sum").cpu().numpy()
        result = self.scores.result()
        figures = {f"dev/{key}": value for key, value in result.items() if isinstance(value, float)}
        self.log_dict(figures, logger=False, sync_dist=True)  # SparsityMonitor writes these figures to the loggers

    @torch.no_grad()
    def evaluate(self, batches: Iterable):
        """Base Lightning module: the score of the model on batches of any part of the corpus, outside training."""
        score = self.make_score()
        for batch in batches:
            self.count(self.transfer_batch_to_device(batch, self.device, 0), score)
        return score

    def count_items(self, batch) -> np.ndarray:
        """Base Lightning module: right, gold and predicted counts of each item of a batch (int64 [items, 3]).

        A search chooses models by the score 2 right / (gold + predicted), from the sums over all items."""
        raise NotImplementedError

    @torch.no_grad()
    def item_counts(self, batches: Iterable) -> np.ndarray:
        """Base Lightning module: the result of `count_items` for the items of all given batches, in their order."""
        counts = [self.count_items(self.transfer_batch_to_device(batch, self.device, 0)) for batch in batches]
        return np.concatenate(counts)

    def losses(self, batch) -> Tensor:
        """Base Lightning module: the loss of each item of a batch; a search for groups of weights compares them."""
        raise NotImplementedError

    @torch.no_grad()
    def item_losses(self, batches: Iterable) -> np.ndarray:
        """Base Lightning module: the result of `losses` for the items of all given batches, in their order."""
        losses = [self.losses(self.transfer_batch_to_device(batch, self.device, 0)) for batch in batches]
        return torch.cat(losses).cpu().numpy()

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """Base Lightning module: store the fingerprint and the format version in a checkpoint."""
        checkpoint.update(fingerprint=self.fingerprint, format=FORMAT)

    def configure_optimizers(self):
        """Base Lightning module: the optimizer and its learning-rate schedule.

        Penalised parameters get no weight decay."""
        apart: dict[bool, list] = {True: [], False: []}
        for name, parameter in self.named_parameters():
            notes_of(parameter).pending = notes_of(parameter).columns = None
            apart[name in self.penalised].append(parameter)
        groups = [{"params": apart[True], "weight_decay": 0.0}, {"params": apart[False]}]
        optimizer = self.make_optimizer([group for group in groups if group["params"]])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share_of_rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _share_of_rate(self, step: int) -> float:
        """Base Lightning module: the learning-rate factor at a step, which falls linearly from 1 to `final_lr`.

        At step 0, the total number of steps must not be requested: Lightning would set up the data loaders before a
        checkpoint restores their position."""
        steps = max(1, self.trainer.estimated_stepping_batches) if step > 0 else 1
        return 1.0 + (self.final_lr - 1.0) * min(step / steps, 1.0)
