"""Newsgroups and the sentiment treebank: parts, what is removed from posts, constituents, sizes of the papers."""

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets._twenty_newsgroups import (
    strip_newsgroup_footer,
    strip_newsgroup_header,
    strip_newsgroup_quoting,
)

from structsparse.base.errors import UserError
from structsparse.corpora.known.newsgroups import PAIRS, newsgroups, stripped
from structsparse.corpora.known.sentiment import VALUES, sentiment
from structsparse.corpora.parses import with_parses
from structsparse.features.words import bag

OPTIONS = {
    "pair": "science",
    "remove": [],
    "tokens": "words",
    "lower": True,
    "parses": None,
    "split": 0,
    "others": False,
}
POSTS = [
    "From: a@b\nSubject: x\n\nA. Person writes:\n> old words\n| more\nNew words here.\n\nSecond part.\n--\nname\nplace",
    "From: a@b\n\nIn article <1@2> someone wrote:\n: not a quote\nIn article 5 they\nText\n",
    "Subject: only headers",
    "Subject: y\n\n\nbody\n\n-----\nfooter",
    "Subject: z\n\nalone",
    "Subject: z\n\nbody\n -- \nfooter\n- -\nlast",
    "",
]
TREES = {
    "train": "(3 (2 The) (4 (3 (2 very) (3 good)) (2 (2 -LRB-) (2 film))))\n(2 (2 so) (2 so))\n(0 (1 Awful) (2 one))\n",
    "dev": "(1 (2 Not) (3 good))\n(4 (4 Great) (2 .))\n",
    "test": "(2 (2 It) (2 is))\n(0 (0 bad) (2 and\\/or))\n",
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path))
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def post_all(data: Path, monkeypatch, sizes=(30, 20)) -> None:
    """Write posts of all pairs where the corpus is looked up, each with one word of its own and common ones."""
    for part in ("train", "test"):
        for group in [group for groups, _ in PAIRS.values() for group in groups]:
            folder = data / "20news" / part / group
            folder.mkdir(parents=True)
            for k in range(sizes[part == "test"]):
                (folder / f"{5000 + 7 * k}").write_text(f"From: me\n\nword{k} {group.replace('.', '')} d{part}")
    for pair, (groups, _) in PAIRS.items():
        monkeypatch.setitem(PAIRS, pair, (groups, 12))


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_is_two_groups_and_dev_is_drawn_from_train(data, monkeypatch, pair):
    post_all(data, monkeypatch)
    read = newsgroups(**{**OPTIONS, "pair": pair})
    assert read.classes == PAIRS[pair][0]
    assert [len(part) for part in read.parts.values()] == [48, 12, 40]
    names = [*read.train.names, *read.dev.names]
    assert len({*names}) == 60
    for part in (read.train, read.dev):
        folders = [f"/20news/train/{read.classes[label]}/" for label in part.labels]
        assert all(folder in name for folder, name in zip(folders, part.names, strict=True))
    assert all("/test/" in name for name in read.test.names)
    assert read.train.names != newsgroups(**{**OPTIONS, "pair": pair, "split": 1}).train.names
    assert "from" in read.train.words


def test_posts_of_other_groups_have_no_labels_and_none_is_held_out(data, monkeypatch):
    post_all(data, monkeypatch)
    assert newsgroups(**OPTIONS).unlabelled == ()
    read = newsgroups(**{**OPTIONS, "others": True, "remove": ["headers"]})
    assert len(read.unlabelled) == 6 * 30
    assert not any("dtest" in text or "sci" in text or "From" in text for text in read.unlabelled)
    assert newsgroups(**{**OPTIONS, "pair": "all", "others": True}).unlabelled == ()


def test_all_groups_are_classes_of_one_corpus(data, monkeypatch):
    post_all(data, monkeypatch)
    read = newsgroups(**{**OPTIONS, "pair": "all"})
    assert len(read.classes) == 8
    assert [len(part) for part in read.parts.values()] == [192, 48, 160]


def test_too_few_posts_for_dev_are_refused(data, monkeypatch):
    post_all(data, monkeypatch, sizes=(6, 3))
    with pytest.raises(UserError, match=r"12 documents of train cannot give 12 for dev and leave some to train on"):
        newsgroups(**OPTIONS)


def test_headers_can_be_removed(data, monkeypatch):
    post_all(data, monkeypatch)
    assert "from" not in newsgroups(**{**OPTIONS, "remove": ["headers"]}).train.words


@pytest.mark.parametrize("post", POSTS)
def test_headers_quotes_and_footers_are_those_of_scikit_learn(post):
    assert stripped(post, []) == post
    assert stripped(post, ["headers"]) == strip_newsgroup_header(post)
    assert stripped(post, ["quotes"]) == strip_newsgroup_quoting(post)
    assert stripped(post, ["footers"]) == strip_newsgroup_footer(post)
    every = strip_newsgroup_footer(strip_newsgroup_quoting(strip_newsgroup_header(post)))
    assert stripped(post, ["footers", "quotes", "headers"]) == every


def test_bad_options_are_refused(data):
    with pytest.raises(
        UserError, match=r"data.pair is 'talk', expected one of science, sports, religion, computer, all"
    ):
        newsgroups(**{**OPTIONS, "pair": "talk"})
    with pytest.raises(UserError, match=r"data.remove has tails, expected some of headers, quotes, footers"):
        newsgroups(**{**OPTIONS, "remove": ["headers", "tails"]})
    with pytest.raises(UserError, match=r"data.labels is 'ternary', expected one of binary, fine, numbers"):
        sentiment("ternary", True)


