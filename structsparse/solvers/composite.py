"""`Composite`, the base of solvers that minimise loss + penalty and compare objective values within a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.solvers.quasi_newton import dot
from structsparse.penalties import Penalty
from structsparse.solvers.base import Solver
from structsparse.weights.notes import notes_of

NOISE = 8  # assumed relative rounding error of a loss, in multiples of the machine epsilon
CALM = 3  # number of successive steps with almost no gain after which a solver has converged


class Composite(Solver):
    """Composite solvers minimise  loss(W) + sum of the penalties of all parameters; the closure computes the loss.

    The closure must use the same items in every call. `step(closure)` evaluates the loss and its gradient several
    times. The step never raises the objective, which is loss plus penalty. The solver has `converged` if each of the
    last three steps lowered the objective by less than `tolerance` times the objective.

    The optional note `notes_of(parameter).curvature` estimates the second derivative of the loss with respect to each
    weight, for example by the frequency of a feature. Without this note all weights have the same step size."""

    needs_closure = True
    needs_full_batch = True
    carries_penalties = True
    accuracy = 0.0  # relative error that iterative proxes may have in the first steps

    def __init__(self, params, lr: float, tolerance: float, **defaults) -> None:
        if not (lr > 0 and math.isfinite(lr)):
            raise UserError(f"solver.lr is {lr}; it must be a positive number")
        if not tolerance >= 0:
            raise UserError(f"solver.tolerance is {tolerance}; it must be zero or positive")
        super().__init__(params, {"lr": lr, "tolerance": tolerance, **defaults})
        self.penalties: dict[Tensor, Penalty] = {}
        self.support: dict[Tensor, Tensor] = {}
        self.iterated: list[Penalty] = []
        for parameter in self.members:
            notes_of(parameter).pending = None  # None: backward passes make dense gradients in `.grad`

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Set the penalties of a composite solver, and masks of weights that may be nonzero (support)."""
        self.check_members((*penalties, *(support or {})))
        for part in self.iterated:
            part.accuracy = 0.0
        self.penalties = {parameter: penalty.to(parameter.device) for parameter, penalty in penalties.items()}
        self.support = {parameter: mask.to(parameter.device) for parameter, mask in (support or {}).items()}
        parts = [part for penalty in self.penalties.values() for part in penalty.modules()]
        self.iterated = [part for part in parts if isinstance(part, Penalty) and part.iterated]
        self._allow(self.accuracy)

    def _allow(self, accuracy: float) -> None:
        """Set the relative error that the iterative proxes of a composite solver may have."""
        for part in self.iterated:
            part.accuracy = accuracy

    @property
    def converged(self) -> bool:
        """Whether the last steps of a composite solver hardly lowered the objective."""
        return self.shared.get("calm", 0) >= CALM

    @property
    def shared(self) -> dict:
        """State that all parameters of a composite solver share, such as the loss."""
        return self.state[self.members[0]].setdefault("shared", {})

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Take one step of a composite solver; returns the loss at the new weights."""
        if closure is None:
            raise UserError(f"{type(self).__name__} evaluates the loss within a step: call step(closure)")
        if "objective" not in self.shared:
            self._begin(closure)
        before = self.shared["objective"]
        self._step(closure)
        self._count_calm(before)
        if self.shared["objective"] == before:  # no gain: evaluate the closure at the restored weights
            self._evaluate(closure, slopes=False)
        return self.shared["loss"]

    @torch.no_grad()
    def renew(self) -> None:
        """Recompute the objective of a composite solver (loss plus penalty) after the penalties have changed."""
        if "loss" in self.shared:
            self.shared.update(objective=self.shared["loss"] + self._penalty(), calm=0)

    def _begin(self, closure: Callable) -> None:
        """Start a composite solver: compute the objective and the gradients of the loss at the initial weights."""
        self._mask()
        loss, gradients = self._evaluate(closure)
        if not math.isfinite(loss):
            raise UserError(f"the loss is {loss} where {type(self).__name__} begins; expected a finite number")
        self._accept(loss, gradients)

    def _step(self, closure: Callable) -> None:
        """The main part of a composite step: calls `_accept` at the new weights, or restores the old weights."""
        raise NotImplementedError

    def _accept(self, loss: float, gradients: list[Tensor]) -> None:
        """Accept the new weights of a composite step: store the loss, the objective and the gradients."""
        self.shared.update(loss=loss, objective=loss + self._penalty())
        self._store(gradients)

    def _store(self, gradients: list[Tensor]) -> None:
        """Store the gradients of the loss after a composite step, one per parameter."""
        for parameter, gradient in zip(self.members, gradients, strict=True):
            self.state[parameter]["gradient"] = gradient

    def _gradients(self) -> list[Tensor]:
        """The gradients of the loss that the last composite step has stored, one per parameter."""
        return [self.state[parameter]["gradient"] for parameter in self.members]

    def _count_calm(self, before: float) -> None:
        """Count the successive steps that hardly lowered the objective of a composite solver."""
        gained, shared = before - self.shared["objective"], self.shared
        small = self.param_groups[0]["tolerance"] * abs(shared["objective"])
        shared["calm"] = shared.get("calm", 0) + 1 if gained <= small else 0

    def _stall(self) -> None:
        """Declare a composite solver converged, as no step lowers the objective any more."""
        self.shared["calm"] = CALM

    def _evaluate(self, closure: Callable, slopes: bool = True) -> tuple[float, list[Tensor] | None]:
        """The loss and the gradients of the loss with respect to all parameters, for a composite solver.

        If `slopes` is false, the closure may omit the gradients, and the second result may be None."""
        self.slopes = slopes
        try:
            with torch.enable_grad():
                loss = torch.as_tensor(closure(), dtype=torch.float64).detach()
        finally:
            self.slopes = True
        if torch.distributed.is_initialized():  # the gradients are already averaged over the processes
            torch.distributed.all_reduce(loss)
            loss = loss / torch.distributed.get_world_size()
        computed = [parameter.grad for parameter in self.members]
        if not slopes and all(gradient is None for gradient in computed):
            return float(loss), None
        gradients = []
        for parameter, gradient in zip(self.members, computed, strict=True):
            parameter.grad = None
            gradient = torch.zeros_like(parameter) if gradient is None else gradient
            gradients.append(gradient * self.support[parameter] if parameter in self.support else gradient)
        return float(loss), gradients

    def _penalty(self) -> float:
        """The penalty part of the composite objective: the sum of the penalties at the current parameters."""
        return sum(float(penalty.value(parameter)) for parameter, penalty in self.penalties.items())

    def _noise(self, loss: float) -> float:
        """The assumed rounding error of a loss; a composite solver ignores smaller changes."""
        return NOISE * max(torch.finfo(parameter.dtype).eps for parameter in self.members) * abs(loss)

    def _mask(self) -> None:
        """Set all weights outside the support masks of a composite solver to zero."""
        for parameter, mask in self.support.items():
            parameter.mul_(mask)

    def _move(self, points: Sequence[Tensor]) -> None:
        """Copy new values, one tensor per parameter, into the parameters of a composite solver."""
        for parameter, point in zip(self.members, points, strict=True):
            parameter.copy_(point)

    def _curvature(self, parameter: Tensor) -> Tensor | None:
        """Estimated second derivatives of the loss, one per weight, for composite solvers; None if unknown.

        If the prox needs one step size for all weights, the result is only the largest second derivative."""
        curvature = notes_of(parameter).curvature
        if curvature is None:
            return None
        try:
            fits = torch.broadcast_shapes(curvature.shape, parameter.shape) == parameter.shape
        except RuntimeError:
            fits = False
        if not fits or not bool((curvature > 0).all()):
            raise UserError(
                f"the curvature {tuple(curvature.shape)} of a parameter {tuple(parameter.shape)} must broadcast to it "
                "and be positive"
            )
        curvature = curvature.to(parameter)
        penalty = self.penalties.get(parameter)
        return curvature if penalty is None or penalty.takes_metric(parameter, curvature) else curvature.max()

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore the saved state of a composite solver, with the dtypes of the saved tensors."""
        super().load_state_dict(state_dict)
        for place, parameter in enumerate(self.members):
            if place in state_dict["state"]:
                self.state[parameter] = _copied(state_dict["state"][place], parameter.device)


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The inner product of two lists of tensors (summed over all tensors), for composite solvers."""
    total = 0.0
    for a, b in zip(left, right, strict=True):
        on_cpu = a.shape == b.shape and walkable(a) and walkable(b)
        total += dot(flat_array(a), flat_array(b)) if on_cpu else float((a * b).sum(dtype=torch.float64))
    return total


def _copied(value, device: torch.device):
    """A deep copy of the saved state of a composite solver, with all tensors on the given device."""
    if isinstance(value, Tensor):
        return value.detach().clone().to(device)
    if isinstance(value, dict):
        return {key: _copied(v, device) for key, v in value.items()}
    return [_copied(v, device) for v in value] if isinstance(value, list) else value
