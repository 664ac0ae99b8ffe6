"""TensorBoard logs of sparsity during training: losses, living rows and groups, pictures of group norms."""

from __future__ import annotations

from collections.abc import Mapping

import lightning
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from structsparse.penalties import Penalty
from structsparse.report.living_groups import MOST_GROUPS, group_table, norm_heatmap
from structsparse.report.tables import markdown
from structsparse.training.stage import living_groups

_WIDEST = 1e19  # largest weight for which TensorBoard's histograms have a bin
_PICTURES = 5  # number of times per stage that pictures are drawn; drawing is slow


class SparsityMonitor(lightning.Callback):
    """Sparsity monitor: callback that logs losses and sparsity to TensorBoard.

    - every `log_every_n_steps` steps: loss and learning rate
    - every epoch: mean loss, penalty, objective, counts of living (nonzero) rows, weights and groups
    - a few times in a stage: histogram of nonzero weights, picture of group norms over epochs, table of groups"""

    def __init__(self, penalties: Mapping[str, Penalty], stage: str) -> None:
        self.penalties, self.stage = dict(penalties), stage
        self.latest: dict[str, float] = {}  # figures logged at the end of the last epoch, by name
        self.total = torch.zeros(())  # sum of the batch losses of this epoch, on the device of the module
        self.batches = 0
        # by parameter name: the norm of each group after each epoch, [epochs, groups]
        self.norms: dict[str, list[list[float]]] = {name: [] for name in self.penalties}

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Sparsity monitor: reset the sum of the losses at the start of an epoch."""
        self.total, self.batches = torch.zeros(()), 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        """Sparsity monitor: add the loss of the batch to the sum; at some steps, log loss and learning rate."""
        loss = outputs["loss"].detach() * trainer.accumulate_grad_batches  # undoes Lightning's division of the loss
        self.total = loss + self.total.to(module.device)
        self.batches += 1
        if trainer.global_step % trainer.log_every_n_steps == 0:
            scalars = {"loss": loss, "learning_rate": trainer.optimizers[0].param_groups[0]["lr"]}
            self._log(trainer, {f"step/{key}": float(value) for key, value in scalars.items()})

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Sparsity monitor: log the mean loss, the penalty, and the numbers of living rows, weights and groups."""
        parameters = dict(module.named_parameters())
        total = trainer.strategy.reduce(self.total.to(module.device), reduce_op="mean")  # mean over processes
        loss = float(total) / max(1, self.batches)
        penalty = sum(float(p.value(parameters[name])) for name, p in self.penalties.items())
        scalars = {"loss": loss, "penalty": penalty, "objective": loss + penalty}
        groups_alive = living_groups(self.penalties, parameters)
        for name, p in self.penalties.items():
            living = parameters[name] != 0
            if living.dim() > 1:
                scalars[f"rows_alive/{name}"] = int(living.flatten(1).any(dim=1).sum())
            scalars[f"weights_alive/{name}"] = int(living.sum())
            if p.groups is not None:
                if 0 < len(p.groups) <= MOST_GROUPS:
                    self.norms[name].append(p.groups.norms(parameters[name]).flatten().tolist())
                scalars[f"groups_alive/{name}"] = int(groups_alive[name].sum())
        self.latest = scalars
        self._log(trainer, {f"epoch/{key}": value for key, value in scalars.items()})
        epoch, last = trainer.current_epoch + 1, trainer.max_epochs
        if epoch % max(1, (last or 1) // _PICTURES) == 0 or epoch == last or trainer.should_stop:
            self._pictures(trainer, parameters)

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Sparsity monitor: log the scores on dev."""
        self._log(trainer, {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("dev/")})

    def _pictures(self, trainer: lightning.Trainer, parameters: Mapping[str, Tensor]) -> None:
        """Sparsity monitor: log the histogram of weights, the picture of group norms and the table of groups."""
        board = self._board(trainer)
        if board is None:
            return
        for name, penalty in self.penalties.items():
            weights = parameters[name]
            living = weights[weights != 0]
            if living.numel():
                shown = living.clamp(-_WIDEST, _WIDEST)
                board.add_histogram(f"{self.stage}/weights/{name}", shown, trainer.current_epoch)
            groups = penalty.groups
            if groups is None or not 0 < len(groups.names) <= MOST_GROUPS:
                continue
            figure = norm_heatmap(self.norms[name], groups.names)
            board.add_figure(f"{self.stage}/group_norms/{name}", figure, trainer.current_epoch)
            table = markdown(group_table(groups, weights))
            board.add_text(f"{self.stage}/living_groups/{name}", table, trainer.current_epoch)

    def _log(self, trainer: lightning.Trainer, scalars: dict[str, float]) -> None:
        """Sparsity monitor: log scalars under the name of the stage."""
        for logger in trainer.loggers:
            logger.log_metrics({f"{self.stage}/{key}": value for key, value in scalars.items()}, trainer.global_step)

    def _board(self, trainer: lightning.Trainer) -> SummaryWriter | None:
        """Sparsity monitor: the TensorBoard writer of the first process.

        The result is None in other processes, or without a logger."""
        if not trainer.is_global_zero or trainer.logger is None:
            return None
        return trainer.logger.experiment

    def state_dict(self) -> dict:
        """Sparsity monitor: the sum of the losses and the group norms so far, for a checkpoint."""
        return {"total": float(self.total), "batches": self.batches, "norms": self.norms}

    def load_state_dict(self, state: dict) -> None:
        """Sparsity monitor: restore the sum of the losses and the group norms from a checkpoint."""
        self.total = torch.tensor(state["total"], dtype=torch.float64)
        self.batches, self.norms = state["batches"], state["norms"]
