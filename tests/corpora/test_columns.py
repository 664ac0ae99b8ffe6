"""Column files: all spellings of the same sentences, errors with file and line, and written back."""

import io
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences, read_columns, write_columns

NAMES = ("word", "pos", "tag")
PLAIN = "a X O\nb Y B-p\n\nc X O\n\n"


def read(text, names=NAMES, **options):
    data = text.encode() if isinstance(text, str) else text
    return read_columns(io.BytesIO(data), names, **options)


def contents(sentences):
    """The sentences as lists of rows, read token by token."""
    rows = list(zip(*(column.strings() for column in sentences.columns.values()), strict=True))
    return [rows[a:b] for a, b in zip(sentences.offsets[:-1], sentences.offsets[1:], strict=True)]


EXPECTED = [[("a", "X", "O"), ("b", "Y", "B-p")], [("c", "X", "O")]]


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.rstrip("\n"),  # without the last empty line and the last end of line
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r\n").rstrip("\n"),
        "\ufeff" + PLAIN,
        "\n\n" + PLAIN.replace("\n\n", "\n\n \t\n\n"),  # several empty lines, one of them with white space
        PLAIN.replace(" ", "\t"),
        PLAIN.replace(" ", "   ").replace("a", " a").replace("O", "O  "),
        "a\tX\tO\nb   Y B-p\n\nc\tX\tO\n",  # each line has its own separator
        "-DOCSTART- -X- O\n\n" + PLAIN,
        "a X O\nb Y B-p\n-DOCSTART-\nc X O\n",
    ],
)
def test_all_spellings_of_the_same_sentences_are_read_alike(text):
    sentences = read(text)
    assert contents(sentences) == EXPECTED
    assert len(sentences) == 2
    assert sentences.tokens == 3
    assert sentences.lengths.tolist() == [2, 1]
    assert sentences.offsets.dtype == np.int64


def test_values_are_distinct_and_in_order_of_first_appearance():
    column = read(PLAIN).columns["pos"]
    assert column.values == ["X", "Y"]
    assert column.codes.tolist() == [0, 1, 0]
    assert column.codes.dtype == np.int32


def test_white_space_other_than_space_and_tab_is_part_of_a_word():
    exotic = ["a\u00a0b", "c\u2003d", "e\u2028f", "g\u0085h", "i\x0bj", "k\x0cl", "m\u3000n", "o\x1cp"]
    text = "".join(f"{word} X O\n" for word in exotic)
    sentences = read(text)
    assert sentences.columns["word"].strings() == exotic
    assert len(sentences) == 1


def test_a_field_between_tabs_may_hold_spaces():
    assert contents(read("New York\tX\tB-p\n")) == [[("New York", "X", "B-p")]]


def test_latin_1_is_detected_and_noted_with_the_first_line_that_is_not_utf_8():
    text = "a X O\nb Y O\n\nespañola X O\nCorué X O\n"
    sentences = read(text.encode("latin-1"))
    assert sentences.columns["word"].strings() == ["a", "b", "española", "Corué"]
    assert sentences.notes == ("decoded as Latin-1 because line 4 is not UTF-8",)
    assert read(text).notes == ()
    assert read(text).columns["word"].strings() == sentences.columns["word"].strings()


def test_document_starts_end_sentences_and_are_counted():
    sentences = read("-DOCSTART- -X- O\na X O\n-DOCSTART- -X- -X- O\n-DOCSTART-\nb X O\n")
    assert sentences.lengths.tolist() == [1, 1]
    assert sentences.notes == ("3 -DOCSTART- lines skipped",)
    assert read("-DOCSTART-\na X O\n").notes == ("1 -DOCSTART- line skipped",)


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_a_number_sign_is_a_token_where_its_line_looks_like_the_others(separator):
    text = "# a comment of many words\n#\na X O\n# X O\nb X O\n".replace(" X O", f"{separator}X{separator}O")
    sentences = read(text)
    assert sentences.columns["word"].strings() == ["a", "#", "b"]
    assert sentences.lengths.tolist() == [3]  # a comment ends no sentence
    assert sentences.notes == ("2 comment lines skipped",)
    assert read(text, comments="always").columns["word"].strings() == ["a", "b"]


