# Each command sets up what it needs; the first one on a fresh clone installs into .venv.

PYTHON ?= python3
PY := .venv/bin/python

.PHONY: demo test check docs golden link peers memory startup exits faults saving guards data crosscheck-l2 clean

demo: .venv/.ready
	$(PY) -m tinyexp.data.digits data/digits
	$(PY) -m tinyexp.examples.digits_demo

test: .venv/.ready
	$(PY) -m pytest

check: .venv/.ready
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyright

docs: .venv/.ready
	$(PY) -m mkdocs build --strict

golden: .venv/.ready
	$(PY) -m pytest tests/golden --golden-all

crosscheck-l2: .venv/.ready
	$(PY) benchmarks/crosscheck/l2.py $(KEYS)

link: .venv/.ready
	$(PY) -m benchmarks.link.run

peers: .venv/.ready
	$(PY) -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[bench]'
	$(PY) -m benchmarks.peers.run --rounds 15

memory: .venv/.ready
	$(PY) -m benchmarks.memory.run

startup: .venv/.ready
	$(PY) benchmarks/startup/run.py

data: .venv/.ready
	$(PY) -m benchmarks.data.run --rounds 7

exits: .venv/.ready
	$(PY) -m benchmarks.exits.run

faults: .venv/.ready
	$(PY) -m benchmarks.faults.run

saving: .venv/.ready
	$(PY) -m benchmarks.saving.run

guards: .venv/.ready
	$(PY) -m benchmarks.guards.run

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/.ready

clean:
	rm -rf output data site .pytest_cache .ruff_cache
