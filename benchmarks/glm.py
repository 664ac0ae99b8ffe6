"""Sparse linear classifiers to a duality gap: ours against skglm and celer, CPU time of one thread.

Bags of words of two newsgroups (sci.med against sci.space): logs of counts, rows of norm 1, every word of the training
posts a feature; groups of words that begin with the same three letters. All contenders minimise the same objective,
mean loss + strength * penalty without an intercept (celer has none for its classifier), from zero. The gap is relative
to the objective at zero, log 2 for the logistic loss. skglm gets the largest tolerance of a descending row of them at
which our own evaluation finds its gap to be at most 1e-6, so that it need not do more than we do; celer, which has a
gap of its own, the one at which it certifies that itself. Without STRUCTSPARSE_DATA/20news the matrix is drawn, and
the output says so.
"""

import os
import re
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse
import skglm.penalties
import torch
from celer import GroupLasso as CelerGroupLasso
from celer import LogisticRegression as CelerLogisticRegression
from skglm.datafits import Logistic, LogisticGroup, QuadraticGroup
from skglm.solvers import GroupBCD, ProxNewton
from skglm.utils.jit_compilation import compiled_clone
from skglm.utils.sparse_ops import sparse_columns_slice, spectral_norm
from timing import arguments, compare, print_table, write_json

from structsparse.groups import Partition, by_row
from structsparse.penalties import L1, GroupLasso, SparseGroupLasso
from structsparse.solvers.linear import critical_strength, fit_linear

POSITIVE, NEGATIVE = "sci.med", "sci.space"
PREFIX = 3  # letters that words of a group share
GAP = 1e-6
AGREE = 1e-6  # relative difference of objectives
SHARES = (0.1, 0.02, 0.01)  # of the critical strength
MIX = 0.5  # of the sparse group lasso
TOLERANCES = [10 ** (-k / 3) for k in range(15, 40)]
QUICK_TOLERANCES = TOLERANCES[::3]
MANY = 10_000  # iterations, for peers that would stop early


def posts(folder):
    for path in sorted(folder.iterdir()):
        yield Counter(re.findall(r"\w+", path.read_text(encoding="latin-1").lower()))


def newsgroups():
    """Words, and the design [posts, words] with targets."""
    root = Path(os.environ.get("STRUCTSPARSE_DATA", "")) / "20news" / "train"
    bags = [(bag, sign) for name, sign in ((POSITIVE, 1.0), (NEGATIVE, -1.0)) for bag in posts(root / name)]
    words = sorted({word for bag, _ in bags for word in bag})
    place = {word: j for j, word in enumerate(words)}
    entries = [(np.log1p(count), i, place[word]) for i, (bag, _) in enumerate(bags) for word, count in bag.items()]
    values, items, features = map(np.array, zip(*entries, strict=True))
    X = scipy.sparse.csr_array((values, (items, features)), shape=(len(bags), len(words)))
    X = scipy.sparse.diags_array(1 / np.sqrt(X.multiply(X).sum(1))) @ X
    return words, X, np.array([sign for _, sign in bags])


def planted(items=1200, features=25_000, topics=40):
    """Words drawn by Zipf's law; a few groups of them decide."""
    random = np.random.default_rng(0)
    words = [f"{j % 5000:04d}{j}" for j in range(features)]  # the first three digits make 500 groups
    order = np.argsort(words)
    words = [words[j] for j in order]
    chance = random.permutation(1 / np.arange(1, features + 1))
    rows = [np.unique(random.choice(features, 300, p=chance / chance.sum())) for _ in range(items)]
    X = scipy.sparse.csr_array(
        (np.ones(sum(map(len, rows))), np.concatenate(rows), np.cumsum([0, *map(len, rows)])), (items, features)
    )
    groups = np.array([int(word[:PREFIX]) for word in words])
    truth = random.standard_normal(features) * np.isin(groups, random.choice(500, topics, replace=False))
    X = scipy.sparse.diags_array(1 / np.sqrt(X.multiply(X).sum(1))) @ X
    scores = X @ truth
    return words, X, np.where(scores + 0.1 * random.standard_normal(items) > np.median(scores), 1.0, -1.0)


