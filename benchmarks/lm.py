"""Log-linear language models: the exact gradient of all words, and the proximal steps of their penalties.

The gradient goes over the collapsed tree of all contexts of up to 11 words (order 12), float64. Beside it: the softmax
in minibatches of 400 words with a dense row of scores for each, float32, as torch can do it best: the weights of all
contexts of a word are added to one row for all, the gradient is written out, and which weights those are has been
worked out before. A few batches are timed and the rest is extrapolated. The proximal steps stand beside SPAMS, which
knows no chains: on the trie, and on the collapsed tree as if each entry were one. Copies count for ours, which works
in place. A memory pass is one multiplication of the entries in place, timed on more than the caches hold. Growth:
time of the gradient by words, each with the vocabulary of words that occur five times.

Text: gutenberg-17m.txt.gz below STRUCTSPARSE_DATA, else drawn words, as the output then says.
"""

import gc
import os
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from prox_trees import exponent
from timing import arguments, compare, print_table, write_json

from structsparse.corpora.text import ProvisionalText, read_coded
from structsparse.corpora.text_reading import TextReading
from structsparse.groups import by_parents
from structsparse.penalties import L1, SquaredL2, TreeGroupLasso, TreeGroupLassoMax
from structsparse.structures.contexts import Contexts
from structsparse.tasks.lm.contexts import ContextTree, Places
from structsparse.tasks.lm.groups import ContextLayout, by_suffix

CORPUS = "gutenberg-17m.txt.gz"
ORDER, MIN_COUNT = 12, 5
WORDS, QUICK_WORDS = 1_000_000, 200_000  # of all but the growth
GROWTH, QUICK_GROWTH = (1_000_000, 2_000_000, 5_000_000, 10_000_000), (100_000, 300_000, 1_000_000)
BATCH, BATCHES = 400, 8
BEYOND_CACHES = 40_000_000  # numbers
STRENGTH = 0.6
PAPER_WORDS, PAPER_MINUTES = 13_000_000, 7_583  # Nelakanti et al. (2013): one pass over AP news


def corpus(words):
    """So many words, and what they are."""
    path = Path(os.environ.get("STRUCTSPARSE_DATA", "")) / CORPUS
    if path.exists():
        return read_coded(path, TextReading("text", "words", lower=True, limit=words)), CORPUS
    return planted(words), f"planted, because {CORPUS} was not found below STRUCTSPARSE_DATA"


def planted(words, kinds=60_000):
    """Zipf's words in sentences of about twenty, with phrases that come again: half of the text are copies of it."""
    draw = np.random.default_rng(0)
    chances = 1 / (np.arange(kinds) + 2.7)
    codes = draw.choice(kinds, words, p=chances / chances.sum()).astype(np.int32) + 1
    place = 1000
    while place < words:
        size = int(draw.geometric(0.15))
        begin = int(draw.integers(0, place - size)) if place > size else 0
        codes[place : place + size] = codes[begin : begin + len(codes[place : place + size])]
        place += 2 * size
    return ProvisionalText(
        "planted text", [f"w{k}" for k in range(kinds)], np.insert(codes, np.arange(20, words, 20), 0)
    )


def text_of(coded, words):
    part = coded.part(0, coded.until(words), f"{words:,} words")
    return part.text(part.vocabulary(MIN_COUNT))


class Gradient:
    """The loss over all words and its gradient."""

    def __init__(self, tree):
        self.structure = Contexts(tree)
        draw = torch.Generator().manual_seed(0)
        self.weights = torch.nn.Parameter(torch.rand(tree.entries, generator=draw, dtype=torch.float64) / 10)
        self.single = torch.nn.Parameter(self.weights.detach().float())

    def loss(self):
        with torch.no_grad():
            return self.structure.surprise(self.weights, self.structure.node_ends, self.structure.entry_ends)

    def full(self, weights):
        weights.grad = None
        structure = self.structure
        structure.surprise(weights, structure.node_ends, structure.entry_ends).backward()
        return weights.grad

    def of(self, small, rows):
        """Of some words alone, by the tree that they touch."""
        structure = Contexts(small)
        weights = self.weights[torch.from_numpy(rows)]
        return structure.surprise(weights, structure.node_ends, structure.entry_ends)