def test_a_pair_without_its_groups_names_the_folder(data):
    for part in ("train", "test"):
        (data / "20news" / part / "sci.med").mkdir(parents=True)
    with pytest.raises(UserError, match=r"sci.space: no such folder, expected the posts of sci.space"):
        newsgroups(**OPTIONS)


@pytest.fixture
def trees(data):
    (data / "sst").mkdir()
    for part, text in TREES.items():
        (data / "sst" / f"{part}.txt").write_text(text)
    return data


def parsed(tree: str) -> list[tuple[int, list[str]]]:
    """(value, words) of each constituent, the outer ones first, by recursion."""
    inner = tree[3:-1]
    if not inner.startswith("("):
        return [(int(tree[1]), [inner.replace("-LRB-", "(").replace("\\/", "/").lower()])]
    children, depth, begin = [], 0, 0
    for k, char in enumerate(inner):
        depth += (char == "(") - (char == ")")
        if depth == 0 and char == ")":
            children.append(parsed(inner[begin : k + 1]))
            begin = k + 2
    return [(int(tree[1]), [word for child in children for word in child[0][1]]), *sum(children, [])]


def constituents(part) -> list[list[tuple[int, list[str]]]]:
    c, result = part.constituents, [[] for _ in range(len(part))]
    for k in range(len(c)):
        first = part.offsets[c.document[k]]
        tokens = part.tokens[first + c.begin[k] : first + c.end[k]]
        result[c.document[k]].append((int(c.value[k]), [part.words[code] for code in tokens]))
    return result


@pytest.mark.parametrize("labels", ["binary", "fine", "numbers"])
def test_trees_keep_their_constituents_and_the_root_is_the_label(trees, labels):
    read = sentiment(labels, True)
    for part, documents in read.parts.items():
        lines = [line for line in TREES[part].splitlines() if labels != "binary" or line[1] != "2"]
        assert constituents(documents) == [parsed(line) for line in lines]
        roots = np.array([int(line[1]) for line in lines])
        assert documents.labels.tolist() == (roots > 2 if labels == "binary" else roots).astype(int).tolist()
        assert documents.sentences().tolist() == documents.offsets.tolist()
    assert read.classes == {"binary": ("negative", "positive"), "fine": VALUES, "numbers": None}[labels]
    assert read.train.texts[0] == "The very good ( film"
    assert read.test.names[-1].endswith("test.txt:2")


def test_another_split_redraws_dev_and_leaves_test(trees):
    published = sentiment("fine", True)
    pool = sorted(published.train.names + published.dev.names)
    splits = [sentiment("fine", True, split) for split in range(8)]
    for read in splits:
        assert read.test.names == published.test.names
        assert len(read.dev) == len(published.dev)
        assert sorted(read.train.names + read.dev.names) == pool
        for part in (read.train, read.dev):
            files = [name.rpartition(":") for name in part.names]
            lines = [Path(path).read_text().splitlines()[int(number) - 1] for path, _, number in files]
            assert constituents(part) == [parsed(line) for line in lines]
    assert len({tuple(read.dev.names) for read in splits}) > 1


def test_the_error_for_another_label_in_a_tree_names_its_line(trees):
    (trees / "sst" / "dev.txt").write_text("(1 (2 a) (2 b))\n(2 (5 a) (2 b))\n")
    with pytest.raises(UserError, match=r"dev.txt, line 2: the label '5', expected a sentiment from 0 to 4"):
        sentiment("binary", True)


REAL = [
    pytest.mark.corpus,
    pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set"),
]


class TestRealCorpora:
    pytestmark = REAL

    @pytest.mark.parametrize(
        ("pair", "sizes", "words", "printed"),
        [
            ("science", [952, 235, 790], 29_645, 30_154),
            ("sports", [958, 239, 796], 20_551, 20_832),
            ("religion", [870, 209, 717], 24_229, 24_528),
            ("computer", [929, 239, 777], 19_945, 20_868),
        ],
    )
    def test_pairs_have_the_documents_and_nearly_the_words_of_the_paper(self, pair, sizes, words, printed):
        read = newsgroups(**{**OPTIONS, "pair": pair, "tokens": "letters"})
        assert [len(part) for part in read.parts.values()] == sizes
        layout = bag(read, vocabulary="all").layout
        assert len(layout) == len(read.train.words) == words
        assert abs(words / printed - 1) < 0.045

    def test_film_reviews_have_the_documents_and_words_of_the_paper(self):
        read = sentiment("binary", True)
        assert [len(part) for part in read.parts.values()] == [6_920, 872, 1_821]
        assert abs(len(bag(read, vocabulary="all").layout) - 17_576) <= 3

    def test_trees_aligned_with_texts_are_those_read_with_them(self):
        read = sentiment("fine", True)
        path = Path(os.environ["STRUCTSPARSE_DATA"]) / "sst" / "test.txt"
        aligned = with_parses(read.test, path)
        assert np.isin(aligned.sentences(), read.test.offsets).all()
        has_letters = np.array([any(map(str.isalnum, word)) for word in read.test.words])[read.test.tokens]
        before = np.concatenate([[0], np.cumsum(has_letters)])  # only tokens with a letter or digit can be aligned

        def ranges_of(documents):
            c = documents.constituents
            first = documents.offsets[c.document]
            result = {*zip(before[first + c.begin].tolist(), before[first + c.end].tolist(), strict=True)}
            return {(begin, end) for begin, end in result if end > begin}

        assert ranges_of(aligned) == ranges_of(read.test)

    def test_posts_have_about_twenty_sentences(self):
        pytest.importorskip("sentencex")
        train = newsgroups(**OPTIONS).train
        assert 10 < (len(train.sentences()) - 1) / len(train) < 30
