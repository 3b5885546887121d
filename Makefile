# make demo   one command, one picture          make test   what CI runs
# make lint   style and types                   make docs   the site, in site/
# make bench  speed, as ratios                  make package  sdist and wheel, tried in a clean venv
# make lock   new versions for all of these     make lowest, make newest  the ends of the supported versions
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
# The versions of uv.lock, for pip; make CONSTRAINTS= test takes the newest ones instead
CONSTRAINTS ?= constraints.txt
UV ?= uv
# make docs RUN=0: build the site without running the code blocks of its pages
RUN ?= 1
# make simulate MINUTES=60 FIRST=1000: seeds from 1000 on, for an hour
MINUTES ?= 10
FIRST ?= 0
SMOKE := tests/test_public.py tests/test_rng.py tests/network tests/kernels tests/participation tests/record tests/training \
	tests/algorithms/test_golden.py tests/problems/test_learning.py tests/peer/test_peer_protocol.py tests/peer/test_peer_store.py

.PHONY: demo test test-slow simulate coverage lint docs package lowest newest lock bench clean

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

# The two ends of what pyproject.toml allows, for $(PYTHON); each downloads some 3 GB, most of it CUDA.
# --no-config: without the version of torch that tool.uv pins for the lock.
lowest: RESOLUTION := lowest-direct
newest: RESOLUTION := highest
lowest newest:
	$(PYTHON) -m venv --clear build/$@
	build/$@/bin/python -m pip install --quiet uv
	build/$@/bin/uv pip install --no-config --quiet --python build/$@/bin/python --resolution $(RESOLUTION) --editable ".[peer]"
	build/$@/bin/uv pip install --no-config --quiet --python build/$@/bin/python pytest hypothesis
	build/$@/bin/python -c "import sys, torch; print('Python', sys.version.split()[0], 'torch', torch.__version__)"
	build/$@/bin/python -m pytest -o filterwarnings=default $(SMOKE)

lock: # uv.lock, and the same list for pip; make lock UPGRADE=--upgrade takes the newest versions
	$(UV) lock $(UPGRADE)
	$(UV) export --quiet --locked --all-extras --all-groups --no-hashes --no-emit-project --no-annotate --no-header \
		--output-file constraints.txt

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/zizmor --quiet --offline .github
	$(VENV)/bin/python tools/methods.py --check

docs: $(STAMP)
	$(VENV)/bin/python tools/methods.py
	RUN=$(RUN) $(VENV)/bin/python tools/write_site.py build/docs
	$(VENV)/bin/zensical build --strict --clean
	$(VENV)/bin/python tools/links.py site

simulate: $(STAMP) # peers under random faults, for as long as MINUTES says
	$(VENV)/bin/python -m tests.peer.simulation --minutes $(MINUTES) --first $(FIRST) --workers 2

bench: $(STAMP)
	$(VENV)/bin/python benchmarks/speed.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet $(addprefix --constraint ,$(CONSTRAINTS)) --editable . --group dev
	rm -rf $(VENV)/first-run # a short run, which compiles the loops
	$(VENV)/bin/spodgt compare --seeds 2 --rounds 100 --json --out $(VENV)/first-run > $(VENV)/first-run.json
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build site .cache
