"""What happens around an optimizer step: the prox, the watch over it, the figures that are shown."""

import io
import math
import signal
from functools import partial
from types import SimpleNamespace

import lightning
import pytest
import sklearn.linear_model
import torch
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset

from structsparse.base.errors import UserError
from structsparse.groups import by_row
from structsparse.penalties import L1, GroupLasso
from structsparse.solvers.base import Capabilities
from structsparse.solvers.dual_averaging import RDA, AdagradRDA
from structsparse.solvers.fista import FISTA, AcceleratedSGD
from structsparse.solvers.mira import MIRA
from structsparse.solvers.owlqn import OWLQN
from structsparse.solvers.quasi_newton import ProximalQuasiNewton
from structsparse.solvers.sgd import RowSGD
from structsparse.tasks.tagging.task import Tagging
from structsparse.training.callbacks.checkpoints import Checkpoints, StopAtNaN, WholeFiles
from structsparse.training.callbacks.converged import StopWhenConverged
from structsparse.training.callbacks.monitor import SparsityMonitor
from structsparse.training.callbacks.progress import EpochLines
from structsparse.training.callbacks.proximal import ProximalStep
from tests.support.runs import run_here

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`", "ignore:`isinstance.treespec")
ROWS, LABELS, BATCHES, RATE = 6, 2, 10, 0.1


class Regression(lightning.LightningModule):
    """Least squares, weights penalised and bias free; the rate falls by a tenth with each step."""

    def __init__(self, optimizer=torch.optim.SGD, fall: float = 0.9, **options):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(ROWS, LABELS))
        self.bias = torch.nn.Parameter(torch.zeros(LABELS))
        self.make, self.fall = lambda parameters: optimizer(parameters, **{"lr": RATE, **options}), fall
        self.seen = []  # the weights that validation saw

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (x @ self.weights + self.bias - y).square().mean()

    def validation_step(self, batch, batch_idx):
        self.seen.append(self.weights.detach().clone())

    def configure_optimizers(self):
        optimizer = self.make(self.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.fall)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Recorded(L1):
    """Remembers the steps it was applied with, and at which step of training."""

    def __init__(self, strength: float = 0.01):
        super().__init__(strength)
        self.steps = []

    def prox_(self, W, steps):
        self.steps.append(float(steps))
        return super().prox_(W, steps)


def loader() -> DataLoader:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4 * BATCHES, ROWS, generator=draw)
    return DataLoader(TensorDataset(x, x[:, :LABELS]), batch_size=4)


def trainer(*callbacks, **options) -> lightning.Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options = {"max_epochs": 1, "accelerator": "cpu", "num_sanity_val_steps": 0, **quiet, **options}
    return lightning.Trainer(callbacks=list(callbacks), **options)


def fitted(penalty, module=None, validate: bool = False, *, every: int = 1, warmup: int = 0, support=None, **options):
    """The module and the trainer after a fit with this penalty on its weights."""
    module = Regression() if module is None else module
    fit = trainer(ProximalStep({"weights": penalty}, every, warmup, support), **options)
    fit.fit(module, loader(), loader() if validate else None)
    return module, fit


def rates(steps: int) -> list[float]:
    return [RATE * 0.9**k for k in range(steps)]


class Seeing(L1):
    """Remembers what it was given."""

    def prox_(self, W, steps):
        self.seen = W.clone()
        return super().prox_(W, steps)


def test_what_may_not_live_is_gone_before_the_prox_looks_at_norms():
    penalty, mask = Seeing(0.01), torch.ones(ROWS, LABELS, dtype=torch.bool)
    mask[:, 1] = False
    module, _ = fitted(penalty, support={"weights": mask})
    assert (penalty.seen[:, 1] == 0).all()
    assert (module.weights[:, 0] != 0).any()


# --- when the prox is applied, and with which step


