"""Reports on n-gram models against loops over their entries."""

import numpy as np

from structsparse.tasks.lm.report import by_depth, distinct_parameters
from tests.tasks.lm.test_task import language_data


def test_distinct_parameters_are_paths_without_branches_at_one_value():
    tree = language_data().trie(4)
    draw = np.random.default_rng(0)
    table = draw.integers(0, 3, tree.entries).astype(float)
    expected = 0
    children = [[] for _ in range(tree.entries)]
    for e in range(tree.words, tree.entries):
        if table[e]:
            children[tree.entry_above[e]].append(e)
    for e in range(tree.entries):
        above = tree.entry_above[e]
        joined = above >= 0 and table[above] == table[e] and len(children[above]) == 1
        expected += bool(table[e]) and not joined
    assert distinct_parameters(tree, table) == expected
    rows = by_depth(tree, table).rows
    assert sum(row[4] for row in rows) == (table != 0).sum()
    assert sum(row[1] for row in rows) == tree.nodes
