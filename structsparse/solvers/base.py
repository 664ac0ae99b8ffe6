"""The interface of solvers: what they need from training, the effective step, penalties carried, proofs of optimality.

At a fixed point of `solver step, then prox` the update is step * gradient, so a threshold of step * strength balances
it. With the bare learning rate under momentum or a metric, another problem is solved. The effective step of an entry
is rate * metric: thresholds of several steps add up as rates, and are multiplied by the latest metric.
"""

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
    """The proof of a solver for the weights that it ended with; None: nothing is proved."""

    gap: float | None = None  # the duality gap, as a share of the objective at zero weights
    kkt: float | None = None  # how far from stationary, as a share of the steepest gradient at zero
    excess: float | None = None  # bound on the objective's distance from its minimum: the absolute duality gap


class Capabilities:
    """The capabilities of a solver, with defaults for the plainest one: a step with `group["lr"]`, then a prox.

    The solvers of this package inherit them through `Solver`; `TorchSolver` declares those of torch's optimizers."""

    needs_closure = False  # the step takes loss and gradient from the closure: gradients must not accumulate before it
    needs_full_batch = False  # losses of several steps are compared, so they must be of the same items
    needs_each_prox = False  # the next step builds on the prox of this one
    needs_sentences = False  # weights move sentence by sentence: `sweep`, through `model.sweeper(solver)`
    carries_penalties = False  # penalties are applied within the steps: `attach`, and `flush` afterwards
    average = False  # between epochs the weights are means: `take_mean`, undone by `resume`
    host_only = False  # the solver runs on the CPU only
    from_start = False  # `rate` is that of all steps together and replaces the accumulated one
    prox_every = 1  # steps that cost as much as one prox, which may wait for them
    slopes = True  # whether the closure must compute gradients
    converged = False  # whether no further step gains anything

    @property
    def name(self) -> str:
        """The name of the class, for messages."""
        return type(self).__name__

    @property
    def members(self) -> list[Tensor]:
        """The parameters that the solver moves."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    # --- the last step

    def rate(self, group: dict) -> float | Tensor:
        """The part of the last step that adds up over several steps."""
        return group["lr"]

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The last step over the rate, a number or one per entry; 0 before the first step."""
        raise NotImplementedError

    @torch.no_grad()
    def effective_step(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The last step on each entry of a parameter, rate * metric; 0 before the first step."""
        return self.rate(group) * self.metric(group, parameter)

    def accumulated_rate(self, waiting: float | Tensor, latest: float | Tensor) -> float | Tensor:
        """The rate of the threshold that is due after a step of rate `latest`."""
        return latest if self.from_start else waiting + latest

    @property
    def knows_step(self) -> bool:
        """Whether the solver knows the step that a prox must use, or needs no prox after its steps."""
        return self.carries_penalties or type(self).metric is not Capabilities.metric

    def check_prox(self, parameters: Iterable[Tensor]) -> None:
        """Refuse to penalise these parameters if the step of the solver is unknown or wrong for a prox."""
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
        """Let these parameters rest between proxes; `place_` moves them just before one."""

    def place_(self, group: dict, parameter: Tensor) -> None:
        """Move a held parameter to the point at which the prox is due."""

    # --- penalties within the steps

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Give the solver the penalty of each parameter; entries of a parameter outside its support stay zero."""
        raise NotImplementedError(f"{self.name} carries no penalties")

    def flush(self) -> None:
        """Write out the weights, if the solver keeps them in another form."""

    def renew(self) -> None:
        """Evaluate the objective anew, as the penalties have changed."""

    # --- sentence by sentence

    def check(self, model: nn.Module, loss: nn.Module) -> None:
        """Refuse a model or a loss that the solver does not support."""

    def sweep(self, model: nn.Module, loss: nn.Module, passage) -> Tensor:
        """Learn from the sentences of a passage, in order; returns the mean of their losses."""
        raise NotImplementedError(f"{self.name} does not go from sentence to sentence")

    def take_mean(self) -> None:
        """Replace the weights by their mean so far, until `resume`."""

    def resume(self) -> None:
        """Restore the weights of before `take_mean`."""

    # --- the end

    def proof(self) -> Proof:
        """The proof of optimality at the last point."""
        return Proof()


class Solver(Capabilities, Optimizer):
    """A torch optimizer that declares its capabilities: the base class of all solvers of this package.

    A subclass has `step` and, unless it carries the penalties itself, `metric`."""

    def check_members(self, parameters: Iterable[Tensor]) -> None:
        """Refuse parameters that the solver does not move."""
        for parameter in parameters:
            self.group_of(parameter)


class TorchSolver(Capabilities):
    """Adapter that presents one of torch's own optimizers as a solver."""

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
        """Refuse LBFGS too, with a reason of its own."""
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise UserError(
                "LBFGS tries several points within one step, so no prox fits after it; choose SGD or Adagrad"
            )
        super().check_prox(parameters)


def solver_of(optimizer: Optimizer) -> Capabilities:
    """The solver that an optimizer is, or an adapter around one of torch's optimizers."""
    return optimizer if isinstance(optimizer, Capabilities) else TorchSolver(optimizer)
