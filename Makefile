# make demo    set up .venv and train an entity tagger on a planted corpus
# make test    set up .venv with the development extra and run all tests but the slow ones
# make slow    run the slow tests
# make lint    check style and formatting
# make bench   compare with other packages
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test slow lint bench clean

demo: $(VENV)/installed
	$(BIN)/structsparse train task=ner reg=group_lasso

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto

slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto -m slow

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python benchmarks/chain.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/prox.py
	$(BIN)/python benchmarks/glm.py
	$(BIN)/python benchmarks/overlaps.py
	$(BIN)/python benchmarks/tagging.py
	$(BIN)/python benchmarks/lm.py
	$(BIN)/python benchmarks/textcat.py
	$(BIN)/python benchmarks/parsing.py
	$(BIN)/python benchmarks/discrete.py
	$(BIN)/python benchmarks/embeddings.py

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info
