"""Parse trees from files: aligned with documents, and errors that name file and line."""

import gzip
import re

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentReading, Documents, tokenize
from structsparse.corpora.parses import bracketed, concatenated, dependencies, read_trees, with_parses

TEXTS = ["He didn't (really) go home. Why?", "...", "A/B tests, e.g. 3.5% of “them”.", "No."]
TREES = """
(ROOT (S (NP (PRP He)) (VP (VBD did) (RB n't) (PRN (-LRB- -LRB-) (ADVP (RB really)) (-RRB- -RRB-))
    (VP (VB go) (NP (-NONE- *T*)) (ADVP (NN home)))) (. .)))
(ROOT (SBARQ (WHADVP (WRB Why)) (. ?)))
(X (: ...))
( (NP (NP (NN A\\/B) (NNS tests)) (, ,) (PP (IN e.g.) (NP (NP (CD 3.5) (NN %))
     (PP (IN of) (NP (`` ``) (PRP them) ('' '')))))
 (. .)) )
(INTJ (UH No) (. .))
"""


def documents(texts=TEXTS, tokens="words") -> Documents:
    return tokenize([f"file{k}" for k in range(len(texts))], texts, np.zeros(len(texts)), None, DocumentReading(tokens))


def phrases(read: Documents) -> list[tuple[str, str]]:
    """Each constituent as its kind and its words, by document."""
    c, result = read.constituents, []
    for k in range(len(c)):
        first = read.offsets[c.document[k]]
        assert 0 <= c.begin[k] < c.end[k] <= read.lengths[c.document[k]]
        words = [read.words[code] for code in read.tokens[first + c.begin[k] : first + c.end[k]]]
        result.append((c.kinds[c.kind[k]], " ".join(words)))
    return result


def test_bracketed_trees_are_aligned_with_the_tokens_of_documents(tmp_path):
    path = tmp_path / "trees"
    path.write_text(TREES)
    read = with_parses(documents(), path)
    result = phrases(read)
    assert result[:4] == [
        ("ROOT", "he didn t really go home"), ("S", "he didn t really go home"), ("NP", "he"), ("PRP", "he"),
    ]  # fmt: skip
    assert ("VP", "didn t really go home") in result
    assert ("PRN", "really") in result
    assert ("VP", "go home") in result
    assert ("RB", "t") in result  # the leaf n't begins within the token didn, which belongs to did
    assert ("NP", "a b tests") in result
    assert ("PP", "e g 3 5 of them") in result
    assert not any(kind in ("-NONE-", ".", ",", "X", "-LRB-") for kind, _ in result)  # without a token
    assert read.sentences().tolist() == [0, 6, 7, 16, 17]
    c = read.constituents
    assert (np.diff(c.document) >= 0).all()
    assert (c.value == -1).all()


def test_other_tokens_of_the_same_text_get_the_same_phrases(tmp_path):
    path = tmp_path / "trees"
    path.write_text(TREES)
    assert ("VP", "didn't (really) go home.") in phrases(with_parses(documents(tokens="spaces"), path))
    assert ("PP", "e g of them") in phrases(with_parses(documents(tokens="letters"), path))


def rows(*words, multiword=()):
    """CoNLL-U of words with their heads."""
    lines = []
    for k, (form, head) in enumerate(words, 1):
        lines += [f"{span}\t{whole}" + "\t_" * 8 for span, whole in multiword if span.startswith(f"{k}-")]
        lines.append(f"{k}\t{form}\t_\t_\t_\t_\t{head}\trel{k}\t_\t_")
    return "# text\n" + "\n".join(lines) + "\n\n"


def test_the_constituent_of_a_word_is_the_word_and_its_descendants(tmp_path):
    """Against a recursive definition, on random projective trees."""
    rng = np.random.default_rng(0)

    def heads_of(begin, end, above, heads):
        if begin < end:
            word = int(rng.integers(begin, end))
            heads[word] = above
            heads_of(begin, word, word + 1, heads)
            heads_of(word + 1, end, word + 1, heads)
        return heads

    def family(word, heads):
        return {word} | {w for child, head in enumerate(heads) if head == word + 1 for w in family(child, heads)}

    for size in range(1, 12):
        heads = heads_of(0, size, 0, [0] * size)
        path = tmp_path / "a.conllu"
        path.write_text(rows(*((f"w{k}", head) for k, head in enumerate(heads))))
        (tree,) = read_trees(path)
        expected = {f"rel{k + 1}": sorted(family(k, heads)) for k in range(size)}
        assert {label: list(range(a, b)) for a, b, label in tree.spans} == expected
        assert tree.spans == sorted(tree.spans, key=lambda span: (span[0], span[0] - span[1]))


