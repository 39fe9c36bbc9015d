# Needs Python 3.11 or newer, make and bash; everything else is installed into .venv from hashed lock files: for `make run`
# what runs, for the others what tests and checks as well.
# Tests run in four processes, also on two cores: a third of the time of one is waiting. Fewer: make test WORKERS=2.
# Another interpreter: make test PYTHON=python3.13. More arguments: make test ARGS="-k outbox".

PYTHON  ?= python3
WORKERS ?= 4
ARGS    ?=
BIN     := .venv/bin
RUNS    := .venv/.runs
READY   := .venv/.ready
SHELL   := bash -o pipefail

# Byte code is kept also where the environment says no, as images for containers do: the tests start hundreds of
# processes, and each of them would compile Holdfast again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-newest check bench mutants crashes faults simulate fuzz-api xstate lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' Makefile

run: $(RUNS) ## start Holdfast with the example expense claim, which waits for you
	$(BIN)/holdfast dev --app examples.expenses:hf $(ARGS)

test: $(READY) ## run every test, at a size to wait for, on SQLite and on a private PostgreSQL
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-all: $(READY) ## run every test at full size: all crash points, more requests of the fuzzer, larger fleets
	HOLDFAST_TEST_SIZE=full $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# Engine, flows and a few tests of the store, on SQLite and PostgreSQL: what a new interpreter would break first.
PART = tests/engine tests/flows tests/store/test_commit.py tests/store/test_claims.py -k "not postgres or (store and claims)"

test-newest: ## run a part of the tests on the newest Python on this machine, if there is a newer one
	@newest=$$($(PYTHON) tests/newest_python.py); \
	if [ -z "$$newest" ]; then echo "test-newest: no Python newer than $(PYTHON) is here; nothing was run"; exit 0; fi; \
	echo "test-newest: $$newest"; \
	[ "$$(cat .venv-newest/.of 2>/dev/null)" = "$$newest" ] || rm -rf .venv-newest; \
	$(MAKE) --no-print-directory NEWEST="$$newest" .venv-newest/.ready && \
	.venv-newest/bin/python -m pytest -q -n $(WORKERS) --dist worksteal $(PART) $(ARGS)

.venv-newest/.ready: requirements/dev.txt requirements/build.txt pyproject.toml hatch_build.py
	@echo "setting up .venv-newest, once for each interpreter"
	@$(NEWEST) -m venv .venv-newest && echo "$(NEWEST)" > .venv-newest/.of
	@$(call LOCKED,requirements/dev.txt requirements/build.txt)
	@$(INSTALL) --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv-newest/.ready: BIN := .venv-newest/bin

check: $(READY) ## lint, format, types, and the arrows between the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/python -m pytest -q tests/test_house.py

bench: $(READY) ## compare Holdfast with its peers
	$(BIN)/python bench/compare.py $(ARGS)

mutants: $(READY) ## remove each guard in turn and see a test fail
	$(BIN)/python tests/mutants.py $(ARGS)

crashes: $(READY) ## stop before and after every single write, on PostgreSQL too
	HOLDFAST_TEST_SIZE=full $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/crash $(ARGS)

faults: $(READY) ## kill, pause and cut off real workers for a while, and audit; ARGS="--kills 2000" asks for more
	$(BIN)/python -m tests.processes.long $(ARGS)

simulate: $(READY) ## 2,000 seeds of random workflows under random faults; ARGS="--seeds 0:100000" asks for more
	$(BIN)/python -m tests.simulate $(ARGS)

fuzz-api: $(READY) ## 5,000 requests that nobody thought of to every operation of the API, on both databases
	$(BIN)/python -m tests.api.fuzz --cases 5000 $(ARGS)

xstate: $(READY) ## compare the chart interpreter with npm XState on 2,000 random machines
	$(BIN)/python -m tests.charts.differential $(ARGS)

# How far it is, instead of silence for a minute: pip says one line for each package it looks at.
INSTALL = PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off
LOCKED  = $(INSTALL) --require-hashes $(1:%=-r %) | awk -v all="$$(cat $(1) | grep -c '^[A-Za-z0-9]')" \
	'/^(Collecting|Processing|Requirement already|Ignoring) / { if (++n % 10 == 0) print "  " n " of " all " packages"; fflush() } \
	/^Installing / { print "  unpacking"; fflush() }'

# Each stamp is written last, so an interrupted set-up starts over.
$(RUNS): requirements/run.txt requirements/build.txt pyproject.toml hatch_build.py
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Holdfast needs Python 3.11 or newer, \
	and $(PYTHON) is %d.%d: name a newer one, as in: make PYTHON=python3.12" % v[:2])'
	@echo "setting up .venv, once: what Holdfast needs to run"
	@$(PYTHON) -m venv .venv
	@$(call LOCKED,requirements/run.txt requirements/build.txt)
	@$(INSTALL) --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(READY): $(RUNS) requirements/dev.txt
	@echo "setting up .venv, once: what the tests and checks need on top"
	@$(call LOCKED,requirements/dev.txt)
	@$(BIN)/python -m tests.support.browser || echo "going on: the tests of pages will fail"
	@touch $@

COMPILE = .venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock" $(ARGS)

lock: ## compile requirements/*.txt again; ARGS=--upgrade moves every pin
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(COMPILE) pyproject.toml -o requirements/run.txt
	$(COMPILE) pyproject.toml requirements/dev.in -c requirements/run.txt -o requirements/dev.txt
	printf 'hatchling\neditables\n' | $(COMPILE) - -c requirements/dev.txt -o requirements/build.txt

clean: ## remove everything that can be made again
	rm -rf .venv .venv-lock .venv-newest build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .holdfast
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
