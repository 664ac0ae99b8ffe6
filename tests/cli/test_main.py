"""`structsparse predict` and `structsparse evaluate` of a tagger: input, output, messages, exit status."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from seqeval.metrics import classification_report

from structsparse import __version__
from structsparse.cli.main import main
from structsparse.corpora.columns import Column, Sentences, read_columns, write_columns
from structsparse.corpora.known.tagging import planted
from structsparse.corpora.splits import SentenceSplits
from structsparse.corpora.tags import convert
from structsparse.tasks.tagging import artifact
from structsparse.tasks.tagging.data import TaggingData, prepare
from structsparse.tasks.tagging.scores import SpanScore
from structsparse.training.scores import AccuracyScore
from tests.tasks.tagging.test_artifact import predicted, tagger_of

NAMES = ["word", "pos", "tag"]


@pytest.fixture(scope="module")
def data() -> TaggingData:
    return prepare(planted(3, 120, 20, 90), ["word[0]", "suffix2[0]", "pos[-1..0]"])


@pytest.fixture(scope="module")
def model(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "model"
    artifact.save(folder, tagger_of(data, dead=0.3), data)
    return folder


@pytest.fixture(scope="module")
def tags(data) -> list[str]:
    """The tags that the model predicted for the test sentences before it was saved."""
    return predicted(tagger_of(data, dead=0.3), data)


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Run the program in this process on these bytes; its status, output and messages."""

    def run(*arguments, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main([str(argument) for argument in arguments])
        output, messages = capfdbinary.readouterr()
        return status, output, messages.decode()

    return run


def columns(sentences: Sentences, *names: str) -> bytes:
    stream = io.BytesIO()
    write_columns(stream, sentences, names)
    return stream.getvalue()


def sentences_of(output: bytes, *names: str) -> Sentences:
    return read_columns(io.BytesIO(output), names, comments="never")


def program(*arguments, **options) -> subprocess.Popen:
    """Start the program as a separate process."""
    code = "import sys; from structsparse.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=environment, **pipes)


# --- predict


def test_the_prediction_follows_the_columns_of_the_input(data, model, tags, run):
    test = data.splits.test
    status, output, messages = run("predict", model, stdin=columns(test, *NAMES))
    assert (status, messages) == (0, "")
    expected = test.with_column("predicted", Column.from_strings(tags))
    assert output == columns(expected, *NAMES, "predicted")


def test_the_folder_of_a_run_stands_for_its_model(data, model, run):
    stdin = columns(data.splits.test, *NAMES)
    assert run("predict", model.parent, stdin=stdin) == run("predict", model, stdin=stdin)


def test_tags_need_not_be_there(data, model, tags, run):
    status, output, _ = run("predict", model, stdin=columns(data.splits.test, "word", "pos"))
    assert status == 0
    assert sentences_of(output, "word", "pos", "predicted").columns["predicted"].strings() == tags


def test_last_columns_that_a_model_does_not_need_may_be_missing(data, tmp_path, run):
    words = prepare(planted(3, 120, 20, 90), ["word[0]", "suffix2[0]"])
    tagger = tagger_of(words, dead=0.3)
    artifact.save(tmp_path / "model", tagger, words)
    for names in (["word"], ["word", "pos"], NAMES):
        status, output, _ = run("predict", tmp_path / "model", stdin=columns(words.splits.test, *names))
        assert status == 0
        tags = sentences_of(output, *names, "predicted").columns["predicted"].strings()
        assert tags == predicted(tagger, words)


def test_columns_may_come_in_another_order(data, model, tags, run):
    test = data.splits.test
    stdin = columns(test, "tag", "pos", "tag", "word")
    status, output, _ = run("predict", model, "--columns", "_,pos,_,word", stdin=stdin)
    expected = test.with_column("predicted", Column.from_strings(tags))
    assert (status, output) == (0, columns(expected, "tag", "pos", "tag", "word", "predicted"))


def test_windows_line_ends_change_nothing(data, model, run):
    stdin = columns(data.splits.test, *NAMES)
    plain = run("predict", model, stdin=stdin)
    assert run("predict", model, stdin=stdin.replace(b"\n", b"\r\n")) == plain


def test_latin_1_is_read_and_utf_8_written(model, run):
    text = "Málaga NOUN\nestá VERB\n\n"
    as_utf_8 = run("predict", model, stdin=text.encode())
    status, output, messages = run("predict", model, stdin=text.encode("latin-1"))
    assert (status, output) == as_utf_8[:2]
    assert "Málaga NOUN" in output.decode()
    assert "decoded as Latin-1" in messages


@pytest.mark.parametrize(("choice", "tokens"), [("auto", 2), ("always", 2), ("never", 3)])
def test_comments_are_skipped_as_requested(choice, tokens, model, run):
    head = b"# NOUN\n" if choice != "auto" else b"# a comment line\n"
    status, output, messages = run("predict", model, "--comments", choice, stdin=head + b"a NOUN\nb NOUN\n")
    assert (status, len(output.split(b"\n")) - 2) == (0, tokens)
    assert ("1 comment line skipped" in messages) == (tokens == 2)


def test_files_instead_of_pipes(data, model, tmp_path, run):
    stdin = columns(data.splits.test, *NAMES)
    (tmp_path / "in.txt").write_bytes(stdin)
    status, output, _ = run("predict", model, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    assert (status, output) == (0, b"")
    assert (tmp_path / "out.txt").read_bytes() == run("predict", model, stdin=stdin)[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_an_error_keeps_the_old_output(model, tmp_path, run):
    (tmp_path / "out.txt").write_text("from yesterday")
    status, _, messages = run("predict", model, "--output", tmp_path / "out.txt", stdin=b"one two three four\n")
    assert status == 2
    assert "line 1: 4 columns, expected 2 or 3 (word pos tag)" in messages
    assert [path.read_text() for path in tmp_path.iterdir()] == ["from yesterday"]


def test_a_pipe_is_not_replaced_by_a_file(model, tmp_path, run):
    os.mkfifo(tmp_path / "pipe")
    status, _, messages = run("predict", model, "--output", tmp_path / "pipe", stdin=b"a NOUN\n")
    assert status == 2
    assert f"{tmp_path / 'pipe'}: is not a regular file" in messages
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("stdin", [b"", b"\n\n \n", b"-DOCSTART- O\n\n"])
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_no_sentence_is_an_error(command, stdin, model, tmp_path, run):
    (tmp_path / "empty.txt").write_bytes(stdin)
    arguments = ["--input"] if command == "predict" else []
    status, output, messages = run(command, model, *arguments, tmp_path / "empty.txt")
    assert (status, output) == (2, b"")
    assert messages.startswith(f"error: {tmp_path / 'empty.txt'}: no sentence in it")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "nowhere"], "nowhere/model.json: cannot be read"),
        (["predict", "MODEL", "--input", "nowhere.txt"], "nowhere.txt: no such file"),
        (["predict", "MODEL", "--columns", "word,tag"], "--columns word,tag lacks pos"),
        (["predict", "MODEL", "--columns", "word,pos,word"], "must be distinct"),
        (["evaluate", "MODEL"], "FILE is missing"),
        (["evaluate", "MODEL", "nowhere.txt"], "nowhere.txt: no such file"),
        (["evaluate", "MODEL", "nowhere.txt", "--columns", "word,pos"], "--columns word,pos lacks tag"),
    ],
)
def test_mistakes_of_the_user_give_one_line_and_status_2(arguments, message, model, run):
    status, output, messages = run(*[model if argument == "MODEL" else argument for argument in arguments])
    assert (status, output) == (2, b"")
    assert messages.startswith("error: ")
    assert message in messages
    assert messages.count("\n") == 1


