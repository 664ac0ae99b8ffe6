"""SGD and AdaGrad with scaled tables: an exact group lasso whose cost per step grows with the number of groups.

The cost does not depend on the number of weights. A table with a group lasso over row blocks is stored as one factor
per group times the rows (see `kernels.weights.scaled`). `bag_sum` applies the factors; code that reads the rows
directly must call `flush` first. Ordinary steps followed by the prox serve for all other parameters, and for tables
that are not contiguous CPU memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from structsparse.kernels.memory import walkable
from structsparse.kernels.weights import scaled as kernels
from structsparse.penalties import GroupLasso, Penalty
from structsparse.prox.steps import changed
from structsparse.solvers.sgd import RowSolver
from structsparse.weights.bags import BagGradient, RowScale, concatenated, row_sums, subtract_
from structsparse.weights.notes import notes_of

# names of the state tensors of a scaled table in checkpoints
SAVED = ("factors", "squares", "doubt", "touched", "counts")


class _ScaledSolver(RowSolver):
    """Base of SGD and AdaGrad with scaled tables; subclasses define the step size of each group."""

    carries_penalties = True

    def __init__(self, params, defaults: dict) -> None:
        super().__init__(params, defaults)
        self.penalties: dict[Tensor, Penalty] = {}
        self.support: dict[Tensor, Tensor] = {}
        self.tables: dict[Tensor, ScaledTable] = {}
        self.restored: set[Tensor] = set()  # parameters whose state was restored from a checkpoint and fits the rows

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Set the penalties, and store tables with a group lasso over row blocks as scaled tables.

        Entries outside the support of a parameter stay zero."""
        self.check_members((*penalties, *(support or {})))
        self._release()
        self.penalties = {parameter: penalty.to(parameter.device) for parameter, penalty in penalties.items()}
        self.support = {parameter: mask.to(parameter.device) for parameter, mask in (support or {}).items()}
        for parameter, penalty in self.penalties.items():
            if parameter not in self.support and _scalable(parameter, penalty):
                table = self.tables[parameter] = ScaledTable(parameter, penalty)
                table.resume(self.state[parameter], reset=parameter not in self.restored)
        self.restored = set()

    def _release(self) -> None:
        """Convert all scaled tables back to plain tables."""
        self.flush()
        for parameter in self.tables:
            notes_of(parameter).scale = None
        self.tables = {}

    @torch.no_grad()
    def flush(self) -> None:
        """Multiply the rows of every scaled table by the factors, so that the parameter holds the true weights."""
        for table in self.tables.values():
            table.fold_()

    @torch.no_grad()
    def step(self, closure=None):
        """A gradient step on scaled tables and all other parameters, followed by the prox of each penalty."""
        loss = super().step(closure)
        self._mask()  # entries outside the support must not count in the norm of a group
        for parameter, penalty in self.penalties.items():
            step = self._step(self.group_of(parameter), parameter)
            if parameter in self.tables:
                self.tables[parameter].shrink_(step)
            else:
                penalty.prox_(parameter, step)
        self._mask()
        return loss

    def _mask(self) -> None:
        """Set entries outside the support to zero; a parameter with a support is never a scaled table."""
        for parameter, mask in self.support.items():
            parameter.mul_(mask)

    def _step(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The last step size of a solver with scaled tables: one number, or one for each group of a table."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore the state of a solver with scaled tables.

        The parameters must have the values from when the state was saved. The parameters may be loaded before or after
        the state."""
        super().load_state_dict(state_dict)
        self.restored = set()
        for place, parameter in enumerate(self.members):
            for name, value in (
                state_dict["state"].get(place, {}).items()
            ):  # torch would cast these tensors to the type of the weights
                self.state[parameter][name] = value.clone().to(parameter.device)
            if parameter in self.tables:
                self.tables[parameter].resume(self.state[parameter], reset=False)
            elif SAVED[0] in self.state[parameter]:
                self.restored.add(parameter)


class ScaledSGD(_ScaledSolver):
    """SGD with scaled tables and an exact group lasso: W <- prox(W - lr * gradient), where the prox has step lr."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """Scaled SGD: the step of a dense gradient, after a scaled table's factors are multiplied into the rows."""
        if parameter in self.tables:
            self.tables[parameter].fold_()
        parameter.sub_(parameter.grad, alpha=group["lr"])
        if parameter in self.tables:
            self.tables[parameter].written()

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """Scaled SGD: the step of factored gradients, on a scaled table or on plain rows."""
        for gradient in notes_of(parameter).pending:
            if parameter in self.tables:
                self.tables[parameter].subtract_(gradient, group["lr"])
            else:
                subtract_(parameter, gradient, group["lr"])

    def _step(self, group: dict, parameter: Tensor) -> float:
        """The last step size of SGD with scaled tables, which is the learning rate."""
        return group["lr"]


class ScaledAdagrad(_ScaledSolver):
    """Groupwise AdaGrad with scaled tables: one sum of squared gradients and one step size for each group.

        sum_g += |gradient_g|^2;  W_g <- prox(W_g - step_g * gradient_g),  step_g = lr / (sqrt(sum_g) + eps)

    The prox uses the same step_g. All entries of a group have the same step size. With one step size per entry, as in
    AdaGrad, the prox of a group would not be a multiplication by one number. A Euclidean prox would then solve another
    problem.

    The groups are those of the penalty if it is a group lasso over row blocks; any other parameter is one group. A
    group moves by at most lr in the first step, so learning rates are larger than in AdaGrad."""

    def __init__(self, params, lr: float = 1.0, eps: float = 1e-10, initial_accumulator_value: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "initial": initial_accumulator_value})

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """Scaled AdaGrad: the step of a dense gradient, after a table's factors are multiplied into the rows."""
        if parameter in self.tables:
            self.tables[parameter].fold_()
        self._sum(group, parameter).add_(self._sums(parameter, parameter.grad * parameter.grad))
        parameter.sub_(parameter.grad * self._spread(parameter, self._steps(group, parameter)))
        if parameter in self.tables:
            self.tables[parameter].written()

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """Scaled AdaGrad: the groupwise step of factored gradients, on a scaled table or on plain rows."""
        gradient, total = concatenated(notes_of(parameter).pending), self._sum(group, parameter)
        if parameter in self.tables:
            self.tables[parameter].adagrad_(gradient, total, group["lr"], group["eps"], self._slot(parameter))
            return
        rows, sums = row_sums(gradient)
        groups = self._groups(parameter)
        if groups is None:
            total.add_(sums.double().square().sum())
        else:
            total.index_add_(0, groups.ids[rows].flatten(), sums.double().square().sum(1))
        steps = self._spread(parameter, self._steps(group, parameter))
        parameter.index_add_(0, rows, sums * (steps if groups is None else steps[rows]), alpha=-1)

    def _step(self, group: dict, parameter: Tensor) -> Tensor:
        """Scaled AdaGrad: the last step size, one per group of a scaled table, else broadcast over entries."""
        steps = self._steps(group, parameter)
        return steps if parameter in self.tables else self._spread(parameter, steps)

    def _steps(self, group: dict, parameter: Tensor) -> Tensor:
        """Scaled AdaGrad: the step size of each group."""
        return group["lr"] / (self._sum(group, parameter).sqrt() + group["eps"])

    def _spread(self, parameter: Tensor, steps: Tensor) -> Tensor:
        """Scaled AdaGrad: the step sizes of groups as a tensor that broadcasts to the parameter."""
        groups = self._groups(parameter)
        return (steps if groups is None else groups.expand(steps, fill=0.0)).to(parameter.dtype)

    def _sums(self, parameter: Tensor, entries: Tensor) -> Tensor:
        """Scaled AdaGrad: the sum of the given entries over each group."""
        groups = self._groups(parameter)
        return entries.double().sum() if groups is None else groups.sums(entries)

    def _groups(self, parameter: Tensor):
        """Scaled AdaGrad: the groups with one step size each; None if the whole parameter is one group."""
        penalty = self.penalties.get(parameter)
        return penalty.groups if _over_row_blocks(penalty) else None

    def _sum(self, group: dict, parameter: Tensor) -> Tensor:
        """Scaled AdaGrad: the sum of squared gradients of each group."""
        state, groups = self.state[parameter], self._groups(parameter)
        shape = () if groups is None else (len(groups),)
        if "sum" not in state or state["sum"].shape != shape:
            state["sum"] = torch.full(shape, group["initial"], dtype=torch.float64, device=parameter.device)
        return state["sum"]


