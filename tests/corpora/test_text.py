"""Plain text: sentences, tokens and vocabularies, and the corpora made of it."""

import gzip
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse.base.errors import UserError
from structsparse.corpora import text_reading
from structsparse.corpora.known.texts import files
from structsparse.corpora.text import EncodedText, Vocabulary, encode, read_coded, read_text
from structsparse.corpora.text_reading import TextReading

CONF = Path(__file__).resolve().parents[2] / "conf"
RUNNING, WORDS = {"sentences": "text"}, {"tokens": "words"}


def words_of(coded) -> list[list[str]]:
    """The sentences of a text in provisional codes."""
    sentences, begin = [], 0
    for end in coded.ends.tolist():
        sentences.append([coded.words[code - 1] for code in coded.codes[begin : end - 1].tolist()])
        begin = end
    assert begin == len(coded.codes)
    return sentences


def spelt(text: EncodedText) -> list[str]:
    return [text.vocabulary.name(code) for code in text.codes.tolist()]


@pytest.fixture
def read(tmp_path):
    def read(content: str | bytes, **options) -> list[list[str]]:
        path = tmp_path / "text.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return words_of(read_coded(path, TextReading(**options)))

    return read


sentences = st.lists(st.lists(st.sampled_from([*"abcdef", "<unk>"]), min_size=1, max_size=5), min_size=1, max_size=8)


@settings(max_examples=100)
@given(sentences, sentences)
def test_an_encoded_text_has_the_words_of_its_sentences(lines, others):
    train = encode(lines)
    other = encode(others, train.vocabulary)
    vocabulary, seen = train.vocabulary, Counter(word for line in lines for word in line)
    assert vocabulary.words[-1] == "</s>"
    assert vocabulary.words[vocabulary.unknown] == "<unk>"
    assert sorted(vocabulary.words) == sorted({*seen, "<unk>", "</s>"})
    first = list(seen)  # in order of first appearance
    ranks = [(-seen[word], first.index(word) if word in first else len(first)) for word in vocabulary.words[:-1]]
    assert ranks == sorted(ranks)
    for text, original in ((train, lines), (other, others)):
        marked = [word for line in original for word in ("<s>", *line, "</s>")]
        assert spelt(text) == [w if w in (*vocabulary.words, "<s>") else "<unk>" for w in marked]
        assert text.known.tolist() == [w in (*vocabulary.words, "<s>") for w in marked]
        assert text.targets.tolist() == [p for p, word in enumerate(marked) if word != "<s>"]
        assert text.history.tolist() == [k for line in original for k in range(len(line) + 2)]
        assert text.sentences == len(original)
        assert (text.codes.dtype, text.history.dtype, text.targets.dtype) == (np.int32, np.int32, np.int64)


def test_lines_are_sentences(read):
    assert read("a b\n\n  c\td \r\n\nno end") == [["a", "b"], ["c", "d"], ["no", "end"]]
    assert read(b"\xef\xbb\xbfa b") == [["a", "b"]]


def test_marks_in_the_text_begin_and_end_sentences(read):
    assert read("<s> a b </s>\n<s> c </s> <s> d </s>\n</s>\n<s>\ne <unk>") == [["a", "b"], ["c"], ["d"], ["e", "<unk>"]]


def test_running_text_is_split_at_empty_lines_and_by_punctuation(read):
    content = (
        'CHAPTER I\n\nMr. Smith and J. R. came\nhome.  "Well?" said he. "Yes!" It was\n late... very late.\n'
        "Dr. No e.g. left.\n\n\nnext one (at last.) 12 of them"
    )
    assert [" ".join(words) for words in read(content, **RUNNING)] == [
        "CHAPTER I", "Mr. Smith and J. R. came home.", '"Well?" said he.', '"Yes!"', "It was late... very late.",
        "Dr. No e.g. left.", "next one (at last.)", "12 of them",
    ]  # fmt: skip


def test_words_are_separated_from_punctuation(read):
    (words,) = read("“Don't,” she said--_very_ mother-in-law: 1,000.5 <unk> f(x)... naïve #n\n", **WORDS)
    assert words == (
        "“ Don't , ” she said -- very mother-in-law : 1,000.5 <unk> f ( x ) ... naïve #n".split()
    )  # fmt: skip


def test_classes_replace_numbers_and_names(read):
    content = "\"The Mayor of Rome met I'm and 3rd 1,000 N\nParis 7\n"
    assert read(content, classes=True, lower=True, **WORDS) == [
        ['"', "the", "<proper_noun>", "of", "<proper_noun>", "met", "i'm", "and", "#n", "#n", "<proper_noun>"],
        ["paris", "#n"],
    ]
    assert read("A B\n", classes=True) == [["A", "<proper_noun>"]]
    assert read("A B\n", lower=True) == [["a", "b"]]


