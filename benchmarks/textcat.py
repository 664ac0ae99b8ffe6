"""Text categorization: our lasso against skglm and liblinear, sentences against our lasso, growth with the groups.

Raw counts of the words of two newsgroups (sci.med against sci.space), each word of the fitting part a feature, logistic
loss, strengths of the summed loss, an intercept that is not penalised. All start from zero and end at a relative
duality gap of 1e-6, by our own evaluation, over the objective at zero weights and the best intercept.

Our lasso is `fit_linear`, which is what task=textcat reg=l1 begins with; such a run goes on to the last digits
and a certificate, and is timed beside. Each peer gets the largest tolerance of a descending row of them at which its
gap is small enough. liblinear penalises its intercept, so against it both sides go without one. Where a peer does not
get there in time the output says so, and that strength does not count. saga is left out: on raw counts it gets nowhere.

Sentences: the penalty of reg=sentences with solver=majorize, to the same gap with exact zeros. Growth: the same fit
with more and more groups, each the different words of eight that follow each other, at the same sum of group strengths.
Without STRUCTSPARSE_DATA/20news the documents are planted, and the output says so.
"""

import contextlib
import gc
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse
import skglm.penalties
import torch
from skglm.datafits import Logistic
from skglm.solvers import ProxNewton
from skglm.utils.jit_compilation import compiled_clone
from sklearn.linear_model import LogisticRegression
from timing import arguments, clock, compare, print_table, write_json

from structsparse.base.errors import UserError
from structsparse.corpora.known.newsgroups import newsgroups
from structsparse.corpora.planted.documents import planted_documents
from structsparse.features import word_groups, words
from structsparse.groups.cover import cover_rows
from structsparse.kernels.features.word_groups import count_distinct, distinct
from structsparse.penalties import L1, StructuredElasticNet
from structsparse.solvers.linear import fit_linear
from structsparse.solvers.overlaps import Majorizer, OverlapProblem
from structsparse.solvers.overlaps.design import Design
from structsparse.tasks.textcat.data import DocumentData

GAP, KKT = 1e-6, 1e-9
AGREE = 1e-6  # difference of objectives
LASSO = (0.1, 1.0, 10.0)
SENTENCE = ((0.1, 0.01), (0.1, 0.1), (1.0, 0.01))  # lasso and group
TOLERANCES = [10 ** (-k / 3) for k in range(6, 31)]
QUICK_TOLERANCES = TOLERANCES[::3]
MANY = 10_000  # iterations, for peers that would stop early
PATIENCE, QUICK_PATIENCE = 5.0, 1.0  # seconds: what takes longer and is not there will not be there soon
GROWTH = (10_000, 30_000, 100_000, 300_000, 1_000_000)
QUICK_GROWTH = (10_000, 100_000)
SUM = 100.0  # of the strengths of all groups, as many as sentences times 0.01 or so
WINDOW = 8  # words that a group is made of


class Data:
    """The matrix in the form each contender wants, and the groups."""

    def __init__(self):
        try:
            labelled = newsgroups("science", [], "words", True, None, 0)
            self.name = "20news, sci.med against sci.space"
        except (UserError, OSError):
            labelled = planted_documents(0, 1000, 10, 10, 2, 1000, 20, 100)
            self.name = "planted, because STRUCTSPARSE_DATA/20news was not found"
        made = DocumentData(labelled, words.bag(labelled))
        self.layout, self.y = made.bag.layout, made.targets("train")
        X = made.columns
        self.X = scipy.sparse.csc_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)
        self.rows = scipy.sparse.csr_matrix(self.X)
        self.items, self.words = X.shape

    def sentences(self):
        return word_groups.sentences((self.words,), self.layout)

    def windows(self, count):
        """Groups of words that follow each other somewhere in the fitting part."""
        codes = self.layout.row_of[self.layout.train.tokens].astype(np.int64)
        begins = np.random.default_rng(0).integers(0, len(codes) - WINDOW, count)
        sizes = count_distinct(codes, begins, begins + WINDOW, self.words)
        offsets = np.append(0, np.cumsum(sizes))
        members = distinct(codes, begins, begins + WINDOW, self.words, offsets)
        return cover_rows((self.words,), torch.from_numpy(members), torch.from_numpy(offsets), weights="one")


# --- the contenders: calls that give weights and an intercept


def ours(data, strength, intercept=True, **options):
    penalty = L1(strength / data.items)
    return partial(fit_linear, data.X, data.y, penalty, "logistic", GAP, intercept=intercept, **options)


