"""Progress of training on the console: a bar within each epoch on a terminal, and a line after each validation."""

from __future__ import annotations

import time
from collections.abc import Mapping

import lightning
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from structsparse.training.callbacks.monitor import SparsityMonitor


class EpochLines(lightning.Callback):
    """Progress callback: print a console line per validated epoch, and show a progress bar on a terminal.

    A line has the loss, the objective, the score on dev, and the numbers of living rows, weights and groups."""

    def __init__(self, monitor: SparsityMonitor, metric: str, console: Console) -> None:
        self.monitor, self.metric, self.console = monitor, metric, console
        self.bar: Progress | None = None
        self.begin = 0.0

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Progress callback: start the clock that measures the seconds between console lines."""
        self.begin = time.perf_counter()

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Progress callback: start the progress bar of an epoch, if the console is a terminal."""
        if trainer.is_global_zero and self.console.is_terminal and trainer.num_training_batches > 1:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            self.bar.add_task(f"{self.monitor.stage} {trainer.current_epoch + 1}", total=trainer.num_training_batches)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        """Progress callback: advance the progress bar by a batch."""
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=batch_idx + 1)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Progress callback: print the console line of an epoch that was validated."""
        self._close()
        epoch, last = trainer.current_epoch + 1, trainer.max_epochs
        looked = epoch % (trainer.check_val_every_n_epoch or 1) == 0 or epoch == last or trainer.should_stop
        if not (trainer.is_global_zero and looked):
            return
        latest = self.monitor.latest
        parts = [
            f"{self.monitor.stage} {epoch:>3}/{last}",
            f"loss {latest['loss']:.4f}",
            f"objective {latest['objective']:.4f}",
        ]
        score = trainer.callback_metrics.get(f"dev/{self.metric}")
        if score is not None:
            parts.append(f"dev {self.metric} {float(score):.4f}")
        parts += _alive(latest)
        parts.append(f"{time.perf_counter() - self.begin:.1f} s")
        self.begin = time.perf_counter()
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, exception) -> None:
        """Progress callback: remove the progress bar after an error."""
        self._close()

    def _close(self) -> None:
        """Progress callback: remove the progress bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _alive(scalars: Mapping[str, float]) -> list[str]:
    """Progress callback: numbers of living rows, weights and groups as text for the console line.

    If there are several parameters, the text names the parameter of each number."""
    counts = [(*key.split("/"), count) for key, count in scalars.items() if "_alive/" in key]
    several = len({parameter for _, parameter, _ in counts}) > 1
    return [
        f"{parameter.removeprefix('tagger.') + ' ' if several else ''}{what.replace('_', ' ')} {count:,}"
        for what, parameter, count in counts
    ]
