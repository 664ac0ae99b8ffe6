"""CoNLL-U against a naive reader, written back byte for byte, and errors that name the line."""

import gzip
import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structsparse.base.errors import UserError
from structsparse.corpora import byte_streams
from structsparse.corpora.columns import Column
from structsparse.corpora.conllu import TreebankStream, cycle_of, read_treebank, write_treebank
from structsparse.corpora.treebank import COLUMNS, UNKNOWN
from tests.corpora.test_columns_streamed import Pieces
from tests.support.conllu import contents, naive, of_heads, row, sentences, text_of, trees

FIRST = ["# a comment", row("1-2", "zum"), row(1, "zu", head=3), row(2, "dem", head=3), row(3, "Haus", head=0)]
SECOND = [row("0.1", "(er)", deps="1:nsubj"), row(1, "geht", head=0, deps="0:root"), row("1.1", "(weg)", deps="1:obl")]
PLAIN = text_of([FIRST, SECOND])
BLANK = ("_",) * 5  # lemma, upos, xpos, feats, deprel
EXPECTED = [
    [("zu", *BLANK, 3), ("dem", *BLANK, 3), ("Haus", *BLANK, 0)],
    [("geht", *BLANK, 0)],
]


def read(text, **options):
    return read_treebank(io.BytesIO(text.encode() if isinstance(text, str) else text), **options)


def written(treebank, *arcs) -> str:
    output = io.BytesIO()
    write_treebank(output, treebank, *arcs)
    return output.getvalue().decode()


@given(st.lists(sentences(), min_size=1, max_size=4))
def test_a_treebank_is_read_as_by_a_naive_reader_and_written_back(lines):
    text = text_of(lines)
    treebank = read(text)
    assert contents(treebank) == naive(text)
    assert written(treebank) == text
    assert [int(line) - 1 for line in treebank.lines] == [
        k for k, line in enumerate(text.split("\n")) if line.partition("\t")[0].isdigit()
    ]