@pytest.mark.parametrize("accumulate", [1, 3, 4, 20])
def test_a_prox_follows_every_step_of_the_optimizer_and_no_batch_without_one(accumulate):
    penalty = Recorded()
    _, fit = fitted(penalty, max_epochs=2, accumulate_grad_batches=accumulate)
    assert fit.global_step == 2 * math.ceil(BATCHES / accumulate)
    assert penalty.steps == pytest.approx(rates(fit.global_step))


@pytest.mark.parametrize("every", [1, 2, 3, 7, 1000])
def test_the_thresholds_of_several_steps_add_up_and_none_is_lost(every):
    """Each epoch ends with what has accumulated, so the last step is followed by a prox as well."""
    penalty = Recorded()
    fitted(penalty, every=every, max_epochs=2)
    expected, waiting = [], 0.0
    for step, rate in enumerate(rates(2 * BATCHES), start=1):
        waiting += rate
        if step % every == 0 or step % BATCHES == 0:
            expected.append(waiting)
            waiting = 0.0
    assert penalty.steps == pytest.approx(expected)
    assert sum(penalty.steps) == pytest.approx(sum(rates(2 * BATCHES)))


def test_the_threshold_grows_over_the_warm_up():
    penalty = Recorded()
    fitted(penalty, warmup=8, max_epochs=2)
    ramp = [min(1.0, step / 8) for step in range(1, 2 * BATCHES + 1)]
    assert penalty.steps == pytest.approx([rate * share for rate, share in zip(rates(20), ramp, strict=True)])


@pytest.mark.parametrize(("momentum", "dampening"), [(0.9, 0.0), (0.5, 0.2)])
def test_the_step_is_the_one_that_the_optimizer_took(momentum, dampening):
    penalty = Recorded()
    fitted(penalty, Regression(momentum=momentum, dampening=dampening))
    assert penalty.steps == pytest.approx([rate * (1 - dampening) / (1 - momentum) for rate in rates(BATCHES)])


def test_validation_and_what_comes_after_see_exact_zeros():
    """Also with a threshold that would be due much later."""
    module, _ = fitted(L1(100.0), validate=True, every=1000, max_epochs=2, val_check_interval=5)
    assert len(module.seen) == 4 * BATCHES
    assert all((weights == 0).all() for weights in module.seen)
    assert (module.weights == 0).all()
    assert (module.bias != 0).all()


def test_entries_outside_the_support_stay_zero():
    support = torch.zeros(ROWS, LABELS, dtype=torch.bool)
    support[:LABELS] = True
    module, _ = fitted(L1(0.0), validate=True, support={"weights": support})
    for weights in (*module.seen, module.weights):
        assert (weights[~support] == 0).all()
        assert (weights[support] != 0).all()


def test_a_fit_leaves_no_prox_behind():
    penalty, module = Recorded(), Regression()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    module.make = lambda _: optimizer  # the same for both fits
    fitted(penalty, module)
    assert len(penalty.steps) == BATCHES
    other = Recorded()
    fitted(other, module)
    assert (len(penalty.steps), len(other.steps)) == (BATCHES, BATCHES)
    module.weights.grad = torch.ones(ROWS, LABELS)
    optimizer.step()
    assert (len(penalty.steps), len(other.steps)) == (BATCHES, BATCHES)


def test_a_callback_serves_one_fit_after_another():
    penalty = Recorded()
    proximal = ProximalStep({"weights": penalty})
    for fits in (1, 2):
        trainer(proximal).fit(Regression(), loader())
        assert len(penalty.steps) == fits * BATCHES


def test_a_failed_fit_leaves_no_prox_behind():
    class Failing(Regression):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:
                raise ZeroDivisionError
            return super().training_step(batch, batch_idx)

    penalty, module = Recorded(), Failing()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    module.make = lambda _: optimizer
    with pytest.raises(ZeroDivisionError):
        fitted(penalty, module)
    optimizer.step()
    assert len(penalty.steps) == 3


