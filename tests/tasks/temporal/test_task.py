"""Training runs of drift models, from data to artifact: planted classes, likelihoods, resumption, what is refused."""

import csv
import json

import numpy as np
import pytest
import torch

from structsparse.cli.main import main
from structsparse.tasks import registry
from structsparse.tasks.temporal.task import DriftModule
from tests.support.runs import asks_to_stop, at_step

PLANTED = (
    *("data.planted.features=30", "data.planted.constant=6", "data.planted.drifting=6", "data.planted.items=150"),
    *("data.planted.periods=8", "data.planted.test=300", "data.planted.step=0.3"),
)
OPTIONS = ("task=temporal", "cache=0", "trainer.max_epochs=40", "trainer.check_val_every_n_epoch=40")
TINY = (*OPTIONS, *PLANTED)


def small(run, *options, folder="run", planted=PLANTED):
    result = run(*OPTIONS, *planted, *options, data=(), base=(), folder=folder)
    assert result.status in (0, None), result.errors[-2000:]
    return result


@pytest.fixture
def texts(tmp_path):
    """Texts of six years in which the word `rise` gains in weight, `fall` has a constant one, and others have none."""
    rng = np.random.default_rng(0)
    path, fillers = tmp_path / "texts.csv", [f"filler{k}" for k in range(12)]
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("date", "text", "number", "side", "party"))
        for year in range(2001, 2008):
            for _ in range(80):
                there = rng.random(14) < 0.5
                text = " ".join([word for word, so in zip(["Rise", "fall", *fillers], there, strict=True) if so])
                score = 0.5 * (year - 2003) * there[0] - 1.5 * there[1] + 0.3 * rng.normal()
                side = "up" if score > -0.5 else "down"
                lines.writerow(
                    (f"{year}-0{1 + rng.integers(9)}-05", text, f"{score:.4f}", side, rng.choice(["D", "R"]))
                )
    return f"data.train={path}"


# --- planted data


def test_a_run_finds_the_planted_classes_and_ships_the_living_ones(run):
    result = small(run)
    figures = result.metrics
    assert figures["planted_precision"] > 0.85
    assert figures["planted_recall"] > 0.85
    assert figures["dead"] + figures["constant"] + figures["drifting"] == figures["features"] == 30
    assert figures["stationarity"] < 1e-8
    assert figures["final_stationarity"] < 1e-8
    assert 0.7 < figures["noise"] < 1.3
    assert figures["mse"] < 4
    model = registry.load(result.folder)
    assert len(model.names) == figures["features_alive"] == figures["constant"] + figures["drifting"]
    assert model.table.shape == (8, len(model.names))
    assert int(model.drifting.sum()) == figures["drifting"]
    constant = model.table[:, ~model.drifting]
    assert (constant == constant[0]).all()
    assert (model.deviations > 0).all()
    assert (result.folder / "report" / "trends.png").read_bytes().startswith(b"\x89PNG")
    lines = (result.folder / "report" / "trajectories.csv").read_text().splitlines()
    assert len(lines) == 1 + 8 * len(model.names)
    lines = [line.split("\t") for line in (result.folder / "report" / "prior.tsv").read_text().splitlines()[1:]]
    for stage in ("select", "refit"):
        objective = [float(line[2]) for line in lines if line[0] == stage]
        assert np.diff(objective).min() > -1e-3
        assert objective[-1] > objective[0] + 1


def test_evidence_and_refit_forecast_better_than_the_same_with_shared_smoothness(run):
    own, shared = small(run, folder="own"), small(run, "recipe=direct", "reg.share=all", folder="shared")
    assert own.metrics["mse"] < shared.metrics["mse"]
    assert shared.metrics["drifting"] == 30, "without selection nothing is dead"


