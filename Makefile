# Two commands do all: `make run` serves, `make test` tests. Everything is installed inside .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
TOOLS := $(VENV)/.tools-done
CLIENTS := $(VENV)/clients
UV := $(BIN)/python kernels/cellgate_kernels/specs/uv_command.py
LOCK := .ci/requirements.lock
KERNEL_LISTS := kernels/cellgate_kernels/inside
GATEWAY_LOCK := deploy/requirements.lock
CLIENTS_LISTS := tests/clients/programs/requirements.txt tests/clients/programs/hub.txt \
  tests/clients/programs/generators/package.json tests/clients/programs/package.json

.PHONY: run setup image test test-fast test-slow test-all test-nightly fuzz clients newest-clients check bench lock vendor reference clean

# Not the variable of that name which the environments of many machines have for other programs.
ifneq ($(origin PORT),command line)
PORT :=
endif
run: $(STAMP) ## set up if need be, then serve on http://127.0.0.1:8888. PORT=9100: on another port; ARGS="...": options of cellgate serve
	@exec $(BIN)/cellgate serve $(if $(PORT),--port $(PORT)) $(ARGS)

setup: $(STAMP) ## the set-up alone, without what only tests and checks need; the command is then .venv/bin/cellgate. ENVIRONMENT=minimal: fewer packages for cells; LOCKED=1: a wheel of it, versions and hashes of .ci/requirements.lock

# Three images, of which the last has all; those below it are the engine's cache for the next time.
PACKAGES = $(or $(ENVIRONMENT),standard)
BASE := $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE))
image: ## make the image cellgate/cellgate, all in one (docs/how-to/run-one-container.md); needs Docker. ENVIRONMENT=minimal: cellgate/cellgate:minimal; BASE_IMAGE=...: on another base
	docker build --tag cellgate/gateway $(BASE) .
	docker build --tag cellgate/kernel:$(PACKAGES) --file Dockerfile.kernel $(BASE) --build-arg ENVIRONMENT=$(PACKAGES) .
	docker build --tag cellgate/cellgate:$(PACKAGES:standard=latest) --build-arg KERNEL_IMAGE=cellgate/kernel:$(PACKAGES) deploy

$(BIN)/uv: $(KERNEL_LISTS)/uv.txt
	@echo "Setting up in $(VENV) (once; about a minute)"
	@echo "  the environment, and uv ..."
	@$(BIN)/python -c 'import pip, tomllib' 2>/dev/null || $(MAKE) --no-print-directory environment
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# One that was left without pip, as venv does where Debian's python3-venv is missing, or of an older Python, is made anew.
.PHONY: environment
environment:
	@$(PYTHON) -c 'import tomllib' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed, and $(PYTHON) is none. Name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)

# The packages of cells: standard or minimal. Not the variable of that name which many shells have for other things.
ifneq ($(origin ENVIRONMENT),command line)
ENVIRONMENT :=
endif
# A set-up keeps what was chosen before; another choice needs one, whatever the stamp says.
CHOICE := $(VENV)/share/cellgate/environment.json
ANOTHER = $(if $(ENVIRONMENT),$(shell grep -qs '"$(ENVIRONMENT)"' $(CHOICE) || echo FORCE))

# Not the folders that Python writes beside its modules: it does so whenever they are imported.
KERNEL_FILES := $(filter-out %/__pycache__,$(wildcard $(KERNEL_LISTS)/* kernels/cellgate_kernels/specs/container/*/*))

# One line per step is enough: uv would list a hundred packages on a terminal. What fails is shown.
$(STAMP): pyproject.toml $(if $(LOCKED),$(LOCK)) $(ANOTHER) $(KERNEL_FILES) | $(BIN)/uv
	@echo "  the gateway's own packages ..."
ifdef LOCKED
	@$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes --no-build -r $(LOCK)
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation .
else
	@$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --editable ".[server,html,mcp,otel]"
