# make demo   one command, one picture          make test   what CI runs
# make lint   style and types                   make docs   the site, in site/
# make bench  speed, as ratios
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow lint docs bench clean

demo: $(STAMP)
	$(VENV)/bin/spodgt compare

test: $(STAMP)
	$(VENV)/bin/pytest -n 2

test-slow: $(STAMP)
	$(VENV)/bin/pytest -m slow

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python tools/methods.py --check

docs: $(STAMP)
	$(VENV)/bin/python tools/methods.py
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict
	$(VENV)/bin/python tools/links.py site

bench: $(STAMP)
	$(VENV)/bin/python benchmarks/speed.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	rm -rf $(VENV)/first-run # a short run, which compiles the loops for this machine
	$(VENV)/bin/spodgt compare --seeds 2 --rounds 100 --json --out $(VENV)/first-run > $(VENV)/first-run.json
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
