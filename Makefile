# The project's commands. Each first creates .venv, which is updated only after a change of pyproject.toml,
# constraints.txt or scripts/setup.sh.
#
#   PYTHON=python3.12   Python interpreter    TORCH=cpu|default   source of torch (scripts/setup.sh)
#   REQUIRE=all         fail on skipped tests SEED=1, LORA=1      options of the demo
#   TESTS=tests/core    tests to run          PROCESSES=3         parallel processes
#   PART=2/5            run every fifth test (long, gauntlet), starting with the second
#   LIBS="trl ray"      third-party libraries to test

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-llm test test-long test-gauntlet test-integrations lint format docs release clean

BIN := .venv/bin
TESTS ?= tests
# More than the two cores of the tested machine: tests also wait, for deadlines, servers and browsers.
PROCESSES ?= 3
SEED ?= 0
# System packages that the tests need beyond those in the README, as COMMAND:PACKAGE or LIBRARY:PACKAGE.
SYSTEM_PACKAGES := git:git bwrap:bubblewrap chromium-headless-shell:chromium-headless-shell node:nodejs npm:npm libnuma.so.1:libnuma1
# torch's default thread count makes small operations ten times slower on a busy machine.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Without cached bytecode every process that a test starts would recompile the package.
export PYTHONDONTWRITEBYTECODE :=

PYTEST = $(BIN)/python -m pytest $(TESTS) -n $(PROCESSES) --dist worksteal $(if $(REQUIRE),--require=$(REQUIRE))

help: ## list the targets
	@echo 'usage: make TARGET'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.set-up ## create .venv with all dependencies at tested versions

.venv/.set-up: pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh

demo: setup ## train a tiny model on FrozenLake in five minutes and write an HTML report
	@$(BIN)/python -m examples.demo --seed $(SEED) $(if $(LORA),--lora)

demo-llm: setup ## train a pretrained language model (135M parameters) on sums, and show its replies before and after
	@$(BIN)/python -m examples.demo_llm --seed $(SEED)

test: setup ## lint, type check and all tests that are not long (REQUIRE=all: fail on skipped tests)
	@scripts/system_packages.sh $(SYSTEM_PACKAGES)
	@scripts/mcp_servers.sh
	@$(MAKE) --no-print-directory lint
	$(PYTEST) -m 'not long'

test-long: setup ## long tests, and random examples of hypothesis (PART=2/5: every fifth long test from the second)
	@scripts/system_packages.sh $(SYSTEM_PACKAGES)
	@scripts/mcp_servers.sh
	$(PYTEST) $(if $(PART),-m long --part=$(PART),-m 'long or hypothesis' --hypothesis-profile=random)

test-gauntlet: TESTS = tests/gauntlet
test-gauntlet: setup ## the browser on applications of others, installed in ~/.cache/rllm-gym/gauntlet (PART=2/5)
	@scripts/system_packages.sh $(SYSTEM_PACKAGES)
	@scripts/gauntlet.sh
	$(PYTEST) $(if $(PART),--part=$(PART))

test-integrations: PROCESSES = 2
test-integrations: setup ## tests with third-party libraries, each in its own environment under .integrations
	@PROCESSES=$(PROCESSES) scripts/integrations.sh $(if $(REQUIRE),--require=$(REQUIRE)) $(LIBS)

lint: setup ## run ruff format --check, ruff check and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## format the code and apply ruff's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup ## generate docs/environments.md and docs/tested-with.md, and build the documentation site in site/
	$(BIN)/rllm-gym list --markdown > docs/environments.md
	$(BIN)/python scripts/tested_with.py > docs/tested-with.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

release: setup ## build sdist and wheel in dist, check them on Python 3.11 to 3.13 (TAG=1: create the tag, too)
	@scripts/release.sh

clean: ## remove .venv, caches and build outputs, but no runs
	rm -rf .venv .mcp-servers .integrations build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