endif
	@command -v bwrap >/dev/null || $(MAKE) --no-print-directory bubblewrap
	@$(BIN)/cellgate setup $(if $(ENVIRONMENT),--environment $(ENVIRONMENT))
	@touch $@
ifdef LOCKED
	@touch $(TOOLS)
endif

# What tests and checks need besides; the locked set-up has it all.
$(TOOLS): $(STAMP)
	@echo "  what tests and checks need ..."
	@$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --editable ".[server,test,check]"
	@touch $@

.PHONY: FORCE
FORCE:

.PHONY: bubblewrap
bubblewrap: # isolates kernels; the one thing installed outside the checkout, and only where root may
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "  bubblewrap, with apt-get ..."; \
	  (apt-get install -y --no-install-recommends bubblewrap || \
	   (apt-get update && apt-get install -y --no-install-recommends bubblewrap)) >$(VENV)/bubblewrap.log 2>&1 \
	   || echo "  bubblewrap could not be installed; see $(VENV)/bubblewrap.log"; \
	else echo "  bubblewrap is missing: kernels will not be isolated. Install it: sudo apt-get install bubblewrap"; fi

# Most tests wait for a kernel, a process or a clock: more of them run at once than there are processors.
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
AT_ONCE ?= $(shell expr 2 '*' $(PROCESSORS) + 2)
# Those without kernels, and those that take a moment, compute for most of their time.
FEW := $(shell expr 2 '*' $(PROCESSORS))
# Runs pytest for each part, and failed tests again on a quiet machine.
RUN = $(BIN)/python -m tests.run --reports $(VENV)/test-reports/$@
FAST := tests/pure tests/core
LOCAL := tests/gateway tests/fuzz
OTHER := tests/containers tests/clients
# Without the tests that take long.
QUICK ?= --quick
# Of random examples a tenth; the nightly run has all.
FEW_EXAMPLES = CELLGATE_EXAMPLES=$${CELLGATE_EXAMPLES:-0.1}
# Tests start hundreds of processes; each would compile the gateway anew.
test test-fast test-slow test-all test-nightly fuzz newest-clients: export PYTHONDONTWRITEBYTECODE :=

test: $(TOOLS) ## all tests that take a moment and need neither a container engine nor Jupyter's clients
	@echo "All tests but those that take long or need containers or Jupyter's clients: two to four minutes on two processors, less with more."
	@command -v bwrap >/dev/null || echo "bubblewrap is missing: what needs it is skipped. Install it: sudo apt-get install bubblewrap"
	@$(FEW_EXAMPLES) $(RUN) "-n $(FEW) $(QUICK) $(FAST) $(LOCAL)" -- $(ARGS); result=$$?; \
	echo "Left out: what tests/long.txt lists, $(OTHER). All tests, with a container engine and after make clients: make test-all"; \
	exit $$result

test-fast: $(TOOLS) ## tests of values and of parts, without a kernel; with QUICK= those that take long, too
	@$(FEW_EXAMPLES) $(RUN) "-n $(FEW) $(QUICK) $(FAST)" -- $(ARGS)

test-slow: $(TOOLS) ## all tests but those of test-fast and of test-nightly
	@$(FEW_EXAMPLES) $(RUN) "-n $(AT_ONCE) $(LOCAL) $(OTHER)" -- $(ARGS)

test-all: $(TOOLS) ## all tests but those of test-nightly
	@$(FEW_EXAMPLES) $(RUN) "-n $(PROCESSORS) $(FAST)" "-n $(AT_ONCE) $(LOCAL) $(OTHER)" -- $(ARGS)

COVERAGE = --cov=cellgate --cov=cellgate_kernels --cov-report=html:$(VENV)/coverage
test-nightly: $(TOOLS) ## all tests there are with all random examples, and the gate of coverage
	@$(RUN) "-n $(PROCESSORS) $(FAST) $(COVERAGE)" "-n $(AT_ONCE) $(LOCAL) $(OTHER)" "-n $(AT_ONCE) --hop $(LOCAL)" -- --nightly --crash-rounds 10 --fuzz-seconds 2 $(ARGS)

