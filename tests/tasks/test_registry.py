"""The registry: all tasks by name, built in or announced by other packages, and the models of each."""

import json
import sys

import pytest

from structsparse.base.errors import UserError
from structsparse.cli.main import main
from structsparse.tasks import registry
from tests.support.runs import ROOT

PLUGIN = {
    "__init__.py": "",
    "artifact.py": """
KIND = "echo"

def load(folder, description):
    return description["text"]
""",
    "command.py": """
from structsparse.base.commands import ModelCommands, Subcommand

def say(options, model):
    print(model)

COMMANDS = ModelCommands(
    "an echo", "echoes", (Subcommand("say", say, "Says it.", ("structsparse say MODEL",), purpose="says what it is"),)
)
""",
}


@pytest.fixture(autouse=True)
def _forget_packages():
    """The list of packages is cached per process; each test here starts without it."""
    registry.packages.cache_clear()
    yield
    registry.packages.cache_clear()


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A package with a task `echo`, announced as an entry point, and a model of that task."""
    (tmp_path / "echoing").mkdir()
    for name, text in PLUGIN.items():
        (tmp_path / "echoing" / name).write_text(text)
    (tmp_path / "echoing-1.dist-info").mkdir()
    (tmp_path / "echoing-1.dist-info" / "METADATA").write_text("Name: echoing\nVersion: 1\n")
    (tmp_path / "echoing-1.dist-info" / "entry_points.txt").write_text("[structsparse.tasks]\necho = echoing\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model / "model.json").write_text(json.dumps({"format": 2, "kind": "echo", "text": "hello"}))
    yield model
    for name in [name for name in sys.modules if name.partition(".")[0] == "echoing"]:
        del sys.modules[name]


def test_every_folder_of_a_task_is_in_the_registry():
    folders = {path.parent.name for path in (ROOT / "structsparse" / "tasks").glob("*/__init__.py")}
    assert {*registry.KINDS} == folders
    assert {*registry.packages()} >= folders


@pytest.mark.parametrize("task", registry.KINDS)
def test_a_built_in_task_has_the_kind_and_the_commands_that_the_registry_expects(task):
    assert registry.KINDS[task] == registry.module(task, "artifact").KIND
    names = {part.name for part in dict(registry.commands())[task].subcommands}
    assert {"predict", "evaluate"} <= names


def test_a_task_of_another_package_is_found_by_its_entry_point(plugin, capsys):
    assert registry.packages()["echo"] == "echoing"
    assert (registry.load(plugin), registry.load(plugin.parent)) == ("hello", "hello")
    assert main(["say", str(plugin)]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_subcommands_are_for_the_models_of_their_tasks(plugin, capsys):
    assert main(["predict", str(plugin)]) == 2
    expected = "is an echo; `structsparse predict` is for taggers and parsers and language models and classifiers"
    assert expected in capsys.readouterr().err


def test_a_task_may_have_no_commands(plugin, capsys):
    (plugin.parents[1] / "echoing" / "command.py").unlink()
    assert "echo" not in dict(registry.commands())
    assert main(["predict", str(plugin)]) == 2
    assert "is a model of task echo" in capsys.readouterr().err


def test_a_mistake_inside_a_package_is_not_hidden(plugin):
    (plugin.parents[1] / "echoing" / "command.py").write_text("import does_not_exist")
    with pytest.raises(ModuleNotFoundError, match="does_not_exist"):
        dict(registry.commands())


def test_a_model_of_an_unknown_kind_is_refused(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps({"format": 2, "kind": "oracle"}))
    with pytest.raises(UserError, match=r"model.json: "):
        registry.load(tmp_path)
