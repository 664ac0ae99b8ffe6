"""Data of word vectors: vocabulary, codes of the text, batches of words."""

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.known.running_text import RunningText, running_text
from structsparse.corpora.known.texts import files
from structsparse.corpora.text import code_pieces
from structsparse.corpora.text_reading import TextReading
from structsparse.tasks.embeddings.data import WordData, encoded, prepare

OPTIONS = {
    "min_count": 2,
    "unknown": True,
    "window": 2,
    "weighting": "none",
    "association": "pmi",
    "smoothing": 1.0,
    "shift": 1.0,
    "contexts": None,
    "memory": None,
}
TEXT = ["the cat saw the dog", "the dog saw a cat", "the end"]


def corpus(lines=TEXT) -> RunningText:
    pieces = ((line.split(), True) for line in lines)
    return RunningText("text", code_pieces("text", pieces, TextReading()))


def planted(sentences: int = 500, **options) -> WordData:
    drawn = {"seed": 0, "trees": 2, "branching": 2, "size": 4, "sentences": sentences}
    return prepare(running_text(None, "lines", "spaces", False, False, False, None, drawn), {**OPTIONS, **options})


def test_rare_words_are_one_word():
    codes, words, frequency = encoded(corpus().text, 2, unknown=True)
    assert words == ("the", "cat", "saw", "dog", "<unk>")
    assert frequency.tolist() == [4, 2, 2, 2, 2]
    names = [*words, "|"]
    assert " ".join(names[5 if c == -2 else c] for c in codes.tolist()) == (
        "the cat saw the dog | the dog saw <unk> cat | the <unk> |"
    )


def test_rare_words_can_be_left_out_but_keep_their_place():
    codes, words, _ = encoded(corpus().text, 2, unknown=False)
    assert words == ("the", "cat", "saw", "dog")
    assert codes.tolist() == [0, 1, 2, 0, 3, -2, 0, 3, 2, -1, 1, -2, 0, -1, -2]


@pytest.mark.parametrize("association", ["pmi", "log_count"])
def test_contexts_can_be_the_most_frequent_words_only(association):
    whole, cut = (planted(association=association, contexts=contexts) for contexts in (None, 7))
    np.testing.assert_array_equal(cut.matrix.toarray(), whole.matrix.toarray()[:, :7])
    assert cut.items == whole.items
    if association == "log_count":
        np.testing.assert_allclose(np.log1p(cut.counts), cut.matrix.data, rtol=1e-5)
    with pytest.raises(UserError, match=r"features\.contexts is 0"):
        planted(contexts=0)


def test_a_text_with_unk_has_it_once():
    _, words, frequency = encoded(corpus(["a <unk> a b", "a <unk> c"]).text, 2, unknown=True)
    assert words == ("<unk>", "a")
    assert frequency.tolist() == [4, 3]


def test_counts_are_of_pairs_within_sentences():
    data = prepare(corpus(), {**OPTIONS, "association": "log_count"})
    table = np.zeros((5, 5))
    table[data.matrix.nonzero()] = data.counts
    word = {w: k for k, w in enumerate(data.words)}
    assert table[word["the"], word["cat"]] == 2  # both of the first sentence
    assert table[word["the"], word["the"]] == 0
    assert table[word["dog"], word["saw"]] == 2
    np.testing.assert_array_equal(table, table.T)
    np.testing.assert_allclose(data.matrix.toarray(), np.log1p(table), rtol=1e-6)


def test_the_train_text_of_a_language_model_is_the_same_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXT))
    for part in ("dev", "test"):
        (tmp_path / part).write_text("other words here")
    paths = (str(path), str(tmp_path / "dev"), str(tmp_path / "test"))
    splits = files(*paths, "lines", "spaces", False, False, 1, None, 0.1)
    one, two = prepare(splits, OPTIONS), prepare(corpus(), OPTIONS)
    assert sorted(one.words) == sorted(two.words)
    order = [one.words.index(word) for word in two.words]
    np.testing.assert_allclose(one.matrix.toarray()[np.ix_(order, order)], two.matrix.toarray())


def test_counting_on_disk_gives_the_same_data(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path))
    one, two = planted(), planted(memory=64)
    np.testing.assert_array_equal(one.matrix.toarray(), two.matrix.toarray())
    assert list(tmp_path.glob("cooccurrences/*/finished.json"))


def test_batches_go_through_all_words_and_can_resume():
    data = planted()
    loader = data.batches("train", 10, shuffle=True, seed=3)
    words = [batch.words for batch in loader]
    assert len(words) == len(loader)
    assert torch.equal(torch.cat(words).sort().values, torch.arange(data.items))
    resumed = data.batches("train", 10, shuffle=True, seed=3)
    resumed.load_state_dict({"epoch": 0, "done": 2})
    assert torch.equal(torch.cat([batch.words for batch in resumed]), torch.cat(words[2:]))
    (whole,) = data.batches("dev", 10)
    assert whole.items == data.items


def test_rows_of_words_are_those_of_the_matrix():
    data = planted()
    words = np.array([5, 0, 17])
    rows = data.rows(words)
    dense = torch.zeros(3, data.items)
    for i in range(3):
        part = slice(int(rows.starts[i]), int(rows.starts[i + 1]))
        dense[i, rows.columns[part]] = rows.values[part]
    np.testing.assert_array_equal(dense.numpy(), data.matrix[words].toarray())


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (TEXT, {"min_count": 0}, "features.min_count is 0"),
        (["one two three"], {}, "fewer than two words occur at least features.min_count=2 times"),
        (["a", "b", "a", "b"], {}, "no two words of the vocabulary occur together"),
        (TEXT, {"window": 0}, "features.window is 0"),
    ],
)
def test_bad_texts_get_one_sentence(lines, options, message):
    with pytest.raises(UserError, match=message):
        prepare(corpus(lines), {**OPTIONS, **options})


@pytest.mark.parametrize(("window", "noted"), [(2, False), (4, False), (5, True), (20, True)])
def test_a_vocabulary_no_larger_than_the_window_gets_a_sentence(window, noted):
    data = prepare(corpus(), {**OPTIONS, "window": window})
    assert len(data.words) == 5
    assert any("the vocabulary is no larger than features.window" in line for line in data.describe()) == noted


def test_devices_are_one():
    with pytest.raises(UserError, match=r"trainer.devices=2"):
        planted().batches("train", 10, world=2)
    with pytest.raises(UserError, match="batch=0"):
        planted().batches("train", 0)
