import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.planted import documents as planted

OPTIONS = {"seed": 0, "train": 200, "dev": 40, "test": 60, "classes": 2, "groups": 20, "size": 10, "deciding": 2}


def corpus(**options):
    return planted.planted_documents(**{**OPTIONS, **options})


def group_counts(part, groups) -> np.ndarray:
    """The number of words of each group in each document, counted in the texts.  [documents, groups]"""
    owner = {word: k for k, words in enumerate(groups.values()) for word in words}
    counts = np.zeros((len(part), len(groups)))
    for k, text in enumerate(part.texts):
        for word in text.lower().replace(".", "").split():
            if word in owner:
                counts[k, owner[word]] += 1
    return counts


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_a_corpus_has_the_requested_sizes_and_is_reproducible(classes):
    read, again, other = corpus(classes=classes), corpus(classes=classes), corpus(classes=classes, seed=1)
    assert [len(part) for part in read.parts.values()] == [200, 40, 60]
    assert read.train.texts == again.train.texts
    assert read.train.labels.tolist() == again.train.labels.tolist()
    assert read.train.texts != other.train.texts
    assert len(read.groups) == 20
    assert all(len(words) == 10 for words in read.groups.values())
    assert len({word for words in read.groups.values() for word in words}) == 200
    assert len(read.truth) == len({*read.truth}) == 2 * max(classes, 2)
    assert {*read.truth} <= {*read.groups}
    assert (read.classes is None) == (classes == 0)
    names = [name for part in read.parts.values() for name in part.names]
    assert len({*names}) == 300


def test_sentences_end_at_full_stops_and_are_mostly_about_one_group():
    read = corpus()
    for part in read.parts.values():
        bounds, sentence = part.sentences(), 0
        for k, text in enumerate(part.texts):
            for written in text.split(". "):
                words = [part.words[code] for code in part.tokens[bounds[sentence] : bounds[sentence + 1]]]
                assert words == written.lower().rstrip(".").split()
                sentence += 1
            assert bounds[sentence] == part.offsets[k + 1]
        assert sentence == len(bounds) - 1


@pytest.mark.parametrize("classes", [3, 0])
def test_a_share_of_the_sentences_is_about_deciding_groups(classes):
    read = corpus(classes=classes, train=2000)
    owner = {word: name for name, words in read.groups.items() for word in words}
    bounds, about = read.train.sentences(), []
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        names = [owner.get(read.train.words[code]) for code in read.train.tokens[begin:end]]
        most = max({*names} - {None}, key=names.count, default=None)
        if names.count(most) > 2:  # else it might be by chance
            about.append(most in read.truth)
    assert abs(np.mean(about) - planted.DECIDING_SHARE) < 0.03


@pytest.mark.parametrize("classes", [2, 4])
def test_only_words_of_deciding_groups_predict_the_class(classes):
    read = corpus(classes=classes, train=3000)
    counts, labels = group_counts(read.train, read.groups), read.train.labels
    shares = np.array([counts[labels == k].sum(axis=0) for k in range(classes)])
    shares /= shares.sum(axis=1, keepdims=True)  # [classes, groups]
    spread = np.log(shares.max(axis=0) / shares.min(axis=0))
    decides = np.isin(list(read.groups), read.truth)
    assert spread[decides].min() > 0.8
    assert spread[~decides].max() < 0.4
    assert np.bincount(shares.argmax(axis=0)[decides], minlength=classes).tolist() == [2] * classes


def test_numbers_depend_on_the_deciding_groups_only():
    read = corpus(classes=0, train=4000)
    counts = group_counts(read.train, read.groups)
    effects = np.linalg.lstsq(np.column_stack([counts, np.ones(len(counts))]), read.train.labels, rcond=None)[0][:-1]
    decides = np.isin(list(read.groups), read.truth)
    assert np.abs(effects[decides]).min() > 0.15
    assert np.abs(effects[~decides]).max() < 0.05
    assert (effects[decides] > 0).sum() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "data.classes is 1, expected at least 2, or 0 for numbers"),
        ({"groups": 0}, "data.groups is 0, expected from 1 to"),
        ({"size": 100}, "data.size is 100, expected from 1 to 70 words in a group"),
        (
            {"deciding": 10},
            "data.deciding is 10, expected at least 1, and for 2 classes less than data.groups=20 in all",
        ),
        ({"deciding": 0}, "data.deciding is 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        corpus(**options)
