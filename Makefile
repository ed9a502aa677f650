# Two commands: `make quickstart` sets up all and runs the main job, `make test` sets up all and passes the tests.
# The newest Python that starts and can make an environment: a name on the PATH may be a shim without an interpreter.
STARTS = import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for each in python3.13 python3.12 python3.11 python3; do $$each -c '$(STARTS)' 2>/dev/null && { echo $$each; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
# The CPU build of torch comes from pip's configured sources where they have it, else from PyTorch's own index. Where neither has it,
# the build for GPUs does, with its libraries, which take 4 GB more.
TORCH := $(shell grep '^torch==' requirements/cpu.txt)
TORCH_INDEX := https://download.pytorch.org/whl/cpu
TORCH_FOR_GPUS := $(subst +cpu,,$(TORCH))
TESTERS := $(shell awk '/^MemAvailable/ { print ($$2 >= 14000000 ? 3 : 2) }' /proc/meminfo 2>/dev/null || echo 2)
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

# The other Pythons that start here, and what is tested with each: what depends on megatron-core, torch and vLLM.
PYTHONS = $(shell for each in python3.11 python3.12 python3.13; do $$each -c '$(STARTS)' 2>/dev/null && echo $$each; done; true)
ON_PYTHONS := tests/learners tests/generators tests/weights tests/gpu

PEERS := .venv-peers
PEERS_PIP := $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check

SITE := .venv-docs

JUPYTER := .venv-jupyter

.PHONY: quickstart test test-pythons check real-tokenizers screens notebook docs setup setup-dev bench-peers clean

quickstart: setup
	$(BIN)/asyncrl launch quickstart

# Three at a time where there is memory for it: many tests wait, for processes that start and for deadlines. Each process takes a
# third, which in all but one begins with whole runs (tests/conftest.py), and the one that is done helps the others.
# Each imports the package in dozens of processes, which would compile it anew where PYTHONDONTWRITEBYTECODE is set.
test: setup-dev
	@$(BIN)/python -m compileall -q asyncrl buffers generators learners
	$(BIN)/python -m pytest --numprocesses $(TESTERS) --dist worksteal

# The learner's, the generators' and the weights' tests on each Python that starts, in an environment of its own: .venv-python3.12.
test-pythons:
	@test -n "$(PYTHONS)" || { echo "none of python3.11, python3.12 and python3.13 starts and can make an environment"; exit 1; }
	@for each in $(PYTHONS); do \
	  echo "== $$each"; \
	  $(MAKE) --no-print-directory PYTHON=$$each VENV=.venv-$$each setup-dev || exit 1; \
	  .venv-$$each/bin/python -m pytest --numprocesses $(TESTERS) --dist worksteal $(ON_PYTHONS) || exit 1; \
	done

check: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tokenizers and chat templates of real models, for tests, into the user's cache. Tests without them are skipped, and say so.
real-tokenizers: setup-dev
	@$(BIN)/python tests/real_models/real_tokenizers.py

# The pictures in docs/screens: of a short quickstart, or of the run in RUN=...
screens: setup-dev
	PYTHONPATH=tests $(BIN)/python docs/screens.py $(RUN)

# The notebook with what its cells show now, in a Jupyter kernel, whose packages stand apart: nothing else needs them.
notebook: setup $(JUPYTER)/.installed
	PYTHONPATH=$(CURDIR)/$(JUPYTER) $(BIN)/python docs/notebook.py

# The site of the docs, into site/: every page is in its navigation, every link leads somewhere. It needs nothing of asyncrl's.
docs: $(SITE)/.installed
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build >$(SITE)/build.log 2>&1 || { cat $(SITE)/build.log; exit 1; }
	@echo "The site is in site/; read it with: python3 -m http.server --directory site --bind 127.0.0.1"

# The trainers that `asyncrl bench loop --peer` measures, in an environment of their own: their pins collide with ours.
bench-peers: $(PEERS)/.installed

setup: $(INSTALLED)

setup-dev: $(INSTALLED_DEV)

$(INSTALLED): requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c '$(STARTS)' 2>/dev/null || { echo "asyncrl needs Python 3.11 to 3.13 with venv, and none of python3.13, python3.12, python3.11 and python3 is one; set PYTHON=/path/to/python3.13"; exit 1; }
	@echo "Setting up $(VENV), once, in about three minutes. It takes 4.4 GB of disk; a run of the quickstart takes 5 GiB of memory."
	@echo "  1 of 4: a virtual environment of $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) setuptools==$$(sed -n 's/^setuptools==//p' requirements/cpu.txt) 2>$(VENV)/pip.log || { cat $(VENV)/pip.log; exit 1; }
	@echo "  2 of 4: $(TORCH), the build for CPUs"
	@$(PIP) $(TORCH) 2>$(VENV)/pip.log || $(PIP) --index-url $(TORCH_INDEX) $(TORCH) 2>>$(VENV)/pip.log || { echo "         it is not to be had; the build for GPUs instead, with 4 GB of libraries"; $(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH_FOR_GPUS) 2>>$(VENV)/pip.log; } || { cat $(VENV)/pip.log; exit 1; }
	@grep -v '^torch==' requirements/cpu.txt >$(VENV)/others.txt
	@echo "  3 of 4: vLLM, Megatron, Ray, MLflow and what they need ($$(grep -c == $(VENV)/others.txt) packages; the longest step)"
	@$(PIP) --requirement $(VENV)/others.txt 2>$(VENV)/pip.log || { cat $(VENV)/pip.log; exit 1; }
	@echo "  4 of 4: asyncrl itself"
	@$(PIP) --no-build-isolation --editable . 2>$(VENV)/pip.log || { cat $(VENV)/pip.log; exit 1; }
	@touch $@

$(INSTALLED_DEV): $(INSTALLED) requirements/dev.txt
	@echo "  for the tests: $$(grep -c == requirements/dev.txt) further packages"
	@$(PIP) --requirement requirements/dev.txt 2>$(VENV)/pip.log || { cat $(VENV)/pip.log; exit 1; }
	@touch $@

$(PEERS)/.installed: requirements/peers.txt
	@echo "Setting up $(PEERS) (once, about two minutes) ..."
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS_PIP) $(TORCH) 2>$(PEERS)/pip.log || $(PEERS_PIP) --index-url $(TORCH_INDEX) $(TORCH) 2>>$(PEERS)/pip.log || { cat $(PEERS)/pip.log; exit 1; }
	@$(PEERS_PIP) --requirement requirements/peers.txt 2>$(PEERS)/pip.log || { cat $(PEERS)/pip.log; exit 1; }
	@touch $@

$(SITE)/.installed: requirements/docs.txt
	@test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements/docs.txt 2>$(SITE)/pip.log || { cat $(SITE)/pip.log; exit 1; }
	@touch $@

$(JUPYTER)/.installed: requirements/jupyter.txt $(INSTALLED)
	@$(PIP) --upgrade --target $(JUPYTER) --requirement requirements/jupyter.txt 2>$(VENV)/pip.log || { cat $(VENV)/pip.log; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(SITE) $(JUPYTER) .venv-python3.*
