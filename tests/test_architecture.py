"""The floor plan of the package: which room may import which, read from the source text of every module.

Imports inside functions and under TYPE_CHECKING count like all others. There is no list of exceptions.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "structsparse"
LAYERS = (  # a room imports only rooms before it
    *("base", "kernels", "groups", "prox", "penalties", "structures", "losses", "weights", "solvers", "corpora"),
    *("features", "artifacts", "networks", "report", "training", "tasks.*", "tasks.registry", "cli"),
)
TASKS = {path.parent.name for path in PACKAGE.glob("tasks/*/__init__.py")}
LIGHTNING, HYDRA = {"lightning", "pytorch_lightning"}, {"hydra", "omegaconf"}
READS_CONFIGURATION = {"training.automatic", "training.compose", "training.run", "cli.mistakes", "cli.train"}
MOST_GUESSES = 10  # calls of hasattr or getattr with a literal name, each on an object of another library


def name_of(path: Path) -> str:
    """`penalties/base.py` is penalties.base, `penalties/__init__.py` is penalties, the package itself is empty."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imported(tree: ast.AST) -> set[str]:
    """Dotted names of all that is imported; `from a import b` is a.b."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return names


def within(names: set[str]) -> set[str]:
    """The modules of this package among imported names: a.b is module a.b or, if there is none, an object of a."""
    inner = {name.partition(".")[2] for name in names if name.split(".")[0] == "structsparse"}
    return {name if name in TREES else name.rpartition(".")[0] for name in inner}


NAMES = {module: imported(tree) for module, tree in TREES.items()}
IMPORTS = {module: within(names) - {module} for module, names in NAMES.items()}
LIBRARIES = {module: {name.split(".")[0] for name in names} for module, names in NAMES.items()}


def room(module: str) -> str:
    """The folder at the top of the package; each task is a room of its own."""
    return ".".join(module.split(".")[: 2 if module.startswith("tasks.") else 1])


def level(module: str) -> int:
    """The place in LAYERS; the package itself, which only gathers the public names, stands above all rooms."""
    name = room(module)
    if name in ("", "__main__"):
        return len(LAYERS)
    return LAYERS.index("tasks.*" if name.removeprefix("tasks.") in TASKS or name == "tasks" else name)


def at_start(module: str) -> set[str]:
    """All modules that run when this one is imported or used, the packages around them included."""
    todo, seen = [module], set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            body = [n for n in TREES[name].body if not ast.unparse(n).startswith("if TYPE_CHECKING:")]
            todo += [name.rpartition(".")[0], *within(imported(ast.Module(body, [])))]
    return seen


def test_a_room_imports_only_rooms_below_it():
    doors = [(a, b) for a, targets in IMPORTS.items() for b in targets if room(a) != room(b)]
    assert [f"{a} imports {b or 'structsparse'}" for a, b in doors if level(a) <= level(b)] == []


def test_no_two_modules_need_each_other():
    circle = []
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []


def test_every_module_lies_in_a_room():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_imports_are_absolute():
    assert [module for module, libraries in LIBRARIES.items() if "" in libraries] == []


def test_lightning_starts_at_training_and_hydra_is_for_the_configuration_alone():
    assert [m for m in TREES if LIBRARIES[m] & LIGHTNING and level(m) < LAYERS.index("training")] == []
    assert {m for m in TREES if LIBRARIES[m] & HYDRA} - READS_CONFIGURATION == set()


@pytest.mark.parametrize("file", ["predictor", "artifact", "command"])
def test_a_trained_model_is_used_without_lightning_and_hydra(file):
    needed = {module for task in TASKS for module in at_start(f"tasks.{task}.{file}")}
    assert [module for module in needed if LIBRARIES[module] & (LIGHTNING | HYDRA)] == []


def test_only_the_registry_names_the_tasks():
    strings = {m: {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)} for m, tree in TREES.items()}
    assert [module for module in TREES if strings[module] >= TASKS] == ["tasks.registry"]
    rooms = {f"tasks.{task}" for task in TASKS}
    assert {a for a, targets in IMPORTS.items() for b in targets if room(b) in rooms - {room(a)}} <= {"tasks.registry"}


def test_interfaces_are_declared_not_guessed():
    calls = [n for tree in TREES.values() for n in ast.walk(tree) if isinstance(n, ast.Call) and len(n.args) > 1]
    guesses = [n for n in calls if ast.unparse(n.func) in ("hasattr", "getattr")]
    assert len([n for n in guesses if isinstance(n.args[1], ast.Constant)]) <= MOST_GUESSES
