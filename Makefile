# Everything a contributor runs, and all that CI runs. `make help` lists it.
PYTHON ?= python3
BIN := .venv/bin

# Tests start hundreds of processes: keep what they compile, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup page demo test test-long test-slow mutants check docs translations bench build

help:  ## list these commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1	\2/p' Makefile | expand -t 20

# The page into which `addnorm export --to web` puts a model. It is not in git, for its size.
PAGE := src/addnorm/convert/exporters/page.html
PAGE_SOURCES := $(wildcard page/*.js* page/index.html page/src/*.* page/src/*/*.*)

setup: .venv/.installed  ## create .venv and install AddNorm with all extras (again only when needed)
	@! command -v npm > /dev/null || $(MAKE) --silent page || \
		echo "The page for models is not built, which 'addnorm export --to web' needs: make page"

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e ".[dev]"
	@echo "Compiling the packages on two cores: about a minute"  # pip would take one
	@$(BIN)/python -m compileall -q -j 2 .venv/lib > /dev/null 2>&1 || true
	touch $@

page: $(PAGE)  ## build the page for models, of JavaScript; setup does it where npm is

$(PAGE): $(PAGE_SOURCES)
	npm --prefix page ci --no-audit --no-fund --loglevel=error
	npm --prefix page run build --silent -- --logLevel warn

demo: setup  ## train a small translator and watch it work
	$(BIN)/addnorm demo

test: setup  ## the fast tests, on two cores
	$(BIN)/python -m pytest -n 2 -m "not long and not slow and not gpu"

test-long: setup  ## the tests that take seconds each; CI runs them after the fast ones
	JAXTYPING_DISABLE=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "long and not slow and not gpu"

test-slow: setup  ## the slow tests and those that need a GPU
	$(BIN)/python -m pytest -m "slow or gpu"

mutants: setup  ## do the tests of CI see small mistakes? a fixed random 200, an hour or two, resumable
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutants.py

check: setup  ## format, lint, types, import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --threads 2
	$(BIN)/lint-imports

docs: setup  ## the documentation, in English into docs/_build, in Chinese into docs/_build/zh-CN
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q -b html -D language=zh_CN docs docs/_build/zh-CN

translations: setup  ## take new sentences into the Chinese catalogues, list what has no Chinese yet
	$(BIN)/python docs/translations.py

bench: setup  ## ours beside its peers, one benchmark after another; keep the machine quiet, it takes half an hour
	$(BIN)/addnorm bench

build: setup  ## wheel and source archive into dist/
	$(BIN)/python -m build --no-isolation
