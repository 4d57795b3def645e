# `make` sets up and runs the pipeline, `make check` sets up and runs what is quick of
# `make test`: lint, types and tests. `make help` lists the others.
PYTHON ?= python3
BIN := .venv/bin

# a user's own files in the root are the user's
CODE := minitrain stages studies tests
STUDIES := $(notdir $(patsubst %/,%,$(wildcard studies/*/)))
# two files of tests at a time: many of them wait
TWO := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: all check test lint studies help
.DEFAULT_GOAL := all

all: .venv/installed ## set up, and run the pipeline: about three minutes on 2 cores
	@$(BIN)/python -m minitrain.core.dvc_lock
	@$(BIN)/dvc repro
	@$(BIN)/dvc metrics show
	@echo "The report: metrics/report.html"

check: lint ## lint, types and the quick tests: three minutes
	@$(BIN)/python -m pytest $(TWO) -m "not slow"

test: lint ## lint, types and all tests: twenty minutes
	@$(BIN)/python -m pytest $(TWO)

lint: .venv/installed ## ruff and mypy alone
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy

studies: $(STUDIES:%=study-%) ## the slower experiments, all of them; study-NAME runs one

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

study-%: .venv/installed
	@$(BIN)/python -m minitrain.core.dvc_lock
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
