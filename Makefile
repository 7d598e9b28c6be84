# `make demo` installs what a comparison needs; `make test` installs the rest beside it.
PYTHON ?= python3
BIN := .venv/bin
# --no-compile: Python compiles a module when it is first imported.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: setup setup-all demo test verify verify-simulated wheel-test wheels wheels-try \
    lint docs screenshots architecture bench validate-here gpu-kit clean

setup: .venv/demo

setup-all: .venv/ready

.venv/demo: pyproject.toml constraints.txt $(wildcard simstrag/engine/native/*.[ch])
	@echo "installing simstrag into .venv and compiling its engine (about a minute)"
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

# Tests treat warnings as errors, and some libraries cause one while they are compiled.
.venv/ready: .venv/demo
	$(INSTALL) -e ".[torch,test,lint,docs]"
	-$(BIN)/python -m compileall -qq -j 0 .venv/lib
	touch $@

demo: .venv/demo
	$(BIN)/simstrag demo --out reports/demo

test: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not thorough" --ignore=tests/verification

# Real ranks and real load want the cores for themselves.
verify: verify-simulated
	$(BIN)/python -m pytest -m "real or thorough" tests

verify-simulated: .venv/ready
	HYPOTHESIS_PROFILE=verify $(BIN)/python -m pytest -n 2 --dist loadgroup \
	    -m "not real and (verification or hypothesis)" tests

wheel-test: .venv/ready
	tools/try_wheel.sh

.venv/release: .venv/demo
	$(INSTALL) -e ".[release]"
	touch $@

# dist/: the sdist, and a wheel for each platform, compiled here by zig and inspected.
wheels: .venv/release
	rm -rf dist
	$(BIN)/python -m tools.build_wheels dist

# The Linux wheels of dist/, also those for aarch64, under qemu-user.
wheels-try: .venv/release
	tools/try_wheels.sh

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/sphinx-build -q -W --keep-going docs build/site
	@echo "site: build/site/index.html"

screenshots: .venv/ready
	$(BIN)/python docs/screenshots.py

architecture: .venv/demo
	$(BIN)/python -m tools.architecture

bench: .venv/ready
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

# Predictions against real runs on this machine, for MINUTES (25); adds a row to docs/measured/machines.txt.
# QUICK=1 is a short try, which writes nothing.
validate-here: .venv/ready
	$(BIN)/python -m benchmarks.machines $(if $(QUICK),--quick) $(if $(MINUTES),--minutes $(MINUTES))

gpu-kit: .venv/demo
	tools/gpu_kit/lay.sh

clean:
	rm -rf .venv build *.egg-info
