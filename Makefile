# `make` sets up and runs the pipeline, `make check` sets up and runs what is quick of
# `make test`: lint, types and tests. `make help` lists the others.
PYTHON ?= python3
BIN := .venv/bin
# CPU=1: torch without CUDA, from the index that pytorch.org names for it; only torch
TORCH := $(if $(filter 1,$(CPU)),--no-deps --index-url https://download.pytorch.org/whl/cpu \
  $(shell grep ^torch== requirements.lock))
# -P: files of yours in the root are no modules of DVC
DVC := $(BIN)/python -P -m dvc

# on a machine with several users DVC's default lets them run code as you
PRIVATE_CACHE := $(BIN)/python -m minitrain.cli.private_cache

# a user's own files in the root are the user's
CODE := minitrain stages studies examples tests docs notebooks
STUDIES := $(sort $(notdir $(patsubst %/dvc.yaml,%,$(wildcard studies/*/dvc.yaml))))
# what .venv-peers has beside .venv
OTHERS := studies/peers/requirements.txt tests/frameworks/requirements.txt
# three files of tests at a time on two cores: many of them wait
SIDE_BY_SIDE := --numprocesses 3 --dist loadfile --no-loadscope-reorder

# columns that `make experiments` leaves out of `dvc exp show`: files, the loss and verdict
# of all runs but one, and numbers of which `dvc metrics diff` shows all
FILES := (data|metrics|minitrain|stages|studies)/|params.yaml$$|requirements.lock$$
NUMBERS := noise_floor|.*(max_abs_diff|tokens_per_s|all_cores|_ms|_pct)|gloo-1\.speedup
OTHER := $(FILES)|Created|$(NUMBERS)|gloo-(?!1\.).*loss|gloo-(?!2\.).*verdict|nccl-.*

.PHONY: all quick check test thorough lint studies experiments docs help
.DEFAULT_GOAL := all

all: .venv/installed ## set up, and run the pipeline: three to six minutes on 2 cores
	@$(PRIVATE_CACHE)
	@$(DVC) repro
	@$(BIN)/minitrain summary

quick: .venv/installed ## the pipeline with 20 steps and 5 rounds, in .dvc/tmp/quick: a minute
	@$(BIN)/python -m minitrain.cli.quick
	@cd .dvc/tmp/quick && shown=$$($(CURDIR)/$(BIN)/minitrain summary); code=$$?; \
	  echo "$$shown" | sed 's|metrics/report|.dvc/tmp/quick/&|'; exit $$code
	@echo "To change a parameter and compare, run \`make\` first."

# they wait for nothing, so a third process would only import what the others do
check: lint ## lint, types and the quick tests: one to two minutes
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) --numprocesses 2 -m "not slow"

test: lint .venv-peers/installed .venv-docs/installed ## lint, types and all tests: 20 to 40 minutes
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE)

thorough: export MINITRAIN_ALL := 1
thorough: test ## test, with all mutants, faults and strategies: an hour or more

lint: .venv/installed ## ruff and mypy alone
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy

studies: $(STUDIES:%=study-%) ## the slower experiments, all of them; study-NAME runs one

experiments: .venv/installed ## what `dvc exp run` tried: changes and results
	@$(BIN)/dvc exp show --no-pager --only-changed --drop '$(OTHER)'

docs: .venv-docs/installed ## the docs as a site, in site/
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo "The docs: site/index.html"

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

study-%: .venv/installed
	@test -f studies/$*/dvc.yaml || \
	  { echo "error: no study $*: must be one of $(STUDIES)" >&2; exit 2; }
	@$(PRIVATE_CACHE) . studies
	@$(DVC) repro shard
	@$(BIN)/python -m studies.code_lock $*
	@cd studies && ../$(DVC) repro $*/dvc.yaml
	@$(BIN)/python -m studies.label $*

# what minitrain is compared with, and what tests record, is no part of .venv
study-peers: .venv-peers/installed

# torch brought setuptools: minitrain needs no other one from the network
.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) must be Python 3.11 or newer; PYTHON=... make picks one" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	@echo "Installing what requirements.lock pins. At its end pip unpacks all of it, and says"
	@echo "nothing for a minute or two, the last line being one of setuptools."
	$(if $(TORCH),$(BIN)/python -m pip install $(TORCH))
	$(BIN)/python -m pip install --requirement requirements.lock
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	@$(PRIVATE_CACHE)
	@touch $@

# it sees all that is in .venv, so only the rest is installed: half a minute
.venv-peers/installed: .venv/installed $(OTHERS)
	$(BIN)/python -m venv --clear --without-pip .venv-peers
	@.venv-peers/bin/python -c 'import sysconfig; own = sysconfig.get_path("purelib"); \
	  base = own.replace("/.venv-peers/", "/.venv/"); \
	  line = f"import site; site.addsitedir({base!r})"; \
	  print(line, file=open(f"{own}/venv.pth", "w"))'
	.venv-peers/bin/python -m pip install --quiet $(OTHERS:%=--requirement %) \
	  --requirement requirements.lock
	@touch $@

.venv-docs/installed: docs/requirements.txt
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --quiet --requirement docs/requirements.txt
	@touch $@
