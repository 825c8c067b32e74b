# `make demo` and `make test` each set everything up first; nothing outside .venv*, .demo and pip's cache is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
INTEGRATIONS := $(CURDIR)/.venv-integrations
TORCHREC := $(CURDIR)/.venv-torchrec
RELEASES := $(addprefix $(CURDIR)/.venv-,deepspeed torchtitan megatron)
RELEASES_PYTHON ?= $(PYTHON)
NIGHTLY := $(CURDIR)/.venv-nightly
RAY := $(CURDIR)/.venv-ray
TORCHX_TESTS := $(addprefix tests/,components/test_options.py components/test_cubicml.py launch/test_component.py \
    launch/test_scheduler.py launch/test_schedulers.py)
export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE := # hundreds of processes load the same modules

.PHONY: help demo readme test test-launches test-end-to-end test-random test-generated test-mutants test-slurm test-slurm-short test-kill test-schedulers test-launchers
.PHONY: test-docs test-report screenshots test-integrations test-torchrec test-releases test-nightly test-packages check
.PHONY: setup format bench clean

help: ## say what each target does
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

readme: setup ## write the output blocks of README.md from a real run of its quick start
	$(BIN)/python scripts/write-readme

demo: $(VENV)/.runtime ## tune a real two-process FSDP training on this machine, then launch it once more, rewritten
	$(BIN)/python examples/demo.py

.PHONY: docs
docs: $(VENV)/.docs ## the documentation as a site, build/docs/index.html; a link that leads nowhere is an error
	rm -rf build/docs
	$(BIN)/sphinx-build -E -W --keep-going -n -q -c docs/site docs build/docs

test: setup ## format, lint, types, floors, and the tests that start no training
	scripts/check

test-launches: setup ## the tests that start real trainings, by torchrun and TorchX
	scripts/test-launches

test-end-to-end: setup ## the tune of the demo, whose speeds are compared: nothing else may run on the machine meanwhile
	PYTHONHASHSEED=0 $(BIN)/pytest tests/test_end_to_end.py

test-random: setup ## the property tests, and damaged space files, on new cases; SEED=n draws those of an earlier run
	scripts/test-random

test-generated: setup ## every command on CASES=2000 generated stores under generated spaces, some hours (SEED=0)
	scripts/test-generated "$(or $(CASES),2000)" "$(or $(SEED),0)"

test-mutants: setup ## random small faults: the share that each package's tests find (PACKAGES="advisor tuner", COUNT=40, SEED=0)
	scripts/test-mutants --count "$(or $(COUNT),40)" --seed "$(or $(SEED),0)" $(PACKAGES)

test-slurm: setup ## whole tunes on a Slurm that is started on this machine (root; installed where it is missing)
	scripts/test-slurm

test-slurm-short: setup ## the same without the real trainings on machines of two speeds, and without the nightly TorchX
	scripts/test-slurm --short

test-schedulers: setup ## five scenarios on real schedulers of this machine (root; what is missing is installed; SCHEDULERS="docker slurm")
	scripts/test-schedulers $(SCHEDULERS)

test-launchers: setup ## five scenarios with each launcher, in environments of their own (root for srun; LAUNCHERS="accelerate mpirun")
	scripts/test-launchers $(LAUNCHERS)

test-docs: setup ## each command, TOML and Python block of README.md and docs/, executed (those of trainers where their .venv-* are)
	PYTHONHASHSEED=0 $(BIN)/pytest -n 2 --dist load --maxschedchunk 1 tests/documentation/test_pages.py

test-report: setup ## the report in a headless Chromium (root and apt-get install it where it is missing)
	scripts/test-report

screenshots: setup ## the pictures of the report in README.md: of the demo's store, which `make demo` writes (a quiet machine)
	$(BIN)/python scripts/write-screenshots

test-kill: setup ## the tuner killed at fifty random instants, on this machine and on Slurm
	CUBICML_KILLS=50 scripts/test-slurm -k killed_at_random

