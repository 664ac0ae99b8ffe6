"""Linear-chain structure (first-order CRF): label sequences scored by labels and by pairs of neighbouring labels."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError
from structsparse.kernels.structures import chain as kernels
from structsparse.kernels.structures import chain_simd as lanes
from structsparse.structures.base import Structure


class ChainScores(NamedTuple):
    """Chain structure: the scores of a linear chain; minus infinity forbids a label or a transition."""

    emissions: Tensor  # [batch, time, labels], or [all tokens, labels] for float32 on the CPU: label scores
    transitions: Tensor  # [labels from, labels to]: score of each pair of neighbouring labels
    start: Tensor  # [labels]: score of each label at the first token
    end: Tensor  # [labels]: score of each label at the last token


class Chain(Structure):
    """Linear-chain structure of label sequences y_1 ... y_n over n tokens (first-order CRF).

    The score of a label sequence is

        start[y_1] + sum_t emissions[t, y_t] + sum_{t>1} transitions[y_{t-1}, y_t] + end[y_n].

    Lengths int64 [batch] are the token counts of the sentences, at least 1. Emissions and gold labels at padding
    are ignored. `log_partition` and `score` return float64. The compiled kernels process float32 and float64 scores on
    the CPU. Torch operations process all other scores."""

    def log_partition(self, scores: ChainScores, lengths: Tensor) -> Tensor:  # shape [batch]
        """Chain structure: the log-partition, which is the log of the sum of exp(score) over label sequences.

        The gradient with respect to the scores is the expected count of each label and transition."""
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        return _LogPartition.apply(self._route(scores), lengths, *scores)

    def surprise(self, scores: ChainScores, gold: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Chain structure: the CRF loss of each sentence, the negative log-probability of the gold labels."""
        if scores.emissions.dim() == 2:
            return _Surprise.apply(gold, lengths, *scores)
        return self.log_partition(scores, lengths) - self.score(scores, gold, lengths)

    @torch.no_grad()
    def best(self, scores: ChainScores, lengths: Tensor) -> Tensor:  # shape [batch, time]
        """Chain structure: the labels of the best sequence (Viterbi), 0 at padding.

        Ties go to the lowest label index at the last token, then at the token before, and so on."""
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        return self._route(scores).best(scores, lengths)

    @torch.no_grad()
    def best_k(self, scores: ChainScores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Chain structure: the k best label sequences, the best first, and their scores.

        Returns labels [batch, k, time], 0 at padding, and scores [batch, k]. If fewer than k sequences are allowed, the
        remaining scores are minus infinity. Ties are broken as in `best`."""
        if k < 1:
            raise UserError(f"k is {k}, expected a number of sequences from 1 on")
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        return self._route(scores).best_k(scores, lengths, k)

    def score(self, scores: ChainScores, gold: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Chain structure: the score of the label sequence `gold` of each sentence."""
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        emissions, transitions, start, end = scores
        inside = _inside(lengths, gold.shape[1])
        tokens = emissions.gather(2, gold.unsqueeze(2)).squeeze(2).double()  # shape [batch, time]
        steps = transitions.double()[gold[:, :-1], gold[:, 1:]]  # shape [batch, time - 1]
        inner = torch.where(inside, tokens, 0.0).sum(1) + torch.where(inside[:, 1:], steps, 0.0).sum(1)
        last = gold.gather(1, lengths.unsqueeze(1) - 1).squeeze(1)
        return inner + start.double()[gold[:, 0]] + end.double()[last]

    @torch.no_grad()
    def marginals(self, scores: ChainScores, lengths: Tensor) -> Tensor:  # shape [batch, time, labels]
        """Chain structure: the marginal probability of each label at each token, zero at padding."""
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        route = self._route(scores)
        totals, memory = route.sum(scores, lengths)
        return route.expect(scores, lengths, memory, torch.ones_like(totals)).emissions

    def add_cost(self, scores: ChainScores, gold: Tensor, lengths: Tensor, cost: float = 1.0) -> ChainScores:
        """Chain structure: the scores with `cost` added to the emissions of every wrong label.

        The score of a label sequence rises by `cost` times the number of wrong labels."""
        scores = _padded(scores, lengths)
        labels = torch.arange(scores.emissions.shape[2], device=gold.device)
        wrong = (labels != gold.unsqueeze(2)).to(scores.emissions.dtype)  # shape [batch, time, labels]
        return scores._replace(emissions=scores.emissions + cost * wrong)

    def _route(self, scores: ChainScores):
        """Chain structure: the implementation for these scores, `NativeRoute` (compiled) or `TorchRoute`."""
        emissions = scores.emissions
        native = emissions.device.type == "cpu" and emissions.dtype in (torch.float32, torch.float64)
        return NativeRoute if native else TorchRoute


def _check(scores: ChainScores, lengths: Tensor):
    """Chain structure: check the shapes of the scores and lengths of a linear chain."""
    if scores.emissions.dim() != 3:
        raise UserError(f"emissions have shape {tuple(scores.emissions.shape)}, expected [batch, time, labels].")
    batch, _, labels = scores.emissions.shape
    expected = {"transitions": (labels, labels), "start": (labels,), "end": (labels,), "lengths": (batch,)}
    for (name, shape), tensor in zip(expected.items(), (*scores[1:], lengths), strict=True):
        if tuple(tensor.shape) != shape:
            raise UserError(
                f"{name} have shape {tuple(tensor.shape)}, expected {shape} beside emissions of {labels} labels."
            )


def _padded(scores: ChainScores, lengths: Tensor) -> ChainScores:
    """Chain structure: the scores of a chain with emissions padded to [batch, time, labels]."""
    if scores.emissions.dim() != 2:
        return scores
    if len(scores.emissions) != int(lengths.sum()):
        shape, tokens = tuple(scores.emissions.shape), int(lengths.sum())
        raise UserError(f"emissions have shape {shape}, expected [batch, time, labels] or [{tokens} tokens, labels].")
    inside = _inside(lengths, int(lengths.max()))
    padded = scores.emissions.new_zeros(*inside.shape, scores.emissions.shape[1])
    return scores._replace(emissions=padded.masked_scatter(inside.unsqueeze(2), scores.emissions))


def _inside(lengths: Tensor, time: int) -> Tensor:  # shape [batch, time]
    """Chain structure: mask [batch, time], true at the tokens of each sentence and false at padding."""
    return torch.arange(time, device=lengths.device) < lengths.unsqueeze(1)


class _LogPartition(torch.autograd.Function):
    """Chain structure: the autograd function of the log-partition of padded linear chains."""

    @staticmethod
    def forward(ctx, route, lengths, *scores):
        """Chain structure: the log-partition [batch] of each sentence."""
        totals, memory = route.sum(ChainScores(*scores), lengths)
        ctx.route = route
        ctx.save_for_backward(lengths, *scores, *memory)
        return totals

    @staticmethod
    @once_differentiable
    def backward(ctx, weights):
        """Chain structure: the expected count of each label and transition, times `weights`.

        `weights` [batch] is the incoming gradient of each log-partition."""
        lengths, *saved = ctx.saved_tensors
        return None, None, *ctx.route.expect(ChainScores(*saved[:4]), lengths, saved[4:], weights)


class _Surprise(torch.autograd.Function):
    """Chain structure: the autograd function of the CRF loss of sentences stored end to end.

    SIMD kernels compute the loss and the gradient in one pass."""

    @staticmethod
    def forward(ctx, gold, lengths, *scores):
        """Chain structure: the CRF loss of each sentence.

        The gradient of the loss is computed at the same time and stored."""
        emissions, transitions, start, end = (score.detach().contiguous() for score in scores)
        sizes, labels = lengths.numpy(), emissions.shape[1]
        begins, order = np.cumsum(sizes) - sizes, np.argsort(-sizes, kind="stable")
        if int(sizes.sum()) != len(emissions) or sizes.min() < 1 or sizes.max() > gold.shape[1]:
            raise UserError(f"lengths of 1 to {gold.shape[1]} that sum to {len(emissions)} expected, got {sizes}.")
        with_gradient = any(ctx.needs_input_grad)
        losses, nodes = np.empty(len(sizes)), np.empty_like(emissions.numpy())
        chunks = lanes.chunk_count(len(sizes))
        steps, ends = np.zeros((chunks, labels, labels)), np.zeros((chunks, 2, labels))
        arrays = emissions.numpy(), begins, sizes, gold.contiguous().numpy()
        shared = (score.double().numpy() for score in (transitions, start, end))
        lanes.crf(order, *arrays, *shared, losses, nodes, steps, ends, with_gradient)
        counts = [nodes, steps.sum(0), *ends.sum(0)]
        _redo_(np.flatnonzero(np.isnan(losses)), losses, counts, ChainScores(*scores), gold, begins, sizes)
        ctx.kinds = [score.dtype for score in scores]
        ctx.gradients = [torch.from_numpy(count) for count in counts]
        return torch.from_numpy(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx, weights):
        """Chain structure: the stored gradient of the CRF losses, times `weights`.

        `weights` [batch] is the incoming gradient of each loss. All weights must be equal, as for a mean loss."""
        if ctx.gradients is None or not bool((weights == weights[0]).all()):
            raise RuntimeError(
                "the gradient of sentences end to end is that of their plain sum, and can be taken only once"
            )
        gradients, ctx.gradients = [count.mul_(weights[0]) for count in ctx.gradients], None
        return None, None, *(count.to(kind) for count, kind in zip(gradients, ctx.kinds, strict=True))


def _redo_(again: np.ndarray, losses: np.ndarray, counts: list, scores: ChainScores, gold: Tensor, begins, sizes):
    """Chain structure: recompute in float64 the CRF losses that the SIMD kernels could not compute.

    `again` has the indices of the sentences to recompute. The results go into `losses` and `counts`, the arrays of
    losses and gradients."""
    if len(again) == 0:
        return
    lengths = torch.from_numpy(np.ascontiguousarray(sizes[again], np.int64))
    time = torch.arange(int(lengths.max()))
    inside = time < lengths[:, None]  # shape [sentences, longest length]
    tokens = (torch.from_numpy(np.ascontiguousarray(begins[again], np.int64))[:, None] + time)[inside]
    emissions = torch.zeros(*inside.shape, scores.emissions.shape[1], dtype=torch.float64)
    emissions[inside] = scores.emissions.detach()[tokens].double()
    leaves = [leaf.requires_grad_() for leaf in (emissions, *(s.detach().double() for s in scores[1:]))]
    with torch.enable_grad():
        loss = Chain().surprise(ChainScores(*leaves), gold[torch.from_numpy(again)][:, : len(time)], lengths)
        nodes, *shared = torch.autograd.grad(loss.sum(), leaves)
    losses[again], counts[0][tokens.numpy()] = loss.detach().numpy(), nodes[inside].numpy()
    for count, other in zip(counts[1:], shared, strict=True):
        count += other.numpy()


class NativeRoute:
    """Chain structure: the compiled implementation of linear chains, for float32 or float64 scores on the CPU."""

    @staticmethod
    def sum(scores: ChainScores, lengths: Tensor):
        """Chain structure: the log-partition [batch] in float64, in compiled code.

        Also returns intermediate results for `expect`."""
        arrays = _arrays(scores, lengths)
        batch, time, labels = scores.emissions.shape
        width = -labels // kernels.LANES * -kernels.LANES
        alphas = torch.empty(batch, time, width, dtype=torch.float64)
        in_logs = torch.empty(batch, dtype=torch.bool)
        totals = torch.empty(batch, dtype=torch.float64)
        kernels.forward(*arrays, alphas.numpy(), in_logs.numpy(), totals.numpy())
        return totals, (alphas, in_logs)

    @staticmethod
    def expect(scores: ChainScores, lengths: Tensor, memory, weights: Tensor) -> ChainScores:
        """Chain structure: the gradient of sum(weights * log-partition) in all scores, by compiled code."""
        alphas, in_logs = memory
        batch, _, labels = scores.emissions.shape
        chunks = kernels.chunk_count(batch)
        nodes = torch.empty_like(scores.emissions, memory_format=torch.contiguous_format)
        steps, ends = np.zeros((chunks, labels, labels)), np.zeros((chunks, 2, labels))
        outputs = weights.double().contiguous().numpy(), nodes.numpy(), steps, ends
        kernels.backward(*_arrays(scores, lengths), alphas.numpy(), in_logs.numpy(), *outputs)
        shared = torch.from_numpy(steps.sum(0)), *torch.from_numpy(ends.sum(0))
        return ChainScores(nodes, *(s.to(score.dtype) for s, score in zip(shared, scores[1:], strict=True)))

    @staticmethod
    def best(scores: ChainScores, lengths: Tensor) -> Tensor:
        """Chain structure: the best label sequences (Viterbi) in compiled code."""
        paths = torch.empty(scores.emissions.shape[:2], dtype=torch.int64)
        kernels.best(*_arrays(scores, lengths), paths.numpy())
        return paths

    @staticmethod
    def best_k(scores: ChainScores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Chain structure: the k best label sequences in compiled code."""
        batch, time, _ = scores.emissions.shape
        paths, totals = torch.empty(batch, k, time, dtype=torch.int64), torch.empty(batch, k, dtype=torch.float64)
        kernels.best_k(*_arrays(scores, lengths), paths.numpy(), totals.numpy())
        return paths, totals


def _arrays(scores: ChainScores, lengths: Tensor):
    """Chain structure: the scores of a linear chain and the lengths, as numpy arrays for the compiled kernels.

    Emissions keep their dtype; all other scores become float64."""
    sizes = lengths.to(torch.int64).contiguous().numpy()
    time = scores.emissions.shape[1]
    if len(sizes) and not (sizes.min() >= 1 and sizes.max() <= time):
        raise UserError(f"lengths run from {sizes.min()} to {sizes.max()}, expected from 1 to {time} (time).")
    shared = (score.detach().double().contiguous().numpy() for score in scores[1:])
    return scores.emissions.detach().contiguous().numpy(), sizes, *shared


class TorchRoute:
    """Chain structure: the torch implementation of linear chains, for any device and dtype.

    All steps work in log-space and float64, without synchronisation between device and host."""

    @staticmethod
    def sum(scores: ChainScores, lengths: Tensor):
        """Chain structure: the log-partition [batch], by forward and backward recursions in log-space.

        Also returns the results of both recursions, which `expect` needs."""
        emissions, transitions, start, end = (score.double() for score in scores)
        batch, time, labels = emissions.shape
        # two recursions run at once: forward (index 0), and backward from the last token of each sentence (index 1)
        both = torch.stack([emissions, _reverse(emissions, lengths)]).transpose(1, 2)  # shape [2, time, batch, labels]
        matrices = torch.stack([transitions.t(), transitions]).unsqueeze(1)  # shape [2, 1, labels to, labels from]
        message = torch.stack([start, end]).unsqueeze(1).expand(2, batch, labels)
        messages = [message]
        for t in range(time - 1):
            message = torch.logsumexp((message + both[:, t]).unsqueeze(2) + matrices, 3)  # shape [2, batch, labels]
            messages.append(message)
        # `before`: for each token and its label, the log-sum-exp of the scores of all label sequences left of the token
        # `after`: the same for all label sequences right of the token
        before, after = torch.stack(messages, 2)
        after = _reverse(after, lengths)
        return torch.logsumexp(start + emissions[:, 0] + after[:, 0], 1), (before, after)

    @staticmethod
    def expect(scores: ChainScores, lengths: Tensor, memory, weights: Tensor) -> ChainScores:
        """Chain structure: the gradient of sum(weights * log-partition) in all scores, by torch operations."""
        emissions, transitions = scores.emissions.double(), scores.transitions.double()
        before, after = memory
        inside = _inside(lengths, emissions.shape[1]).unsqueeze(2)
        left, right = before + emissions, after + emissions
        total = torch.logsumexp(left[:, :1] + after[:, :1], 2, keepdim=True)  # shape [batch, 1, 1]
        # if no label sequence of a sentence is allowed, all counts of the sentence are zero
        left = left - torch.where(total == -torch.inf, 0.0, total)
        weights = weights.double()
        nodes = torch.where(inside, torch.exp(left + after) * weights[:, None, None], 0.0)
        left, right = torch.where(inside, left, 0.0), torch.where(inside, right, -torch.inf)
        steps = torch.zeros_like(transitions)
        for t in range(1, emissions.shape[1]):
            edges = torch.exp(left[:, t - 1].unsqueeze(2) + transitions + right[:, t].unsqueeze(1))
            steps += (weights @ edges.flatten(1)).view_as(steps)  # edges has shape [batch, labels from, labels to]
        last = nodes.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, nodes.shape[2])).squeeze(1)
        counts = nodes, steps, nodes[:, 0].sum(0), last.sum(0)
        return ChainScores(*(count.to(score.dtype) for count, score in zip(counts, scores, strict=True)))

    @staticmethod
    def best(scores: ChainScores, lengths: Tensor) -> Tensor:
        """Chain structure: the best label sequences (Viterbi) by torch operations."""
        emissions, transitions, start, end = (score.double() for score in scores)
        time, labels = emissions.shape[1:]
        inside = _inside(lengths, time)
        stay = torch.arange(labels, device=emissions.device)
        score, origins = start + emissions[:, 0], []
        for t in range(1, time):
            arrival, origin = (score.unsqueeze(2) + transitions).max(1)  # shape [batch, labels]
            score = torch.where(inside[:, t, None], arrival + emissions[:, t], score)
            origins.append(torch.where(inside[:, t, None], origin, stay))
        label = (score + end).argmax(1, keepdim=True)  # shape [batch, 1]
        path = [label]
        for origin in reversed(origins):
            label = origin.gather(1, label)
            path.append(label)
        return torch.where(inside, torch.cat(path[::-1], 1), 0)

    @staticmethod
    def best_k(scores: ChainScores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Chain structure: the k best label sequences by torch operations."""
        emissions, transitions, start, end = (score.double() for score in scores)
        batch, time, labels = emissions.shape
        inside = _inside(lengths, time)
        stay = torch.arange(labels * k, device=emissions.device).view(labels, k).expand(batch, labels, k)
        score = torch.full_like(emissions[:, :1], -torch.inf).transpose(1, 2).repeat(1, 1, k)  # [batch, labels, k]
        score[:, :, 0] = start + emissions[:, 0]
        origins = []
        for t in range(1, time):
            # ways has shape [batch, labels to, labels from * k]; the stable sort prefers lower labels at ties
            ways = (score.unsqueeze(1) + transitions.t()[:, :, None]).flatten(2)
            arrival, origin = (part[:, :, :k] for part in ways.sort(dim=2, descending=True, stable=True))
            inside_now = inside[:, t, None, None]
            score = torch.where(inside_now, arrival + emissions[:, t, :, None], score)
            origins.append(torch.where(inside_now, origin, stay))
        totals, place = (score + end[:, None]).flatten(1).sort(dim=1, descending=True, stable=True)
        totals, place = totals[:, :k], place[:, :k]  # shape [batch, k]
        path = [place // k]
        for origin in reversed(origins):
            place = origin.flatten(1).gather(1, place)
            path.append(place // k)
        paths = torch.stack(path[::-1], 2)  # shape [batch, k, time]
        allowed = (totals > -torch.inf).unsqueeze(2)
        return torch.where(inside.unsqueeze(1) & allowed, paths, 0), totals


def _reverse(tokens: Tensor, lengths: Tensor) -> Tensor:  # shape [batch, time, labels]
    """Chain structure: the tokens of each sentence in reverse order.

    Padding stays at the end, and repeats the first token."""
    time = torch.arange(tokens.shape[1], device=tokens.device)
    index = (lengths.unsqueeze(1) - 1 - time).clamp_min(0)
    return tokens.gather(1, index.unsqueeze(2).expand_as(tokens))
