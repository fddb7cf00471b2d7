# Every job of this repository, for people and for CI alike. Needs Python 3.11 or newer and make.
#   make demo     see it work          make test     know it works          make help     the rest

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
UV_PIP  = $(BIN)/uv pip install --python $(BIN)/python

# Images of Python set it. A test run starts hundreds of interpreters, and each would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test check mypy pyright format schemas simulate mutants chaos cases bench bench-smoke constraints dist pictures backend clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

venv: $(STAMP)  ## make .venv with everything in it

demo: $(STAMP)  ## a team at work on an embedded broker; needs no key
	$(BIN)/pointsman demo

# Three at a time on two cores: nearly half of what the tests do is wait for processes.
PYTEST_ARGS ?= -n 3 --dist worksteal
test: check  ## all checks, then all tests
	$(BIN)/pytest $(PYTEST_ARGS)

check: $(STAMP)  ## lint, format, types, architecture
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory --jobs=2 mypy pyright

mypy pyright: $(STAMP)
mypy:
	$(BIN)/mypy
pyright:
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP)  ## repair what ruff can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

schemas: $(STAMP)  ## write anew what is generated: schemas/json and docs/state-machine.md
	$(BIN)/python -m pointsman_schemas.generate schemas/json
	$(BIN)/python -m pointsman.core.model.diagram > docs/state-machine.md

SEEDS ?= 1000
FIRST ?= 1
JOBS  ?= 1
simulate: $(STAMP)  ## play worlds full of faults: SEEDS=n of them, FIRST=seed, JOBS=processes
	PYTHONPATH=tests $(BIN)/python -m simulation --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS)

mutants: $(STAMP)  ## plant faults in copies of the source, JOBS=processes; a test must notice each of them
	PYTHONPATH=tests $(BIN)/python -m mutants --jobs $(JOBS) $(WHICH)

chaos: $(STAMP)  ## kill brokers and processes, break networks, trim, for ten minutes and more; nothing may be lost
	PYTHONPATH=tests $(BIN)/python -m chaos $(FORMS)

# One after the other: what they measure is CPU time and memory, and most of them fill the machine.
cases: $(STAMP)  ## the faults that others had, as large as they were reported: an hour, 20 GB of disk, and a package index
	POINTSMAN_CASES=reported $(BIN)/pytest -m sized -s -v

bench: $(STAMP)  ## the benchmark, whole
	$(BIN)/python -m benchmarks

bench-smoke: $(STAMP)  ## the benchmark, short: does it run?
	$(BIN)/python -m benchmarks --smoke

# --universal: one file for every platform and for Python 3.11 and later. Index addresses are the business of the
# machine that installs, so none is written.
constraints: $(STAMP)  ## resolve constraints.txt anew, to the newest versions pyproject.toml allows
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --upgrade \
		--only-binary :all: --no-annotate --no-header --quiet \
		--output-file constraints.txt

dist: $(STAMP)  ## build the source archive and the wheel into dist/
	$(BIN)/python -m hatchling build --clean

pictures: $(STAMP)  ## take the pictures of docs/dashboard.md anew; needs a chromium
	$(BIN)/python docs/images/make.py

# An environment of its own: 650 MB, and its requirements would rule over ours.
PHOENIX := .venv-phoenix/bin/phoenix
backend: $(STAMP) $(PHOENIX)  ## a run with a crash and a retry, read back from a real telemetry backend (650 MB)
	PHOENIX_EXECUTABLE=$(CURDIR)/$(PHOENIX) $(BIN)/pytest tests/integration/test_backend.py

$(PHOENIX): $(STAMP)
	$(PYTHON) -m venv .venv-phoenix
	$(BIN)/uv pip install --python .venv-phoenix/bin/python --only-binary :all: 'arize-phoenix>=20'

clean:  ## remove what was built or measured here
	rm -rf $(VENV) .venv-phoenix dist build bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Dependencies are wheels only: nothing is ever compiled here. The project itself is a folder, which uv always builds.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Pointsman needs Python 3.11 or newer; %s is %s. Name another: make PYTHON=python3.12" % (sys.executable, sys.version.split()[0]))'
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --constraint constraints.txt uv
	$(UV_PIP) --only-binary :all: --constraint constraints.txt --build-constraint constraints.txt \
		--group dev --editable '.[dashboard,embedded,eval,mcp,prometheus]'
	@touch $(STAMP)
