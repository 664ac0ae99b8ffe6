"""The configuration: names that users type, what the same options meant in earlier versions, keys that are read."""

import inspect
import json
import random
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_method, instantiate
from lightning import Trainer
from omegaconf import OmegaConf

from structsparse.artifacts.quantization import ArtifactOptions
from structsparse.base.errors import UserError
from structsparse.training import compose as composing
from structsparse.training import legality
from structsparse.training.options import check_options
from tests.support.runs import ROOT

CONF = ROOT / "conf"
LM_REGS = ("l1", "l2", "elastic_net", "tree_l2", "tree_linf")


def composed(*overrides: str) -> dict:
    """The options of a command line, every interpolation resolved."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)


# --- names that users type


@pytest.mark.parametrize(
    ("argument", "fragments"),
    [
        ("method=sparseptron", ("preset=sparseptron",)),
        ("+experiment=martins2011/chunking", ("python -m benchmarks.harness martins2011/chunking",)),
        ("experiment=chunking_sizes", ("python -m benchmarks.harness chunking_sizes",)),
        ("features.alpha=0.9", ("model.alpha",)),
        ("features.tolerance=1e-6", ("solver.tolerance",)),
        ("reg=lasso_words", ("reg=l1", "reg.strength")),
        ("reg=ridge_words", ("reg=l2", "reg.strength")),
        ("reg=elastic_words", ("reg=elastic_net",)),
        ("reg=ridge_frequency", ("reg=structured", "reg.frequency=documents")),
    ],
)
def test_a_renamed_option_is_refused_with_its_new_name(argument, fragments):
    with pytest.raises(UserError) as refused:
        check_options(["task=textcat", argument, "seed=1"])
    for fragment in fragments:
        assert fragment in str(refused.value)


def test_options_of_today_pass():
    options = ["task=ner", "reg=l1", "preset=mira", "model.alpha=1", "+reg@also.chain=l2", "~recipe.refit", "-m"]
    assert check_options(options) is None


def test_a_refusal_is_one_line(run):
    refused = run("method=mira")
    assert (refused.status, refused.output) == (2, "")
    assert refused.errors == "error: method=mira is called preset=mira now\n"


# --- values of earlier versions


BEFORE = OmegaConf.to_container(OmegaConf.load(ROOT / "tests" / "composed.yaml"))


def flat(node: dict, prefix: str = "") -> dict[str, object]:
    """Dotted keys and their values; a class or function is written by its name, under the key of its part."""
    pairs: dict[str, object] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            pairs |= flat(value, f"{prefix}{key}.")
        elif key == "_target_":
            pairs[prefix.removesuffix(".")] = value.rpartition(".")[2]
        else:
            pairs[prefix + key] = value
    return pairs


ONE_SE, AUTO = {"choose": "one_se"}, {"reg.strength": "auto"}
GROUPED = ("overlap", "sparse_group_lasso")
TEXT = {"features.weighting": "tfidf", "solver.gap": 1e-9, "reg.group": "auto", "reg.lasso": 0.0, "reg.squares": "auto"}
CHANGED = {  # on purpose: dev chooses the strengths of taggers and text classifiers, and tf-idf is the default
    **{f"task=textcat reg={reg}": TEXT for reg in ("structured", "sentences", "structured groups=combined")},
    "task=ner": ONE_SE | AUTO | {"features.group_strength": "absent"},
    **{f"task=ner reg={reg}": ONE_SE | AUTO for reg in GROUPED},
    **{f"task=ner recipe={recipe}": ONE_SE | AUTO for recipe in ("quantised_refit", "backward_mira")},
    "task=ner reg=fused": ONE_SE,
    "task=ner reg=l1": AUTO,
    "task=chunking preset=sparseptron_crf": AUTO,
}


@pytest.mark.parametrize("line", BEFORE)
def test_command_lines_mean_what_they_meant_before(line):
    cfg = composed(*line.split())
    values = flat(cfg) | {"stages": " ".join(cfg["recipe"])}
    expected = {key: value for key, value in BEFORE["task=ner"].items() if key in values} | BEFORE[line]
    expected |= CHANGED.get(line, {})
    assert {key: values.get(key, "absent") for key in expected} == expected


# --- every key is read


READERS = [ROOT / "structsparse" / "training" / f"{name}.py" for name in ("compose", "run", "finish")]
YAML = "".join(path.read_text() for path in CONF.rglob("*.yaml"))
READ = set(re.findall(r"\bcfg\.(\w+)", "".join(path.read_text() for path in READERS)))
READ |= set(re.findall(r"\$\{(\w+)", YAML))  # by interpolation
KNOBS = {*composing.TERM_OPTIONS, *composing.SCHEDULE_OPTIONS}
CONTROL = {"permute", "seed"}  # every maker of groups of words hands them on
TASK_FEATURES = {
    "tagging": "features/_templates",
    **{task: f"features/{task}" for task in ("parsing", "textcat", "embeddings")},
}


def accepted(target: str) -> set[str]:
    """The options that a class or function takes."""
    parameters = inspect.signature(get_method(target)).parameters.values()
    names = {parameter.name for parameter in parameters}
    return names | CONTROL if any(p.kind == p.VAR_KEYWORD for p in parameters) else names


def unread(node: object, where: str, also: frozenset[str] = frozenset()) -> list[str]:
    """Keys of a part of the configuration, and of the parts in it, that what they make does not take."""
    if not isinstance(node, dict):
        return []
    keys = {key for key in node if key not in ("_target_", "_partial_")}
    extra = sorted(keys - accepted(node["_target_"]) - also) if "_target_" in node else []
    return [f"{where}.{key}" for key in extra] + [
        wrong for key in keys for wrong in unread(node[key], f"{where}.{key}")
    ]


def unread_options(cfg: dict) -> list[str]:
    """Options of a composed configuration that nothing reads."""
    wrong = [key for key in cfg if key not in READ]
    wrong += [f"trainer.{key}" for key in cfg["trainer"] if key not in inspect.signature(Trainer).parameters]
    wrong += [f"artifact.{key}" for key in cfg["artifact"] if key not in ArtifactOptions.__dataclass_fields__]
    for name, stage in {"": cfg, **{f"recipe.{k}.": v or {} for k, v in cfg["recipe"].items()}}.items():
        wrong += [name + key for key in stage if key not in cfg]
        terms = {"reg": stage.get("reg") or {}, **{f"also.{k}": v for k, v in (stage.get("also") or {}).items()}}
        wrong += [f"{name}{k}" for part, term in terms.items() for k in unread(term, part, frozenset(KNOBS))]
        wrong += [f"{name}{k}" for k in unread(stage.get("solver"), "solver", frozenset({"final_lr"}))]
        parts = ("task", "data", "filter", "groups", "loss", "model")
        wrong += [f"{name}{k}" for part in parts for k in unread(stage.get(part), part)]
    return wrong


TASKS = ("textcat", "ner", "chunking", "pos")
PRESETS = sorted(path.stem for path in (CONF / "preset").glob("*.yaml"))
DEFAULTS = {  # a command line under which each file of preset/_default is in force
    "parsing_group_lasso": "task=parsing",
    "temporal_select_refit": "task=temporal",
    "lm_fista": "task=lm",
    **{f"{part}_{reg}": f"task=lm reg={reg}" for part in ("lm", "ngram") for reg in LM_REGS},
    **{f"embeddings_{reg}": f"task=embeddings reg={reg}" for reg in (*LM_REGS, "overlap")},
    "embeddings_adamw": "task=embeddings solver=adamw",
    **{f"{t}_{reg}": f"task={t} reg={reg}" for t in TASKS for reg in ("l1", "l2", "elastic_net")},
}


@pytest.mark.parametrize("line", [*(f"preset={name}" for name in PRESETS), *dict.fromkeys(DEFAULTS.values())])
def test_presets_set_no_option_that_nothing_reads(line):
    assert unread_options(composed(*line.split())) == []


def test_every_default_of_a_task_is_in_force_somewhere():
    assert set(DEFAULTS) == {path.stem for path in (CONF / "preset" / "_default").glob("*.yaml")}


@pytest.mark.parametrize(("task", "file"), TASK_FEATURES.items())
def test_options_of_features_are_read(task, file):
    source = "".join(path.read_text() for path in (ROOT / "structsparse" / "tasks" / task).rglob("*.py"))
    keys = [str(key) for key in OmegaConf.load(CONF / f"{file}.yaml")]
    unknown = [k for k in keys if f'"{k}"' not in source and not re.search(rf"\$\{{[^}}]*\b{k}\b", YAML)]
    assert unknown == []


def test_bases_are_no_choices(run):
    refused = run("reg=l3")
    assert "group_lasso" in refused.errors
    assert not re.search(r"^\s+_\w+$", refused.errors, re.MULTILINE)


def test_conf_stays_small():
    files = [path for path in CONF.rglob("*.yaml") if "preset" not in path.parts]
    assert len(files) <= 163
    assert sum(path.read_text().count("\n") for path in files) <= 1447


# --- which tasks, penalties and groups fit each other


TINY = {  # a small corpus of each task
    "ner": ("data.train=20", "data.dev=5", "data.test=5", "features.templates=['word[0]','word[-1..0]']"),
    "parsing": ("data.train=10", "data.dev=4", "data.test=4", "features.templates=['h.upos & m.upos']"),
    "textcat": ("data.train=20", "data.dev=10", "data.test=10"),
    "lm": ("data.limit=3000",),
    "embeddings": ("data.planted.sentences=300",),
    "temporal": ("data.planted.features=5", "data.planted.constant=1", "data.planted.drifting=1"),
}
NEEDED = {
    "file": ("groups.path=rows.json",),
    "words_file": ("groups.path=words.json",),
    "module_heads": ("groups.heads=1",),
    "topics": ("groups.topics=3", "groups.iterations=2"),
    "brown": ("groups.classes=8",),
    "ward": ("groups.classes=8",),
}
DATA = "are not nested|no convolution|no columns|no groups? of|parse trees|two words|no rows|a file with parents"
MEANINGLESS = [("parsing", "label")]  # can be made, all weights in one group, and is refused all the same


def choices(part: str) -> list[str]:
    return sorted(path.stem for path in (CONF / part).glob("[!_]*.yaml"))


@pytest.mark.slow
def test_legality_of_drawn_options_is_what_building_the_model_says(tmp_path, monkeypatch):
    """200 drawn triples: the yaml files alone tell what building the penalty of a small model finds."""
    monkeypatch.chdir(tmp_path)
    Path("rows.json").write_text('{"a": [0, 1], "b": [2]}')
    cases = [(task, reg, groups) for task in TINY for reg in choices("reg") for groups in choices("groups")]
    found: list[tuple] = []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        data = {}
        for task, options in TINY.items():
            cfg = compose("config", overrides=[f"task={task}", *options])
            made = instantiate(cfg.task, _convert_="all")
            features = instantiate(cfg.features, _convert_="all")
            data[task] = made, made.prepare(instantiate(cfg.data), features, instantiate(cfg.filter), 0)
        Path("words.json").write_text(json.dumps({"a": list(data["textcat"][1].bag.layout.words[:2])}))
        for task, reg, groups in random.Random(22).sample(cases, 200):
            options = (f"task={task}", f"reg={reg}", f"groups={groups}", *NEEDED.get(groups, ()))
            cfg = compose("config", overrides=[*options, "recipe=direct", "cache=0"])
            cfg.reg.update({key: 0.1 for key, value in cfg.reg.items() if value == "auto"})
            (stage,) = composing.stages_of(cfg, "", tmp_path, None)
            found.append((task, reg, groups, legality.refusal(task, reg, groups), error_of(*data[task], stage)))
    wrong = [case for case in found if (case[3] is None) != (case[4] is None) and not excused(*case)]
    assert wrong == []
    assert sum(case[3] is None for case in found) > 20


def error_of(task, data, stage) -> str | None:
    """What goes wrong when a model and its penalty are made, whatever it is."""
    try:
        task.build(stage, data)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def excused(task: str, reg: str, groups: str, verdict: str | None, error: str | None) -> bool:
    """Whether the data or the shape of this small model, not the options, are at fault."""
    return (task, groups) in MEANINGLESS if error is None else verdict is None and re.search(DATA, error) is not None


def test_groups_that_do_not_fit_are_refused_before_data_are_read(run):
    refused = run("task=textcat", "reg=group_lasso", "data=documents", "data.train=nowhere.csv", data=(), base=())
    assert refused.status == 2
    assert refused.errors.startswith("error: groups=template is for a table of templates or arcs")
    assert "with reg=nested, overlap, overlap_sequential, structured" in refused.errors
