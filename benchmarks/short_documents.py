"""Lasso and ridge on short documents: fit_linear and solver=majorize against liblinear, at equal objectives.

The documents, 10,000 of each corpus at most, are posts of two newsgroups (sci.med, sci.space) cut into pieces of 30
words, and sentences of the Stanford sentiment treebank (positive or negative). The design is tf-idf as in scikit-learn,
with rows of norm 1; the loss is logistic. The strengths are shares of the smallest strength at which the lasso has no
nonzero weight; ridge takes the same numbers. No contender has an intercept, because liblinear penalises its own. All
start from zero.

The minimum is the objective of `fit_linear` at a proven gap of 1e-9. liblinear gets the largest tolerance of a
descending row of them at which its objective is within 1e-4, or 1e-6, of the minimum, relative to it; for ridge, the
faster of its primal and dual solver counts. `fit_linear` is timed twice: with a tolerance chosen in the same way
("objective"), and with that number as the tolerance of the duality gap that it proves ("proven"). solver=majorize,
which trains task=textcat, proves its gap too; it is timed as well at its default, 1e-9. Without the corpora the
documents are planted, and the output says so.
"""

import warnings
from functools import partial

import numpy as np
import scipy.sparse
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from timing import arguments, compare, print_table, write_json

from structsparse.base.errors import UserError
from structsparse.corpora.known.newsgroups import newsgroups
from structsparse.corpora.known.sentiment import sentiment
from structsparse.corpora.planted.documents import planted_documents
from structsparse.penalties import L1, SquaredL2
from structsparse.solvers.linear import critical_strength, fit_linear
from structsparse.solvers.overlaps import Majorizer, OverlapProblem
from structsparse.solvers.overlaps.design import Design

COUNT, WORDS = 10_000, 30  # documents, and words of a piece of a post
SHARES, QUICK_SHARES = (0.3, 0.1, 0.03, 0.01), (0.1, 0.01)
CLOSE = (1e-4, 1e-6)  # relative distances from the minimum
CERTIFICATE, KKT = 1e-9, 1e-9  # as in conf/solver/majorize.yaml
PRECISE = 1e-9  # gap of the fit that gives the minimum
TOLERANCES = [10 ** (-k / 3) for k in range(2, 22)]
MANY = 10_000  # iterations, for a peer that would stop early
PENALTIES = {"lasso": (L1, 1), "ridge": (SquaredL2, 0)}  # and scikit-learn's l1_ratio


def documents(options):
    """The name, the design [documents, words] and the targets of each corpus."""
    makers = {
        "20news": lambda: newsgroups("science", [], "words", True, None, 0),
        "sst": lambda: sentiment("binary", True),
    }
    for name in list(makers)[: 1 if options.quick else 2]:
        try:
            labelled = makers[name]()
        except (UserError, OSError):
            labelled = planted_documents(0, COUNT, 10, 10, 2, 1000, WORDS, 100)
            name += " (planted, because the corpus was not found)"
        yield name, *tfidf([labelled.train, labelled.dev, labelled.test], WORDS if name == "20news" else None)


