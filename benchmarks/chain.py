"""The loss of a chain CRF, forward and backward: ours against torch-struct, pytorch-crf and a plain loop.

A call takes emissions, transitions, start and end scores, gold labels and lengths, and leaves the gradients of
the summed loss on all four scores. 128 sentences of 10 to 40 tokens, float32; figures are per real token.
"""

import warnings

import torch
import torch_struct
import torchcrf
from timing import arguments, compare, print_table, write_json

from structsparse.losses.structured import CRF
from structsparse.structures.chain import Chain, ChainScores, TorchRoute

SENTENCES, SHORTEST, LONGEST = 128, 10, 40


class TorchChain(Chain):
    def _route(self, scores):
        return TorchRoute


def problem(labels):
    draw = torch.Generator().manual_seed(labels)
    shapes = [(SENTENCES, LONGEST, labels), (labels, labels), (labels,), (labels,)]
    scores = ChainScores(*(torch.randn(*shape, generator=draw).requires_grad_() for shape in shapes))
    lengths = torch.randint(SHORTEST, LONGEST + 1, (SENTENCES,), generator=draw)
    lengths[0] = LONGEST
    return scores, torch.randint(0, labels, (SENTENCES, LONGEST), generator=draw), lengths


def torch_struct_loss(scores, gold, lengths):
    """Edge potentials [batch, time - 1, to, from] that carry all scores; gold summed from the same potentials."""
    emissions, transitions, start, end = scores
    inner = transitions.t() + emissions[:, 1:].unsqueeze(3)
    first = inner[:, :1] + (start + emissions[:, 0])[:, None, None]
    steps = torch.arange(1, LONGEST)
    edges = torch.cat([first, inner[:, 1:]], 1)
    edges = edges + (steps == lengths[:, None] - 1)[:, :, None, None] * end[:, None]
    taken = edges.flatten(2).gather(2, (gold[:, 1:] * len(end) + gold[:, :-1]).unsqueeze(2)).squeeze(2)
    own = torch.where(steps < lengths[:, None], taken, 0.0).sum(1)
    return torch_struct.LinearChainCRF(edges, lengths=lengths).partition - own


def pytorch_crf(scores):
    """The peer keeps the shared scores as its own parameters: here they share memory with ours."""
    peer = torchcrf.CRF(len(scores.end), batch_first=True)
    peer.transitions, peer.start_transitions, peer.end_transitions = (
        torch.nn.Parameter(score.detach()) for score in scores[1:]
    )
    return peer


def loop_loss(scores, gold, lengths):
    """Log-space, one token at a time, left to autograd."""
    emissions, transitions, start, end = scores
    alpha = start + emissions[:, 0]
    for t in range(1, LONGEST):
        onward = torch.logsumexp(alpha.unsqueeze(2) + transitions, 1) + emissions[:, t]
        alpha = torch.where((t < lengths)[:, None], onward, alpha)
    return torch.logsumexp(alpha + end, 1) - Chain().score(scores, gold, lengths)


def contenders(labels):
    """Name -> (loss of the batch, everything that takes a gradient), and the number of tokens."""
    scores, gold, lengths = problem(labels)
    mask = torch.arange(LONGEST) < lengths[:, None]
    ours, twin, peer = CRF(Chain()), CRF(TorchChain()), pytorch_crf(scores)
    losses = {
        "ours": (lambda: ours(scores, gold, lengths), scores),
        "ours_torch": (lambda: twin(scores, gold, lengths), scores),
        "torch_struct": (lambda: torch_struct_loss(scores, gold, lengths), scores),
        "pytorch_crf": (
            lambda: -peer(scores.emissions, gold, mask, reduction="none"),
            (scores.emissions, peer.transitions, peer.start_transitions, peer.end_transitions),
        ),
        "loop": (lambda: loop_loss(scores, gold, lengths), scores),
    }
    return losses, int(lengths.sum())


def assert_equal(losses):
    """All contenders give our losses and our gradients, to float32."""
    truth, leaves = losses["ours"]
    truth = truth()
    expected = torch.autograd.grad(truth.sum(), leaves)
    for loss, leaves in losses.values():
        found = loss()
        torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=1e-3)
        for left, right in zip(torch.autograd.grad(found.sum(), leaves), expected, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-3)


def step(loss, leaves):
    def run():
        for leaf in leaves:
            leaf.grad = None
        loss().sum().backward()

    return run


def main():
    options = arguments(__doc__)
    warnings.filterwarnings("ignore", message=".*arg_constraints")
    figures, rows = {}, []
    for labels in (9, 22):
        losses, tokens = contenders(labels)
        assert_equal(losses)
        seconds = compare({name: step(*contender) for name, contender in losses.items()}, options)
        for name, taken in seconds.items():
            figures[f"us_per_token_{name}_L{labels}"] = taken / tokens * 1e6
            rows.append([f"{labels} labels", name, taken / tokens * 1e6, taken / seconds["ours"]])
        for peer in ("torch_struct", "pytorch_crf", "loop", "ours_torch"):
            figures[f"speedup_over_{peer}_L{labels}"] = seconds[peer] / seconds["ours"]
    kind = "CPU time, one thread" if options.threads == 1 else f"wall time, {options.threads} threads"
    title = f"Chain CRF loss and gradients, {SENTENCES} sentences of {SHORTEST} to {LONGEST} tokens; {kind}"
    print_table(title, ["", "", "us/token", "times ours"], rows)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
