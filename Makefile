# The project's commands. Each sets up .venv first; that is done again only when pyproject.toml, constraints.txt or
# scripts/setup.sh has changed.
#
#   PYTHON=python3.12   another Python        TORCH=cpu|default   where torch comes from (scripts/setup.sh)
#   REQUIRE=all         a skipped test fails  SEED=1, LORA=1      of the demo
#   TESTS=tests/core    only these tests  PROCESSES=2         tests (or environments of libraries) at a time
#   PART=2/5            only every fifth of the long tests, beginning with the second
#   LIBS="trl ray"      only these of the third-party libraries

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-integrations lint format docs clean

BIN := .venv/bin
TESTS ?= tests
PROCESSES ?= 2
SEED ?= 0
# What tests need of the system beyond the README's apt line: COMMAND:PACKAGE, one a need.
SYSTEM_PACKAGES := git:git bwrap:bubblewrap chromium-headless-shell:chromium-headless-shell node:nodejs npm:npm
# torch's default thread count makes small operations ten times slower on a busy machine.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Without cached bytecode every process that a test starts compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

PYTEST = $(BIN)/python -m pytest $(TESTS) -n $(PROCESSES) --dist worksteal $(if $(REQUIRE),--require=$(REQUIRE))

help: ## what there is
	@echo 'make TARGET, where TARGET is'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.set-up ## .venv with everything, at tested versions

.venv/.set-up: pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh

demo: setup ## train a tiny model on FrozenLake in five minutes and write an HTML report
	@$(BIN)/python -m examples.demo --seed $(SEED) $(if $(LORA),--lora)

test: setup ## lint, types and every test (REQUIRE=all: a skip is a failure)
	@scripts/system_packages.sh $(SYSTEM_PACKAGES)
	@scripts/mcp_servers.sh
	@$(MAKE) --no-print-directory lint
	$(PYTEST) -m 'not long'

test-long: setup ## the tests that take longer (PART=2/5: every fifth of them, beginning with the second)
	@scripts/system_packages.sh $(SYSTEM_PACKAGES)
	@scripts/mcp_servers.sh
	$(PYTEST) -m long $(if $(PART),--part=$(PART))

test-integrations: setup ## third-party libraries, each in an environment of its own, kept in .integrations
	@PROCESSES=$(PROCESSES) scripts/integrations.sh $(if $(REQUIRE),--require=$(REQUIRE)) $(LIBS)

lint: setup ## ruff format --check, ruff check, mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## write the code as ruff would
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup ## docs/environments.md from the class docstrings
	$(BIN)/rllm-gym list --markdown > docs/environments.md

clean: ## remove .venv and everything that was made, but no runs
	rm -rf .venv .mcp-servers .integrations build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
