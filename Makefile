# Two commands for a fresh machine: `make demo` and `make test`. Each does all its own set-up and can be run again.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests that share no server run in JOBS processes. Real Tritons are shared by a whole run: their tests stay in one.
JOBS        ?= 2
SERVERLESS  := -n $(JOBS) --dist worksteal --ignore=tests/field --ignore=tests/integration
WITH_TRITON := tests/field tests/integration

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit lint field lock clean

help: ## What can be made
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Build .venv from the lock file

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is missing: apt-get install -y python3 python3-venv, or make PYTHON=<path>"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv module is missing: apt-get install -y python3-venv"; exit 2; }
	@echo "setup: building $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: setup ## Real Tritons, the gateway and live traffic on this machine (DEMO_SECONDS=30 to stop by itself)
	@$(BIN)/sluice demo $(if $(DEMO_SECONDS),--seconds $(DEMO_SECONDS))

test: setup ## Everything that CI runs: style, types, unit, simulation, real Tritons
	@$(BIN)/python -m deploy.local check --any-ports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m deploy.local build
	@$(BIN)/python -m pytest $(SERVERLESS)
	@$(BIN)/python -m pytest $(WITH_TRITON)

test-unit: setup ## Only what needs no server
	@$(BIN)/python -m pytest $(SERVERLESS)

lint: setup ## Style and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

field: setup ## The real-time forms of the field cases that are too long for `make test`
	@$(BIN)/python -m deploy.local build
	@$(BIN)/python -m pytest -m field --override-ini addopts="-ra --strict-markers" tests

lock: setup ## Write requirements.lock anew from pyproject.toml
	@$(BIN)/python -m pip install --quiet pip-tools
	@$(BIN)/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-trusted-host --allow-unsafe --extra dev --output-file requirements.lock pyproject.toml

clean: ## Remove everything that was built or written at run time
	rm -rf $(VENV) .triton .load .run .pytest_cache .mypy_cache .ruff_cache .hypothesis
