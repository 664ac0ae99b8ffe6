"""Settings of all tests: one thread each, no time limits; and a training run in the folder of the test."""

import copy
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # set before torch is imported: one pytest worker per core is enough
from tests.support.runs import Run, run_here

settings.register_profile("untimed", deadline=None)  # machines are shared, so durations mean nothing
settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Millions of objects of modules and tests live to the end: each garbage collection would visit them all."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread_a_worker():
    """Numba threads that wait for each other on a busy core are slow; tests of threads ask for more."""
    import numba

    numba.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _options_read_once():
    """Hydra parses each file of conf/ anew in every composition; no test changes a file that was read before."""
    from hydra._internal.config_repository import ConfigRepository

    load, read = ConfigRepository.load_config, {}

    def load_config(self, config_path):
        key = config_path, *((source.scheme(), source.path) for source in self.sources)
        if key not in read:
            read[key] = load(self, config_path)
        return copy.deepcopy(read[key])  # a composition changes what it is given

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", load_config)
        yield


@pytest.fixture
def run(tmp_path) -> Callable[..., Run]:
    """Train in this process, in the temporary folder of the test."""

    def run(*overrides: str, folder: str | Path = "run", **options) -> Run:
        return run_here(*overrides, folder=tmp_path / folder, **options)

    return run