def test_what_has_accumulated_is_saved_and_restored():
    proximal = ProximalStep({"weights": L1(0.1)}, every=5)
    proximal.count, proximal.rates["weights"] = 13, 0.25
    other = ProximalStep({"weights": L1(0.1)}, every=5)
    other.load_state_dict(proximal.state_dict())
    assert (other.count, other.rates) == (13, {"weights": 0.25})
    proximal.rates["weights"] = 0.5
    assert other.rates == {"weights": 0.25}


# --- what is refused


class Unknown(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("module", "options", "reason"),
    [
        (Regression(torch.optim.LBFGS), {}, "LBFGS tries several points"),
        (Regression(Unknown), {}, "the step that Unknown really takes is not known"),
        (Regression(torch.optim.Adadelta), {}, "the step that Adadelta really takes is not known"),
        (Regression(weight_decay=0.1), {}, "weight_decay=0.1: it would be penalised twice"),
        (Regression(torch.optim.AdamW), {}, "weight_decay=0.01: it would be penalised twice"),
        (Regression(maximize=True), {}, "maximize=True"),
        (Regression(), {"gradient_clip_val": 0.5}, "gradient_clip_val=0.5 shortens the gradient but not the threshold"),
        (Regression(), {"every": 0}, "reg.every=0 must be at least 1"),
        (Regression(), {"warmup": -1}, "reg.warmup=-1"),
    ],
)
def test_what_makes_a_prox_wrong_is_refused_with_the_reason(module, options, reason):
    before = module.weights.detach().clone()
    with pytest.raises(UserError, match=reason):
        fitted(L1(0.1), module, **options)
    assert torch.equal(module.weights, before)


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, torch.optim.Adadelta])
def test_a_run_refuses_such_an_optimizer_before_it_begins(optimizer, run):
    found = run("solver=sgd", f"solver._target_=torch.optim.{optimizer.__name__}")
    assert found.status == 2
    assert optimizer.__name__ in found.errors
    assert "no prox fits after it" in found.errors


def test_decay_acts_on_what_is_not_penalised_alone(run, monkeypatch):
    groups = {}

    def look(self):
        names = {parameter: name for name, parameter in self.named_parameters()}
        for group in self.optimizers().param_groups:
            groups.update({names[parameter]: group["weight_decay"] for parameter in group["params"]})

    monkeypatch.setattr(Tagging, "on_train_start", look)
    assert run("solver=adamw", "solver.weight_decay=0.25").status == 0
    free = dict.fromkeys(("tagger.transitions", "tagger.start", "tagger.end"), 0.25)
    assert groups == {"tagger.scorer.table": 0.0, **free}


# --- NaN


def seen(watch: StopAtNaN, losses, device: str) -> int | None:
    """The step at which it stops, if it does."""
    batch = SimpleNamespace(sentences=torch.arange(3))
    for step, loss in enumerate(losses, start=1):
        try:
            watch.on_train_batch_end(
                SimpleNamespace(global_step=step),
                SimpleNamespace(device=torch.device(device)),
                {"loss": torch.tensor(loss)},
                batch,
                step - 1,
            )
        except UserError as error:
            assert "0, 1, 2 (counted from 0)" in str(error)
            return step
    return None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_are_looked_at_together_where_looking_makes_a_device_wait(bad):
    losses = [1.0] * 6 + [bad] + [1.0] * 20
    assert seen(StopAtNaN(every=10), losses, "cpu") == 7
    late = StopAtNaN(every=10)
    assert seen(late, losses, "cuda") == 10
    short = StopAtNaN(every=10)
    assert seen(short, losses[:8], "cuda") is None
    with pytest.raises(UserError, match="step 7"):
        short.look()


# --- what is shown


