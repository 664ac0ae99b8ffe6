"""What the program does with a parser: reads, writes and scores CoNLL-U, and says what is wrong with it."""

import io
import json
import os
import sys

import numpy as np
import pytest

from structsparse import load
from structsparse.cli.main import main
from structsparse.corpora.conllu import read_treebank, write_treebank
from structsparse.corpora.known.treebanks import planted
from structsparse.tasks.parsing.artifact import save
from tests.cli.test_main import program
from tests.support.conllu import row, text_of
from tests.support.parsers import corpus, made
from tests.support.runs import run_here

SIZES = {"train": 60, "dev": 20, "test": 20}
PARSING = (
    *("task=parsing", "data=planted_treebank", *(f"data.{part}={size}" for part, size in SIZES.items())),
    *("reg=group_lasso", "reg.budget=8", "trainer.max_epochs=1", "recipe.refit.trainer.max_epochs=2", "seed=0"),
    "features.templates=['h.upos & m.upos','h.lemma & m.upos','m.upos','h.word','h.xpos & m.xpos']",
)
WORDS = [  # of a sentence with all that CoNLL-U has
    *("# sent_id = 7", "# text = al mare."),
    row("1-2", "almare", misc="SpaceAfter=No"),
    row(1, "al", "a", "ADP", "adp1", "Case=Gen", 2, "case", "2:case", "Gloss=to"),
    row("1.1", "_", "_", "_", "_", deps="2:x"),
    row(2, "mare", "mare", "NOUN", "noun1", "_", 0, "root", "0:root"),
    row(3, ".", ".", "PUNCT", "punct1", "_", 2, "punct", "2:punct", "SpacesAfter=\\n"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A whole run, with its test part as a file."""
    folder = tmp_path_factory.mktemp("parsing")
    found = run_here(*PARSING, folder=folder / "run", data=(), base=())
    assert found.status == 0, found.errors
    with (folder / "test.conllu").open("wb") as stream:
        write_treebank(stream, planted(0, *SIZES.values(), 0.05).test)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "model"
    save(folder, made().model)
    return folder


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Run the program on these bytes; its status, output and messages."""

    def run(*arguments, given: bytes | str = b"") -> tuple[int, str, str]:
        given = given.encode() if isinstance(given, str) else given
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        status = main([str(argument) for argument in arguments])
        output, messages = capfdbinary.readouterr()
        return status, output.decode(), messages.decode()

    return run


def written(treebank) -> str:
    stream = io.BytesIO()
    write_treebank(stream, treebank)
    return stream.getvalue().decode()


def blind(text: str, *numbers: int) -> str:
    """The same with _ in some columns of its words; graphs are gone as well."""
    lines = []
    for line in text.split("\n"):
        fields = line.split("\t")
        if len(fields) == 10:
            fields = ["_" if k in numbers and fields[0].isdigit() else field for k, field in enumerate(fields)]
            fields[8] = "_"
        lines.append("\t".join(fields))
    return "\n".join(lines)


# --- a run


def test_the_run_reports_relations(trained):
    metrics = trained.metrics
    assert 0 < metrics["las"] <= metrics["uas"]
    assert 0 < metrics["las_no_punct"] <= metrics["uas_no_punct"]
    assert 0 < metrics["dev_las"] <= metrics["dev_uas"]
    assert metrics["label_features"] >= metrics["label_rows_alive"] > 0 < metrics["seconds_labels"]
    assert metrics["artifact_bytes"] == sum(path.stat().st_size for path in (trained.folder / "model").iterdir())


def test_relations_beat_the_most_frequent_one(trained):
    """Over the words whose head is right."""
    test = planted(0, *SIZES.values(), 0.05).test
    gold = test.columns["deprel"].strings()
    assert trained.metrics["las"] / trained.metrics["uas"] > max(map(gold.count, gold)) / len(gold) + 0.2


def test_the_report_tells_features_in_words(trained):
    lines = [line.split("\t") for line in (trained.folder / "report" / "features.tsv").read_text().splitlines()]
    weights = [abs(float(weight)) for _, weight in lines[1:]]
    assert lines[0] == ["feature", "weight"]
    assert len(weights) == trained.metrics["nonzero"]
    assert weights == sorted(weights, reverse=True)
    model = load(trained.folder / "model")
    living = {template.name for template in model.index.templates}
    assert {" & ".join(part.split("=")[0] for part in name.split(" & ")) for name, _ in lines[1:]} == living
    relations = (trained.folder / "report" / "relations.tsv").read_text().splitlines()
    assert len(relations) == 1 + trained.metrics["label_rows_alive"]


def test_without_relations_a_run_has_no_las(tmp_path, run):
    found = run_here(*PARSING, "task.labels=false", folder=tmp_path / "run", data=(), base=())
    assert not {"las", "dev_las", "label_rows_alive"} & {*found.metrics}
    _, output, _ = run("predict", found.folder / "model", given=text_of([WORDS]))
    assert [line.split("\t")[7] for line in output.splitlines() if "\t" in line] == ["_"] * 5
    _, output, _ = run("evaluate", found.folder / "model", write(tmp_path / "a", text_of([WORDS])), "--json")
    assert "las" not in json.loads(output)


def test_what_evaluate_says_is_what_the_run_has_said(trained, run):
    status, output, messages = run(
        "evaluate", trained.folder / "model", trained.folder.parent / "test.conllu", "--json"
    )
    assert (status, messages) == (0, "")
    figures = json.loads(output)
    names = ("uas", "uas_no_punct", "las", "las_no_punct", "complete", "complete_no_punct", "root_accuracy")
    assert {name: figures[name] for name in names} == {name: trained.metrics[name] for name in names}
    assert (figures["sentences"], figures["punctuation"]) == (SIZES["test"], "upos")
    status, output, _ = run("evaluate", trained.folder / "model", trained.folder.parent / "test.conllu")
    assert f"las         {figures['las']:.4f}  {figures['las_no_punct']:.4f}" in output


def test_predictions_score_what_evaluate_says(trained, tmp_path, run):
    gold = trained.folder.parent / "test.conllu"
    _, output, _ = run("predict", trained.folder / "model", "--input", gold)
    predicted, right = read_treebank(io.BytesIO(output.encode())), read_treebank(gold)
    same = predicted.heads == right.heads
    assert same.mean() == trained.metrics["uas"]
    names = zip(predicted.columns["deprel"].strings(), right.columns["deprel"].strings(), strict=True)
    assert (same & [a == b for a, b in names]).mean() == trained.metrics["las"]


# --- predict


def write(path, text: str):
    path.write_text(text)
    return path


def test_heads_and_relations_alone_are_written(model, run):
    given = text_of([WORDS]) + written(corpus().test)
    status, output, messages = run("predict", model, given=given)
    assert (status, messages) == (0, "")
    assert blind(output, 6, 7) == blind(given, 6, 7)
    found, expected = read_treebank(io.BytesIO(output.encode())), load(model)
    trees = expected.parse(read_treebank(io.BytesIO(given.encode())))
    np.testing.assert_array_equal(found.heads, trees.heads)
    assert found.columns["deprel"].strings() == trees.relations.strings()


def test_what_is_there_already_is_not_looked_at(model, run):
    given = text_of([WORDS]) + written(corpus().test)
    seen = run("predict", model, given=given)
    assert run("predict", model, given=blind(given, 6, 7)) == seen
    assert run("predict", model, given=given.replace("\t2\tpunct\t", "\tnine\t_\t")) == seen


def test_trees_are_written_before_the_input_ends(model):
    with program("predict", model) as process:
        for sentence in (text_of([WORDS]), written(corpus().test.select([0]))):
            process.stdin.write(sentence.encode())
            process.stdin.flush()
            lines = []
            while not lines or lines[-1] != "\n":
                lines.append(process.stdout.readline().decode())
            assert blind("".join(lines), 6, 7) == blind(sentence, 6, 7)
        rest, messages = process.communicate(timeout=60)
    assert (process.returncode, rest, messages) == (0, b"", b"")


def test_marginals_stand_in_the_last_column(model, run):
    test = corpus().test
    given = text_of([WORDS]) + written(test)
    _, plain, _ = run("predict", model, given=given)
    _, output, _ = run("predict", model, "--marginals", given=given)
    misc = [line.split("\t")[9] for line in output.splitlines() if line.partition("\t")[0].isdigit()]
    chances = [float(field.partition("ArcProbability=")[2]) for field in misc]
    expected = load(model).parse(read_treebank(io.BytesIO(given.encode())), probabilities=True).probabilities
    np.testing.assert_allclose(chances, expected, atol=1e-6)
    assert [field.partition("ArcProbability=")[0] for field in misc[:3]] == ["Gloss=to|", "", "SpacesAfter=\\n|"]
    assert blind(output, 9) == blind(plain, 9)


def test_the_best_trees_follow_each_other(model, run):
    test = corpus().test
    status, output, _ = run("predict", model, "--nbest", 3, given=written(test))
    assert status == 0
    _, best, _ = run("predict", model, given=written(test))
    blocks = output.split("\n\n")[:-1]
    ranks = [block.split("\n")[0] for block in blocks]
    assert [rank.split(",")[0] for rank in ranks] == [f"#rank={k}" for k in (1, 2, 3)] * len(test)
    firsts = [block.partition("\n")[2] for block in blocks[::3]]
    assert firsts == best.split("\n\n")[:-1]
    odds = np.array([float(rank.rpartition("=")[2]) for rank in ranks]).reshape(-1, 3)
    assert (np.diff(odds) <= 0).all()
    assert (odds.sum(axis=1) <= 1 + 1e-5).all()
    one = text_of([[row(1, "a", "a", "X", "x")]])
    assert run("predict", model, "--nbest", 3, given=one)[1].count("#rank") == 1  # there is no other tree


def test_columns_that_are_missed_are_named(model, run):
    given = text_of([[row(1, "al", "a", "ADP", "adp1"), row(2, "mare", "mare", "NOUN", "_")]])
    assert run("predict", model, given=given)[2] == ""
    status, output, messages = run("predict", model, given=blind(given, 2, 3))
    assert (status, output.count("\n")) == (0, 3)
    counts = load(model).columns
    for name in ("lemma", "upos"):
        assert f"{name} is _ throughout, {counts[name]} templates of the model read it" in messages
    assert messages.count("\n") == 2


def test_columns_of_conll_x_are_written_as_such(model, run):
    lines = [row(1, "al", "a", "ADP", "adp1", "_", 2, "case", 2, "case"), row(2, "mare", head=0, deps=0, misc="root")]
    _, output, _ = run("predict", model, "--marginals", given=text_of([lines]))
    fields = [line.split("\t") for line in output.splitlines()[:2]]
    assert [own[8] for own in fields] == ["_", "_"]
    assert all(own[9].startswith("ArcProbability=") for own in fields)


def test_files_instead_of_pipes(model, tmp_path, run):
    given = write(tmp_path / "in.conllu", text_of([WORDS]))
    _, piped, _ = run("predict", model, given=text_of([WORDS]))
    assert run("predict", model, "--input", given, "--output", tmp_path / "out.conllu")[:2] == (0, "")
    assert (tmp_path / "out.conllu").read_text() == piped
    assert sorted(os.listdir(tmp_path)) == ["in.conllu", "out.conllu"]


# --- faults


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no sentence in it, expected lines of 10 columns"),
        ("1\tal\n\n", "line 1: 2 columns between tabs, expected 10"),
        (text_of([WORDS]) + row(2, "b") + "\n\n", "line 9: id '2', expected 1"),
        (text_of([WORDS]).replace("mare\tmare", "mare\t"), "line 6: column 3 (lemma) is empty"),
        (b"1\t\xff\n\n", "line 1: not UTF-8"),
    ],
)
def test_a_fault_of_the_input_is_told_by_its_line(text, reason, model, tmp_path, run):
    (tmp_path / "out.conllu").write_text("from yesterday")
    status, output, messages = run("predict", model, "--output", tmp_path / "out.conllu", given=text)
    assert (status, output, messages.count("\n")) == (2, "", 1)
    assert reason in messages
    assert (tmp_path / "out.conllu").read_text() == "from yesterday"