class ScaledTable:
    """Scaled weight table: `factors[g]` times the stored rows of group g, with a cheap prox of the group lasso.

    The operations are the kernels of `kernels.weights.scaled`."""

    def __init__(self, parameter: Tensor, penalty: GroupLasso) -> None:
        self.parameter, self.penalty, self.groups = parameter, penalty, penalty.groups
        self.state: dict[str, Tensor] = {}

    def resume(self, state: dict, reset: bool) -> None:
        """Continue with a saved state of the scaled table; `reset` sets all factors to 1."""
        self.state = state
        if reset or SAVED[0] not in state or state[SAVED[0]].shape != self.groups.size.shape:
            one, zero = torch.ones_like(self.groups.weight), torch.zeros_like(self.groups.weight)
            rows = torch.zeros(len(self.parameter), dtype=torch.int32)
            state.update(zip(SAVED, (one, zero, zero.clone(), rows, torch.zeros_like(self.groups.size)), strict=True))
            self.written()
        notes_of(self.parameter).scale = RowScale(state["factors"], self.groups.offsets)

    def subtract_(self, gradient: BagGradient, rate: float) -> None:
        """SGD step of a scaled table theta with a factored gradient: theta -= rate * X'R."""
        bags, bounds = self._bags(gradient)
        kernels.subtract(*bags, float(rate), *self._tracked(), *self._touched(), bounds)

    def adagrad_(self, gradient: BagGradient, history: Tensor, lr: float, eps: float, slot: Tensor) -> None:
        """Groupwise AdaGrad step of a scaled table theta with a factored gradient X'R.

        For each group: history += |gradient|^2; theta -= lr * gradient / (sqrt(history) + eps)."""
        bags, bounds = self._bags(gradient)
        steps = history.numpy(), float(lr), float(eps)
        kernels.adagrad(*bags, *steps, *self._tracked(), *self._touched(), bounds, slot.numpy())

    def shrink_(self, step: float | Tensor) -> None:
        """Apply the prox of the group lasso to the scaled table, with one step size for all groups or one for each."""
        thresholds = (self.penalty.strength * self.groups.weight * step).nan_to_num_(nan=0.0, posinf=math.inf)
        kernels.shrink(self._memory(), thresholds.numpy(), *self._tracked(), *self._touched())

    def fold_(self) -> None:
        """Multiply the rows of the scaled table by the factors, which become 1."""
        kernels.fold_all(self._memory(), *self._tracked())
        changed(self.parameter)

    def written(self) -> None:
        """Update the state of the scaled table after code has changed the rows directly, when all factors are 1."""
        squares = self.groups.norms(self.parameter.detach()).square()
        self.state["squares"].copy_(squares)
        self.state["doubt"].zero_()
        self.state["counts"].copy_(torch.where(squares > 0, self.groups.offsets.diff(), 0))

    def _bags(self, gradient: BagGradient):
        """A factored gradient and the rows of the scaled table as arrays, and the range of rows for each thread."""
        ids, offsets, residuals = (tensor.numpy() for tensor in gradient)
        return (ids, offsets, residuals, self._memory()), kernels.owners(ids, self.groups.offsets.numpy())

    def _memory(self):
        """The stored rows of the scaled table as an array."""
        return self.parameter.detach().numpy()

    def _tracked(self):
        """Arrays of the scaled table per group: factors, squared norms, bounds of rounding errors, and row offsets."""
        state = self.state
        return *(state[name].numpy() for name in ("factors", "squares", "doubt")), self.groups.offsets.numpy()

    def _touched(self):
        """Arrays of the scaled table: the rows changed by steps, listed by group, and the length of each list."""
        return self.state["touched"].numpy(), self.state["counts"].numpy()


def _scalable(parameter: Tensor, penalty: Penalty) -> bool:
    """Whether a parameter with this penalty can be stored as a scaled table."""
    return _over_row_blocks(penalty) and parameter.dim() == 2 and walkable(parameter.detach())


def _over_row_blocks(penalty: Penalty | None) -> bool:
    """Whether a penalty is a group lasso over row blocks, as scaled tables need."""
    return type(penalty) is GroupLasso and penalty.groups.offsets is not None
