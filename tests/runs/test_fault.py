"""Runs that are stopped, killed, poisoned or short of disk: they go on as if nothing had been."""

import os
import pickle
import signal
import threading
import time
from contextlib import ExitStack

import pytest
import torch

from structsparse import load
from structsparse.tasks.tagging.task import Tagging, TaggingTask
from structsparse.training import finish
from structsparse.training.callbacks import checkpoints as saving
from tests.support.runs import TWO_STAGES, asks_to_stop, at_step, full_disk, litter, run_here, start

STEPS = 8  # in an epoch
RECURRENT = ("model=recurrent", "features.codes=[word,pos]", "reg.parameters=['scorer.output.weight']")
PATIENT = ("choose=best", "patience=2", "trainer.max_epochs=40", "solver.lr=0.5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing has disturbed, once for the same options."""
    finished = {}

    def whole(*options):
        if options not in finished:
            finished[options] = run_here(*options, folder=tmp_path_factory.mktemp("whole") / "run")
        return finished[options]

    return whole


def same(a, b) -> bool:
    """Tensors to the last bit, in whatever they are kept."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def assert_the_same_end(found, expected):
    """Figures, weights, optimizer and schedule, of the last models and of the best ones."""
    assert (found.status, expected.status) == (0, 0)
    assert found.result == expected.result
    paths = sorted((expected.folder / "checkpoints").glob("*/*.ckpt"))
    assert paths
    for path in paths:
        ours, theirs = (run.checkpoint(path.parent.name, path.stem) for run in (found, expected))
        for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
            assert same(ours.get(part), theirs.get(part)), (path, part)
        kept = (run.get("callbacks", {}) for run in (ours, theirs))
        assert same(*kept), path


# --- stopped, and resumed

CASES = {
    "inside an epoch": (("trainer.max_epochs=3",), 11),
    "in the first step": ((), 1),
    "after the last step of an epoch": (("trainer.max_epochs=3", "choose=best"), 2 * STEPS),
    "after the last step of all": (("choose=best",), 2 * STEPS),
    "between two thresholds": (("reg=group_lasso", "recipe=direct", "reg.every=3"), 10),
    "between two thresholds, Adam": (("reg=sparse_group_lasso", "recipe=direct", "reg.every=3", "solver=adam"), 10),
    "while gradients add up": (("trainer.accumulate_grad_batches=3",), 10),
    "while gradients add up, in rows no more": (("trainer.accumulate_grad_batches=3", "solver=adam"), 10),
    "while the threshold grows": (("reg.warmup=12", "solver=sgd", "solver.lr=0.05"), 7),
    "with momentum": (("solver=momentum",), 5),
    "with one step an epoch": (("batch=null", "trainer.max_epochs=5"), 3),
    "when patience is at its end": (PATIENT, "last"),
    "in the first of two stages": (TWO_STAGES, 5),
    "after the last step of the first stage": (TWO_STAGES, 2 * STEPS),
    "in the second of two stages": (TWO_STAGES, 2 * STEPS + 5),
    "a recurrent model": ((*RECURRENT, "solver=adam", "model.hidden=8"), 5),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(case, run, whole, monkeypatch):
    options, step = CASES[case]
    step = whole(*options).checkpoint()["global_step"] if step == "last" else step
    signum = (signal.SIGINT, signal.SIGTERM)[step % 2]
    with monkeypatch.context() as patch:
        at_step(patch, step, asks_to_stop(signum))
        stopped = run(*options, folder="stopped")
    assert stopped.status == 128 + signum
    assert f"stopped by {signum.name}; saved to {stopped.folder}" in stopped.output
    assert not (stopped.folder / "metrics.json").exists()
    resumed = run(*options, "ckpt_path=last", folder="stopped")
    assert_the_same_end(resumed, whole(*options))


def test_a_run_may_be_stopped_again_and_again(run, whole, monkeypatch):
    with monkeypatch.context() as patch:
        at_step(patch, 3, asks_to_stop())
        assert run("trainer.max_epochs=3", folder="stopped").status == 130
    for step in (4, 8, 2):
        with monkeypatch.context() as patch:
            at_step(patch, step, asks_to_stop())
            assert run("trainer.max_epochs=3", "ckpt_path=last", folder="stopped").status == 130
    resumed = run("trainer.max_epochs=3", "ckpt_path=last", folder="stopped")
    assert_the_same_end(resumed, whole("trainer.max_epochs=3"))


def test_a_killed_run_goes_on_from_its_last_epoch(run, whole, monkeypatch):
    def die(loss, batch):
        raise SystemError("as if there had been no time to save")

    options = ("trainer.max_epochs=4", "choose=best", "reg.every=3")
    monkeypatch.setattr(saving, "SECONDS", 0.0)
    with monkeypatch.context() as patch:
        at_step(patch, 2 * STEPS + 3, die)
        assert run(*options, folder="killed").status == 1
    resumed = run(*options, "ckpt_path=last", folder="killed")
    assert " 2/4" not in resumed.output
    assert " 3/4" in resumed.output
    assert_the_same_end(resumed, whole(*options))


def test_a_finished_run_is_not_trained_again(run):
    first = run(*TWO_STAGES)
    again = run(*TWO_STAGES, "ckpt_path=last")
    assert_the_same_end(again, first)
    assert "1/2" in first.output
    assert "1/2" not in again.output
    assert again.metrics["seconds_fit"] == first.metrics["seconds_fit"]


def test_the_scalars_of_a_resumed_epoch_are_those_of_the_whole_one(run, whole, monkeypatch):
    """The mean loss of an epoch counts the batches before the stop as well."""

    def losses(output):
        return [line.split()[3] for line in output.splitlines() if line.startswith("fit")]

    at_step(monkeypatch, STEPS + 3, asks_to_stop())
    stopped = run(folder="stopped")
    resumed = run("ckpt_path=last", folder="stopped")
    assert losses(stopped.output) + losses(resumed.output) == losses(whole().output)


@pytest.mark.parametrize("end", ["stopped", "failed", "finished"])
def test_the_signal_handlers_of_others_are_put_back(end, run, monkeypatch):
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    ends = {"stopped": asks_to_stop(), "failed": lambda loss, batch: loss * torch.nan, "finished": lambda *_: None}
    at_step(monkeypatch, 3, ends[end])
    assert run().status == {"stopped": 130, "failed": 2, "finished": 0}[end]
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_program_answers_a_signal_by_saving(signum, tmp_path):
    """From outside, at any moment of training, in the layout of folders that a user gets."""
    options = ("trainer.max_epochs=100000", "solver.lr=0.1")
    with start(*options, folder=tmp_path / "runs" / "first") as process:
        guard = threading.Timer(100, process.kill)
        guard.start()
        while not (line := process.stdout.readline()).startswith("fit"):
            assert line, process.stderr.read()
        process.send_signal(signum)
        output, errors = process.communicate()
        guard.cancel()
    checkpoint = tmp_path / "runs" / "first" / "checkpoints" / "fit" / "last.ckpt"
    assert (process.returncode, errors) == (128 + signum, "")
    assert f"stopped by {signum.name}; saved to {checkpoint}; continue with ckpt_path=last" in output
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["global_step"] >= STEPS
    assert litter(tmp_path) == []


def test_ctrl_c_before_training_needs_no_traceback(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(TaggingTask, "prepare", interrupted)
    stopped = run()
    assert (stopped.status, stopped.errors) == (130, "")


# --- where a run is continued from


@pytest.fixture
def stopped(run, monkeypatch):
    with monkeypatch.context() as patch:
        at_step(patch, 11, asks_to_stop())
        return run(folder="runs/stopped")


def test_a_folder_or_one_of_its_checkpoints_can_be_named(stopped, run, whole):
    before = {path: path.read_bytes() for path in stopped.folder.rglob("*") if path.is_file()}
    places = [stopped.folder, stopped.folder / "checkpoints", stopped.folder / "checkpoints" / "fit" / "last.ckpt"]
    for k, place in enumerate(places):
        assert_the_same_end(run(f"ckpt_path={place}", folder=f"elsewhere/{k}"), whole())
    assert {path: path.read_bytes() for path in stopped.folder.rglob("*") if path.is_file()} == before


def test_last_is_the_newest_run_with_the_same_options(stopped, run, monkeypatch):
    for name, options, step in (("other", ("seed=1",), 11), ("newer", (), 3), ("later", ("reg.strength=0.1",), 4)):
        time.sleep(0.02)  # for the time of the folders
        with monkeypatch.context() as patch:
            at_step(patch, step, asks_to_stop())
            assert run(*options, folder=f"runs/{name}").status == 130
    resumed = run("ckpt_path=last", folder="runs/resumed")
    assert resumed.status == 0
    taken = resumed.folder.parent / "newer" / "checkpoints" / "options.json"
    assert os.path.samefile(resumed.folder / "checkpoints" / "options.json", taken)


def test_there_must_be_something_to_resume(run, tmp_path):
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    for place, reason in (
        ("last", "has no run with the same options that got as far as a checkpoint"),
        (tmp_path / "nowhere", "no run directory with checkpoints there"),
        (tmp_path / "empty", "no run directory with checkpoints there"),
    ):
        found = run(f"ckpt_path={place}", folder="runs/new")
        assert found.status == 2
        assert found.errors.startswith("error: ckpt_path=")
        assert reason in found.errors
        assert found.errors.count("\n") == 1


@pytest.mark.parametrize("other", ["reg.strength=0.06", "loss=hinge", "seed=1", "data.train=121", "solver=sgd"])
def test_a_checkpoint_of_another_model_is_refused(other, stopped, run):
    found = run(other, f"ckpt_path={stopped.folder}", folder="other")
    assert (found.status, found.errors.count("\n")) == (2, 1)
    assert "last.ckpt is a checkpoint of another model" in found.errors


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("older", [True, False], ids=["older", "other names"])
def test_a_checkpoint_of_an_older_version_is_refused_in_one_sentence(older, finished, stopped, run):
    folder = stopped.folder / "checkpoints" / "fit"
    saved = torch.load(folder / "last.ckpt", weights_only=True)
    if older:
        del saved["format"]
    saved["state_dict"] = {f"model.{name}": value for name, value in saved["state_dict"].items()}
    torch.save(saved, folder / "last.ckpt")
    if finished:  # the record of a fit, as older versions wrote it
        torch.save(saved, folder / "best.ckpt")
        (folder / "finished.json").write_text('{"seconds_fit": 1.0, "epochs": 3, "strengths": {}, "cuts": []}')
    found = run(f"ckpt_path={stopped.folder}", folder="resumed")
    assert (found.status, found.errors.count("\n")) == (2, 1)
    expected = "was written by another version of structsparse" if older else "does not fit the model, which differs in"
    assert expected in found.errors


def test_a_run_may_be_resumed_with_another_trainer(stopped, run):
    """How long a run lasts and what it runs on is no part of the model."""
    assert run("trainer.log_every_n_steps=3", "patience=5", f"ckpt_path={stopped.folder}", folder="other").status == 0


class Explosive:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "pickle", "strange", "other pickle"])
def test_a_damaged_checkpoint_is_refused_and_never_executed(damage, stopped, run, tmp_path):
    path = stopped.folder / "checkpoints" / "fit" / "last.ckpt"
    whole = path.read_bytes()
    if damage == "pickle":
        torch.save({"fingerprint": Explosive(tmp_path / "executed")}, path)
    elif damage == "strange":
        torch.save([1, 2, 3], path)
    else:
        noise = bytes(range(256)) * 40
        other = pickle.dumps(Explosive(tmp_path / "executed"))
        path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "noise": noise, "other pickle": other}[damage])
    found = run(f"ckpt_path={stopped.folder}", folder="resumed")
    assert (found.status, found.errors.count("\n")) == (2, 1)
    assert "last.ckpt is " in found.errors
    assert not (tmp_path / "executed").exists()


# --- numbers that are none


def test_a_loss_that_is_no_number_stops_the_run_and_names_its_sentences(run, whole, monkeypatch):
    sentences = []

    def poison(loss, batch):
        sentences.extend(batch.sentences.tolist())
        return loss * torch.nan

    with monkeypatch.context() as patch:
        at_step(patch, STEPS + 3, poison)
        poisoned = run("trainer.max_epochs=3", folder="poisoned")
    assert (poisoned.status, poisoned.errors.count("\n")) == (2, 1)
    named = ", ".join(map(str, sentences[:8]))
    assert f"error: the loss is nan at step {STEPS + 3}, in the batch of training sentences {named}" in poisoned.errors
    saved = poisoned.checkpoint()  # of the epoch before
    assert saved["global_step"] == STEPS
    assert all(tensor.isfinite().all() for tensor in saved["state_dict"].values())
    resumed = run("trainer.max_epochs=3", "ckpt_path=last", folder="poisoned")
    assert_the_same_end(resumed, whole("trainer.max_epochs=3"))


def test_a_learning_rate_beyond_all_measure_stops_the_run(run):
    found = run("solver=sgd", "solver.lr=1e38")
    assert (found.status, found.errors.count("\n")) == (2, 1)
    assert "error: the loss is " in found.errors
    assert "lower solver.lr" in found.errors


@pytest.mark.parametrize("choose", ["last", "best"])
def test_weights_that_are_no_numbers_are_never_saved(choose, run, monkeypatch):
    """The loss of the last step of an epoch is fine, but what the step has made of the weights is not."""

    def spoil(loss, batch):
        return loss * 1e39  # finite in the loss's float64, beyond the float32 of the gradient

    at_step(monkeypatch, 2, spoil)
    found = run("batch=null", "trainer.max_epochs=3", "solver=sgd", "solver.lr=0.01", f"choose={choose}")
    assert (found.status, found.errors.count("\n")) == (2, 1)
    assert "The last good checkpoint is kept" in found.errors
    for path in (found.folder / "checkpoints").glob("*/*.ckpt"):
        state = torch.load(path, weights_only=True)["state_dict"]
        assert all(tensor.isfinite().all() for tensor in state.values())
    assert found.checkpoint()["global_step"] == 1


# --- no room on the disk


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_for_which_there_is_no_room_leaves_the_one_before(run, whole, monkeypatch):
    with monkeypatch.context() as patch, ExitStack() as room:
        at_step(patch, STEPS + 3, lambda loss, batch: room.enter_context(full_disk(60_000)))
        short = run(folder="short")
    assert (short.status, short.errors.count("\n")) == (2, 1)
    assert "last.ckpt could not be written" in short.errors
    assert "what was there before is kept" in short.errors
    assert short.checkpoint()["global_step"] == STEPS
    assert litter(short.folder) == []
    assert_the_same_end(run("ckpt_path=last", folder="short"), whole())


WRITERS = [(TaggingTask, "export", 2000), (finish, "write_metrics", 100)]


@pytest.mark.parametrize(("owner", "writer", "size"), WRITERS, ids=["export", "write_metrics"])
def test_results_for_which_there_is_no_room_leave_those_before(owner, writer, size, run, monkeypatch):
    first = run()
    name, place = {"export": ("model", "model"), "write_metrics": ("metrics.json", ".")}[writer]
    before = (
        files(first.folder / place) if place == "model" else {first.folder / name: (first.folder / name).read_bytes()}
    )
    write = getattr(owner, writer)

    def write_little(*arguments):
        with full_disk(size):
            return write(*arguments)

    monkeypatch.setattr(owner, writer, write_little)
    short = run("seed=1")
    assert (short.status, short.errors.count("\n")) == (2, 1)
    assert f"error: {first.folder / name} could not be written" in short.errors
    assert all(path.read_bytes() == content for path, content in before.items())
    assert litter(first.folder) == []
    load(first.folder / "model")


def test_a_board_for_which_there_is_no_room_is_a_full_disk_too(run, monkeypatch):
    """TensorBoard writes in a thread of its own, which tells of its failure later."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with full_disk(101_500):  # a checkpoint takes less, pictures of ten epochs more
        short = run("reg=group_lasso", "recipe=direct", "trainer.max_epochs=10", pictures=5)
    assert (short.status, short.errors.count("\n")) == (2, 1)
    assert "error: no room to write in" in short.errors


# --- what is saved


def test_a_step_under_way_is_finished_and_nothing_after_it_begun(run, monkeypatch):
    losses = []
    step = Tagging.training_step

    def counted(self, batch, batch_idx):
        losses.append(1)
        if len(losses) == 4:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Tagging, "training_step", counted)
    stopped = run()
    assert len(losses) == 4
    assert stopped.checkpoint()["global_step"] == 4


def test_a_second_ctrl_c_stops_at_once(run, monkeypatch):
    def twice(loss, batch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    at_step(monkeypatch, 3, twice)
    try:
        stopped = run()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning leaves it ignored
    assert stopped.status == 1
    assert not (stopped.folder / "checkpoints" / "fit").exists()


def test_checkpoints_hold_nothing_but_the_best_weights_and_the_last_state(run):
    finished = run("choose=best", "trainer.max_epochs=4")
    found = {path.name for path in (finished.folder / "checkpoints" / "fit").iterdir()}
    assert found == {"best.ckpt", "last.ckpt", "finished.json"}
    assert "optimizer_states" not in finished.checkpoint(name="best")
