# `make help` lists the targets. Everything happens in .venv of this checkout; what was set up once needs no network again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.talon-setup
MODELS := smollm2-135m gemma3-270m
TRITONS := 3.4 3.9
QUANTISED := bitsandbytes==0.50.2 torchao==0.18.0

# One worker per core, but not more than four: each loads models of its own.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
WORKERS ?= $(shell [ $(CORES) -gt 4 ] && echo 4 || echo $(CORES))
# The threads of all test workers together fit the cores.
TEST_THREADS := $(shell threads=$$(( $(CORES) / $(WORKERS) )); [ $$threads -gt 1 ] && echo $$threads || echo 1)
export PIP_NO_INPUT = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Python compiles what it imports; pip would compile everything there is.
export PIP_COMPILE = 0
# Compiled files are kept, whatever the environment says: the tests start Python more than a hundred times.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup models $(MODELS) other-tritons quantised demo test test-all lint lint-ruff lint-mypy lint-pyright docs bench speed batch-speed leaderboard gpu gpu-speed build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the pinned dependencies and TALON in it

$(STAMP): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "TALON needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1); name another one: make setup PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt --group dev
	$(BIN)/python -m pip install --quiet -c constraints.txt --only-binary :all: --group peers || \
	  echo "economize and llama.cpp cannot be installed here; their tests are skipped" >&2
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e .
	@touch $@

models: $(MODELS) ## fetch the embedded models that are missing

$(MODELS): setup
	@$(BIN)/talon models fetch $@

other-tritons: setup ## the oldest and the newest Triton that are supported, which a test compiles the GPU kernels with
	@for version in $(TRITONS); do \
	  folder=$(VENV)/tritons/$$version; rm -rf $$folder; \
	  $(BIN)/python -m pip install --quiet --no-deps --only-binary :all: --target $$folder "triton==$$version.*" || exit 1; \
	done

quantised: setup ## models that bitsandbytes and torchao have quantised, decoded or refused
	$(BIN)/python -m pip install --quiet --no-deps --only-binary :all: --upgrade --target $(VENV)/quantised $(QUANTISED)
	PYTHONPATH=$(VENV)/quantised $(BIN)/python -m pytest tests/integration/test_quantised.py $(PYTEST_ARGS)

demo: setup ## set up, and run the main job
	$(BIN)/talon demo

test: models ## set up, and run the test suite
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-all: models ## the test suite with the whole matrix of combinations
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --matrix $(PYTEST_ARGS)

lint: lint-ruff lint-mypy lint-pyright ## ruff, mypy --strict and pyright

lint-ruff: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-mypy: setup
	$(BIN)/mypy

lint-pyright: setup
	$(BIN)/pyright

docs: setup ## write the API reference, docs/api.md and docs/api/, from the docstrings
	$(BIN)/python tools/api_reference.py

bench: models ## time the parts on this machine (pytest-benchmark)
	$(BIN)/python -m pytest tests/benchmarks --benchmark-enable --benchmark-only $(PYTEST_ARGS)

speed: models ## the figures of docs/performance.md on this machine, from one interleaved run
	$(BIN)/python tests/benchmarks/cpu_speed.py $(SPEED_ARGS)

batch-speed: models ## what slots bring over fixed batches on this machine
	$(BIN)/python tests/benchmarks/batch_speed.py $(SPEED_ARGS)

leaderboard: models ## drafters and policies by replay, and the best of them by the clock: LEADERBOARD_ARGS="--prompts DIR"
	$(BIN)/python tests/benchmarks/leaderboard.py $(LEADERBOARD_ARGS)

gpu: smollm2-135m ## on a machine with a GPU: what is wrong there, on one screen and in gpu-report.json
	$(BIN)/python tests/gpu_check.py $(GPU_ARGS)

gpu-speed: smollm2-135m ## the figures of docs/performance.md that need a GPU
	$(BIN)/python tests/benchmarks/gpu_speed.py $(SPEED_ARGS)

build: setup ## build the wheel and the source distribution into dist/
	$(BIN)/python -m build --no-isolation

clean: ## delete what builds and tools left behind; .venv and the models stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .coverage
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
