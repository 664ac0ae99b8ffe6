"""Documents: every code block of README and docs/ runs, every link leads somewhere, README is one screen.

Blocks of a page run in order in one folder of example files. `file=NAME` after the language writes the block to that
file. Training commands run to their end with a small generated corpus in place of a named one, and few epochs.
"""

import contextlib
import csv
import io
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

import structsparse
from structsparse.cli import main as program
from structsparse.tasks import registry
from structsparse.training.options import expanded
from tests.support.runs import ROOT, run_here

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md"]
FENCE = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")
SETUP = ("make ", "python3 -m venv", "pip install")  # tests/test_wheel.py and .ci/run carry these out
SMALL = ("data.train=60", "data.dev=20", "data.test=20")
CORPORA = {  # what stands in for corpora that are named
    "tagging": ("data=planted", *SMALL),
    "parsing": ("data=planted_treebank", *SMALL, "features.templates=[bias,'{h,m}.{word,lemma,upos}']"),
    "lm": ("data=text", "data.limit=3000"),
    "textcat": ("data=planted_documents", "data.train=60", "data.dev=20", "data.test=20", "data.groups=20"),
    "embeddings": ("data.planted.sentences=1500",),
    "temporal": ("data.planted.features=20", "data.planted.constant=4", "data.planted.drifting=4"),
}
MODELS = {
    "tagging": ("reg=l1", "recipe=direct", "trainer.max_epochs=2"),
    "parsing": ("task=parsing", "reg.budget=2", "trainer.max_epochs=1", "recipe.refit.trainer.max_epochs=1"),
    "lm": ("task=lm", "trainer.max_epochs=5"),
    "textcat": ("task=textcat", "data.groups=20"),
    "embeddings": ("task=embeddings", "trainer.max_epochs=2"),
    "temporal": ("task=temporal", "data.train=dated.csv", "data.effects=[party]", "features.weighting=binary"),
}
SEARCH = (  # the search of a tagger for a strength, with few strengths and few epochs
    "search.groups.rules.last=0.2",
    "search.entries.rules.last=0.1",
    *(
        f"search.groups.stages.{stage}.trainer.{key}=3"
        for stage in ("pilot", "refit", "all")
        for key in ("max_epochs", "check_val_every_n_epoch")
    ),
    "search.entries.stages.last.trainer.max_epochs=15",
    "search.entries.stages.last.trainer.check_val_every_n_epoch=15",
)
STAND_INS = {
    "data=sentiment": ("data=documents", "data.train=mine.csv", "data.parses={train: mine.trees}"),
    "data=fomc": ("data=dated", "data.train=dated.csv", "data.response=null"),
}
OWN = ("data=files", "data=treebank", "data=text", "data=documents")  # read the example files


class Block(NamedTuple):
    language: str
    file: str  # to write the block to; empty: it is run
    code: str


def blocks(page: Path) -> list[Block]:
    return [Block(*match) for match in FENCE.findall(page.read_text(encoding="utf-8"))]


def commands(code: str) -> list[str]:
    lines = [line.strip() for line in code.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith(("#", *SETUP))]


def task_of(arguments: list[str]) -> str:
    name = next((a.partition("=")[2] for a in arguments if a.startswith("task=")), "ner")
    presets = {"preset=lm_best": "lm", "preset=parsing_mira": "parsing"}
    name = next((presets[a] for a in arguments if a in presets), name)
    return name if name in CORPORA else "tagging"


