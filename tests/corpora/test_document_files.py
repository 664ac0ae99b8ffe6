"""Files of documents: tables and folders, random parts, classes and numbers, and errors that name the line."""

import csv
import gzip
import json
import re

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.document_files import assembled, documents, read
from structsparse.corpora.documents import DocumentReading

OPTIONS = {
    "dev": None, "test": None, "text": "text", "label": "label", "numbers": False, "classes": None, "tokens": "words",
    "lower": True, "language": "en", "parses": None, "held_out": 0.2, "split": 0, "unlabelled": None,
}  # fmt: skip
ROWS = [('good, "very" good\nand long', "yes"), ("bad", "no"), ("señor", "yes"), ("", "no"), ("tab\tless", "maybe")]


def corpus(train, **options):
    return documents(str(train), **{**OPTIONS, **options})


def write_table(path, rows=ROWS, columns=("label", "id", "text")):
    """A table written by the modules csv and json."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8", newline="") as file:
        if ".jsonl" in path.name:
            for k, (text, label) in enumerate(rows):
                file.write(json.dumps({"id": k, "text": text, "label": label}) + "\n")
        else:
            writer = csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",")
            writer.writerow(columns)
            writer.writerows([{"text": text, "label": label, "id": k}[key] for key in columns]
                             for k, (text, label) in enumerate(rows))  # fmt: skip
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz", "a.jsonl.gz", "A.TSV"])
def test_tables_are_read_as_they_were_written(tmp_path, name):
    path = write_table(tmp_path / name.lower()).rename(tmp_path / name)
    raw = read(path)
    assert list(zip(raw.texts, raw.labels, strict=True)) == ROWS
    lines = [2, 4, 5, 6, 7] if ".jsonl" not in name else [1, 2, 3, 4, 5]
    assert raw.names == [f"{path}:{line}" for line in lines]


def test_quotes_in_a_table_of_tabs_without_quoted_fields_are_text(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('label\ttext\nyes\ta 5" disk\nno\t it\'s "so"\n')
    assert read(path).texts == ['a 5" disk', ' it\'s "so"']


def test_a_folder_of_folders_is_read_by_name_in_utf_8_or_latin_1(tmp_path):
    for label, name, data in [("b", "10", b"caf\xe9"), ("b", "9", "café".encode()), ("a", "x.txt", b"one\r\ntwo"),
                              ("a", ".hidden", b"no")]:  # fmt: skip
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / name).write_bytes(data)
    raw = read(tmp_path)
    assert raw.labels == ["a", "b", "b"]
    assert raw.texts == ["one\ntwo", "café", "café"]
    assert raw.names == [str(tmp_path / name) for name in ("a/x.txt", "b/10", "b/9")]


def many(tmp_path, count=40, classes=("no", "yes"), name="train.csv"):
    rows = [(f"word{k} common", classes[k % len(classes)]) for k in range(count)]
    return write_table(tmp_path / name, rows)


@pytest.mark.parametrize("given", [(), ("dev",), ("test",), ("dev", "test")])
def test_parts_without_a_file_are_drawn_from_train_by_seed(tmp_path, given):
    train = many(tmp_path)
    options = {part: str(many(tmp_path, 6, name=f"{part}.csv")) for part in given}
    splits = corpus(train, held_out=0.1, **options)
    drawn = [part for part in ("train", "dev", "test") if part not in given]
    sizes = {part: 6 if part in given else 4 for part in ("dev", "test")}
    assert {part: len(splits.parts[part]) for part in sizes} == sizes
    assert sorted(name for part in drawn for name in splits.parts[part].names) == sorted(read(train).names)
    for part in drawn:
        lines = [int(name.rpartition(":")[2]) for name in splits.parts[part].names]
        assert lines == sorted(lines)
    assert splits.dev.names == corpus(train, held_out=0.1, **options).dev.names
    if len(drawn) > 1:
        assert splits.train.names != corpus(train, held_out=0.1, split=1, **options).train.names
    assert splits.train.words is splits.test.words


def test_files_are_found_below_the_data_folder(tmp_path, monkeypatch):
    many(tmp_path)
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path))
    assert len(corpus("train.csv").train) == 24


def test_classes_are_sorted_and_can_be_chosen(tmp_path):
    path = many(tmp_path, 30, ("10", "9", "-1"))
    splits = corpus(path)
    assert splits.classes == ("-1", "9", "10")  # all are integers, so they are sorted by size
    rows = dict(zip(read(path).names, read(path).labels, strict=True))
    assert [rows[name] for name in splits.train.names] == [splits.classes[code] for code in splits.train.labels]
    chosen = corpus(path, classes=[10, 9])
    assert chosen.classes == ("10", "9")
    assert sum(map(len, chosen.parts.values())) == 20
    assert not any(rows[name] == "-1" for part in chosen.parts.values() for name in part.names)


def test_labels_may_be_numbers(tmp_path):
    rows = [(f"w{k}", k / 4) for k in range(20)]
    splits = corpus(write_table(tmp_path / "a.jsonl", rows), numbers=True)
    assert splits.classes is None
    assert splits.train.labels.dtype == np.float64
    for part in splits.parts.values():
        assert [f"w{round(4 * number)}" for number in part.labels] == part.texts


def test_parses_are_aligned_with_a_part_before_dev_is_drawn(tmp_path):
    train, test = many(tmp_path), many(tmp_path, 6, name="test.csv")
    trees = tmp_path / "trees"
    trees.write_text("".join(f"(NP (N word{k}) (N common))\n" for k in range(40)))
    splits = corpus(train, test=str(test), parses={"train": str(trees)})
    assert splits.test.constituents is None
    for part in (splits.train, splits.dev):
        phrases = part.constituents
        wide = phrases.end - phrases.begin == 2
        assert phrases.document[wide].tolist() == list(range(len(part)))
        assert part.sentences().tolist() == part.offsets.tolist()
    with pytest.raises(UserError, match=r"data.parses has dev, which is drawn from train; expected only train, test"):
        corpus(train, test=str(test), parses={"dev": str(trees)})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "label,text\nyes\n", "a.csv, line 2: 1 column, expected 2 as in the first line"),
        ("a.csv", 'label,text\nyes,"a\nb"\nno,c,d\n', "a.csv, line 4: 3 columns, expected 2"),
        ("a.csv", "kind,text\nyes,x\n", "a.csv, line 2: has no 'label' (kind, text); expected the columns"),
        ("a.csv", 'label,text\nyes,"open\n', "a.csv, line 2: unexpected end of data, expected a table"),
        ("a.csv", "label,text\n", "a.csv: has no documents"),
        ("a.csv", "", "a.csv: has no documents"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": \n', "a.jsonl, line 2: Expecting value"),
        ("a.jsonl", f'{{"text": "x", "label": {"9" * 5000}}}\n', "a.jsonl, line 1: has a number with too many digits"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1: has a number with too many digits, or too many brackets"),
        ("a.jsonl", "[1]\n", "a.jsonl, line 1: list, expected a JSON object"),
        ("a.jsonl", '{"text": null, "label": 1}\n', "a.jsonl, line 1: has no 'text' (text, label)"),
        ("a.jsonl", '{"text": ["x"], "label": 1}\n', "a.jsonl, line 1: has no 'text'"),
        ("a.txt", "x", "a.txt: expected a folder, or a file that ends with .csv, .tsv, .jsonl, .ndjson"),
        ("a.csv.gz", "x", "data.numbers"),
    ],
)  # fmt: skip
def test_errors_in_tables_name_file_and_line(tmp_path, name, content, message):
    if name == "a.csv.gz":
        (tmp_path / name).write_bytes(b"\x1f\x8b\x08nonsense")
        message = "the compressed file is cut short or damaged"
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=re.escape(message)):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([("a", "x")] * 9, {}, "all documents of train are x, expected at least two classes"),
        ([("a", "x"), ("b", "y")] * 5, {"classes": ["x", "z"]}, "data.classes has z, which no document of train has"),
        ([("a", "1"), ("b", "?")] * 5, {"numbers": True}, "a.csv, line 3: label '?', expected a number"),
        ([("a", "1"), ("b", "nan")] * 5, {"numbers": True}, "a.csv, line 3: label 'nan', expected a number"),
        ([("a", "1"), ("b", "2")] * 5, {"numbers": True, "classes": ["1"]}, "leave out one of them"),
        ([("a", "1"), ("b", "2")] * 5, {"held_out": 0.5}, "data.held_out is 0.5; without files for dev and test it"),
        ([("a", "1"), ("b", "2")], {"held_out": 0.2}, "2 documents of train cannot give 0 for dev and 0 for test"),
    ],
)
def test_bad_labels_and_splits_are_refused(tmp_path, rows, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        corpus(write_table(tmp_path / "a.csv", rows), **options)


def test_the_error_for_a_label_that_train_lacks_names_its_line(tmp_path):
    train, test = many(tmp_path), many(tmp_path, 6, ("no", "other"), "test.csv")
    with pytest.raises(UserError, match=r"test.csv, line 3: label 'other' is in no document of train"):
        corpus(train, test=str(test))
    assert len(corpus(train, test=str(test), classes=["no", "yes"]).test) == 3


def test_missing_files_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such file"):
        corpus("nowhere")
    with pytest.raises(UserError, match="has no folders, expected one for each label"):
        corpus(tmp_path)


def test_parts_share_word_types(tmp_path):
    raw = {part: read(many(tmp_path, 6, name=f"{part}.csv")) for part in ("train", "test")}
    parts = assembled(raw, False, None, DocumentReading())
    assert parts["train"].words is parts["test"].words
    assert parts["train"].texts == raw["train"].texts


def test_texts_without_labels_are_one_file_or_all_files_of_a_folder(tmp_path):
    table = write_table(tmp_path / "a.csv", ROWS * 4)
    assert corpus(table).unlabelled == ()
    (tmp_path / "one.txt").write_text("all of it\nis one text")
    assert corpus(table, unlabelled=str(tmp_path / "one.txt")).unlabelled == ("all of it\nis one text",)
    folder = tmp_path / "more"
    (folder / "inner").mkdir(parents=True)
    with pytest.raises(UserError, match="more: has no files, expected texts"):
        corpus(table, unlabelled=str(folder))
    (folder / "b").write_text("second")
    (folder / ".hidden").write_text("is not read")
    with gzip.open(folder / "inner" / "c.gz", "wt") as file:
        file.write("third")
    (folder / "a").write_text("first")
    assert corpus(table, unlabelled=str(folder)).unlabelled == ("first", "second", "third")
    with pytest.raises(UserError, match="nowhere: no such file"):
        corpus(table, unlabelled="nowhere")


def test_damaged_gzip_is_refused(tmp_path):
    intact = gzip.compress(b"label,text\n" + b"yes,some words\nno,others\n" * 300)
    path = tmp_path / "a.csv.gz"
    for broken in (intact[: len(intact) // 2], intact[:20] + b"\xff" * 9 + intact[29:], intact[:-8] + b"\0" * 8):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"a\.csv\.gz: the compressed file is cut short or damaged"):
            read(path)


def test_a_label_of_very_many_digits_is_a_name(tmp_path):
    splits = corpus(write_table(tmp_path / "a.csv", [("a", "1"), ("b", "9" * 5000)] * 10))
    assert splits.classes == ("1", "9" * 5000)
