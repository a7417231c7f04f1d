# `make` lists the targets. Everything runs in .venv, which needs python3 with pip and venv alone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# -qq: errors only. Without isolation a build uses the pinned setuptools of .venv and fetches nothing.
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check -qq install -c constraints.txt
BUILT_FROM := pyproject.toml constraints.txt setup.py $(wildcard src/midge/kernels/source/*)
INSTALLED := $(VENV)/.installed
PEERS_INSTALLED := $(VENV)/.installed-peers
LAST_VENV := .venv-last
LAST_PACKAGES := last-asr==0.0.4 jax==0.10.2 jaxlib==0.10.2 flax==0.12.8

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup test test-fast test-peers bench bench-peers demo lint format docs clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv and install midge and its tools, once

# torch comes first and at its exact version: a looser request, by us or by another package, may
# fetch another build of it, with gigabytes of CUDA libraries.
$(INSTALLED): $(BUILT_FROM)
	@echo "Installing midge and its tools into $(VENV); this takes a few minutes the first time."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $$(grep '^torch==' constraints.txt)
	$(PIP_INSTALL) setuptools
	$(PIP_INSTALL) --no-build-isolation -e '.[dev]'
	@touch $@

$(PEERS_INSTALLED): $(INSTALLED)
	@echo "Installing the outside references into $(VENV): about 1 GB."
	$(PIP_INSTALL) --no-build-isolation -e '.[dev,peers]'
	@touch $@

test: lint ## run every check and every test but the peers (what a change must pass)
	$(BIN)/python -m pytest -n auto

test-fast: setup ## run the tests that take no time
	$(BIN)/python -m pytest -n auto -m 'not slow and not peers'

# pynini and vosk each bring an OpenFst of their own: in one process they wait for ever.
test-peers: $(PEERS_INSTALLED) ## against pynini, warprnnt_numba and vosk's client (installs 1 GB, once)
	$(BIN)/python -c 'import pynini, warprnnt_numba'
	$(BIN)/python -c 'import imageio_ffmpeg, vosk'
	$(BIN)/python -m pytest -m peers tests

bench: setup ## measure the paper's benchmark at the reduced shape; goes to bench/
	$(BIN)/midge bench --output bench

# jax and torch want different versions of what both need, so the peer has an environment of its own.
$(LAST_VENV): ## make the environment of google-research/last, once
	@echo "Installing google-research/last into $(LAST_VENV): about 600 MB."
	$(PYTHON) -m venv $@.part
	$@.part/bin/python -m pip --disable-pip-version-check -qq install $(LAST_PACKAGES)
	mv $@.part $@

bench-peers: $(PEERS_INSTALLED) $(LAST_VENV) ## measure the peers in turn with us (hours); writes docs/benchmarks.md
	$(BIN)/python benchmarks/peers/document.py $(PARTS)

demo: setup ## show label bias, then two recognizers of speech, in minutes; goes to demo/report.html
	$(BIN)/midge demo --output demo

lint: setup ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## repair style and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## build the documentation into docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -E -W --keep-going -q -b html docs docs/_build/html
	@echo "Read docs/_build/html/index.html"

clean: ## remove what builds, tests and demos leave behind
	rm -rf build dist demo bench docs/_build docs/api src/*.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove .venv and .venv-last
	rm -rf $(VENV) $(LAST_VENV)
