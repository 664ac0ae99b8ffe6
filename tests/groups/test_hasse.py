"""Hasse diagrams: which group lies in which, against a scalar loop over all pairs and triples."""

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from structsparse.base.errors import UserError
from structsparse.groups import Cover, Forest, by_parents, by_row, cover_rows, hasse
from structsparse.groups.hasse import hasse_figure, hasse_text


def random_sets(generator, groups, atoms):
    chosen = generator.random((groups, atoms)) < generator.random((groups, 1))
    chosen[np.arange(groups), generator.integers(0, atoms, groups)] = True
    return [row.nonzero()[0].tolist() for row in chosen]


def covers(sets):
    """Pairs (inner, outer) of different sets between which no third one lies, by a loop."""
    sets = {frozenset(s) for s in sets}
    return {(a, b) for a in sets for b in sets if a < b and not any(a < c < b for c in sets)}


def test_the_order_of_random_covers_is_that_of_a_loop():
    generator = np.random.default_rng(0)
    for trial in range(60):
        sets = random_sets(generator, int(generator.integers(1, 14)), 5 if trial % 2 else 9)
        groups = cover_rows((9, 2), sets, names=[f"g{k}" for k in range(len(sets))])
        diagram = hasse._diagram(groups, None, None)
        content = [frozenset(sets[int(name.split(" = ")[0][1:])]) for name in diagram.names]
        assert sorted(name for names in diagram.names for name in names.split(" = ")) == sorted(groups.names)
        assert len(set(content)) == len(content)
        found = {(content[a], content[b]) for a, b in zip(diagram.inner, diagram.outer, strict=True)}
        assert found == covers(sets)
        assert diagram.sizes.tolist() == [2 * len(s) for s in content]


def test_text_of_an_order():
    groups = cover_rows((5, 2), [[0], [0, 1], [0, 2], [0, 1, 2, 3], [4], [1, 0]], names=list("abcdef"))
    assert hasse_text(groups).splitlines() == [
        "d  8 entries",
        "  b = f  4 entries",
        "    a  2 entries",
        "  c  4 entries",
        "    a  2 entries",
        "e  2 entries",
    ]


def test_living_and_dead_are_told():
    groups = cover_rows((4, 1), [[0], [0, 1], [2]], names=list("abc"))
    W = torch.tensor([[0.0], [1.0], [0.0], [1.0]], requires_grad=True)
    expected = ["● b  2 entries", "  ○ a  1 entry", "○ c  1 entry"]
    assert hasse_text(groups, W).splitlines() == expected
    assert hasse_text(groups, alive=groups.alive(W.detach())).splitlines() == expected
    with pytest.raises(UserError, match=r"shape \(2,\), expected one for each of 3 groups"):
        hasse_text(groups, alive=torch.ones(2))


def test_a_group_inside_two_is_told_in_full_once():
    groups = cover_rows((4, 1), [[0], [0, 1], [0, 1, 2], [0, 1, 3]], names=list("abcd"))
    assert [line.strip().split("  ")[0] for line in hasse_text(groups).splitlines()] == ["c", "b", "a", "d", "b"]
    assert hasse_text(groups).splitlines()[-1].endswith("(see above)")


def test_text_of_a_forest_is_the_forest():
    parents = [-1, 0, 1, 0, -1, 4]
    lines = hasse_text(by_parents((6, 2), parents)).splitlines()
    assert lines == [
        "row 0  8 entries",
        "  row 1  4 entries",
        "    row 2  2 entries",
        "  row 3  2 entries",
        "row 4  4 entries",
        "  row 5  2 entries",
    ]


def test_disjoint_groups_are_a_list():
    assert hasse_text(by_row((3, 2))).splitlines() == [f"row {k}  2 entries" for k in range(3)]


def test_long_texts_are_cut_and_say_so():
    text = hasse_text(by_row((100_000, 2)), lines=5).splitlines()
    assert (len(text), text[-1]) == (6, "... and 99,995 more groups")
    chain = by_parents((30_000, 1), [-1, *range(29_999)])
    assert hasse_text(chain, lines=3).splitlines()[-1] == "... and 29,997 more groups"


def test_the_order_of_too_many_sets_is_not_worked_out():
    count = hasse.LARGEST + 1
    text = hasse_text(cover_rows((count, 1), [list(range(k + 1)) for k in range(count)])).splitlines()
    assert str(count) in text[0]
    assert str(hasse.LARGEST) in text[0]
    assert not any(line.startswith(" ") for line in text)


def boxes(figure):
    (axes,) = figure.axes
    return {text.get_text().split("\n")[0]: text for text in axes.texts}


def lines_of(figure):
    (axes,) = figure.axes
    (edges,) = axes.collections
    where = {tuple(np.round(box.get_position(), 6)): name for name, box in boxes(figure).items()}
    return {tuple(where[tuple(np.round(end, 6))] for end in segment) for segment in edges.get_segments()}


def test_a_picture_shows_each_group_and_each_pair_once():
    groups = cover_rows((5, 2), [[0], [0, 1], [0, 2], [0, 1, 2, 3], [4]], names=list("abcde"))
    W = torch.zeros(5, 2)
    W[1] = 1
    figure = hasse_figure(groups, W)
    assert isinstance(figure, Figure)
    assert set(boxes(figure)) == set("abcde")
    assert lines_of(figure) == {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")}
    pale = {name for name, box in boxes(figure).items() if box.get_color() != "black"}
    assert pale == {"a", "c", "e"}
    assert "2 alive" in figure.axes[0].get_title()
    for inner, outer in lines_of(figure):
        assert boxes(figure)[inner].get_position()[1] < boxes(figure)[outer].get_position()[1]


@pytest.mark.parametrize(
    "make", [lambda: by_row((40, 2)), lambda: by_parents((40, 2), [(k - 1) // 2 for k in range(40)])]
)
def test_boxes_do_not_lie_on_each_other(make, tmp_path):
    groups = make()
    figure = hasse_figure(groups)
    positions = [box.get_position() for box in boxes(figure).values()]
    assert len(set(positions)) == len(positions) == len(groups)
    figure.savefig(tmp_path / "hasse.png")
    renderer = FigureCanvasAgg(figure).get_renderer()
    extents = [box.get_window_extent(renderer) for box in boxes(figure).values()]
    assert not any(a.overlaps(b) for k, a in enumerate(extents) for b in extents[:k])
    if isinstance(groups, Forest):
        assert lines_of(figure) == {(f"row {k}", f"row {(k - 1) // 2}") for k in range(1, 40)}


def test_pictures_nobody_could_read_are_refused():
    for groups in (by_row((hasse.LARGEST + 1, 1)), by_parents((100, 1), [-1, *range(99)])):
        with pytest.raises(UserError, match="is illegible"):
            hasse_figure(groups)


def test_nothing_to_show():
    groups = by_row((0, 2))
    assert hasse_text(groups) == ""
    assert not boxes(hasse_figure(groups))
    assert isinstance(cover_rows((3, 1), [[0]]), Cover)
