"""Files of word vectors of other programs: every format is read to the same vectors; damaged files get one sentence."""

import gzip
import json
import struct

import numpy as np
import pytest

import structsparse as ss
from structsparse.base.errors import UserError
from structsparse.cli.main import main
from structsparse.tasks.embeddings.vector_files import read_vectors

WORDS = ("the", "naïve", "a b", "3.5", "queen")  # beyond ASCII, with a space, a number
NO_SPACES = ("the", "naïve", "c", "3.5", "queen")  # which binary files cannot hold
TABLE = np.array([[1, 0.5, -2], [0, 1e-3, 0], [3, 3, 3], [-0.25, 1, 0], [7, 8, 9]], np.float32)


def lines(numbers: str = "{:.6g}", end: str = "\n") -> str:
    return "".join(f"{w} {' '.join(numbers.format(x) for x in v)}{end}" for w, v in zip(WORDS, TABLE, strict=True))


def binary(newline: bytes) -> bytes:
    return b"5 3\n" + b"".join(
        w.encode() + b" " + struct.pack("<3f", *v) + newline for w, v in zip(NO_SPACES, TABLE, strict=True)
    )


FILES = {
    "glove": lines().encode(),
    "word2vec": f"5 3\n{lines()}".encode(),
    "fasttext": f"5 3\n{lines(end=' ' + chr(10))}".encode(),  # a space ends each line
    "windows": f"5 3\r\n{lines(end=chr(13) + chr(10))}".encode(),
    "exponents": lines("{:.8e}").encode(),
    "no end of line": lines().rstrip("\n").encode(),
    "binary": binary(b""),
    "binary of word2vec.c": binary(b"\n"),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_every_format_is_read_to_the_same_vectors(name, zipped, tmp_path):
    path = tmp_path / "vectors"
    path.write_bytes(gzip.compress(FILES[name]) if zipped else FILES[name])
    read = ss.load(path)
    assert read.words == (NO_SPACES if "binary" in name else WORDS)
    np.testing.assert_array_equal(read.vectors, TABLE)
    assert read.vectors.dtype == np.float32
    assert repr(read) == "PlainVectors(5 words, 3 dimensions)"


@pytest.mark.parametrize("kind", ["text", "binary"])
def test_large_files_are_read_in_pieces(kind, tmp_path):
    rng = np.random.default_rng(0)
    table, words = rng.normal(size=(9000, 20)).astype(np.float32), [f"w{k}" for k in range(9000)]
    rows = zip(words, table, strict=True)
    if kind == "text":
        content = "9000 20\n" + "".join(f"{w} {' '.join(map(repr, map(float, v)))}\n" for w, v in rows)
        (tmp_path / "vectors").write_text(content)
    else:
        (tmp_path / "vectors").write_bytes(b"9000 20\n" + b"".join(w.encode() + b" " + v.tobytes() for w, v in rows))
    read = read_vectors(tmp_path / "vectors")
    assert read.words == tuple(words)
    np.testing.assert_array_equal(read.vectors, table)


def test_the_first_of_equal_words_is_kept(tmp_path):
    (tmp_path / "vectors").write_text("a 1 2\nb 3 4\na 5 6\nc 7 8\n")
    read = read_vectors(tmp_path / "vectors")
    assert read.words == ("a", "b", "c")
    assert read.vectors.tolist() == [[1, 2], [3, 4], [7, 8]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1 2\nb 3\n", "line 2: has 2 columns, expected a word and 2 numbers as in the first line"),
        (b"3 2\na 1 2\n\nb 1 2 3\n", "line 4: has 4 columns, expected a word and 2 numbers as in its first line"),
        (b"a 1 2\nb 3 x\n", "line 2: 'x' is no number"),
        (b"a 1 2\nb 3 \xff\n", "line 2: '\ufffd' is no number"),
        (b"a 1 2\nb nan 2\n", "the vector of 'b' has a number that is NaN or infinite"),
        (b"3 2\na 1 2\nb 3 4\n", "has 2 vectors, its first line promises 3 words with 2 numbers"),
        (b"1 2\na 1 2\nb 3 4\n", "has 2 vectors, its first line promises 1 words with 2 numbers"),
        (b"", "has no vectors, expected word vectors of word2vec, GloVe or fastText"),
        (b"\n\n", "has no vectors"),
        (b"0 5\n", "has no vectors, its first line promises 0 words with 5 numbers"),
        (b"hello\nworld\n", "line 1: has no vector"),
        (b"A text about words\n", "line 1: 'text' is no number"),
        (binary(b"")[:-1], "is cut short in the vector of word 5"),
        (binary(b"")[:30], "is cut short in the vector of word 2"),
        (binary(b"") + b"more 123", "has more bytes than the 5 words with 3 numbers"),
        (b"2 1\na " + struct.pack("<f", np.inf) + b"b " + bytes(4), "the vector of 'a' has a number that is NaN"),
        (gzip.compress(lines().encode(), mtime=0)[:-9], "the compressed file is cut short or damaged"),
    ],
)
def test_damaged_files_get_one_sentence(content, message, tmp_path, capsys):
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_vectors(tmp_path / "vectors")
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "vectors"))
    assert main(["neighbours", str(tmp_path / "vectors"), "a"]) == 2
    assert capsys.readouterr().err == f"error: {refused.value}\n"


def test_foreign_vectors_are_evaluated_and_used_as_models_are(tmp_path, capsys):
    words, table = "man woman king queen apple".split(), [[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [-1, 0, 0]]
    path = tmp_path / "glove.txt"
    path.write_text("".join(f"{w} {' '.join(map(str, v))}\n" for w, v in zip(words, table, strict=True)))
    (tmp_path / "EN-PAIRS.txt").write_text("man\tWoman\t9\nman\tqueen\t7\nman\tapple\t1\nman\tcar\t5\n")
    assert main(["evaluate", str(path), str(tmp_path / "EN-PAIRS.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sets"]["PAIRS"] == {
        "spearman": pytest.approx(1.0), "known": 3, "pairs": 4
    }  # fmt: skip
    assert main(["analogy", str(path), "man", "king", "woman", "-n", "1"]) == 0
    assert capsys.readouterr().out.endswith("\tqueen\n")
    assert main(["neighbours", str(path), "Quen"]) == 2
    assert "did you mean 'queen'?" in capsys.readouterr().err
    assert main(["export", str(path), "--format", "word2vec", "--output", str(tmp_path / "out.txt")]) == 0
    assert read_vectors(tmp_path / "out.txt").words == tuple(words)


def test_files_that_gensim_writes_are_read(tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors(3)
    words = [word.replace(" ", "_") for word in WORDS]
    keyed.add_vectors(words, TABLE)
    for name, settings in {"text": {}, "binary": {"binary": True}, "glove": {"write_header": False}}.items():
        keyed.save_word2vec_format(str(tmp_path / name), **settings)
        read = read_vectors(tmp_path / name)
        assert read.words == tuple(words)
        np.testing.assert_allclose(read.vectors, TABLE, rtol=1e-6)
