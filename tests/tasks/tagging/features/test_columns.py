"""Templates of a tagger that suit the columns of a corpus, and what a run on such a corpus writes."""

import io
import re
from itertools import pairwise

import pytest
from omegaconf import OmegaConf

from structsparse import load
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, read_columns, write_columns
from structsparse.corpora.planted.tagging import planted_tagging
from structsparse.tasks.tagging.features import large
from structsparse.tasks.tagging.features.columns import suited
from structsparse.tasks.tagging.features.templates import expand
from tests.support.runs import ROOT, run_here

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


# --- features.columns=auto


def conf_of(name):
    """The options of features of a task, as the configuration files have them."""
    base, chosen = (OmegaConf.load(ROOT / "conf" / "features" / f"{file}.yaml") for file in ("_templates", name))
    return OmegaConf.to_container(OmegaConf.merge(base, chosen), resolve=True)


def with_columns(**further):
    """Planted sentences with columns before and after the tag; a function gives the value of a token.

    The arguments of the functions are the indices of the token, of its sentence, and within the sentence."""
    train = planted_tagging(seed=0, train=60, dev=5, test=5).train
    places = [
        (token, sentence, token - start)
        for sentence, (start, stop) in enumerate(pairwise(train.offsets.tolist()))
        for token in range(start, stop)
    ]
    made = {name: Column.from_strings(str(value(*place)) for place in places) for name, value in further.items()}
    order = [name for name in further if name != "after"]
    columns = {"word": train.columns["word"], **{name: made[name] for name in order}, "tag": train.columns["tag"]}
    columns |= {name: made[name] for name in made if name not in order}
    return type(train)(columns, train.offsets, "planted")


def chunk(token, sentence, place):
    return "BIO"[(token * token) % 3]


def test_columns_that_cannot_help_are_left_out_with_a_note():
    sentences = with_columns(
        index=lambda token, sentence, place: place + 1,
        line=lambda token, sentence, place: token,
        name=lambda token, sentence, place: f"s{sentence}",
        start=lambda token, sentence, place: 4 * place + token % 3,
        empty=lambda token, sentence, place: "_",
        **{"chunk-tag": chunk},
        chunk=chunk,
        height=lambda token, sentence, place: 7 - place % 3,
        after=chunk,
    )
    features = {"templates": ["word[0]"], "standard": ["word[0]"], "columns": "auto"}
    lines, notes = suited(features, sentences, "tag")
    expected = [f"{name}[{offset}]" for name in ("chunk", "height") for offset in (-1, 0, 1)]
    assert lines == ["word[0]", *expected]
    assert notes == [
        "column index has no templates: its numbers count the tokens",
        "column line has no templates: most of its values occur in one sentence only",
        "column name has no templates: most of its values occur in one sentence only",
        "column start has no templates: its numbers count the tokens",
        "column empty has no templates: it has one value only",
        "column chunk-tag has no templates: templates cannot spell its name",
        "column after has no templates: it is to the right of tag, the column to predict",
        f"templates of further columns: {', '.join(expected)}",
    ]
    named, _ = suited({**features, "columns": ["index", "after"]}, sentences, "tag")
    assert named == ["word[0]", *(f"{name}[{offset}]" for name in ("index", "after") for offset in (-1, 0, 1))]


@pytest.mark.parametrize(
    ("names", "further"),
    [
        (("word", "tag"), []),
        (("word", "pos", "tag"), []),
        (("word", "chunk", "tag"), ["chunk"]),
        (("word", "pos", "chunk", "tag"), ["chunk"]),
        (("index", "word", "lemma", "pos", "head", "tag"), ["lemma", "head"]),
    ],
)
@pytest.mark.parametrize("task", ["ner", "chunking"])
def test_templates_of_any_columns(task, names, further):
    planted = planted_tagging(seed=0, train=60, dev=5, test=5).train
    lemma = Column.from_strings(word.lower()[:3] for word in planted.columns["word"].strings())
    columns = dict(planted.columns) | {"lemma": lemma}
    columns |= {n: with_columns(**{n: f}).columns[n] for n, f in (("chunk", chunk), ("index", lambda t, s, p: p + 1))}
    columns["head"] = Column.from_strings(str((7 * k) % 11) for k in range(planted.tokens))
    sentences = type(planted)({name: columns[name] for name in names}, planted.offsets, "text")
    lines, notes = suited(conf_of(task), sentences, "tag")
    standard = [t.name for t in expand(conf_of(task)["standard"]) if "pos" in names or "pos[" not in t.name]
    assert lines == [*standard, *(f"{name}[{offset}]" for name in further for offset in (-1, 0, 1))]
    assert any("column index" in note for note in notes) == ("index" in names)


