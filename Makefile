# `make` alone lists what there is.

PYTHON ?= python3
BIN := .venv/bin
RUNS := .venv/runs
INSTALLED := .venv/installed
PEERS := .venv-bench/installed
OFFICIAL := tests/node/node_modules/.package-lock.json
PIP_INSTALL := $(BIN)/pip install -qq --disable-pip-version-check

# Two at a time: the tests start servers of their own. One test: make test ARGS="-k gate"
JOBS ?= 2
ARGS ?=

UV := .venv/lock/bin/uv
UV_VERSION := 0.13.9
PIN := $(UV) pip compile --no-config --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
COMPILE := $(PIN) pyproject.toml --group build

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install node dev demo test check fmt lock bench bench-pages bench-quick bench-smoke \
	flame mutants chaos fuzz outage screenshots test-pooler

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv with everything pinned, unless it is up to date

# Who only tries it waits for no tools of the tests. What pip says goes to stderr: `make demo JSON=1`
# prints JSON alone, on a fresh clone too.
$(RUNS): requirements/base.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Draftgate needs Python 3.11 or later, and '$(PYTHON)' is not: make PYTHON=python3.13" >&2; \
		exit 1; }
	@echo "Installing into .venv" >&2
	@$(PYTHON) -m venv .venv >&2
	@$(PIP_INSTALL) --require-hashes -r requirements/base.txt >&2
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable . >&2
	@touch $@

$(INSTALLED): requirements/dev.txt $(RUNS)
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt >&2
	@touch $@

dev: $(RUNS) ## Run everything here: embedded PostgreSQL, a simulated Shortcut, the service
	@$(BIN)/draftgate dev

demo: $(RUNS) ## Do the main job once by itself, and check it; JSON=1 for scripts
	@$(BIN)/draftgate demo $(if $(JSON),--json)

test: install ## Run the tests; JOBS=4, ARGS="-k gate"
	$(BIN)/pytest -n $(JOBS) $(ARGS)

test-pooler: install ## Run all tests that come to a database again, behind PgBouncer
	DRAFTGATE_TEST_PGBOUNCER=1 $(BIN)/pytest -n $(JOBS) $(ARGS)

check: install ## Lint, formatting, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

fmt: install ## Format, and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# dev.txt comes first and constrains the others: what is tested is what runs.
lock: $(UV) ## Pin requirements/*.txt for what pyproject.toml says; UPGRADE=1 for the newest
	$(COMPILE) --group dev --extra embedded -o requirements/dev.txt
	$(COMPILE) --constraint requirements/dev.txt --extra embedded -o requirements/base.txt
	$(COMPILE) --constraint requirements/dev.txt -o requirements/runtime.txt
	$(PIN) --group bench --constraint requirements/dev.txt -o requirements/bench.txt

$(UV): Makefile
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

node: $(OFFICIAL) ## Install Shortcut's own client, which the tests hold the simulator against

# Nothing of it runs when it is installed.
$(OFFICIAL): tests/node/package-lock.json
	@cd tests/node && npm ci --ignore-scripts --no-audit --no-fund --silent >&2
	@touch $@

mutants: install ## Take out each guard and show that a test goes red; GUARD=lease for some
	@$(BIN)/python -m tests.mutants $(GUARD)

chaos: install ## Harm real processes for ten minutes, check it all; SECONDS=60 SEED=7 JSON=1
	@$(BIN)/python -m chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(JSON),--json)

fuzz: install ## Send the door and the API what nobody would think of; SECONDS=60 SEED=7
	DRAFTGATE_FUZZ_SECONDS=$(or $(SECONDS),60) $(if $(SEED),DRAFTGATE_FUZZ_SEED=$(SEED)) \
		$(BIN)/pytest tests/test_fuzz.py

screenshots: install ## Draw the console for the documents anew; needs Debian's chromium
	@$(BIN)/python -m tests.screenshots

outage: install ## Take PostgreSQL away under 200 deliveries/s, and count them after; SECONDS=60
	@$(BIN)/python -m chaos.outage $(if $(SECONDS),--seconds $(SECONDS))

bench: $(PEERS) ## Measure everything beside its peers, in a quarter of an hour; writes the figures
	@$(BIN)/python -m benchmarks --write

bench-quick: $(PEERS) ## The same in small, in about a minute or two; writes nothing
	@$(BIN)/python -m benchmarks --scale quick

bench-pages: install ## Every page, over a million events and 100,000 sessions, in two minutes
	@$(BIN)/python -m benchmarks --only pages

flame: $(PEERS) ## Draw where the receiver's time goes: docs/receiver.svg
	@$(BIN)/python -m benchmarks.flame

bench-smoke: $(PEERS) ## Whether every measurement yields a figure at all
	@$(BIN)/python -m benchmarks --scale smoke

# Peers have their own environment: nothing of theirs gets near what is shipped.
$(PEERS): requirements/bench.txt benchmarks/peers/fastify/package-lock.json | install
	@echo "Installing the peers into .venv-bench" >&2
	@$(PYTHON) -m venv .venv-bench >&2
	@.venv-bench/bin/pip install -qq --disable-pip-version-check --require-hashes \
		-r requirements/bench.txt >&2
	@if command -v npm >/dev/null; then npm ci --silent --ignore-scripts --no-audit --no-fund \
		--prefix benchmarks/peers/fastify >&2; else echo "No npm: without Fastify" >&2; fi
	@touch $@