FUZZ_SECONDS ?= 60
fuzz: $(TOOLS) ## hostile input for FUZZ_SECONDS per target: frames, messages, journal files, notebooks, paths, requests
	@$(RUN) "-n $(PROCESSORS) tests/fuzz --fuzz-seconds $(FUZZ_SECONDS)" -- $(ARGS)

clients: $(CLIENTS)/.setup-done ## Jupyter's clients for the tests of them; needs node, npm and chromium

$(CLIENTS)/.setup-done: $(CLIENTS_LISTS) | $(BIN)/uv
	@echo "Setting up the clients of the tests in $(CLIENTS) (a few minutes)"
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@echo "  those in Python ..."
	@$(UV) pip install --quiet --python $(CLIENTS)/bin/python -r $(firstword $(CLIENTS_LISTS))
	@test -x $(CLIENTS)/hub/bin/python || $(PYTHON) -m venv $(CLIENTS)/hub
	@$(UV) pip install --quiet --upgrade-package jupyterhub --python $(CLIENTS)/hub/bin/python -r $(word 2,$(CLIENTS_LISTS))
	@test -x $(CLIENTS)/hub-5.2/bin/python || $(PYTHON) -m venv $(CLIENTS)/hub-5.2
	@$(UV) pip install --quiet --python $(CLIENTS)/hub-5.2/bin/python -r $(word 2,$(CLIENTS_LISTS)) "jupyterhub==5.2.*"
	@echo "  those in JavaScript ..."
	@cp $(lastword $(CLIENTS_LISTS)) $(CLIENTS)/
	@npm install --prefix $(CLIENTS) --no-audit --no-fund --no-package-lock --loglevel=error
	@mkdir -p $(CLIENTS)/generators
	@cp $(word 3,$(CLIENTS_LISTS)) $(CLIENTS)/generators/
	@npm install --prefix $(CLIENTS)/generators --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@

# Not part of any check of a change: what others release is no fault of it.
newest-clients: $(TOOLS) ## try the newest releases of the clients in Python, each in an environment of its own, and say what broke; NAMES="e2b ...": these
	@$(BIN)/python -m tests.newest $(VENV)/newest $(NAMES)

check: $(TOOLS) ## style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.house

bench: $(STAMP) ## the figures of docs/reference/benchmarks.md
	@$(UV) pip install --quiet --python $(BIN)/python --editable ".[benchmark]"
	@$(BIN)/python -m benchmarks $(ARGS)

# One lock for all platforms and versions of Python; no address of an index gets into it.
COMPILE = $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-emit-find-links --custom-compile-command "make lock"
lock: | $(BIN)/uv ## renew the locks: the kernel environments', CI's, the gateway image's, and uv's own
	@$(COMPILE) -o $(KERNEL_LISTS)/standard.lock $(KERNEL_LISTS)/standard.txt
	@$(COMPILE) --constraints $(KERNEL_LISTS)/standard.lock -o $(KERNEL_LISTS)/minimal.lock $(KERNEL_LISTS)/minimal.txt
	@$(COMPILE) --extra server --extra test --extra check -o $(LOCK) pyproject.toml .ci/requirements.in
	@$(COMPILE) --extra server --extra postgresql --constraints $(LOCK) -o $(GATEWAY_LOCK) pyproject.toml deploy/requirements.in
	@echo uv | $(COMPILE) --no-annotate --constraints $(LOCK) -o $(KERNEL_LISTS)/uv.txt -

vendor: $(TOOLS) ## renew the console's third-party files, as tests/support/vendoring/package.json says; needs npm
	@$(BIN)/python -m tests.support.vendor

reference: $(TOOLS) ## write the pages of docs/reference that are made from the code
	@$(BIN)/python -m tests.support.reference_pages

clean: ## remove the set-up
	rm -rf $(VENV)
