"""A bar within an epoch (on a terminal), a line after each."""

from __future__ import annotations

import time

import lightning
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from structsparse.callbacks.monitor import SparsityMonitor


class EpochLines(lightning.Callback):
    def __init__(self, monitor: SparsityMonitor, metric: str, console: Console) -> None:
        self.monitor, self.metric, self.console = monitor, metric, console
        self.bar: Progress | None = None
        self.begin = 0.0

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.begin = time.perf_counter()
        if trainer.is_global_zero and self.console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            self.bar.add_task(f"{self.monitor.stage} {trainer.current_epoch + 1}", total=trainer.num_training_batches)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=batch_idx + 1)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._close()
        if not trainer.is_global_zero:
            return
        latest = self.monitor.latest
        parts = [
            f"{self.monitor.stage} {trainer.current_epoch + 1:>3}/{trainer.max_epochs}",
            f"loss {latest['loss']:.4f}",
            f"objective {latest['objective']:.4f}",
        ]
        score = trainer.callback_metrics.get(f"dev/{self.metric}")
        if score is not None:
            parts.append(f"dev {self.metric} {float(score):.4f}")
        parts += [f"{key.split('/')[0].replace('_', ' ')} {v:,}" for key, v in latest.items() if "_alive/" in key]
        parts.append(f"{time.perf_counter() - self.begin:.1f} s")
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, exception) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
