"""The wheel in a new environment: the installed program trains and predicts outside the checkout."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from structsparse.base.version import VERSION
from tests.support.runs import ROOT

pytest.importorskip("setuptools")
SOURCES = ("structsparse", "conf", "pyproject.toml", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
TINY = "trainer.max_epochs=2 cache=0 features.templates=['word[0]','suffix3[0]','prefix4[0]','pos[-1..0]']"
SENTENCES = "das DET\nHaus NOUN\n\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout, built from a copy without what earlier builds left behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        options = {"symlinks": True, "ignore": shutil.ignore_patterns("__pycache__")} if (ROOT / name).is_dir() else {}
        copy(ROOT / name, folder / "source" / name, **options)
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    subprocess.run([*PIP, *build, folder / "source"], check=True)
    shutil.rmtree(folder / "source")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A new environment with the wheel in it; its dependencies are those of the environment of this test."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/*/site-packages")
    dependencies = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    subprocess.run([*PIP, "--python", folder / "bin" / "python", "install", "--quiet", "--no-deps", wheel], check=True)
    reuse_kernels(packages / "structsparse")
    return folder


def reuse_kernels(package: Path) -> None:
    """Copy the kernels that numba has compiled in this checkout, which saves a minute; numba checks if they fit."""
    for source in (ROOT / "structsparse").rglob("*.py"):
        times = source.stat()
        os.utime(package / source.relative_to(ROOT / "structsparse"), ns=(times.st_atime_ns, times.st_mtime_ns))
    for pattern in ("*.nbi", "*.nbc"):
        for compiled in (ROOT / "structsparse").rglob(pattern):
            target = package / compiled.relative_to(ROOT / "structsparse")
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(compiled, target)


@pytest.fixture
def run(installed, tmp_path):
    """Run a program of the new environment in an empty folder."""
    environment = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}

    def run(program: str, *arguments: str, stdin: str = "") -> str:
        finished = subprocess.run(
            [installed / "bin" / program, *arguments],
            cwd=tmp_path,
            env={**environment, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            input=stdin,
            capture_output=True,
            text=True,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run


def test_the_wheel_holds_all_modules_and_all_options(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "structsparse").rglob("*.py")}
    options = {f"structsparse/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert names == modules | options | {"structsparse/py.typed"}


def test_the_program_answers_from_the_installed_files(run, installed):
    assert run("structsparse", "--version") == f"structsparse {VERSION}\n"
    assert "train a model" in run("structsparse", "--help")
    code = (
        "import structsparse; from structsparse.base.configuration import configuration_folder as conf; print(conf())"
    )
    assert Path(run("python", "-c", code).strip()).is_relative_to(installed)


def test_the_program_trains_and_predicts(run, tmp_path):
    (tmp_path / "mine" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "data" / "small.yaml").write_text("defaults: [planted]\ntrain: 100\ndev: 20\ntest: 20\n")
    arguments = ["task=ner", "reg=group_lasso", "data=small", "--config-dir", "mine", *TINY.split()]
    run("structsparse", "train", *arguments, "hydra.run.dir=first")
    assert (tmp_path / "first" / "metrics.json").exists()
    lines = run("structsparse", "predict", "first/model", stdin=SENTENCES).splitlines()
    assert [line.split()[:-1] for line in lines] == [line.split() for line in SENTENCES.splitlines()]
