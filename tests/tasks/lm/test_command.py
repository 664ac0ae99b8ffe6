"""The subcommands of `structsparse` for language models: input, output and error messages."""

import gzip
import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from structsparse import load
from structsparse.cli.main import main
from structsparse.corpora.known.tagging import planted
from structsparse.corpora.text_reading import END, UNKNOWN, TextReading
from structsparse.tasks.lm import artifact as lm_artifact
from structsparse.tasks.lm import export
from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.tasks.tagging import artifact
from structsparse.tasks.tagging.data import prepare
from tests.cli.test_main import program
from tests.support.language_models import model_of, sentences
from tests.tasks.tagging.test_artifact import tagger_of

TEXT = "\n".join(map(" ".join, sentences(9, 30, 12))) + "\n"  # with unknown words


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lm") / "model"
    lm_artifact.save(folder, model_of(2))
    return folder


@pytest.fixture(scope="module")
def model(folder) -> LanguageModel:
    return load(folder)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lm") / "tagger"
    data = prepare(planted(3, 20, 5, 5), ["word[0]"])
    artifact.save(folder, tagger_of(data, dead=0.3), data)
    return folder


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Run the program with this standard input; its exit status, output and messages."""

    def run(*arguments, input: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input)))
        status = main([str(argument) for argument in arguments])
        output, messages = capfdbinary.readouterr()
        return status, output.decode(), messages.decode()

    return run


def expected_lines(model: LanguageModel, text: str) -> list[list[str]]:
    """The output of `structsparse predict` for a text, as lists of columns."""
    lines = []
    for sentence in text.split("\n")[:-1]:
        values = model.log_probabilities(model.encode([sentence.split()]))
        for word, value in zip([*sentence.split(), END], values, strict=True):
            known = word in model.vocabulary.codes
            lines.append([word, f"{value:.6f}", *([] if known else [UNKNOWN])])
        lines.append([""])
    return lines


# --- predict


def test_predict_writes_a_line_for_every_word_and_sentence_end(folder, model, tmp_path, run):
    status, output, messages = run("predict", folder, input=TEXT.encode())
    assert (status, messages) == (0, "")
    assert [line.split("\t") for line in output.split("\n")[:-1]] == expected_lines(model, TEXT)
    assert f"\t{UNKNOWN}\n" in output
    (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT.encode()))
    status, nothing, _ = run("predict", folder, "--input", tmp_path / "text.gz", "--output", tmp_path / "scored")
    assert (status, nothing) == (0, "")
    assert (tmp_path / "scored").read_text() == output


def test_words_are_written_as_the_model_reads_them(folder, model, tmp_path, run):
    lm_artifact.save(tmp_path / "model", replace(model, reading=TextReading("text", "words", lower=True)))
    status, output, _ = run("predict", tmp_path / "model", input=b"W0 w1. W2,\nw0!\n\n")
    words = [line.split("\t")[0] for line in output.split("\n")]
    assert (status, words) == (0, ["w0", "w1", ".", END, "", "w2", ",", "w0", "!", END, "", ""])


def test_sentences_are_scored_as_they_arrive(folder, model):
    process = program("predict", folder)
    for sentence in ("w0 w1", "strange w2"):
        process.stdin.write(sentence.encode() + b"\n")
        process.stdin.flush()
        for expected in expected_lines(model, sentence + "\n"):
            assert process.stdout.readline().decode() == "\t".join(expected) + "\n"
    output, messages = process.communicate()
    assert (output, messages, process.returncode) == (b"", b"", 0)


def test_an_error_leaves_the_old_output(folder, tmp_path, run):
    (tmp_path / "out").write_text("old output")
    status, _, messages = run("predict", folder, "--output", tmp_path / "out", input=b"w0\n\xff\n")
    assert (status, messages.count("\n")) == (2, 1)
    assert "line 2: byte 0xff is not UTF-8" in messages
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old output"]


# --- evaluate


@pytest.mark.parametrize("zipped", [False, True])
def test_evaluate_tells_the_perplexities_of_a_file(zipped, folder, model, tmp_path, run):
    (tmp_path / "text").write_bytes(gzip.compress(TEXT.encode()) if zipped else TEXT.encode())
    status, output, messages = run("evaluate", folder, tmp_path / "text", "--json")
    assert (status, messages) == (0, "")
    figures = json.loads(output)
    lines = [line for line in expected_lines(model, TEXT) if len(line) > 1]
    known = [float(line[1]) for line in lines if len(line) == 2]
    assert figures.pop("tokens_per_second") > 0
    assert figures == {
        "perplexity": pytest.approx(math.exp(-np.mean(known)), rel=1e-5),
        "perplexity_open": pytest.approx(math.exp(-np.mean([float(line[1]) for line in lines])), rel=1e-5),
        "targets": len(known),
        "unknown": len(lines) - len(known),
        "sentences": 30,
        "tokens": len(lines),
    }
    status, output, _ = run("evaluate", folder, tmp_path / "text")
    first, second, last = output.splitlines()
    assert first.split()[:4] == ["perplexity", f"{figures['perplexity']:.2f}", "over", str(len(known))]
    assert second.split()[:2] == ["perplexity_open", f"{figures['perplexity_open']:.2f}"]
    assert last.startswith(f"30 sentences, {len(lines)} tokens, ")


# --- next, sample, export


def test_next_tells_words_and_reasons(folder, model, run):
    status, output, messages = run("next", folder, "w1 w0", "-n", 3)
    assert (status, messages) == (0, "")
    rows = [line.split("\t") for line in output.splitlines()]
    expected = model.next_words("w1 w0", 3)
    assert [(float(probability), word) for probability, word, _ in rows] == [
        (pytest.approx(word.probability, abs=1e-6), word.word) for word in expected
    ]
    for (_, _, reasons), word in zip(rows, expected, strict=True):
        parts = dict(part.split(" -> ") for part in reasons.split(", "))
        assert parts == {" ".join(part.context) or "(any)": f"{part.weight:+.2f}" for part in word.parts}


def test_next_names_unknown_words(folder, run):
    status, output, messages = run("next", folder, "w1 strange")
    assert (status, messages) == (0, f"note: strange: unknown to the model, counted as {UNKNOWN}\n")
    assert len(output.splitlines()) == 10


def test_sample_writes_random_sentences(folder, model, run):
    options = ["-n", 4, "--seed", 7, "--start", "w1", "--temperature", 0.8]
    status, output, messages = run("sample", folder, *options)
    assert (status, messages) == (0, "")
    drawn = [" ".join(sentence) for sentence in model.sample(4, 7, 0.8, "w1")]
    assert output.splitlines() == drawn
    assert run("sample", folder)[1] == run("sample", folder, "-n", 1, "--seed", 0)[1]


@pytest.mark.parametrize("name", export.FORMATS)
def test_export_writes_the_formats(name, folder, model, tmp_path, run):
    expected = "".join(export.FORMATS[name](model))
    assert run("export", folder, "--format", name) == (0, expected, "")
    assert run("export", folder, "--format", name, "--output", tmp_path / "out") == (0, "", "")
    assert (tmp_path / "out").read_text() == expected


# --- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "MODEL", "--nbest", "3"], "--nbest is for taggers and parsers; MODEL is a language model"),
        (["predict", "MODEL", "--marginals"], "--marginals is for taggers"),
        (["predict", "MODEL", "--columns", "word"], "--columns is for taggers"),
        (["evaluate", "MODEL", "x", "--comments", "never"], "--comments is for taggers"),
        (["next", "TAGGER", "the"], "TAGGER is a tagger; `structsparse next` is for language models"),
        (["sample", "TAGGER"], "TAGGER is a tagger; `structsparse sample` is for language models"),
        (["export", "TAGGER", "--format", "tsv"], "TAGGER is a tagger; `structsparse export` is for"),
        (["evaluate", "MODEL", "nowhere.txt"], "nowhere.txt: no such file, expected a file of text"),
        (["predict", "MODEL", "--input", "nowhere.txt"], "nowhere.txt: no such file, expected a file of text"),
        (["predict", "MODEL"], "has no words, expected text"),
        (["export", "MODEL", "--format", "tsv", "--output", "/"], "/: is not a regular file"),
        (["next", "nowhere", "the"], "nowhere/model.json: cannot be read"),
    ],
)
def test_user_errors_are_one_line_and_status_2(arguments, message, folder, tagger, run):
    paths = {"MODEL": folder, "TAGGER": tagger}
    for name, path in paths.items():
        message = message.replace(name, str(path))
    status, output, messages = run(*[paths.get(argument, argument) for argument in arguments])
    assert (status, output) == (2, "")
    assert messages.startswith("error: ")
    assert message in messages
    assert messages.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["next", "MODEL", "the", "-n", "0"],
        ["sample", "MODEL", "--temperature", "0"],
        ["sample", "MODEL", "--temperature", "nan"],
        ["sample", "MODEL", "--temperature", "warm"],
        ["sample", "MODEL", "--seed", "-1"],
        ["export", "MODEL", "--format", "pickle"],
        ["export", "MODEL"],
    ],
)
def test_invalid_arguments_are_refused_with_status_2(arguments, folder, capsys):
    with pytest.raises(SystemExit) as stop:
        main([str(folder) if argument == "MODEL" else argument for argument in arguments])
    assert stop.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


def test_a_closed_pipe_ends_the_program_quietly(folder):
    process = program("sample", folder, "-n", 10**6)
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


# --- the program


def test_help_has_examples(capsys):
    for command in ("next", "sample", "export", "predict", "evaluate"):
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0
        assert f"structsparse {command} runs/lm/model" in capsys.readouterr().out


def test_language_models_import_neither_lightning_nor_hydra(folder):
    code = """
import sys
from structsparse.cli.main import main
status = main(sys.argv[1:])
sys.exit("heavy" if {"lightning", "hydra", "matplotlib"} & set(sys.modules) else status)
"""
    done = subprocess.run([sys.executable, "-c", code, "next", str(folder), "w0"], capture_output=True, cwd=Path.cwd())
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout
