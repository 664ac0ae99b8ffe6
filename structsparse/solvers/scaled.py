"""SGD and AdaGrad with scaled tables: the prox of a group lasso costs only one multiplication per group.

A scaled table stores its rows and one factor per group of rows. The weights of a group are the factor times the stored
rows. Tables on the CPU are stored in this way if their group lasso has groups of consecutive rows. The function
`bag_sum` applies the factors. Other code must call `flush` before it reads the rows. All other parameters have ordinary
steps, each followed by the prox."""

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

# names of the state tensors of a scaled table, in checkpoints
SAVED = ("factors", "squares", "doubt", "touched", "counts")


class _ScaledSolver(RowSolver):
    """Base of SGD and AdaGrad with scaled tables; subclasses define the step size of each group."""

    carries_penalties = True

    def __init__(self, params, defaults: dict) -> None:
        super().__init__(params, defaults)
        self.penalties: dict[Tensor, Penalty] = {}
        self.support: dict[Tensor, Tensor] = {}
        self.tables: dict[Tensor, ScaledTable] = {}
        self.restored: set[Tensor] = set()  # parameters for which a checkpoint had the state of a scaled table

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Set the penalties, and store tables as scaled tables if their group lasso has groups of consecutive rows.

        Weights outside the mask in `support` stay zero."""
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
        """Multiply the rows of all scaled tables by the factors; the parameters then contain the true weights."""
        for table in self.tables.values():
            table.fold_()

    @torch.no_grad()
    def step(self, closure=None):
        """A gradient step on scaled tables and all other parameters, followed by the prox of each penalty."""
        loss = super().step(closure)
        self._mask()  # weights outside the support must not contribute to norms of groups
        for parameter, penalty in self.penalties.items():
            step = self._step(self.group_of(parameter), parameter)
            if parameter in self.tables:
                self.tables[parameter].shrink_(step)
            else:
                penalty.prox_(parameter, step)
        self._mask()
        return loss

    def _mask(self) -> None:
        """Set all weights outside the support masks to zero; parameters with a mask are never scaled tables."""
        for parameter, mask in self.support.items():
            parameter.mul_(mask)

    def _step(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The last step size of a solver with scaled tables: one number, or one number per group of rows."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore the state of a solver with scaled tables.

        The parameters must be restored from the same checkpoint, before or after this call."""
        super().load_state_dict(state_dict)
        self.restored = set()
        for place, parameter in enumerate(self.members):
            for name, value in state_dict["state"].get(place, {}).items():
                self.state[parameter][name] = value.clone().to(parameter.device)  # keeps the saved dtype, unlike torch
            if parameter in self.tables:
                self.tables[parameter].resume(self.state[parameter], reset=False)
            elif SAVED[0] in self.state[parameter]:
                self.restored.add(parameter)


class ScaledSGD(_ScaledSolver):
    """SGD with scaled tables and an exact group lasso: W <- prox(W - lr * gradient), prox with step size lr."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """Scaled SGD: the step of a dense gradient; all factors of a scaled table become 1."""
        if parameter in self.tables:
            self.tables[parameter].fold_()
        parameter.sub_(parameter.grad, alpha=group["lr"])
        if parameter in self.tables:
            self.tables[parameter].written()

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """Scaled SGD: the step of factored gradients, on a scaled or a plain table.

        A factored gradient has one gradient vector per bag (list of table rows)."""
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

    Here g is a group, W_g are its weights, and the prox has the step size step_g. The groups are those of a group
    lasso over blocks of consecutive rows. A parameter without such a penalty is one group. Good learning rates are
    larger than those of ordinary AdaGrad."""

    def __init__(self, params, lr: float = 1.0, eps: float = 1e-10, initial_accumulator_value: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "initial": initial_accumulator_value})

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """Scaled AdaGrad: the step of a dense gradient; all factors of a scaled table become 1."""
        if parameter in self.tables:
            self.tables[parameter].fold_()
        self._sum(group, parameter).add_(self._sums(parameter, parameter.grad * parameter.grad))
        parameter.sub_(parameter.grad * self._spread(parameter, self._steps(group, parameter)))
        if parameter in self.tables:
            self.tables[parameter].written()

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """Scaled AdaGrad: the groupwise step of factored gradients, on a scaled or a plain table.

        A factored gradient has one gradient vector per bag (list of table rows)."""
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
        """Scaled AdaGrad: the last step sizes, one per group for a scaled table, otherwise one per weight."""
        steps = self._steps(group, parameter)
        return steps if parameter in self.tables else self._spread(parameter, steps)

    def _steps(self, group: dict, parameter: Tensor) -> Tensor:
        """Scaled AdaGrad: the step size of each group."""
        return group["lr"] / (self._sum(group, parameter).sqrt() + group["eps"])

    def _spread(self, parameter: Tensor, steps: Tensor) -> Tensor:
        """Scaled AdaGrad: expand the step sizes of groups to a tensor that broadcasts to a parameter."""
        groups = self._groups(parameter)
        return (steps if groups is None else groups.expand(steps, fill=0.0)).to(parameter.dtype)

    def _sums(self, parameter: Tensor, entries: Tensor) -> Tensor:
        """Scaled AdaGrad: the sums of `entries` (one number per weight) over each group of weights."""
        groups = self._groups(parameter)
        return entries.double().sum() if groups is None else groups.sums(entries)

    def _groups(self, parameter: Tensor):
        """Scaled AdaGrad: the groups of weights that share a step size; None if the parameter is one group."""
        penalty = self.penalties.get(parameter)
        return penalty.groups if _over_row_blocks(penalty) else None

    def _sum(self, group: dict, parameter: Tensor) -> Tensor:
        """Scaled AdaGrad: the sum of all squared gradients so far, one number per group."""
        state, groups = self.state[parameter], self._groups(parameter)
        shape = () if groups is None else (len(groups),)
        if "sum" not in state or state["sum"].shape != shape:
            state["sum"] = torch.full(shape, group["initial"], dtype=torch.float64, device=parameter.device)
        return state["sum"]


