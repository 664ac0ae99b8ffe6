"""Templates of a tagger that suit the columns of a corpus, and what a run on such a corpus writes."""

import io

import pytest

from structsparse import load
from structsparse.base.errors import UserError
from structsparse.corpora.columns import read_columns, write_columns
from structsparse.corpora.planted.tagging import planted_tagging
from structsparse.tasks.tagging.features.columns import suited
from tests.support.runs import run_here

TEXT = b"Anna NNP I-NP B-PER\nlives VBZ I-VP O\n\nOslo NNP I-NP B-LOC\n"
STANDARD = ["word[0]", "1-2-grams of pos[-1..0]", "suffix3[0] & pos[0]", "shape[0]"]


def columns(*names):
    read = read_columns(io.BytesIO(TEXT), ["word", "pos", "chunk", "tag"])
    kept = {name: read.columns[name] for name in names}
    return type(read)(kept, read.offsets, "text")


def test_standard_templates_of_a_missing_column_are_left_out():
    lines, notes = suited({"templates": STANDARD, "standard": STANDARD}, columns("word", "tag"), "tag")
    assert lines == ["word[0]", "shape[0]"]
    assert notes == ["no column pos in the corpus (word, tag): 4 templates are left out"]
    lines, notes = suited({"templates": STANDARD, "standard": STANDARD}, columns("word", "pos", "tag"), "tag")
    assert lines == ["word[0]", "pos[-1]", "pos[0]", "pos[-1..0]", "suffix3[0] & pos[0]", "shape[0]"]
    assert notes == []


def test_a_list_of_the_user_is_kept_as_it_is():
    for standard in (None, STANDARD[:2]):
        lines, notes = suited({"templates": STANDARD, "standard": standard}, columns("word", "tag"), "tag")
        assert "suffix3[0] & pos[0]" in lines
        assert notes == []


@pytest.mark.parametrize(
    ("wanted", "further"),
    [
        ([], []), ("auto", ["chunk[-1]", "chunk[0]", "chunk[1]"]), (["pos"], ["pos[-1]", "pos[0]", "pos[1]"]),
    ],
)  # fmt: skip
def test_further_columns_get_templates(wanted, further):
    features = {"templates": ["word[0]", "pos[-1..0]"], "columns": wanted}
    lines, _ = suited(features, columns("word", "pos", "chunk", "tag"), "tag")
    assert lines == ["word[0]", "pos[-1..0]", *further]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [("chunk", "expected a list of columns, or auto"), (["chnk"], "the corpus has no column chnk, it has word, pos")],
)
def test_unfit_columns_are_refused(wanted, reason):
    with pytest.raises(UserError, match=reason):
        suited({"templates": ["word[0]"], "columns": wanted}, columns("word", "pos", "chunk", "tag"), "tag")


def test_a_run_without_parts_of_speech_tells_types_and_predictions(tmp_path):
    corpus = planted_tagging(seed=0, train=60, dev=20, test=20)
    files = []
    for part in ("train", "dev", "test"):
        files.append(f"data.{part}={tmp_path / part}.txt")
        with open(tmp_path / f"{part}.txt", "wb") as stream:
            write_columns(stream, getattr(corpus, part), ["word", "tag"])
    data = ("task=ner", "data=files", "data.columns=[word,tag]", *files, "reg=l2", "trainer.max_epochs=3")
    run = run_here(folder=tmp_path / "run", data=data, base=())
    assert run.status == 0, run.errors
    assert "no column pos in the corpus (word, tag): 12 templates are left out" in run.output
    model = load(tmp_path / "run" / "model")
    for part in ("dev", "test"):
        written = read_columns(tmp_path / "run" / "report" / f"predictions_{part}.txt", ["word", "tag", "predicted"])
        tags = model.predict(tmp_path / f"{part}.txt")
        assert written.columns["predicted"].strings() == [tag for sentence in tags for tag in sentence]
        assert written.columns["word"].strings() == getattr(corpus, part).columns["word"].strings()
    kinds = model.evaluate(tmp_path / "test.txt")["types"]
    header, *rows = (line.split("\t") for line in (tmp_path / "run" / "report" / "types.tsv").read_text().splitlines())
    assert header == ["type", "precision", "recall", "f1", "gold", "predicted"]
    assert [row[0] for row in rows] == sorted(kinds)
    assert [float(row[3]) for row in rows] == pytest.approx([kinds[row[0]]["f1"] for row in rows], abs=1e-3)
    assert "test, by type" in run.output
