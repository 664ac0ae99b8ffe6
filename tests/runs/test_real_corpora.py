"""What only real text shows. Skipped without the corpora."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.corpus,
    pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set"),
]
ROOT = Path(__file__).parents[2]


def metrics_of(folder: Path, *options: str) -> dict:
    command = [sys.executable, ROOT / "train.py", f"hydra.run.dir={folder}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "metrics.json").read_text())


def test_a_few_epochs_of_chunking_come_close_to_the_best_taggers(tmp_path):
    options = "task=chunking", "data=conll2000", "reg=l2", "trainer.max_epochs=3"
    assert metrics_of(tmp_path / "run", *options)["f1"] >= 0.93


def test_a_corpus_with_a_label_that_training_lacks_is_trained_and_says_so(tmp_path):
    """The test part of CoNLL-2000 has an I-LST; training has none."""
    command = [sys.executable, ROOT / "train.py", f"hydra.run.dir={tmp_path}", "task=chunking", "data=conll2000"]
    options = ["reg=l1", "recipe=direct", "features.templates=['word[0]']", "trainer.max_epochs=1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "I-LST: label not seen in training" in done.stdout