def reduced(arguments: list[str]) -> list[str]:
    """The options of a command, with a small corpus and few epochs."""
    arguments = [stand_in for a in arguments for stand_in in STAND_INS.get(a, (a,))]
    if not any(a in OWN or (a.startswith("data.train=") and "." in a.partition("=")[2]) for a in arguments):
        arguments = [a for a in arguments if not re.match(r"data(=|\.)", a) or a.startswith("data.seed")]
        arguments = [*CORPORA[task_of(arguments)], *arguments]
    given = {a.partition("=")[0] for a in arguments}
    if task_of(arguments) == "tagging":
        arguments = [*(a for a in SEARCH if a.partition("=")[0] not in given), *arguments]
    arguments.sort(key=lambda a: not a.startswith("--"))  # flags first
    arguments = expanded(arguments)
    arguments += ["cache=0", *([] if "trainer.max_epochs" in given else ["trainer.max_epochs=3"])]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        own = any(a.startswith("--config-dir") for a in arguments)  # files of the reader, which only a run composes
        stages = [] if own else [*compose("config", arguments).recipe]
    epochs = {stage: f"recipe.{stage}.trainer.max_epochs" for stage in stages[1:]}
    return [*arguments, *(f"++{key}=2" for key in epochs.values() if key not in given)]


def train(arguments: list[str]) -> None:
    for choice in sweep(arguments):
        run = run_here(*reduced(choice), data=(), base=(), folder=Path(f"runs/{abs(hash(tuple(choice)))}").resolve())
        assert run.status in (0, None), run.errors[-800:]


def sweep(arguments: list[str]) -> list[list[str]]:
    """The first run of a sweep (-m), or the one run there is; `ckpt_path=last` has a test of its own."""
    plain = [a for a in arguments if a not in ("-m", "ckpt_path=last")]
    return [[a.partition(",")[0] if "-m" in arguments else a for a in plain]]


def use(arguments: list[str], source: str | None) -> None:
    """A subcommand of `structsparse` in this process."""
    text = Path(source).read_text(encoding="utf-8") if source else ""
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as output:
            assert program.main(arguments) == 0
            output.flush()
        assert output.buffer.getvalue() or any(a.startswith(("--output", "-o")) for a in arguments)
    finally:
        sys.stdin = stdin


def execute(command: str) -> None:
    words = shlex.split(command, comments=True)
    source = None
    if "<" in words:
        source = words[words.index("<") + 1]
        words = words[: words.index("<")]
    if words[0] == "structsparse" and words[1] != "train":
        use(words[1:], source)
    elif words[0] == "structsparse" or (words[0].endswith("python") and words[1] == "train.py"):
        train(words[2:])
    else:
        raise AssertionError(f"a document has a command that no test runs: {command}")


