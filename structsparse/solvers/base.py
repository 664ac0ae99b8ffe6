"""`Solver`, the interface of optimizers for penalised losses: capabilities, effective step sizes for the prox,
optimality proofs.

At a fixed point of `solver step, then prox`, the update is step * gradient, so the prox must use the same step. The
bare learning rate would solve another problem under momentum or a metric. The effective step of an entry is rate *
metric. If one prox follows several steps, the rates add up and are multiplied by the latest metric."""

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
    """What a solver proves about its final weights; None: nothing is proved."""

    gap: float | None = None  # the duality gap, relative to the objective at zero weights
    kkt: float | None = None  # the largest violation of stationarity, relative to the largest gradient at zero
    excess: float | None = None  # bound on objective - minimum: the absolute duality gap


class Capabilities:
    """The capabilities that a solver declares. The defaults describe a plain solver: a step with `group["lr"]`, then a
    prox.

    The solvers of this package inherit the defaults through `Solver`; `TorchSolver` declares the capabilities of
    torch's optimizers."""

    needs_closure = False  # the step calls the closure for loss and gradient: gradients must not accumulate before
    needs_full_batch = False  # the losses of several steps are compared, so all must be over the same items
    needs_each_prox = False  # each step needs the result of the prox after the previous step
    needs_sentences = False  # the solver updates weights after each sentence: `sweep`, through `model.sweeper(solver)`
    carries_penalties = False  # the solver applies the penalties in its own steps: `attach`, and `flush` afterwards
    average = False  # between epochs the weights are replaced by their mean: `take_mean`, undone by `resume`
    host_only = False  # the solver runs on the CPU only
    from_start = False  # `rate` is the sum over all steps so far and replaces the accumulated rate
    prox_every = 1  # steps between two proxes, as one prox costs as much as so many steps
    slopes = True  # whether the closure must compute gradients
    converged = False  # whether further steps gain nothing

    @property
    def name(self) -> str:
        """The name of the solver's class, for messages."""
        return type(self).__name__

    @property
    def members(self) -> list[Tensor]:
        """The parameters that the solver updates."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    # --- the effective step of the last step

    def rate(self, group: dict) -> float | Tensor:
        """The factor of the last step size that adds up over several steps, such as the learning rate."""
        return group["lr"]

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The last step size divided by the rate, one number or one per entry; 0 before the first step."""
        raise NotImplementedError

    @torch.no_grad()
    def effective_step(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The last step size of each entry of a parameter, rate * metric; 0 before the first step."""
        return self.rate(group) * self.metric(group, parameter)

    def accumulated_rate(self, waiting: float | Tensor, latest: float | Tensor) -> float | Tensor:
        """The rate for the next prox: the sum over the steps since the last prox, including `latest`."""
        return latest if self.from_start else waiting + latest

    @property
    def knows_step(self) -> bool:
        """Whether the effective step size for a prox is known, or no prox is needed."""
        return self.carries_penalties or type(self).metric is not Capabilities.metric

    def check_prox(self, parameters: Iterable[Tensor]) -> None:
        """Raise an error if the solver's effective step is unknown or unsuitable for a prox of these parameters."""
        if not self.knows_step:
            raise UserError(
                f"the step that {self.name} really takes is not known, so no prox fits after it; "
                f"choose one of {', '.join(kind.__name__ for kind in METRICS)}"
            )
        for parameter in parameters:
            check_group(self.name, self.group_of(parameter), parameter)

    def group_of(self, parameter: Tensor) -> dict:
        """The parameter group that holds a penalised parameter."""
        for group in self.param_groups:
            if any(member is parameter for member in group["params"]):
                return group
        raise UserError(f"a penalised parameter {tuple(parameter.shape)} is not among those that {self.name} moves")

    # --- a prox after the steps

    def hold(self, parameters: Iterable[Tensor]) -> None:
        """Postpone the updates of these parameters until `place_`, which is called just before each prox."""

    def place_(self, group: dict, parameter: Tensor) -> None:
        """Apply the postponed updates to a held parameter, just before the prox."""

    # --- penalties applied within the steps

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Give the solver the penalty of each parameter; entries outside the support of a parameter stay zero."""
        raise NotImplementedError(f"{self.name} carries no penalties")

    def flush(self) -> None:
        """Write the weights into the parameters, if the solver stores the weights in another form."""

    def renew(self) -> None:
        """Recompute the objective after the penalties have changed."""

    # --- online learning, sentence by sentence

    def check(self, model: nn.Module, loss: nn.Module) -> None:
        """Raise an error if the solver does not support this model or loss."""

    def sweep(self, model: nn.Module, loss: nn.Module, passage) -> Tensor:
        """Learn from the sentences of a passage, in order; returns the mean loss per sentence."""
        raise NotImplementedError(f"{self.name} does not go from sentence to sentence")

    def take_mean(self) -> None:
        """Replace the weights by their mean over all sentences so far, until `resume`."""

    def resume(self) -> None:
        """Restore the weights from before `take_mean`."""

    # --- the end of training

    def proof(self) -> Proof:
        """The proof of optimality of the last weights."""
        return Proof()


class Solver(Capabilities, Optimizer):
    """Base of all optimizers of this package: a torch optimizer that declares its capabilities.

    A subclass defines `step`. It also defines `metric` unless it applies the penalties itself."""

    def check_members(self, parameters: Iterable[Tensor]) -> None:
        """Raise an error if the solver does not update these parameters."""
        for parameter in parameters:
            self.group_of(parameter)


class TorchSolver(Capabilities):
    """Adapter that gives one of torch's own optimizers the interface of a solver."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def name(self) -> str:
        """The name of the optimizer, for messages."""
        return type(self.optimizer).__name__

    @property
    def param_groups(self) -> list[dict]:
        """The parameter groups of the optimizer."""
        return self.optimizer.param_groups

    @property
    def knows_step(self) -> bool:
        """Whether the effective step of this optimizer is implemented."""
        return type(self.optimizer) in METRICS

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The last step over the learning rate, from the state of the optimizer."""
        return METRICS[type(self.optimizer)](group, self.optimizer.state.get(parameter, {}))

    def check_prox(self, parameters: Iterable[Tensor]) -> None:
        """Raise an error if the effective step is unsuitable for a prox; LBFGS has a message of its own."""
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise UserError(
                "LBFGS tries several points within one step, so no prox fits after it; choose SGD or Adagrad"
            )
        super().check_prox(parameters)


def solver_of(optimizer: Optimizer) -> Capabilities:
    """The optimizer itself if it is a solver, else an adapter around the torch optimizer."""
    return optimizer if isinstance(optimizer, Capabilities) else TorchSolver(optimizer)
