"""Linear-chain structure (first-order CRF): label sequences scored by each label and by each pair of neighbouring
labels."""

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
    """The scores of a linear chain; minus infinity forbids a label or a transition."""

    emissions: Tensor  # [batch, time, labels]; or [tokens, labels], sentences end to end, for float32 on the CPU
    transitions: Tensor  # [labels, labels], from the first index to the second
    start: Tensor  # [labels]
    end: Tensor  # [labels]


class Chain(Structure):
    """The structure of label sequences y of length n (first-order linear chain), scored by

        start[y_1] + sum_t emissions[t, y_t] + sum_{t>1} transitions[y_{t-1}, y_t] + end[y_n].

    Lengths are int64 [batch], each from 1 to time; emissions and gold labels beyond a length are ignored. The totals
    `log_partition` and `score` are always float64, because a loss is a small difference of two large totals. The
    compiled kernels process scores on the CPU in float32 or float64; torch operations process all other scores."""

    def log_partition(self, scores: ChainScores, lengths: Tensor) -> Tensor:  # [batch]
        """The log-partition: log of the sum of exp(score) over all label sequences. Its gradient with respect to the
        scores is their expected counts; it can be taken once."""
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        return _LogPartition.apply(self._route(scores), lengths, *scores)

    def surprise(self, scores: ChainScores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """The negative log-probability of the gold labels: log_partition - score(gold)."""
        if scores.emissions.dim() == 2:
            return _Surprise.apply(gold, lengths, *scores)
        return self.log_partition(scores, lengths) - self.score(scores, gold, lengths)

    @torch.no_grad()
    def best(self, scores: ChainScores, lengths: Tensor) -> Tensor:  # [batch, time]
        """The labels of the best sequence (Viterbi), 0 beyond the length.

        Of several best sequences, the one with the lowest label at the last token is taken, then at the token before,
        and so on."""
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        return self._route(scores).best(scores, lengths)

    @torch.no_grad()
    def best_k(self, scores: ChainScores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best label sequences, the best first: labels [batch, k, time], 0 beyond the length, and scores [batch,
        k].

        If fewer sequences are allowed, the remaining scores are minus infinity. Ties are ordered as in `best`: the
        lowest label at the last token where two sequences differ goes first."""
        if k < 1:
            raise UserError(f"k is {k}, expected a number of sequences from 1 on")
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        return self._route(scores).best_k(scores, lengths, k)

    def score(self, scores: ChainScores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """The score of the given label sequence of each sentence."""
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        emissions, transitions, start, end = scores
        inside = _inside(lengths, gold.shape[1])
        tokens = emissions.gather(2, gold.unsqueeze(2)).squeeze(2).double()  # [batch, time]
        steps = transitions.double()[gold[:, :-1], gold[:, 1:]]  # [batch, time - 1]
        inner = torch.where(inside, tokens, 0.0).sum(1) + torch.where(inside[:, 1:], steps, 0.0).sum(1)
        last = gold.gather(1, lengths.unsqueeze(1) - 1).squeeze(1)
        return inner + start.double()[gold[:, 0]] + end.double()[last]

    @torch.no_grad()
    def marginals(self, scores: ChainScores, lengths: Tensor) -> Tensor:  # [batch, time, labels]
        """The marginal probability of each label at each token, zero beyond the length."""
        scores = _padded(scores, lengths)
        _check(scores, lengths)
        route = self._route(scores)
        totals, memory = route.sum(scores, lengths)
        return route.expect(scores, lengths, memory, torch.ones_like(totals)).emissions

    def add_cost(self, scores: ChainScores, gold: Tensor, lengths: Tensor, cost: float = 1.0) -> ChainScores:
        """The scores with `cost` added to every wrong label, so that the score of a sequence rises by cost * its
        Hamming distance from gold."""
        scores = _padded(scores, lengths)
        labels = torch.arange(scores.emissions.shape[2], device=gold.device)
        wrong = (labels != gold.unsqueeze(2)).to(scores.emissions.dtype)  # [batch, time, labels]
        return scores._replace(emissions=scores.emissions + cost * wrong)

    def _route(self, scores: ChainScores):
        """The implementation, compiled kernels or torch, for the device and type of the scores."""
        emissions = scores.emissions
        native = emissions.device.type == "cpu" and emissions.dtype in (torch.float32, torch.float64)
        return NativeRoute if native else TorchRoute


def _check(scores: ChainScores, lengths: Tensor):
    """Check the shapes of the scores and lengths of a linear chain."""
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
    """Scores with emissions [batch, time, labels], padded if they lie end to end."""
    if scores.emissions.dim() != 2:
        return scores
    if len(scores.emissions) != int(lengths.sum()):
        shape, tokens = tuple(scores.emissions.shape), int(lengths.sum())
        raise UserError(f"emissions have shape {shape}, expected [batch, time, labels] or [{tokens} tokens, labels].")
    inside = _inside(lengths, int(lengths.max()))
    padded = scores.emissions.new_zeros(*inside.shape, scores.emissions.shape[1])
    return scores._replace(emissions=padded.masked_scatter(inside.unsqueeze(2), scores.emissions))


def _inside(lengths: Tensor, time: int) -> Tensor:  # [batch, time]
    """Mask of the tokens within the lengths."""
    return torch.arange(time, device=lengths.device) < lengths.unsqueeze(1)


class _LogPartition(torch.autograd.Function):
    """The autograd function of the log-partition of padded linear chains; the gradient is the expected counts of the
    scores."""

    @staticmethod
    def forward(ctx, route, lengths, *scores):
        """The log-partition of each sentence: [batch]."""
        totals, memory = route.sum(ChainScores(*scores), lengths)
        ctx.route = route
        ctx.save_for_backward(lengths, *scores, *memory)
        return totals

    @staticmethod
    @once_differentiable
    def backward(ctx, weights):  # [batch]
        """The expected counts of the scores, each sentence multiplied by its weight."""
        lengths, *saved = ctx.saved_tensors
        return None, None, *ctx.route.expect(ChainScores(*saved[:4]), lengths, saved[4:], weights)


class _Surprise(torch.autograd.Function):
    """The autograd function of the CRF loss of sentences stored end to end; SIMD kernels compute loss and gradient in
    one pass."""

    @staticmethod
    def forward(ctx, gold, lengths, *scores):
        """The CRF loss of each sentence; the gradient is computed and stored at the same time."""
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
    def backward(ctx, weights):  # [batch]
        """The stored gradient; all sentences must have the same weight, as in a mean over a batch."""
        if ctx.gradients is None or not bool((weights == weights[0]).all()):
            raise RuntimeError(
                "the gradient of sentences end to end is that of their plain sum, and can be taken only once"
            )
        gradients, ctx.gradients = [count.mul_(weights[0]) for count in ctx.gradients], None
        return None, None, *(count.to(kind) for count, kind in zip(gradients, ctx.kinds, strict=True))


def _redo_(again: np.ndarray, losses: np.ndarray, counts: list, scores: ChainScores, gold: Tensor, begins, sizes):
    """Recompute in float64 the losses and counts of sentences whose scores are outside the kernels' range, in place."""
    if len(again) == 0:
        return
    lengths = torch.from_numpy(np.ascontiguousarray(sizes[again], np.int64))
    time = torch.arange(int(lengths.max()))
    inside = time < lengths[:, None]  # [again, longest]
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
    """Linear chains by the compiled kernels, for float32 or float64 scores on the CPU."""

    @staticmethod
    def sum(scores: ChainScores, lengths: Tensor):
        """The log-partition [batch] in float64, and the forward variables that `expect` needs."""
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
        """The expected count of every score, each sentence multiplied by its weight: the gradient of sum weights *
        log-partition."""
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
        """The best label sequences (Viterbi) by the compiled kernels."""
        paths = torch.empty(scores.emissions.shape[:2], dtype=torch.int64)
        kernels.best(*_arrays(scores, lengths), paths.numpy())
        return paths

    @staticmethod
    def best_k(scores: ChainScores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best sequences by the compiled kernels."""
        batch, time, _ = scores.emissions.shape
        paths, totals = torch.empty(batch, k, time, dtype=torch.int64), torch.empty(batch, k, dtype=torch.float64)
        kernels.best_k(*_arrays(scores, lengths), paths.numpy(), totals.numpy())
        return paths, totals


def _arrays(scores: ChainScores, lengths: Tensor):
    """The arrays of a linear chain for the kernels: emissions in their own type, lengths, all other scores in
    float64."""
    sizes = lengths.to(torch.int64).contiguous().numpy()
    time = scores.emissions.shape[1]
    if len(sizes) and not (sizes.min() >= 1 and sizes.max() <= time):
        raise UserError(f"lengths run from {sizes.min()} to {sizes.max()}, expected from 1 to {time} (time).")
    shared = (score.detach().double().contiguous().numpy() for score in scores[1:])
    return scores.emissions.detach().contiguous().numpy(), sizes, *shared


class TorchRoute:
    """Linear chains by torch operations in log-space and float64, for any device and any scores, without
    synchronisation with the host."""

    @staticmethod
    def sum(scores: ChainScores, lengths: Tensor):
        """The log-partition [batch] by forward and backward recursions in log-space, and the results of both
        recursions."""
        emissions, transitions, start, end = (score.double() for score in scores)
        batch, time, labels = emissions.shape
        # both recursions at once: [0] forward, [1] backward from the last token of each sentence
        both = torch.stack([emissions, _reverse(emissions, lengths)]).transpose(1, 2)  # [2, time, batch, labels]
        matrices = torch.stack([transitions.t(), transitions]).unsqueeze(1)  # [2, 1, labels to, labels from]
        message = torch.stack([start, end]).unsqueeze(1).expand(2, batch, labels)
        messages = [message]
        for t in range(time - 1):
            message = torch.logsumexp((message + both[:, t]).unsqueeze(2) + matrices, 3)  # [2, batch, labels]
            messages.append(message)
        before, after = torch.stack(messages, 2)  # [batch, time, labels], without the emission of the current token
        after = _reverse(after, lengths)
        return torch.logsumexp(start + emissions[:, 0] + after[:, 0], 1), (before, after)

    @staticmethod
    def expect(scores: ChainScores, lengths: Tensor, memory, weights: Tensor) -> ChainScores:
        """The expected count of every score, from the forward and backward recursions."""
        emissions, transitions = scores.emissions.double(), scores.transitions.double()
        before, after = memory
        inside = _inside(lengths, emissions.shape[1]).unsqueeze(2)
        left, right = before + emissions, after + emissions
        total = torch.logsumexp(left[:, :1] + after[:, :1], 2, keepdim=True)  # [batch, 1, 1]
        left = left - torch.where(total == -torch.inf, 0.0, total)  # if no sequence is allowed, all counts are zero
        weights = weights.double()
        nodes = torch.where(inside, torch.exp(left + after) * weights[:, None, None], 0.0)
        left, right = torch.where(inside, left, 0.0), torch.where(inside, right, -torch.inf)
        steps = torch.zeros_like(transitions)
        for t in range(1, emissions.shape[1]):
            edges = torch.exp(left[:, t - 1].unsqueeze(2) + transitions + right[:, t].unsqueeze(1))
            steps += (weights @ edges.flatten(1)).view_as(steps)  # edges [batch, labels from, labels to]
        last = nodes.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, nodes.shape[2])).squeeze(1)
        counts = nodes, steps, nodes[:, 0].sum(0), last.sum(0)
        return ChainScores(*(count.to(score.dtype) for count, score in zip(counts, scores, strict=True)))

    @staticmethod
    def best(scores: ChainScores, lengths: Tensor) -> Tensor:
        """The best label sequences (Viterbi) by torch operations."""
        emissions, transitions, start, end = (score.double() for score in scores)
        time, labels = emissions.shape[1:]
        inside = _inside(lengths, time)
        stay = torch.arange(labels, device=emissions.device)
        score, origins = start + emissions[:, 0], []
        for t in range(1, time):
            arrival, origin = (score.unsqueeze(2) + transitions).max(1)  # [batch, labels]
            score = torch.where(inside[:, t, None], arrival + emissions[:, t], score)
            origins.append(torch.where(inside[:, t, None], origin, stay))
        label = (score + end).argmax(1, keepdim=True)  # [batch, 1]
        path = [label]
        for origin in reversed(origins):
            label = origin.gather(1, label)
            path.append(label)
        return torch.where(inside, torch.cat(path[::-1], 1), 0)

    @staticmethod
    def best_k(scores: ChainScores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best sequences in torch operations."""
        emissions, transitions, start, end = (score.double() for score in scores)
        batch, time, labels = emissions.shape
        inside = _inside(lengths, time)
        stay = torch.arange(labels * k, device=emissions.device).view(labels, k).expand(batch, labels, k)
        score = torch.full_like(emissions[:, :1], -torch.inf).transpose(1, 2).repeat(1, 1, k)  # [batch, labels, k]
        score[:, :, 0] = start + emissions[:, 0]
        origins = []
        for t in range(1, time):
            # ways is [batch, labels to, labels from * k]; a stable sort keeps ties in the order of their origins
            ways = (score.unsqueeze(1) + transitions.t()[:, :, None]).flatten(2)
            arrival, origin = (part[:, :, :k] for part in ways.sort(dim=2, descending=True, stable=True))
            inside_now = inside[:, t, None, None]
            score = torch.where(inside_now, arrival + emissions[:, t, :, None], score)
            origins.append(torch.where(inside_now, origin, stay))
        totals, place = (score + end[:, None]).flatten(1).sort(dim=1, descending=True, stable=True)
        totals, place = totals[:, :k], place[:, :k]  # [batch, k]
        path = [place // k]
        for origin in reversed(origins):
            place = origin.flatten(1).gather(1, place)
            path.append(place // k)
        paths = torch.stack(path[::-1], 2)  # [batch, k, time]
        allowed = (totals > -torch.inf).unsqueeze(2)
        return torch.where(inside.unsqueeze(1) & allowed, paths, 0), totals


def _reverse(tokens: Tensor, lengths: Tensor) -> Tensor:  # [batch, time, labels]
    """Each sentence reversed within its own length; positions beyond the length repeat the first token."""
    time = torch.arange(tokens.shape[1], device=tokens.device)
    index = (lengths.unsqueeze(1) - 1 - time).clamp_min(0)
    return tokens.gather(1, index.unsqueeze(2).expand_as(tokens))
