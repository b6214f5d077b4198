# Everything a developer runs. The targets make their own environments with scripts/venv.sh: Python 3.11 or newer, pip
# and make are all that the machine needs. `make PYTHON=/path/to/python test` chooses the interpreter.
.DEFAULT_GOAL := help
.PHONY: help demo recipes test test-all lint format typing bench docs clean

JOBS ?= auto
PYTEST = -m pytest -n $(JOBS)
GATED = batchlib/_core/*,batchlib/policies/*
export JOBS PYTHON
export MAKE_TARGET = $(firstword $(MAKECMDGOALS))
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

demo: ## a real embedding model answers hundreds of callers in batches
	@scripts/venv.sh demo
	@.venv/bin/python examples/demo.py

recipes: ## four real models behind @batched, each compared with itself unbatched
	@scripts/venv.sh recipes
	@status=0; for recipe in examples/recipes/*.py; do \
	printf '\n%s\n' "$$recipe"; .venv/bin/python "$$recipe" || status=1; done; exit $$status

test: ## the suite on the Python at hand, and full branch coverage of the core and the policies
	@scripts/venv.sh test
	@.venv/bin/python $(PYTEST) --cov --cov-report=
	@.venv/bin/python -m coverage report --include='$(GATED)' --fail-under=100

test-all: ## the suite on 3.11, 3.12 and 3.13 where they exist, eager tasks included
	@scripts/test-all.sh

lint: ## ruff: rules and format
	@scripts/venv.sh test
	@status=0; .venv/bin/python -m ruff check . || status=1; \
	.venv/bin/python -m ruff format --check . || status=1; exit $$status

format: ## let ruff mend what it can
	@scripts/venv.sh test
	@.venv/bin/python -m ruff check --fix .
	@.venv/bin/python -m ruff format .

typing: ## mypy and pyright, both strict
	@scripts/venv.sh test
	@status=0; .venv/bin/python -m mypy || status=1; \
	.venv/bin/python -m pyright --pythonpath .venv/bin/python || status=1; exit $$status

bench: ## what a call costs, what the policies reach, what the torch executor makes of a real model: with bounds
	@scripts/venv.sh bench
	@status=0; for each in overhead policies torch_embedding; do \
	.venv-bench/bin/python benchmarks/$$each.py || status=1; done; exit $$status

docs: ## draw the state diagram from the transition table, and the plots from the simulator
	@scripts/venv.sh docs
	@.venv/bin/python scripts/state_diagram.py docs/explanation/states.md
	@.venv/bin/python scripts/policy_plots.py docs/how-to/images

clean: ## remove the environments and whatever the tools left behind
	@rm -rf .venv .venv-* build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