def write_dated(folder: Path) -> None:
    """A table of dated texts, in which `inflation` gains in weight, and a series of rates."""
    rng = np.random.default_rng(0)
    with (folder / "dated.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("date", "text", "number", "party"))
        for year in range(2015, 2022):
            for _ in range(60):
                there = rng.random(10) < 0.5
                words = ["inflation", "growth", *(f"word{k}" for k in range(8))]
                text = " ".join(word for word, so in zip(words, there, strict=True) if so)
                value = 0.4 * (year - 2017) * there[0] - there[1] + 0.2 * rng.normal()
                table.writerow((f"{year}-{1 + rng.integers(12):02d}-03", text, f"{value:.3f}", rng.choice(["D", "R"])))
    lines = [f"{year}-{month:02d}-01,{month / 10 + year % 7}" for year in range(2014, 2022) for month in range(1, 13)]
    (folder / "rate.csv").write_text("\n".join(["DATE,VALUE", *lines]) + "\n")


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Path:
    """A folder with the files that the documents name, and a small trained model of each task."""
    from structsparse.corpora.columns import write_columns
    from structsparse.corpora.conllu import write_treebank
    from structsparse.corpora.known import treebanks
    from structsparse.corpora.known.tagging import planted
    from structsparse.corpora.planted.documents import planted_documents

    folder = tmp_path_factory.mktemp("reader")
    for part, sentences in planted(0, 60, 20, 20).parts.items():
        with (folder / f"{part}.txt").open("wb") as file:
            write_columns(file, sentences, ("word", "pos", "tag"))
    shutil.copy(folder / "test.txt", folder / "sentences.txt")
    for part, treebank in treebanks.planted(0, 60, 20, 20, 0.05).parts.items():
        with (folder / f"{part}.conllu").open("wb") as file:
            write_treebank(file, treebank)
    documents = planted_documents(0, 60, 20, 20, 2, 20, 40, 4).train
    rows = [(text, documents.classes[label]) for text, label in zip(documents.texts, documents.labels, strict=True)]
    with (folder / "mine.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    trees = (f"(S {' '.join(f'(W {word})' for word in text.split())})" for text, _ in rows)
    (folder / "mine.trees").write_text("\n".join(trees) + "\n")
    (folder / "texts.txt").write_text("\n".join(text for text, _ in rows[:3]) + "\n")
    (folder / "letter.txt").write_text(rows[0][0])
    (folder / "text.txt").write_text("\n\n".join(["The value of an object is its name. It has a type."] * 99))
    write_dated(folder)
    for name, options in MODELS.items():
        options = tuple(a.replace("dated.csv", str(folder / "dated.csv")) for a in options)
        run = run_here(*options, *CORPORA[name], data=(), base=(), folder=folder / "runs" / name)
        assert run.status in (0, None), run.errors
    for name in ("ner", "demo"):
        shutil.copytree(folder / "runs" / "tagging", folder / "runs" / name)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_every_code_block_runs(page, reader, tmp_path, monkeypatch):
    folder = shutil.copytree(reader, tmp_path / "reader", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    full = structsparse.train
    monkeypatch.setattr(structsparse, "train", lambda options: full(reduced(options)))
    names: dict[str, object] = {}
    for language, file, code in blocks(page):
        if file:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(code, encoding="utf-8")
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(code, str(page), "exec"), names)
        elif language == "bash":
            for command in commands(code):
                execute(command)
        else:
            assert language == "text", f"{page.name}: a block of {language}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page):
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        assert not target.startswith("http"), "documents link to each other only"
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.M)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_is_one_screen_and_links_every_page():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    linked = {target for target, _ in LINK.findall(text)}
    assert {f"docs/{page.name}" for page in PAGES if page.parent == ROOT / "docs"} <= linked


def test_the_task_of_the_contributing_page_is_found_by_its_entry_point(tmp_path, monkeypatch):
    files = {file: code for _, file, code in blocks(ROOT / "docs" / "contributing.md") if file}
    project = tomllib.loads(files["pyproject.toml"])["project"]
    metadata = tmp_path / f"{project['name']}-{project['version']}.dist-info"  # as pip installs it
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    group = project["entry-points"]["structsparse.tasks"]
    entries = "".join(f"{name} = {package}\n" for name, package in group.items())
    (metadata / "entry_points.txt").write_text(f"[structsparse.tasks]\n{entries}")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.packages.cache_clear()
    try:
        assert registry.packages()["shapes"] == "shapes"
    finally:
        registry.packages.cache_clear()


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_shows(tmp_path):
    """Each line of the first block of text in README begins a line of the run; numbers agree to a hundredth."""
    shown = next(block.code for block in blocks(ROOT / "README.md") if block.language == "text")
    run = run_here("task=ner", "reg=group_lasso", data=(), base=(), folder=tmp_path / "run")
    printed = [re.sub(r"[ │┃;]+", " ", line).split() for line in run.output.splitlines()]
    assert [line for line in shown.splitlines() if not any(begins(words, line.split()) for words in printed)] == []


def begins(words: list[str], shown: list[str]) -> bool:
    """Whether a printed line begins with the words of another one, where numbers may differ by a hundredth."""
    return len(words) >= len(shown) and all(map(agree, words, shown))


def agree(word: str, shown: str) -> bool:
    try:
        return float(word.replace(",", "")) == pytest.approx(float(shown.replace(",", "")), rel=0.01)
    except ValueError:
        return word == shown
