"""Planted drift: a response that depends on dead, constant and drifting features, whose classes are known."""

from __future__ import annotations

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.dated import CONSTANT, DEAD, DRIFTING, DatedCorpus, HeldOut

CONSTANTS = 0.2, 0.6  # range of the absolute weights of constant features
START = 0.3  # standard deviation of the first weights of drifting features


def planted_drift(
    seed: int,
    features: int,
    constant: int,
    drifting: int,
    periods: int,
    items: int,
    test: int,
    step: float,
    noise: float,
) -> DatedCorpus:
    """Draw a planted corpus of drift: `items` rows in each of `periods` periods, then `test` rows in one more.

    Features are standard normal numbers. The weights of drifting features are random walks whose steps have the
    standard deviation `step`. All features that are neither constant nor drifting are dead."""
    sizes = {"features": features, "periods": periods, "items": items, "test": test}
    for name, value in sizes.items():
        if type(value) is not int or value < (2 if name == "periods" else 1):
            raise UserError(f"data.planted.{name} is {value}, expected a number of at least {1 + (name == 'periods')}")
    if min(constant, drifting) < 0 or constant + drifting > features:
        raise UserError(f"data.planted: {constant} constant and {drifting} drifting of {features} features")
    if not (step >= 0 and noise > 0):
        raise UserError(f"data.planted: step={step} and noise={noise}, expected numbers of at least 0 and above 0")
    rng = np.random.default_rng(seed)
    weights = np.zeros((periods + 1, features))
    weights[:, :constant] = rng.choice([-1, 1], constant) * rng.uniform(*CONSTANTS, constant)
    moves = np.concatenate([rng.normal(0, START, (1, drifting)), rng.normal(0, step, (periods, drifting))])
    weights[:, constant : constant + drifting] = np.cumsum(moves, axis=0)
    counts = [items] * periods + [test]
    x, y = [], []
    for t, count in enumerate(counts):
        x.append(rng.normal(size=(count, features)))
        y.append(x[-1] @ weights[t] + rng.normal(size=count) * noise)
    names = tuple(f"x{k:0{len(str(features - 1))}d}" for k in range(features))
    kinds = np.repeat([CONSTANT, DRIFTING, DEAD], [constant, drifting, features - constant - drifting])
    period = np.repeat(np.arange(periods + 1), counts)
    return DatedCorpus(
        name="planted_drift",
        names=[f"planted:{k}" for k in range(len(period))],
        period=period,
        periods=tuple(str(t) for t in range(1, periods + 2)),
        held_out=HeldOut(),
        response=np.concatenate(y),
        effects=names,
        values=np.concatenate(x),
        truth=dict(zip(names, kinds.tolist(), strict=True)),
    )
