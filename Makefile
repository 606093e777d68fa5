# make help lists the targets. Every target but help and clean sets up .venv first, if it is out of date.

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c "" 2>/dev/null && echo $$p && break; done)
# More options for pip, e.g. PIP_FLAGS="--find-links wheels".
PIP_FLAGS ?=
# What make run shows.
RUN ?= quickstart
# Options for pytest, e.g. PYTEST_FLAGS="-k bspline".
PYTEST_FLAGS ?= -n 2 -q

BIN := .venv/bin
STAMP := .venv/.stamp
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt

# Material for MkDocs prints a notice about its own future before each build.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup run test lint bench docs figures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## create .venv and install knotflow with all its tools

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[dev]'
	@touch $@

run: $(STAMP) ## see it work: simulate, train, sample, judge, a page (about eight minutes)
	$(BIN)/knotflow $(RUN)

test: lint ## lint, tests, and the documentation built strictly
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS)
	$(BIN)/mkdocs build --strict --quiet

lint: $(STAMP) ## style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(STAMP) ## time the transforms against other libraries
	$(BIN)/python -m benchmarks

docs: $(STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

figures: $(STAMP) ## redraw the pictures of the documentation
	$(BIN)/knotflow figure transforms --out docs/images/transforms.png

clean: ## remove caches and everything built, but not .venv
	rm -rf site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
