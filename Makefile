# make help lists the targets. Every target but help and clean sets up .venv first, if it is out of date.

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c "" 2>/dev/null && echo $$p && break; done)
# More options for pip, e.g. PIP_FLAGS="--find-links wheels".
PIP_FLAGS ?=
# What make run shows.
RUN ?= quickstart
# Options for pytest, e.g. PYTEST_FLAGS="-k bspline".
PYTEST_FLAGS ?= -n 2 -q
# How often make soak repeats what make test does once, e.g. SOAK=5.
SOAK ?= 50
# What make quick tests.
QUICK ?= tests/kernels tests/flows/test_flow.py $(filter-out %_compiled.py, \
	$(wildcard tests/transforms/test_*.py))

BIN := .venv/bin
STAMP := .venv/.stamp
KERNELS := src/knotflow/kernels
NATIVE := $(KERNELS)/_native.so
BUILD := $(BIN)/python $(KERNELS)/build.py
# Without a C++ compiler there is no library, which is fine.
READY := $(STAMP) $(NATIVE)
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt

# Material for MkDocs prints a notice about its own future before each build.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup run test soak quick lint sanitize bench bench-compare docs figures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## create .venv, install knotflow with all its tools, compile the kernels

$(STAMP): pyproject.toml constraints.txt hatch_build.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[dev]'
	@touch $@

# The installation has compiled it already; this is for changes.
$(NATIVE): $(wildcard $(KERNELS)/*.cpp $(KERNELS)/*.hpp) $(KERNELS)/build.py | $(STAMP)
	$(BUILD)

run: $(READY) ## see it work: simulate, train, sample, judge, a page (twelve minutes)
	OMP_NUM_THREADS=1 $(BIN)/knotflow $(RUN)

test: lint ## lint, tests, and the documentation built strictly
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS)
	$(BIN)/mkdocs build --strict --quiet

soak: $(READY) ## the tests with random numbers, damage and interruptions, fifty times as long
	KNOTFLOW_SOAK=$(SOAK) OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) -m soak

quick: lint ## lint, and the faster tests of maps, kernels and flows
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow" $(QUICK)

lint: $(READY) ## style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

sanitize: $(STAMP) ## run the kernels under the sanitizers for threads, memory and undefined behaviour
	$(BUILD) --driver tests/kernels/sanitize.cpp --out build/sanitize-threads --flags "-g1 -O1 -fsanitize=thread"
	build/sanitize-threads
	$(BUILD) --driver tests/kernels/sanitize.cpp --out build/sanitize-memory \
		--flags "-g1 -O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
	build/sanitize-memory

bench: $(READY) ## time maps, flows and molecules, with other libraries in the same run
	$(BIN)/python -m benchmarks

bench-compare: $(READY) ## say whether it has become slower than benchmarks/baseline.json
	$(BIN)/python -m benchmarks compare

docs: $(STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

figures: $(READY) ## redraw the pictures of the documentation
	$(BIN)/knotflow figure transforms --out docs/images/transforms.png

clean: ## remove caches and everything built, but not .venv
	rm -rf site build dist $(NATIVE) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