@pytest.mark.parametrize("task", ["ner", "chunking", "pos"])
def test_the_known_corpora_keep_their_templates(task):
    features, tag = conf_of(task), "pos" if task == "pos" else "tag"
    assert features["columns"] == "auto"
    train = planted_tagging(seed=0, train=60, dev=5, test=5).train  # word, pos and tag, as the known corpora
    lines, _ = suited(features, train, tag)
    assert lines == [template.name for template in expand(features["standard"])]


def test_a_list_of_the_user_gets_no_columns_unless_they_are_named():
    features = {"templates": ["word[0]"], "standard": STANDARD, "columns": "auto"}
    sentences = columns("word", "pos", "chunk", "tag")
    assert suited(features, sentences, "tag") == (["word[0]"], [])
    assert suited({**features, "columns": ["chunk"]}, sentences, "tag")[0][1:] == ["chunk[-1]", "chunk[0]", "chunk[1]"]


# --- features.large


LARGE = {"templates": STANDARD, "standard": STANDARD, "large_templates": ["1-2-grams of word[-9..9]", "pos[0]"]}


@pytest.mark.parametrize("fits", [1, 12])
def test_the_large_list_is_taken_if_there_is_time(fits, monkeypatch):
    sentences = columns("word", "pos", "tag")  # 3 tokens; 19 + 18 + 1 templates
    standard, _ = suited(LARGE, sentences, "tag")
    for share in (0.999, 1.001):
        monkeypatch.setattr(large, "SECONDS_PER_TOKEN", share * large.SECONDS / (3 * 38 * fits))
        lines, (note,) = suited({**LARGE, "large": "auto", "fits": fits}, sentences, "tag")
        taken = share < 1
        assert len(lines) == 38 if taken else lines == standard
        assert note.startswith("features.large: 38 templates would train for about 90 seconds, ")
        assert note.endswith("at most 90: they are taken" if taken else "more than 90: the standard list is taken")
    assert len(suited({**LARGE, "large": True, "fits": fits}, sentences, "tag")[0]) == 38
    assert suited({**LARGE, "large": False, "fits": fits}, sentences, "tag") == (standard, [])


def test_the_large_list_adapts_to_the_columns():
    lines, notes = suited({**LARGE, "large": True}, columns("word", "tag"), "tag")
    assert len(lines) == 37
    assert notes == ["no column pos in the corpus (word, tag): 1 templates are left out"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"large": "yes"}, "features.large is 'yes', expected true, false or auto"),
        ({"large": True, "templates": ["word[0]"]}, "features.large=true replaces features.templates: give one"),
        ({"large": "auto", "templates": ["word[0]"]}, "features.large=auto replaces features.templates: give one"),
    ],
)
def test_unfit_options_of_the_large_list_are_refused(options, reason):
    with pytest.raises(UserError, match=reason):
        suited({**LARGE, **options}, columns("word", "pos", "tag"), "tag")


def test_runs_estimate_by_the_number_of_their_fits(run, monkeypatch):
    """The search of a strength counts as so many fits as conf/search/auto.yaml says, a recipe as its stages."""
    monkeypatch.setattr(large, "SECONDS_PER_TOKEN", 1.0)
    few = ("features=ner", "features.templates=${.standard}", "features.large=auto")
    seconds = []
    for more in (("reg=l1",), ("reg=l1", "reg.strength=auto", "search.entries.fits=5", "solver=quasi_newton")):
        found = run(*few, *more)
        assert found.status in (0, None), found.errors
        (figure,) = re.findall(r"features.large: 452 templates would train for about (\S+) seconds", found.output)
        seconds.append(int(figure.replace(",", "")))
    (tokens,) = re.findall(r"train 120 sentences, (\S+) tokens", found.output)
    assert seconds == [452 * int(tokens.replace(",", "")) * count for count in (1, 5)]


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
