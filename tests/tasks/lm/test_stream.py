"""Block-wise reading of text from files and pipes against reading it at once."""

import gzip
import io
from dataclasses import replace

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.text_reading import TextReading
from structsparse.tasks.lm import stream
from tests.support.language_models import model_of, sentences


@pytest.mark.parametrize("block", [1, 7, 10**6])
@pytest.mark.parametrize(
    "reading", [TextReading(), TextReading("text", "words", lower=True, classes=True)], ids=["lines", "text"]
)
def test_scores_do_not_depend_on_the_source_and_the_block_size(block, reading, tmp_path, monkeypatch):
    model = replace(model_of(2), reading=reading)
    lines = [
        " ".join(sentence) + (". Some More words, W1 w0!" if k % 3 == 0 else "")
        for k, sentence in enumerate(sentences(8))
    ]
    data = "\n".join(line + "\n" * (k % 4 == 0) for k, line in enumerate([*lines, ""])).encode()
    (tmp_path / "text").write_bytes(data)
    (tmp_path / "zipped").write_bytes(gzip.compress(data))
    (text,) = [text for _, text in model.stream(tmp_path / "text")]
    expected = model.log_probabilities(text)
    monkeypatch.setattr(stream, "BLOCK", block)
    for source in (tmp_path / "text", tmp_path / "zipped", io.BytesIO(data)):
        blocks = [text for _, text in model.stream(source)]
        assert (len(blocks) > 1) == (block < 10**6 or (reading.sentences == "text" and isinstance(source, io.BytesIO)))
        np.testing.assert_array_equal(np.concatenate([model.log_probabilities(text) for text in blocks]), expected)


class Pipe:
    """A pipe that delivers pieces, and counts the calls of read."""

    def __init__(self, *pieces: bytes):
        self.pieces, self.calls = [*pieces, b""], 0

    def read(self, size: int) -> bytes:
        self.calls += 1
        return self.pieces[self.calls - 1]


@pytest.mark.parametrize(
    ("reading", "pieces", "blocks"),
    [
        (TextReading(), [b"w0 w1\nw2\nw", b"1\nw3\n"], [(1, 3), (2, 2)]),
        (TextReading("text", "words"), [b"W0 w1. W2\nw3.\n\nW1\n", b"w2.\n\n"], [(1, 3), (1, 3), (2, 3)]),
    ],
)
def test_complete_sentences_do_not_wait_for_more_input(reading, pieces, blocks):
    """blocks: calls of read before each block, and the words of the block."""
    model, pipe = replace(model_of(), reading=reading), Pipe(*pieces)
    assert [(pipe.calls, coded.tokens) for coded, _ in model.stream(pipe)] == blocks


def test_an_error_comes_after_the_sentences_before_it():
    blocks = model_of().stream(io.BytesIO(b"w0 w1\nw1\n\xff w0\nw0\n"))
    assert next(blocks)[0].tokens == 3
    with pytest.raises(UserError, match="line 3: byte 0xff is not UTF-8"):
        next(blocks)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"  \n"])
def test_text_without_words_is_refused(data, tmp_path):
    (tmp_path / "empty").write_bytes(data)
    for source in (io.BytesIO(data), tmp_path / "empty"):
        with pytest.raises(UserError, match="has no words, expected text"):
            list(model_of().stream(source))
