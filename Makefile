# `make demo` and `make check` need python3 (3.11 or later), make and a package index; they install
# everything else.

PYTHON ?= python3
DEMO   ?= -m examples.demo
ARGS   ?=
# Of make soak: its length, and the seed that decides its actions and their order.
MINUTES ?= 10
SEED    ?= 1
FUZZ_MINUTES ?= 3
# Cores plus 1: many tests wait for a thread, a socket or a program of their own. A worker without
# tests takes some from the others. `make test WORKERS=` shows their output. Each worker imports all
# tests for itself, which takes seconds.
WORKERS ?= --numprocesses=$(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)') --dist=worksteal
# For the counted tests, beside which `make check` runs the type checkers.
FEWER_PARTS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
# For the tests of the other rooms, which wait for more than half of their time.
MORE_PARTS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) * 5 // 2)')

VENV := .venv
BIN  := $(VENV)/bin
RUN  := $(VENV)/.installed-run
DEV  := $(VENV)/.installed-dev
AXE   := .axe/package/axe.min.js
# The groups of packages that only the benchmarks need.
BENCH := benchmarks/pyproject.toml
# The C extension was built from its sources as they are, or cannot be built.
SPEED := $(VENV)/.built-speed
CODE  = $(wildcard ergo_py pytest_ergo_py.py tests examples benchmarks)
# The code that users import or copy, and the cases of tests/typing: `make check` hands it to both
# type checkers. mypy checks the other tests and the benchmarks, too, with which basedpyright takes
# more than twice as long; `make types` hands all code to both.
SHOWN = $(wildcard ergo_py pytest_ergo_py.py examples tests/typing)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Many tests start programs, and each program would compile all its imports again.
unexport PYTHONDONTWRITEBYTECODE
# A set of strings has the same order in each run; `test-deep` has another in each.
test coverage trio-turns: export PYTHONHASHSEED := 0

.PHONY: $(shell sed -nE 's/^([a-z][a-z-]*):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
.DEFAULT_GOAL := help

help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: $(DEV)   ## Create .venv with everything for development

$(RUN): pyproject.toml
	@echo "creating the environment $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d, and ergo_py needs 3.11 or later; write: make $(MAKECMDGOALS) PYTHON=python3.13" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV)
	@echo "installing ergo_py, trio, outcome and structlog into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV): $(RUN) $(BENCH) | $(SPEED)
	@echo "installing the tests, linters and documentation tools into $(VENV); this takes a minute or two ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --group dev --group $(BENCH):bench
	@touch $@

