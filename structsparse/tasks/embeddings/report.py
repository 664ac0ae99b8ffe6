"""Reports on word vectors: the words that define each dimension, and how well dimensions match planted trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from structsparse.base.files import write_text
from structsparse.report.tables import Table, markdown, tsv
from structsparse.tasks.embeddings.data import WordData, planted_words

FEW_WORDS, MOST_WORDS = 3, 10  # on the console and in files: words and contexts that a table shows for a dimension
LARGE = 0.5  # a word belongs to a dimension if its code is at least this share of the largest, with the same sign
MATCH = 0.5  # a dimension matches the planted node with the most similar words, if their Jaccard index is at least this


def dimension_table(
    data: WordData, codes: csr_array, dictionary: np.ndarray, names: list[str], most: int = MOST_WORDS
) -> Table:
    """Report on word vectors: for each dimension, its nonzero codes and the words and contexts with the largest ones.

    `codes` is [dimensions, words] and `dictionary` is [dimensions, contexts]. At most `most` words are shown."""
    rows = []
    for k, (name, atom) in enumerate(zip(names, dictionary, strict=True)):
        code = codes[[k]].toarray()[0]
        living = int((code != 0).sum())
        rows.append((name, living, living / len(code), _largest(data, code, most), _largest(data, atom, most)))
    return Table(("dimension", "words", "share", "words with large codes", "contexts"), rows)


def _largest(data: WordData, numbers: np.ndarray, most: int) -> str:
    """Report on word vectors: the words with the largest numbers of the main sign of a dimension."""
    signed = numbers * main_sign(numbers)
    positive = np.flatnonzero(signed > 0)
    order = positive[np.argsort(-signed[positive], kind="stable")[:most]]
    return " ".join(data.words[k] for k in order.tolist())


def main_sign(numbers: np.ndarray) -> float:
    """Report on word vectors: the sign of the number with the largest absolute value."""
    return 1.0 if len(numbers) == 0 or numbers[np.abs(numbers).argmax()] >= 0 else -1.0


def write_dimensions(folder: Path, table: Table) -> None:
    """Report on word vectors: write dimensions.tsv and dimensions.md."""
    write_text(folder / "dimensions.tsv", tsv(table))
    write_text(folder / "dimensions.md", markdown(table))


def planted_scores(data: WordData, codes: np.ndarray) -> dict[str, float]:
    """Report on word vectors: precision and recall of the dimensions against the nodes of planted trees.

    Precision is the share of living dimensions that match a node, recall the share of nodes that a dimension matches.
    For other texts the result is empty."""
    nodes = planted_words(data)
    if not nodes:
        return {}
    member = np.zeros((len(nodes), data.items))
    for k, (_, words) in enumerate(nodes):
        member[k, words] = 1
    living = codes[(codes != 0).any(axis=1)]
    large = np.array([code * main_sign(code) >= LARGE * np.abs(code).max() for code in living], float)
    if not len(living):
        return {"planted_precision": 0.0, "planted_recall": 0.0}
    both = large @ member.T
    jaccard = both / (large.sum(axis=1)[:, None] + member.sum(axis=1) - both)
    matched = jaccard.argmax(axis=1)[jaccard.max(axis=1) >= MATCH]
    return {"planted_precision": len(matched) / len(living), "planted_recall": len(np.unique(matched)) / len(nodes)}
