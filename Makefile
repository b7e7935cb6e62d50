# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check install -c constraints.txt

.PHONY: run test check test-federation test-operations test-nightly bench bench-peers docs notebooks format clean help

help:
	@echo "make run              set up what the main job needs, then train on embedded data"
	@echo "make test             set up everything, then run all tests but the next three, 6 minutes at most"
	@echo "make test-federation  failures of real server and site processes"
	@echo "make test-operations  what operators do with real processes: keys, restore, demo"
	@echo "make test-nightly     studies and long series; set FUELS_DATA to the folder of real datasets"
	@echo "make check            ruff, mypy (strict), the import rules, and spelling and links in the docs"
	@echo "make bench            measure the speed against eager PyTorch, Flower and pfl, 3 minutes"
	@echo "make bench-peers      accuracy, time and memory against AutoETS, MSTL and LightGBM; DATA=FILE.npz"
	@echo "make notebooks        execute the notebooks in docs/notebooks and store their results"
	@echo "make docs             build the documentation as a searchable site in build/site"
	@echo "make format           format the code and regenerate the reference pages"

run: $(VENV)/.ready-run
	$(BIN)/fuels run

# Each test has one of the marks below or none; tests without one take part in `make test`.
# Workers that run out of tests take some of the other's: a few tests take most of the time.
test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -m "not federation and not operations and not nightly" \
		-n 2 --dist worksteal --durations=20

test-federation: $(VENV)/.ready-test
	$(BIN)/python -m pytest -m "federation and not nightly" --durations=0

test-operations: $(VENV)/.ready-test
	$(BIN)/python -m pytest -m "operations and not nightly" --durations=0

# Shorter versions of these run with the targets above.
test-nightly: $(VENV)/.ready-test
	$(BIN)/python -m pytest -m nightly --durations=0

bench: $(VENV)/.ready-bench
	$(BIN)/fuels bench

# The others need an older pandas than ours, so they have an environment of their own.
bench-peers: $(VENV)/.ready-run $(VENV)-peers/.ready
	@test -n "$(DATA)" || { echo "give the data: make bench-peers DATA=milan_net_441cells_hourly.npz"; exit 2; }
	$(BIN)/python benchmarks/peers.py "$(DATA)" --python $(VENV)-peers/bin/python

check: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs
	$(BIN)/python -m pytest -q tests/test_docs.py -k "links or current or navigation"

format: $(VENV)/.ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python docs/generate.py

docs: $(VENV)/.ready-test
	$(BIN)/python docs/generate.py
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "The site is in build/site/index.html"

notebooks: $(VENV)/.ready-test
	$(BIN)/python docs/execute.py

# Python 3.11 to 3.13 is needed; the check says so before pip can fail in a longer way.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"fuels needs Python 3.11 to 3.13, {sys.executable} is {v[0]}.{v[1]}; give another with: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-run: $(BIN)/python pyproject.toml constraints.txt
	@echo "Setting up (PyTorch is large, this takes a minute) ..."
	$(PIP) -e .
	$(BIN)/python -m fuels.kernels.jit
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready-run
	@echo "Setting up what the tests need ..."
	$(PIP) -e ".[dev,flower,ray]"
	@touch $@

$(VENV)/.ready-bench: $(VENV)/.ready-run
	@echo "Setting up what is compared with ours ..."
	$(PIP) -e ".[bench]"
	@touch $@

$(VENV)-peers/.ready: benchmarks/peers.txt constraints.txt
	$(PYTHON) -m venv $(VENV)-peers
	@echo "Setting up statsforecast and mlforecast ..."
	$(VENV)-peers/bin/python -m pip --quiet --disable-pip-version-check install \
		-c constraints.txt -r benchmarks/peers.txt
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
