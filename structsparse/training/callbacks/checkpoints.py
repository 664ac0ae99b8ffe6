"""Checkpoints of a stage: its last state, its best model on dev, and a saved state when the run is stopped."""

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
FORMAT = 2  # version of the checkpoint format; a run continues only from checkpoints of this version
SECONDS = 10.0  # minimum seconds between two saves of `last.ckpt`; saving a large model is slow


class WholeFiles(TorchCheckpointIO):
    """Lightning plugin that writes checkpoints atomically: to a temporary file that is then renamed.

    A checkpoint with a weight that is NaN or plus infinity is never written."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Check the weights of a checkpoint, write them to a temporary file and rename the file."""
        _check_numbers(checkpoint["state_dict"], checkpoint["global_step"])
        with atomic_file(Path(path)) as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # torch hides the OSError of a full disk behind a RuntimeError
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None


class Stopped(Exception):
    """Exception that ends a run after a signal. The state of the run has been saved in a checkpoint."""

    def __init__(self, signum: int, path: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}; saved to {path}")
        self.signum, self.path = signum, path


class Checkpoints(lightning.Callback):
    """Checkpoints callback: save `last.ckpt` and `best.ckpt`, stop early without progress on dev, handle signals.

    `last.ckpt` is written after an epoch (at most once in `SECONDS` seconds), at the end of training and when the run
    is stopped. If `choose` is `best` (not `last`), `best.ckpt` is written whenever the score on dev improves. Training
    stops after `patience` validations without improvement.

    After Ctrl-C or SIGTERM, the present step is finished. If it is the last step of an epoch, a validation follows.
    Then the state is saved and `Stopped` is raised. A second Ctrl-C stops at once."""

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
        """Checkpoints callback: the path of the checkpoint, best or last, whose weights the run uses after training."""
        return self.folder / (BEST if self.choose == "best" else LAST)

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Checkpoints callback: refuse to train for so few epochs that no validation takes place."""
        least = (trainer.check_val_every_n_epoch or 1) if self.choose == "best" else 1
        if trainer.max_epochs in range(least):
            raise UserError(
                f"trainer.max_epochs={trainer.max_epochs} leaves no model to choose={self.choose}; "
                f"expected at least {least} (trainer.check_val_every_n_epoch={trainer.check_val_every_n_epoch})"
            )

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Checkpoints callback: set the signal handlers; stop a resumed run that has already run out of patience."""
        if self._out_of_patience():
            trainer.should_stop = True
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self.handlers[signum] = signal.signal(signum, self._asked)

    def _asked(self, signum: int, frame) -> None:
        """Checkpoints callback: handle a signal by remembering it; at a second Ctrl-C, raise KeyboardInterrupt."""
        if self.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        """Checkpoints callback: stop after this batch if a signal was received.

        Training does not stop between accumulated batches, whose gradient would be lost. At the last batch of an epoch,
        training goes on until the validation is done."""
        done = batch_idx + 1
        if done % trainer.accumulate_grad_batches == 0 and done < trainer.num_training_batches:
            self._stop_if_asked(trainer)

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Checkpoints callback: save the model if its dev score is the best so far; stop if patience has run out.

        Patience has run out after `patience` validations without a better score."""
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
        """Checkpoints callback: whether the score on dev has not improved for `patience` validations."""
        return self.patience is not None and self.waited >= max(1, self.patience)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Checkpoints callback: stop if a signal was received; save `last.ckpt` at most once in `SECONDS` seconds.

        At the end of training, `last.ckpt` is always saved."""
        self._stop_if_asked(trainer)
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        if last or _any_process(trainer, time.monotonic() - self.saved_at > SECONDS):
            trainer.save_checkpoint(self.folder / LAST)
            self.saved_at = time.monotonic()

    def _stop_if_asked(self, trainer: lightning.Trainer) -> None:
        """Checkpoints callback: save the state and raise `Stopped` if any process has received a signal."""
        if _any_process(trainer, bool(self.signum)):
            trainer.save_checkpoint(self.folder / LAST)
            raise Stopped(self.signum or signal.SIGTERM, self.folder / LAST)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Checkpoints callback: restore the earlier signal handlers at the end of training."""
        self._release()

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, exception) -> None:
        """Checkpoints callback: restore the earlier signal handlers after an error."""
        self._release()

    def _release(self) -> None:
        """Checkpoints callback: restore the signal handlers that were set before training."""
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)
        self.handlers = {}

    def state_dict(self) -> dict:
        """Checkpoints callback: the best score, its epoch, and the number of validations since, for a checkpoint."""
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}

    def load_state_dict(self, state: dict) -> None:
        """Checkpoints callback: restore the best score, its epoch, and the number of validations since that epoch."""
        self.best, self.best_epoch, self.waited = state["best"], state["best_epoch"], state["waited"]


def _any_process(trainer: lightning.Trainer, wish: bool) -> bool:
    """Checkpoints callback: whether `wish` is true in any process of a run; all processes get the same answer."""
    return wish if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(wish, all=False)


def _check_numbers(state: Mapping[str, torch.Tensor], step: int) -> None:
    """Checkpoints without NaN: refuse weights that are NaN or plus infinity.

    Minus infinity is allowed: it is the weight of a forbidden label or transition."""
    for name, weights in state.items():
        if not (weights < torch.inf).all():
            raise UserError(
                f"{name} holds a weight that is NaN or infinite after step {step}; "
                "lower solver.lr. The last good checkpoint is kept"
            )


class StopAtNaN(lightning.Callback):
    """Checkpoints without NaN: callback that stops training at a loss or weight that is NaN or infinite.

    The error message names the sentences of the step. Earlier checkpoints are kept. Reading a loss from a GPU is slow.
    On a GPU, losses are therefore collected and checked every `every` steps."""

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self.seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        """Checkpoints without NaN: collect the loss of the step; on a CPU, check the loss at once."""
        self.seen.append((trainer.global_step, outputs["loss"].detach(), batch.sentences))
        if module.device.type == "cpu" or len(self.seen) >= self.every:
            self.look()

    def on_train_epoch_end(self, trainer, module) -> None:
        """Checkpoints without NaN: check the collected losses and all weights at the end of an epoch."""
        self.look()
        _check_numbers(module.state_dict(), trainer.global_step)

    def on_validation_start(self, trainer, module) -> None:
        """Checkpoints without NaN: check the collected losses and all weights before a validation."""
        self.on_train_epoch_end(trainer, module)

    def look(self) -> None:
        """Checkpoints without NaN: check the losses that were collected since the last check."""
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
    """The path of a checkpoint, if a module can continue from it; otherwise UserError with the reason."""
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
