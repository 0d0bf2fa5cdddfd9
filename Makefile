# Two commands for a fresh machine: `make demo` and `make test`. Each does all its own set-up and can be run again.

# Debian's own interpreter before another in PATH: it is built with profile-guided optimisation, those of version managers
# often are not, and the gateway takes about a tenth less CPU with it (docs/benchmarks.md).
ifndef PYTHON
PYTHON := $(shell for each in /usr/bin/python3.11 python3.11; do \
	$$each -c 'import venv, ensurepip' 2>/dev/null && echo $$each && exit; done; echo python3.11)
endif
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests that share no server run in JOBS processes, each in whichever is free. Real Tritons are shared by the tests of a
# process, and those of one file stay together.
JOBS        ?= 2
SERVERLESS  := -n $(JOBS) --dist worksteal --ignore=tests/field --ignore=tests/integration
WITH_TRITON := -n $(JOBS) --dist loadfile tests/field tests/integration

# All of them run to their end, and any one's failure is the whole's. Each line says whose it is.
SHELL       := /bin/bash
.SHELLFLAGS := -o pipefail -c
TOGETHER    := $(MAKE) --no-print-directory --jobs --keep-going

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit test-triton triton lint field lock clean

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

# Tests on real Tritons mostly wait, and some of them measure time: the others get what they leave of the processors.
test: setup ## Everything that CI runs: style, types, unit, simulation, real Tritons
	@$(BIN)/python -m deploy.local check --any-ports --tools
	@+$(TOGETHER) lint triton
	@+$(TOGETHER) test-unit test-triton

test-unit: setup ## Only what needs no server
	@nice -n 10 $(BIN)/python -m pytest $(SERVERLESS) | sed -u 's/^/no server: /'

test-triton: setup triton ## Only what needs real Tritons
	@$(BIN)/python -m pytest $(WITH_TRITON) | sed -u 's/^/on Triton: /'

triton: setup ## Install the real Triton and the tools of its tests (once)
	@$(BIN)/python -m deploy.local build
	@$(BIN)/python -m deploy.local tools

lint: setup ## Style and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

field: triton ## The real-time forms of the field cases that are too long for `make test`
	@$(BIN)/python -m pytest -m field --override-ini addopts="-ra --strict-markers" tests

lock: setup ## Write requirements.lock anew from pyproject.toml
	@$(BIN)/python -m pip install --quiet pip-tools
	@$(BIN)/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-trusted-host --allow-unsafe --extra dev --output-file requirements.lock pyproject.toml

clean: ## Remove everything that was built or written at run time
	rm -rf $(VENV) .triton .load .run .pytest_cache .mypy_cache .ruff_cache .hypothesis