class ScaledTable:
    """Scaled weight table: the weights of group g are factors[g] times the stored rows of the group."""

    def __init__(self, parameter: Tensor, penalty: GroupLasso) -> None:
        self.parameter, self.penalty, self.groups = parameter, penalty, penalty.groups
        self.state: dict[str, Tensor] = {}

    def resume(self, state: dict, reset: bool) -> None:
        """Continue with a saved state of the scaled table, or with new factors of 1 if `reset` is true."""
        self.state = state
        if reset or SAVED[0] not in state or state[SAVED[0]].shape != self.groups.size.shape:
            one, zero = torch.ones_like(self.groups.weight), torch.zeros_like(self.groups.weight)
            rows = torch.zeros(len(self.parameter), dtype=torch.int32)
            state.update(zip(SAVED, (one, zero, zero.clone(), rows, torch.zeros_like(self.groups.size)), strict=True))
            self.written()
        notes_of(self.parameter).scale = RowScale(state["factors"], self.groups.offsets)

    def subtract_(self, gradient: BagGradient, rate: float) -> None:
        """SGD step of a scaled table: subtract rate * gradient, given as one vector per bag (list of table rows)."""
        bags, bounds = self._bags(gradient)
        kernels.subtract(*bags, float(rate), *self._tracked(), *self._touched(), bounds)

    def adagrad_(self, gradient: BagGradient, history: Tensor, lr: float, eps: float, slot: Tensor) -> None:
        """Groupwise AdaGrad step of a scaled table with a factored gradient: one vector per bag (list of table rows).

        For each group: history += |gradient|^2, then weights -= lr * gradient / (sqrt(history) + eps)."""
        bags, bounds = self._bags(gradient)
        steps = history.numpy(), float(lr), float(eps)
        kernels.adagrad(*bags, *steps, *self._tracked(), *self._touched(), bounds, slot.numpy())

    def shrink_(self, step: float | Tensor) -> None:
        """Apply the prox of the group lasso to the scaled table; `step` is one step size, or one per group."""
        thresholds = (self.penalty.strength * self.groups.weight * step).nan_to_num_(nan=0.0, posinf=math.inf)
        kernels.shrink(self._memory(), thresholds.numpy(), *self._tracked(), *self._touched())

    def fold_(self) -> None:
        """Multiply the rows of the scaled table by the factors, then set all factors to 1."""
        kernels.fold_all(self._memory(), *self._tracked())
        changed(self.parameter)

    def written(self) -> None:
        """Update the state of the scaled table after a direct change of the rows; all factors must be 1."""
        squares = self.groups.norms(self.parameter.detach()).square()
        self.state["squares"].copy_(squares)
        self.state["doubt"].zero_()
        self.state["counts"].copy_(torch.where(squares > 0, self.groups.offsets.diff(), 0))

    def _bags(self, gradient: BagGradient):
        """Arrays of a gradient by bags (lists of rows) and of the scaled table, and the row range of each thread."""
        ids, offsets, residuals = (tensor.numpy() for tensor in gradient)
        return (ids, offsets, residuals, self._memory()), kernels.owners(ids, self.groups.offsets.numpy())

    def _memory(self):
        """The stored rows of the scaled table as an array."""
        return self.parameter.detach().numpy()

    def _tracked(self):
        """Scaled table: factor, squared norm, error bound of the squared norm, and first row of each group."""
        state = self.state
        return *(state[name].numpy() for name in ("factors", "squares", "doubt")), self.groups.offsets.numpy()

    def _touched(self):
        """Scaled table: the indices of rows changed by steps, listed by group, and their count in each group."""
        return self.state["touched"].numpy(), self.state["counts"].numpy()


def _scalable(parameter: Tensor, penalty: Penalty) -> bool:
    """Whether a parameter with this penalty can be a scaled table."""
    return _over_row_blocks(penalty) and parameter.dim() == 2 and walkable(parameter.detach())


def _over_row_blocks(penalty: Penalty | None) -> bool:
    """Whether a penalty is a group lasso over blocks of consecutive rows, as scaled tables require."""
    return type(penalty) is GroupLasso and penalty.groups.offsets is not None
