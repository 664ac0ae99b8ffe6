"""Word vectors: counting of co-occurrences, sparse codes, and the dictionary, beside numpy and SPAMS.

- Counting, in memory, is from coded tokens to the symmetric matrix of counts; tokenising comes before and is not timed.
  numpy writes the keys of all pairs, a million words at a time, sorts them and adds up equal ones.
- Codes: 52 dimensions in four trees, from the Gram matrix and the correlations, at two strengths, each with a
  dictionary learnt at it: hardly a code is zero, or most are ("sparse"). SPAMS (fistaTree) gets the same problem
  reduced to 52 x 52. Each side has the largest tolerance of a descending row at which its objective, without the
  constant 1/2 ||x||^2, is within 1e-6 of the best known. NaN of SPAMS stands for the zero solution. Beside it l1:
  SPAMS has a method that follows the path of solutions (lasso), from the Gram matrix as well.
- Dictionary (l1): SPAMS (trainDL) and ours, the same start, passes, batch and words. Objectives are those of the best
  codes of each dictionary: the whole one, and what it gains over zero codes, which is a small part of it. The gain is
  also given for the tree, whose learner in SPAMS returns the dictionary that it was given.
- Learning: all words of the text, 52 and 520 dimensions, from associations to certified codes.
- Growth: slope of log time over log words of the text, and over log number of codes.

Text: the first 8.8 million words of gutenberg-17m.txt.gz below STRUCTSPARSE_DATA, else drawn words, as the output says.
--memory, instead of all this, counts 17 million words of it and 200 million drawn ones on the disk, and gives the peak
of resident memory beyond that of the program and the codes of its text.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from lm import corpus
from prox_trees import exponent
from timing import arguments, clock, compare, print_table, write_json

from structsparse.base.allocator import keep_freed_memory
from structsparse.features.cooccurrences import Window, associations, count, symmetric, threads
from structsparse.features.cooccurrences_on_disk import count_on_disk
from structsparse.penalties import L1, TreeGroupLasso
from structsparse.solvers import OnlineDictionary
from structsparse.solvers.online_dictionary import correlations
from structsparse.solvers.sparse_codes import objective, sparse_codes, violations
from structsparse.tasks.embeddings.data import WordBatch, WordData, encoded
from structsparse.tasks.embeddings.groups import trees_of_dimensions
from structsparse.tasks.embeddings.model import SparseCodes

WORDS, QUICK_WORDS, ALL_WORDS = 8_800_000, 1_000_000, 100_000_000
MIN_COUNT, WINDOW = 8, Window(5)
TREES = 4  # of 13 nodes
STRENGTH, SPARSE = 0.05, 1.0  # that of the thesis, with which hardly a code is zero; and one with which most are
CODED, QUICK_CODED = 2048, 512
GAP = 1e-6
TOLERANCES = [10 ** (-k / 4) for k in range(8, 33)]
SUBSET, BATCH, PASSES = 4096, 256, 3  # of the dictionaries that are compared
LEARNT, LEARNING_BATCH, LEARNING_PASSES = (4, 40), 2048, 2  # trees, words in a step, epochs
GROWTH = 1, 2, 4, 8  # parts of the text, and of the codes
PARENTS = [-1, 0, 1, 1, 1, 0, 5, 5, 5, 0, 9, 9, 9]  # a tree of 13 nodes, depth first
LIMITS = (500, 64), (500,)  # megabytes for counting real and drawn text
DRAWN, KINDS, SENTENCE, POOL = 200_000_000, 100_000, 20, 100_000  # words, vocabulary, words and number of sentences


# --- text and counts


def coded_text(words):
    """Codes of a text, the number of words in the vocabulary, and what the text is."""
    text, name = corpus(words)
    spoken = [k for k, word in enumerate(text.words, 1) if any(map(str.isalnum, word))]
    kept = np.isin(text.codes, [0, *spoken])
    text.codes = text.codes[kept]
    codes, words, frequency = encoded(text, MIN_COUNT, unknown=False)
    return codes, words, frequency, name


def sorted_by_numpy(codes, words, step=1_000_000):
    """Pairs of words by shifts of the text, a sort and sums of equal keys."""
    sentence = np.cumsum(codes == -2, dtype=np.int32)
    sums = []
    for begin in range(0, len(codes), step):
        pairs = [shifted(codes, sentence, begin, min(begin + step, len(codes)), d, words) for d in range(1, 6)]
        keys = np.concatenate(pairs)
        keys.sort()
        first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
        sums.append((keys[first], np.diff(np.append(first, len(keys)))))
    keys, counts = (np.concatenate(arrays) for arrays in zip(*sums, strict=True))
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    with threads() as pool:
        return symmetric([(keys[first], np.add.reduceat(counts, first))], words, pool)


def shifted(codes, sentence, begin, end, distance, words):
    """Keys of the pairs of words so far from each other."""
    end = min(end, len(codes) - distance)
    a, b = codes[begin:end], codes[begin + distance : end + distance]
    kept = (a >= 0) & (b >= 0) & (sentence[begin:end] == sentence[begin + distance : end + distance])
    a, b = a[kept].astype(np.int64), b[kept].astype(np.int64)
    return np.minimum(a, b) * words + np.maximum(a, b)


def counting(codes, words, options):
    ours, theirs = count(codes, words, WINDOW).matrix, sorted_by_numpy(codes, words)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    taken = compare(
        {"ours": partial(count, codes, words, WINDOW), "numpy": partial(sorted_by_numpy, codes, words)}, options
    )
    size = int((codes != -2).sum())
    parts = {share: codes[: len(codes) * share // GROWTH[-1]] for share in GROWTH}
    grown = compare({share: partial(count, part, words, WINDOW) for share, part in parts.items()}, options)
    return {
        "counting_words_per_second": size / taken["ours"],
        "counting_speedup_over_numpy_sort": taken["numpy"] / taken["ours"],
        "growth_exponent_words": exponent(grown),
        "counted_words": size,
        "counted_pairs": ours.nnz,
    }


# --- codes


class Problem:
    """Correlations of words with a dictionary, and codes of them by both sides."""

    def __init__(self, data, dictionary, size, strength):
        chosen = np.random.default_rng(0).permutation(data.items)[:size]
        self.gram = dictionary @ dictionary.T
        self.pull = correlations(data.matrix[chosen], dictionary)
        self.size, self.strength = size, strength
        self.penalties = {"tree": tree_penalty(data.items, strength), "l1": L1(strength)}
        order = depth_first(len(dictionary))
        self.order = torch.tensor(order)
        gram = self.gram.double()[self.order][:, self.order]
        root = torch.linalg.cholesky(gram).T  # gram = root' root, so that 1/2 ||y - root a||^2 is the same in a
        reduced = torch.linalg.solve_triangular(root.T, self.pull.double()[self.order], upper=False)
        self.plain = np.asfortranarray(reduced.numpy()), np.asfortranarray(root.numpy())
        above = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), root)  # SPAMS has one root over all trees
        below = torch.cat([torch.ones(1, reduced.shape[1], dtype=torch.float64), reduced])
        self.rooted = np.asfortranarray(below.numpy()), np.asfortranarray(above.numpy())
        self.start = np.zeros((1 + len(dictionary), reduced.shape[1]), order="F")
        self.tree = spams_tree(len(dictionary) // len(PARENTS))
        self.moments = np.asfortranarray(gram.numpy()), np.asfortranarray(self.pull.double()[self.order].numpy())

    def ours(self, kind, tolerance):
        return sparse_codes(self.gram, self.pull, self.penalties[kind], tolerance=tolerance)

    def spams_tree(self, tolerance):
        import spams

        options = {"loss": "square", "regul": "tree-l2", "lambda1": self.strength, "intercept": False, "numThreads": 1}
        codes = spams.fistaTree(*self.rooted, self.start, self.tree, False, max_it=10_000, tol=tolerance, **options)
        return self.unordered(np.nan_to_num(codes)[1:])

    def spams_l1(self, tolerance):
        """Solutions by their path are exact: no tolerance."""
        import spams

        codes = spams.lasso(
            self.plain[0], Q=self.moments[0], q=self.moments[1], lambda1=self.strength, mode=2, numThreads=1
        )
        return self.unordered(codes.toarray())

    def unordered(self, codes):
        result = torch.zeros(codes.shape, dtype=torch.float64)
        result[self.order] = torch.from_numpy(np.ascontiguousarray(codes))
        return result

    def value(self, kind, codes):
        return objective(self.gram, self.pull, codes, self.penalties[kind])

    def best(self, kind):
        double = sparse_codes(self.gram.double(), self.pull.double(), self.penalties[kind], tolerance=1e-10)
        assert violations(self.gram, self.pull, double, self.penalties[kind]).max() < 1e-6
        return self.value(kind, double)

    def loosest(self, kind, solve, best):
        """The largest tolerance that is enough."""
        for tolerance in TOLERANCES:
            gap = (self.value(kind, solve(tolerance)) - best) / abs(best)
            if gap <= GAP:
                return tolerance
        raise SystemExit(f"{kind}: {solve} does not come within {GAP} of the best objective, but {gap:.1e}")


def tree_penalty(words, strength, trees=TREES):
    shape = (trees * len(PARENTS), words)
    return TreeGroupLasso(trees_of_dimensions(shape, trees=trees), strength)


def depth_first(dimensions):
    """Dimensions of ours (all roots, all children, all leaves) in the order of SPAMS, tree by tree."""
    trees = dimensions // len(PARENTS)
    order = []
    for tree in range(trees):
        order.append(tree)
        for child in range(3):
            node = trees + 3 * tree + child
            order += [node, *(4 * trees + 3 * (node - trees) + leaf for leaf in range(3))]
    return order


def spams_tree(trees):
    """The trees below a root without weight; nodes are depth first, with a variable each."""
    above = [p + 1 + len(PARENTS) * tree if p >= 0 else 0 for tree in range(trees) for p in PARENTS]
    size = len(above) + 1
    entries = np.ones(size - 1, bool), (np.arange(1, size), above)
    return {
        "eta_g": np.append(0.0, np.ones(size - 1)),
        "groups": scipy.sparse.csc_matrix(entries, (size, size), dtype=bool),
        "own_variables": np.arange(size, dtype=np.int32),
        "N_own_variables": np.ones(size, np.int32),
    }


def coding(data, dictionary, options):
    """Codes at the strength at which the dictionary was learnt, and at a larger one with its own dictionary."""
    size = QUICK_CODED if options.quick else CODED
    model, _ = learn(data, tree_penalty(data.items, SPARSE / data.items), len(dictionary), 2, LEARNING_BATCH)
    sparse = Problem(data, model.dictionary.detach(), size, SPARSE)
    usual = Problem(data, dictionary, size, STRENGTH)
    found = contest("codes", usual, "tree", usual.spams_tree, options)
    found |= contest("codes_sparse", sparse, "tree", sparse.spams_tree, options)
    found |= contest("codes_sparse_l1", sparse, "l1", sparse.spams_l1, options)
    whole = Problem(data, dictionary, data.items, STRENGTH)
    sizes = {share: whole.pull[:, : whole.size * share // GROWTH[-1]].contiguous() for share in GROWTH}
    calls = {k: partial(sparse_codes, whole.gram, pull, whole.penalties["tree"]) for k, pull in sizes.items()}
    return found | {"growth_exponent_codes": exponent(compare(calls, options))}


def contest(name, problem, kind, theirs, options):
    """Codes per second of both sides, each with the largest tolerance that is enough."""
    best, sides = problem.best(kind), {"ours": partial(problem.ours, kind), "spams": theirs}
    tolerances = {side: problem.loosest(kind, solve, best) for side, solve in sides.items()}
    taken = compare({side: partial(solve, tolerances[side]) for side, solve in sides.items()}, options)
    return {
        f"{name}_nonzero": float((problem.ours(kind, tolerances["ours"]) != 0).float().mean()),
        f"{name}_per_second": problem.size / taken["ours"],
        f"{name}_speedup_over_spams": taken["spams"] / taken["ours"],
        f"{name}_tolerance": tolerances["ours"],
        f"{name}_tolerance_of_spams": tolerances["spams"],
    }


# --- dictionaries


def learn(data, penalty, dimensions, passes, batch, start=None):
    """A model learnt from all words of the data, and its solver."""
    model = SparseCodes(dimensions, data.items, data.matrix.shape[1])
    model.start_from(data, seed=0)
    if start is not None:
        with torch.no_grad():
            model.dictionary.copy_(start)
    solver = OnlineDictionary([model.table, model.dictionary], passes=passes)
    solver.attach({model.table: penalty})
    for epoch in range(passes):
        order = torch.from_numpy(np.random.default_rng(epoch).permutation(data.items))
        for words in order.split(batch):
            chosen = WordBatch("train", words, epoch, data)
            solver.step(partial(solver.sweep, model, None, chosen))
    solver.flush()
    return model, solver


def reached(data, dictionary, penalty):
    """The objective of the best codes of a dictionary, and that of zero codes."""
    gram, pull = dictionary.double() @ dictionary.double().T, correlations(data.matrix, dictionary).double()
    codes = sparse_codes(gram, pull, penalty, tolerance=1e-6)
    zero = float(np.square(data.matrix.data, dtype=np.float64).sum()) / 2
    return zero + objective(gram, pull, codes, penalty), zero


def dictionaries(data, options):
    import spams

    chosen = np.random.default_rng(1).permutation(data.items)[: 1024 if options.quick else SUBSET]
    part = words_of(data.matrix[chosen], data.words[: len(chosen)])
    dimensions, begin = TREES * len(PARENTS), SparseCodes(TREES * len(PARENTS), part.items, part.matrix.shape[1])
    begin.start_from(part, seed=1)
    start, now = begin.dictionary.detach(), clock(options.threads)
    dense = np.asfortranarray(part.matrix.toarray().T)
    begun = now()
    theirs = spams.trainDL(
        dense,
        D=np.asfortranarray(start.T.numpy()),
        lambda1=SPARSE,
        mode=2,
        batchsize=BATCH,
        iter=PASSES * part.items // BATCH,
        numThreads=1,
        verbose=False,
    )
    middle = now()
    found = {"dictionary_seconds_of_spams": middle - begun}
    unit = L1(SPARSE / part.items)
    ours, _ = learn(part, unit, dimensions, PASSES, BATCH, start)
    found["dictionary_seconds"] = now() - middle  # with the codes of all words, which SPAMS does not make
    (mine, zero), (other, _) = (
        reached(part, dictionary, L1(SPARSE))
        for dictionary in (ours.dictionary.detach(), torch.from_numpy(np.ascontiguousarray(theirs.T)))
    )
    before, _ = reached(part, start, tree_penalty(part.items, SPARSE))
    trees, _ = learn(part, tree_penalty(part.items, SPARSE / part.items), dimensions, PASSES, BATCH, start)
    after, _ = reached(part, trees.dictionary.detach(), tree_penalty(part.items, SPARSE))
    return found | {
        "dictionary_objective_over_spams": mine / other,
        "dictionary_gain_over_spams": (zero - mine) / (zero - other),
        "dictionary_tree_gain_over_start": (zero - after) / (zero - before),
    }


def words_of(matrix, words):
    return WordData("benchmark", tuple(words), np.ones(len(words), np.int64), matrix, None)


def learning(data, options):
    """Seconds and certificate of learning on all words; returns the small dictionary, too."""
    now, found, dictionaries = clock(options.threads), {}, []
    some = words_of(data.matrix[:256], data.words[:256])
    learn(some, tree_penalty(some.items, STRENGTH / some.items), TREES * len(PARENTS), 1, 128)  # compiles
    for trees in LEARNT:
        penalty = tree_penalty(data.items, STRENGTH / data.items, trees)
        begun = now()
        model, solver = learn(data, penalty, trees * len(PARENTS), LEARNING_PASSES, LEARNING_BATCH)
        name = trees * len(PARENTS)
        found |= {f"learning_seconds_{name}": now() - begun, f"learning_violation_{name}": solver.worst}
        dictionaries.append(model.dictionary.detach())
    return found, dictionaries[0]


# --- memory


def drawn_text(path, words, seed=0):
    """A file of codes: sentences of a pool, of which a tenth of the words is drawn anew by Zipf's law."""
    rng, chances = np.random.default_rng(seed), np.cumsum(1 / (np.arange(KINDS) + 2.7))

    def zipf(size):
        return np.searchsorted(chances, rng.random(size) * chances[-1]).astype(np.int32)

    pool = zipf(POOL * SENTENCE).reshape(POOL, SENTENCE)
    codes = np.lib.format.open_memmap(path, "w+", np.int32, (words // SENTENCE, SENTENCE + 1))
    for begin in range(0, len(codes), POOL):
        block = codes[begin : begin + POOL]
        block[:, -1] = -2
        block[:, :-1] = pool[rng.integers(POOL, size=len(block))]
        fresh = rng.random((len(block), SENTENCE)) < 0.1
        block[:, :-1][fresh] = zipf(int(fresh.sum()))


def resident(name):
    """A figure of /proc/self/status in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def count_in_memory_of(path, megabytes):
    """In a process of its own: count on the disk, and print what it took."""
    codes = np.load(path).ravel()
    words, now = int(codes.max()) + 1, time.process_time
    with tempfile.TemporaryDirectory() as folder:
        count_on_disk(codes[:50_000], words, WINDOW, 64, Path(folder) / "first")  # compiles
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
        before, begun = resident("VmRSS"), now()
        matrix = count_on_disk(codes, words, WINDOW, megabytes, Path(folder) / "counts").matrix
        peak, seconds = resident("VmHWM") - before, now() - begun
        size = int((codes != -2).sum())
        print(json.dumps({"peak_mb": peak, "words_per_second": size / seconds, "pairs": matrix.nnz, "words": size}))


def memory(options):
    found, rows = {}, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codes.npy"
        codes, *_, name = coded_text(QUICK_WORDS if options.quick else ALL_WORDS)
        np.save(path, codes)
        texts = [("text", name, LIMITS[0])]
        del codes
        texts.append(("drawn", f"{DRAWN:,} drawn words", LIMITS[1]))
        for kind, name, limits in texts:
            if kind == "drawn":
                drawn_text(path, DRAWN // 20 if options.quick else DRAWN)
            for limit in limits:
                command = [sys.executable, __file__, "--count", str(path), str(limit)]
                taken = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                found |= {f"memory_{kind}_{limit}_{key}": value for key, value in taken.items()}
                rows.append([f"{name}, limit {limit} MB", taken["words"] / 1e6, taken["pairs"] / 1e6, taken["peak_mb"]])
    print_table("Counting on the disk", ["", "million words", "million pairs", "peak MB"], rows)
    return found


# --- all


def report(found):
    rows = [
        [name.replace("_", " "), f"{value:,.0f}" if value > 1e4 else f"{value:.4g}"] for name, value in found.items()
    ]
    print_table("Word vectors", ["", ""], rows)


def main():
    if sys.argv[1:2] == ["--count"]:
        count_in_memory_of(sys.argv[2], int(sys.argv[3]))
        return
    options = arguments(__doc__, memory="peak memory of counting on the disk, instead of all else")
    keep_freed_memory()
    if options.memory:
        write_json(options.json, memory(options))
        return
    codes, words, frequency, name = coded_text(QUICK_WORDS if options.quick else WORDS)
    print(f"Text: {name}. " + ("CPU time, one thread" if options.threads == 1 else f"{options.threads} threads"))
    found = counting(codes, len(words), options)
    matrix = associations(count(codes, len(words), WINDOW))
    data = WordData("benchmark", words, frequency, matrix, None)
    learnt, dictionary = learning(data, options)
    found |= learnt | coding(data, dictionary, options) | dictionaries(data, options)
    report(found)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