class Data:
    """The matrix in the form each contender wants, and the groups."""

    def __init__(self):
        try:
            (words, X, self.y), self.name = newsgroups(), f"20news, {POSITIVE} against {NEGATIVE}"
        except FileNotFoundError:
            (words, X, self.y), self.name = planted(), "planted, because STRUCTSPARSE_DATA/20news was not found"
        X = scipy.sparse.csc_matrix(X)
        X.sort_indices()
        self.X = scipy.sparse.csc_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)
        prefixes = [word[:PREFIX] for word in words]
        names = sorted(set(prefixes))
        code = {name: g for g, name in enumerate(names)}
        ids = np.array([code[prefix] for prefix in prefixes])  # ascending, as the words are
        self.groups = Partition(torch.from_numpy(ids), names, (len(words),))
        self.sizes = np.bincount(ids)
        self.pointer = np.append(0, self.sizes.cumsum()).astype(np.int32)
        self.indices = np.arange(len(words), dtype=np.int32)


class SparseLogisticGroup(LogisticGroup):
    """skglm 0.5 fits no group logistic on a sparse matrix. What is missing, from its own parts as in QuadraticGroup."""

    def initialize_sparse(self, X_data, X_indptr, X_indices, y):
        self.lipschitz = np.zeros(len(self.grp_ptr) - 1)

    def get_lipschitz_sparse(self, X_data, X_indptr, X_indices, y):
        grp_ptr, grp_indices = self.grp_ptr, self.grp_indices
        lipschitz = np.zeros(len(grp_ptr) - 1)
        for g in range(len(grp_ptr) - 1):
            data, pointer, indices = sparse_columns_slice(
                grp_indices[grp_ptr[g] : grp_ptr[g + 1]], X_data, X_indptr, X_indices
            )
            lipschitz[g] = spectral_norm(data, pointer, indices, len(y)) ** 2 / (4 * len(y))
        return lipschitz

    def gradient_g_sparse(self, X_data, X_indptr, X_indices, y, w, Xw, g):
        features = self.grp_indices[self.grp_ptr[g] : self.grp_ptr[g + 1]]
        grad = np.zeros(len(features))
        for k in range(len(features)):
            grad[k] = self.gradient_scalar_sparse(X_data, X_indptr, X_indices, y, Xw, features[k])
        return grad


# --- the peers: from a strength and a tolerance to a call that gives the weights


def skglm_solve(solver, X, y, datafit, penalty):
    return lambda: solver._solve(X, y, datafit, penalty)[0]


def skglm_lasso(data, strength, tolerance):
    solver = ProxNewton(tol=tolerance, fit_intercept=False, max_iter=MANY)
    penalty = compiled_clone(skglm.penalties.L1(strength))
    return skglm_solve(solver, data.X, data.y, compiled_clone(Logistic()), penalty)


def skglm_group_penalty(data, strength):
    weights = np.sqrt(data.sizes)
    return compiled_clone(skglm.penalties.WeightedGroupL2(strength, weights, data.pointer, data.indices))


def skglm_group(kind, data, strength, tolerance):
    solver = GroupBCD(tol=tolerance, fit_intercept=False, max_iter=200, max_epochs=1000)
    datafit = compiled_clone(kind(data.pointer, data.indices))
    return skglm_solve(solver, data.X, data.y, datafit, skglm_group_penalty(data, strength))


def skglm_sparse_group(data, strength, tolerance):
    solver = GroupBCD(tol=tolerance, fit_intercept=False, max_iter=200, max_epochs=1000, ws_strategy="fixpoint")
    weights = (1 - MIX) * np.sqrt(data.sizes), np.full(data.X.shape[1], MIX)
    penalty = compiled_clone(skglm.penalties.WeightedL1GroupL2(strength, *weights, data.pointer, data.indices))
    datafit = compiled_clone(SparseLogisticGroup(data.pointer, data.indices))
    return skglm_solve(solver, data.X, data.y, datafit, penalty)


def celer_lasso(data, strength, tolerance):
    model = CelerLogisticRegression(C=1 / (len(data.y) * strength), tol=tolerance, max_iter=MANY)
    return lambda: model.fit(data.X, data.y).coef_[0]


def celer_group(data, strength, tolerance):
    model = CelerGroupLasso(
        groups=data.sizes.tolist(), alpha=strength, tol=tolerance, weights=np.sqrt(data.sizes), fit_intercept=False
    )
    return lambda: model.fit(data.X, data.y).coef_


LASSO = {"skglm": skglm_lasso, "celer": celer_lasso}
GROUP_LOGISTIC = {"skglm": partial(skglm_group, SparseLogisticGroup)}
SINGLE = {"celer": celer_lasso}
GROUP_SQUARED = {"skglm": partial(skglm_group, QuadraticGroup), "celer": celer_group}
SPARSE_GROUP = {"skglm": skglm_sparse_group}
OWN = {celer_lasso: GAP, celer_group: GAP / 2}  # the tolerance at which celer itself certifies our relative gap


