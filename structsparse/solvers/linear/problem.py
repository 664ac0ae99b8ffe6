"""The linear problem of `fit_linear` as checked arrays for the kernels: data matrix, targets and penalty blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch

from structsparse.base.errors import UserError
from structsparse.kernels.solvers.linear_problem import LinearProblem, compress
from structsparse.penalties import L1, ElasticNet, GroupLasso, NoPenalty, Penalty, SparseGroupLasso, SquaredL2

LOSSES = ("logistic", "squared")
# the supported penalty classes; subclasses are not supported
KINDS = (L1, ElasticNet, SquaredL2, NoPenalty, GroupLasso, SparseGroupLasso)


class FeatureBlocks(NamedTuple):
    """Blocks of features in a linear problem; block g has the features members[bounds[g]:bounds[g + 1]].

    With the weights w_g of block g, the penalty is cut[g] * |w_g|_1 + reach[g] * |w_g|_2."""

    members: np.ndarray
    bounds: np.ndarray
    cut: np.ndarray
    reach: np.ndarray
    ridge: np.ndarray  # array [features], the coefficient of weight^2 / 2 for each feature


def make_problem(X, y, blocks: FeatureBlocks, loss: str, intercept: bool, quadratic) -> LinearProblem:
    """The linear problem for the kernels, from data, penalty blocks and loss.

    The intercept becomes the last feature, unpenalised and equal to 1 for all items."""
    columns = checked_columns(X)
    items, features = columns.shape
    targets = _checked_targets(y, items, loss)
    if len(blocks.ridge) != features:
        raise UserError(f"the penalty is of {len(blocks.ridge)} features, X has {features}")
    ridge = blocks.ridge + _checked_quadratic(quadratic, features)
    arrays = [columns.data, columns.indices, columns.indptr, *blocks[:4], ridge]
    if intercept:
        ends = columns.indptr[-1] + items, features, features + 1, 0.0, 0.0, 0.0
        ends = [np.ones(items), np.arange(items), *([end] for end in ends)]
        arrays = [np.append(array, end).astype(array.dtype) for array, end in zip(arrays, ends, strict=True)]
    return LinearProblem(*arrays, targets, loss == "logistic")


def make_blocks(penalty: Penalty, features: int, strength=None) -> FeatureBlocks:
    """The penalty of a linear problem as feature blocks; `strength` overrides the strength of the penalty."""
    if type(penalty) not in KINDS:
        names = ", ".join(kind.__name__ for kind in KINDS)
        raise UserError(f"fit_linear does not support {type(penalty).__name__}, expected one of {names}")
    strength = penalty.strength.detach().cpu().numpy() if strength is None else np.array(strength)
    if penalty.groups is None:
        weights = _entry_weights(penalty, features)
        cut, ridge = (strength * share * weights for share in (penalty.mix, 1 - penalty.mix))
        return FeatureBlocks(*_int32(np.arange(features), np.arange(features + 1)), cut, np.zeros(features), ridge)
    return _group_blocks(penalty, features, strength)


def _entry_weights(penalty: Penalty, features: int) -> np.ndarray:
    """The penalty weight of each feature of a linear problem (array [features]), for penalties without groups."""
    if penalty.weights is None:
        return np.ones(features)
    weights = penalty.weights.detach().cpu().double().numpy().reshape(-1)
    if len(weights) not in (1, features):
        raise UserError(f"the penalty has {len(weights)} weights, X has {features} features")
    return np.broadcast_to(weights, features).copy()


def _group_blocks(penalty: SparseGroupLasso, features: int, strength) -> FeatureBlocks:
    """The feature blocks of a group lasso in a linear problem.

    Each penalised group of several features is a block. Every other feature is a block of its own."""
    groups = penalty.groups
    if groups.shape not in ((features,), (features, 1)):
        raise UserError(f"the groups are of {groups.parameter} {tuple(groups.shape)}, X has {features} features")
    ids = groups.ids.cpu().expand(groups.shape).reshape(-1).numpy()  # [features], group of each feature; -1: none
    # the appended last elements are for features in no group, whose group index is -1
    reach = np.append((1 - penalty.mix) * strength * groups.weight.cpu().numpy(), 0.0)
    cut = np.append(np.broadcast_to(penalty.mix * strength, len(groups)), 0.0)
    size = np.append(groups.size.cpu().numpy(), 0)
    bound = ((reach > 0) & (size > 1))[ids]
    label = np.where(bound, ids, len(groups) + np.arange(features))
    members = np.argsort(label, kind="stable")
    label, owner, bound = label[members], ids[members], bound[members]
    first = np.flatnonzero(np.diff(label, prepend=-1))
    owner, bound = owner[first], bound[first]
    cut = np.where(bound, cut[owner], cut[owner] + reach[owner])
    bounds = np.append(first, features)
    return FeatureBlocks(*_int32(members, bounds), cut, np.where(bound, reach[owner], 0.0), np.zeros(features))


def _int32(*arrays):
    """Convert index arrays of a linear problem to int32."""
    return (array.astype(np.int32) for array in arrays)


def shape_of(X) -> tuple[int, ...]:
    """The shape of the data X of a linear problem; an empty tuple if X is not an array."""
    return tuple(getattr(X, "shape", ()))


def checked_columns(X) -> scipy.sparse.csc_array:
    """Check the data matrix X [items, features] of a linear problem, and convert it to sparse columns (CSC).

    The result is float64 with sorted indices, without duplicate entries."""
    X = X.detach().cpu().numpy() if isinstance(X, torch.Tensor) else X
    shape = shape_of(X)
    if len(shape) != 2 or not shape[0]:
        raise UserError(f"X is {type(X).__name__} {shape}, expected a matrix [items, features] with at least one item")
    if X.dtype.kind not in "fiub":
        raise UserError(f"X holds {X.dtype}, expected real numbers")
    if scipy.sparse.issparse(X):
        columns = scipy.sparse.csc_array(X)
        if not columns.has_canonical_format:
            columns = columns.copy()
            columns.sum_duplicates()
    else:
        columns = scipy.sparse.csc_array(compress(np.asarray(X, dtype=np.float64)), shape=shape)
    values = columns.data.astype(np.float64, copy=False)
    if not np.isfinite(values).all():
        place = int(np.flatnonzero(~np.isfinite(values))[0])
        feature = int(np.searchsorted(columns.indptr, place, "right")) - 1
        raise UserError(f"X is {values[place]} at item {columns.indices[place]}, feature {feature}; expected a number")
    # int32 indices if possible, whatever the type in X: numba compiles the kernels anew for each index type
    kind = np.int32 if len(values) + shape[0] < 2**31 else np.int64
    places = (index.astype(kind, copy=False) for index in (columns.indices, columns.indptr))
    return scipy.sparse.csc_array((values, *places), shape=shape)


def _checked_targets(y, items: int, loss: str) -> np.ndarray:
    """Check that the targets of a linear problem fit the loss; returns the targets as float64 [items]."""
    if loss not in LOSSES:
        raise UserError(f"unknown loss {loss!r}, expected {' or '.join(LOSSES)}")
    y = numbers(y, "y", items, "one for each item")
    wrong = np.flatnonzero(np.abs(y) != 1)
    if loss == "logistic" and len(wrong):
        raise UserError(f"y is {y[wrong[0]]:g} at item {wrong[0]}, expected -1 or 1 for the logistic loss")
    return y


def _checked_quadratic(quadratic, features: int) -> np.ndarray:
    """Check the ridge coefficients of a linear problem; returns float64 [features], zeros for None."""
    if quadratic is None:
        return np.zeros(features)
    quadratic = numbers(quadratic, "quadratic", features, "one for each feature")
    if (quadratic < 0).any():
        raise UserError(f"quadratic is {quadratic.min():g} at feature {quadratic.argmin()}, expected at least 0")
    return quadratic


def numbers(values, name: str, length: int, what: str) -> np.ndarray:
    """Check that values of a linear problem are finite real numbers; returns the values as float64 [length].

    In error messages, `name` is the name of the values, and `what` says what is expected."""
    values = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if values.shape != (length,):
        raise UserError(f"{name} has shape {values.shape}, expected ({length},): {what}")
    if values.dtype.kind not in "fiub":
        raise UserError(f"{name} holds {values.dtype}, expected real numbers")
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        place = int(np.flatnonzero(~np.isfinite(values))[0])
        raise UserError(f"{name} is {values[place]} at {place}, expected finite numbers")
    return values