def test_unknown_options_are_refused_with_status_2(model, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(model), "--colums", "word"])
    assert stop.value.code == 2
    assert "--colums" in capsys.readouterr().err


def test_a_closed_pipe_ends_it_without_a_message(data, model, tmp_path):
    stdin = columns(data.splits.test, *NAMES) * 30  # more than a pipe holds
    (tmp_path / "in.txt").write_bytes(stdin)
    process = program("predict", model, "--input", tmp_path / "in.txt")
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_behind_standard_output_is_an_error(model):
    with open("/dev/full", "wb") as full:
        process = program("predict", model, stdout=full)
        _, messages = process.communicate(b"a NOUN\n")
    assert process.returncode == 2
    assert messages.decode().startswith("error: the output could not be written (No space left")
    assert messages.count(b"\n") == 1


def test_a_damaged_model_gives_a_message_without_a_traceback(model, tmp_path):
    for name in ("model.json", "weights.safetensors"):
        (tmp_path / name).write_bytes((model / name).read_bytes()[:-1000])
    process = program("predict", tmp_path)
    output, messages = process.communicate(b"a NOUN\n")
    assert (process.returncode, output) == (2, b"")
    assert messages.decode().startswith(f"error: {tmp_path / 'model.json'}: no readable JSON")
    assert b"Traceback" not in messages


