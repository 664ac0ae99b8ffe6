"""The subcommands of `structsparse` for classifiers: input, output and error messages."""

import io
import json
import sys

import pytest

from structsparse import load
from structsparse.cli import main as cli
from tests.support.classifiers import L1, SIZES, TEXTCAT, corpus
from tests.support.runs import run_here


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training run; its test part lies beside it as a folder and as a table."""
    folder = tmp_path_factory.mktemp("textcat")
    run = run_here(*L1, folder=folder / "run", data=TEXTCAT, base=())
    assert run.status == 0, run.errors
    test = corpus().test
    rows = [{"text": text, "label": test.classes[code]} for text, code in zip(test.texts, test.labels, strict=True)]
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for k, row in enumerate(rows):
        (folder / "test" / row["label"]).mkdir(parents=True, exist_ok=True)
        (folder / "test" / row["label"] / f"{k}.txt").write_text(row["text"])
    return run


def called(capsys, *arguments) -> tuple[int, str, str]:
    """Run the program; its exit status, output and messages."""
    status = cli.main([*map(str, arguments)])
    return status, *capsys.readouterr()


def test_evaluate_gives_the_scores_of_the_run(run, capsys):
    for name in ("test.jsonl", "test"):
        status, output, _ = called(capsys, "evaluate", run.folder / "model", run.folder.parent / name, "--json")
        assert status == 0
        figures = json.loads(output)
        assert figures["accuracy"] == pytest.approx(run.metrics["accuracy"])
        assert figures["macro_f1"] == pytest.approx(run.metrics["macro_f1"])
        assert figures["documents"] == SIZES["test"]
    status, output, _ = called(capsys, "evaluate", run.folder / "model", run.folder.parent / "test")
    assert f"accuracy {run.metrics['accuracy']:.4f}" in output


def test_unknown_labels_are_wrong_and_named(run, tmp_path, capsys):
    (tmp_path / "odd.csv").write_text('body,kind\n"these words",class0\n"other words",strange\n')
    status, output, errors = called(
        capsys, "evaluate", run.folder / "model", tmp_path / "odd.csv", "--text", "body", "--label", "kind", "--json"
    )
    assert status == 0
    assert json.loads(output)["accuracy"] <= 0.5
    assert "label strange is unknown" in errors


def test_predict_takes_lines_and_files(run, tmp_path, capsys, monkeypatch):
    model, test = load(run.folder / "model"), corpus().test
    lines = test.texts[:5]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join([*lines, ""]).encode())))
    status, output, _ = called(capsys, "predict", run.folder / "model")
    assert status == 0
    rows = [line.split("\t") for line in output.splitlines()]
    probabilities = model.probabilities(model.scores(model.read(lines)))
    assert [line[0] for line in rows] == [model.classes[k] for k in probabilities.argmax(axis=1)]
    for line, row in zip(rows, probabilities, strict=True):
        assert [field.split("=") for field in line[1:]] == [
            [name, f"{value:.6f}"] for name, value in zip(model.classes, row, strict=True)
        ]
    paths = [tmp_path / f"{k}.txt" for k in range(2)]
    for path, text in zip(paths, lines, strict=False):
        path.write_text(text.replace(" ", "\n"))
    status, output, _ = called(capsys, "predict", run.folder / "model", *paths)
    assert [line.split("\t") for line in output.splitlines()] == [
        [str(path), *line] for path, line in zip(paths, rows, strict=False)
    ]
    (tmp_path / "lines").write_text("\n".join(lines))
    status, _, _ = called(
        capsys, "predict", run.folder / "model", "--input", tmp_path / "lines", "--output", tmp_path / "out"
    )
    assert (status, (tmp_path / "out").read_text().splitlines()) == (0, ["\t".join(line) for line in rows])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("predict", "MODEL", "--nbest", "3"), "--nbest is for taggers"),
        (("evaluate", "MODEL", "nowhere"), "nowhere: no such file"),
        (("next", "MODEL", "a"), "is a classifier; `structsparse next` is for language models"),
        (("predict", "MODEL", "nowhere.txt"), "nowhere.txt"),
        (("predict", "MODEL", "a", "--input", "b"), "give one of them"),
    ],
)
def test_user_errors_are_one_line_and_status_2(arguments, reason, run, capsys):
    arguments = [str(run.folder / "model") if argument == "MODEL" else argument for argument in arguments]
    status, _, errors = called(capsys, *arguments)
    assert (status, errors.count("\n")) == (2, 1)
    assert reason in errors


def test_files_are_for_classifiers_alone(tmp_path, capsys):
    tagger = run_here("trainer.max_epochs=1", folder=tmp_path / "run", data=("data=planted", "data.train=30"))
    assert tagger.status == 0, tagger.errors
    status, _, errors = called(capsys, "predict", tagger.folder / "model", "letter.txt")
    assert (status, "FILE is for classifiers" in errors) == (2, True)
