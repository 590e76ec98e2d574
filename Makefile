# demo · test · test-all · lint · bench · docs: the same words CI uses. Each sets up .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all lint bench soak format docs clean

demo: $(READY)
	$(BIN)/python -m ontologia demo --force

# One process more than there are cores: tests wait for processes that they start.
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST = $(AGAIN) $(BIN)/pytest -q -n $(PROCESSES) --dist worksteal

test: $(READY)   # every requirement once
	ONTOLOGIA_TEST_TIER=quick $(PYTEST)

test-all: test   # and what that leaves out
	ONTOLOGIA_TEST_TIER=rest $(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m tools.audit

bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,bench]"
	$(BIN)/python -m bench.beside --size full --write-results bench/RESULTS.md
	$(BIN)/python -m bench

soak: $(READY)   # two hours of trouble: docs/guarantees.md
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,fuzz]"
	$(BIN)/python -m ontologia_conformance.simulation --seeds 20000
	$(BIN)/python -m tests.faults.campaign --full
	$(BIN)/python -m tests.faults.load --seconds 600
	$(BIN)/python -m tests.fuzz --seconds 60
	ONTOLOGIA_TEST_SAMPLES=10 $(BIN)/pytest -q tests/abuse

docs: $(READY)   # the site, in build/site
	$(BIN)/python -m tools.site

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# In this order: pip 23 finds the `ontologia` that `conformance` needs only if it has been named before.
$(READY): pyproject.toml conformance/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]" --editable conformance
	touch $(READY)
