# One file for people and for CI. Needs python3 (3.11 or newer) with venv; everything else comes into .venv.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
ARCHIVE := $(VENV)/spark.jsa
DOCS_LOCK := docs/site/requirements.lock
DOCS_STAMP := $(VENV)/.docs-installed
SRC := src tests benchmarks examples
VERSIONS ?= 4.0 4.1 4.2
# What depends on Spark: its internals, plans, patterns, files, outputs, a rescale, a kill, an upgrade of state, Redis streams.
VERSION_QUICK := tests/spark/internals tests/spark/test_select_sql.py tests/spark/test_slices.py tests/spark/test_staged_outputs.py tests/spark/test_kept_broadcasts.py
VERSION_TESTS ?= $(VERSION_QUICK) tests/spark/test_match_spark.py tests/spark/test_match_flow.py tests/spark/test_ends.py tests/spark/test_which_files.py \
  tests/spark/test_live_rescale.py tests/spark/test_live_load.py tests/spark/test_recompute_over_spark.py tests/spark/test_own_sessions.py \
  tests/spark/test_connect.py tests/spark/test_redis_streams_over_spark.py tests/spark/test_read_back_over_spark.py tests/faults/test_load_killed.py \
  tests/faults/test_driver_killed.py

# Where this is set, each of the hundreds of Pythons that tests start (drivers, workers, commands) would compile penstock's modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup lint format types imports docs test test-fast test-versions test-oldest soak demo bench bench-rescale bench-timers bench-lookup bench-skew bench-skewed-flows bench-recovery bench-redis bench-group bench-group-flows bench-latency bench-cer bench-flink lock clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## Make .venv and install everything into it; does nothing when that is up to date

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "penstock needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; run make PYTHON=python3.11.")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

lint: $(STAMP)  ## Style: ruff's rules and its formatting
	$(BIN)/ruff check $(SRC)
	$(BIN)/ruff format --check $(SRC)

format: $(STAMP)  ## Repair what ruff can repair
	$(BIN)/ruff check --fix $(SRC)
	$(BIN)/ruff format $(SRC)

types: $(STAMP)  ## Types: mypy --strict
	$(BIN)/mypy

imports: $(STAMP)  ## Layers: imports point down, and only penstock.spark imports pyspark
	$(BIN)/lint-imports

$(DOCS_STAMP): $(STAMP) $(DOCS_LOCK)
	$(PY) -m pip install --quiet --disable-pip-version-check -r $(DOCS_LOCK)
	@touch $@

docs: $(DOCS_STAMP)  ## Build the documents and the API reference as pages: build/site/index.html
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs $(JOBS) --conf-dir docs/site --doctree-dir build/doctrees . build/site

$(ARCHIVE): $(STAMP) tests/archive.py
	$(PY) tests/archive.py
	@touch $@  # a Java that cannot make one leaves none: an empty one is no archive, and no reason to try again

test: $(ARCHIVE)  ## Every test except the soak, in JOBS processes (2)
	$(BIN)/pytest -m 'not soak' -n $(JOBS) --dist worksteal

test-fast: $(STAMP)  ## The tests that need neither Spark nor patience
	$(BIN)/pytest -m 'not soak and not spark and not slow and not fault'

test-versions: $(STAMP)  ## What depends on Spark over each older PySpark, the newest of its patches (VERSIONS="4.0 4.1 4.2")
	@for version in $(VERSIONS); do \
	  test -f .pyspark/$$version/.installed || { \
	    rm -rf .pyspark/$$version; \
	    $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target .pyspark/$$version "pyspark==$$version.*" || exit 1; \
	    touch .pyspark/$$version/.installed; }; \
	  echo "== PySpark $$version"; \
	  PYTHONPATH=$(CURDIR)/.pyspark/$$version $(BIN)/pytest -p no:cacheprovider -m 'not soak' -n $(JOBS) --dist worksteal $(VERSION_TESTS) || exit 1; \
	done

test-oldest: $(STAMP)  ## The shortest of these tests over the oldest PySpark, for CI
	@$(MAKE) --no-print-directory test-versions VERSIONS=4.0 VERSION_TESTS="$(VERSION_QUICK)"

soak: $(STAMP)  ## The long, random tests (minutes)
	HYPOTHESIS_PROFILE=soak $(BIN)/pytest -m soak --timeout=3600

demo: $(STAMP)  ## Show it: a year of flights, rescaled and balanced on the way, and every row compared with pandas
	$(BIN)/penstock demo

bench: $(STAMP)  ## Measure, and write JSON with machine and commit
	$(PY) benchmarks/run.py

bench-rescale: $(STAMP)  ## Measure the latency of a live rescale (several minutes)
	$(PY) benchmarks/rescale.py

bench-timers: $(STAMP)  ## Measure what a time to live and timers add to stateful_map (some twenty minutes)
	$(PY) benchmarks/timers.py

bench-lookup: $(STAMP)  ## Measure what a lookup adds to a flow (some twenty minutes)
	$(PY) benchmarks/lookup.py

bench-skew: $(STAMP)  ## Measure how evenly each strategy spreads skewed keys (half an hour to an hour)
	$(PY) benchmarks/skew.py

bench-skewed-flows: $(STAMP)  ## Measure flows with a hot key, divided and isolated, beside plain Spark (about eight minutes)
	$(PY) benchmarks/skewed_flows.py

bench-recovery: $(STAMP)  ## Measure what the guard costs, and how long state takes to be computed anew (half an hour)
	$(PY) benchmarks/recovery.py

bench-redis: $(STAMP)  ## Measure how fast entries of Redis streams are read and written (a minute)
	$(PY) benchmarks/redis_streams.py

bench-group: $(STAMP)  ## Measure how long groups over Redis take to join, leave and take over (about three minutes)
	$(PY) benchmarks/groups.py

bench-group-flows: $(STAMP)  ## Measure how long partitions of a flow stand still when applications come and go (four minutes)
	$(PY) benchmarks/group_flows.py

bench-latency: $(STAMP)  ## Measure from a file that appears to its rows in SQLite, beside Spark's own stateful queries (five minutes)
	$(PY) benchmarks/latency.py

bench-cer: $(STAMP)  ## Measure pattern recognition (several minutes)
	$(PY) benchmarks/cer.py
	$(PY) benchmarks/billion.py

bench-flink: $(STAMP)  ## Compare with Flink's MATCH_RECOGNIZE; installs apache-flink (0.9 GB) into .venv-flink
	test -x .venv-flink/bin/python || { $(PYTHON) -m venv .venv-flink && .venv-flink/bin/pip install -q apache-flink; }
	$(PY) benchmarks/flink.py .venv-flink

lock:  ## Write both lock files anew (needs uv)
	uv pip compile pyproject.toml --extra dev --extra demo --universal --python-version 3.11 --upgrade \
	  --quiet --no-header --no-annotate --no-emit-index-url -o requirements.lock
	uv pip compile docs/site/requirements.in --constraint requirements.lock --universal --python-version 3.11 --upgrade \
	  --quiet --no-header --no-annotate --no-emit-index-url -o $(DOCS_LOCK)

clean:  ## Remove .venv, caches and what builds leave
	rm -rf $(VENV) .pyspark build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log benchmarks/scratch
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
