# Two commands do everything: `make` sets up and runs the pipeline, `make test` sets up
# and runs lint, types and tests. `make studies` runs the deeper experiments.
PYTHON ?= python3
BIN := .venv/bin

STUDIES := $(notdir $(patsubst %/,%,$(wildcard studies/*/)))

.PHONY: all test studies
.DEFAULT_GOAL := all

all: .venv/installed
	@$(BIN)/dvc repro
	@$(BIN)/dvc metrics show
	@echo "The report: metrics/report.html"

test: .venv/installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest

studies: $(STUDIES:%=study-%)

study-%: .venv/installed
	@$(BIN)/dvc repro studies/$*/dvc.yaml
	@$(BIN)/python studies/label.py

# the libraries that minitrain is compared with are installed for that study alone
study-peers: .venv-peers/installed

.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) must be Python 3.11 or newer; PYTHON=... make picks one" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

.venv-peers/installed: .venv/installed studies/peers/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --requirement requirements.lock \
	  --requirement studies/peers/requirements.txt
	.venv-peers/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@
