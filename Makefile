# Each target sets up what it needs, in .venv, and only when a lock file changed (stamp files).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python >= 3.11 that really runs: a pyenv shim may exist and still refuse.
# Looked up where it is used, so that `make help` works without any.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
need_python = $(or $(strip $(PYTHON)),$(error SDRS needs Python 3.11 or newer, and none was found on PATH: \
	install one, or name it: make PYTHON=/path/to/python3.11))

BIN := .venv/bin

.PHONY: help demo gpt test check bench soak proto lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.runtime ## a cluster on this machine: train, save, kill, restore, a job killed twice; a readable story
	$(BIN)/python examples/demo.py

gpt: .venv/.dev ## a GPT trained by two ranks, killed twice: the same loss curve, bit for bit
	$(BIN)/python examples/gpt_survives.py $(ARGS)

# Most tests wait for processes of their own: one more at once than there are cores. A file stays with one worker, for
# the clusters that its tests share.
TEST_WORKERS ?= $(shell expr $$(nproc) + 1)
test: .venv/.dev ## all tests but soak; ARGS="-k name" goes to pytest, TEST_WORKERS=0 runs one after the other
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile $(ARGS)

check: .venv/.dev .venv-proto/.ready ## ruff, mypy strict, generated code fresh, import arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	.ci/proto --check
	$(BIN)/python -m pytest -q tests/unit/test_import_arrows.py

bench: .venv/.dev ## benchmarks, as a table and benchmarks/results/latest.json; ONLY="l1_save peers_1gib" runs these
	$(BIN)/python -m benchmarks $(foreach name,$(ONLY),--only $(name))

soak: .venv/.dev ## the tests that run long on purpose; ARGS as for test
	$(BIN)/python -m pytest -m soak --timeout=0 -o faulthandler_timeout=0 $(ARGS)

proto: .venv-proto/.ready ## proto/sdrs_proto/v1/*.proto -> *_pb2.py, *_pb2.pyi
	.ci/proto

lock: .venv-lock/.ready ## resolve requirements*.lock anew from pyproject.toml; ARGS=--upgrade for newer versions
	.ci/lock $(ARGS)

clean: ## remove environments and caches, keep results
	rm -rf .venv .venv-proto .venv-lock .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What a user runs: the locked runtime, and this tree as an editable install.
.venv/.runtime: requirements.lock pyproject.toml
	$(need_python) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps -e .
	touch $@

# What a developer needs on top.
.venv/.dev: .venv/.runtime requirements-dev.lock
	$(BIN)/python -m pip install --quiet -r requirements-dev.lock
	touch $@

# The oldest supported protobuf compiler, because newer generated code refuses older runtimes and training images pin
# old ones. Away from .venv: it wants an old setuptools, and 3.11, the last Python that it has wheels for.
PYTHON311 ?= python3.11
.venv-proto/.ready: Makefile
	@$(PYTHON311) --version >/dev/null 2>&1 || { echo 'grpcio-tools 1.50 has wheels up to Python 3.11 only:' \
		'install python3.11 for this, or name it: make PYTHON311=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON311) -m venv .venv-proto
	.venv-proto/bin/python -m pip install --quiet 'grpcio-tools==1.50.0' 'setuptools<80'
	touch $@

# Resolves with the oldest Python that we support, so that the pins fit the newer ones too.
.venv-lock/.ready: Makefile
	$(PYTHON311) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet 'pip-tools==7.6.2'
	touch $@