def test_multiword_tokens_are_one_leaf_and_crossing_arcs_span_the_words_between(tmp_path):
    path = tmp_path / "a.conllu"
    text = rows(("de", 3), ("el", 3), ("mar", 0), ("azul", 1), multiword=[("1-2", "del")])
    text = text.replace("3\tmar", "2.1\tghost\t_\t_\t_\t_\t_\t_\t_\t_\n3\tmar")
    (tree,) = dependencies(path, text)
    assert tree.leaves == ["del", "mar", "azul"]
    assert {label: (a, b) for a, b, label in tree.spans} == {
        "rel1": (0, 3), "rel2": (0, 1), "rel3": (0, 3), "rel4": (2, 3),
    }  # fmt: skip
    path.write_text(text)
    assert ("rel1", "del mar azul") in phrases(with_parses(documents(["del mar, azul!"]), path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (N a)\n(V b)\n", "line 1: the tree is not closed, expected )"),
        ("(S (N a))\n(S (N b)))\n", "line 2: ')' stands outside of a tree, expected ("),
        ("(S (N a))\n\nword (S (N b))\n", "line 3: 'word' stands outside of a tree"),
        ("(S\n (N))\n", "line 2: (N) has no word, expected (label word)"),
        ("", "is empty, expected bracketed trees or CoNLL-U"),
        ("1\ta\tb\n", "line 1: 3 columns between tabs, expected 10"),
        (rows(("a", 2), ("b", 1)), "lines 2 to 3: no word has head 0, expected a root"),
        (rows(("a", 2), ("b", 1), ("c", 0)), "line 2: heads form a cycle, 1 (a) -> 2 (b) -> 1 (a), expected a tree"),
        (rows(("a", 5)), "line 2: head '5', expected the number of another word"),
        (rows(("a", "x")), "line 2: head 'x', expected the number of another word"),
        (rows(("a", 0)).replace("1\ta", "2\ta"), "line 2: id '2', expected 1"),
    ],
)
def test_errors_name_file_and_line(tmp_path, text, message):
    path = tmp_path / "trees"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        list(read_trees(path))


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        ("(S (N one) (V two))\n(S (N other))\n", "line 2: 'other' where file1 has 'three'; expected trees over all 2"),
        ("(S (N one) (V two))\n", "line 1: nothing more where file1 has 'three'"),
        ("(S (N one) (V two))\n(S (N three))\n(S (N four))", "line 3: 'four' where file1 has nothing more"),
        (
            "(S (N one))\n(S (V two) (N three))\n",
            "line 2: the tree goes beyond the end of file0, expected a tree to end",
        ),
    ],
)
def test_trees_over_another_text_are_refused(tmp_path, trees, message):
    path = tmp_path / "trees"
    path.write_text(trees)
    with pytest.raises(UserError, match=re.escape(message)):
        with_parses(documents(["one, two", "three"]), path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such file, expected a file of parses"):
        list(bracketed(tmp_path / "nowhere"))


def test_the_leaves_of_all_trees_are_concatenated(tmp_path):
    path = tmp_path / "trees"
    path.write_text("(S (N a) (V b))\n(S (N c))\n")
    trees = concatenated(read_trees(path))
    assert trees.leaves == ["a", "b", "c"]
    assert trees.offsets.tolist() == [0, 2, 3]
    assert trees.lines == [1, 2]
    spans = zip(trees.labels, trees.begin.tolist(), trees.end.tolist(), strict=True)
    assert list(spans) == [("S", 0, 2), ("N", 0, 1), ("V", 1, 2), ("S", 2, 3), ("N", 2, 3)]


def test_damaged_gzip_is_refused(tmp_path):
    intact = gzip.compress(TREES.encode() * 50)
    path = tmp_path / "trees.gz"
    path.write_bytes(intact)
    assert len(list(read_trees(path))) == 250
    for broken in (intact[: len(intact) // 2], intact[:12] + b"\xff" * 9 + intact[21:], b"\x1f\x8b\x08what"):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"trees\.gz: the compressed file is cut short or damaged"):
            list(read_trees(path))
