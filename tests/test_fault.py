"""Runs that are stopped, killed, starved of disk or poisoned: nothing is lost, nothing is half written."""

import signal

import pytest
import torch

from tests.conftest import TWO_STAGES, asks_to_stop, at_step

STEPS = 8  # in an epoch


def same(a, b) -> bool:
    """Tensors to the last bit, in whatever they are kept."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


CASES = {
    "inside an epoch": (("trainer.max_epochs=3",), 11),
    "at the end of an epoch": (("trainer.max_epochs=3",), 16),
    "at the very end": (("trainer.max_epochs=3",), 24),
    "in the first step": ((), 1),
    "between two prox steps": (("reg=group_lasso", "recipe=direct", "reg.every=3"), 10),
    "between two prox steps, Adam": (("reg=sparse_group_lasso", "recipe=direct", "reg.every=3", "solver=adam"), 10),
    "while gradients add up": (("trainer.accumulate_grad_batches=3",), 10),
    "during warm-up": (("reg.warmup=12", "solver=sgd"), 7),
    "momentum": (("solver=momentum",), 5),
    "whole corpus": (("batch=null", "trainer.max_epochs=6"), 4),
    "best on dev": (("choose=best", "trainer.max_epochs=3"), 16),
    "patience": (("choose=best", "patience=1", "trainer.max_epochs=20", "solver.lr=2"), 9),
    "in the first stage": (TWO_STAGES, 5),
    "in the second stage": (TWO_STAGES, 2 * STEPS + 5),
    "between the stages": (TWO_STAGES, 2 * STEPS),
    "a dense model": (
        ("model=recurrent", "features.codes=[word,pos]", "reg.parameters=['scorer.output.weight']", "solver=adam"),
        11,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("signum", [signal.SIGINT])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(case, signum, run, monkeypatch):
    options, step = CASES[case]
    whole = run(*options, folder="whole")
    with monkeypatch.context() as patch:
        at_step(patch, step, asks_to_stop(signum))
        stopped = run(*options, folder="stopped")
    print(stopped)
    assert stopped.status == 128 + signum
    resumed = run(*options, "ckpt_path=last", folder="stopped")
    print(resumed, whole)
    assert resumed.status == 0
    assert resumed.result == whole.result
    for path in (whole.folder / "checkpoints").glob("*/*.ckpt"):
        stage, name = path.parent.name, path.stem
        a,b = whole.checkpoint(stage, name), resumed.checkpoint(stage, name)
        for k in a: 
            if not same(a[k],b[k]): print("DIFF",path,k,a[k] if k not in("state_dict","optimizer_states") else "",b[k] if k not in("state_dict","optimizer_states") else "")
        for part in ("state_dict", "optimizer_states", "lr_schedulers"):
            assert same(a.get(part), b.get(part))
