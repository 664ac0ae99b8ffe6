"""One proximal step of the largest-entry norm over subtrees of contexts: Figure 3 of Nelakanti et al. (2013).

    python benchmarks/linf_prox.py algorithm=merged_heap order=9 words=100000
    python -m benchmarks.harness nelakanti2013/prox               every algorithm, by order and by words

Only the prox is timed: after a gradient step of all words from the initial weights, at a strength of 0.65 counts. The
collapsed tree, in which chains of contexts are joined, has the same prox as the trie.

Writes metrics.json into hydra.run.dir, if that is given.
"""

import statistics
import sys
import time
from pathlib import Path

import torch
from timing import set_threads

from benchmarks.paper_prox import ALGORITHMS
from structsparse.corpora.known import texts
from structsparse.penalties import TreeGroupLassoMax
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.groups import ContextLayout, by_suffix
from structsparse.tasks.lm.model import NgramModel
from structsparse.training.finish import write_metrics

DEFAULTS = {"algorithm": "merged_heap", "tree": "collapsed", "corpus": "ptb", "order": 9, "words": 100_000, "seed": 0}
COUNTS = 0.65
SECONDS, ROUNDS = 1.0, 3  # the median of as many rounds as fit, and of so many at least
TREES = "trie", "collapsed"


def read(corpus: str, words: int):
    """The first words of a corpus: of ptb, or of the language reference of Python."""
    common = {"min_count": 1, "limit": words, "lower": False, "classes": False}
    if corpus == "ptb":
        return texts.known("ptb", sentences="lines", tokens="spaces", **common).train
    return texts.files(None, None, None, sentences="text", tokens="words", held_out=0.01, **common).train


def step_of(trie: ContextTree) -> torch.Tensor:
    """Where a step from the first weights leads: [entries]"""
    model = NgramModel(trie).double()
    with torch.no_grad():
        model.table.copy_(model.start())
    (model.surprise() / model.targets).backward()
    counts = torch.from_numpy(trie.entry_count).double().clamp_(min=1)
    return (model.table.detach() - model.table.grad * model.targets / counts).clamp_(min=0)


def time_prox(algorithm: str, tree: str, corpus: str, order: int, words: int, seed: int) -> dict[str, object]:
    trie = ContextTree.build(read(corpus, words), order)
    layout, point, steps = trie, step_of(trie), 1.0
    if tree == "collapsed":
        layout, of = trie.collapse()
        point = point.new_empty(layout.entries).index_copy_(0, torch.from_numpy(of).long(), point)
        steps = 1 / torch.from_numpy(layout.entry_chain).double()  # each is so many in the trie
    groups, clip_ = by_suffix((layout.entries,), ContextLayout(layout)), ALGORITHMS[algorithm]
    seconds, W = [], torch.empty_like(point)
    while len(seconds) < ROUNDS + 1 or sum(seconds) < SECONDS:
        W.copy_(point)
        begin = time.process_time()
        clip_(W, groups, COUNTS, steps)
        seconds.append(time.process_time() - begin)
    living = W != 0
    return {
        "milliseconds": 1000 * statistics.median(seconds[1:]),  # the first fills caches
        "entries": layout.entries, "weights": trie.entries, "nonzero": int(living.sum()),
        "written_out": int(torch.from_numpy(layout.entry_chain)[living].sum()),  # so many of the trie's
        "penalty": float(TreeGroupLassoMax(groups, COUNTS).value(W)), "algorithm": algorithm, "tree": tree,
        "corpus": corpus, "order": order, "words": words, "seed": seed,
    }  # fmt: skip


def main(given: list[str]) -> None:
    told = dict(option.split("=", 1) for option in given)
    folder = told.pop("hydra.run.dir", None)
    options = {key: type(value)(told.pop(key, value)) for key, value in DEFAULTS.items()}
    if told or options["algorithm"] not in ALGORITHMS or options["tree"] not in TREES:
        sys.exit(f"error: expected {', '.join(f'{key}=...' for key in DEFAULTS)}; "
                 f"algorithm: {', '.join(ALGORITHMS)}; tree: {', '.join(TREES)}")  # fmt: skip
    set_threads(1)
    found = time_prox(**options)
    print(f"{found['milliseconds']:.3f} ms for {found['entries']:,} entries, {found['nonzero']:,} of which stay")
    if folder is not None:
        write_metrics(Path(folder) / "metrics.json", found)


if __name__ == "__main__":
    main(sys.argv[1:])
