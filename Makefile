# make demo    sets up, then trains a built-in graph on two ranks and shows what was learned
# make test    all tests but the full products of settings
# make test-slow   those products: every way, model and number of ranks together
# make check   ruff, mypy --strict, and the layers of the architecture
# make bench   the benchmarks, quick versions (see benchmarks/)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_ARGS ?=
# pytest loads torch before laconic can say this (docs/decisions/0009).
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-slow check bench clean

# Done once; again only when what is to be installed changes.
$(READY): pyproject.toml constraints.txt
	@echo 'Setting up $(VENV), once: packages come from the network, which takes some minutes and shows nothing.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/laconic doctor --warm-up
	touch $(READY)

demo: $(READY)
	$(BIN)/laconic train --ranks 2

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 $(PYTEST_ARGS)

test-slow: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 -m slow $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/architecture

bench: $(READY)
	$(BIN)/python benchmarks/kernels.py --quick
	$(BIN)/python benchmarks/single_machine.py --quick

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
