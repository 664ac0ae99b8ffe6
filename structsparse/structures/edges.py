"""Edge chain structure: linear chains where each listed pair of neighbouring labels has a score at every token."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError
from structsparse.kernels.structures import edges as kernels
from structsparse.structures.base import Structure


class EdgeScores(NamedTuple):
    """Edge chain structure: the scores of an `EdgeChain`; minus infinity forbids a label or a step.

    A step is a listed pair of neighbouring labels."""

    emissions: Tensor  # [batch, time, labels]: score of each label at each token
    edges: Tensor  # [all tokens, steps]: score of each step at each token; ignored at first tokens
    transitions: Tensor  # [steps]: score of each step, the same at all tokens
    start: Tensor  # [labels]: score of each label at the first token
    end: Tensor  # [labels]: score of each label at the last token


class EdgeChain(nn.Module, Structure):
    """Edge chain structure of label sequences y_1 ... y_n over n tokens, restricted to listed label pairs.

    A step is a listed pair of neighbouring labels. The score of a label sequence is

        start[y_1] + sum_t emissions[t, y_t] + sum_{t>1} (transitions[k_t] + edges[t, k_t]) + end[y_n],

    where k_t is the index of the step (y_{t-1}, y_t). A sequence with an unlisted label pair scores minus infinity.

    `steps` int64 [2, steps] has the first and the second label of each step, sorted by second label, then by first
    label. Lengths int64 [batch] are the token counts of the sentences, at least 1. `log_partition` and `score` return
    float64. The compiled kernels process float32 and float64 scores on the CPU. Torch operations process all
    other scores."""

    def __init__(self, steps: Tensor, labels: int) -> None:
        super().__init__()
        number = steps[1] * labels + steps[0]
        if not bool((number[1:] > number[:-1]).all()) or int(steps.max()) >= labels or int(steps.min()) < 0:
            raise UserError(f"steps of {labels} labels must ascend by their second, then their first label")
        order = torch.full((labels * labels,), -1).index_copy(0, number, torch.arange(len(number)))
        self.labels = labels
        self.register_buffer("origins", steps[0].contiguous(), persistent=False)  # [steps]: first label of each step
        self.register_buffer("targets", steps[1].contiguous(), persistent=False)  # [steps]: second label of each step
        arrivals = torch.searchsorted(self.targets, torch.arange(labels + 1))
        # [labels + 1], index of the first step into each label
        self.register_buffer("arrivals", arrivals, persistent=False)
        # [labels from, labels to], index of the step for each label pair; -1 if the pair is not listed
        self.register_buffer("number", order.view(labels, labels).T.contiguous(), persistent=False)

    def log_partition(self, scores: EdgeScores, lengths: Tensor) -> Tensor:  # shape [batch]
        """Edge chain structure: the log-partition, the log of the sum of exp(score) over label sequences.

        The gradient with respect to the scores is the expected count of each label and step."""
        self._check(scores, lengths)
        return _LogPartition.apply(self._route(scores), self._step_list(), lengths, *scores)

    @torch.no_grad()
    def best(self, scores: EdgeScores, lengths: Tensor) -> Tensor:  # shape [batch, time]
        """Edge chain structure: the labels of the best sequence (Viterbi), 0 at padding.

        Ties go to the lowest label index at the last token, then at the token before, and so on."""
        self._check(scores, lengths)
        return self._route(scores).best(scores, self._step_list(), lengths)

    def score(self, scores: EdgeScores, gold: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Edge chain structure: the score of the label sequence `gold` of each sentence.

        The score is minus infinity if a pair of neighbouring labels is not listed."""
        self._check(scores, lengths)
        emissions, edges, transitions, start, end = scores
        inside = _inside(lengths, gold.shape[1])
        nodes = emissions.gather(2, gold.unsqueeze(2)).squeeze(2).double()  # shape [batch, time]
        taken = self.number[gold[:, :-1], gold[:, 1:]]  # shape [batch, time - 1]
        listed = taken.clamp_min(0)
        rows = _rows(lengths, gold.shape[1], len(edges))[:, 1:]
        steps = edges[rows, listed].double() + transitions.double()[listed]
        steps = torch.where(taken >= 0, steps, -torch.inf)
        inner = torch.where(inside, nodes, 0.0).sum(1) + torch.where(inside[:, 1:], steps, 0.0).sum(1)
        last = gold.gather(1, lengths.unsqueeze(1) - 1).squeeze(1)
        return inner + start.double()[gold[:, 0]] + end.double()[last]

    @torch.no_grad()
    def marginals(self, scores: EdgeScores, lengths: Tensor) -> Tensor:  # shape [batch, time, labels]
        """Edge chain structure: the marginal probability of each label at each token, zero at padding."""
        self._check(scores, lengths)
        route, step_list = self._route(scores), self._step_list()
        totals, memory = route.sum(scores, step_list, lengths)
        return route.expect(scores, step_list, lengths, memory, torch.ones_like(totals)).emissions

    def add_cost(self, scores: EdgeScores, gold: Tensor, lengths: Tensor, cost: float = 1.0) -> EdgeScores:
        """Edge chain structure: the scores with `cost` added to the emissions of every wrong label.

        The score of a label sequence rises by `cost` times the number of wrong labels."""
        labels = torch.arange(self.labels, device=gold.device)
        wrong = (labels != gold.unsqueeze(2)).to(scores.emissions.dtype)  # shape [batch, time, labels]
        return scores._replace(emissions=scores.emissions + cost * wrong)

    def _step_list(self) -> tuple[Tensor, Tensor, Tensor]:
        """Edge chain structure: the listed steps (label pairs) as tensors for the kernels.

        Returns the first label of each step, the second label of each step, and the index of the first step into each
        label."""
        return self.origins, self.targets, self.arrivals

    def _route(self, scores: EdgeScores):
        """Edge chain structure: the implementation for these scores, `NativeRoute` (compiled) or `TorchRoute`."""
        kinds = {score.dtype for score in scores[:2]}
        native = scores.edges.device.type == "cpu" and kinds in ({torch.float32}, {torch.float64})
        return NativeRoute if native else TorchRoute

    def _check(self, scores: EdgeScores, lengths: Tensor) -> None:
        """Edge chain structure: check the shapes of the scores, and the lengths of the sentences."""
        batch, steps, labels = len(lengths), len(self.origins), self.labels
        tokens, time = scores.edges.shape[0], scores.emissions.shape[1]
        expected = (batch, time, labels), (tokens, steps), (steps,), (labels,), (labels,)
        for name, score, shape in zip(EdgeScores._fields, scores, expected, strict=True):
            if tuple(score.shape) != shape:
                raise UserError(f"{name} have shape {tuple(score.shape)}, expected {shape}")
        if lengths.device.type == "cpu":
            low, high, total = int(lengths.min()), int(lengths.max()), int(lengths.sum())
            if low < 1 or high > time or total != tokens:
                raise UserError(f"lengths from {low} to {high} sum to {total}; expected 1 to {time}, sum {tokens}")