def test_columns_have_the_names_of_attributes_and_numbers_small_types():
    treebank = read(PLAIN)
    assert tuple(treebank.columns) == COLUMNS
    assert treebank.heads.dtype == np.int32
    assert treebank.lines.tolist() == [3, 4, 5, 8]
    assert treebank.blocks == ("\n".join(FIRST), "\n".join(SECOND))


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.encode(),
        PLAIN.rstrip("\n").encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace("\n", "\r\n").rstrip("\n").encode(),
        ("\ufeff" + PLAIN).encode(),
        ("\n \n" + PLAIN.replace("\n\n", "\n\n \t\n\n")).encode(),
        PLAIN.replace("comment\n", "comment\n\n").encode(),  # a comment belongs to the sentence after it
        gzip.compress(PLAIN.encode()),
        b"".join(gzip.compress(PLAIN.encode()[k : k + 40]) for k in range(0, len(PLAIN), 40)),
    ],
)
def test_all_spellings_of_the_same_trees_are_read_and_written_alike(data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    for source in (io.BytesIO(data), tmp_path / "file", str(tmp_path / "file")):
        treebank = read_treebank(source)
        assert contents(treebank) == EXPECTED
        assert written(treebank) == PLAIN
        assert treebank.notes == ()


def test_comments_after_the_last_sentence_are_counted():
    assert read(PLAIN + "# one\n\n# two\n").notes == ("2 comment lines after the last sentence left out",)
    assert read(PLAIN + "# one").notes == ("1 comment line after the last sentence left out",)


def test_white_space_other_than_tabs_and_line_feeds_is_part_of_a_word():
    exotic = ["New York", "a\u2028b", "c\x85d", "e\x0bf", "g\u3000h"]
    text = text_of([[row(k, form, head=k - 1) for k, form in enumerate(exotic, 1)]])
    assert read(text).columns["word"].strings() == exotic
    assert written(read(text)) == text


def test_several_roots_are_counted_and_not_refused():
    treebank = read(of_heads([0, 0, 2], [0], [0, 1, 0]))
    assert treebank.notes == ("2 of 3 trees have several roots, where CoNLL-U has one",)
    assert treebank.roots().tolist() == [2, 1, 2]


@pytest.mark.parametrize("head", ["_", "3", "9", "what"])
def test_heads_may_be_ignored(head):
    treebank = read(text_of([[row(1, head=head), row(2, "b", head=head)]]), heads=False)
    assert treebank.heads.tolist() == [UNKNOWN] * 2
    assert treebank.columns["word"].strings() == ["a", "b"]


# --- errors


ERRORS = {
    "": "stream: no sentence in it, expected lines of 10 columns (id form lemma upos xpos feats head deprel deps misc)",
    "\n# only\n\n": "stream: no sentence in it",
    "# x\n1\ta\tb\n": "line 2: 3 columns between tabs, expected 10 (id form",
    "a b c\n": "line 1: 1 column between tabs, expected 10",
    row(1, head=0) + "\tmore\n": "line 1: 11 columns between tabs",
    row(1, "", head=0): "line 1: column 2 (form) is empty, expected a value, or _ for none",
    row(2, head=0): "line 1: id '2', expected 1",
    row(1, head=0) + "\n" + row(3, head=1): "line 2: id '3', expected 2",
    row(1, head=0) + "\n" + row(1, head=1): "line 2: id '1', expected 2",
    row("x", head=0): "line 1: id 'x', expected 1",
    row("01", head=0): "line 1: id '01', expected 1",
    row("1-" + "9" * 5000) + "\n": "line 1: id '1-999",
    row("2-3") + "\n" + row(1, head=0): "line 1: id 2-3 of a multiword token, expected one that begins at 1",
    row("1-2") + "\n" + row(1, head=0) + "\n" + row("2-3"): "line 3: id 2-3 of a multiword token",
    row("1-2") + "\n" + row(1, head=0): "line 2: the sentence ends after word 1, expected word 2 of a multiword token",
    row("0.1") + "\n": "line 1: the sentence ends after word 0, expected a word in it",
    row("0.2") + "\n" + row(1, head=0): "line 1: id 0.2 of an empty node, expected 0.1",
    row(1, head=0) + "\n" + row("1.1") + "\n" + row("1.1"): "line 3: id 1.1 of an empty node, expected 1.2",
    row(1, head=0) + "\n" + row("0.1"): "line 2: id 0.1 of an empty node, expected 1.1",
    of_heads([0, 3]): "line 2: head '3', expected the number of another word up to 2, or 0",
    of_heads([0], [-1]): "line 3: head '-1', expected the number of another word up to 1, or 0",
    of_heads([0, "_"]): "line 2: head '_', expected",
    of_heads([0, "¹"]): "line 2: head '¹', expected",
    of_heads([0, "9" * 5000]): "line 2: head '999",
    of_heads([0, 2]): "line 2: word 2 (b) has itself as head, expected",
    of_heads([0], [2, 1]): "lines 3 to 4: no word has head 0, expected a root",
    of_heads([4, 0, 1, 3, 2]): "line 1: heads form a cycle, 1 (a) -> 4 (d) -> 3 (c) -> 1 (a), expected a tree",
    of_heads([0]).encode() + b"# caf\xe9\n" + of_heads([0]).encode(): "line 3: not UTF-8, expected a file of CoNLL-U",
    gzip.compress(PLAIN.encode() * 9)[:-20]: "stream: the compressed file is cut short or damaged",
    b"\x1f\x8b\x08what": "stream: the compressed file is cut short or damaged",
}


@pytest.mark.parametrize(("text", "message"), ERRORS.items(), ids=ERRORS.values())
def test_an_error_names_its_line(text, message):
    with pytest.raises(UserError) as error:
        read(text)
    assert message in str(error.value)
    assert str(error.value).startswith("stream")


DAMAGE = b"", b"\t", b"\n", b"\r", b"#", b"-", b".", b"0", b"7", b"\xff"


@given(st.lists(sentences(3), min_size=1, max_size=3), st.booleans(), st.data())
def test_a_damaged_file_is_refused_or_written_as_it_was_read(lines, gzipped, data):
    damaged = bytearray(text_of(lines).encode())
    damaged = bytearray(gzip.compress(damaged, mtime=0)) if gzipped else damaged
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(damaged)))
        end = data.draw(st.integers(begin, min(begin + 3, len(damaged))))
        damaged[begin:end] = data.draw(st.sampled_from(DAMAGE))
    try:
        treebank = read(bytes(damaged))
    except UserError:
        return
    text = written(treebank)
    assert contents(read(text)) == contents(treebank)
    assert written(read(text)) == text


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file, expected a file of CoNLL-U"):
        read_treebank(tmp_path / "missing")
    with pytest.raises(UserError, match="is a directory, expected a file of CoNLL-U"):
        read_treebank(tmp_path)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_a_cycle_is_found_if_there_is_one(heads):
    heads = [min(head, len(heads)) for head in heads]
    reached, added = {0}, True
    while added:
        added = {word for word, head in enumerate(heads, 1) if head in reached} - reached
        reached |= added
    cycle = cycle_of(heads)
    assert bool(cycle) == (len(reached) <= len(heads))
    for word, above in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True):
        assert heads[word - 1] == above
    assert len(set(cycle)) == len(cycle)


# --- predictions


