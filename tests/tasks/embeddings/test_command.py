"""Subcommands for word vectors: predict, evaluate, neighbours, analogy, export."""

import io
import json

import numpy as np
import pytest
import safetensors.numpy

from structsparse.cli.main import main
from structsparse.tasks.embeddings import artifact
from structsparse.tasks.embeddings.predictor import WordVectors

WORDS = "man woman king queen apple".split()
TABLE = np.array([[1, 1, 1, 1, -1], [0, 1, 0, 1, 0], [0, 0, 1, 1, 0]], np.float32)


@pytest.fixture
def model(tmp_path) -> str:
    artifact.save(tmp_path / "model", WordVectors.of(WORDS, np.ones(5), TABLE, np.zeros((3, 5))))
    return str(tmp_path / "model")


def test_neighbours_are_the_words_with_the_largest_cosines(model, capsys):
    assert main(["neighbours", model, "man", "-n", "2"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {word for _, word in lines} == {"woman", "king"}
    assert all(float(cosine) == pytest.approx(0.5**0.5, abs=1e-4) for cosine, _ in lines)


def test_an_analogy_is_completed(model, capsys):
    assert main(["analogy", model, "man", "king", "woman"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("\tqueen")
    assert len(lines) == 2, "the words asked about are left out"


def test_an_unknown_word_gets_the_nearest_spelling(model, capsys):
    assert main(["neighbours", model, "Quen"]) == 2
    assert capsys.readouterr().err == "error: 'Quen' has no vector; did you mean 'queen'?\n"
    assert main(["neighbours", model, "zzzz"]) == 2
    assert capsys.readouterr().err == "error: 'zzzz' has no vector\n"


def test_words_get_their_vectors(model, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("King apple\nunknown\n")
    assert main(["predict", model, "--input", str(tmp_path / "words.txt"), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == "King\t1 0 1\napple\t-1 0 0\nunknown\t0 0 0\n"
    assert "1 words have no vector" in capsys.readouterr().err


def test_evaluation_prints_scores_and_coverage(model, tmp_path, capsys):
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "EN-PAIRS.txt").write_text("man\twoman\t9\nman\tqueen\t7\nman\tapple\t1\nman\tcar\t5\n")
    (folder / "questions.txt").write_text(": family\nman woman king queen\nman woman boy girl\n")
    assert main(["evaluate", model, str(folder), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["sets"]["PAIRS"] == {"spearman": pytest.approx(1.0), "known": 3, "pairs": 4}
    assert figures["sets"]["questions semantic"] == {"accuracy": 1.0, "known": 1, "questions": 2}
    assert figures["similarity"] == pytest.approx(1.0)
    assert main(["evaluate", model, str(folder / "EN-PAIRS.txt")]) == 0
    assert "mean spearman 1.0000" in capsys.readouterr().out
    assert main(["evaluate", model, str(tmp_path / "nowhere.txt")]) == 2


def exported(model: str, kind: str, path) -> bytes:
    assert main(["export", model, "--format", kind, "--output", str(path)]) == 0
    return path.read_bytes()


def test_vectors_are_exported_for_other_programs(model, tmp_path):
    lines = exported(model, "word2vec", tmp_path / "vectors.txt").decode().splitlines()
    assert lines[0] == "5 3"
    assert exported(model, "glove", tmp_path / "glove.txt").decode().splitlines() == lines[1:]
    read = {word: [float(n) for n in numbers] for word, *numbers in map(str.split, lines[1:])}
    assert [*read] == WORDS
    np.testing.assert_allclose(np.array([*read.values()]), TABLE.T)
    with np.load(io.BytesIO(exported(model, "npz", tmp_path / "vectors.npz"))) as arrays:
        assert arrays["words"].tolist() == WORDS
        np.testing.assert_array_equal(arrays["vectors"], TABLE.T)
    tensors = safetensors.numpy.load(exported(model, "safetensors", tmp_path / "vectors.safetensors"))
    assert tensors["words"].tobytes().decode().split("\n") == WORDS
    np.testing.assert_array_equal(tensors["vectors"], TABLE.T)


def test_gensim_reads_the_text(model, tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    exported(model, "word2vec", tmp_path / "vectors.txt")
    read = keyed.load_word2vec_format(str(tmp_path / "vectors.txt"))
    np.testing.assert_array_equal(read["queen"], TABLE[:, 3])


def test_a_format_of_another_task_is_refused(model, capsys):
    assert main(["export", model, "--format", "arpa"]) == 2
    assert "choose word2vec, glove, npz, safetensors" in capsys.readouterr().err