def of_table(data, penalty, gap=0.0):
    """What solver=majorize does from a design and a penalty on."""
    design = Design(data.X, data.y, "logistic", torch.zeros(1, dtype=torch.float64))
    table = torch.zeros(data.words, dtype=torch.float64)

    def solve():
        search = Majorizer(OverlapProblem(design, table, penalty), None, None, KKT, gap)
        search.solve()
        return search

    return solve


def structured(data, lasso, group=0.0, cover=None):
    return StructuredElasticNet(1 / data.items, cover, group, lasso)


def of_skglm(data, strength, tolerance):
    solver = ProxNewton(tol=tolerance, fit_intercept=True, max_iter=MANY)
    datafit, penalty = compiled_clone(Logistic()), compiled_clone(skglm.penalties.L1(strength / data.items))

    def solve():
        found = solver._solve(data.X, data.y, datafit, penalty)[0]
        return found[:-1], float(found[-1])

    return solve


def of_liblinear(data, strength, tolerance):
    model = LogisticRegression(
        l1_ratio=1, solver="liblinear", C=1 / strength, tol=tolerance, max_iter=MANY, fit_intercept=False,
        random_state=0,
    )  # fmt: skip
    return lambda: (model.fit(data.rows, data.y).coef_[0], 0.0)


PEERS = {"skglm": (of_skglm, True), "sklearn": (of_liblinear, False)}  # and whether it has a free intercept


# --- lasso


def tuned(peer, data, strength, options):
    """The call at the largest tolerance that is small enough, that tolerance and what it found; or its last gap."""
    make, intercept = PEERS[peer]
    now, patience = clock(options.threads), QUICK_PATIENCE if options.quick else PATIENCE
    make(data, strength, TOLERANCES[0])()  # compiles
    for tolerance in QUICK_TOLERANCES if options.quick else TOLERANCES:
        call = make(data, strength, tolerance)
        begin = now()
        weights, constant = call()
        taken = now() - begin
        start = weights.astype(float), constant
        found = ours(data, strength, intercept, start=start, iterations=0)()  # our own evaluation
        if found.gap <= GAP:
            return call, tolerance, found
        if taken > patience:
            break
    return found.gap


def lassos(data, options):
    """Seconds by strength and contender."""
    seconds, rows = {}, []
    for strength in LASSO:
        calls = {"ours": ours(data, strength), "ours without intercept": ours(data, strength, False)}
        found = {who: (GAP, call()) for who, call in calls.items()}
        assert all(fit.converged for _, fit in found.values())
        calls["certificate"] = of_table(data, structured(data, strength))
        found["certificate"] = KKT, calls["certificate"]().certificate
        assert found["certificate"][1].kkt <= KKT
        for peer in PEERS:
            best = tuned(peer, data, strength, options)
            if isinstance(best, float):
                print(f"{peer} at strength {strength:g}: it got to a gap of {best:.1e}, no further in time")
                continue
            calls[peer], *found[peer] = best
        taken = seconds[strength] = compare(calls, options)
        for who, (tolerance, fit) in found.items():
            same = beside(who)
            assert abs(fit.objective - found[same][1].objective) <= AGREE, f"{who}, strength {strength}"
            cells = [f"{tolerance:.0e}", f"{fit.gap:.1e}", f"{fit.objective:.7f}"]
            rows.append([f"{strength:g} {who}", 1e3 * taken[who], taken[same] / taken[who], *cells])
    print_table("Lasso", ["strength", "ms", "ours/theirs", "tolerance", "our gap", "objective"], rows)
    return seconds


def beside(who):
    """Which of ours solves the same problem."""
    return who if who.startswith("ours") else "ours without intercept" if who == "sklearn" else "ours"


# --- groups