$(SPEED): $(RUN) hatch_build.py $(wildcard ergo_py/_core/speed/*.[ch])
	@echo "building the C extension ..."
	@$(BIN)/python hatch_build.py || true  # without the extension the package is slower, and complete
	@touch $@

fmt: $(DEV)     ## Format the code and apply safe lint fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lint: $(DEV)    ## Check format and style, and which module imports which
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/ruff check .

types: SHOWN = $(CODE)
types: mypy pyright public-types        ## Check all types with mypy and basedpyright

# The files of the tutorial import each other by their names, as in a directory of their own. The
# options of both runs are the same, so that the second finds the package in the cache.
mypy: $(DEV)
	$(BIN)/mypy $(CODE)
	MYPYPATH=examples/tutorial $(BIN)/mypy examples/tutorial/*.py

# The checker finds the package by the python of the path.
public-types: $(DEV)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/basedpyright --verifytypes ergo_py --ignoreexternal --outputjson | $(BIN)/python -m tests.public_types

pyright: $(DEV)
	$(BIN)/basedpyright $(SHOWN)

test: $(DEV)    ## Run the tests; ARGS="tests/_core -k mailbox" selects
	HYPOTHESIS_PROFILE=fast $(BIN)/python -m pytest $(WORKERS) $(ARGS)

# Hypothesis keeps its table of characters, which takes seconds where lines are counted.
$(VENV)/.prepared: $(DEV)
	$(BIN)/python -W ignore -c 'import hypothesis.strategies as st; st.text().example()'
	@touch $@

# The tests of the kernel, of supervision, of the parsers and of the promises in pure Python, with the
# lines of these rooms counted; then, with the C extension, its tests and others that run lines which
# pure Python does not. tests/conftest.py says which tests are counted.
counted: $(VENV)/.prepared
	rm -rf .coverage-parts
	HYPOTHESIS_PROFILE=counted ERGO_PURE=1 $(BIN)/python -m tests.parts $(FEWER_PARTS) .ci/seconds-counted -m "counted" --cov --cov-report= $(ARGS)
	COVERAGE_FILE=.coverage-parts/speed/data HYPOTHESIS_PROFILE=fast $(BIN)/python -m pytest -m "counted" --cov --cov-report= tests/_core/speed $$(cat .ci/counted-speed-tests)
	$(BIN)/coverage combine --quiet .coverage-parts/*/data
	$(BIN)/coverage report --include='ergo_py/_core/*,ergo_py/supervision/child.py,ergo_py/supervision/start_order.py,ergo_py/supervision/strategies.py,ergo_py/meta/parsing/framing.py,ergo_py/web/parsing/*' --fail-under=100

# With the C extension and uncounted: the other tests of the functions that it replaces, and the tests
# of the other rooms.
uncounted: $(VENV)/.prepared
	HYPOTHESIS_PROFILE=fast $(BIN)/python -m tests.parts $(MORE_PARTS) .ci/seconds-uncounted -m "not counted or replaced" $(ARGS) || test $$? = 5  # 5: ARGS selects none of them

coverage: counted uncounted

# Messages and calls without direct hand-off. They take seconds, and workers as long to start.
trio-turns: $(DEV)
	ERGO_DIRECT_HANDOFF=0 HYPOTHESIS_PROFILE=fast $(BIN)/python -m pytest tests/_core/messaging tests/_core/processes/test_message_loop.py tests/_core/processes/test_process.py

check: lint $(VENV)/.prepared ## Check format, style, types, docs, tests, coverage
	$(MAKE) --jobs=3 counted uncounted pyright mypy site trio-turns public-types  # the tests often wait: others use that time

docs: pages     ## Copy code into the pages, and build docs/_build/html
	$(MAKE) site BUILDER=html

# The code from the files that the pages name, and the texts of common mistakes.
pages: $(DEV)
	$(BIN)/python -m tests.pages
	$(BIN)/python -m tests.mistakes

# `make check` reads the pages and resolves their links. To write them, too, takes half as long again.
site: BUILDER = dummy
site: $(DEV)
	ERGO_PURE=1 $(BIN)/sphinx-build --quiet -W --keep-going --nitpicky -b $(BUILDER) -d docs/_build/doctrees docs docs/_build/$(BUILDER)

demo: $(RUN)    ## Run the demonstration program
	$(BIN)/python $(DEMO)

# Each wheel is built from the sdist, so that nothing of this folder is in it by accident.
build: .venv-release/.installed       ## Build sdist and wheels into dist
	rm -rf dist
	ERGO_PURE=1 .venv-release/bin/python -m build
	.venv-release/bin/python -m build

bench: $(DEV)   ## Measure; for more: .venv/bin/python -m benchmarks list
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(DEV)    ## Run all features for MINUTES=10, with crashes
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

fuzz: $(DEV)    ## Feed random input to all parsers for FUZZ_MINUTES=3
	$(BIN)/python -m benchmarks.fuzzing --minutes $(FUZZ_MINUTES) $(ARGS)
	$(BIN)/python -m benchmarks.fuzzing_programs --minutes $(FUZZ_MINUTES)

chaos: $(DEV)   ## Kill programs and servers; ARGS="--seconds 600" continues
	$(BIN)/python -m benchmarks.chaos.entity_kills
	$(BIN)/python -m benchmarks.chaos.servers
	$(BIN)/python -m benchmarks.chaos $(ARGS)

browser: $(DEV) $(AXE)  ## Run the stories of the observer page in Chromium
	ERGO_BROWSER=1 $(BIN)/python -m pytest tests/observe/page $(ARGS)

walk: $(DEV)    ## Install the built packages, and follow the tutorial
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -o faulthandler_timeout=3600 tests/examples/test_walk.py

clean:          ## Remove everything made here, environments included
	rm -rf $(VENV) .venv-* docs/_build dist build .coverage .coverage.* .coverage-parts htmlcov .hypothesis .fuzzed
	rm -rf .sanitized .axe .browser-failures ergo_py/_core/speed/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find $(CODE) -type d -name __pycache__ -prune -exec rm -rf {} +

# Finds faults of accessibility; for tests only.
$(AXE):
	@mkdir -p .axe
	cd .axe && npm pack --silent axe-core@4.14.0 && tar -xzf axe-core-4.14.0.tgz

.venv-release/.installed: pyproject.toml
	@echo "installing the tools for a release into .venv-release ..."
	@$(PYTHON) -m venv .venv-release
	@.venv-release/bin/python -m pip install --quiet --upgrade pip
	@.venv-release/bin/python -m pip install --quiet --group release
	@touch $@

# Environments for commands of `python -m benchmarks`.
.venv-peers/.installed: pyproject.toml $(BENCH)
	@echo "installing peers to measure against into .venv-peers ..."
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --upgrade pip
	@.venv-peers/bin/python -m pip install --quiet --editable '.[network]' --group $(BENCH):peers
	@touch $@

.venv-loops/.installed: pyproject.toml $(BENCH)
	@echo "installing libraries of asyncio into .venv-loops ..."
	@$(PYTHON) -m venv .venv-loops
	@.venv-loops/bin/python -m pip install --quiet --upgrade pip
	@.venv-loops/bin/python -m pip install --quiet --editable . --group test --group $(BENCH):loops
	@touch $@
