"""Reports on a trained n-gram language model: weights by length of context, largest weights, number of parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from structsparse.base.files import atomic_file, write_text
from structsparse.report import tables
from structsparse.tasks.lm.contexts import ContextTree

MOST_ENTRIES = 10_000  # maximum number of rows in contexts.tsv


def write_tables(folder: Path, tree: ContextTree, weights: np.ndarray) -> tables.Table:
    """Language-model report: write contexts.tsv, depths.tsv and depths.md for the n-gram model of a run.

    Returns the table in depths.tsv, which has a row for each length of context."""
    table = by_depth(tree, weights)
    write_text(folder / "contexts.tsv", tables.tsv(heaviest(tree, weights)))
    write_text(folder / "depths.tsv", tables.tsv(table))
    write_text(folder / "depths.md", tables.markdown(table))
    return table


def write_log_probabilities(path: Path, log_probabilities: np.ndarray) -> None:
    """Language-model report: write the log-probabilities of the test words to a numpy file.

    Words outside the vocabulary are left out."""
    with atomic_file(path) as file:
        np.save(file, log_probabilities)


def by_depth(tree: ContextTree, weights: np.ndarray) -> tables.Table:
    """Language-model report: a table with counts of contexts and of nonzero weights for each length of context."""
    depth, living = tree.depth[tree.entry_node], weights != 0
    contexts = np.zeros(tree.nodes, bool)
    contexts[tree.entry_node[living]] = True
    rows = []
    for k in range(int(tree.depth.max()) + 1):
        entries, nodes = depth == k, tree.depth == k
        values = weights[entries & living]
        counts = int(nodes.sum()), int((nodes & contexts).sum()), int(entries.sum()), len(values)
        sizes = float(np.abs(values).mean()) if len(values) else 0.0, float(np.linalg.norm(values))
        rows.append((k, *counts, *sizes))
    header = "words of context", "contexts", "living", "entries", "living entries", "mean size", "norm"
    return tables.Table(header, rows)


def heaviest(tree: ContextTree, weights: np.ndarray) -> tables.Table:
    """Language-model report: a table of the heaviest nonzero weights, heaviest first.

    The heaviness is |weight| times the occurrences of its context and next word in training."""
    gains = np.abs(weights) * tree.entry_count
    entries = np.argsort(-gains, kind="stable")[: min(int((weights != 0).sum()), MOST_ENTRIES)]
    contexts = (tree.context(node) for node in tree.entry_node[entries].tolist())
    words = (tree.vocabulary.name(word) for word in tree.entry_word[entries].tolist())
    numbers = weights[entries].tolist(), tree.entry_count[entries].tolist()
    return tables.Table(("context", "word", "weight", "count"), list(zip(contexts, words, *numbers, strict=True)))


def distinct_parameters(tree: ContextTree, weights: np.ndarray) -> int:
    """Language-model report: the number of parameters, as defined by Nelakanti et al. (2013, definition 3).

    A weight belongs to a context and a next word. Its parent is the weight of the same next word after the context
    without the first word. Every nonzero weight counts, with one exception: a weight that equals its parent, and is the
    only nonzero child of this parent."""
    living = weights != 0
    above, below = tree.entry_above[tree.words :], slice(tree.words, None)
    living_children = np.bincount(above[living[below]], minlength=tree.entries)
    same = living[below] & (living_children[above] == 1) & _nearly_equal(weights[below], weights[above])
    return int(living.sum() - same.sum())


def _nearly_equal(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Language-model report: whether pairs of weights are equal up to a relative difference of 1e-6 (bool [pairs])."""
    return np.abs(left - right) <= 1e-6 * np.maximum(np.abs(left), np.abs(right))
