# Every recipe sets up what it needs: .venv is made on the first call and kept while the locks stay
# as they are (see tools/install.py). CI calls the same recipes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help answers demo test compiled test-compiled test-clients test-ray chaos chaos-forks chaos-cluster chaos-processes mutate lint types bench bench-pie bench-autellix bench-ayo bench-microserving model-eval install install-dev lock docs clean

# The first interpreter that is new enough; override with make PYTHON=/path/to/python3 ...
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
PYTHON ?= $(shell for name in $(CANDIDATES); do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "$$name"; exit; fi; done; echo python3)
BIN := .venv/bin

# Tests start hundreds of Quire's processes: without byte code each compiles its modules anew.
unexport PYTHONDONTWRITEBYTECODE

# One more than two cores: a test that waits for a process leaves its core to the others.
WORKERS ?= 3
PYTEST_ARGS ?=
COMPILED := QUIRE_COMPILED=1 QUIRE_COMPILED_DIR=$(CURDIR)/build/compiled
COMPILED_TESTS := tests/control tests/testing \
	tests/node/test_node_node.py tests/node/programs/test_node_programs.py \
	tests/node/sessions/test_node_sessions.py \
	$(addprefix tests/node/control/test_node_,control_thread.py recorder.py) \
	$(addprefix tests/simulation/test_simulation_,forms.py light_engine.py simulation.py trial.py)
BENCH_ARGS ?=
CHAOS_S ?= 3600
CHAOS_SEED ?= 12
MUTATE_ARGS ?=

help: ## list the recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: install ## start a node with the shipped model; a chat client and an agent program use it
	@$(BIN)/quire demo

test: install-dev ## everything CI runs: style, import layers, types, all tests
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint types compiled SKIP_INSTALL=1
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-compiled SKIP_INSTALL=1

compiled: install-dev
	$(COMPILED) $(BIN)/quire compile

test-compiled: compiled ## control's tests and some of the node's and the simulator's on what 'quire compile' builds
	OMP_NUM_THREADS=1 $(COMPILED) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
		-p no:schemathesis $(COMPILED_TESTS)

test-clients: install-dev .venv-clients/installed.stamp ## agent frameworks and MCP's own server, which need other versions, in an environment of their own
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/server/test_server_agent_frameworks.py \
		tests/programs/api/test_api_mcp.py tests/node/test_node_mcp_programs.py \
		tests/node/test_node_workflow_tools.py

.venv-clients/installed.stamp: requirements-clients.lock
	"$(PYTHON)" -m venv --clear .venv-clients
	.venv-clients/bin/python -m pip install --disable-pip-version-check -q -r requirements-clients.lock
	touch $@

test-ray: install-dev .venv-ray/installed.stamp ## a cluster on a real Ray, in an environment of its own beside .venv
	OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest \
		tests/cluster/deployment/test_deployment_ray.py \
		tests/cluster/test_cluster_ray_namespaces.py \
		tests/cluster/deployment/test_deployment_kubernetes.py

# It has Ray alone; everything else is that of .venv.
.venv-ray/installed.stamp: requirements-ray.lock
	"$(PYTHON)" -m venv --clear .venv-ray
	.venv-ray/bin/python -m pip install --disable-pip-version-check -q --no-deps -r requirements-ray.lock
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> "$$(.venv-ray/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth"
	touch $@

chaos: install-dev ## faults for an hour, behind which everything is at its level (CHAOS_S=, CHAOS_SEED=)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults -s --chaos-s $(CHAOS_S) --chaos-seed $(CHAOS_SEED)

chaos-forks: install-dev ## 14 programs that fork lose thirty engines, and all finish (KILLS=30)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/node/programs/restarting/test_node_restarts.py -n 0 -s \
		-k programs_that_fork --engine-kills $(or $(KILLS),30)

chaos-cluster: install-dev ## a thousand rounds of requests through a router while its nodes fail (ROUNDS=1000)
	PYTHONPATH=tests/cluster $(BIN)/python tests/cluster/fault_rounds.py $(or $(ROUNDS),1000)

chaos-processes: install-dev ## a hundred such rounds over processes that are killed, stopped and cut off (ROUNDS=100, SEED=0)
	PYTHONPATH=tests/cluster OMP_NUM_THREADS=1 $(BIN)/python tests/cluster/process_faults.py $(or $(ROUNDS),100) $(or $(SEED),0)

mutate: install-dev ## which of 780 seeded faults the tests do not notice (MUTATE_ARGS='--minutes 30')
	$(BIN)/python -m tools.mutation $(MUTATE_ARGS)

lint: install-dev ## ruff and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: install-dev ## mypy --strict
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases benchmarks/*.py tools/{mutation,pages}/*.py \
		benchmarks/{autellix,ayo,control,engine,http,library,microserving,pie}/*.py benchmarks/peers/{catalog,checkpoint_tensors,process,install}.py
	$(BIN)/mypy benchmarks/gpu/*.py

model-eval: install ## measure the shipped model on held-out tasks
	$(BIN)/python -m training.evaluate

bench: install-dev ## the engine's benchmarks, with those peers that are installed (BENCH_ARGS=--quick)
	for name in generation ttft http_streaming startup mixed_load; do \
		$(BIN)/python benchmarks/engine/$$name.py $(BENCH_ARGS); done

bench-pie: install-dev ## every figure of Pie's evaluation (BENCH_ARGS=--quick)
	$(BIN)/python benchmarks/pie/run.py $(BENCH_ARGS)

bench-autellix: install-dev ## every figure of Autellix's evaluation (BENCH_ARGS=--quick: a short run)
	$(BIN)/python benchmarks/autellix/run.py $(BENCH_ARGS)

bench-microserving: install-dev ## every figure of LLM Microserving's evaluation that runs here (BENCH_ARGS=--quick: a short run)
	$(BIN)/python benchmarks/microserving/run.py $(BENCH_ARGS)

bench-ayo: install-dev ## every figure of Ayo's evaluation over paced engines, in virtual time (BENCH_ARGS=--quick: a short run)
	$(BIN)/python benchmarks/ayo/paced.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/ayo/overhead.py $(BENCH_ARGS)

install: ## make .venv and install the pinned packages (no-op when current)
	@$(if $(SKIP_INSTALL),:,"$(PYTHON)" tools/install.py --set runtime)

install-dev: ## the same, with what the tests and checks need
	@$(if $(SKIP_INSTALL),:,"$(PYTHON)" tools/install.py --set dev)

lock: ## pin what is installed in .venv now
	$(BIN)/python tools/lock.py

answers: install-dev ## run every command of the guide to the library, for its page
	$(BIN)/python -m tools.library_answers docs/guide/library-answers.json

docs: install-dev ## write the generated reference pages
	$(BIN)/python -m tools.pages.cli docs/reference/cli.md
	$(BIN)/python -m tools.pages.api > docs/reference/api.md
	$(BIN)/python -m tools.pages.sdk > docs/reference/sdk.md
	$(BIN)/python -m tools.pages.library docs/guide/library-answers.json > docs/guide/library.md

clean: ## remove .venv and every cache
	rm -rf .venv .venv-clients .venv-ray build dist src/*.egg-info src/quire/engine/cpu/_kernel_* .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache .schemathesis
	find src tests benchmarks training examples tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
