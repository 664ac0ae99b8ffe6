"""Reports on word vectors: defining words of dimensions, and how dimensions match planted trees."""

import numpy as np
import pytest
from scipy import sparse

from structsparse.tasks.embeddings import report
from structsparse.tasks.embeddings.data import WordData

WORDS = ("a1", "a2", "b1", "b2", "common")
PLANTED = {"1": ("a1", "a2", "b1", "b2"), "1.1": ("a1", "a2"), "1.2": ("b1", "b2")}


def data(planted=PLANTED) -> WordData:
    return WordData("text", WORDS, np.ones(5, np.int64), sparse.csr_array((5, 5), dtype=np.float32), None, (), planted)


def codes(*rows) -> np.ndarray:
    return np.array(rows, np.float32)


ROOT, LEFT, RIGHT, WRONG, DEAD = [1, 0.9, 0.8, 1, 0.1], [-2, -1.5, 0, 0.5, 0], [0, 0, 3, 3, 1], [0, 1, 0, 0, 1], [0] * 5


@pytest.mark.parametrize(
    ("rows", "precision", "recall"),
    [
        ((ROOT, LEFT, RIGHT), 1.0, 1.0),
        ((ROOT, LEFT, RIGHT, DEAD), 1.0, 1.0),
        ((LEFT, LEFT, WRONG, DEAD), 2 / 3, 1 / 3),
        ((WRONG,), 0.0, 0.0),
        ((DEAD,), 0.0, 0.0),
    ],
)
def test_dimensions_match_planted_nodes_by_their_large_codes(rows, precision, recall):
    scores = report.planted_scores(data(), codes(*rows))
    assert scores == {"planted_precision": pytest.approx(precision), "planted_recall": pytest.approx(recall)}


def test_a_real_text_has_no_planted_scores():
    assert report.planted_scores(data({}), codes(ROOT)) == {}


def test_a_dimension_is_defined_by_the_words_of_its_main_sign(tmp_path):
    table = report.dimension_table(
        data(), sparse.csr_array(codes(ROOT, LEFT, DEAD)), codes(RIGHT, ROOT, DEAD), ["x", "y", "z"], most=2
    )
    assert [row[:4] for row in table.rows] == [("x", 5, 1.0, "a1 b2"), ("y", 3, 0.6, "a1 a2"), ("z", 0, 0.0, "")]
    assert [row[4] for row in table.rows] == ["b1 b2", "a1 b2", ""]
    report.write_dimensions(tmp_path, table)
    assert (tmp_path / "dimensions.tsv").read_text().splitlines()[2].startswith("y\t3\t")
    assert (tmp_path / "dimensions.md").exists()
