"""Treebanks drawn for tests, and a reader of them that shares nothing with ours."""

from itertools import pairwise

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5).map(lambda text: text or "_")
TAGS = st.sampled_from(["NOUN", "VERB", "PUNCT", "X", "_"])


@st.composite
def trees(draw, most=8, roots=None):
    """Heads of a sentence, in a random order of its words each below one before it, or a root."""
    size = draw(st.integers(1, most))
    order = draw(st.permutations(range(1, size + 1)))
    heads = [0] * size
    for k, word in enumerate(order[1:], 1):
        above = order[:k] if roots == 1 else [0, *order[:k]]
        heads[word - 1] = draw(st.sampled_from(above))
    return heads


@st.composite
def sentences(draw, most=8):
    """The lines of a sentence with comments, multiword tokens and empty nodes here and there."""
    heads = draw(trees(most))
    lines = [f"#{text}" for text in draw(st.lists(TEXT, max_size=2))]
    joined, empty = 0, draw(st.integers(0, 1))
    lines += [row("0.1", draw(TEXT), deps="2:nsubj")] * empty
    for word, head in enumerate(heads, 1):
        if word > joined and draw(st.integers(0, 4)) == 0:
            joined = draw(st.integers(word, len(heads)))
            lines.append(row(f"{word}-{joined}", draw(TEXT), misc=draw(TEXT)))
        form, lemma, feats, misc = (draw(TEXT) for _ in range(4))
        deps = draw(st.sampled_from(["_", f"{head}:dep"]))
        deprel = draw(st.sampled_from(["root", "nsubj", "obl:arg"]))
        lines.append(row(word, form, lemma, draw(TAGS), draw(TAGS), feats, head, deprel, deps, misc))
        lines += [row(f"{word}.{k + 1}", draw(TEXT), deps=f"{word}:x") for k in range(draw(st.integers(-3, 2)))]
    return lines


def row(number, form="a", lemma="_", upos="_", xpos="_", feats="_", head="_", deprel="_", deps="_", misc="_") -> str:
    return "\t".join(map(str, (number, form, lemma, upos, xpos, feats, head, deprel, deps, misc)))


def text_of(found: list[list[str]]) -> str:
    return "".join("\n".join(lines) + "\n\n" for lines in found)


def of_heads(*trees) -> str:
    """The text of sentences with these heads, words a, b, c, ..."""
    return text_of([[row(k, chr(96 + k), head=head) for k, head in enumerate(heads, 1)] for heads in trees])


def naive(text: str) -> list[list[tuple]]:
    """The words of each sentence: form, lemma, upos, xpos, feats, deprel, head."""
    found = []
    for block in text.strip("\n").split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if not line.startswith("#")]
        words = [fields for fields in rows if fields[0].isdigit()]
        found.append([(*(fields[k] for k in (1, 2, 3, 4, 5, 7)), int(fields[6])) for fields in words])
    return found


def contents(treebank) -> list[list[tuple]]:
    """The same of a treebank."""
    rows = zip(*(column.strings() for column in treebank.columns.values()), treebank.heads.tolist(), strict=True)
    rows = list(rows)
    return [rows[begin:end] for begin, end in pairwise(treebank.offsets.tolist())]
