"""A stage of a recipe: the description from the configuration, the objective, the record of the fit, and the result.

A recipe is a list of stages, for example one that selects groups and one that refits these groups. Each stage starts
from the features that survived the previous stage."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import lightning
import numpy as np
import torch
from torch import Tensor, nn

from structsparse.penalties import Penalty
from structsparse.solvers.base import Proof
from structsparse.training.certificate import Certificate
from structsparse.training.data import Data
from structsparse.training.terms import Term
from structsparse.weights.notes import notes_of

# penalty terms of a stage (`reg`, then those of `also`), each with its penalties by parameter name
TermPenalties = list[tuple[Term, dict[str, Penalty]]]


@dataclass
class Stage:
    """A stage of a recipe: model, loss, solver, penalty terms, batch size, seed, and when training ends."""

    name: str
    scorer: Callable[..., nn.Module]
    loss: Callable[..., nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    final_lr: float
    terms: Sequence[Term]
    every: int
    warmup: int
    budget: int | None
    freeze: int | None
    reweight: Mapping[str, float] | None
    admm: Mapping[str, float] | None
    batch: int | None
    seed: int
    choose: str
    warm: bool
    survivors: bool
    patience: int | None
    trainer: Callable[..., lightning.Trainer]
    options: Mapping[str, object]  # the options by which stages of two runs are compared
    proven: bool = True  # whether to compute a certificate; if not, only the objective

    def fingerprint(self, *identity) -> str:
        """The fingerprint of a stage: a hash of the options and of `identity`.

        `identity` (arrays or JSON values) identifies the data."""
        digest = blake2b(digest_size=8)
        strengths = [term.strength for term in self.terms]  # on a regularization path, `options` has other strengths
        for part in (self.name, self.options, strengths, *identity):
            plain = isinstance(part, np.ndarray)
            digest.update(part.tobytes() if plain else json.dumps(part, sort_keys=True, default=str).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Objective:
    """The objective of a stage: the mean loss of a module on train plus a penalty on each penalised parameter."""

    stage: Stage
    data: Data
    module: lightning.LightningModule
    terms: TermPenalties
    # masks of the entries that may be nonzero, by parameter name; without a mask, all entries may be nonzero
    support: Mapping[str, Tensor]

    @property
    def penalties(self) -> dict[str, Penalty]:
        """The objective of a stage: the penalty of each parameter by name: first those of `reg`, then of `also`."""
        return {name: penalty for _, penalties in self.terms for name, penalty in penalties.items()}

    @property
    def main(self) -> dict[str, Penalty]:
        """The objective of a stage: the penalties that `reg` configures, to which a budget and ADMM apply."""
        return self.terms[0][1]


@dataclass(frozen=True)
class Strengths:
    """The absolute strengths of the penalty terms of a stage: first `reg`, then each entry of `also`.

    A strength is None if it is not known, or if nothing is penalised."""

    critical: float | None = None  # smallest strength at which all parameters of the first term are zero
    first: float | None = None  # strength of the first term; after training, the final strength
    terms: Mapping[str, float] = field(default_factory=dict)  # initial strengths by term name


@dataclass(frozen=True)
class FitRecord:
    """The record of the fit of a stage: time, epochs, strengths and tables.

    A resumed run reads the record from `finished.json`."""

    seconds: float = 0.0
    epochs: int = 0
    strengths: Mapping[str, float] = field(default_factory=dict)  # strength at the end of training, by parameter name
    cuts: Sequence[tuple] = ()  # (step, parameter, strength) for each time that a budget made groups zero
    counts: Sequence[tuple] = ()  # after each block of an online solver: (epoch, step, count of rows, count of weights)
    outer: Sequence[tuple] = ()  # (epoch, primal, dual, flips, living) of each outer iteration of ADMM
    memory: Sequence[tuple] = ()  # (epoch, objective, noise, shape) of each update of a penalty with memory
    proof: Proof = field(default_factory=Proof)  # figures that the solver has proved about its last model

    @classmethod
    def of(cls, saved: Mapping) -> FitRecord:
        """The record of the fit of a stage, from the JSON of `dataclasses.asdict`."""
        return cls(**{**saved, "proof": Proof(**saved["proof"])})


@dataclass(frozen=True)
class StageFigures:
    """The figures of a finished stage: build time, strengths, record of the fit, and certificate."""

    stage: str = ""
    seconds_build: float = 0.0
    strengths: Strengths = field(default_factory=Strengths)
    residual_at_zero: float | None = None  # ||W - prox(W - gradient)|| at weights W = 0, at the final strengths
    record: FitRecord = field(default_factory=FitRecord)
    certificate: Certificate = field(default_factory=Certificate)


class GroupCount(NamedTuple):
    """The group count of a stage: the number of all groups, and of living groups (with a nonzero weight)."""

    groups: int
    groups_alive: int


@dataclass
class StageResult:
    """The result of a stage: the data, the trained module, its penalties, and the figures of the fit."""

    data: Data
    module: lightning.LightningModule
    penalties: dict[str, Penalty]  # by parameter name; parameters that `reg` penalises come first
    figures: StageFigures = field(default_factory=StageFigures)
    at_zero: dict[str, Tensor] = field(default_factory=dict)  # gradient of mean loss at zero weights, by parameter
    at_end: dict[str, Tensor] = field(default_factory=dict)  # gradient of mean loss at final weights, by parameter
    support: dict[str, Tensor] = field(default_factory=dict)  # by parameter name: masks of entries that may be nonzero

    @property
    def weights(self) -> dict[str, Tensor]:
        """The result of a stage: the parameters of the module by name, detached."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    def survivors(self) -> dict[str, Tensor]:
        """The result of a stage: a mask of the surviving entries of each penalised parameter.

        Usually these are the entries of living groups or, without groups, the nonzero entries."""
        weights, masks = dict(self.module.named_parameters()), {}
        for name, penalty in self.penalties.items():
            growing = notes_of(weights[name]).grows
            masks[name] = penalty.survivors(weights[name].detach()) if growing is None else growing.spread(penalty)
        return masks

    def living_groups(self) -> dict[str, Tensor]:
        """The result of a stage: masks of the groups with a nonzero weight (bool arrays over groups).

        There is one mask for each penalised parameter with groups, by parameter name."""
        return living_groups(self.penalties, self.weights)

    def group_count(self) -> GroupCount | None:
        """The result of a stage: the number of groups and of living groups over all penalised parameters.

        The result is None if there are no groups."""
        masks = self.living_groups().values()
        return (
            GroupCount(sum(mask.numel() for mask in masks), sum(int(mask.sum()) for mask in masks)) if masks else None
        )

    def score(self, part: str) -> dict[str, object]:
        """The result of a stage: the scores of the module on a part of the corpus, dev or test."""
        return self.module.evaluate(self.data.batches(part, 256)).result()

    def nonzero_weights(self) -> int:
        """The result of a stage: the number of nonzero weights in penalised parameters."""
        weights = self.weights
        return sum(int((weights[name] != 0).sum()) for name in self.penalties)


@torch.no_grad()
def living_groups(penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stage: for each penalised parameter with groups, by name, the mask of the groups with a nonzero weight."""
    return {name: p.groups.alive(weights[name]) for name, p in penalties.items() if p.groups is not None}


def selecting_stage(results: Sequence[StageResult]) -> StageResult:
    """The result of the selecting stage, which is the last stage whose penalty has groups.

    If no penalty has groups, it is the first stage."""
    grouped = [r for r in results if any(penalty.groups is not None for penalty in r.penalties.values())]
    return grouped[-1] if grouped else results[0]