class Dense:
    """A row of V scores for every word of a batch."""

    def __init__(self, tree, places, weights):
        self.words, self.weights = tree.words, weights.detach().float()
        chosen = np.random.default_rng(0).permutation(len(places.node))[: BATCH * BATCHES].reshape(BATCHES, -1)
        self.places = [places.take(some) for some in chosen]
        self.batches = [self._prepared(tree, some) for some in self.places]
        self.gradient = torch.zeros_like(self.weights)

    def _prepared(self, tree, places):
        """Which entries are added where: those of all contexts of each word but the empty one."""
        rows, node = [], places.node.astype(np.int64)
        row = np.arange(len(node))
        while len(node):
            row, node = row[node > 0], node[node > 0]
            rows.append((row, node))
            node = tree.above[node].astype(np.int64)
        row, node = (np.concatenate(part) for part in zip(*rows, strict=True))
        sizes = (tree.starts[node + 1] - tree.starts[node]).astype(np.int64)
        begins = np.repeat(tree.starts[node] - (np.cumsum(sizes) - sizes), sizes)
        entries = begins + np.arange(sizes.sum())
        where = np.repeat(row, sizes) * tree.words + tree.entry_word[entries]
        targets = torch.from_numpy(tree.entry_word[places.entry].astype(np.int64))[:, None]
        return torch.from_numpy(entries), torch.from_numpy(where), targets

    def lap(self):
        return [self.step(*batch) for batch in self.batches]

    @torch.no_grad()
    def step(self, entries, where, targets):
        """The loss of a batch; its gradient is added to `gradient`."""
        scores = self.weights[: self.words].repeat(len(targets), 1)
        scores.view(-1).index_add_(0, where, self.weights[entries])
        chances = torch.log_softmax(scores, 1)
        loss = -chances.gather(1, targets).sum(dtype=torch.float64)
        chances.exp_()
        chances.scatter_add_(1, targets, torch.full(targets.shape, -1.0))
        self.gradient[: self.words] += chances.sum(0)
        self.gradient.index_add_(0, entries, chances.view(-1)[where])
        return loss

    def assert_equal(self, tree, gradient):
        """Loss and gradient of the batches are those of the trees that they touch."""
        self.gradient.zero_()
        losses = self.lap()
        total = sum(gradient.of(*tree.restrict(places)) for places in self.places)
        torch.testing.assert_close(sum(losses), total.detach(), rtol=1e-5, atol=0)
        (expected,) = torch.autograd.grad(total, gradient.weights)
        torch.testing.assert_close(self.gradient, expected.float(), rtol=1e-3, atol=1e-3)


class Prox:
    """A penalty at work on weights of either sign."""

    def __init__(self, penalty, size, steps=1.0):
        self.penalty, self.steps = penalty, steps
        self.weights = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.out = self.weights.clone()

    def __call__(self):
        return self.penalty.prox_(self.out.copy_(self.weights), self.steps)


class Spams:
    """The same norm for spams.proximalTree: below a node of weight zero, depth first."""

    def __init__(self, ours, norm):
        import spams

        forest = ours.penalty.groups
        nodes, size = forest.preorder().memory.nodes, len(forest) + 1
        nodes = nodes if len(nodes) else np.arange(len(forest))
        self.place = np.empty(size - 1, np.int64)
        self.place[nodes] = np.arange(1, size)
        parents = forest.parents.numpy()[nodes]
        above = np.where(parents < 0, 0, self.place[parents])
        entries = np.ones(size - 1, bool), (np.arange(1, size), above)
        tree = {
            "eta_g": np.append(0.0, np.ones(size - 1)),
            "groups": scipy.sparse.csc_matrix(entries, (size, size), dtype=bool),
            "own_variables": np.append(0, np.arange(size - 1)).astype(np.int32),
            "N_own_variables": np.append(0, np.ones(size - 1)).astype(np.int32),
        }
        weights = np.asfortranarray(ours.weights.numpy()[nodes][:, None])
        self.ours = ours
        self.solve = partial(spams.proximalTree, weights, tree, False, 1, lambda1=STRENGTH, regul=f"tree-{norm}")

    def __call__(self):
        return self.solve()

    def assert_equal(self):
        theirs = torch.from_numpy(self.solve()[self.place - 1, 0])
        torch.testing.assert_close(self.ours(), theirs, rtol=0, atol=1e-10)