test-integrations: $(INTEGRATIONS)/.ready test-torchrec test-releases ## trainings by other libraries' trainers, in environments of their own
	PATH="$(INTEGRATIONS)/bin:$$PATH" $(INTEGRATIONS)/bin/pytest tests/integrations

test-torchrec: $(TORCHREC)/.ready ## recommenders whose tables TorchRec shards over processes, in an environment of their own
	PATH="$(TORCHREC)/bin:$$PATH" $(TORCHREC)/bin/pytest tests/integrations/test_torchrec*.py

test-releases: $(addsuffix /.ready,$(RELEASES)) ## trainings by DeepSpeed, torchtitan and Megatron-Core (RELEASES_PYTHON=python3.12)
	for release in $(RELEASES); do PATH="$$release/bin:$$PATH" $$release/bin/pytest tests/integrations || exit 1; done

test-nightly: setup $(NIGHTLY)/.ready ## the component, and tunes on Slurm, under the nightly build of TorchX
	PATH="$(NIGHTLY)/bin:$$PATH" $(NIGHTLY)/bin/pytest -W 'ignore:[Deprecated] dist:UserWarning' $(TORCHX_TESTS)
	TORCHX=nightly scripts/test-slurm -k 'not killed_at_random'

test-packages: setup ## wheel and sdist in clean environments: Pythons, both TorchX, oldest and newest versions (gigabytes; ONLY=TEXT)
	$(BIN)/python scripts/test-packages --only "$(ONLY)"

check: test ## the same as test

setup: $(VENV)/.dev ## the virtual environment with all that development needs

format: setup ## rewrite the sources in the house format
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: setup ## run the benchmarks and write their results
	scripts/bench

clean: ## remove what the targets made
	rm -rf $(VENV) $(INTEGRATIONS) $(TORCHREC) $(RELEASES) $(NIGHTLY) $(RAY) .venv-axe .venv-packages-* .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is wanted, as in: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e '.[torchx,report]'
	@touch $@

# Of the fifteen thousand modules, those that are loaded are compiled then; pip would compile all, on one processor.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e '.[torchx,docs]'
	@touch $@

$(INTEGRATIONS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/pip install -q -c constraints.txt -e '.[torchx,integrations]' pytest
	@touch $@

# TorchRec asks for the CUDA build of FBGEMM, so it is installed without what it asks for, beside the CPU build.
$(TORCHREC)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCHREC)
	$(TORCHREC)/bin/pip install -q -c constraints.txt -e '.[torchx,torchrec]' pytest
	$(TORCHREC)/bin/pip install -q -c constraints.txt --no-deps torchrec fbgemm-gpu-cpu
	@touch $@

# Megatron-Core's newest release needs Python 3.12; an older Python gets its newest one for it. torchtitan needs triton.
$(CURDIR)/.venv-deepspeed/.ready: LIBRARIES := deepspeed
$(CURDIR)/.venv-torchtitan/.ready: LIBRARIES := torchtitan triton
$(CURDIR)/.venv-megatron/.ready: LIBRARIES := megatron-core[training]
$(addsuffix /.ready,$(RELEASES)): pyproject.toml constraints.txt
	$(RELEASES_PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q -c constraints.txt -e '.[torchx]' $(LIBRARIES) pytest
	@touch $@

# Ray's own dependencies would constrain those of the tests, and TorchX offers its scheduler only beside it.
$(RAY)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install -q -c constraints.txt -e '.[torchx]' 'ray[default]' pytest
	@touch $@

# The nightly build provides the same module as TorchX's release, so the extra that asks for the release is left out.
$(NIGHTLY)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NIGHTLY)
	$(NIGHTLY)/bin/pip install -q -c constraints.txt -e . torchx-nightly pytest hypothesis 'kubernetes>=20,<26'
	@touch $@