@pytest.mark.parametrize(
    "options",
    [
        ("reg.prior=rw",),
        ("reg.prior=bridge", "reg.share=effect"),
        ("reg.mode=map", "reg.weight=0.01", "reg.floor=0.01", "recipe=direct"),
        ("reg=l2", "reg.strength=0.01", "recipe=direct"),
        ("reg=l1", "reg.strength=0.02", "solver=fista", "recipe=direct", "trainer.max_epochs=300"),
        ("reg=none", "recipe=direct"),
        ("data.join_dev=false",),
        ("trainer.precision=64-true",),
    ],
)
def test_other_priors_and_penalties_run(options, run):
    figures = small(run, *options).metrics
    assert figures["mse"] < 6
    assert figures["nonzero"] > 0


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(run, monkeypatch):
    whole = small(run, folder="whole")
    for step in (5, 44):  # within select, and within refit
        with monkeypatch.context() as patch:
            at_step(patch, step, asks_to_stop(), DriftModule)
            stopped = run(*TINY, data=(), base=(), folder=f"run{step}")
        assert stopped.status == 130
        resumed = small(run, "ckpt_path=last", folder=f"run{step}")
        assert resumed.result == whole.result
        first, second = registry.load(resumed.folder), registry.load(whole.folder)
        np.testing.assert_array_equal(first.table, second.table)
        np.testing.assert_array_equal(first.deviations, second.deviations)


def test_the_memory_is_in_the_checkpoint(run):
    result = small(run, "recipe=direct")
    state = torch.load(result.folder / "checkpoints" / "fit" / "last.ckpt", weights_only=True)["state_dict"]
    assert {"memory.first", "memory.off", "memory.noise"} <= {*state}
    assert float(state["memory.noise"]) == result.metrics["noise"]


# --- texts


def test_numbers_are_forecast_from_texts(run, texts, capsys, monkeypatch, tmp_path):
    result = small(run, "data=dated", texts, "features.weighting=binary", "data.effects=[party]", planted=())
    model = registry.load(result.folder)
    assert {"rise", "fall"} <= {*model.names}
    assert len(model.names) <= 6
    assert bool(model.drifting[model.numbers["rise"]])
    assert not model.drifting[model.numbers["fall"]]
    trend = model.trend("rise")
    assert [point.period for point in trend] == [str(year) for year in range(2001, 2007)]
    assert trend[-1].weight - trend[0].weight == pytest.approx(2.5, abs=0.5)
    assert all(point.low < point.weight < point.high for point in trend)
    up, neither = model.forecast([{"text": "rise up", "party": "D"}, {"text": "", "party": "D"}])
    assert up.value - neither.value == pytest.approx(1.5, abs=0.4)
    assert up.low < up.value < up.high
    assert model.predict([{"text": "fall", "party": "R"}])[0] == pytest.approx(-1.5, abs=0.4)
    file = texts.partition("=")[2]
    assert model.evaluate(file)["items"] == 560
    folder = str(result.folder)
    assert main(["trend", folder, "rise", "--first", "2003"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 1 + 4
    assert float(shown[1].split("\t")[2]) == pytest.approx(trend[2].weight, rel=1e-4)
    assert main(["trend", folder]) == 0
    assert "rise\t2001" in capsys.readouterr().out
    (tmp_path / "in.jsonl").write_text('{"text": "rise up", "party": "D"}\n{"text": "", "party": "D"}\n')
    assert main(["forecast", folder, "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out")]) == 0
    first = [float(number) for number in (tmp_path / "out").read_text().splitlines()[0].split("\t")]
    assert first == [pytest.approx(value, rel=1e-4) for value in up]
    assert main(["evaluate", folder, file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == 560


def test_classes_are_forecast_with_probabilities(run, texts):
    options = ("data.response=side", "data.classes=[down,up]", "loss=logistic", "features.weighting=binary")
    result = small(run, "data=dated", texts, *options, planted=())
    assert result.metrics["accuracy"] > 0.75
    model = registry.load(result.folder)
    assert model.predict(["fall", "rise"]) == ["down", "up"]
    down, up = model.marginals(["fall", "rise"])
    assert down["up"] < 0.3 < 0.7 < up["up"]


@pytest.mark.parametrize("likelihood", ["poisson", "multinomial"])
def test_words_of_the_next_period_are_forecast(run, texts, likelihood):
    options = ("data.response=null", "loss=counts", f"loss.likelihood={likelihood}", "recipe=direct")
    result = small(run, "data=dated", texts, *options, planted=())
    assert 2.5 < result.metrics["nll"] < 2.8, "14 words with much the same frequency"
    model = registry.load(result.folder)
    shares = model.word_probabilities()
    assert sum(shares.values()) == pytest.approx(1)
    assert len(shares) == 14
    assert len(model.trend("rise")) == 6


def test_effects_of_measurements_on_words_are_learned(run, texts):
    options = ("data.response=null", "loss=counts", "loss.likelihood=multinomial", "data.effects=[party]")
    result = small(run, "data=dated", texts, *options, "loss.dispersion=null", "recipe=direct", planted=())
    assert result.metrics["features"] == 14 * 3
    assert result.metrics["noise"] >= 1.0


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("loss=logistic",), "loss=logistic does not fit planted_drift, which has numbers; take loss=squared"),
        (("loss=counts",), "loss=poisson does not fit planted_drift, which has numbers"),
        (("loss=crf",), "loss=crf does not fit a table of periods"),
        (("reg.prior=spline",), "reg.prior is 'spline', expected one of bridge, ar1, rw"),
        (("reg=group_lasso",), "groups"),
        (("reg=l1",), "newton_cg takes smooth penalties"),
        (("batch=10",), "trains on all items at once"),
        (("features.normalize=true",), "features.normalize=false"),
        (("trainer.devices=2", "trainer.accelerator=cpu"), "trained on one device"),
        (("data.planted.constant=99",), "99 constant and 6 drifting of 30 features"),
        (("data.planted.noise=0",), "noise=0"),
        (("data.train=nothing.csv",), "nothing.csv: no such file"),
    ],
)
def test_mistakes_are_one_sentence(options, message, run):
    refused = run(*TINY, *options, data=(), base=(), folder="run")
    assert refused.status == 2, refused.output[-2000:]
    assert message in refused.errors
    assert len(refused.errors.splitlines()) == 1


