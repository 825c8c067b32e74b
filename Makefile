# `make demo` and `make test` each set everything up first; nothing outside .venv, .demo and pip's cache is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test check setup format bench clean

help: ## say what each target does
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.runtime ## tune a real two-process FSDP training on this machine, then launch it once more, rewritten
	$(BIN)/python examples/demo.py

test: setup ## format, lint, types, floors, tests
	scripts/check

check: test ## the same as test

setup: $(VENV)/.dev ## the virtual environment with all that development needs

format: setup ## rewrite the sources in the house format
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: setup ## run the benchmarks and write their results
	scripts/bench

clean: ## remove what the targets made
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is wanted, as in: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.runtime
