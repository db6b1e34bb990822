PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed

# What is tested against `lightning.pytorch` as well.
IN_BOTH_NAMESPACES := tests/shared tests/stopping tests/test_lightning_canaries.py

BENCHMARKS := importing demo early_stopping evaluation

.PHONY: venv demo test test-fast test-slow lint notebooks bench clean

venv: $(READY)

$(READY): setup.cfg constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	touch $(READY)

demo: $(READY)
	$(BIN)/lightning-speedups demo

test: test-fast test-slow

test-fast: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not distributed"

test-slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or distributed"
	LIGHTNING_SPEEDUPS_TEST_NAMESPACE=lightning.pytorch OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -m "not slow and not distributed" $(IN_BOTH_NAMESPACES)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

notebooks: $(READY)
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 notebooks

bench: $(BENCHMARKS:%=bench-%)

bench-%: $(READY)
	$(BIN)/python benchmarks/$*.py $(BENCH_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info
