# Two commands do all: `make run` serves, `make test` tests. Everything is installed inside .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
CLIENTS := $(VENV)/clients
CLIENTS_LISTS := tests/jupyter/clients/requirements.txt tests/jupyter/clients/package.json

.PHONY: run setup test fuzz clients check bench clean

run: $(STAMP) ## set up if need be, then serve on http://127.0.0.1:8888
	@exec $(BIN)/cellgate serve $(ARGS)

setup: $(STAMP) ## the set-up alone; the command is then .venv/bin/cellgate

$(STAMP): pyproject.toml $(wildcard kernels/cellgate_kernels/image/* kernels/cellgate_kernels/specs/container/*/*)
	@echo "Setting up in $(VENV) (once; a few minutes on a fresh machine)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  the gateway's own packages ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,check]"
	@command -v bwrap >/dev/null || $(MAKE) --no-print-directory bubblewrap
	@$(BIN)/cellgate setup
	@touch $@

.PHONY: bubblewrap
bubblewrap: # isolates kernels; the one thing installed outside the checkout, and only where root may
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "  bubblewrap, with apt-get ..."; \
	  (apt-get install -y --no-install-recommends bubblewrap || \
	   (apt-get update && apt-get install -y --no-install-recommends bubblewrap)) >$(VENV)/bubblewrap.log 2>&1 \
	   || echo "  bubblewrap could not be installed; see $(VENV)/bubblewrap.log"; \
	else echo "  bubblewrap is missing: kernels will not be isolated. Install it: sudo apt-get install bubblewrap"; fi

test: $(STAMP) ## all tests
	@$(BIN)/python -m pytest $(ARGS)

FUZZ_SECONDS ?= 60
fuzz: $(STAMP) ## hostile input for FUZZ_SECONDS a target: frames, messages, journal files, notebooks, paths, requests
	@$(BIN)/python -m pytest tests/fuzz --fuzz-seconds $(FUZZ_SECONDS) $(ARGS)

clients: $(CLIENTS)/.setup-done ## Jupyter's clients for the tests of them; needs node, npm and chromium

$(CLIENTS)/.setup-done: $(CLIENTS_LISTS)
	@echo "Setting up the clients of the tests in $(CLIENTS) (a few minutes)"
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@echo "  those in Python ..."
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(firstword $(CLIENTS_LISTS))
	@echo "  those in JavaScript ..."
	@cp $(lastword $(CLIENTS_LISTS)) $(CLIENTS)/
	@npm install --prefix $(CLIENTS) --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@

check: $(STAMP) ## style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.house

bench: $(STAMP) ## the figures of docs/benchmarks.md
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[benchmark]"
	@$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove the set-up
	rm -rf $(VENV)
