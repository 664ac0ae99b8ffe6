"""reg.strength=auto of penalties of single entries: a path, and the choice of dev."""

import csv

import pytest


@pytest.mark.parametrize("reg", ["l1", "elastic_net", "l2"])
def test_the_chosen_fit_is_a_run_at_its_strength(reg, run):
    found = run(f"reg={reg}", "reg.strength=auto", "choose=one_se", folder="auto")
    assert found.status in (0, None), found.errors
    with (found.folder / "report" / "path.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [row["best"] for row in rows].count("yes") == 1
    assert found.metrics["search_fits"] == len(rows) + 1
    direct = run(
        f"reg={reg}", f"reg.strength={found.metrics['strength']}", "reg.relative=false", "reg.every=1", "model=pairs",
        "solver=quasi_newton", "batch=null", "trainer.max_epochs=150", "trainer.check_val_every_n_epoch=150",
        folder="direct",
    )  # fmt: skip
    assert found.metrics["objective"] == pytest.approx(direct.metrics["objective"], rel=1e-3)


def test_stronger_penalties_leave_fewer_weights(run):
    found = run("reg=l1", "reg.strength=auto", "choose=last")
    with (found.folder / "report" / "path.tsv").open() as file:
        weights = [int(row["weights"]) for row in csv.DictReader(file, delimiter="\t")]
    assert len(weights) > 3
    assert weights[0] < weights[-1]
    assert found.metrics["nonzero"] > 0


def test_parsers_and_growing_tables_need_a_number(run):
    refused = run("reg=l1", "reg.strength=auto", "model=growing", "solver=online_mira", "loss=hinge")
    assert refused.status == 2
    assert "give a number" in refused.errors