def test_a_comment_with_as_many_words_as_columns_is_recognised_by_missing_tabs():
    assert read("# sent 7\na\tX\tO\n").columns["word"].strings() == ["a"]


def test_the_first_token_may_be_a_number_sign():
    assert read("# X O\n").columns["word"].strings() == ["#"]
    assert read("# X O\n#tag X O\nb X O\n").columns["word"].strings() == ["#", "#tag", "b"]


def test_no_line_is_a_comment_with_comments_never():
    assert read("#a X O\nb X O\n", comments="never").columns["word"].strings() == ["#a", "b"]
    with pytest.raises(UserError, match=r"stream, line 1: 2 columns, expected 3 \(word pos tag\)"):
        read("# comment\nb X O\n", comments="never")


def test_ignored_columns_count_but_are_not_read():
    sentences = read(PLAIN, ("word", None, "tag"))
    assert list(sentences.columns) == ["word", "tag"]
    assert sentences.columns["tag"].strings() == ["O", "B-p", "O"]


def test_optional_columns_are_present_in_all_lines_or_in_none():
    optional = frozenset({"tag"})
    assert list(read("a X\nb Y\n", optional=optional).columns) == ["word", "pos"]
    assert list(read(PLAIN, optional=optional).columns) == ["word", "pos", "tag"]
    with pytest.raises(UserError, match=r"line 3: 3 columns, expected 2 as on line 2 \(word pos\)"):
        read("\na X\nb Y O\n", optional=optional)
    with pytest.raises(UserError, match=r"line 2: 2 columns, expected 3 as on line 1 \(word pos tag\)"):
        read("a X O\nb Y\n", optional=optional)
    with pytest.raises(UserError, match=r"line 1: 1 column, expected 2 or 3 \(word pos tag\)"):
        read("a\nb Y\n", optional=optional)


@pytest.mark.parametrize("mark", ["\ufeff", ""])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_error_for_a_line_of_another_width_names_file_line_and_columns(tmp_path, mark, end):
    file = tmp_path / "broken.txt"
    file.write_text(mark + end.join(["a X O", "# comment", "", "b X", "c X O"]), newline="")
    with pytest.raises(UserError) as error:
        read_columns(file, NAMES)
    assert str(error.value) == f"{file}, line 4: 2 columns, expected 3 (word pos tag)"
    file.write_text("a X O extra\n")
    with pytest.raises(UserError, match=r"broken.txt, line 1: 4 columns, expected 3 \(word - tag\)"):
        read_columns(str(file), ["word", None, "tag"])


