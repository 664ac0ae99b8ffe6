"""`Solver`, the base of optimizers for penalised losses: capabilities, effective step sizes, optimality proofs.

A prox after a solver step must use the effective step size of this step, not the bare learning rate. The effective
step size of each weight is rate * metric. `rate` is one number, such as the learning rate. `metric` has a factor for
each weight, such as 1 / (sqrt(sum of squared gradients) + eps) in AdaGrad. If one prox follows several steps, the prox
uses the sum of their rates and the latest metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.solvers.effective_steps import METRICS, check_group


@dataclass(frozen=True)
class Proof:
    """Proof of optimality that a solver gives for the final weights; None means that there is no proof."""

    gap: float | None = None  # duality gap, relative to the objective at zero weights
    # largest violation of the optimality conditions, relative to the largest gradient at zero weights
    kkt: float | None = None
    excess: float | None = None  # absolute duality gap: objective minus minimum is at most this


class Capabilities:
    """Capabilities of a solver, declared as attributes and methods for the training loop.

    The defaults describe a plain solver: each step uses the learning rate `group["lr"]`, and a prox can follow.
    """

    # whether the step itself calls the closure for loss and gradients
    needs_closure = False
    needs_full_batch = False  # whether the loss must be over the same items in every step
    needs_each_prox = False  # whether a prox must run between any two steps
    needs_sentences = False  # whether the solver updates the weights after each sentence, in its method `sweep`
    carries_penalties = False  # whether the solver applies the penalties within each step
    average = False  # whether the mean of the weights replaces the weights between epochs
    host_only = False  # whether the solver runs on the CPU only
    from_start = False  # whether `rate` is the sum over all steps since the start of training
    prox_every = 1  # default number of steps between two proxes
    slopes = True  # whether the closure must compute gradients
    converged = False  # whether further steps would not lower the objective

    @property
    def name(self) -> str:
        """Solver interface: the name of the solver's class, for messages."""
        return type(self).__name__

    @property
    def members(self) -> list[Tensor]:
        """Solver interface: the parameters that the solver updates."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    # --- the effective step size of the last step

    def rate(self, group: dict) -> float | Tensor:
        """Solver interface: the last step size without the metric, such as the learning rate."""
        return group["lr"]

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """Solver interface: the last step size divided by `rate`, one number or one per weight."""
        raise NotImplementedError

    @torch.no_grad()
    def effective_step(self, group: dict, parameter: Tensor) -> float | Tensor:
        """Solver interface: the last step size of each weight of a parameter, rate * metric."""
        return self.rate(group) * self.metric(group, parameter)

    def accumulated_rate(self, waiting: float | Tensor, latest: float | Tensor) -> float | Tensor:
        """Solver interface: the rate for the next prox, the sum of the rates of all steps since the last prox.

        `latest` is the rate of the last step, `waiting` the sum of the rates before.
        """
        return latest if self.from_start else waiting + latest

    @property
    def knows_step(self) -> bool:
        """Solver interface: whether the solver knows its step size for a prox, or applies the penalties itself."""
        return self.carries_penalties or type(self).metric is not Capabilities.metric

    def check_prox(self, parameters: Iterable[Tensor]) -> None:
        """Solver interface: raise an error if no prox can follow a step on these parameters."""
        if not self.knows_step:
            raise UserError(
                f"the step that {self.name} really takes is not known, so no prox fits after it; "
                f"choose one of {', '.join(kind.__name__ for kind in METRICS)}"
            )
        for parameter in parameters:
            check_group(self.name, self.group_of(parameter), parameter)

    def group_of(self, parameter: Tensor) -> dict:
        """Solver interface: the parameter group (torch) that contains this penalised parameter."""
        for group in self.param_groups:
            if any(member is parameter for member in group["params"]):
                return group
        raise UserError(f"a penalised parameter {tuple(parameter.shape)} is not among those that {self.name} moves")

    # --- methods for a prox that follows the steps

    def hold(self, parameters: Iterable[Tensor]) -> None:
        """Solver interface: postpone all updates of these parameters until the next prox."""

    def place_(self, group: dict, parameter: Tensor) -> None:
        """Solver interface: apply the postponed updates to a parameter, just before the prox."""

    # --- methods of solvers that apply the penalties within the steps

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Solver interface: set the penalty of each parameter, and masks of weights that may be nonzero (support)."""
        raise NotImplementedError(f"{self.name} carries no penalties")

    def flush(self) -> None:
        """Solver interface: write weights that the solver stores in another form into the parameters."""

    def renew(self) -> None:
        """Solver interface: recompute the objective after the penalties have changed."""

    # --- methods of online solvers, which learn sentence by sentence

    def check(self, model: nn.Module, loss: nn.Module) -> None:
        """Solver interface: raise an error if the solver does not support this model or this loss."""

    def sweep(self, model: nn.Module, loss: nn.Module, passage) -> Tensor:
        """Solver interface: learn from a block of sentences, in order; returns the mean loss per sentence."""
        raise NotImplementedError(f"{self.name} does not go from sentence to sentence")

    def take_mean(self) -> None:
        """Solver interface: replace the weights by their mean over all sentences so far, until `resume`."""

    def resume(self) -> None:
        """Solver interface: restore the weights that `take_mean` has replaced."""

    # --- methods for the end of training

    def proof(self) -> Proof:
        """Solver interface: the proof of optimality for the current weights."""
        return Proof()


class Solver(Capabilities, Optimizer):
    """Base of all solvers of this package: a torch optimizer that declares its capabilities.

    A subclass defines `step`. If a prox follows the steps, the subclass must define `metric` too."""

    def check_members(self, parameters: Iterable[Tensor]) -> None:
        """Solver interface: raise an error if the solver does not update these parameters."""
        for parameter in parameters:
            self.group_of(parameter)


class TorchSolver(Capabilities):
    """Adapter that gives one of torch's own optimizers the interface of a solver."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def name(self) -> str:
        """Name of the torch optimizer inside the solver adapter, for messages."""
        return type(self.optimizer).__name__

    @property
    def param_groups(self) -> list[dict]:
        """The parameter groups of the torch optimizer inside the solver adapter."""
        return self.optimizer.param_groups

    @property
    def knows_step(self) -> bool:
        """Whether the effective step size of the torch optimizer inside the solver adapter is known."""
        return type(self.optimizer) in METRICS

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """Solver metric of a torch optimizer: the last step size divided by the learning rate."""
        return METRICS[type(self.optimizer)](group, self.optimizer.state.get(parameter, {}))

    def check_prox(self, parameters: Iterable[Tensor]) -> None:
        """Raise an error if no prox can follow the steps of the torch optimizer in this solver adapter."""
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise UserError(
                "LBFGS tries several points within one step, so no prox fits after it; choose SGD or Adagrad"
            )
        super().check_prox(parameters)


def solver_of(optimizer: Optimizer) -> Capabilities:
    """The solver interface of an optimizer: the optimizer itself if it is a solver, else an adapter around it."""
    return optimizer if isinstance(optimizer, Capabilities) else TorchSolver(optimizer)
