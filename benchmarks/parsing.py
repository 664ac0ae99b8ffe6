"""Dependency parsing: arc scores by rows and by keys, best trees against a C package, growth with the arcs.

The 684 templates of conf/features/parsing.yaml on the training part of tr_imst, averaged MIRA, one thread. First an
epoch with a row for every feature of training (`model=arcs`); its weights are then given to the table that is searched
by keys (`model=arcs_growing`), and both score all arcs of training, turn by turn, to the same scores. Trees are those
of these scores: ours beside the C package ufal.chu_liu_edmonds, which is called from Python sentence by sentence, as it
is meant to be. Growth: time of an epoch by arcs. A memory pass reads the rows of all arcs once.

tr_imst is looked up as `train.py` does; without it a planted treebank is drawn, as the output then says.
"""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numba import njit
from omegaconf import OmegaConf
from prox_trees import exponent
from timing import arguments, compare, print_table, write_json

from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import planted, ud
from structsparse.features.filters import all_of
from structsparse.kernels.solvers import online_trees as tree_walk
from structsparse.kernels.solvers import online_trees_by_keys as key_walk
from structsparse.kernels.structures.best_trees import room, solve
from structsparse.losses.structured import Hinge
from structsparse.solvers.online import OnlineMIRA
from structsparse.tasks.parsing import data as parsing
from structsparse.tasks.parsing.growing import GrowingArcScorer
from structsparse.tasks.parsing.model import ArcScorer, Parser

try:
    from ufal.chu_liu_edmonds import chu_liu_edmonds
except ImportError:  # GPL, so no part of an installation for users
    chu_liu_edmonds = None

FEATURES = Path(__file__).resolve().parents[1] / "conf" / "features" / "parsing.yaml"
TREEBANK = "tr_imst"
QUICK = 600  # sentences
SHARES = (0.125, 0.25, 0.5, 1.0)  # of the sentences, for the growth


def corpus(quick):
    """Data to train on, and what they are."""
    try:
        splits, name = ud(TREEBANK, "auto"), TREEBANK
    except UserError:
        splits, name = planted(0, 3000, 10, 10, 0.05), f"planted ({TREEBANK} was not found)"
    if quick:
        splits = replace(splits, train=splits.train.select(slice(0, QUICK)))
    features = OmegaConf.to_container(OmegaConf.load(FEATURES), resolve=True)
    features["feats"] = False  # the 684 templates of the paper read no morphological features
    return parsing.prepare(splits, features, all_of, 0, projective=False, single_root=False), name


# --- what is timed


@njit
def by_rows(corpus, order, weights, sheet, scores):
    """scores [arcs]"""
    for s in order:
        size = corpus.begins[s + 1] - corpus.begins[s] + 1
        tree_walk.score_arcs(corpus.ids, corpus.offsets, corpus.arcs[s], weights, sheet[:size, :size])
        _lay_down(sheet[:size, :size], corpus.arcs[s], scores)


@njit
def by_keys(corpus, says, slots, sheet, scores):
    sums = key_walk.partial_keys_for(says, len(sheet) - 1)
    for s in range(len(corpus.begins) - 1):
        size = corpus.begins[s + 1] - corpus.begins[s] + 1
        key_walk.score_sentence(says, s, sums, slots, -np.inf, sheet[:size, :size])
        _lay_down(sheet[:size, :size], corpus.arcs[s], scores)


@njit
def _lay_down(sheet, arc, scores):
    for m in range(1, len(sheet)):
        for h in range(len(sheet)):
            if h != m:
                scores[arc] = sheet[m, h]
                arc += 1


@njit
def trees(matrices, begins, lengths, heads):
    """The best trees of flat matrices [n + 1, n + 1], one after another."""
    work, crossing, nested = room(lengths.max() + 1, False)
    tree, word = np.empty(lengths.max() + 1, np.int64), 0
    for s in range(len(lengths)):
        size = lengths[s] + 1
        own = work[:size, :size]
        own[:] = matrices[begins[s] : begins[s] + size * size].reshape(size, size)
        solve(own, False, False, tree[:size], crossing, nested)
        heads[word : word + lengths[s]] = tree[1:size]
        word += lengths[s]


def their_trees(matrices):
    return [chu_liu_edmonds(matrix)[0] for matrix in matrices]


class Training:
    """Averaged MIRA with a row for every feature."""

    def __init__(self, data):
        self.data, self.parser = data, Parser(ArcScorer(data.sizes))
        self.optimizer, self.loss = OnlineMIRA(self.parser.parameters()), Hinge(self.parser.structure)
        self.epoch = 0

    def sweep(self, share=1.0):
        """CPU seconds of an epoch, or of a share of it, and the arcs of its sentences."""
        loader = self.data.passages("train", None, seed=0)
        loader.set_epoch(self.epoch)
        self.epoch += 1
        (passage,) = loader
        passage.sentences = passage.sentences[: round(share * len(passage.sentences))]
        begin = time.process_time()
        self.optimizer.sweep(self.parser, self.loss, passage)
        seconds = time.process_time() - begin
        return seconds, int((self.data.arrays["train"].lengths[passage.sentences.numpy()] ** 2).sum())

    def keyed(self):
        """The weights that are not zero, in a table of keys."""
        index, table = self.data.index, self.parser.scorer.table.detach()[:, 0]
        rows = torch.from_numpy(index.rows.astype(np.int64))  # of each key
        chosen = (table[rows] != 0).nonzero().flatten()
        owners = np.searchsorted(index.offsets, chosen.numpy(), side="right") - 1
        keys = torch.from_numpy(index.keys[chosen.numpy()].view(np.int64))
        scorer = GrowingArcScorer()
        scorer.set_rows(table[rows[chosen]][:, None].clone(), keys, torch.from_numpy(owners))
        return scorer