@given(sentences(), st.data())
def test_writing_other_heads_changes_heads_relations_and_graphs_only(lines, data):
    treebank = read(text_of([lines, *[of_heads([0, 1]).strip().split("\n")]]))
    size = int(treebank.lengths[0])
    heads = data.draw(trees(size).filter(lambda heads: len(heads) == size))
    labels = [f"r{k}" for k in range(treebank.tokens)]
    text = written(treebank, np.array([*heads, 2, 0]), Column.from_strings(labels))
    again = read(text)
    assert again.heads.tolist() == [*heads, 2, 0]
    assert again.columns["deprel"].strings() == labels
    for before, after in zip(lines, text.split("\n"), strict=False):
        if before.startswith("#"):
            assert before == after
        else:
            before, after = before.split("\t"), after.split("\t")
            assert [before[k] for k in (0, 1, 2, 3, 4, 5, 9)] == [after[k] for k in (0, 1, 2, 3, 4, 5, 9)]
            assert after[8] == "_"
    assert written(read(text)) == text


def test_missing_relations_and_the_old_projective_tree_become_empty():
    text = text_of([[row(1, head=0, deprel="ROOT", deps=0, misc="ROOT"), row(2, head=1, deprel="SBJ")]])
    expected = text_of([[row(1, head=2), row(2, head=0)]])
    assert written(read(text), np.array([2, 0])) == expected


def test_predicted_trees_are_written_into_input_without_trees():
    blind = text_of([[row(1, misc="SpaceAfter=No"), row(2, "b")]])
    expected = text_of([[row(1, head=2, deprel="x", misc="SpaceAfter=No"), row(2, "b", head=0, deprel="y")]])
    assert written(read(blind, heads=False)) == blind
    assert written(read(blind, heads=False), np.array([2, 0]), Column.from_strings("xy")) == expected


def test_heads_of_other_sentences_are_refused():
    with pytest.raises(ValueError, match="another number of tokens, expected 4"):
        written(read(PLAIN), np.zeros(3, int))
    with pytest.raises(ValueError, match="another number of tokens, expected 4"):
        written(read(PLAIN), np.zeros(4, int), Column.from_strings("abc"))


# --- streams


@pytest.mark.parametrize("text", [PLAIN, "\ufeff" + PLAIN.replace("\n", "\r\n").rstrip(), PLAIN + "# end"])
@pytest.mark.parametrize("encode", [bytes, gzip.compress])
def test_trees_do_not_depend_on_where_the_bytes_are_cut(text, encode):
    data = encode(text.encode())
    for cut in range(len(data)):
        stream = TreebankStream(Pieces(*filter(None, [data[:cut], data[cut:]])))
        assert [sentence for treebank in stream for sentence in contents(treebank)] == EXPECTED
        assert stream.notes == list(read(text).notes)
    stream = TreebankStream(Pieces(*(data[k : k + 1] for k in range(len(data)))))
    assert "".join(map(written, stream)) == PLAIN


def test_a_tree_is_available_as_soon_as_its_empty_line_is_read():
    lines = of_heads([0, 1], [0], [2, 0]).encode().splitlines(keepends=True)
    pieces = Pieces(*lines)
    stream = iter(TreebankStream(pieces))
    for expected, left in ((["a", "b"], 5), (["a"], 3), (["a", "b"], 0)):
        assert next(stream).columns["word"].strings() == expected
        assert len(pieces.pieces) == left
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("size", [1, 9, 1 << 18])
@pytest.mark.parametrize("bad", [b"1\ta\n", of_heads([2, 1]).encode(), b"# caf\xe9\n"])
def test_an_error_comes_after_the_sentences_before_it(size, bad, monkeypatch, tmp_path):
    monkeypatch.setattr(byte_streams, "_CHUNK", size)
    file = tmp_path / "file"
    file.write_bytes(of_heads([0, 1], [0]).encode() + bad)
    result = []
    with pytest.raises(UserError, match=r"file, lines? 6"):
        result.extend(sentence for treebank in TreebankStream(file) for sentence in contents(treebank))
    assert [len(sentence) for sentence in result] == [2, 1]


def test_sentences_handed_out_are_forgotten():
    reader = TreebankStream(Pieces(*[of_heads([0, 1, 1]).encode()] * 50))
    for number, treebank in enumerate(reader, 1):
        assert len(treebank) == 1
        assert reader.reader.sentences == number
    assert treebank.lines.tolist() == [197, 198, 199]


# --- real files


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="needs STRUCTSPARSE_DATA")
@pytest.mark.parametrize("name", ["tr_imst", "ja_gsd", "en_ewt"])
@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_real_treebanks_are_read_as_by_a_naive_reader_and_written_back(name, part):
    data = (Path(os.environ["STRUCTSPARSE_DATA"]) / "ud" / f"{name}-ud-{part}.conllu").read_bytes()
    treebank = read(data)
    assert contents(treebank) == naive(data.decode())
    assert written(treebank).encode() == data
    assert treebank.notes == ()
    again = read(written(treebank, treebank.heads, treebank.columns["deprel"]))
    assert contents(again) == contents(treebank)
