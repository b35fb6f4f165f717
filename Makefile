# Everything here works from an empty clone on a machine with Python 3.11 or newer and make.
#
#   make lab     set up, then open JupyterLab on the first notebook
#   make test    set up, then run every test (BROWSER=0 leaves the browser tests out)
#   make run     one lesson without a notebook; prints its summary (LESSON=, RANKS=, STEPS=)
#   make store   run the notebooks and store their outputs
#   make lint    ruff and mypy
#   make soak    the tests that run for minutes
#   make bench   every claim about speed and memory, measured
#   make clean   remove what set-up made
#
# PYTHON=python3.12 picks the Python. TORCH=cpu (or cu130, auto …) picks torch's build, with uv.

PYTHON ?= python3
TORCH ?=
BROWSER ?= 1
LESSON ?= data_parallel
RANKS ?= 4
STEPS ?= 20
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install -c constraints.txt
READY_LAB := $(VENV)/ready-lab
READY_ALL := $(VENV)/ready-all

MARKS := $(if $(filter 0,$(BROWSER)),-m "not soak and not gpu and not browser")

# An environment that was moved or copied still points at its old folder: make it anew.
ifneq ($(wildcard $(VENV)),)
ifneq ($(shell test -x $(RUN) && cat $(VENV)/folder),$(shell pwd -P))
MOVED := moved
endif
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help lab test run store lint soak bench clean moved

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

lab: $(READY_LAB)
	$(RUN) -m labkit lab $(ARGS)

test: $(READY_ALL)
	$(RUN) -m pytest $(MARKS) $(ARGS)
	@$(if $(MARKS),echo "Browser tests were left out (BROWSER=0)." ,:)

run: $(READY_LAB)
	$(RUN) -m labkit run $(LESSON) --ranks $(RANKS) --steps $(STEPS) $(ARGS)

store: $(READY_ALL)
	$(RUN) tests/notebooks/store.py $(ARGS)

lint: $(READY_ALL)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

soak: $(READY_ALL)
	$(RUN) -m pytest -m soak $(ARGS)

bench: $(READY_ALL)
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(RUN) "$$script" $(ARGS); done

clean:
	rm -rf $(VENV)

$(VENV)/folder: $(MOVED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "labkit needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	    "Name another: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "Setting up $(VENV): a few minutes the first time."
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@pwd -P > $@

$(READY_LAB): $(VENV)/folder pyproject.toml constraints.txt
ifneq ($(TORCH),)
	$(PIP) uv
	VIRTUAL_ENV=$(VENV) $(VENV)/bin/uv pip install --torch-backend=$(TORCH) -c constraints.txt torch
endif
	$(PIP) -e .
	@touch $@

$(READY_ALL): $(READY_LAB)
	$(PIP) -e '.[test,dev]'
	@touch $@