def contests(groups):
    """Name, title, penalty, loss, peers."""
    yield "lasso_logistic", "Lasso, logistic", L1(1.0), "logistic", LASSO
    yield "group_logistic", "Group lasso, logistic", GroupLasso(groups, 1.0), "logistic", GROUP_LOGISTIC
    single = by_row((groups.shape[0],), weights="one")
    yield "group_logistic", "Group lasso of single words, logistic", GroupLasso(single, 1.0), "logistic", SINGLE
    yield "group_squared", "Group lasso, squared loss", GroupLasso(groups, 1.0), "squared", GROUP_SQUARED
    sparse = SparseGroupLasso(groups, 1.0, MIX)
    yield "sparse_group_logistic", "Sparse group lasso, logistic", sparse, "logistic", SPARSE_GROUP


def tuned(make, data, penalty, loss, quick):
    """The call at the largest tolerance that is small enough, that tolerance, and what it found; None if none is."""
    strength = float(penalty.strength)
    tolerances = [OWN[make]] if make in OWN else QUICK_TOLERANCES if quick else TOLERANCES
    for tolerance in tolerances:
        call = make(data, strength, tolerance)
        found = certificate(data, penalty, loss, call())
        if found.gap <= GAP or make in OWN:
            return call, tolerance, found
    return None


def certificate(data, penalty, loss, weights):
    """Objective and gap of given weights, by our own evaluation."""
    start = np.asarray(weights, dtype=float), 0.0
    return fit_linear(data.X, data.y, penalty, loss, GAP, start, intercept=False, iterations=0)


def shares_of(peers, quick):
    """In a minute there is no time for all: celer takes seconds over the norms of groups of sparse columns."""
    if not quick:
        return SHARES
    return SHARES[:2] if celer_group not in peers.values() else SHARES[:1]


def contest(data, name, title, penalty, loss, peers, options):
    critical = critical_strength(data.X, data.y, penalty, loss, intercept=False)
    ratios, rows = {}, []
    for share in shares_of(peers, options.quick):
        penalty.strength = share * critical
        calls = {"ours": partial(fit_linear, data.X, data.y, penalty, loss, GAP, intercept=False)}
        found = {"ours": (calls["ours"], GAP, calls["ours"]())}
        assert found["ours"][2].converged
        for peer, make in peers.items():
            best = tuned(make, data, penalty, loss, options.quick)
            if best is None:
                print(
                    f"{peer} does not reach a gap of {GAP} at any tolerance: {title}, {share} of the critical strength"
                )
                continue
            found[peer], calls[peer] = best, best[0]
            mine, other = found["ours"][2].objective, best[2].objective
            assert abs(mine - other) <= AGREE * mine, f"{peer}, {title}: {other} is not {mine}"
        seconds = compare(calls, options)
        for contender, (_, tolerance, fit) in found.items():
            ratio = seconds["ours"] / seconds[contender]
            ratios.setdefault(contender, {})[share] = ratio
            cells = [f"{tolerance:.0e}", f"{fit.gap:.1e}", f"{fit.objective:.7f}", str(len(fit.groups))]
            rows.append([f"{share} {contender}", 1e3 * seconds[contender], ratio, *cells])
    print_table(title, ["share of critical", "ms", "ours/theirs", "tolerance", "our gap", "objective", "living"], rows)
    figures = {}
    for peer, of_shares in ratios.items():
        if peer != "ours":
            figures[f"{name}_time_over_{peer}"] = max(of_shares.values())
            figures |= {f"{name}_time_over_{peer}_at_{share}": ratio for share, ratio in of_shares.items()}
    return figures


def main():
    options = arguments(__doc__)
    warnings.filterwarnings("ignore", module=r"skglm|celer|sklearn|numba")
    data = Data()
    items, features = data.X.shape
    print(f"data: {data.name}; {items:,} items, {features:,} features, {data.X.nnz:,} entries")
    print(f"groups: {len(data.sizes):,} by the first {PREFIX} letters, the largest of {data.sizes.max()} features")
    print(
        "skglm has no group logistic for sparse matrices: its GroupBCD got the missing gradient and Lipschitz constants"
    )
    print("celer's logistic regression knows groups of one word only, which are a lasso: they meet our group solver;")
    print("its group lasso, of the squared loss, meets ours of that loss\n")
    figures = {}
    for part in contests(data.groups):
        figures |= contest(data, *part, options)
    worst = {name: figure for name, figure in figures.items() if "_at_" not in name}
    print_table("Time of ours over theirs, the worst of the strengths", ["", ""], [list(row) for row in worst.items()])
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
