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
    """Proof of optimality that a solver gives for the final weights; a field is None if it is not computed."""

    gap: float | None = None  # duality gap, divided by the objective at zero weights
    # `kkt`: largest violation of the optimality conditions, divided by the largest gradient at zero weights
    kkt: float | None = None
    excess: float | None = None  # absolute duality gap, an upper bound of the objective minus its minimum


class Capabilities:
    """Capabilities of a solver, declared as attributes and methods for the training loop.

    By default, a step has the learning rate `group["lr"]` and leaves the penalties to a prox after the step.
    """

    needs_closure = False  # whether `step` calls the closure that computes loss and gradients
    needs_full_batch = False  # whether all steps must compute the loss over the same items
    needs_each_prox = False  # whether a prox must follow every step
    needs_sentences = False  # whether the solver updates the weights after each sentence, in its method `sweep`
    carries_penalties = False  # whether the solver itself applies the penalties, within each step
    average = False  # whether validation and the final model use the mean of the weights over training
    host_only = False  # whether the solver can run only on the CPU
    from_start = False  # whether `rate` covers all steps since the start of training, not only the last step
    prox_every = 1  # default number of steps per prox
    slopes = True  # whether the closure must compute gradients
    converged = False  # whether the solver cannot lower the objective any further

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
        """Solver interface: the factor of the last step size that all weights share, such as the learning rate."""
        return group["lr"]

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """Solver interface: the last step size divided by `rate`, as one number or one number per weight."""
        raise NotImplementedError

    @torch.no_grad()
    def effective_step(self, group: dict, parameter: Tensor) -> float | Tensor:
        """Solver interface: rate * metric, the last step size of each weight in a parameter."""
        return self.rate(group) * self.metric(group, parameter)

    def accumulated_rate(self, waiting: float | Tensor, latest: float | Tensor) -> float | Tensor:
        """Solver interface: the rate for the next prox, the sum of the rates of all steps since the last prox.

        `latest` is the rate of the last step. `waiting` is the sum of the rates of earlier steps since the last prox.
        """
        return latest if self.from_start else waiting + latest

    @property
    def knows_step(self) -> bool:
        """Solver interface: whether penalties are allowed: the step size for a prox is known, or no prox is needed."""
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
        """Solver interface: the torch parameter group that contains this parameter, or an error if none does."""
        for group in self.param_groups:
            if any(member is parameter for member in group["params"]):
                return group
        raise UserError(f"a penalised parameter {tuple(parameter.shape)} is not among those that {self.name} moves")

    # --- methods of solvers with a prox after the steps

    def hold(self, parameters: Iterable[Tensor]) -> None:
        """Solver interface: postpone all updates of these parameters until the next prox."""

    def place_(self, group: dict, parameter: Tensor) -> None:
        """Solver interface: apply the postponed updates to a parameter, just before the prox."""

    def prox_(self, penalty: Penalty, parameter: Tensor, steps: float | Tensor) -> None:
        """Solver interface: apply the prox of a penalty after a step, to the part of the parameter that has moved."""
        penalty.prox_(parameter, steps)

    # --- methods of solvers that apply the penalties within the steps

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Solver interface: set the penalty of each parameter, and masks of weights that may be nonzero (support)."""
        raise NotImplementedError(f"{self.name} carries no penalties")

    def flush(self) -> None:
        """Solver interface: set parameters to their true weights, if the solver stores the weights in another form."""

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