def test_what_comes_before_a_fault_is_written(model, run):
    status, output, _ = run("predict", model, given=text_of([WORDS]) + "1\tal\n\n")
    assert (status, blind(output, 6, 7)) == (2, blind(text_of([WORDS]), 6, 7))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("\t2\tpunct\t", "\t9\tpunct\t"), "line 7: head '9', expected the number of another word up to 3"),
        (("\t0\troot\t", "\t3\troot\t"), "lines 4 to 7: no word has head 0, expected a root"),
        (("\t2\tpunct\t", "\t_\tpunct\t"), "line 7: head '_'"),
    ],
)
def test_a_gold_tree_that_is_none_is_told_by_its_line(change, reason, model, tmp_path, run):
    path = write(tmp_path / "gold.conllu", text_of([WORDS]).replace(*change))
    status, _, messages = run("evaluate", model, path)
    assert (status, messages.count("\n")) == (2, 1)
    assert f"{path}, {reason}" in messages


def test_a_relation_that_the_model_lacks_is_wrong_and_named(model, tmp_path, run):
    path = write(tmp_path / "gold.conllu", text_of([WORDS]).replace("\tpunct\t", "\tnever_seen\t"))
    status, output, messages = run("evaluate", model, path, "--json")
    assert (status, json.loads(output)["las"] <= 2 / 3) == (0, True)
    assert "relation never_seen is unknown to the model" in messages


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("predict", "MODEL", "some.txt"), "FILE is for classifiers; MODEL is a parser"),
        (("predict", "MODEL", "--columns", "word"), "--columns is for taggers; MODEL is a parser"),
        (("evaluate", "MODEL", "nowhere"), "nowhere: no such file"),
        (("evaluate", "MODEL", "nowhere", "--label", "a"), "--label is for classifiers; MODEL is a parser"),
        (("next", "MODEL", "a"), "MODEL is a parser; `structsparse next` is for language models"),
    ],
)
def test_what_the_program_cannot_do_is_said_in_a_sentence(arguments, reason, model, run):
    arguments = [str(model) if argument == "MODEL" else argument for argument in arguments]
    status, _, messages = run(*arguments)
    assert (status, messages.count("\n")) == (2, 1)
    assert reason.replace("MODEL", str(model)) in messages
