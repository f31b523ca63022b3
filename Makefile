# Every target does its own set-up. The environment is made once and again only when its inputs change.
# Overrides: PYTHON (the interpreter it is made with), VENV (where it lies), ARGS (passed on to the command),
# WORKERS (processes that share the tests; 0 for none, as a debugger needs).

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv run test check lint format format-check types bench clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

venv: $(STAMP) ## make the environment: splash, editable, with pinned versions

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing splash into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: $(STAMP) ## serve the demo model on CPU ranks, with live layout switches
	@$(BIN)/splash run $(ARGS)

test: $(STAMP) ## all tests
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup $(ARGS)

check: format-check lint types test ## what CI and pre-commit check

lint: $(STAMP) ## ruff, without changing anything
	@$(BIN)/ruff check .

format-check: $(STAMP)
	@$(BIN)/ruff format --check .

types: $(STAMP) ## mypy
	@$(BIN)/mypy

format: $(STAMP) ## let ruff sort imports and format
	@$(BIN)/ruff check --select I --fix .
	@$(BIN)/ruff format .

bench: $(STAMP) ## the speed measurements; needs two idle cores
	@$(BIN)/python -m bench $(ARGS)

clean: ## remove the environment and the caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
