"""Newton's method with preconditioned conjugate gradients, for weights that depend on time under a chain penalty.

A chain penalty is a quadratic form, tridiagonal along each column of the table [periods, columns]. The preconditioner
is exact for each column alone: a tridiagonal matrix with the diagonal of the Hessian of the loss. A step costs time and
memory proportional to the entries of the design and the size of the table. Nothing asks a device for a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.prox import tridiagonal
from structsparse.prox.tridiagonal import Chain
from structsparse.solvers.base import Solver
from structsparse.weights.dated_rows import Design

HALVINGS = 8  # step lengths that Newton's method tries, each half of the one before


class DatedBatch(Protocol):
    """A batch of dated items for Newton's method: a design, targets, and scores that do not depend on weights."""

    design: Design
    targets: Tensor
    offset: Tensor | float
    items: int


class DatedModel(Protocol):
    """A model of dated items: a table of weights [periods, columns], and perhaps a bias, a number."""

    table: nn.Parameter
    bias: nn.Parameter | None


class Quadratic(NamedTuple):
    """The quadratic model of the objective at the present weights; the bias is eliminated from it.

    The Hessian of the loss by the scores is `times`. `second` is its diagonal."""

    design: Design
    chain: Chain  # of the penalty, in the unit of the summed loss
    tied: Tensor | None
    second: Tensor
    times: Callable[[Tensor], Tensor]
    pivots: Tensor  # of the preconditioner
    level: Tensor | None  # for tied columns, the sum over the preconditioner's diagonal
    centred: bool  # whether there is a bias

    def product(self, v: Tensor) -> Tensor:
        """Newton's method: the product of the Hessian and a direction."""
        bent = self.without_bias(self.times(self.design.scores(v)))
        return self.tie(self.chain.add_times_(self.design.pull(bent, len(v)), v))

    def without_bias(self, numbers: Tensor) -> Tensor:
        """Newton's method: derivatives by the scores, for a bias that follows the scores."""
        return numbers - self.second * (numbers.sum() / self.second.sum()) if self.centred else numbers

    def tie(self, v: Tensor) -> Tensor:
        """Newton's method: replace each tied column by its mean."""
        return v if self.tied is None else torch.where(self.tied, v.mean(dim=0), v)

    def precondition_(self, residual: Tensor, result: Tensor) -> Tensor:
        """Newton's method: solve the system of each column alone, into `result`."""
        tridiagonal.solve_(self.pivots, self.chain.off, result.copy_(residual))
        if self.tied is None:
            return result
        return result.copy_(torch.where(self.tied, residual.mean(dim=0) * len(residual) / self.level, result))