def test_a_limit_takes_effect_at_the_end_of_a_sentence(read):
    assert read("a b\nc d\ne\n", limit=4) == [["a", "b"], ["c", "d"]]
    assert read("a b\nc d e\n", limit=4) == [["a", "b"]]
    with pytest.raises(UserError, match=r"first sentence has over data.limit=1 words"):
        read("a b\n", limit=1)


@pytest.mark.parametrize("options", [{}, RUNNING, {**RUNNING, **WORDS}], ids=["lines", "text", "words"])
def test_a_long_line_read_in_pieces_has_the_same_sentences(read, monkeypatch, options):
    content = " ".join(("Wörd" if k % 26 == 1 else "wörd") + str(k % 7) + "." * (k % 13 == 0) for k in range(500))
    expected = read(content, **options)
    assert len(expected) == (21 if options else 1)
    monkeypatch.setattr(text_reading, "_PARAGRAPH", 60)
    for piece in range(40, 60):  # cut anywhere, also at the end of a sentence
        monkeypatch.setattr(text_reading, "_PIECE", piece)
        assert read(content, **options) == expected
        assert read(content + "\n\nnext", **options) == [*expected, ["next"]]


def test_a_paragraph_without_end_is_one_sentence(read, monkeypatch):
    monkeypatch.setattr(text_reading, "_PARAGRAPH", 40)
    lines = [f"no end in line {k}" for k in range(50)]
    assert read("\n".join(lines), **RUNNING) == [" ".join(lines).split()]


def test_gzip_is_recognised_by_content(tmp_path, read):
    (tmp_path / "gzipped.txt").write_bytes(gzip.compress(b"a b\nc"))
    (tmp_path / "plain.gz").write_bytes(b"a b\nc")
    for name in ("gzipped.txt", "plain.gz"):
        assert words_of(read_coded(tmp_path / name, TextReading())) == [["a", "b"], ["c"]]
    vocabulary = Vocabulary(("b", "<unk>", "</s>"))
    text = read_text(tmp_path / "gzipped.txt", vocabulary)
    assert spelt(text) == ["<s>", "<unk>", "b", "</s>", "<s>", "<unk>", "</s>"]
    assert text.known.tolist() == [True, False, True, True, True, False, True]


@pytest.mark.parametrize(
    "content", [b"a b\nc", gzip.compress(b"a b\nc"), b"a", b""], ids=["plain", "gzip", "short", "empty"]
)
def test_a_file_may_be_a_pipe(tmp_path, content):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    try:
        if content:
            assert words_of(read_coded(pipe, TextReading())) == ([["a"]] if content == b"a" else [["a", "b"], ["c"]])
        else:
            with pytest.raises(UserError, match="has no words"):
                read_coded(pipe, TextReading())
    finally:
        writer.join()


