"""Checkpoints of a stage: its last state, its best model on dev, and all of it when the run is stopped."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from structsparse.base.errors import UserError
from structsparse.base.files import atomic_file
from structsparse.training.scores import gain

LAST, BEST = "last.ckpt", "best.ckpt"
FORMAT = 2  # of a checkpoint; raised when older ones cannot be continued
SECONDS = 10.0  # of work that a crash may cost; saving a large model after every short epoch would cost more


class WholeFiles(TorchCheckpointIO):
    """Checkpoints are written beside and renamed: there is the old one or the new one, never half of one, and never
    one whose weights are no numbers."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        _check_numbers(checkpoint["state_dict"], checkpoint["global_step"])
        with atomic_file(Path(path)) as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # torch misses the end of a file that the disk had no room for
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None


class Stopped(Exception):
    """The run was stopped by a signal, after its state was saved."""

    def __init__(self, signum: int, path: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}; saved to {path}")
        self.signum, self.path = signum, path


class Checkpoints(lightning.Callback):
    """`last.ckpt` after an epoch (not more than once in `SECONDS`), at the end and when stopped; `best.ckpt` whenever
    dev gets better, with patience for that.

    A model that has not been checked for NaN is never saved. On Ctrl-C or SIGTERM the step under way is finished (after
    the last one of an epoch its validation, too), the state is saved as it is, and `Stopped` is raised; a second Ctrl-C
    stops at once."""

    def __init__(self, folder: Path, monitor: str, choose: str, patience: int | None) -> None:
        if choose not in ("best", "last"):
            raise UserError(f"choose={choose!r}; a stage goes on with its 'best' model on dev or its 'last' one")
        self.folder, self.monitor, self.choose = folder, monitor, choose
        self.patience = patience
        self.best = float("-inf")
        self.best_epoch = -1
        self.waited = 0
        self.saved_at = 0.0
        self.signum = 0
        self.handlers: dict[int, Any] = {}

    @property
    def chosen(self) -> Path:
        return self.folder / (BEST if self.choose == "best" else LAST)

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        least = (trainer.check_val_every_n_epoch or 1) if self.choose == "best" else 1
        if trainer.max_epochs in range(least):
            raise UserError(
                f"trainer.max_epochs={trainer.max_epochs} leaves no model to choose={self.choose}; "
                f"expected at least {least} (trainer.check_val_every_n_epoch={trainer.check_val_every_n_epoch})"
            )

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Lightning has set handlers of its own by now, and takes them back however the training ends."""
        if self._out_of_patience():
            trainer.should_stop = True
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self.handlers[signum] = signal.signal(signum, self._asked)

    def _asked(self, signum: int, frame) -> None:
        if self.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        """Not within a step of several batches, whose gradient would be lost, nor before the epoch is validated."""
        done = batch_idx + 1
        if done % trainer.accumulate_grad_batches == 0 and done < trainer.num_training_batches:
            self._stop_if_asked(trainer)

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        value = gain(self.monitor, float(trainer.callback_metrics[self.monitor]))
        self.waited += 1
        if value > self.best:
            self.best, self.best_epoch, self.waited = value, trainer.current_epoch, 0
            if self.choose == "best":
                trainer.save_checkpoint(self.folder / BEST, weights_only=True)
        if self._out_of_patience():
            trainer.should_stop = True

    def _out_of_patience(self) -> bool:
        return self.patience is not None and self.waited >= max(1, self.patience)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._stop_if_asked(trainer)
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        if last or _any_process(trainer, time.monotonic() - self.saved_at > SECONDS):
            trainer.save_checkpoint(self.folder / LAST)
            self.saved_at = time.monotonic()

    def _stop_if_asked(self, trainer: lightning.Trainer) -> None:
        if _any_process(trainer, bool(self.signum)):
            trainer.save_checkpoint(self.folder / LAST)
            raise Stopped(self.signum or signal.SIGTERM, self.folder / LAST)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._release()

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, exception) -> None:
        self._release()

    def _release(self) -> None:
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)
        self.handlers = {}

    def state_dict(self) -> dict:
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}

    def load_state_dict(self, state: dict) -> None:
        self.best, self.best_epoch, self.waited = state["best"], state["best_epoch"], state["waited"]


def _any_process(trainer: lightning.Trainer, wish: bool) -> bool:
    """Whether any process of a distributed run wishes it: a decision that all take alike."""
    return wish if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(wish, all=False)


def _check_numbers(state: Mapping[str, torch.Tensor], step: int) -> None:
    """Refuse weights that are NaN or infinite; minus infinity is allowed, as a weight that forbids."""
    for name, weights in state.items():
        if not (weights < torch.inf).all():
            raise UserError(
                f"{name} holds a weight that is NaN or infinite after step {step}; "
                "lower solver.lr. The last good checkpoint is kept"
            )


class StopAtNaN(lightning.Callback):
    """Stops when a step's loss is no number, and names its sentences, or when after an epoch a weight is none. What
    was saved before stays.

    On a device every look at a value makes it wait, so there the losses of `every` steps are looked at together."""

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self.seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        self.seen.append((trainer.global_step, outputs["loss"].detach(), batch.sentences))
        if module.device.type == "cpu" or len(self.seen) >= self.every:
            self.look()

    def on_train_epoch_end(self, trainer, module) -> None:
        self.look()
        _check_numbers(module.state_dict(), trainer.global_step)

    def on_validation_start(self, trainer, module) -> None:
        self.on_train_epoch_end(trainer, module)

    def look(self) -> None:
        seen, self.seen = self.seen, []
        for step, loss, sentences in seen:
            if not torch.isfinite(loss):
                shown = ", ".join(str(s) for s in sentences[:8].tolist()) + (", ..." if len(sentences) > 8 else "")
                where = f", in the batch of training sentences {shown} (counted from 0)" if shown else ""
                raise UserError(
                    f"the loss is {float(loss)} at step {step}{where}; lower solver.lr"
                    f"{' or look at these sentences' if shown else ''}. The last good checkpoint is kept"
                )


def checked_checkpoint(path: Path, module: lightning.LightningModule) -> Path:
    """The path of a checkpoint that this module can continue from; otherwise a refusal with the reason."""
    if not path.is_file():
        raise UserError(f"{path}: no checkpoint there; ckpt_path is a checkpoint, a run folder or last")
    try:
        saved = torch.load(path, map_location="meta", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} is no readable checkpoint ({reason})") from None
    saved = saved if isinstance(saved, dict) else {}
    if "fingerprint" in saved and saved.get("format") != FORMAT:
        raise UserError(
            f"{path} was written by another version of structsparse, which this one cannot continue; "
            "train again without ckpt_path"
        )
    known = saved.get("fingerprint")
    if known != module.fingerprint:
        raise UserError(
            f"{path} is a checkpoint of another model ({known}, expected {module.fingerprint}); "
            "resume with the options and the data it was made with"
        )
    other = sorted(saved["state_dict"].keys() ^ module.state_dict().keys())
    if other:
        raise UserError(f"{path} does not fit the model, which differs in {', '.join(other)}; train again without it")
    return path
