"""Perceptron and MIRA, one sentence after another in compiled passes.

To Lightning a step is a block of sentences, after which come the penalties. Within it the weights move sentence by
sentence, so nothing here can be shared by several devices; `solver=sgd` and `solver=mira` with `batch=1` do the same,
step by step, anywhere.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from structsparse.errors import UserError
from structsparse.growing import GrowingScorer
from structsparse.kernels import online as kernels
from structsparse.losses import Hinge, Perceptron
from structsparse.models import SparseScorer, Tagger
from structsparse.tasks.batches import Passage

CHAIN = ("transitions", "start", "end")


class Online(Optimizer):
    """`sweep` goes through a block of sentences; `step` only calls the closure that does so.

    With `average` the weights between epochs are the mean of those after each sentence, proxes included. Where proxes
    have made zeros, the mean has those of the last weights: else every weight that has ever lived would live in it."""

    evaluates = True  # a sweep moves the weights itself: none may accumulate
    passive = False
    cap = math.inf

    def __init__(self, params, lr: float, decay: float, average: bool) -> None:
        if not lr > 0:
            raise UserError(f"solver.lr is {lr}; it must be positive")
        if not 0 <= decay <= 1:
            raise UserError(f"solver.decay is {decay}; it must be from 0 to 1")
        super().__init__(params, {"lr": lr, "taken": 0.0, "clock": 0})
        self.decay, self.average = decay, average
        self.shrinking: dict[Tensor, Tensor] = {}  # weights before a prox
        self.scratch: kernels.Scratch | None = None
        self.begins, self.longest, self.most = np.empty(0, np.int64), 0, 0  # of the corpus seen last, see _scratch
        self.counted = False  # whether `living` still holds
        self.living = 0  # weights of features that are not zero, after the last sweep
        self.rows = 0  # that are in memory

    @torch.no_grad()
    def step(self, closure=None):
        if closure is None:
            raise UserError(f"{type(self).__name__} goes through sentences: call step(closure) with what calls sweep")
        return closure()

    def rate(self, group: dict) -> float:
        """The sum of the steps of the last block."""
        return group["taken"]

    def metric(self, group: dict, parameter: Tensor) -> float:
        """Step over rate."""
        return 1.0

    def place_(self, group: dict, parameter: Tensor) -> None:
        """A prox follows: what it will take off belongs to the mean, and living weights must be counted anew."""
        self.counted = False
        if self.average:
            self.shrinking[parameter] = parameter.detach().clone()

    # --- a block of sentences

    @torch.no_grad()
    def sweep(self, tagger: Tagger, loss, passage: Passage) -> Tensor:
        """Go through the sentences of a block, in order; the mean of their losses before each step."""
        self.check(tagger, loss)
        self.resume()  # after a validation within an epoch
        scorer, group = tagger.scorer, self.param_groups[0]
        growing = isinstance(scorer, GrowingScorer)
        self._note_prox()
        if growing:
            self._release(scorer)
        corpus = kernels.Corpus(*(getattr(passage, name).numpy() for name in kernels.Corpus._fields))
        order = passage.sentences.numpy()
        rate = group["lr"] * (passage.epoch + 1) ** -self.decay
        rule = kernels.Rule(float(getattr(loss, "cost", 0.0)), rate, self.cap, self.passive, self.average)
        if not self.counted:
            self.living, self.counted = int(torch.count_nonzero(scorer.table)), True
        done, losses, taken = 0, 0.0, 0.0
        while True:
            rows = self._rows(scorer, corpus, order, done)
            state = rows, scorer.held if growing else 0, self._labels(tagger), rule
            done, held, *sums = kernels.sweep(corpus, order, done, *state, self._scratch(corpus, rows), group["clock"])
            losses, taken, self.living = losses + sums[0], taken + sums[1], self.living + sums[2]
            if growing:
                scorer.hold(held)
            if done == len(order):
                break
        for each in self.param_groups:
            each["taken"] = taken
            each["clock"] += done
        self.rows = len(scorer.table)
        return torch.tensor(losses / len(order), dtype=torch.float64)

    def state_dict(self) -> dict:
        self._note_prox()
        return super().state_dict()

    def _release(self, scorer: GrowingScorer) -> None:
        """Rows of zeros go. For the mean they are forgotten, so without a prox they stay: they are zero by chance."""
        state = self.state[scorer.table]
        if self.average and not state.pop("killed", False):
            return
        kept = scorer.release()
        if kept is not None and "past" in state:
            state["past"] = state["past"][kept]

    def check(self, tagger: Tagger, loss) -> None:
        """Refuse what it cannot move."""
        name = type(self).__name__
        if type(tagger.scorer) not in (SparseScorer, GrowingScorer):
            raise UserError(f"{name} moves tables of sparse features (model=sparse or growing), not {tagger.scorer}")
        if tagger.edges is not None:
            raise UserError(f"{name} goes from sentence to sentence and knows no features.edges; choose another solver")
        if type(loss) not in (Hinge, Perceptron):
            raise UserError(f"{name} follows the best rival: take loss=perceptron or hinge, not {type(loss).__name__}")
        if tagger.transitions.device.type != "cpu":
            raise UserError(f"{name} goes from sentence to sentence on the CPU; elsewhere take solver=sgd or mira")
        if tagger.transitions.dtype not in (torch.float32, torch.float64):
            kind = str(tagger.transitions.dtype).removeprefix("torch.")
            raise UserError(f"{name} moves float32 or float64 weights, not {kind} (trainer.precision)")

    def _rows(self, scorer, corpus: kernels.Corpus, order: np.ndarray, done: int) -> kernels.Rows:
        """The weights, in a growing table with room for the next sentence at least."""
        if isinstance(scorer, SparseScorer):
            weights, found = scorer.table.detach(), (np.empty(0, np.int32), np.empty(0, np.int64))
        else:
            first, last = corpus.begins[order[done]], corpus.begins[order[done] + 1]
            weights, features = scorer.reserve(int(corpus.offsets[last] - corpus.offsets[first]))
            found = scorer.slots.numpy(), features.numpy()
        past = self._past(scorer.table, len(weights)) if self.average else weights[:0]
        return kernels.Rows(weights.numpy(), past.numpy(), *found)

    def _labels(self, tagger: Tagger) -> kernels.Labels:
        own = [getattr(tagger, name) for name in CHAIN]
        past = [self._past(p, len(p)) if self.average else p.detach()[:0] for p in own]
        return kernels.Labels(*(tensor.detach().numpy() for tensor in (*own, *past)))

    def _scratch(self, corpus: kernels.Corpus, rows: kernels.Rows) -> kernels.Scratch:
        if self.begins.ctypes.data != corpus.begins.ctypes.data:  # being held, no other can come to lie where it does
            self.begins, self.longest = corpus.begins, int(np.diff(corpus.begins).max())
            self.most = int(np.diff(corpus.offsets[corpus.begins]).max()) if self.passive else 0
        longest, most = self.longest, self.most
        known, labels = self.scratch, rows.weights.shape[1]
        if known is None or (len(known.rival), len(known.moving)) != (longest, most):
            width, kind = -(-labels // kernels.LANES) * kernels.LANES, rows.weights.dtype
            known = kernels.Scratch(
                emissions=np.empty((longest, width), kind),
                scores=np.empty((longest, width), kind),
                arrivals=np.empty(width, kind),
                transitions=np.empty((width, width), kind),
                rival=np.empty(longest, np.int64),
                counts=np.empty((most, labels), np.int32),
                moving=np.empty(most, np.int64),
                place=np.empty(0, np.int32),
                pairs=np.zeros((labels, labels), np.int32),
            )
        if self.passive and len(known.place) < len(rows.weights):
            known = known._replace(place=np.full(len(rows.weights), -1, np.int32))
        self.scratch = known
        return known

    # --- the mean

    def _past(self, parameter: Tensor, room: int) -> Tensor:
        """The sum of moves times the number of sentences before each: [room, ...]"""
        state = self.state[parameter]
        past = state.get("past")
        if past is None or len(past) < room:
            state["past"] = parameter.new_zeros(room, *parameter.shape[1:])
            if past is not None:
                state["past"][: len(past)] = past
        return state["past"]

    def _note_prox(self) -> None:
        """What proxes have taken off since the last block was a move, too."""
        clock = self.param_groups[0]["clock"]
        for parameter, before in self.shrinking.items():
            state, move = self.state[parameter], parameter.detach() - before
            if move.any():
                state["shrunk"] = state["killed"] = True
            if "past" in state:
                state["past"][: len(move)].add_(move, alpha=clock)
        self.shrinking = {}

    @torch.no_grad()
    def take_mean(self) -> None:
        """The weights become their mean so far, until `resume`."""
        self._note_prox()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state.get(parameter, {})
                if "past" not in state or "now" in state or not group["clock"]:
                    continue
                now = state["now"] = parameter.detach()
                mean = now - state["past"][: len(now)] / group["clock"]
                if state.get("shrunk"):
                    mean[now == 0] = 0.0
                parameter.data = mean

    @torch.no_grad()
    def resume(self) -> None:
        """The weights are again what they were before `take_mean`."""
        for parameter, state in self.state.items():
            if "now" in state:
                parameter.data = state.pop("now")


class OnlinePerceptron(Online):
    """w += rate * (features of the gold labels - those of the best rival), rate = lr / epoch^decay"""

    def __init__(self, params, lr: float = 1.0, decay: float = 0.5, average: bool = False) -> None:
        super().__init__(params, lr, decay, average)


class OnlineMIRA(Online):
    """w += lr * min(cap, loss / squared length) * (features of the gold labels - those of the best rival)"""

    passive = True

    def __init__(self, params, lr: float = 1.0, cap: float = 1.0, average: bool = True) -> None:
        if not cap > 0:
            raise UserError(f"solver.cap is {cap}; it must be positive")
        super().__init__(params, lr, 0.0, average)
        self.cap = float(cap)
