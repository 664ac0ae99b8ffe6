"""Outer iterations of ADMM around the steps of any solver, with penalties on copies of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import lightning
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.penalties import Copied, Penalty
from structsparse.penalties.base import checked, checked_positive
from structsparse.penalties.discrete import learn
from structsparse.solvers.base import solver_of
from structsparse.training.callbacks.proximal import ProximalStep
from structsparse.weights.notes import notes_of


@dataclass(frozen=True)
class Admm:
    """Options of the outer iterations of ADMM.

    The strengths `rho` and `lasso` are relative to the sum of the losses, not to their mean."""

    inner: int = 2  # epochs between two outer iterations
    rho: float = 0.3  # pull of each weight towards its copy: rho * (occurrences of its feature in train)^exponent
    exponent: float = 0.8
    growth: float = 1.0  # rho is multiplied by this factor after each outer iteration
    rate: float = 1.0  # step size of the update of the multipliers (scaled dual variables)
    lasso: float = 0.0  # strength of an l1 penalty on the weights themselves
    tolerance: float = 0.0  # training ends when the mean squares of primal and dual residual are at most this

    @classmethod
    def of(cls, options: Mapping) -> Admm:
        """Outer iterations of ADMM: read and check the options in `reg.admm`."""
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(names))
        if unknown:
            raise UserError(f"reg.admm.{unknown[0]} is not understood; there are {', '.join(names)}")
        inner = options.get("inner", 2)
        if isinstance(inner, bool) or not isinstance(inner, int) or inner < 1:
            raise UserError(f"reg.admm.inner is {inner!r}, expected a number of epochs, at least 1")
        for name in ("rho", "growth", "rate"):
            checked_positive(options.get(name, 1.0), f"reg.admm.{name}")
        for name in ("exponent", "lasso", "tolerance"):
            checked(options.get(name, 0.0), f"reg.admm.{name}")
        return cls(**options)

    def pull(self, parameter: Tensor, items: int) -> Tensor:
        """Outer iterations of ADMM: the strength with which each weight is pulled to its copy.

        The strength is relative to the mean loss. Its shape broadcasts to that of the parameter."""
        often = notes_of(parameter).curvature  # mean occurrences of each feature per item (sentence or document)
        often = parameter.new_ones(()) if often is None else often.to(parameter)
        return self.rho / items * (often * items) ** self.exponent


class Outer(NamedTuple):
    """The record of an outer iteration of ADMM.

    `primal`: mean square of weights minus copies. `dual`: mean square change of the copies. `flips`: number of entries
    of the copies that changed. `living`: number of nonzero entries of the copies."""

    epoch: int
    primal: float
    dual: float
    flips: int
    living: int


class OuterIterations(ProximalStep):
    """Outer iterations of ADMM: callback for proximal steps where copies of the weights bear the penalties.

    `copied` holds the penalties of the parameters that get a copy. The copies are updated every `inner` epochs, or
    sooner if the solver has converged. Between epochs, in validation, in checkpoints and after training, the parameters
    are set to the copies. `outer` holds a record of each outer iteration."""

    def __init__(
        self,
        penalties: Mapping[str, Penalty],
        copied: Mapping[str, Penalty],
        options: Admm,
        items: int,
        every: int | None = 1,
        warmup: int = 0,
        support: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(penalties, every, warmup, support)
        self.copied, self.options, self.items = dict(copied), options, items
        self.copies: dict[str, Copied] = {}
        self.aside: dict[str, Tensor] | None = None  # the weights, stored here while the parameters hold the copies
        self.epochs, self.outer = 0, []
        self.saved: dict | None = None
        self.parameters: dict[str, Tensor] = {}

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Outer iterations of ADMM: make a copy of each copied parameter, or restore the copies from a checkpoint."""
        self._refuse(trainer)
        parameters = dict(module.named_parameters())
        self.parameters = {name: parameters[name] for name in self.copied}
        for name, parameter in self.parameters.items():
            self.copies[name] = self._copy(name, parameter)
        self.penalties |= self.copies
        self.rates = dict.fromkeys(self.penalties, 0.0) | self.rates
        if self.saved is not None:
            self._restore(self.saved)
        super().on_train_start(trainer, module)

    def _copy(self, name: str, parameter: Tensor) -> Copied:
        """Outer iterations of ADMM: make the copy of a parameter, with a penalty on the copy.

        The result includes the strength with which weights are pulled to the copy."""
        if notes_of(parameter).grows is not None:
            raise UserError("reg.admm keeps a copy of every weight, and those of a growing table come and go")
        options, penalty = self.options, self.copied[name].to(parameter.device)
        with torch.no_grad():
            if name in self.support:
                parameter.mul_(self.support[name].to(parameter.device))
            pull = options.pull(parameter, self.items)
            return Copied(penalty, parameter, pull, options.lasso / self.items, options.rate, options.growth)

    def _refuse(self, trainer: lightning.Trainer) -> None:
        """Outer iterations of ADMM: refuse solvers that end with averaged weights; ADMM must end with the copies."""
        for optimizer in trainer.optimizers:
            solver = solver_of(optimizer)
            if solver.average:
                raise UserError(f"{solver.name} ends with means, reg.admm with copies: choose one of them")

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Outer iterations of ADMM: set the parameters back to the weights at the start of an epoch."""
        self._show_weights()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx: int) -> None:
        """Outer iterations of ADMM: after the last batch of an epoch, run an outer iteration if it is due."""
        if batch_idx + 1 < trainer.num_training_batches:
            return
        self.epochs += 1
        if self.epochs >= self.options.inner or (self.carrier is not None and self.carrier.converged):
            self.epochs = 0
            self._update(trainer)

    def _update(self, trainer: lightning.Trainer) -> None:
        """Outer iterations of ADMM: update copies and multipliers, and record the primal and dual residuals.

        Training stops if the mean squares of both residuals are at most the tolerance."""
        self.flush()
        learn(self.copies, self.parameters)
        moved = [copy.outer_update(self.parameters[name]) for name, copy in self.copies.items()]
        entries = sum(part.entries for part in moved)
        apart, change, flips, living = torch.stack([torch.stack(part[1:]) for part in moved]).sum(0).tolist()
        last = Outer(trainer.current_epoch, apart / entries, change / entries, int(flips), int(living))
        self.outer.append(last)
        if self.carrier is not None:
            self.carrier.renew()
        if max(last.primal, last.dual) <= self.options.tolerance:
            trainer.check_val_every_n_epoch = 1  # validate at the end of this epoch; this model may be the best
            trainer.should_stop = True

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Outer iterations of ADMM: before a validation, set the parameters to the copies."""
        super().on_validation_start(trainer, module)
        self._show_copies()

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Outer iterations of ADMM: at the end of an epoch, set the parameters to the copies."""
        if self.aside is None:
            super().on_train_epoch_end(trainer, module)
        self._show_copies()

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Outer iterations of ADMM: at the end of training, set the parameters to the copies.

        The penalties are removed from the solver."""
        self._show_copies()
        self._release()

    def flush(self) -> None:
        """Outer iterations of ADMM: apply the prox to the weights, with the thresholds added up since the last prox.

        Nothing is done while the parameters hold the copies."""
        if self.aside is None:
            super().flush()

    @torch.no_grad()
    def _show_copies(self) -> None:
        """Outer iterations of ADMM: set the parameters to the copies, and keep the weights in `aside`."""
        if self.aside is None and self.copies:
            self.aside = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
            for name, parameter in self.parameters.items():
                parameter.copy_(self.copies[name].copy)

    @torch.no_grad()
    def _show_weights(self) -> None:
        """Outer iterations of ADMM: set the parameters back to the weights kept in `aside`."""
        if self.aside is not None:
            for name, parameter in self.parameters.items():
                parameter.copy_(self.aside[name])
            self.aside = None

    def state_dict(self) -> dict:
        """Outer iterations of ADMM: copies, weights, counters and records, for a checkpoint."""
        copies = {name: copy.state_dict() for name, copy in self.copies.items()}
        state = {"copies": copies, "aside": self.aside, "epochs": self.epochs, "outer": [*map(tuple, self.outer)]}
        return super().state_dict() | state

    def load_state_dict(self, state: dict) -> None:
        """Outer iterations of ADMM: keep the state of a checkpoint until training starts and the copies exist."""
        super().load_state_dict(state)
        self.saved = state

    def _restore(self, state: dict) -> None:
        """Outer iterations of ADMM: restore copies and counters from a checkpoint; the copies must exist."""
        for name, copy in self.copies.items():
            copy.load_state_dict(state["copies"][name])
        self.aside = state["aside"]
        if self.aside is not None:
            self.aside = {name: value.to(self.parameters[name].device) for name, value in self.aside.items()}
        self.epochs, self.outer, self.saved = state["epochs"], [Outer(*line) for line in state["outer"]], None
