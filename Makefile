# Every target sets up .venv by itself; `make` alone lists them.

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
UNFINISHED := $(VENV)/.unfinished
# The first of these that runs and is new enough; `make PYTHON=…` chooses another.
PYTHON ?= python3 python3.13 python3.12 python3.11
TESTS ?= tests
JOBS ?= auto

.PHONY: help setup demo test test-slow test-bits test-stress test-federation check format bench docs docs-pages docs-images clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(READY) ## create .venv with the tested versions (instant when nothing changed)
	@echo '$(VENV) is ready'

demo: $(READY) ## FedAvg against SCAFFOLD on an even and a skewed split
	$(PY) examples/demo.py

test: $(READY) ## the fast tests; TESTS=tests JOBS=auto
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(TESTS)

test-slow: $(READY) ## the slow tests
	$(PY) -m pytest -m slow $(TESTS)

test-bits: $(READY) ## random configurations must agree in every bit; COUNT=500 SECONDS=1200 SEED=0
	$(PY) -m tests.stress.bits --count $(or $(COUNT),500) --seconds $(or $(SECONDS),1200) \
		--seed $(or $(SEED),0) $(if $(SETS),--sets $(SETS))

test-stress: $(READY) ## hostile lines, folders, signals; LINES=1500 FORGED=1000 DAMAGED=500 KILLS=300 SEED=0
	$(PY) -m tests.stress.hostile --lines $(or $(LINES),1500) --forged $(or $(FORGED),1000) \
		--damaged $(or $(DAMAGED),500) --kills $(or $(KILLS),300) --seed $(or $(SEED),0)

test-federation: $(READY) ## install Flower, Ray and datasets into .venv and run their tests, slow ones too
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[datasets,flower,ray]'
	$(PY) -m pytest tests/federation tests/backends/test_ray.py tests/data/test_huggingface.py

check: $(READY) ## formatting, lint and types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyright

format: $(READY) ## format and sort imports in place
	$(PY) -m ruff check --select I --fix .
	$(PY) -m ruff format .

bench: $(READY) ## time per round against a bare PyTorch loop
	$(PY) benchmarks/overhead.py

docs-pages: $(READY) ## write docs/algorithms, the API pages and the picture of the layers
	$(PY) docs/make_algorithms.py
	$(PY) docs/make_visible.py
	$(PY) docs/make_tree.py
	$(PY) docs/make_api.py

docs: $(READY) ## build the documentation's site in build/site
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	PYTHONPATH=docs $(VENV)/bin/zensical build --strict -f mkdocs.yml

docs-images: $(READY) ## draw the pictures of the documentation from real runs
	$(PY) docs/make_images.py

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# .unfinished stands while pip works. Found at the start, the last set-up was killed half way and
# nothing in .venv can be trusted, so it is made anew. When pip itself reports a failure it has
# put things back, and .venv is kept. In a terminal pip shows what it is fetching.
$(READY): pyproject.toml constraints.txt
	@set -eu; trap 'exit 130' INT TERM; \
	if [ -e $(UNFINISHED) ] || ! $(PY) -m pip --version >/dev/null 2>&1; then \
		for python in $(PYTHON); do \
			if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				found=$$python; break; \
			fi; \
		done; \
		if [ -z "$${found:-}" ]; then \
			echo 'fedrift needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python' >&2; \
			exit 1; \
		fi; \
		echo "Creating $(VENV) with $$($$found --version)"; \
		$$found -m venv --clear $(VENV); \
	fi; \
	echo 'Installing the versions of constraints.txt into $(VENV); the first time takes minutes'; \
	touch $(UNFINISHED); \
	if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; \
	$(PY) -m pip install $$quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' \
		|| { status=$$?; rm -f $(UNFINISHED); exit $$status; }; \
	rm -f $(UNFINISHED); \
	touch $(READY)
