# `make demo` and `make check` need python3 (3.11 or later), make and a package index; they install
# everything else.

PYTHON ?= python3
DEMO   ?= -m examples.demo
ARGS   ?=
# Of make soak: its length, and the seed that decides its actions and their order.
MINUTES ?= 10
SEED    ?= 1
FUZZ_MINUTES ?= 3
# Of make test-environments: all if empty.
ENVIRONMENTS ?=
# Cores plus 1: most tests wait for a thread, a socket or a program of their own. A worker without
# tests takes some from the others. `make test WORKERS=` shows their output.
WORKERS ?= --numprocesses=$(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)') --dist=worksteal

VENV := .venv
BIN  := $(VENV)/bin
RUN  := $(VENV)/.installed-run
DEV  := $(VENV)/.installed-dev
PEERS := .venv-peers/.installed
RELEASE := .venv-release/.installed
LOOPS := .venv-loops/.installed
AXE   := .axe/package/axe.min.js
# The C extension was built from its sources as they are, or cannot be built.
SPEED := $(VENV)/.built-speed
# The tests of the functions that the C extension replaces. `make test` and `make test-deep` run all
# tests with it.
SPEED_TESTS := $(addprefix tests/,_core/tables/test_mailbox.py _core/processes/test_message_loop.py _core/messaging/test_calls.py _core/messaging/test_handoff.py _core/messaging/test_inline_calls.py _core/messaging/test_router.py _core/messaging/test_traces.py meta/test_poller.py meta/sockets/test_writer.py test_promises.py)
CODE  = $(wildcard ergo_py pytest_ergo_py.py tests examples benchmarks)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Many tests start programs, and each program would compile all its imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: $(shell sed -nE 's/^([a-z][a-z-]*):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
.DEFAULT_GOAL := help

help:           ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: $(DEV)   ## Create .venv with everything for development

$(RUN): pyproject.toml
	@echo "creating the environment $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d, and ergo_py needs 3.11 or later; write: make $(MAKECMDGOALS) PYTHON=python3.13" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV)
	@echo "installing ergo_py, trio, outcome and structlog into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV): $(RUN) | $(SPEED)
	@echo "installing the tests, linters and documentation tools into $(VENV); this takes a minute or two ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(SPEED): $(RUN) hatch_build.py $(wildcard ergo_py/_core/speed/*.[ch])
	@echo "building the C extension ..."
	@$(BIN)/python hatch_build.py || true  # without the extension the package is slower, and complete
	@touch $@

fmt: $(DEV)     ## Format the code and apply safe lint fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

fmt-check: $(DEV)
	$(BIN)/ruff format --check .

lint: $(DEV) contracts  ## Lint, and check which module imports which
	$(BIN)/ruff check .

contracts: $(DEV)
	$(BIN)/lint-imports --no-cache

types: mypy pyright     ## Check types with mypy (strict) and basedpyright

mypy: $(DEV)
	$(BIN)/mypy $(CODE)
	$(BIN)/mypy --config-file= --strict --python-version 3.11 --cache-dir .mypy_cache/tutorial examples/tutorial

pyright: $(DEV)
	$(BIN)/basedpyright $(CODE)

# Pytest keeps the rewritten assertions beside the tests; without this step each worker process
# rewrites them for itself.
prepared: $(DEV)
	$(BIN)/python -m pytest --collect-only -qq > /dev/null || true  # the test run reports errors

