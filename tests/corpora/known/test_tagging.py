"""Splits of corpora in columns: dev sentences that are trained on as well."""

from structsparse.corpora.known.tagging import files


def test_joined_dev_sentences_are_all_of_them_under_the_same_values(tmp_path):
    text = {"train": "the D O\ncat N B-X\n\na D O\n\n", "dev": "dog N B-Y\nthe D O\n\n", "test": "a D O\n\n"}
    for part, lines in text.items():
        (tmp_path / part).write_text(lines)
    paths = [str(tmp_path / part) for part in ("train", "dev", "test")]
    rest = (["word", "pos", "tag"], "iob2", "repair", "auto", 0.5, 0)
    apart, both = files(*paths, *rest), files(*paths, *rest, join_dev=True)
    assert both.joined
    assert not apart.joined
    for name in ("word", "pos", "tag"):
        wanted = apart.train.columns[name].strings() + apart.dev.columns[name].strings()
        assert both.train.columns[name].strings() == wanted
        assert both.dev.columns[name].strings() == apart.dev.columns[name].strings()
    assert both.train.lengths.tolist() == [2, 1, 2]
    held_out = files(paths[0], None, paths[2], *rest, join_dev=True)
    assert held_out.train.columns["word"].strings() == ["the", "cat", "a"]  # in their old order
    assert len(held_out.dev) == 1


def test_dev_cannot_choose_once_it_is_trained_on(run, tmp_path):
    for part in ("train", "dev", "test"):
        (tmp_path / part).write_text("the D O\ncat N B-X\n\na D O\nshoe N B-X\n\n")
    data = (
        "data=files",
        *(f"data.{part}={tmp_path / part}" for part in ("train", "dev", "test")),
        "data.join_dev=true",
    )
    done = run(data=data)
    assert done.status == 0, done.errors
    assert "train 4 sentences" in done.output
    assert "dev is trained on as well" in done.output
    assert done.metrics["dev_f1"] >= 0
    for options in (("choose=best",), ("patience=3",), ("path=3",)):
        refused = run(*options, folder="refused", data=data)
        assert refused.status == 2
        assert "data.join_dev=true" in refused.errors