def tfidf(parts, length):
    """The tf-idf of at most COUNT documents, drawn from some parts, and their targets; `length` cuts documents."""
    tokens = np.concatenate([part.tokens for part in parts])
    sizes = np.concatenate([part.lengths for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    begins = np.append(True, np.diff(owner) > 0)
    if length is not None:
        begins |= place % length == 0
    piece = np.cumsum(begins) - 1
    counts = scipy.sparse.csr_matrix((np.ones(len(tokens)), (piece, tokens)))
    long_enough = np.flatnonzero(np.bincount(piece) >= (1 if length is None else length // 2))
    chosen = np.random.default_rng(0).permutation(long_enough)[:COUNT]
    counts = counts[chosen]
    X = TfidfTransformer().fit_transform(counts[:, np.flatnonzero(counts.getnnz(0))]).tocsc()
    X.sort_indices()
    X = scipy.sparse.csc_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)
    return X, np.where(labels[owner[begins]][chosen] == labels.max(), 1.0, -1.0)


def objective(X, y, weights, penalty):
    return float(np.logaddexp(0, -y * (X @ weights)).mean() + penalty.value(torch.from_numpy(weights)))


def of_table(X, y, penalty, gap):
    """What solver=majorize does from a design and a penalty on."""
    table = torch.zeros(X.shape[1], dtype=torch.float64)

    def solve():
        search = Majorizer(OverlapProblem(Design(X, y, "logistic", None), table, penalty), None, None, KKT, gap)
        return search.solve()

    return solve


def of_liblinear(X, y, strength, l1_ratio):
    """The calls of liblinear from large to small tolerances, by solver: primal and, for ridge, dual."""
    rows, options = scipy.sparse.csr_matrix(X), {"l1_ratio": l1_ratio, "C": 1 / (strength * len(y)), "max_iter": MANY}
    for dual in (False,) if l1_ratio else (False, True):
        models = [
            LogisticRegression(
                solver="liblinear", tol=tolerance, fit_intercept=False, random_state=0, dual=dual, **options
            )
            for tolerance in TOLERANCES
        ]
        yield [partial(model.fit, rows, y) for model in models]


def reached(calls, value, goal):
    """The first of the calls whose objective is at most the goal, or None."""
    return next((call for call in calls if value(call()) <= goal), None)


def contest(name, X, y, kind, share, strength, options):
    """Rows of the table and ratios of one corpus, penalty and strength."""
    make, l1_ratio = PENALTIES[kind]
    penalty = make(strength)
    fit = partial(fit_linear, X, y, penalty, intercept=False)
    ours = [partial(fit, tolerance=tolerance) for tolerance in TOLERANCES]
    theirs = list(of_liblinear(X, y, strength, l1_ratio))
    best = fit(tolerance=PRECISE)
    assert best.converged
    least = best.objective
    calls = {}
    for close in CLOSE:
        goal = least * (1 + close)
        for side, row in enumerate(theirs):
            call = reached(row, lambda model: objective(X, y, model.coef_[0].astype(float), penalty), goal)
            if call is not None:
                calls[f"liblinear{' dual' * side} {close:g}"] = call
        calls[f"objective {close:g}"] = reached(ours, lambda fitted: fitted.objective, goal)
        calls[f"proven {close:g}"] = partial(fit, tolerance=close)
        calls[f"majorize {close:g}"] = of_table(X, y, penalty, close)
    calls[f"majorize {CERTIFICATE:g}"] = of_table(X, y, penalty, CERTIFICATE)
    certificate = calls[f"majorize {CERTIFICATE:g}"]()
    assert certificate.gap <= CERTIFICATE or certificate.kkt <= KKT
    assert abs(certificate.objective - least) <= CERTIFICATE
    seconds = compare(calls, options)
    figures, cells = {}, []
    for close in CLOSE:
        peers = [taken for who, taken in seconds.items() if who.startswith("liblinear") and who.endswith(f" {close:g}")]
        cells.append(1e3 * min(peers) if peers else "-")
        for who in ("objective", "proven", "majorize"):
            taken = seconds[f"{who} {close:g}"]
            cells += [1e3 * taken] + ([taken / min(peers)] if peers and who != "majorize" else [])
            if peers:
                figures[f"{kind}_{who}_over_liblinear_{close:g}_{name.split()[0]}_at_{share:g}"] = taken / min(peers)
    row = [f"{name} {kind} {share:g}", *cells, 1e3 * seconds[f"majorize {CERTIFICATE:g}"], f"{certificate.gap:.0e}"]
    return row, figures


def main():
    options = arguments(__doc__)
    warnings.filterwarnings("ignore", module=r"sklearn|numba")
    columns = ["share of critical"]
    for close in CLOSE:
        columns += [f"liblinear {close:g}", "objective", "ratio", "proven", "ratio", "majorize"]
    columns += [f"majorize {CERTIFICATE:g}", "its gap"]
    rows, figures = [], {}
    for name, X, y in documents(options):
        print(f"data: {name}; {X.shape[0]:,} documents, {X.shape[1]:,} words, {X.nnz:,} entries")
        critical = critical_strength(X, y, L1(1.0), intercept=False)
        for kind in PENALTIES:
            for share in QUICK_SHARES if options.quick else SHARES:
                row, found = contest(name, X, y, kind, share, share * critical, options)
                rows.append(row)
                print("  ".join(cell if isinstance(cell, str) else f"{cell:.2f}" for cell in row), flush=True)
                figures |= found
    print_table("Milliseconds, and ours over liblinear's", columns, rows)
    worst = {
        f"{kind}_{who}": max(value for key, value in figures.items() if key.startswith(f"{kind}_{who}"))
        for kind in PENALTIES
        for who in ("objective", "proven", "majorize")
    }
    print_table("Time of ours over liblinear's, the worst of all", ["", ""], [list(pair) for pair in worst.items()])
    write_json(options.json, figures | worst)


if __name__ == "__main__":
    main()