def test_a_constant_response_is_refused(run, tmp_path):
    lines = ["date,text,number", *(f"{2000 + k}-01-01,a b c,1.5" for k in range(8))]
    (tmp_path / "same.csv").write_text("\n".join(lines))
    refused = run(
        *OPTIONS, f"data.train={tmp_path / 'same.csv'}", "features.min_count=1", data=(), base=(), folder="run"
    )
    assert refused.status == 2
    assert "the response is the same for all 7 items of train" in refused.errors


def test_drift_is_refused_by_other_tasks(run):
    refused = run("task=textcat", "reg=drift", "solver=fista", data=(), base=())
    assert refused.status == 2
    assert "Drift is for a table of periods, the table of this task is one of words" in refused.errors


def test_other_corpora_are_refused(run):
    refused = run("task=temporal", "data=planted_documents", data=(), base=())
    assert refused.status == 2
    assert "task=temporal reads dated items: take data=dated, fomc or sotu" in refused.errors


def test_data_in_which_nothing_lives_say_so(run):
    options = ("data.planted.constant=0", "data.planted.drifting=0")
    refused = run(*TINY, *options, data=(), base=(), folder="run")
    assert refused.status == 2
    assert "every feature is dead" in refused.errors


@pytest.mark.parametrize("solver", ["fista", "quasi_newton"])
def test_other_solvers_reach_the_same_model(run, solver):
    """The penalty with memory is one for any solver: the same classes and forecasts by proximal gradient steps."""
    newton = small(run, "trainer.max_epochs=100", folder="newton")
    other = small(run, f"solver={solver}", "trainer.max_epochs=100", folder="other")
    for key in ("dead", "constant", "drifting"):
        assert other.metrics[key] == newton.metrics[key]
    assert other.metrics["mse"] == pytest.approx(newton.metrics["mse"], rel=1e-3)
    assert other.metrics["noise"] == pytest.approx(newton.metrics["noise"], rel=1e-3)
