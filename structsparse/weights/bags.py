"""`bag_sum`: for each token, the sum of the weight-table rows of its active features, and the gradient of the sum.

A bag is the list of table rows (active features) of a token. The table's gradient of the loss has two forms:

* dense, for any torch optimizer
* factored into bags and residuals, for row solvers such as `solvers.sgd`; the dense gradient is the product of both

A residual is the gradient of the loss with respect to the sum of a bag. The factored form is much smaller."""

from __future__ import annotations

import numba
import torch
import torch.nn.functional as F
from torch import Tensor

from structsparse.kernels.weights import bags as kernels
from structsparse.kernels.weights import scaled as scaled_kernels
from structsparse.weights.notes import BagGradient, RowScale, notes_of


def bag_sum(table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    """The sum of the weight-table rows in each bag, as a tensor [tokens, labels].

    A bag has the active rows of a token, in ascending order. A solver may set two notes on the table (`notes_of`):

    * `pending`, a list: backward appends a BagGradient to it instead of setting `table.grad`. It is ignored with
      torch.distributed.
    * `scale`: the rows are multiplied by scale factors, and the gradient is with respect to the scaled rows."""
    notes = notes_of(table)
    pending, scale = notes.pending, notes.scale
    if torch.distributed.is_initialized():
        pending = None
    if pending is None and not _on_cpu(table):
        return F.embedding_bag(ids, table, offsets, mode="sum", include_last_offset=True)
    return _BagSum.apply(table, ids, offsets, pending, scale)


class _BagSum(torch.autograd.Function):
    """The autograd function of `bag_sum`, the sum of the weight-table rows in each bag."""

    @staticmethod
    def forward(
        ctx, table: Tensor, ids: Tensor, offsets: Tensor, pending: list[BagGradient] | None, scale: RowScale | None
    ) -> Tensor:
        """The sum of the weight-table rows in each bag, by the compiled kernels on the CPU."""
        ctx.save_for_backward(ids, offsets, table)
        ctx.pending = pending
        if _on_cpu(table):
            sums = table.new_zeros(len(offsets) - 1, table.shape[1])
            arrays, threads = (ids.numpy(), offsets.numpy(), table.numpy()), numba.get_num_threads()
            if scale is None:
                kernels.total(*arrays, sums.numpy(), threads)
            else:
                scaled_kernels.total(*arrays, scale.factors.numpy(), scale.offsets.numpy(), sums.numpy(), threads)
            return sums
        return F.embedding_bag(ids, table, offsets, mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx, residuals: Tensor):
        """The gradient of bag sums with respect to the table: dense, or as bags and residuals in `pending`.

        A residual is the gradient with respect to the sum of a bag (list of table rows)."""
        ids, offsets, table = ctx.saved_tensors
        gradient = BagGradient(ids, offsets, residuals.contiguous())
        if ctx.pending is None:
            return subtract_(torch.zeros_like(table), gradient, -1.0), None, None, None, None
        ctx.pending.append(gradient)
        return None, None, None, None, None


def subtract_(table: Tensor, gradient: BagGradient, rate: float) -> Tensor:
    """SGD step of a weight table with a factored gradient of bag sums: table -= rate * gradient.

    The factors are bags (lists of table rows), and a gradient vector for each bag."""
    ids, offsets, residuals = gradient
    if _on_cpu(table):
        arrays = ids.numpy(), offsets.numpy(), residuals.numpy(), table.detach().numpy()
        kernels.subtract(*arrays, table.detach().numpy().dtype.type(rate), kernels.owners(arrays[0]))
        return table
    rows, sums = row_sums(gradient)
    return table.index_add_(0, rows, sums, alpha=-rate)


def adagrad_(table: Tensor, squares: Tensor, gradient: BagGradient, rate: float, eps: float, slot: Tensor) -> Tensor:
    """AdaGrad step of a weight table with a factored gradient of bag sums.

    The factors are bags (lists of table rows), and a gradient vector for each bag. squares += gradient^2; table -= rate
    * gradient / (sqrt(squares) + eps). Only the rows in the bags change."""
    ids, offsets, residuals = gradient
    if _on_cpu(table):
        weights = table.detach().numpy()
        number = weights.dtype.type
        bounds = kernels.owners(ids.numpy())
        arrays = ids.numpy(), offsets.numpy(), residuals.numpy(), weights, squares.numpy()
        kernels.adagrad(*arrays, number(rate), number(eps), bounds, slot.numpy())
        return table
    rows, sums = row_sums(gradient)
    squares.index_add_(0, rows, sums * sums)
    return table.index_add_(0, rows, sums / (squares[rows].sqrt() + eps), alpha=-rate)


def row_sums(gradient: BagGradient) -> tuple[Tensor, Tensor]:
    """The table rows in the bags of a factored gradient, and for each row the sum of its residuals.

    A bag is a list of rows, and its residual is its gradient vector. Returns two tensors: rows [occurrences] and sums
    [occurrences, labels]. Their length is the number of row occurrences in all bags, so that it does not depend on how
    many rows are distinct. Each distinct row comes once, in ascending order. The remaining elements repeat the last
    row, with a sum of zero."""
    ids, offsets, residuals = gradient
    occurrences = ids.shape[0]
    # [occurrences], the token (bag) of each row occurrence
    token_of = torch.repeat_interleave(offsets.diff(), output_size=occurrences)
    rows, order = torch.sort(ids, stable=True)
    first = torch.ones_like(rows, dtype=torch.bool)
    first[1:] = rows[1:] != rows[:-1]
    position = torch.arange(occurrences, device=ids.device)
    begin = torch.full_like(position, occurrences).scatter_reduce(0, first.cumsum(0) - 1, position, "amin")
    sums = F.embedding_bag(token_of[order], residuals, begin, mode="sum")
    return rows[begin.clamp(max=max(occurrences - 1, 0))].long(), sums


def concatenated(gradients: list[BagGradient]) -> BagGradient:
    """The factored gradients of several backward passes as one factored gradient of bag sums.

    The factors are bags (lists of table rows) and residuals (one gradient vector per bag)."""
    if len(gradients) == 1:
        return gradients[0]
    ids = torch.cat([g.ids for g in gradients])
    shifts = [0, *torch.tensor([g.ids.shape[0] for g in gradients]).cumsum(0).tolist()]
    ends = [g.offsets[1:] + shift for g, shift in zip(gradients, shifts, strict=False)]
    offsets = torch.cat([gradients[0].offsets[:1], *ends])
    return BagGradient(ids, offsets, torch.cat([g.residuals for g in gradients]))


def _on_cpu(table: Tensor) -> bool:
    """Whether the compiled kernels of bag sums support the device, layout and dtype of a table."""
    return table.device.type == "cpu" and table.is_contiguous() and table.dtype in (torch.float32, torch.float64)
