# The commands of the project; `make` alone lists them.
#
# PYTHON=...                    the interpreter that makes .venv (default: the first suitable one on the machine)
# ARGS='...'                    more arguments for the command behind run, test, bench
# POLYROCE_PURE=1               interpreted: build no extension modules and remove those that are there
# POLYROCE_REQUIRE_COMPILED=1   a failed build is an error instead of a warning

VENV := .venv
PY := $(VENV)/bin/python
POLYROCE := $(VENV)/bin/polyroce
PYTHON = $(shell .ci/find-python)
TEST_ARGS = -q -n 2 --dist loadgroup
ARGS =

on = $(filter-out 0,$($(1)))
MODE := $(if $(call on,POLYROCE_PURE),pure,$(if $(call on,POLYROCE_REQUIRE_COMPILED),required,auto))

# What an extension module is made from, as setup.py names it.
names = $(shell sed -n '/^$(1)\b.*\[$$/,/^\]/ s/^ *"\(.*\)",$$/\1/p' setup.py | tr . /)
HOT_SOURCES := $(addsuffix .py,$(call names,HOT)) $(addsuffix .pyx,$(call names,LEAVES))
HOT_SOURCES += $(wildcard cc/*.pxd transport/*.pxd transport/*/*.pxd testbed/*.pxd testbed/*/*.pxd)

# Two stamps: dependencies and the editable installation, and the extension modules in the mode asked for.
INSTALLED := $(VENV)/.installed
BUILT := $(VENV)/.built-$(MODE)

.DEFAULT_GOAL := help
.PHONY: help setup run test lint bench clean distclean

help:
	@echo "make setup      .venv with everything in it, hot modules compiled if there is a C compiler"
	@echo "make run        the main job: polyroce run moe-alltoall"
	@echo "make test       all tests"
	@echo "make lint       ruff check, ruff format --check, mypy --strict"
	@echo "make bench      bandwidth over local UDP sockets, for every message size; packet-hops of the simulator"
	@echo "make clean      remove what was built; make distclean: .venv too"

setup: $(BUILT)

run: setup
	$(POLYROCE) run moe-alltoall $(ARGS)

test: setup
	$(PY) -m pytest $(TEST_ARGS) $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: setup
	$(POLYROCE) perf --local --op write --size all $(ARGS)
	$(PY) -m tests.benchmarks.simulator

$(PY):
	@python="$(PYTHON)"; [ -n "$$python" ] || exit 1; echo "$$python -m venv $(VENV)"; \
		"$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# POLYROCE_PURE here: pip installs dependencies and the link to this tree, the next rule compiles.
$(INSTALLED): pyproject.toml | $(PY)
	rm -f $(VENV)/.built-*
	POLYROCE_PURE=1 POLYROCE_REQUIRE_COMPILED= \
		$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[build,test,lint]'
	touch $@

$(BUILT): $(INSTALLED) setup.py $(HOT_SOURCES)
	rm -f $(VENV)/.built-*
	$(PY) setup.py --quiet build_ext --inplace
	touch $@

clean:
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(INSTALLED) $(VENV)/.built-*
	find cc transport testbed \( -name '*.so' -o -name '*.pyd' \) -delete
	find cc transport testbed tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