class NewtonCG(Solver):
    """Newton's method, with conjugate gradients preconditioned by the tridiagonal factor of each column.

    In an epoch it makes `newton` steps (one is enough for the squared loss), each with `iterations` of conjugate
    gradients, from the present weights. Under a penalty without memory it has converged when the gradient is at most
    `tolerance` times the first one."""

    needs_closure = True
    needs_full_batch = True
    carries_penalties = True
    slopes = False

    def __init__(self, params, newton: int = 1, iterations: int = 10, tolerance: float = 1e-9) -> None:
        for name, number in (("newton", newton), ("iterations", iterations)):
            if type(number) is not int or number < 1:
                raise UserError(f"solver.{name} is {number}, expected a number of at least 1")
        if not tolerance > 0:
            raise UserError(f"solver.tolerance is {tolerance}, expected a positive number")
        super().__init__(params, {"lr": 1.0})
        self.newton, self.iterations, self.tolerance = newton, iterations, tolerance
        self.penalties: dict[Tensor, Penalty] = {}

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Newton's method: set the penalty of the table, which must be a chain penalty."""
        for parameter, penalty in penalties.items():
            if penalty.chains(parameter) is None:
                raise UserError(
                    f"solver=newton_cg takes smooth penalties (drift, l2, none), not {type(penalty).__name__}"
                )
        if any(not bool(mask.all()) for mask in (support or {}).values()):
            raise UserError(f"{self.name} keeps no single entries at zero; dead features are removed from the data")
        self.penalties = dict(penalties)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Newton's method: call the closure, which calls `sweep` with the batch of all items."""
        if closure is None:
            raise UserError(f"{self.name} needs the items: call step(closure) with a closure that calls sweep")
        return closure()

    @torch.no_grad()
    def sweep(self, model: DatedModel, loss: nn.Module, batch: DatedBatch) -> Tensor:
        """Newton's method: the steps of an epoch; returns the mean loss before them."""
        table = model.table.detach()
        scores = batch.design.scores(table) + batch.offset
        if model.bias is not None:
            scores = scores + model.bias
        before = loss(scores, batch.targets).sum() / batch.items
        for _ in range(self.newton):
            scores = self._newton_step(model, loss, batch, scores)
        return before

    def _newton_step(self, model: DatedModel, loss: nn.Module, batch: DatedBatch, scores: Tensor) -> Tensor:
        """Newton's method: one step; returns the new scores."""
        table, y, design = model.table.detach(), batch.targets, batch.design
        chain = self.penalties[model.table].chains(table).scaled(table.new_tensor(float(batch.items)))
        model_at = self._quadratic(loss, batch, scores, chain, model.bias is not None, len(table))
        first = loss.first(scores, y)
        residual = design.pull(model_at.without_bias(first), len(table))
        residual = model_at.tie(chain.add_times_(residual, table).neg_())
        self._watch(residual)
        move = conjugate_gradients(model_at, residual, self.iterations)
        along = design.scores(move)
        shift = along.new_zeros(())
        if model.bias is not None:
            shift = -(first.sum() + (model_at.second * along).sum()) / model_at.second.sum()
            along = along + shift
        length = along.new_ones(()) if loss.quadratic else _length(loss, scores, along, y, chain, table, move)
        table.add_(length * move)
        if model.bias is not None:
            model.bias.add_(length * shift)
        return scores + length * along

    def _quadratic(self, loss, batch: DatedBatch, scores: Tensor, chain: Chain, bias: bool, periods: int) -> Quadratic:
        """Newton's method: the quadratic model of the objective, with its preconditioner."""
        tied = next(iter(self.penalties.values())).tied
        tied = tied if tied is not None and tied.numel() else None
        second = loss.second(scores, batch.targets)
        diagonal = batch.design.squares(second, periods).add_(chain.diagonal(periods))
        level = None if tied is None else diagonal.sum(dim=0)
        pivots = tridiagonal.factor_(diagonal, chain.off)

        def times(direction: Tensor) -> Tensor:
            """Newton's method: the product of the Hessian of the loss by the scores and a direction."""
            return loss.times(scores, batch.targets, direction)

        return Quadratic(batch.design, chain, tied, second, times, pivots, level, bias)

    def _watch(self, residual: Tensor) -> None:
        """Newton's method: note the size of the gradient; under a penalty without memory, convergence ends training."""
        state = self.state[self.members[0]]
        if any(penalty.remembers for penalty in self.penalties.values()) or residual.device.type == "meta":
            return
        size = residual.norm()
        first = state.setdefault("first", size.clone())
        state["size"] = size
        if residual.device.type == "cpu":
            state["converged"] = bool(size <= self.tolerance * first)

    @property
    def converged(self) -> bool:
        """Newton's method: whether the gradient has become negligible."""
        return bool(self.state[self.members[0]].get("converged", False))


def conjugate_gradients(model: Quadratic, residual: Tensor, iterations: int) -> Tensor:
    """Newton's method: minimise the quadratic model from zero; `residual` is minus its gradient, and is overwritten.

    Once the residual is zero, further iterations change nothing."""
    move, tiny = torch.zeros_like(residual), torch.finfo(residual.dtype).tiny
    towards = model.precondition_(residual, torch.empty_like(residual))
    way = towards.clone()
    size = _dot(residual, towards)
    for _ in range(iterations):
        bent = model.product(way)
        length = size / _dot(way, bent).clamp(min=tiny)
        move.addcmul_(way, length)
        residual.addcmul_(bent, -length)
        del bent  # before the next product: tables may be large
        model.precondition_(residual, towards)
        before, size = size, _dot(residual, towards)
        torch.addcmul(towards, way, size / before.clamp(min=tiny), out=way)
    return move


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Newton's method: the inner product of two tables."""
    return torch.dot(a.view(-1), b.view(-1))


def _length(loss, scores: Tensor, along: Tensor, y: Tensor, chain: Chain, table: Tensor, move: Tensor) -> Tensor:
    """Newton's method: the best of a few step lengths, each half of the one before, and zero."""
    bent = chain.times(move)
    linear, square = (table * bent).sum(), (move * bent).sum() / 2
    lengths = scores.new_tensor([*(2.0**-k for k in range(HALVINGS)), 0.0])
    values = [loss(scores + s * along, y).sum() + s * linear + s * s * square for s in lengths.unbind()]
    best = torch.stack(values).nan_to_num(nan=torch.inf).argmin()
    return lengths.gather(0, best[None])[0]
