"""The verbs of a parser on plain Python, files and treebanks: all give the same trees, probabilities and scores."""

from itertools import pairwise

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences
from structsparse.corpora.conllu import write_treebank
from tests.support.parsers import corpus, made


@pytest.fixture(scope="module")
def model():
    return made().model


def as_lists(treebank, names) -> list[list[tuple[str, ...]]]:
    """Each token as the tuple of its values."""
    values = {name: column.strings() for name, column in treebank.columns.items()}
    values["head"] = treebank.heads.tolist()
    tokens = list(zip(*(values[name] for name in names), strict=True))
    return [tokens[begin:end] for begin, end in pairwise(treebank.offsets.tolist())]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "test.conllu"
    test = corpus().test
    with path.open("wb") as file:
        write_treebank(file, test, test.heads, test.columns["deprel"])
    return path


def test_every_verb_takes_lists_and_files_as_well_as_treebanks(model, path):
    test = corpus().test
    words, tuples = model.parse(test), as_lists(test, model.columns)
    dicts = [[dict(zip(model.columns, token, strict=True)) for token in sentence] for sentence in tuples]
    for source in (test, tuples, dicts, path, str(path)):
        trees = model.predict(source)
        assert [head for tree in trees for head in tree.heads] == words.heads.tolist()
        assert [relation for tree in trees for relation in tree.relations] == words.relations.strings()
        ranked = model.nbest(source, 2)
        assert [best[0].tree.heads for best in ranked] == [tree.heads for tree in trees]
        assert all(best[0].score >= best[-1].score for best in ranked)
        for tree, arcs in zip(trees, model.marginals(source), strict=True):
            assert arcs.shape == (len(tree.heads), len(tree.heads) + 1)
            np.testing.assert_allclose(arcs.sum(1), 1, atol=1e-9)


def test_marginals_are_those_of_the_predicted_arcs(model):
    test = corpus().test
    words = model.parse(test, probabilities=True)
    arcs = np.concatenate(
        [of[range(len(of)), tree.heads] for of, tree in zip(model.marginals(test), model.predict(test), strict=True)]
    )
    np.testing.assert_allclose(arcs, words.probabilities, rtol=1e-9)


def test_scores_are_the_same_whatever_the_source(model, path):
    test = corpus().test
    expected = model.evaluate(test)
    assert expected["uas"] == (model.parse(test).heads == test.heads).mean()
    assert 0 < expected["las"] <= expected["uas"]
    columns = [name for name in ("word", "lemma", "upos") if name in model.columns]
    lists = as_lists(test, (*columns, "deprel", "head"))
    for source in (path, lists):
        assert model.evaluate(source) == expected
    strange = [[(*token[:-2], "strange", token[-1]) for token in sentence] for sentence in lists]
    with pytest.warns(RuntimeWarning, match="relation strange is unknown to the model"):
        assert model.evaluate(strange)["las"] == 0


def test_empty_sentences_have_empty_trees(model):
    assert model.predict([]) == model.marginals([]) == model.nbest([]) == []
    sentences = [[], [("a",) * len(model.columns)], []]
    assert [tree.heads for tree in model.predict(sentences)] == [[], [0], []]
    assert [len(ranked) for ranked in model.nbest(sentences)] == [0, 1, 0]
    assert [arcs.shape for arcs in model.marginals(sentences)] == [(0, 1), (1, 2), (0, 1)]


def test_other_shapes_are_refused_in_one_sentence(model):
    for verb in (model.predict, model.nbest, model.marginals):
        for wrong in ("a sentence", [["a", "word"]], [[("a",)]], 7):
            with pytest.raises(
                UserError, match=r"this parser expects a list of sentences, .* tuple \(word, lemma, upos"
            ):
                verb(wrong)
    with pytest.raises(UserError, match="deprel, head"):
        model.evaluate([["a", "word"]])
    width = len(model.columns)
    for head in ("3", "x", -1):
        with pytest.raises(UserError, match=f"head is {head}, expected 0 for the root or the number of a word"):
            model.evaluate([[("a",) * width + ("root", 0), ("a",) * width + ("obj", head)]])
    test = corpus().test
    with pytest.raises(UserError, match="no trees to compare with"):
        model.evaluate(Sentences(test.columns, test.offsets, "words"))
    for count in (0, True, 1.5):
        with pytest.raises(UserError, match=f"the {count} best trees were requested"):
            model.nbest(test, count)