test: $(DEV)    ## Run the tests; ARGS="tests/_core -k mailbox" selects
	HYPOTHESIS_PROFILE=fast $(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-deep: $(DEV)       ## Run the tests with many more examples, in pure Python and with the C extension
	HYPOTHESIS_PROFILE=thorough ERGO_PURE=1 $(BIN)/python -m pytest -o faulthandler_timeout=1800 $(ARGS)
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -o faulthandler_timeout=1800 $(ARGS)

sanitize: $(DEV)        ## Run the tests of the C extension under AddressSanitizer and UndefinedBehaviorSanitizer
	.ci/sanitize $(BIN)/python $(or $(ARGS),tests/_core/speed $(SPEED_TESTS))

test-matrix:    ## Run the tests on every Python from 3.11 to 3.14 found here
	.ci/test-matrix $(ARGS)

test-bounds:    ## Run a part of the tests with the lowest and the newest dependencies that pyproject.toml allows
	PYTHON=$(PYTHON) .ci/test-bounds $(ARGS)

$(LOOPS): pyproject.toml
	@echo "installing libraries of asyncio into .venv-loops ..."
	@$(PYTHON) -m venv .venv-loops
	@.venv-loops/bin/python -m pip install --quiet --upgrade pip
	@.venv-loops/bin/python -m pip install --quiet --editable . --group loops
	@touch $@

test-loops: $(LOOPS)    ## Run the tests of other loops with asyncpg, redis, FastAPI, IPython, a notebook and a window
	ERGO_TEST_LOOPS=1 .venv-loops/bin/python -m pytest tests/loops $(ARGS)

test-environments: $(DEV)       ## Run the tests in the unusual environments of .ci/environment; ENVIRONMENTS="ascii no-ipv6" selects
	HYPOTHESIS_PROFILE=fast .ci/test-environments "$(ENVIRONMENTS)" $(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-fresh-clock:       ## Run the tests as on a machine that has just booted
	$(MAKE) test-environments ENVIRONMENTS=fresh-clock

# Counting lines makes tests three times as slow. Tests that repeat the work of other tests, and
# tests of other rooms, run without it, after them; so do those that generate many examples.
# The lines of the Python code count, so all tests run in pure Python; then the tests of the
# replaced functions run with the C extension, if it was built.
coverage: $(DEV)        ## Run all tests, and demand coverage of the kernel and of parsers
	HYPOTHESIS_PROFILE=counted ERGO_PURE=1 $(BIN)/python -m pytest $(WORKERS) -m "not no_cover and not beyond_kernel" --cov --cov-report= $(ARGS)
	HYPOTHESIS_PROFILE=counted $(BIN)/python -m pytest $(WORKERS) -m "not no_cover and not beyond_kernel" --cov --cov-append --cov-report= tests/_core/speed $(SPEED_TESTS)
	$(BIN)/coverage report --include='ergo_py/_core/*,ergo_py/supervision/child.py,ergo_py/supervision/start_order.py,ergo_py/supervision/strategies.py,ergo_py/meta/parsing/framing.py,ergo_py/web/parsing/*' --fail-under=100
	HYPOTHESIS_PROFILE=fast $(BIN)/python -m pytest $(WORKERS) -m "no_cover or beyond_kernel or hypothesis" $(ARGS) || test $$? = 5  # 5: ARGS selects none of them

test-trio-turns: $(DEV) ## Run the tests of messages and calls without direct hand-off
	ERGO_DIRECT_HANDOFF=0 HYPOTHESIS_PROFILE=fast $(BIN)/python -m pytest $(WORKERS) tests/_core/messaging tests/_core/processes/test_message_loop.py tests/_core/processes/test_process.py

bench: $(DEV)   ## Measure, as ratios against peers and limits
	$(BIN)/python -m benchmarks $(ARGS)

bench-page: $(DEV)
	$(BIN)/python -m benchmarks --page docs/performance $(ARGS)
	$(BIN)/python -m tests.pages

$(PEERS): pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --upgrade pip
	.venv-peers/bin/python -m pip install --quiet --editable '.[network]' --group peers
	@touch $@

bench-peers: $(PEERS)   ## Measure beside other frameworks, and write that part of docs/performance.md
	.venv-peers/bin/python -m benchmarks.compare --page docs/performance $(ARGS)
	.venv-peers/bin/python -m tests.pages

bench-web: $(PEERS)     ## Measure the web server beside uvicorn, hypercorn, aiohttp and Go, and WebSockets beside websockets
	.venv-peers/bin/python -m benchmarks --only web $(ARGS)

bench-nodes: $(PEERS)   ## Measure two programs that talk to each other, beside Erlang and xoscar, and a function on all cores
	.venv-peers/bin/python -m benchmarks.nodes $(ARGS)

bench-nats: $(DEV)      ## Measure two programs that talk over a NATS server, beside nats-py over the same server
	$(BIN)/python -m benchmarks.nodes.nats_servers $(ARGS)

growth: $(DEV)  ## Measure how cost grows with the work, and write that part of docs/performance.md
	$(BIN)/python -m benchmarks.grow --page docs/performance $(ARGS)
	$(BIN)/python -m tests.pages

profile: $(PEERS)	## Show where the time of the hot paths goes; BEFORE=COMMIT shows where it went before, too
	.venv-peers/bin/python -m benchmarks.profiling --page docs/performance $(if $(BEFORE),--before $(BEFORE)) $(ARGS)
	.venv-peers/bin/python -m tests.pages

performance: bench-page bench-peers growth      ## Measure all figures of docs/performance.md

performance-page: $(DEV)        ## Write docs/performance.md again from the figures beside it, without measuring
	$(BIN)/python -m benchmarks --from docs/performance/goals.json --page docs/performance
	$(BIN)/python -m benchmarks.compare --from docs/performance/peers.json --page docs/performance
	$(BIN)/python -m benchmarks.grow --from docs/performance/growth.json --page docs/performance
	$(BIN)/python -m benchmarks.profiling --from docs/performance/profiles.json --page docs/performance
	$(BIN)/python -m tests.pages

soak: $(DEV)    ## Run all features at once for MINUTES=10, with crashes and kills
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

partitions: $(DEV)      ## Search 1,000 seeded partitions for two singletons that run at once, with bad clocks and with whole nodes
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -o faulthandler_timeout=1800 tests/cluster/test_partitions.py tests/cluster/test_groups.py $(ARGS)

soak-nodes: $(DEV)      ## Run four programs on a NATS server for MINUTES=10, with seeded kills of programs and server
	$(BIN)/python -m benchmarks.soak_nodes --minutes $(MINUTES) --seed $(SEED) $(ARGS)

sizing: $(DEV)  ## Simulate a network of 1,000 nodes in virtual time: traffic, detection of losses, windows
	$(BIN)/python -m benchmarks.sizing $(ARGS)

leaks: $(DEV)   ## Run the leak tests for longer
	$(BIN)/python -m benchmarks.leaks $(ARGS)

fuzz: $(DEV)    ## Feed generated input to all parsers, and random programs to both builds, for FUZZ_MINUTES=3; ARGS="--each 10" for each parser
	$(BIN)/python -m benchmarks.fuzzing --minutes $(FUZZ_MINUTES) $(ARGS)
	$(BIN)/python -m benchmarks.fuzzing_programs --minutes $(FUZZ_MINUTES)

conformance: $(DEV)     ## Run the Autobahn test suite against our WebSockets (needs Python 2.7); ARGS="--cases 1.*"
	.ci/conformance $(BIN)/python $(ARGS)

mutants: $(DEV) ## Break the code in small ways, and list the breaks that no test notices
	ERGO_PURE=1 $(BIN)/python -m benchmarks.mutants $(ARGS)

walk: $(DEV)    ## Build wheel and sdist, install them into empty environments, and follow the tutorial there
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -o faulthandler_timeout=1200 tests/examples/test_walk.py

$(RELEASE): pyproject.toml
	@echo "installing the tools for a release into .venv-release ..."
	@$(PYTHON) -m venv .venv-release
	@.venv-release/bin/python -m pip install --quiet --upgrade pip
	@.venv-release/bin/python -m pip install --quiet --group release
	@touch $@

build: $(RELEASE)       ## Build wheel and sdist into dist
	rm -rf dist
	.venv-release/bin/python -m build

release-check: build    ## Build wheel and sdist, and check that version, changelog and files are ready for a release; ARGS=--upload checks the addresses, too
	.venv-release/bin/twine check --strict dist/*
	.venv-release/bin/python .ci/release_check.py dist $(ARGS)

chaos: $(DEV)   ## Kill and restore three NATS servers under singletons; kill the parts of the gateway in every order, and take away its resources; ARGS="--seconds 600" continues
	$(BIN)/python -m benchmarks.chaos.servers
	$(BIN)/python -m benchmarks.chaos $(ARGS)

clients: $(DEV) ## Run curl, wrk, node's ws and a browser against the web server, as far as they are installed
	@test -d .venv-node/node_modules/ws || npm install --silent --no-fund --prefix .venv-node ws || true  # its test is skipped then
	NODE_PATH=$(CURDIR)/.venv-node/node_modules HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -rs tests/web/test_clients.py

# Finds faults of accessibility; for tests only.
$(AXE):
	@mkdir -p .axe
	cd .axe && npm pack --silent axe-core@4.14.0 && tar -xzf axe-core-4.14.0.tgz

browser: $(DEV) $(AXE)  ## Run the stories of the observer page in Chromium, and check its accessibility with axe-core
	ERGO_BROWSER=1 $(BIN)/python -m pytest tests/observe/page $(ARGS)

slow-peers: $(DEV)      ## Attack the web server with 10,000 slow heads, and with slowhttptest if it is installed
	$(BIN)/python -m benchmarks.slow_peers $(ARGS)

interrupts: $(DEV)      ## Press Ctrl-C at random moments in 500 busy programs; ARGS="--trials 1000 --seed 2"
	$(BIN)/python -m benchmarks.interrupts $(ARGS)

docs: $(DEV)    ## Build the documentation into docs/_build
	ERGO_PURE=1 $(BIN)/sphinx-build --quiet -W --keep-going --nitpicky -b html -d docs/_build/doctrees docs docs/_build/html

docs-code: $(DEV)       ## Copy code into the pages from the files that they name, and the texts of common mistakes
	$(BIN)/python -m tests.pages
	$(BIN)/python -m tests.mistakes

pictures: $(DEV)        ## Record ergo top and the demonstration, and draw the pictures of docs/pictures
	$(BIN)/python -m tests.pictures $(ARGS)

screenshots: $(DEV)     ## Take the pictures of the observer page for README and documentation, in Chromium
	$(BIN)/python -m tests.observe.page.pictures

redraws: $(DEV) ## Measure what a second costs the browser, for an open page on 10,000 processes
	$(BIN)/python -m tests.observe.page.redraws

check: fmt-check lint   ## Run all checks: format, lint, types, docs, tests, coverage
	$(MAKE) --jobs=2 pyright mypy docs prepared
	$(MAKE) coverage
	$(MAKE) test-trio-turns

demo: $(RUN)    ## Run the demonstration program
	$(BIN)/python $(DEMO)

clean:          ## Remove everything made here, environments included
	rm -rf $(VENV) .venv-* docs/_build dist build .coverage .coverage.* htmlcov .hypothesis .fuzzed
	rm -rf .sanitized .axe .browser-failures ergo_py/_core/speed/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find $(CODE) -type d -name __pycache__ -prune -exec rm -rf {} +