def test_unreadable_files_and_impossible_options_are_refused(tmp_path, read):
    def fails(message, path, **options):
        with pytest.raises(UserError, match=message):
            read_coded(path, TextReading(**options))

    fails("no such file", tmp_path / "none.txt")
    fails("is a directory", tmp_path)
    with pytest.raises(UserError, match=r"text.txt, line 3: byte 0xe9 is not UTF-8"):
        read(b"a\nb\ncaf\xe9 d\n")
    with pytest.raises(UserError, match="has no words"):
        read("")
    with pytest.raises(UserError, match="has no words"):
        read("\n <s> \n", **RUNNING)
    intact = gzip.compress(bytes(range(97, 123)) * 4000)
    cut = tmp_path / "cut.gz"
    for broken in (intact[: len(intact) // 2], intact[:-4], intact[:12] + b"\xff" * 9 + intact[21:]):
        cut.write_bytes(broken)
        fails("cut.gz: the compressed file is cut short or damaged", cut)
    fails("data.sentences is 'words', expected one of lines, text", cut, sentences="words")
    fails("data.tokens is 'x', expected one of spaces, words", cut, tokens="x")
    fails("data.limit is 0", cut, limit=0)


def made(tmp_path, content: str, **options):
    path = tmp_path / "train.txt"
    path.write_text(content)
    defaults = {"train": str(path), "dev": None, "test": None, "sentences": "lines", "tokens": "spaces", "lower": False}
    return files(**{**defaults, "classes": False, "min_count": 1, "limit": None, "held_out": 0.1, **options})


def test_rare_words_become_unknown(tmp_path):
    texts = made(tmp_path, "a a a b b c\n" * 2 + "x y\n" + "z w b\n", min_count=3, held_out=0.2)
    assert spelt(texts.train) == ["<s>", *"aaabb", "<unk>", "</s>"] * 2
    assert texts.vocabulary.words == ("a", "b", "<unk>", "</s>")
    assert texts.train.unknowns == 2
    many = made(tmp_path, "p q r s t t\n" * 2 + "x\ny\n", min_count=3, held_out=0.1)
    assert many.vocabulary.words == ("<unk>", "t", "</s>")  # eight occurrences, four of t


def test_the_end_of_the_text_is_held_out_dev_before_test(tmp_path):
    lines = [f"w{k} a" for k in range(50)]
    texts = made(tmp_path, "\n".join(lines), held_out=0.1)
    assert [text.sentences for text in texts.parts.values()] == [40, 5, 5]
    assert texts.dev.unknowns == texts.test.unknowns == 5  # the vocabulary is that of train
    assert spelt(texts.train)[-3:] == ["w39", "a", "</s>"]
    assert texts.describe()[1].endswith("(dev): 5 sentences, 10 words, 5 of them unknown (50.00%)")
    path = tmp_path / "dev.txt"
    path.write_text("a w0 w49\n")
    texts = made(tmp_path, "\n".join(lines), dev=str(path))
    assert [text.sentences for text in texts.parts.values()] == [45, 1, 5]
    assert texts.dev.known.tolist() == [True, True, True, False, True]
    texts = made(tmp_path, "\n".join(lines), dev=str(path), test=str(path), held_out=7)
    assert [text.sentences for text in texts.parts.values()] == [50, 1, 1]


def test_a_split_that_leaves_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"0.1 of 2 sentences leaves nothing"):
        made(tmp_path, "a\nb\n")
    with pytest.raises(UserError, match=r"0.1 of 1 sentences .*, or data.sentences=lines if every line is a sentence"):
        made(tmp_path, "no full stop\n" * 100, sentences="text")
    with pytest.raises(UserError, match=r"data.held_out is 0.5; .* dev or test"):
        made(tmp_path, "a\nb\nc\n", held_out=0.5)
    with pytest.raises(UserError, match=r"data.min_count is 0"):
        made(tmp_path, "a b\n" * 30, min_count=0)
    with pytest.raises(UserError, match="neither here nor below STRUCTSPARSE_DATA"):
        made(tmp_path, "a\n", train="none-such.txt")


def corpus(name: str, *options: str):
    with initialize_config_dir(str(CONF), version_base=None):
        chosen = compose(overrides=[f"+data={name}", *options])
    return instantiate(chosen.data)


def test_the_language_reference_of_python_needs_no_file(monkeypatch):
    monkeypatch.delenv("STRUCTSPARSE_DATA", raising=False)
    texts = corpus("text")
    assert len(texts.train.targets) > 80_000
    assert texts.reading == TextReading("text", "words", lower=True)
    assert all(0.04 < len(part.targets) / len(texts.train.targets) < 0.07 for part in (texts.dev, texts.test))
    with pytest.raises(InstantiationException, match=r"gutenberg-17m.txt.gz: no such file.*not set"):
        corpus("gutenberg")


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set")
def test_the_penn_treebank_and_its_parts():
    texts = corpus("ptb")
    assert len(texts.vocabulary) == 10_000
    assert [(part.sentences, part.unknowns) for part in texts.parts.values()] == [(42_068, 0), (3_370, 0), (3_761, 0)]
    assert len(texts.train.targets) - texts.train.sentences == 887_521
    lines = [line.split() for line in (Path(os.environ["STRUCTSPARSE_DATA"]) / "ptb/ptb.train.txt").open()]
    begin, dev = 0, []
    for part in (1, 2, 3, 4, "tune"):
        texts = corpus("ptb_parts", f"data.part={part}")
        for text, size in ((texts.train, 100_000), (texts.test, 20_000)):
            sentences, words = [], 0
            while words < (size if part != "tune" else {100_000: 30_000, 20_000: 10_000}[size]):
                sentences.append(lines[begin])
                words, begin = words + len(lines[begin]), begin + 1
            expected = encode(sentences, texts.vocabulary)
            assert (text.codes == expected.codes).all()
            assert (text.known == expected.known).all()
            if text is texts.train:
                assert text.vocabulary == encode(sentences).vocabulary
        dev.append(texts.dev)
    for text in dev:  # the test text of part tune, in the vocabulary of each part
        assert (text.codes == encode(sentences, text.vocabulary).codes).all()
    with pytest.raises(InstantiationException, match=r"data.part is 5, expected one of 1, 2, 3, 4, tune"):
        corpus("ptb_parts", "data.part=5")
    with pytest.raises(InstantiationException, match="too few words for the train text of part tune"):
        corpus("ptb_parts", "data.words=[200000,20000]")
    with pytest.raises(InstantiationException, match=r"data.words is \[3\]"):
        corpus("ptb_parts", "data.words=[3]")