def proxes(trie, tree):
    """Ours and theirs by name."""
    whole, joined = (by_suffix((some.entries,), ContextLayout(some), weights="one") for some in (trie, tree))
    plain = by_parents((tree.entries,), torch.from_numpy(tree.entry_above), weights="one")
    metric = 1 / torch.from_numpy(tree.entry_chain).double()  # of written-out entries, where a step of one chain is one
    ours = {
        "l1_trie": Prox(L1(STRENGTH), trie.entries),
        "l2_trie": Prox(SquaredL2(STRENGTH), trie.entries),
        "tree_l2_trie": Prox(TreeGroupLasso(whole, STRENGTH), trie.entries),
        "tree_linf_trie": Prox(TreeGroupLassoMax(whole, STRENGTH), trie.entries),
        "l1_tree": Prox(L1(STRENGTH), tree.entries),
        "l2_tree": Prox(SquaredL2(STRENGTH), tree.entries),
        "tree_linf_tree": Prox(TreeGroupLassoMax(joined, STRENGTH), tree.entries, metric),
    }
    pairs = {
        "tree_l2_trie": ours["tree_l2_trie"],
        "tree_linf_trie": ours["tree_linf_trie"],
        "tree_l2_plain": Prox(TreeGroupLasso(plain, STRENGTH), tree.entries),
        "tree_linf_plain": Prox(TreeGroupLassoMax(plain, STRENGTH), tree.entries),
    }
    return ours, pairs


def beside_dense(text, tree, trie, of, options):
    """Seconds of our gradient of all words, of a batch by a dense softmax for each word in it, of a memory pass."""
    entry = of[trie.locate(text).entry]  # in training text the deepest entry belongs to the deepest context
    places = Places(tree.entry_node[entry], entry)
    gradient = Gradient(tree)
    dense = Dense(tree, places, gradient.weights)
    dense.assert_equal(tree, gradient)
    passed = torch.ones(BEYOND_CACHES, dtype=torch.float64)
    calls = {
        "gradient": partial(gradient.full, gradient.weights),
        "gradient_f32": partial(gradient.full, gradient.single),
        "loss": gradient.loss,
        "memory_pass": partial(passed.mul_, 1.0),
        "dense": dense.lap,
    }
    seconds = compare(calls, options)
    seconds["memory_pass"] *= tree.entries / BEYOND_CACHES
    seconds["dense"] *= len(text.targets) / (BATCH * BATCHES)
    return seconds


def beside_spams(trie, tree, options):
    """Seconds of each proximal step, of ours and of theirs."""
    ours, pairs = proxes(trie, tree)
    seconds = compare(ours, options)
    theirs = {}
    for name, own in pairs.items():
        other = Spams(own, "l2" if "l2" in name else "linf")
        other.assert_equal()
        theirs[name] = compare({"ours": own, "spams": other}, options)
        del other
    return seconds, theirs


def growth(coded, options):
    """Seconds of the gradient by words, and entries."""
    seconds, entries = {}, {}
    for words in QUICK_GROWTH if options.quick else GROWTH:
        text = text_of(coded, words)
        tree = ContextTree.build(text, ORDER, collapse=True)
        gradient = Gradient(tree)
        found = compare({"gradient": partial(gradient.full, gradient.weights)}, options)["gradient"]
        seconds[len(text.targets)], entries[len(text.targets)] = found, tree.entries
        del text, tree, gradient
        gc.collect()
    return seconds, entries