def sentences(data, options):
    """Figures of sentences beside the lasso."""
    cover = data.sentences()
    figures, rows = {}, []
    for lasso, group in SENTENCE[::2] if options.quick else SENTENCE:
        penalty = structured(data, lasso, group, cover)
        certain, fast = of_table(data, penalty), of_table(data, penalty, GAP)
        proven, found = certain().certificate, fast().certificate
        assert proven.kkt <= KKT
        assert found.gap <= GAP
        assert abs(found.objective - proven.objective) <= GAP, f"sentences {lasso} {group}: {found}"
        seconds = compare({"gap": fast, "certificate": certain, "lasso": ours(data, lasso)}, options)
        over = seconds["gap"] / seconds["lasso"]
        name = f"{lasso:g}_{group:g}"
        figures[f"sentence_over_lasso_at_{name}"] = over
        figures[f"ms_sentence_{name}"] = 1e3 * seconds["gap"]
        figures[f"ms_sentence_certificate_{name}"] = 1e3 * seconds["certificate"]
        cells = [1e3 * seconds["gap"], over, 1e3 * seconds["certificate"], f"{found.gap:.1e}", f"{proven.kkt:.1e}"]
        rows.append([f"lasso {lasso:g}, group {group:g}", *cells])
    title = f"{len(cover):,} sentences, {len(cover.members):,} members"
    columns = ["strengths", "ms to gap", "over lasso", "ms to certificate", "gap", "KKT of certificate"]
    print_table(title, columns, rows)
    worst = max(value for name, value in figures.items() if name.startswith("sentence_over"))
    return {"sentence_over_lasso": worst} | figures


class Peak:
    """Bytes that the resident set grows by at its peak, where Linux tells."""

    def __init__(self):
        gc.collect()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self.before = self._read("VmRSS")

    def grown(self):
        return self._read("VmHWM") - self.before

    @staticmethod
    def _read(key):
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return 0
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def growth(data, options):
    """Figures by the number of groups. Memory first, one size after the other; then all take turns."""
    sizes = QUICK_GROWTH if options.quick else GROWTH
    calls, figures, rows = {}, {}, []
    of_table(data, structured(data, 0.1, SUM / 100, data.windows(100)), GAP)()  # compiles
    for count in sizes:
        before = Peak()
        cover = data.windows(count)
        penalty = structured(data, 0.1, SUM / count, cover)
        made, begin = before.grown(), Peak()
        calls[count] = of_table(data, penalty, GAP)
        search = calls[count]()
        assert search.certificate.gap <= GAP
        fitted, members = begin.grown(), len(cover.members)
        alive = int((search.point.norms() > 0).sum())
        figures |= {
            f"members_{count}_groups": members,
            f"mb_groups_{count}_groups": made / 2**20,
            f"mb_fit_{count}_groups": fitted / 2**20,
            f"bytes_per_member_{count}_groups": fitted / members,
        }
        rows.append([f"{count:,}", f"{members:,}", f"{alive:,}", f"{made / 2**20:.0f}", f"{fitted / 2**20:.0f}"])
        del search
    seconds = compare(calls, options)
    logs = [np.log(list(side)) for side in (seconds, seconds.values())]
    exponent = float(np.polyfit(*logs, 1)[0])
    steepest = max(float(slope) for slope in np.diff(logs[1]) / np.diff(logs[0]))
    for row, taken in zip(rows, seconds.values(), strict=True):
        row.append(1e3 * taken)
    columns = ["groups", "members", "living", "MB to make", "MB to fit", "ms"]
    print_table(f"Growth, exponent {exponent:.3f}, at its steepest {steepest:.3f}", columns, rows)
    bytes_each = figures[f"bytes_per_member_{sizes[-1]}_groups"]
    print(f"memory: a fit holds {bytes_each:.0f} bytes for each member of each of {sizes[-1]:,} groups\n")
    figures |= {f"ms_{count}_groups": 1e3 * taken for count, taken in seconds.items()}
    return {"growth_exponent": exponent, "growth_steepest": steepest, "bytes_per_member": bytes_each} | figures


def main():
    options = arguments(__doc__)
    warnings.filterwarnings("ignore", module=r"skglm|sklearn|numba")
    data = Data()
    print("CPU time, one thread" if options.threads == 1 else f"wall time, {options.threads} threads")
    print(f"data: {data.name}; {data.items:,} documents, {data.words:,} words, {data.X.nnz:,} entries\n")
    seconds = lassos(data, options)
    figures = {}
    for peer in PEERS:
        ratios = {strength: of[beside(peer)] / of[peer] for strength, of in seconds.items() if peer in of}
        if ratios:
            figures[f"lasso_over_{peer}"] = max(ratios.values())
            figures |= {f"lasso_over_{peer}_at_{strength:g}": ratio for strength, ratio in ratios.items()}
    for strength, of in seconds.items():
        figures |= {f"ms_lasso_{who.replace(' ', '_')}_at_{strength:g}": 1e3 * taken for who, taken in of.items()}
    figures |= sentences(data, options)
    figures |= growth(data, options)
    worst = ("sentence_over_lasso", "lasso_over_sklearn", "lasso_over_skglm", "growth_exponent")
    print_table("The worst of the strengths", ["", ""], [[name, figures[name]] for name in worst if name in figures])
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