def shown(accumulate: int, rate: float = 0.0) -> dict[str, float]:
    monitor = SparsityMonitor({"weights": GroupLasso(by_row((ROWS, LABELS)), 0.1)}, "fit")
    module = Regression(RowSGD, lr=rate)
    trainer(monitor, accumulate_grad_batches=accumulate).fit(module, loader())
    return monitor.latest


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_the_loss_of_an_epoch_is_the_mean_over_its_batches(accumulate):
    module = Regression()
    with torch.no_grad():
        losses = [float(module.training_step(batch, 0)) for batch in loader()]
    latest = shown(accumulate)
    assert latest["loss"] == pytest.approx(sum(losses) / BATCHES, rel=1e-6)
    penalty = 0.1 * ROWS * math.sqrt(LABELS) * math.sqrt(LABELS)  # rows of ones, weighed by the root of their size
    assert latest["penalty"] == pytest.approx(penalty, rel=1e-6)
    assert latest["objective"] == pytest.approx(latest["loss"] + latest["penalty"])
    alive = {key: latest[f"{key}_alive/weights"] for key in ("rows", "weights", "groups")}
    assert alive == {"rows": ROWS, "weights": ROWS * LABELS, "groups": ROWS}


def test_the_monitor_goes_on_where_it_was():
    monitor = SparsityMonitor({"weights": L1(0.1)}, "fit")
    monitor.total, monitor.batches = torch.tensor(1 / 3, dtype=torch.float64), 5
    other = SparsityMonitor({"weights": L1(0.1)}, "fit")
    other.load_state_dict(monitor.state_dict())
    assert torch.equal(other.total, monitor.total)
    assert other.batches == 5


@pytest.mark.parametrize("terminal", [True, False])
def test_each_epoch_ends_with_a_line_and_leaves_no_bar(terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, color_system=None)
    monitor = SparsityMonitor({"weights": L1(0.1)}, "select")
    lines = EpochLines(monitor, "f1", console)
    trainer(monitor, lines, max_epochs=3).fit(Regression(RowSGD), loader())
    ends = [line for line in text.getvalue().replace("\r", "\n").splitlines() if "objective" in line]
    assert len(ends) == 3
    assert lines.bar is None
    for epoch, line in enumerate(ends, start=1):
        assert f"select   {epoch}/3  loss " in line


# --- checkpoints


def test_a_choice_that_nothing_makes_is_refused(tmp_path):
    with pytest.raises(UserError, match="choose='median'"):
        Checkpoints(tmp_path, "dev/f1", "median", None)


@pytest.mark.parametrize(
    ("options", "least"), [(("choose=best", "trainer.check_val_every_n_epoch=3"), 3), (("trainer.max_epochs=0",), 1)]
)
def test_a_run_that_leaves_nothing_to_choose_is_refused(options, least, run):
    found = run(*options)
    assert (found.status, found.errors.count("\n")) == (2, 1)
    assert f"expected at least {least}" in found.errors


def test_a_whole_file_is_written_or_none(tmp_path):
    path = tmp_path / "a" / "b.ckpt"
    state = {"state_dict": {"w": torch.tensor([1.0, -math.inf])}, "global_step": 3}
    WholeFiles().save_checkpoint(state, path)
    assert torch.equal(torch.load(path, weights_only=True)["state_dict"]["w"], state["state_dict"]["w"])
    for bad in (math.nan, math.inf):
        with pytest.raises(UserError, match="w holds a weight that is NaN or infinite after step 4"):
            WholeFiles().save_checkpoint({"state_dict": {"w": torch.tensor([bad])}, "global_step": 4}, path)
    assert [file.name for file in path.parent.iterdir()] == ["b.ckpt"]


def test_signals_are_left_alone_outside_the_main_thread(tmp_path):
    """As in a notebook's or a server's worker: a run can be started there, it just cannot be asked to stop."""
    from threading import Thread

    before, found = signal.getsignal(signal.SIGINT), []
    thread = Thread(target=lambda: found.append(run_here("trainer.max_epochs=1", folder=tmp_path / "run").status))
    thread.start()
    thread.join()
    assert found == [0]
    assert signal.getsignal(signal.SIGINT) == before


# --- optimizers of this project


