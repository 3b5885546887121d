# make demo   one command, one picture          make test   what CI runs
# make lint   style and types                   make docs   the site, in site/
# make bench  speed, as ratios                  make package  sdist and wheel, tried in a clean venv
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
# Exact versions for Python 3.11; on another one: make CONSTRAINTS= test
CONSTRAINTS ?= constraints.txt
# make docs RUN=0: build the site without running the code blocks of its pages
RUN ?= 1
# make simulate MINUTES=60 FIRST=1000: seeds from 1000 on, for an hour
MINUTES ?= 10
FIRST ?= 0
SMOKE := tests/test_public.py tests/test_rng.py tests/network tests/kernels tests/participation tests/record tests/training \
	tests/algorithms/test_golden.py tests/problems/test_learning.py tests/peer/test_peer_protocol.py tests/peer/test_peer_store.py

.PHONY: demo test test-slow simulate coverage lint docs package lowest bench clean

demo: $(STAMP)
	$(VENV)/bin/spodgt compare

test: $(STAMP)
	$(VENV)/bin/pytest -n 2

test-slow: $(STAMP)
	$(VENV)/bin/pytest -m slow

coverage: $(STAMP)
	$(VENV)/bin/pytest -n 2 --cov --cov-report=term --cov-fail-under=80

package: $(STAMP)
	rm -rf dist
	$(VENV)/bin/python -m build --no-isolation --outdir dist . > /dev/null
	$(VENV)/bin/python tools/package.py dist

lowest: # the lowest versions that pyproject.toml allows, for this Python; downloads some 3 GB
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet uv
	build/lowest/bin/uv pip install --quiet --python build/lowest/bin/python --resolution lowest-direct --editable ".[peer]"
	build/lowest/bin/uv pip install --quiet --python build/lowest/bin/python pytest hypothesis
	build/lowest/bin/python -m pytest -o filterwarnings=default $(SMOKE)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python tools/methods.py --check

docs: $(STAMP)
	$(VENV)/bin/python tools/methods.py
	RUN=$(RUN) NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	$(VENV)/bin/python tools/links.py site

simulate: $(STAMP) # peers under random faults, for as long as MINUTES says
	$(VENV)/bin/python -m tests.peer.simulation --minutes $(MINUTES) --first $(FIRST) --workers 2

bench: $(STAMP)
	$(VENV)/bin/python benchmarks/speed.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet $(addprefix --constraint ,$(CONSTRAINTS)) --editable ".[dev]"
	rm -rf $(VENV)/first-run # a short run, which compiles the loops
	$(VENV)/bin/spodgt compare --seeds 2 --rounds 100 --json --out $(VENV)/first-run > $(VENV)/first-run.json
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build site