def figures(options):
    words = QUICK_WORDS if options.quick else WORDS
    coded, name = corpus(max(QUICK_GROWTH if options.quick else GROWTH))
    text = text_of(coded, words)
    trie = ContextTree.build(text, ORDER)
    tree, of = trie.collapse()
    said = (
        f"text: {name}; {len(text.targets):,} words to predict, {tree.words:,} in the vocabulary; order {ORDER}: "
        f"{trie.entries:,} entries, collapsed {tree.entries:,}"
    )
    seconds = beside_dense(text, tree, trie, of, options)
    ours, theirs = beside_spams(trie, tree, options)
    million = 1e6 / len(text.targets)
    sizes = {kind: some.entries for kind, some in (("trie", trie), ("tree", tree))}
    del trie, tree, of
    gc.collect()
    grown, entries = growth(coded, options)
    found = {
        "gradient_speedup_over_dense": seconds["dense"] / seconds["gradient"],
        "gradient_f32_speedup_over_dense": seconds["dense"] / seconds["gradient_f32"],
        "growth_exponent": exponent(grown),
        "prox_over_spams": max(pair["ours"] / pair["spams"] for pair in theirs.values()),
        "gradient_over_memory_pass": seconds["gradient"] / seconds["memory_pass"],
        "loss_over_memory_pass": seconds["loss"] / seconds["memory_pass"],
    }
    one_pass = (seconds["gradient"] + ours["tree_linf_tree"]) * million
    found["minutes_per_13m_words"] = one_pass * PAPER_WORDS / 1e6 / 60
    found["minutes_per_13m_words_dense"] = seconds["dense"] * million * PAPER_WORDS / 1e6 / 60
    found["minutes_per_13m_words_paper"] = PAPER_MINUTES
    each = seconds["memory_pass"] / sizes["tree"]
    found |= {f"ms_per_million_words_{who}": 1e3 * s * million for who, s in seconds.items()}
    found |= {f"ms_per_million_words_{who}": 1e3 * s * million for who, s in ours.items()}
    found |= {f"{who}_over_memory_pass": s / (each * sizes[who.rpartition("_")[2]]) for who, s in ours.items()}
    found |= {f"{who}_over_spams": pair["ours"] / pair["spams"] for who, pair in theirs.items()}
    found |= {f"ms_per_million_words_spams_{who}": 1e3 * pair["spams"] * million for who, pair in theirs.items()}
    found |= {f"ms_gradient_{words}_words": 1e3 * s for words, s in grown.items()}
    found |= {f"entries_{words}_words": count for words, count in entries.items()}
    return found, said


def report(found):
    rows = [
        [words, found[f"ms_per_million_words_{who}"], found[f"ms_per_million_words_{who}"] / base]
        for base in [found["ms_per_million_words_memory_pass"]]
        for who, words in (
            ("gradient", "exact gradient of all words"),
            ("gradient_f32", "exact gradient of all words, float32 weights"),
            ("loss", "the loss alone"),
            ("dense", "dense softmax, float32, batches of 400"),
            ("memory_pass", "memory pass over the entries of the collapsed tree"),
        )
    ]
    print_table("Gradient", ["", "ms/million words", "memory passes"], rows)
    rows = []
    for where, place in (("trie", "trie"), ("tree", "collapsed tree"), ("plain", "collapsed tree without chains")):
        for prox in ("l1", "l2", "tree_l2", "tree_linf"):
            name = f"{prox}_{where}"
            own = found.get(f"ms_per_million_words_{name}")
            over = found.get(f"{name}_over_spams")
            if own is None and over is None:
                continue
            theirs = found.get(f"ms_per_million_words_spams_{name}")
            own = own if own is not None else over * theirs
            rows.append([f"{prox}, {place}", own, "" if theirs is None else theirs, "" if over is None else over])
    print_table("Proximal steps", ["", "ms/million words", "SPAMS", "ours over SPAMS"], rows)
    sizes = [name.split("_")[2] for name in found if name.startswith("ms_gradient_")]
    rows = [
        [f"{int(words):,}", f"{found[f'entries_{words}_words']:,}", found[f"ms_gradient_{words}_words"]]
        for words in sizes
    ]
    print_table(f"Growth, exponent {found['growth_exponent']:.3f}", ["words", "entries", "ms"], rows)
    print(
        f"A pass over 13 million words, gradient and tree_linf, extrapolated: {found['minutes_per_13m_words']:.4f} "
        f"minutes; dense softmax {found['minutes_per_13m_words_dense']:.1f}; "
        f"Nelakanti et al. (2013) on their machine {PAPER_MINUTES:,}"
    )


def main():
    options = arguments(__doc__)
    found, said = figures(options)
    print("CPU time, one thread" if options.threads == 1 else f"wall time, {options.threads} threads")
    print(said)
    print()
    report(found)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