class Lasso(lightning.LightningModule):
    """Least squares of all items at once, in double precision, with a free bias."""

    def __init__(self, optimizer):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(ROWS, dtype=torch.float64))
        self.bias = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.make = optimizer

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (x @ self.weights + self.bias - y).square().mean() / 2

    def configure_optimizers(self):
        return self.make([{"params": [self.weights]}, {"params": [self.bias]}])


def regression(size: int | None = None) -> DataLoader:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(40, ROWS, generator=draw, dtype=torch.float64)
    y = x[:, 0] - 0.7 * x[:, 3] + 0.5 + 0.1 * torch.randn(40, generator=draw, dtype=torch.float64)
    return DataLoader(TensorDataset(x, y), batch_size=size or 40)


SOLVERS = {  # and how near they must come in so many epochs
    "fista": (FISTA, 100, 1e-6),
    "owlqn": (OWLQN, 100, 1e-6),
    "quasi-newton": (ProximalQuasiNewton, 100, 1e-6),
    "rda": (partial(RDA, lr=0.5), 1500, 0.02),
    "adagrad rda": (partial(AdagradRDA, lr=0.5), 1500, 0.01),
    "accelerated": (partial(AcceleratedSGD, lr=0.3, noise=0.0), 600, 1e-4),
    "accelerated, convex": (partial(AcceleratedSGD, lr=0.3, convexity=0.3), 300, 1e-4),
    "mira": (partial(MIRA, cap=0.2), 300, 1e-6),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_a_fit_with_each_solver_ends_at_the_same_optimum(name):
    make, epochs, near = SOLVERS[name]
    x, y = next(iter(regression()))
    found = sklearn.linear_model.Lasso(alpha=0.2, tol=1e-14, max_iter=100_000).fit(x.numpy(), y.numpy())
    module = Lasso(make)
    trainer(ProximalStep({"weights": L1(0.2)}), max_epochs=epochs).fit(module, regression())
    expected = torch.from_numpy(found.coef_)
    torch.testing.assert_close(module.weights.detach(), expected, rtol=0, atol=near)
    assert float(module.bias.detach()) == pytest.approx(found.intercept_, abs=near)
    assert torch.equal(module.weights != 0, expected != 0)
    assert int((expected != 0).sum()) == 2


@pytest.mark.parametrize("every", [2, 5])
def test_between_the_proxes_of_dual_averaging_the_weights_rest_and_no_threshold_counts_twice(every):
    """The threshold is that of all steps so far: it takes the place of what has accumulated."""
    penalty, seen = Recorded(0.2), []

    class Watched(Lasso):
        def on_train_batch_end(self, *_):
            seen.append(self.weights.detach().clone())

    trainer(ProximalStep({"weights": penalty}, every), max_epochs=1).fit(Watched(partial(RDA, lr=0.5)), regression(2))
    due = [step for step in range(1, 21) if step % every == 0]
    assert penalty.steps == pytest.approx([0.5 * math.sqrt(step) for step in due])
    for step in range(1, 21):
        before = seen[step - 2] if step > 1 else torch.zeros(ROWS, dtype=torch.float64)
        assert torch.equal(seen[step - 1], before) == (step not in due)


def test_the_thresholds_of_steps_as_long_as_the_loss_asks_for_add_up():
    penalty, taken = Recorded(0.0), []

    class Watched(Lasso):
        def on_train_batch_end(self, *_):
            taken.append(float(self.optimizers().param_groups[0]["taken"]))

    trainer(ProximalStep({"weights": penalty}, 5), max_epochs=1).fit(Watched(partial(MIRA, cap=0.3)), regression(2))
    assert len(set(taken)) > 5
    assert penalty.steps == pytest.approx([sum(taken[k : k + 5]) for k in range(0, 20, 5)])


@pytest.mark.parametrize("name", ["fista", "owlqn", "quasi-newton"])
def test_training_stops_when_it_has_converged(name):
    module, callback = Lasso(partial(SOLVERS[name][0], tolerance=1e-9)), ProximalStep({"weights": L1(0.2)})
    fit = trainer(callback, StopWhenConverged(), max_epochs=500)
    fit.fit(module, regression())
    assert module.optimizers().converged
    assert 3 <= fit.global_step < 60
    plain = trainer(StopWhenConverged(), max_epochs=3)
    plain.fit(Lasso(partial(torch.optim.SGD, lr=0.1)), regression())
    assert plain.global_step == 3


def test_solvers_that_carry_the_penalty_keep_to_the_support():
    support = torch.ones(ROWS, dtype=torch.bool)
    support[0] = False
    module = Lasso(FISTA)
    callback = ProximalStep({"weights": L1(0.01)}, support={"weights": support})
    trainer(callback, max_epochs=50).fit(module, regression())
    assert module.weights[0] == 0
    assert (module.weights != 0).sum() > 2


@pytest.mark.parametrize(
    ("make", "knobs", "options", "reason"),
    [
        (FISTA, {"every": 8}, {}, "FISTA carries the penalty within its steps, so reg.every=8 must be 1"),
        (OWLQN, {"warmup": 3}, {}, "reg.warmup=3 must be 0"),
        (AcceleratedSGD, {"every": 2}, {}, "AcceleratedSGD builds each step on the prox of the one before"),
        (MIRA, {}, {"accumulate_grad_batches": 2}, "trainer.accumulate_grad_batches=2 must be 1"),
        (ProximalQuasiNewton, {}, {}, "an epoch has 20 batches; set batch=null"),
    ],
)
def test_what_such_a_solver_cannot_do_is_refused_with_the_reason(make, knobs, options, reason):
    module = Lasso(make)
    with pytest.raises(UserError, match=reason):
        trainer(ProximalStep({"weights": L1(0.1)}, **knobs), max_epochs=1, **options).fit(module, regression(2))
    assert (module.weights == 0).all()


@pytest.mark.parametrize("solver", ["rda", "adagrad_rda", "mira", "accelerated_sgd"])
def test_a_run_with_each_stochastic_solver(solver, run):
    assert run(f"solver={solver}", "reg=l1", "reg.every=1", "trainer.max_epochs=1").status == 0


@pytest.mark.parametrize("solver", ["fista", "owlqn", "quasi_newton"])
def test_a_run_with_each_solver_of_the_whole_corpus(solver, run):
    found = run(f"solver={solver}", "reg=l1", "reg.every=1", "batch=null", "trainer.max_epochs=3")
    assert found.status == 0


class Carrying(Capabilities, torch.optim.SGD):
    """Carries penalties and remembers what it is told."""

    carries_penalties = True

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        self.told = []

    def attach(self, penalties, support=None):
        self.told.append(({p: penalty.value(p) for p, penalty in penalties.items()}, support))

    def flush(self):
        self.told.append("flush")


def test_an_optimizer_that_carries_the_penalty_is_given_it_and_flushed_before_anybody_looks():
    module, penalty = Regression(Carrying, fall=1.0), Recorded(0.5)
    support = torch.ones(ROWS, LABELS, dtype=torch.bool)
    fitted(penalty, module, validate=True, support={"weights": support})
    told = module.optimizers().optimizer.told
    assert penalty.steps == []
    (values, masks), *middle, last = told
    assert {parameter: float(v) for parameter, v in values.items()} == {module.weights: 0.5 * ROWS * LABELS}
    assert torch.equal(masks[module.weights], support)
    assert middle
    assert set(middle) == {"flush"}
    assert last[0] == {}


def test_a_stage_that_converges_between_two_looks_at_dev_still_has_its_best_model(run):
    options = ("reg=group_lasso", "reg.strength=0.5", "solver=fista", "solver.tolerance=0.1", "batch=null")
    found = run(*options, "choose=best", "trainer.max_epochs=100", "trainer.check_val_every_n_epoch=50")
    assert (found.status, found.errors) == (0, "")
    assert found.checkpoint("fit", "best")["epoch"] < 50
