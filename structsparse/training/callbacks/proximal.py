"""The proximal step: the prox of each penalty after an optimizer step, with the step size of the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import lightning
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.prox import Steps
from structsparse.solvers.base import Capabilities, solver_of


class ProximalStep(lightning.Callback):
    """Proximal step: callback that applies the prox of each penalty to its parameter, after optimizer steps.

    The threshold of a step is the optimizer's step size times the penalty strength. For `every` = k, the thresholds of
    k steps are added up and applied at every k-th step. This is faster, and fewer dead groups become nonzero again by
    mini-batch noise. If `every` is None, the solver chooses k. During the first `warmup` steps, the threshold grows
    linearly to its full value.

    Thresholds that have not been applied yet are pending. They are applied before validation, at the end of each epoch
    and at the end of training. Checkpoints save pending thresholds.

    `support` holds, by parameter name, a mask of the entries that may be nonzero; all other entries stay zero.

    If a solver applies penalties within its own steps, this callback only passes the penalties to the solver."""

    cuts: Sequence[tuple[int, str, float]] = ()  # (step, parameter, strength) of each prox; only in the subclass Budget
    outer: Sequence[tuple] = ()  # records of the outer iterations of ADMM; only in the subclass OuterIterations
    memory: Sequence[tuple] = ()  # records of updates of penalties with memory; only in the subclass MemorySteps

    def __init__(
        self,
        penalties: Mapping[str, Penalty],
        every: int | None = 1,
        warmup: int = 0,
        support: Mapping[str, Tensor] | None = None,
    ) -> None:
        for name, number in (("every", every), ("warmup", warmup)):
            if number is not None and not isinstance(number, int):
                raise UserError(f"reg.{name}={number!r} must be a number of steps")
        if (every is not None and every < 1) or warmup < 0:
            raise UserError(f"reg.every={every} must be at least 1 and reg.warmup={warmup} at least 0")
        self.penalties, self.every, self.warmup = dict(penalties), every, warmup
        self.support = dict(support or {})
        self.count = 0
        # by parameter name: sum of the step sizes since the last prox (pending threshold = sum * strength)
        self.rates: dict[str, float | Tensor] = dict.fromkeys(self.penalties, 0.0)
        self.targets: dict[str, tuple[Capabilities, dict, Tensor]] = {}  # by name: solver, optimizer group, parameter
        self.hook = None
        self.carrier: Capabilities | None = None  # the solver, if it applies penalties in its own steps

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Proximal step: check the options, and set up a hook that applies the prox after optimizer steps.

        A solver that applies penalties within its own steps gets the penalties instead of the hook."""
        if trainer.gradient_clip_val:
            raise UserError(
                f"trainer.gradient_clip_val={trainer.gradient_clip_val} shortens the gradient but not the threshold of "
                "the penalty, which then kills more than it should; switch one of them off"
            )
        (optimizer,) = trainer.optimizers
        solver = solver_of(optimizer)
        if self.every is None:
            self.every = solver.prox_every
        self._check(trainer, solver)
        parameters = dict(module.named_parameters())
        for name, penalty in self.penalties.items():
            penalty.to(parameters[name].device)
            # all processes must use exactly the same strength
            penalty.strength = trainer.strategy.broadcast(float(penalty.strength))
        solver.check_prox([parameters[name] for name in self.penalties])
        self.support = {name: mask.to(parameters[name].device) for name, mask in self.support.items()}
        if solver.carries_penalties:
            solver.attach(
                {parameters[name]: penalty for name, penalty in self.penalties.items()},
                {parameters[name]: mask for name, mask in self.support.items()},
            )
            self.carrier = solver
            return
        for name in self.penalties:
            self.targets[name] = solver, solver.group_of(parameters[name]), parameters[name]
        solver.hold([parameter for _, _, parameter in self.targets.values()])
        self.hook = optimizer.register_step_post_hook(lambda *_: self._stepped())

    def _check(self, trainer: lightning.Trainer, solver: Capabilities) -> None:
        """Proximal step: refuse options of the penalty or the trainer that the solver does not support."""
        name = solver.name
        if solver.carries_penalties and (self.every > 1 or self.warmup):
            raise UserError(
                f"{name} carries the penalty within its steps, so reg.every={self.every} must be 1 "
                f"and reg.warmup={self.warmup} must be 0"
            )
        if solver.needs_each_prox and self.every > 1:
            raise UserError(
                f"{name} builds each step on the prox of the one before, so reg.every={self.every} must be 1"
            )
        accumulated = trainer.accumulate_grad_batches
        if solver.needs_closure and accumulated > 1:
            raise UserError(
                f"{name} takes the loss within its step, of one batch: "
                f"trainer.accumulate_grad_batches={accumulated} must be 1"
            )
        if solver.needs_full_batch and trainer.num_training_batches > 1:
            raise UserError(
                f"{name} compares the losses of several steps, which must be of the whole corpus, but an epoch has "
                f"{trainer.num_training_batches} batches; set batch=null"
            )

    def _stepped(self) -> None:
        """Proximal step: after an optimizer step, add the threshold of the step, and apply the prox if it is due."""
        self.count += 1
        ramp = min(1.0, self.count / self.warmup) if self.warmup else 1.0
        for name, (solver, group, _) in self.targets.items():
            self.rates[name] = solver.accumulated_rate(self.rates[name], ramp * solver.rate(group))
        if self.count % self.every == 0:
            self.flush()

    @torch.no_grad()
    def flush(self) -> None:
        """Proximal step: apply the prox of each penalty, with the thresholds added up since the last prox."""
        for name, (solver, group, parameter) in self.targets.items():
            rate = self.rates[name]
            # a tensor is not compared with zero: the comparison would wait for the device
            if not isinstance(rate, Tensor) and rate == 0.0:
                continue
            if self.penalties[name].is_null and name not in self.support:
                continue
            solver.place_(group, parameter)
            if name in self.support:  # entries that must stay zero must not count in group norms
                parameter.mul_(self.support[name])
            self.shrink(name, parameter, rate * solver.metric(group, parameter))
            if name in self.support:
                parameter.mul_(self.support[name])
            self.rates[name] = 0.0
        if self.carrier is not None:
            self.carrier.flush()

    def shrink(self, name: str, parameter: Tensor, steps: Steps) -> None:
        """Proximal step: apply the prox of the penalty of one parameter, in place."""
        solver, _, _ = self.targets[name]
        solver.prox_(self.penalties[name], parameter, steps)

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Proximal step: before a validation, apply the prox with the accumulated thresholds."""
        self.flush()

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Proximal step: at the end of an epoch, apply the prox with the accumulated thresholds."""
        self.flush()

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Proximal step: at the end of training, apply the prox a last time, and remove the hook from the solver."""
        self.flush()
        self._release()

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, exception) -> None:
        """Proximal step: after an error, remove the hook and the penalties from the solver."""
        self._release()

    def _release(self) -> None:
        """Proximal step: remove the hook and the penalties from the solver."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
        for solver, _, _ in self.targets.values():
            solver.hold([])
        if self.carrier is not None:
            self.carrier.attach({})
        self.targets, self.carrier = {}, None

    def state_dict(self) -> dict:
        """Proximal step: the number of steps, and the sums of step sizes since the last prox, for a checkpoint."""
        return {"count": self.count, "rates": dict(self.rates)}

    def load_state_dict(self, state: dict) -> None:
        """Proximal step: restore the number of steps, and the sums of step sizes since the last prox."""
        self.count, self.rates = state["count"], dict(state["rates"])
