"""Streams of columns: the same sentences however the bytes are cut, each available as soon as it is complete."""

import io
import os

import pytest

from structsparse.base.errors import UserError
from structsparse.corpora import byte_streams
from structsparse.corpora.columns import read_columns, write_columns
from structsparse.corpora.columns_streamed import ColumnStream

NAMES = ("word", "pos", "tag")
TEXTS = {
    "plain": "a X O\nb Y B-p\n\nc X O\n",
    "gaps": "\n\n-DOCSTART- X O\n\na X O\n\n \t\n\nb   Y O\n-DOCSTART-\nc\tX\tO",
    "windows": "\ufeffa X O\r\nb Y O\r\n\r\nc X O\r",
    "comments": "# one two\n# x O\n#a X O\nb X O\n\n# tok O\n#c X O\n",
    "doubtful": "#a X O\n\n#b X O\n",
    "letters": "Málaga X O\nżółw Y O\n\n日本 X O\n",
}


class Pieces(io.RawIOBase):
    """A stream whose reads return these pieces, one each."""

    name = "pieces"

    def __init__(self, *pieces: bytes):
        self.pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def contents(sentences) -> list:
    rows = list(zip(*(column.strings() for column in sentences.columns.values()), strict=True))
    return [rows[a:b] for a, b in zip(sentences.offsets[:-1], sentences.offsets[1:], strict=True)]


def streamed(*pieces: bytes, **options) -> tuple[list, list[str]]:
    stream = ColumnStream(Pieces(*pieces), NAMES, **options)
    return [sentence for sentences in stream for sentence in contents(sentences)], stream.notes


@pytest.mark.parametrize("comments", ["auto", "always", "never"])
@pytest.mark.parametrize("text", TEXTS)
def test_sentences_do_not_depend_on_where_the_bytes_are_cut(text, comments):
    data = TEXTS[text].encode()
    try:
        whole = read_columns(io.BytesIO(data), NAMES, comments=comments)
    except UserError as error:
        with pytest.raises(UserError) as streamed_error:
            streamed(data, comments=comments)
        assert str(streamed_error.value) == str(error).replace("stream", "pieces")
        return
    for cut in range(len(data)):
        expected = contents(whole), list(whole.notes)
        assert streamed(*filter(None, [data[:cut], data[cut:]]), comments=comments) == expected
    assert streamed(*(data[k : k + 1] for k in range(len(data))), comments=comments) == (
        contents(whole),
        [*whole.notes],
    )


def test_a_sentence_is_available_as_soon_as_its_empty_line_is_read():
    pieces = Pieces(b"a X O\nb Y", b" O\n", b"\nc X O\n", b"\n", b"d X O\n")
    stream = iter(ColumnStream(pieces, NAMES))
    for expected, left in ((["a", "b"], 2), (["c"], 1), (["d"], 0)):
        assert next(stream).columns["word"].strings() == expected
        assert len(pieces.pieces) == left
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("bad", "message"),
    [("d X O more\n", "line 6: 4 columns, expected 3"), ("d\t\tO\n", r"line 6: column 2 \(pos\) is empty")],
)
def test_an_error_comes_after_the_sentences_before_its_line(size, bad, message):
    data = f"a X O\nb Y O\n\nc X O\n\n{bad}\ne X O\n".encode()
    stream, parts = ColumnStream(Pieces(*(data[k : k + size] for k in range(0, len(data), size))), NAMES), []
    with pytest.raises(UserError, match=message):
        parts.extend(contents(sentences) for sentences in stream)
    assert [word for part in parts for sentence in part for word, _, _ in sentence] == ["a", "b", "c"]


@pytest.mark.parametrize("data", [b"", b"\n \n", b"# only\n"])
def test_input_without_a_sentence_is_refused(data):
    with pytest.raises(UserError, match="pieces: no sentence in it"):
        streamed(data)


def test_text_is_latin_1_from_the_first_byte_that_is_not_utf_8():
    first, second = "é X O\n\n".encode(), "a X O\né X O\n\n".encode("latin-1")
    result, notes = streamed(first, second, second)
    assert [word for sentence in result for word, _, _ in sentence] == ["é", "a", "é", "a", "é"]
    assert notes == ["decoded as Latin-1 from line 3 on because line 4 is not UTF-8"]


def test_a_file_is_read_in_chunks(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"a X O\n\n" * 1000)
    monkeypatch.setattr(byte_streams, "_CHUNK", 100)
    stream = ColumnStream(tmp_path / "file", NAMES)
    sizes = [len(sentences) for sentences in stream]
    assert sum(sizes) == 1000
    assert max(sizes) <= 15
    assert stream.name == str(tmp_path / "file")


def test_a_pipe_is_read_as_it_fills():
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "wb", buffering=0) as writer:
        stream = iter(ColumnStream(reader, NAMES))
        for word in ("a", "b"):
            writer.write(f"{word} X O\n\n".encode())
            assert next(stream).columns["word"].strings() == [word]


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_a_missing_file_and_a_folder_are_refused(what, tmp_path):
    path = tmp_path if what == "folder" else tmp_path / "missing"
    with pytest.raises(UserError, match="is a directory" if what == "folder" else "no such file"):
        list(ColumnStream(path, NAMES))


def test_tabs_are_written_where_tabs_were_read():
    stream = ColumnStream(Pieces(b"a\tX\tO\n"), NAMES)
    (sentences,) = stream
    output = io.BytesIO()
    write_columns(output, sentences, tabs=stream.tabbed)
    assert output.getvalue() == b"a\tX\tO\n\n"
