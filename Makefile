# Needs CPython 3.11 to 3.14 and make, nothing else. Everything is installed into .venv; a stamp file remembers what is there.
#   make demo    train a digit classifier          make test    all tests that need no GPU
#   make smoke   the one-minute check              make lint    ruff (format and rules) and mypy
#   make stubs   the .pyi files, from the table of operations       make layers  the catalogue of layers
#   make modules the page of modules, from their docstrings
#   make bench   Weft beside torch and JAX         make clean   remove .venv and caches
#   make docs    the documentation site, into build/site      make pictures   the pictures of docs/images
#   make dist    wheel and source distribution, built and tested in fresh environments
#   make advice  the performance page's measurements          make compare    the README's table of facts
#   make test-devices    OpenCL on PoCL and WebGPU on lavapipe, where they are installed
#   make bench-compile   how long growing programs take to compile
#   make replay  which kernels and plans a change reaches (ARGS=--record: they are meant)
#   make fuzz    random graphs, GRAPHS=20000 of them, and 5,000 more on emulated GPUs
#   make kernels docs/kernels.md, from the list of kernels
#   make opinfo  torch's own samples of its operators (ARGS=softmax: one, ARGS=--report: totals, worst first)
#   make test-gpu        on a machine with a GPU; ARGS="--device opencl --shard 2/5": which GPU, the second of five parts
#   make sanitize-gpu, make bench-gpu: on a machine with an NVIDIA GPU; these three install nothing
# Pass options with ARGS, for example: make demo ARGS="--epochs 10", make test ARGS="-k softmax".

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
ARGS ?=

.PHONY: help docs dist pictures advice compare demo test smoke replay fuzz opinfo kernels stubs modules layers lint format bench bench-compile bench-gpu test-devices test-gpu sanitize-gpu clean
.NOTPARALLEL:

help:
	@sed -n '/^#   /s/^# *//p' Makefile

demo: $(VENV)/.has-run
	$(BIN)/python -m weft.demo $(ARGS)

# Tests that measure time or memory run alone, after the others. Other files need not be collected again.
SERIAL_FILES = $(if $(filter tests% weft%,$(ARGS)),,$(shell grep -rl --include='test_*.py' 'mark[.]serial' tests))
test: $(VENV)/.has-test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not gpu and not devices and not serial" $(ARGS)
	$(BIN)/python -m pytest -m "serial and not gpu and not devices" $(ARGS) $(SERIAL_FILES) || [ $$? -eq 5 ]  # 5: ARGS chose none of them

# Tests on GPUs that the CPU emulates: a device that is not here is skipped, and said.
test-devices: $(VENV)/.has-test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "devices and not serial" tests $(ARGS) || [ $$? -eq 5 ]  # 5: none
	$(BIN)/python -m pytest -m "devices and serial" tests $(ARGS) || [ $$? -eq 5 ]

smoke: $(VENV)/.has-test
	$(BIN)/python -m pytest -m "smoke and not gpu and not devices" tests $(ARGS)

# Kernels and plans of fixed programs, rendered for a CPU and for GPUs, beside the record of them.
replay: $(VENV)/.has-test
	$(BIN)/python -m tests.replay $(ARGS)

fuzz: $(VENV)/.has-test
	WEFT_FUZZ=$(or $(GRAPHS),20000) $(BIN)/python -m pytest -n $(JOBS) tests/backend/test_random_graphs.py tests/backend/test_random_gpu_graphs.py tests/backend/test_ops.py $(ARGS)

# Torch's samples of its operators: values, gradients, dtypes, methods, errors. ARGS="softmax" shows one in detail.
opinfo: $(VENV)/.has-test
	$(BIN)/python -m tests.opinfo --jobs $(JOBS) $(ARGS)

# docs/kernels.md: every kernel of the specification, what provides it and what covers it.
kernels: $(VENV)/.has-test
	$(BIN)/python -m tests.kernels

# What type checkers and editors know of the operations.
stubs: $(VENV)/.has-run
	$(BIN)/python tools/stubs.py

# docs/modules.md, from the docstrings of the modules.
modules: $(VENV)/.has-run
	$(BIN)/python tools/module_map.py

# docs/layers.md and what `weft layers` prints, from the registry and the records.
layers: $(VENV)/.has-test
	$(BIN)/python -m tests.layers

# docs/images: the pipeline, and a training step as its plan.
pictures: $(VENV)/.has-run
	$(BIN)/python tools/pictures.py

# The site: pages of docs/, README and the API reference. A warning (a link to nowhere, a page in no menu) is an error.
docs: $(VENV)/.has-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)

# Both are installed into environments of their own, outside of this folder, and used there.
dist: $(VENV)/.has-dist
	$(BIN)/python tools/dist.py $(ARGS)

lint: $(VENV)/.has-lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32
	$(BIN)/mypy --platform darwin

format: $(VENV)/.has-lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.has-bench
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-compile: $(VENV)/.has-run
	$(BIN)/python benchmarks/growth.py $(ARGS)

# docs/performance.md: each advice, before and after.
advice: $(VENV)/.has-run
	$(BIN)/python benchmarks/advice.py $(ARGS)

# Installed sizes and bits of Weft, torch, JAX and tinygrad.
compare: $(VENV)/.has-compare
	$(BIN)/python benchmarks/comparison.py $(ARGS)

# These run with the python3 on PATH and install nothing: GPU machines bring their own packages. ARGS="--device opencl"
# names the GPU (default: cuda), "--shard 2/5" one of five parts, WEFT_CACHE_DIR a folder that keeps compiled kernels for
# the next part.
PARALLEL = $(shell python3 -c 'import importlib.util as u; print("-n 8 -p no:benchmark" if u.find_spec("xdist") else "")')
test-gpu:
	python3 -m pytest -q -p no:benchmark $(PARALLEL) -m "gpu and not serial" tests/gpu tests/backend $(ARGS)
	python3 -m pytest -q -p no:benchmark -m "gpu and serial" tests/gpu tests/backend $(ARGS) || [ $$? -eq 5 ]

# Kernels under NVIDIA's checker of memory accesses, races and barriers; any error is a failure.
sanitize-gpu:
	python3 -m tests.gpu.sanitize $(ARGS)

bench-gpu:
	python3 benchmarks/gpu.py $(ARGS)

clean:
	rm -rf $(VENV) .venv-3.* .python-3.* build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find weft tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
		|| { echo "Weft needs CPython 3.11 to 3.14; choose one with make PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "No virtual environment could be made (Debian and Ubuntu: apt-get install python3-venv)."; exit 1; }

$(VENV)/.has-run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.has-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@
