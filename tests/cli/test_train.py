"""`structsparse train`: its help, its flags, and that all ways to start it are one program."""

import json
import subprocess
import sys

import pytest

from structsparse.cli import train
from structsparse.cli.main import main
from tests.support.runs import ROOT

GROUPS = sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir())


def test_help_names_every_choice_and_every_option(capsys):
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    listed = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert {*GROUPS} <= {*listed}
    names = {path.stem for path in (ROOT / "conf").glob("*/*.yaml") if not path.stem.startswith("_")}
    assert names <= {*text.split()}
    assert "seed: 0  #" in text
    assert "hydra" not in text


@pytest.mark.parametrize("group", GROUPS)
def test_help_on_a_group_lists_its_choices_with_their_comments(group, capsys):
    assert main(["train", "--help", group]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        f"{group}={path.stem}" for path in sorted((ROOT / "conf" / group).glob("*.yaml")) if path.stem[0] != "_"
    ]


def test_help_on_a_choice_prints_its_options_and_those_that_it_shares(capsys):
    assert main(["train", "reg=group_lasso", "task=ner", "--help"]) == 0
    text = capsys.readouterr().out
    for name in ("reg/_term", "reg/_group", "reg/group_lasso", "task/ner"):
        content = (ROOT / "conf" / f"{name}.yaml").read_text()
        assert content.replace("# @package _global_\n", "").strip() in text


def test_help_imports_nothing_heavy():
    code = """
import json, sys
from structsparse.cli.main import main
main(["train", "--help"])
print(json.dumps([*sys.modules]))
"""
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(finished.stdout.splitlines()[-1])}
    assert loaded & {"torch", "numpy", "numba", "hydra", "lightning"} == set()


@pytest.mark.parametrize(
    "program", [["train.py"], ["-m", "structsparse", "train"], ["-m", "structsparse.cli", "train"]]
)
def test_all_ways_to_start_it_are_one_program(program, capsys):
    finished = subprocess.run(
        [sys.executable, *program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    main(["train", "--help"])
    assert finished.stdout == capsys.readouterr().out


def test_flags_may_stand_between_options(tmp_path, capsys, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tiny.yaml").write_text("defaults: [planted]\ntrain: 30\n")
    command = list(sys.argv)
    assert train.main(["task=ner", "data=tiny", "--config-dir", str(tmp_path), "--cfg", "job", "reg=l1"]) == 0
    assert "train: 30" in capsys.readouterr().out
    assert sys.argv == command


def test_options_of_earlier_versions_are_refused_before_anything_is_imported(capsys):
    assert main(["train", "method=mira"]) == 2
    assert capsys.readouterr().err == "error: method=mira is called preset=mira now\n"