# --- evaluate


def evaluation(run, *arguments) -> tuple[dict, str]:
    status, output, messages = run("evaluate", *arguments, "--json")
    assert status == 0
    return json.loads(output), messages


def direct(names: list[str], gold: list[str], guess: list[str], offsets, kind=SpanScore) -> dict:
    codes = {name: code for code, name in enumerate(names)}
    score = kind(names)
    score.add(*(np.array([codes[tag] for tag in tags]) for tags in (gold, guess)), offsets)
    return score.result()


def written(path: Path, sentences: Sentences) -> Path:
    path.write_bytes(columns(sentences, *NAMES))
    return path


def test_evaluation_equals_the_score_of_the_training_model(data, model, tags, tmp_path, run):
    test = data.splits.test
    figures, messages = evaluation(run, model, written(tmp_path / "test.txt", test))
    expected = direct(list(data.names), test.columns["tag"].strings(), tags, test.offsets)
    assert {name: figures[name] for name in expected} == expected
    assert (figures["sentences"], figures["tokens"]) == (len(test), test.tokens)
    assert figures["tokens_per_second"] > 0
    assert messages == ""


def test_evaluation_equals_seqeval(data, model, tags, tmp_path, run):
    test = data.splits.test
    figures, _ = evaluation(run, model, written(tmp_path / "test.txt", test))
    bounds = list(zip(test.offsets[:-1], test.offsets[1:], strict=True))
    gold, guess = ([column[a:b] for a, b in bounds] for column in (test.columns["tag"].strings(), tags))
    report = classification_report(gold, guess, output_dict=True, zero_division=0)
    for kind, ours in [*figures["types"].items(), ("micro avg", figures)]:
        theirs = report[kind]
        assert [ours[name] for name in ("precision", "recall", "f1")] == pytest.approx(
            [theirs[name] for name in ("precision", "recall", "f1-score")]
        )


@pytest.mark.parametrize("scheme", ["iob1", "iobes"])
def test_gold_tags_may_follow_another_scheme(scheme, data, model, tmp_path, run):
    test = data.splits.test
    column, _ = convert(test, "tag", "iob2", scheme)
    assert column.strings() != test.columns["tag"].strings()
    same, messages = evaluation(run, model, written(tmp_path / "a.txt", test))
    other, messages = evaluation(run, model, written(tmp_path / "b.txt", test.with_column("tag", column)))
    assert messages == ""
    del same["tokens_per_second"], other["tokens_per_second"]
    assert other == same


def test_stray_tags_are_repaired_and_counted(data, model, tmp_path, run):
    tags = data.splits.test.columns["tag"].strings()
    place = next(k for k, tag in enumerate(tags) if tag.startswith("B-"))
    stray = [*tags[:place], f"I-{tags[place][2:]}", *tags[place + 1 :]]
    same, _ = evaluation(run, model, written(tmp_path / "a.txt", data.splits.test))
    strayed = data.splits.test.with_column("tag", Column.from_strings(stray))
    other, messages = evaluation(run, model, written(tmp_path / "b.txt", strayed))
    assert other["f1"] == same["f1"]
    assert "1 tags outside the iob2 scheme were repaired" in messages


def test_labels_unknown_to_the_model_are_wrong_and_named(data, model, tags, tmp_path, run):
    test = data.splits.test
    gold = [tag.replace("-LOC", "-RIVER") for tag in test.columns["tag"].strings()]
    renamed = test.with_column("tag", Column.from_strings(gold))
    figures, messages = evaluation(run, model, written(tmp_path / "test.txt", renamed))
    names = [*data.labels, *sorted(set(gold) - set(data.labels))]
    expected = direct(names, gold, tags, test.offsets)
    assert {name: figures[name] for name in expected} == expected
    assert (figures["types"]["RIVER"]["correct"], figures["types"]["LOC"]["gold"]) == (0, 0)
    for name in set(gold) - set(data.labels):
        assert f"label {name} is unknown to the model" in messages


def test_tags_that_are_no_spans_are_scored_by_accuracy(tmp_path, run):
    splits = planted(3, 120, 20, 90)
    parts = {
        name: Sentences({"word": p.columns["word"], "pos": p.columns["pos"]}, p.offsets, name)
        for name, p in splits.parts.items()
    }
    data = prepare(SentenceSplits("pos", **parts), ["word[0]", "suffix2[0]"], tag="pos", scheme=None)
    tagger = tagger_of(data, dead=0.3)
    artifact.save(tmp_path / "model", tagger, data)
    (tmp_path / "test.txt").write_bytes(columns(parts["test"], "word", "pos"))
    figures, _ = evaluation(run, tmp_path / "model", tmp_path / "test.txt")
    gold, guess = parts["test"].columns["pos"].strings(), predicted(tagger, data)
    assert figures["accuracy"] == np.mean(np.array(gold) == np.array(guess))
    assert "f1" not in figures
    assert figures["types"] == direct(list(data.names), gold, guess, parts["test"].offsets, AccuracyScore)["types"]
    _, output, _ = run("evaluate", tmp_path / "model", tmp_path / "test.txt")
    assert f"accuracy {figures['accuracy']:.4f}" in output.decode()


def test_the_table_has_the_figures_of_the_json(data, model, tmp_path, run):
    path = written(tmp_path / "test.txt", data.splits.test)
    figures, _ = evaluation(run, model, path)
    status, output, _ = run("evaluate", model, path)
    header, *rows, last = output.decode().splitlines()
    assert status == 0
    assert header.split() == ["type", "precision", "recall", "f1", "gold", "predicted"]
    shown = {name: values for name, *values in (row.replace(",", "").split() for row in rows)}
    assert [*shown] == [*sorted(figures["types"]), "all"]
    for name, values in shown.items():
        of = figures["types"].get(name, figures)
        assert values[:3] == [f"{of[key]:.4f}" for key in ("precision", "recall", "f1")]
    assert int(shown["all"][3]) == sum(of["gold"] for of in figures["types"].values())
    assert f"accuracy {figures['accuracy']:.4f}" in last
    assert f"{figures['tokens']:,} tokens" in last


# --- the program


def test_help_and_version_answer_without_torch():
    for arguments, expected in (
        (["--version"], __version__),
        (["--help"], "predict"),
        (["predict", "--help"], "structsparse predict runs/ner/model < sentences.txt"),
        (["evaluate", "--help"], "structsparse evaluate runs/ner/model test.txt"),
    ):
        code = f"""
import sys
from structsparse.cli.main import main
try:
    main({arguments!r})
finally:
    assert not {{"torch", "numpy", "numba"}} & set(sys.modules), "heavy"
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert (finished.returncode, finished.stderr) == (0, "")
        assert expected in finished.stdout


def test_prediction_loads_neither_lightning_nor_hydra(model):
    code = """
import sys
from structsparse.cli.main import main
status = main(sys.argv[1:])
sys.exit("heavy" if {"lightning", "hydra", "matplotlib"} & set(sys.modules) else status)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    finished = subprocess.run(
        [sys.executable, "-c", code, "predict", str(model)], input=b"a NOUN\n", env=environment, capture_output=True
    )
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert finished.stdout.startswith(b"a NOUN ")
