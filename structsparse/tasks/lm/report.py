"""Reports on a trained n-gram model: weights by length of context, entries with the largest weights, parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from structsparse.base.files import atomic_file, write_text
from structsparse.report import tables
from structsparse.tasks.lm.contexts import ContextTree

MOST_ENTRIES = 10_000  # largest number of entries in contexts.tsv


def write_tables(folder: Path, tree: ContextTree, weights: np.ndarray) -> tables.Table:
    """Write contexts.tsv, depths.tsv and depths.md of an n-gram model; returns the table of depths for the console."""
    table = by_depth(tree, weights)
    write_text(folder / "contexts.tsv", tables.tsv(heaviest(tree, weights)))
    write_text(folder / "depths.tsv", tables.tsv(table))
    write_text(folder / "depths.md", tables.markdown(table))
    return table


def write_log_probabilities(path: Path, log_probabilities: np.ndarray) -> None:
    """Write the log-probabilities of the test targets, to compare two language models target by target."""
    with atomic_file(path) as file:
        np.save(file, log_probabilities)


def by_depth(tree: ContextTree, weights: np.ndarray) -> tables.Table:
    """Table of the living contexts and entries of a language model, one row per number of words in the context."""
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
    """Table of the living entries of a language model, sorted by |weight| times occurrences in training."""
    gains = np.abs(weights) * tree.entry_count
    entries = np.argsort(-gains, kind="stable")[: min(int((weights != 0).sum()), MOST_ENTRIES)]
    contexts = (tree.context(node) for node in tree.entry_node[entries].tolist())
    words = (tree.vocabulary.name(word) for word in tree.entry_word[entries].tolist())
    numbers = weights[entries].tolist(), tree.entry_count[entries].tolist()
    return tables.Table(("context", "word", "weight", "count"), list(zip(contexts, words, *numbers, strict=True)))


def distinct_parameters(tree: ContextTree, weights: np.ndarray) -> int:
    """The number of parameters of a language model, where equal weights along a path count once.

    This is the number of living entries, without entries that have the same weight as a parent entry with no other
    living child (Nelakanti et al. 2013, definition 3)."""
    living = weights != 0
    above, below = tree.entry_above[tree.words :], slice(tree.words, None)
    living_children = np.bincount(above[living[below]], minlength=tree.entries)
    same = living[below] & (living_children[above] == 1) & _nearly_equal(weights[below], weights[above])
    return int(living.sum() - same.sum())


def _nearly_equal(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Whether pairs of weights are equal up to a relative difference of 1e-6."""
    return np.abs(left - right) <= 1e-6 * np.maximum(np.abs(left), np.abs(right))
