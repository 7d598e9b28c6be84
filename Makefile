# Two commands set everything up: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test verify verify-simulated lint docs screenshots bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[torch,test,lint,docs]"
	$(BIN)/python -c "from simstrag.engine.kernel import ready; ready()"
	touch $@

demo: setup
	$(BIN)/simstrag compare examples/demo.yaml --sensitivity --out reports/demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadgroup --ignore=tests/verification

# Real ranks and real load want the cores for themselves.
verify: verify-simulated
	$(BIN)/python -m pytest -m real tests/verification

verify-simulated: setup
	$(BIN)/python -m pytest -n 2 -m "not real" tests/verification

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup
	$(BIN)/sphinx-build -q -W --keep-going docs build/site
	@echo "site: build/site/index.html"

screenshots: setup
	$(BIN)/python docs/screenshots.py reports/demo

bench: setup
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

clean:
	rm -rf .venv build *.egg-info