def walk_of(train):
    bags = train.bags
    return tree_walk.ParsedCorpus(bags.ids, bags.offsets, train.offsets, train.gold, train.arcs)


def matrices_of(scores, walk):
    """A matrix of scores for each sentence, NaN where no arc is: as the C package wants them."""
    found = []
    for n, arc in zip(np.diff(walk.begins), walk.arcs[:-1], strict=True):
        matrix = np.full((n + 1, n + 1), np.nan)
        inside = ~np.eye(n + 1, dtype=bool)
        inside[0] = False
        matrix[inside] = scores[arc : arc + n * n]
        found.append(matrix)
    return found


# --- the comparisons


def scoring(training, walk, options):
    """Seconds of either route and of a pass over the rows; and the scores."""
    scorer, says = training.keyed(), training.data.arrays["train"].template_atoms
    slots, weights = scorer.slots(), training.parser.scorer.table.detach()[:, 0].numpy()
    longest = int(np.diff(walk.begins).max())
    sheet, found = np.empty((longest + 1, longest + 1)), np.empty((2, walk.arcs[-1]))
    order = np.arange(len(walk.begins) - 1)
    drawn = np.random.default_rng(0).permutation(order)
    calls = {
        "rows": lambda: by_rows(walk, order, weights, sheet, found[0]),
        "drawn": lambda: by_rows(walk, drawn, weights, sheet, found[0]),
        "keys": lambda: by_keys(walk, says, slots, sheet, found[1]),
        "pass": lambda: walk.ids.sum(dtype=np.int64),
    }
    seconds = compare(calls, options)
    if not np.array_equal(found[0], found[1]):
        raise SystemExit(f"the two routes disagree, by {np.abs(found[0] - found[1]).max()}")
    return seconds, found[0], scorer.held


def decoding(scores, walk, options):
    """Seconds of our best trees and, where it is installed, of the C package's."""
    matrices, lengths = matrices_of(scores, walk), np.diff(walk.begins)
    flat = np.concatenate([np.nan_to_num(m, nan=-np.inf).ravel() for m in matrices])
    begins, heads = np.concatenate([[0], np.cumsum((lengths + 1) ** 2)]), np.empty(walk.begins[-1], np.int64)
    ours, theirs = lambda: trees(flat, begins, lengths, heads), lambda: their_trees(matrices)
    if chu_liu_edmonds is None:
        print("ufal.chu_liu_edmonds is not installed: nothing stands beside our trees\n")
        return compare({"ours": ours}, options) | {"c": float("nan")}
    seconds = compare({"ours": ours, "c": theirs}, options)
    other = np.concatenate([tree[1:] for tree in theirs()])
    row = np.concatenate([begin + (1 + np.arange(n)) * (n + 1) for begin, n in zip(begins[:-1], lengths, strict=True)])
    if not np.isclose(flat[row + heads].sum(), flat[row + other].sum()):
        raise SystemExit("the trees differ in what they are worth")
    return seconds


def main():
    options = arguments(__doc__.splitlines()[0])
    data, name = corpus(options.quick)
    training, train = Training(data), data.arrays["train"]
    walk = walk_of(train)
    training.sweep()
    grown = [training.sweep(share) for share in SHARES for _ in range(1 if options.quick else 3)]
    epoch = min(seconds for seconds, arcs in grown if arcs == walk.arcs[-1])
    least = {arcs: min(s for s, a in grown if a == arcs) for _, arcs in grown}
    seconds, scores, held = scoring(training, walk, options)
    decode = decoding(scores, walk, options)
    arcs, features = int(walk.arcs[-1]), len(walk.ids)
    figures = {
        "arcs_per_second": arcs / seconds["rows"],
        "arcs_per_second_keyed": arcs / seconds["keys"],
        "ns_per_feature": seconds["rows"] / features * 1e9,
        "ns_per_feature_drawn": seconds["drawn"] / features * 1e9,
        "ns_per_feature_keyed": seconds["keys"] / features * 1e9,
        "interned_speedup_over_keyed": seconds["keys"] / seconds["rows"],
        "interned_over_memory_pass": seconds["rows"] / seconds["pass"],
        "decode_speedup_over_c": decode["c"] / decode["ours"],
        "decode_share": decode["ours"] / epoch,
        "us_per_sentence_decode": decode["ours"] / len(train) * 1e6,
        "us_per_sentence_decode_c": decode["c"] / len(train) * 1e6,
        "seconds_epoch": epoch,
        "growth_exponent": exponent(least),
    }
    print(f"{name}: {len(train):,} sentences, {arcs:,} arcs, {len(data.templates)} templates, {held:,} features held\n")
    print_table("figures", ("", "value"), list(figures.items()))
    write_json(options.json, {key: value for key, value in figures.items() if not np.isnan(value)})


if __name__ == "__main__":
    main()
