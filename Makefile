# PYTHON is the interpreter that a new environment is made with (3.11 to 3.13), VENV where it lies. For another Python
# take another directory, too: make test PYTHON=python3.13 VENV=.venv313
PYTHON ?= python3
VENV ?= .venv
RUNS ?= runs
BIN := $(VENV)/bin
QUICKSTART := $(RUNS)/quickstart

.PHONY: help quickstart test test-oracles check benchmark
.DELETE_ON_ERROR:

help:
	@echo 'make quickstart   install, train a grid of six small runs on real data, print its table (minutes)'
	@echo 'make test         install with the tools, run all tests       (PYTEST=... adds arguments)'
	@echo 'make test-oracles install with PyTorch, run the tests against models of others'
	@echo 'make check        install with the tools, lint, format, types'
	@echo 'make benchmark    install with PyTorch, measure speed         (BENCHMARK=... adds flags)'

quickstart: $(VENV)/.installed
	$(BIN)/jaxformer ablate --grid=experiments/heads.py --workdir=$(QUICKSTART) --seeds=2
	$(BIN)/jaxformer report --workdir=$(QUICKSTART)
	@echo
	@echo 'The report: $(QUICKSTART)/report.html. What next:'
	@echo "  $(BIN)/jaxformer inspect --workdir=$$(ls -d $(QUICKSTART)/cells/*/seed-0 | head -n 1)"
	@echo "  $(BIN)/jaxformer inspect --workdir=$$(ls -d $(QUICKSTART)/cells/*/seed-0 | head -n 1) attention --input=knight"
	@echo '  $(BIN)/jaxformer train --config=configs/g2p.py --workdir=$(RUNS)/g2p'

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST)

test-oracles: $(VENV)/.installed-dev-oracles
	$(BIN)/python -m pytest tests/oracles tests/experiments/test_benchmark*.py $(PYTEST)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(VENV)/.installed-benchmark
	$(BIN)/python experiments/benchmark.py $(BENCHMARK)

# What is installed is remembered in a file that is older than the lists of dependencies where these have changed.
$(VENV)/.installed: EXTRAS :=
$(VENV)/.installed-dev: EXTRAS := [dev]
$(VENV)/.installed-benchmark: EXTRAS := [benchmark]
$(VENV)/.installed-dev-oracles: EXTRAS := [dev,oracles]
$(VENV)/.installed $(VENV)/.installed-dev $(VENV)/.installed-benchmark $(VENV)/.installed-dev-oracles: setup.py pyproject.toml | $(BIN)/python
	@echo 'installing jaxformer$(EXTRAS) into $(VENV)'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.$(EXTRAS)'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
