"""Copies among arc templates: templates that divide all arcs into features exactly as an earlier template does.

Two such templates have the same features under other names. Example: `h.upos & m.upos` and `h.xpos & m.xpos`, if a
treebank has the same tags in both columns. With a copy, each feature would have its weight split between two groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from structsparse.corpora.columns import Sentences
from structsparse.tasks.parsing.features.arc_keys import ArcKeys, count_distinct
from structsparse.tasks.parsing.features.templates import ArcTemplate

# number of arcs in the sample. All templates are compared on the sample; those that agree there, on all arcs.
SAMPLE = 10_000
MIX = np.uint64(0x9E3779B97F4A7C15)  # odd factor with which two keys are combined into one


def without_copies(
    sentences: Sentences, templates: Sequence[ArcTemplate], copies_too: bool = False
) -> tuple[list[ArcTemplate], list[str]]:
    """The given arc templates without copies of earlier templates, and notes for the user.

    Templates are compared on all arcs of the sentences. With `copies_too`, copies are kept but counted in a note."""
    copies = _copies(sentences, _alike(_sample(sentences), templates))
    if not copies:
        return list(templates), []
    count = f"{len(copies)} of {len(templates)} templates {'is a copy' if len(copies) == 1 else 'are copies'} of others"
    if copies_too:
        return list(templates), [f"{count} on this treebank"]
    kept = [template for template in templates if template not in copies]
    return kept, [f"{count} on this treebank and left out, such as {min(copies, key=templates.index)}"]


def _sample(sentences: Sentences) -> Sentences:
    """Copies of arc templates: randomly drawn sentences with about `SAMPLE` arcs, the same in every run."""
    order = np.random.default_rng(0).permutation(len(sentences))
    arcs = np.cumsum(sentences.lengths[order].astype(np.int64) ** 2)
    return sentences.select(np.sort(order[: np.searchsorted(arcs, SAMPLE) + 1]))


def _alike(sample: Sentences, templates: Sequence[ArcTemplate]) -> list[list[ArcTemplate]]:
    """Copies of arc templates: sets of two or more templates that divide the arcs of a sample in the same way."""
    arcs, sets = ArcKeys(sample, templates), {}
    for k, template in enumerate(templates):
        sets.setdefault(_first_places(arcs.keys(k)).tobytes(), []).append(template)
    return [members for members in sets.values() if len(members) > 1]


def _copies(sentences: Sentences, sets: Sequence[Sequence[ArcTemplate]]) -> set[ArcTemplate]:
    """Copies of arc templates: the templates that divide all arcs as an earlier template of their set does."""
    copies: set[ArcTemplate] = set()
    for members in sets:
        arcs = ArcKeys(sentences, members)
        firsts: list[tuple[np.ndarray, int]] = []  # of templates that are no copies: keys, number of distinct keys
        for k, template in enumerate(members):
            keys = arcs.keys(k)
            distinct = count_distinct(keys)
            if any(distinct == other[1] == _count_pairs(keys, other[0]) for other in firsts):
                copies.add(template)
            else:
                firsts.append((keys, distinct))
    return copies


def _count_pairs(keys: np.ndarray, others: np.ndarray) -> int:
    """Copies of arc templates: the number of distinct pairs (key of one template, key of the other) on all arcs.

    If it equals the number of distinct keys of both templates, each key of one goes with a single key of the other."""
    return count_distinct(keys + others * MIX)


def _first_places(keys: np.ndarray) -> np.ndarray:
    """Copies of arc templates: for each arc of a sample, the index of the first arc with the same key (int64).

    The array shows which arcs have equal features, without the names of the features."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first[inverse]
