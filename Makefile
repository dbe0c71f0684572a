# Three commands: `make demo` shows the main job on a simulated CANN, `make test` runs the tests, `make check` reads the code.
# Each sets up what it needs in .venv first, from this project's own files, with the versions that are tested (constraints.txt).
# `make npu` runs the tests with the real torch_npu on a simulated libascendcl, in .venv-npu, and `make demo-npu` a demo of it; both need g++ and nm.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NPU := .venv-npu
# The CPU build is enough for everything here; TORCH= installs another one, for example TORCH="torch==2.13.0 --index-url ...".
TORCH ?= torch
# One more than the two processors that the tests are timed on: many of them wait, for what they started or for a limit to pass.
WORKERS ?= 3
NEW_ENOUGH := 'import sys; sys.exit(sys.version_info < (3, 11) and "npgxd needs Python 3.11 or later, for example: make demo PYTHON=python3.12")'

# An environment at $(1); one that is not whole is mended: where Python lacks `ensurepip`, `venv` fails and leaves one without pip.
define environment
@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { $(PYTHON) -c $(NEW_ENOUGH) && $(PYTHON) -m venv $(1); }
endef

.PHONY: demo demo-npu test npu check coverage clean

demo: $(VENV)/.ready
	$(BIN)/python -m tools.demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

demo-npu: $(NPU)/.ready
	$(NPU)/bin/python -m tools.demo_npu

npu: $(NPU)/.ready
	$(NPU)/bin/python -m tools.cann_sim native
	$(NPU)/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/npu

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

coverage: $(VENV)/.ready
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine
	$(BIN)/coverage report

$(VENV)/.ready: pyproject.toml constraints.txt
	$(call environment,$(VENV))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH) numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group test --group check -e .
	touch $@

$(NPU)/.ready: pyproject.toml constraints.txt
	$(call environment,$(NPU))
	$(NPU)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "pip>=25.1"
	$(NPU)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH) numpy
	$(NPU)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group test --group npu -e .
	touch $@

clean:
	rm -rf $(VENV) $(NPU) build demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