def test_an_empty_field_between_tabs_is_refused_unless_it_is_ignored():
    with pytest.raises(UserError, match=r"line 2: column 2 \(pos\) is empty, expected a value"):
        read("a\tX\tO\nb\t\tO\n")
    assert read("a\tX\tO\nb\t\tO\n", ("word", None, "tag")).columns["tag"].strings() == ["O", "O"]


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff", "-DOCSTART-\n\n", "# only\n# comments in it\n"])
def test_a_file_without_a_sentence_is_refused(tmp_path, text):
    file = tmp_path / "empty.txt"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_columns(file, NAMES)
    assert str(error.value) == f"{file}: no sentence in it, expected lines of 3 (word pos tag)"


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.txt: no such file"):
        read_columns(tmp_path / "nowhere.txt", NAMES)
    with pytest.raises(UserError, match=r": is a directory, expected a file of columns"):
        read_columns(tmp_path, NAMES)
    (tmp_path / "file.txt").write_text(PLAIN)
    with pytest.raises(UserError, match=r"file.txt/below: cannot be read \(Not a directory\)"):
        read_columns(tmp_path / "file.txt" / "below", NAMES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ()}, r"column names \(\) must be distinct"),
        ({"names": (None, None)}, r"column names \(- -\) must be distinct, and at least one must not be ignored"),
        ({"names": ("word", "word")}, r"column names \(word word\) must be distinct"),
        ({"optional": frozenset({"pos"})}, r"optional columns \(pos\) must come last in \(word pos tag\)"),
        ({"optional": frozenset({"lemma"})}, r"optional columns \(lemma\) must come last"),
        ({"optional": frozenset(NAMES)}, r"optional columns \(pos tag word\) must come last .* not first"),
        ({"comments": "some"}, r"comments='some' is unknown, expected auto, always or never"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        read(PLAIN, **options)


def test_messages_name_the_stream(tmp_path):
    file = tmp_path / "stream.txt"
    file.write_text("a X\n")
    with file.open("rb") as stream, pytest.raises(UserError, match=r"stream\.txt, line 1: 2 columns"):
        read_columns(stream, NAMES)


word = st.text(st.characters(exclude_characters=" \t\n\r\ufeff", exclude_categories=["Cs"]), min_size=1)
word = word.filter(lambda text: not text.startswith(("-DOCSTART-", "#")))
row = st.tuples(word, word)


@given(st.lists(st.lists(row, min_size=1), min_size=1))
def test_sentences_survive_writing_and_reading(rows):
    tokens = [token for sentence in rows for token in sentence]
    columns = {name: Column.from_strings(t[k] for t in tokens) for k, name in enumerate(("word", "tag"))}
    sentences = Sentences(columns, np.cumsum([0, *map(len, rows)]), "made")
    stream = io.BytesIO()
    write_columns(stream, sentences)
    stream.seek(0)
    assert contents(read_columns(stream, ("word", "tag"))) == rows


def test_chosen_columns_are_written():
    sentences = read("New York\tX\tO\n").with_column("guess", Column.from_strings(["B-p"]))
    stream = io.BytesIO()
    write_columns(stream, sentences, ["word", "guess"])
    assert stream.getvalue() == b"New York\tB-p\n\n"
    stream = io.BytesIO()
    write_columns(stream, sentences, ["tag", "guess"])
    assert stream.getvalue() == b"O B-p\n\n"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_selected_sentences_keep_the_codes_of_all(lengths, data):
    tokens = [f"t{k % 5}" for k in range(sum(lengths))]
    offsets = np.cumsum([0, *lengths])
    sentences = Sentences({"word": Column.from_strings(tokens)}, offsets, "made", ("a note",))
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1)))
    selected = sentences.select(np.array(chosen, dtype=int))
    whole = contents(sentences)
    assert contents(selected) == [whole[k] for k in chosen]
    assert selected.columns["word"].values == sentences.columns["word"].values
    assert selected.notes == ("a note",)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    assert contents(sentences.select(mask)) == [s for s, keep in zip(whole, mask, strict=True) if keep]
    assert contents(sentences.select(slice(None, None, -1))) == whole[::-1]


@given(st.lists(st.sampled_from("abcdef")), st.lists(st.sampled_from("abcxyz")))
def test_recoding_keeps_the_strings_and_puts_given_values_first(strings, values):
    column = Column.from_strings(strings).recoded(values)
    assert column.strings() == strings
    given_values = list(dict.fromkeys(values))
    assert column.values[: len(given_values)] == given_values
    assert len(set(column.values)) == len(column.values)


def test_a_column_of_another_length_is_refused():
    with pytest.raises(ValueError, match="column tag has 2 tokens, the sentences hold 3"):
        read(PLAIN).with_column("tag", Column.from_strings("ab"))


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="needs STRUCTSPARSE_DATA")
def test_a_real_corpus_is_written_back_byte_for_byte():
    file = os.path.join(os.environ["STRUCTSPARSE_DATA"], "conll2000", "train.txt")
    sentences = read_columns(file, NAMES)
    assert (len(sentences), sentences.tokens) == (8936, 211727)
    assert "#" in sentences.columns["word"].values
    stream = io.BytesIO()
    write_columns(stream, sentences)
    with open(file, "rb") as original:
        assert stream.getvalue() == original.read()
