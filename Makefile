# The words people expect. Needs only python3 (3.11 or newer), make and git; `interop` and `bench` also use
# whatever of Java, Go, Node and Rust is installed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(if $(ARGS),1,2)
STAMP := $(VENV)/.installed
STAMP_SPARK := $(VENV)/.installed-spark
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help install install-spark up test test-spark lint fmt interop peer bench bench-clients bench-spark crash soak lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

install: $(STAMP) ## make .venv with the locked versions and .venv/bin/orbitmq

# The build tools are in the lock file, so the editable install needs no isolated, unpinned build.
$(STAMP): requirements.lock pyproject.toml hatch_build.py $(wildcard src/orbitmq/accel/*.[ch])
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(0 if sys.version_info >= (3, 11) else f"OrbitMQ needs Python 3.11 or newer; $(PYTHON) is {v}. Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

install-spark: $(STAMP_SPARK) ## add Spark to .venv, with a Java runtime for machines that have none

$(STAMP_SPARK): $(STAMP) requirements-spark.lock
	$(PIP) install -r requirements-spark.lock
	@touch $@

up: install ## start name server and broker in this terminal, data in ./data (ARGS="--port 10911 …")
	$(BIN)/orbitmq server --data ./data $(ARGS)

test: install-spark ## all tests but the slow ones, in two processes (ARGS="tests/wire -k frame"; JOBS=1 for one)
ifneq ($(JOBS),1)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow and not peer" --ignore tests/spark_slow $(ARGS)
else
	$(if $(ARGS),,$(BIN)/python -m pytest -m "not peer" tests/spark)
	$(BIN)/python -m pytest -m "not slow and not peer" --ignore tests/spark_slow $(if $(ARGS),$(ARGS),--ignore tests/spark)
endif

test-spark: install-spark ## Spark jobs killed, on a cluster of their own, and through Spark Connect
	$(BIN)/python -m pytest tests/spark_slow $(ARGS)

lint: install-spark ## ruff check, ruff format --check, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: install ## let ruff mend and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

interop: install ## foreign clients against a fresh server (ONLY="java go" for some suites)
	$(BIN)/python -m scripts.interop $(ONLY)
	$(if $(ONLY),,$(MAKE) peer)

peer: install-spark ## this broker, client and Spark source with the real Java broker
	$(BIN)/python -m pytest -m peer tests/peer tests/spark $(ARGS)

bench: install ## this broker and the Java broker alternately, with the official client (ARGS=--quick)
	$(BIN)/python -m bench.run $(ARGS)

bench-clients: install ## the native client against the Java client, aiokafka and nats-py (ARGS=--docs)
	$(PIP) install --no-build-isolation -e '.[bench]'
	$(BIN)/python -m bench.clients $(ARGS)

bench-spark: install-spark ## the Spark source and the store reader against Spark's Kafka connector (ARGS=--docs)
	$(PIP) install --no-build-isolation -e '.[bench]'
	$(BIN)/python -m bench.spark $(ARGS)

crash: install ## kill the broker 200 times under load, then members of a group 50 times; nothing acknowledged may be lost
	ORBITMQ_CRASH_ROUNDS=200 $(BIN)/python -m pytest -m crash tests/crash $(ARGS)
	ORBITMQ_CRASH_ROUNDS=50 $(BIN)/python -m pytest -m crash tests/chaos $(ARGS)

soak: install ## the slow tests
	$(BIN)/python -m pytest -m "slow and not peer" $(ARGS)

lock: ## renew requirements.lock from a fresh virtual environment
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip --disable-pip-version-check --quiet install '.[dev]' hatchling editables
	{ grep '^#' requirements.lock; build/lock/bin/python -m pip freeze --exclude orbitmq \
	    | sed 's/^uvloop==.*/&; sys_platform != "win32"/'; } > build/requirements.lock
	build/lock/bin/python -m pip --disable-pip-version-check --quiet install '.[spark]'
	{ grep '^#' requirements-spark.lock; build/lock/bin/python -m pip freeze --exclude orbitmq \
	    | sed 's/^uvloop==.*/&; sys_platform != "win32"/' | grep -vxFf build/requirements.lock; } > build/requirements-spark.lock
	mv build/requirements.lock requirements.lock && mv build/requirements-spark.lock requirements-spark.lock
	rm -rf build/lock

clean: ## remove what can be made again (never ./data)
	rm -rf $(VENV) build dist bench/results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