def observed(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Edge chain structure: the distinct label pairs at neighbouring tokens of sentences.

    The result is int64 [2, pairs]: the first and the second label of each pair. The pairs are sorted by second label,
    then by first label. Sentence s has the labels labels[offsets[s] : offsets[s + 1]]."""
    inner = np.ones(len(labels), bool)
    inner[offsets[:-1]] = False
    taken = np.flatnonzero(inner)
    return np.unique(np.stack([labels[taken], labels[taken - 1]]), axis=1)[::-1].astype(np.int64).copy()


def numbers(steps: np.ndarray, labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Edge chain structure: for each token, the index of the step (label pair) that ends at the token.

    The result is int64 [tokens], with 0 for the first token of a sentence."""
    count = int(labels.max()) + 1
    inner = np.ones(len(labels), bool)
    inner[offsets[:-1]] = False
    taken = np.flatnonzero(inner)
    step_numbers = np.zeros(len(labels), np.int64)
    step_numbers[taken] = np.searchsorted(steps[1] * count + steps[0], labels[taken] * count + labels[taken - 1])
    return step_numbers


def _inside(lengths: Tensor, time: int) -> Tensor:  # shape [batch, time]
    """Edge chain structure: mask [batch, time], true at the tokens of each sentence and false at padding."""
    return torch.arange(time, device=lengths.device) < lengths.unsqueeze(1)


def _rows(lengths: Tensor, time: int, tokens: int) -> Tensor:
    """Edge chain structure: for each padded position [batch, time], the index of the token among all tokens.

    Indices at padding are arbitrary."""
    begins = lengths.cumsum(0) - lengths
    return (begins.unsqueeze(1) + torch.arange(time, device=lengths.device)).clamp_max(tokens - 1)


class _LogPartition(torch.autograd.Function):
    """Edge chain structure: the autograd function of the log-partition of chains over listed label pairs."""

    @staticmethod
    def forward(ctx, route, step_list, lengths, *scores):
        """Edge chain structure: the log-partition [batch] of each sentence."""
        totals, memory = route.sum(EdgeScores(*scores), step_list, lengths)
        ctx.route = route
        ctx.save_for_backward(lengths, *step_list, *scores, *memory)
        return totals

    @staticmethod
    @once_differentiable
    def backward(ctx, weights):
        """Edge chain structure: the expected count of each label and step, times `weights`.

        `weights` [batch] is the incoming gradient of each log-partition."""
        lengths, *saved = ctx.saved_tensors
        step_list, scores, memory = saved[:3], EdgeScores(*saved[3:8]), saved[8:]
        return None, None, None, *ctx.route.expect(scores, step_list, lengths, memory, weights)


class NativeRoute:
    """Edge chain structure: the compiled implementation of chains over listed label pairs.

    The scores are float32 or float64 on the CPU."""

    @staticmethod
    def sum(scores: EdgeScores, step_list: Sequence[Tensor], lengths: Tensor):
        """Edge chain structure: the log-partition [batch] in float64, and intermediate results for `expect`."""
        totals = torch.empty(len(lengths), dtype=torch.float64)
        last = torch.empty(len(lengths), len(scores.end), dtype=torch.float64)
        shares = torch.empty_like(scores.edges, memory_format=torch.contiguous_format)
        kernels.forward(*_arrays(scores, step_list, lengths), shares.numpy(), last.numpy(), totals.numpy())
        return totals, (shares, last)

    @staticmethod
    def expect(scores: EdgeScores, step_list: Sequence[Tensor], lengths: Tensor, memory, weights: Tensor) -> EdgeScores:
        """Edge chain structure: the gradient of sum(weights * log-partition) in all scores, by compiled code."""
        shares, last = (part.numpy() for part in memory)
        chunks = kernels.chunk_count(len(lengths))
        nodes = torch.empty_like(scores.emissions, memory_format=torch.contiguous_format)
        taken = torch.empty_like(scores.edges, memory_format=torch.contiguous_format)
        steps, ends = np.zeros((chunks, len(scores.transitions))), np.zeros((chunks, 2, len(scores.end)))
        sizes, numbers = lengths.contiguous().numpy(), tuple(part.numpy() for part in step_list)
        inputs = np.cumsum(sizes) - sizes, sizes, weights.double().contiguous().numpy(), numbers, shares, last
        kernels.backward(*inputs, nodes.numpy(), taken.numpy(), steps, ends)
        counts = nodes, taken, torch.from_numpy(steps.sum(0)), *torch.from_numpy(ends.sum(0))
        return EdgeScores(*(count.to(score.dtype) for count, score in zip(counts, scores, strict=True)))

    @staticmethod
    def best(scores: EdgeScores, step_list: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Edge chain structure: the best label sequences (Viterbi) in compiled code."""
        paths = torch.empty(scores.emissions.shape[:2], dtype=torch.int64)
        kernels.best(*_arrays(scores, step_list, lengths), paths.numpy())
        return paths


def _arrays(scores: EdgeScores, step_list: Sequence[Tensor], lengths: Tensor):
    """Edge chain structure: scores, sentence lengths and label pairs as numpy arrays for the compiled kernels.

    Emissions and edges keep their dtype; all other scores become float64."""
    sizes = lengths.contiguous().numpy()
    emissions, edges = (score.detach().contiguous().numpy() for score in scores[:2])
    shared = tuple(score.detach().double().contiguous().numpy() for score in scores[2:])
    return emissions, edges, np.cumsum(sizes) - sizes, sizes, shared, tuple(part.numpy() for part in step_list)


class TorchRoute:
    """Edge chain structure: the torch implementation of chains over listed label pairs, for any device and dtype.

    All steps work in log-space and float64, without synchronisation between device and host."""

    @staticmethod
    def sum(scores: EdgeScores, step_list: Sequence[Tensor], lengths: Tensor):
        """Edge chain structure: the log-partition [batch], by the forward recursion in log-space.

        Also returns the probabilities that `expect` needs: for each token, those of the previous label given the label
        of the token, and finally those of the last label."""
        emissions, start, end = (score.double() for score in (scores.emissions, scores.start, scores.end))
        steps = _steps(scores, step_list, lengths)
        inside = _inside(lengths, emissions.shape[1])
        alpha, shares = start + emissions[:, 0], []  # shape [batch, labels]
        for t in range(1, emissions.shape[1]):
            ways = alpha.unsqueeze(2) + steps[:, t]  # shape [batch, labels from, labels to]
            arrived = torch.logsumexp(ways, 1)
            shares.append(torch.nan_to_num(torch.exp(ways - arrived.unsqueeze(1)), nan=0.0))
            alpha = torch.where(inside[:, t, None], arrived + emissions[:, t], alpha)
        total = torch.logsumexp(alpha + end, 1)
        last = torch.nan_to_num(torch.exp(alpha + end - total.unsqueeze(1)), nan=0.0)
        return total, (*shares, last)

    @staticmethod
    def expect(scores: EdgeScores, step_list: Sequence[Tensor], lengths: Tensor, memory, weights: Tensor) -> EdgeScores:
        """Edge chain structure: the gradient of sum(weights * log-partition) in all scores, by torch operations."""
        *shares, last = memory
        origins, targets, _ = step_list
        batch, time, _ = scores.emissions.shape
        inside = _inside(lengths, time)
        final = last = last * weights.double().unsqueeze(1)  # shape [batch, labels]
        nodes, taken = [last], []
        for t in range(time - 1, 0, -1):
            counts = shares[t - 1] * last.unsqueeze(1)  # shape [batch, labels from, labels to]
            counts = torch.where(inside[:, t, None, None], counts, 0.0)
            taken.append(counts[:, origins, targets])
            last = torch.where(inside[:, t, None], counts.sum(2), last)
            nodes.append(last)
        nodes = torch.where(inside.unsqueeze(2), torch.stack(nodes[::-1], 1), 0.0)
        none = torch.zeros(batch, len(origins), dtype=torch.float64, device=lengths.device)
        steps = torch.stack([*taken, none][::-1], 1)  # shape [batch, time, steps]
        rows = _rows(lengths, time, len(scores.edges))
        edges = torch.zeros(len(scores.edges), len(origins), dtype=torch.float64, device=lengths.device)
        edges.index_add_(0, rows.flatten(), torch.where(inside.unsqueeze(2), steps, 0.0).flatten(0, 1))
        counts = nodes, edges, steps.sum((0, 1)), nodes[:, 0].sum(0), final.sum(0)
        return EdgeScores(*(count.to(score.dtype) for count, score in zip(counts, scores, strict=True)))

    @staticmethod
    def best(scores: EdgeScores, step_list: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Edge chain structure: the best label sequences (Viterbi) by torch operations."""
        emissions, start, end = (score.double() for score in (scores.emissions, scores.start, scores.end))
        steps = _steps(scores, step_list, lengths)
        inside = _inside(lengths, emissions.shape[1])
        stay = torch.arange(emissions.shape[2], device=emissions.device)
        score, origins = start + emissions[:, 0], []
        for t in range(1, emissions.shape[1]):
            arrival, origin = (score.unsqueeze(2) + steps[:, t]).max(1)  # shape [batch, labels]
            score = torch.where(inside[:, t, None], arrival + emissions[:, t], score)
            origins.append(torch.where(inside[:, t, None], origin, stay))
        label = (score + end).argmax(1, keepdim=True)  # shape [batch, 1]
        path = [label]
        for origin in reversed(origins):
            label = origin.gather(1, label)
            path.append(label)
        return torch.where(inside, torch.cat(path[::-1], 1), 0)


def _steps(scores: EdgeScores, step_list: Sequence[Tensor], lengths: Tensor) -> Tensor:
    """Edge chain structure: the scores of all label pairs, [batch, time, labels from, labels to].

    Pairs that are not listed get minus infinity."""
    origins, targets, _ = step_list
    (batch, time, labels), edges = scores.emissions.shape, scores.edges.double()
    listed = edges[_rows(lengths, time, len(edges))] + scores.transitions.double()  # shape [batch, time, steps]
    steps = torch.full((batch, time, labels * labels), -torch.inf, dtype=torch.float64, device=edges.device)
    return steps.index_copy(2, origins * labels + targets, listed).view(batch, time, labels, labels)
