"""Mixture of a trained n-gram model with Kneser-Ney, in which dev can choose the share of Kneser-Ney.

The mixture is log-linear:

    p(word | context) is proportional to p_trained(word | context)^(1 - share) * p_kneser_ney(word | context)^share

Kneser-Ney can be written as a log-linear n-gram model on the same trie of contexts, see `KneserNey.increments`. The
mixture is therefore a log-linear n-gram model with an exact normaliser. Its weights are (1 - share) * weights of the
trained model + share * weights of Kneser-Ney."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from structsparse.base.errors import UserError
from structsparse.tasks.lm.contexts import Places
from structsparse.tasks.lm.kneser_ney import KneserNey
from structsparse.tasks.lm.model import NgramModel

DEV = "dev"  # value of model.kneser_ney: dev chooses the share
PRECISION = 1e-3  # maximum error of the share that dev chooses


def check_share(share: float | str) -> None:
    """Mixture with Kneser-Ney: raise an error if the option model.kneser_ney is neither `dev` nor a share."""
    if share != DEV and not (type(share) in (int, float) and 0 <= share <= 1):
        raise UserError(f"model.kneser_ney is {share}; expected a share from 0 to 1, or {DEV}")


class Mixture:
    """Mixture of a trained n-gram model with modified Kneser-Ney of the same order, at any share of Kneser-Ney."""

    @torch.no_grad()
    def __init__(self, model: NgramModel) -> None:
        """Prepare mixtures with a trained n-gram model; its tree must be a trie of contexts, not collapsed."""
        self.tree, self.structure = model.tree, model.structure.cpu()
        self.trained = model().dense().cpu()
        self.kneser_ney = torch.from_numpy(KneserNey(model.tree).increments)

    def increments(self, share: float) -> torch.Tensor:
        """Mixture with Kneser-Ney: the score increment of each pair (context, next word), float64 [entries]."""
        return torch.lerp(self.trained, self.kneser_ney, float(share))

    def model(self, share: float) -> NgramModel:
        """Mixture with Kneser-Ney: the mixed n-gram model with the given share of Kneser-Ney."""
        model = NgramModel(self.tree).double()
        with torch.no_grad():
            model.table.copy_(self.increments(share))
        return model

    def chosen_share(self, dev: Places) -> float:
        """Mixture with Kneser-Ney: the share with the least loss on dev.

        `dev` has the places of the scored words of dev in the trie. The loss is convex in the share, because scores are
        linear in it."""
        node, entry = (torch.from_numpy(np.asarray(place)).long() for place in dev)
        sums = [self.structure.path_sums(increments) for increments in (self.trained, self.kneser_ney)]

        def loss(share: float) -> float:
            """Mixture with Kneser-Ney: the mean of -log p over the words of dev."""
            scores = torch.lerp(*sums, float(share))
            return float((self.structure.log_partition(scores)[node] - scores[entry]).mean())

        inner = minimize_scalar(loss, bounds=(0, 1), method="bounded", options={"xatol": PRECISION}).x
        return min((0.0, float(inner), 1.0), key=loss)
