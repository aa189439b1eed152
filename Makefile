# Two commands do everything on a fresh machine that has Python >= 3.11 and pip:
#   make demo   set up, then do the main job once, small
#   make test   set up, then lint, types, import contracts and all tests but the slow ones (make slow)
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Python keeps what it compiles: the tests start many processes, and each would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint types contracts pytest slow coverage docs figures browser lock audit clean

demo: $(READY)
	$(BIN)/vitrine demo

test: lint types contracts pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports --no-cache  # a cached graph does not notice moved files

# Two workers with one thread each use two cores better than one worker with two threads.
pytest: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not gpu and not slow"

# Variations that take many seconds each: every kind of model compiled, four processes, long guides. Before every release.
slow: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "slow and not gpu"

# Line and branch coverage of the whole suite, slow tests included: 90 % overall, 95 % in the rooms that decide what is
# learned. Processes that tests start measure themselves; a late one leaves a file that is combined afterwards.
CORE_ROOMS := models objectives training data checkpoints
coverage: $(READY) browser
	rm -f .coverage .coverage.*
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not gpu" --cov --cov-report=
	if ls .coverage.* >/dev/null 2>&1; then $(BIN)/coverage combine --quiet --append; fi
	$(BIN)/coverage report --fail-under=90
	for room in $(CORE_ROOMS); do echo -n "$$room, percent: "; \
	  $(BIN)/coverage report --include="src/vitrine/$$room/*" --format=total --fail-under=95 || exit 1; done

# The documentation site in site/: guides, API and command-line reference. Any warning is an error.
DOCS_READY := .venv/.docs-ready
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Wrote site/; with search: $(BIN)/python -m http.server --directory site"

# The site's tools have a lock of their own, so that nobody waits for them but those who build it.
$(DOCS_READY): docs/requirements.lock $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r docs/requirements.lock
	touch $@

# Measures of the code's structure, as in ARCHITECTURE.md.
figures:
	@$(PYTHON) .ci/figures.py

# The page's tests drive a real browser: Debian's, installed here where that can be done.
browser:
	@command -v chromium >/dev/null 2>&1 \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 \
	    && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || echo "No browser to test the page with, so those tests are skipped; to run them: apt-get install chromium"

# The stamp is newer than the lock once everything is in place, so that nothing is installed twice.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# Write both locks anew from the installed versions, with hashes (after installing a new or changed dependency).
lock: $(READY)
	$(BIN)/python .ci/lock.py write

# Needs no network: dependencies are consistent, and what is installed is what the lock says (see SECURITY.md).
audit: $(READY)
	$(BIN)/python -m pip check
	$(BIN)/python .ci/lock.py check

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache site
