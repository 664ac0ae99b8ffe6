"""The configuration: names that users type, what the same options meant in earlier versions, keys that are read."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from structsparse.base.errors import UserError
from structsparse.training.options import check_options
from tests.support.runs import ROOT

CONF = ROOT / "conf"


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
    check_options(["task=ner", "reg=l1", "preset=mira", "model.alpha=1", "+reg@also.chain=l2", "~recipe.refit", "-m"])


def test_a_refusal_is_one_line(run):
    refused = run("method=mira")
    assert (refused.status, refused.output) == (2, "")
    assert refused.errors == "error: method=mira is called preset=mira now\n"
