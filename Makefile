# One verb each, each safe to run twice; CI calls exactly these.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
PYTHON ?= python3.11
BIN := .venv/bin
# A lock is whole. Wheels alone: to build one, pip would fetch what nobody locked.
LOCKED := pip install --quiet --no-deps --require-hashes --only-binary :all: --requirement
# Where it is set, as in many images, each of the hundreds of processes that tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 12

.venv/.installed: pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/$(LOCKED) requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

.PHONY: install
install: .venv/.installed ## Install the control plane's environment (.venv)

.venv-containers/.installed .venv-envoy/.installed .venv-litellm/.installed .venv-litellm-proxy/.installed .venv-mlflow/.installed .venv-modelpack/.installed .venv-page/.installed .venv-plots/.installed .venv-proto/.installed .venv-signing/.installed .venv-site/.installed .venv-tools/.installed .venv-wandb/.installed: .venv-%/.installed: requirements/%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/$(LOCKED) $<
	touch $@

.venv-oldest/.installed: requirements/oldest.txt .venv/.installed
	rm -rf .venv-oldest
	$(BIN)/$(LOCKED) $< --target .venv-oldest
	touch $@

.venv-axolotl/.installed: requirements/axolotl.txt .venv/.installed
	rm -rf .venv-axolotl
	$(BIN)/$(LOCKED) $< --target .venv-axolotl
	touch $@

.venv-kubernetes/.installed: requirements/kubernetes.txt tests/support/kubernetes_install.py
	$(PYTHON) -m venv .venv-kubernetes
	.venv-kubernetes/bin/$(LOCKED) $<
	.venv-kubernetes/bin/python -m tests.support.kubernetes_install
	touch $@

.venv-engine/.installed: requirements/engine.txt requirements/torch-cpu.txt tests/support/engine_install.py
	$(PYTHON) -m tests.support.engine_install --folder .venv-engine
	touch $@

.venv-training/.installed: requirements/training.txt requirements/torch-cpu.txt
	$(PYTHON) -m venv .venv-training
	-.venv-training/bin/$(LOCKED) requirements/torch-cpu.txt # where no index has it, the next line takes the plain build
	.venv-training/bin/$(LOCKED) $<
	touch $@

.PHONY: engine
engine: .venv-engine/.installed ## Install the engine's environment: vLLM's CPU build (.venv-engine, 2 GB)

# What stands in a lock stays, unless it no longer fits or UPGRADE=yes asks for the newest.
LOCK = .venv-tools/bin/uv pip compile --quiet --no-python-downloads --universal --python-version 3.11 --fork-strategy fewest \
	--generate-hashes --no-build --no-annotate --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --output-file

.PHONY: lock
lock: .venv-tools/.installed ## Write the locks of requirements/ anew (UPGRADE=yes: with the newest versions)
	for name in axolotl build containers envoy kubernetes litellm litellm-proxy mlflow modelpack oldest page plots proto signing site tools training wandb; do $(LOCK) requirements/$$name.txt --group $$name || exit; done
	$(LOCK) requirements/dev.txt --constraints requirements/build.txt pyproject.toml --extra dev --group build
	$(LOCK) requirements/control-plane.txt --constraints requirements/dev.txt pyproject.toml --extra server --extra sidecar
	$(LOCK) requirements/engine.txt --no-deps requirements/engine.in

.PHONY: sbom
sbom: .venv-tools/.installed ## Write what the control plane and the engine consist of, as CycloneDX, to build/sbom
	mkdir -p build/sbom
	for name in control-plane engine; do .venv-tools/bin/python -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml \
		--output-reproducible --output-file build/sbom/$$name.cdx.json requirements/$$name.txt || exit; done

.PHONY: site
site: install .venv-site/.installed ## Make the documentation's site in build/site, a folder for each release; a dead link, or a page out of its tree, fails
	$(BIN)/python -m tests.support.site

.PHONY: release
release: install .venv-tools/.installed ## Make a release of the last commit in dist/VERSION: packages, chart, images where podman is, bills of materials, digests, notes (VERSION=x.y.z, IMAGES=no)
	$(BIN)/python -m tests.support.release $(or $(VERSION),$(error VERSION=x.y.z says which)) $(if $(filter no,$(IMAGES)),--without-images)

.PHONY: audit
audit: .venv-tools/.installed ## Look for known vulnerabilities in all that is locked
	.venv-tools/bin/python -m tests.support.audit

# ENGINE=sim plays on simulated engines, without the engine environment.
ENGINE ?= vllm
ENGINE_ENV := $(if $(filter vllm,$(ENGINE)),engine)

.PHONY: demo
demo: install $(ENGINE_ENV) ## Play the main job on real parts, check every step, clean up (ENGINE=sim: without vLLM)
	$(BIN)/python -m tests.e2e.demo --engine $(ENGINE)

.PHONY: up
up: install $(ENGINE_ENV) ## Start the local stack, or what is missing of it, and leave it running
	$(BIN)/loraplane dev up --engine $(ENGINE)

.PHONY: down
down: install ## End the local stack; its data stays
	$(BIN)/loraplane dev down

.PHONY: proto
proto: .venv-proto/.installed ## Generate the stubs of the admin API, of etcd's messages and of Envoy's
	.venv-proto/bin/python -m grpc_tools.protoc --proto_path=proto --python_out=. --pyi_out=. --grpc_python_out=. proto/registry/v1/registry.proto
	.venv-proto/bin/python -m grpc_tools.protoc --proto_path=proto --python_out=. --pyi_out=. proto/registry/etcd3/rpc.proto
	.venv-proto/bin/python -m grpc_tools.protoc --proto_path=proto --python_out=. --pyi_out=. proto/registry/picker/ext_proc.proto

.PHONY: check
check: install proto ## Lint, types, import contracts, stubs as generated; no test is run
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git diff --exit-code -- registry/v1 registry/etcd3/rpc_pb2.py registry/etcd3/rpc_pb2.pyi registry/picker/ext_proc_pb2.py registry/picker/ext_proc_pb2.pyi

.PHONY: docs
docs: install ## Write the pages of docs/ that are made from the code
	$(BIN)/python -m tests.support.errors_page
	$(BIN)/python -m tests.support.wrong_inputs
	$(BIN)/python -m tests.support.corpus_page
	$(BIN)/python -m tests.support.guarantees
	$(BIN)/python -m tests.support.roles_page
	$(BIN)/python -m tests.support.coming_from_page
	$(BIN)/python -m tests.support.dashboards
	$(BIN)/python -m tests.support.cli_page
	$(BIN)/python -m tests.support.man_page
	$(BIN)/loraplane schema > docs/manifest.schema.json
	$(BIN)/python -m tests.faults.battery

# Five at once on two cores: most tests wait for other processes, and one worker computes meanwhile (tests/support/order.py).
# WORKERS=0 runs one after another. Files keep the order of tests/conftest.py: by themselves, workers would leave those
# of few tests to the end, which take longest.
WORKERS ?= 5

.PHONY: test
test: install engine .venv-envoy/.installed .venv-oldest/.installed .venv-kubernetes/.installed .venv-litellm/.installed .venv-mlflow/.installed .venv-modelpack/.installed .venv-page/.installed .venv-signing/.installed .venv-site/.installed .venv-tools/.installed .venv-wandb/.installed ## Run every test that CI runs, on real parts (WORKERS=n at once)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-pure --cov-report=term:skip-covered $(if $(FAILURES),-p tests.support.flaky --failures=$(FAILURES))

.PHONY: flaky
flaky: install engine .venv-envoy/.installed .venv-oldest/.installed .venv-kubernetes/.installed .venv-litellm/.installed .venv-mlflow/.installed .venv-modelpack/.installed .venv-page/.installed .venv-signing/.installed .venv-site/.installed .venv-tools/.installed .venv-wandb/.installed ## Look for tests that fail by chance: each file 20 times beside 16 busy loops (ONLY=file,file, TIMES=n, SECONDS=n)
	$(BIN)/python -m tests.support.flaky hunt --workers $(WORKERS) $(if $(ONLY),--only $(ONLY)) $(if $(TIMES),--times $(TIMES)) $(if $(SECONDS),--seconds $(SECONDS))

# What is too long for each change.
.PHONY: corpus engines properties battery sessions pods
corpus: install engine ## Load the whole corpus of adapters, sound and with defects, into real vLLM, for three architectures; and four that ignore or reorder a matrix
	CORPUS=whole $(BIN)/pytest tests/corpus tests/architectures/test_quick.py

engines: install engine ## Play on real vLLM what takes an engine of its own: the demonstration, refusals, another base without the plugin
	NIGHTLY=yes $(BIN)/pytest tests/e2e

properties: install ## Search the pure rooms' properties for examples that break them: new ones, and three times as many as make test plays
	LORAPLANE_TEST_SEARCH=1 $(BIN)/pytest tests/properties

battery: install ## Play all of an engine's misbehaviours, at all moments and for all times
	LORAPLANE_TEST_SEARCH=1 $(BIN)/pytest tests/faults/test_battery.py

sessions: install ## Play the demonstration on simulated engines, and what docs/ shows of a session, word for word
	NIGHTLY=yes $(BIN)/pytest tests/integration/devstack

pods: install engine .venv-kubernetes/.installed ## Play the rendered chart pod by pod: updates, scaling, killed parts, a lost node, once on real vLLM (needs root)
	PODS=whole $(BIN)/pytest -s --timeout=1800 tests/deploy/test_fleet_in_pods.py

.PHONY: routers
routers: install engine .venv-envoy/.installed .venv-litellm/.installed .venv-litellm-proxy/.installed ## Play minutes of swaps, drains, restarts and kills behind Envoy, LiteLLM's Router and proxy, and a router that polls, before simulated engines, and before two real vLLM (ROUNDS=n, RATE=n)
	ROUTERS=yes $(BIN)/pytest -s --timeout=1800 tests/integration/routers tests/e2e/test_picker.py

.PHONY: rotations
rotations: install ## Exchange every certificate, key, token and password again and again while calls run (ROUNDS=n)
	LORAPLANE_TEST_ROTATIONS=$(or $(ROUNDS),20) $(BIN)/pytest -s tests/integration/test_rotation.py

.PHONY: training
training: install engine .venv-training/.installed ## Train by TRL's GRPO before two real vLLM: each sample proves its version (STEPS=n)
	TRAINING=yes STEPS=$(or $(STEPS),4) $(BIN)/pytest -s --timeout=1800 tests/e2e/test_training.py

.PHONY: trainer
trainer: install ## Publish a version every other second to a real fleet, ask for the newest three, kill everything (MINUTES=n, SEED=n)
	MINUTES=$(or $(MINUTES),30) SEED=$(or $(SEED),7) $(BIN)/pytest -s --timeout=7200 tests/faults/test_trainer.py

.PHONY: axolotl
axolotl: install engine .venv-axolotl/.installed ## Play axolotl's own vllm_serve_lora behind a sidecar: versions, restarts, a bad adapter (needs root)
	AXOLOTL=yes $(BIN)/pytest -s --timeout=1800 tests/e2e/test_axolotl.py

.PHONY: rust-frontend
rust-frontend: install engine ## Play vLLM's Rust frontend of a newer release before the engine (takes it out of 340 MB; x86-64)
	$(PYTHON) -m tests.support.engine_install --rust-frontend .loraplane/rust-frontend
	LORAPLANE_TEST_RUST_FRONTEND=$(CURDIR)/.loraplane/rust-frontend $(BIN)/pytest tests/contract/engine/test_rust_frontend.py

.PHONY: page
page: install .venv-page/.installed ## Look at the page in Chromium: each view, a thousand adapters on a hundred replicas; writes docs/pictures (needs Debian's chromium)
	PICTURES=yes $(BIN)/python -m pytest -s -p no:cacheprovider tests/integration/page

.PHONY: nightly
nightly: ## Play all that is too long for each change: mutants, corpus, engines, Rust frontend, routers, 10,000 seeds, properties, battery, sessions, pods, rotations, training, half an hour of a trainer, axolotl, page, make flaky; the others go on where one fails
	$(MAKE) --keep-going mutants corpus engines rust-frontend routers sim properties battery sessions pods rotations training trainer axolotl page flaky COUNT=10000

.PHONY: containers
containers: install engine .venv-containers/.installed ## Build the images, start compose.yaml whole with podman, kill each container, start compose.secure.yaml (needs root)
	.ci/podman
	CONTAINERS=yes $(BIN)/pytest -s --timeout=3600 tests/containers

.PHONY: sim
sim: install ## Play one simulation and show its trace, or many and tell which fail (SEED=n, NETS=no: without periodic looks, SHRINK=yes: the least that fails alike, which ONLY= and SECONDS= play; COUNT=n)
	$(BIN)/python -m tests.simulation $(if $(COUNT),--count $(COUNT),--seed $(or $(SEED),$(error SEED=n says which, or COUNT=n how many)) $(if $(filter no,$(NETS)),--no-nets) $(if $(ONLY),--only $(ONLY)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SHRINK),--shrink))

.PHONY: fuzz
fuzz: install ## Hurt valid samples of whatever strangers can write or send, and look for what breaks (SECONDS=n, TARGET=name,name, SEED=n)
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep)

.PHONY: soak
soak: install ## Play thousands of simulations, restart 1,000 sidecars, hurt a real cluster and a real fleet, and attack all that listens, for ten minutes each; then make trainer (COUNT=n, SEED=n, SECONDS=n, MINUTES=n)
	$(BIN)/python -m tests.simulation --count $(or $(COUNT),3000)
	SIDECARS=1000 $(BIN)/pytest --timeout=900 tests/faults/test_herd.py
	SEED=$(or $(SEED),7) SECONDS=$(or $(SECONDS),600) $(BIN)/pytest -s --timeout=7200 tests/faults/test_schedule.py tests/faults/test_day.py tests/faults/test_attacks.py
	$(MAKE) trainer

.PHONY: proof
proof: install engine ## Swap 100 versions on two real vLLM under 50 requests a second, and ask for 500 of 20,000 lazy adapters
	SWAPS=100 RATE=50 $(BIN)/pytest -s --timeout=1800 tests/e2e/test_fleet_swaps.py
	REQUESTS=500 $(BIN)/pytest -s --timeout=1800 tests/e2e/test_lazy.py

.PHONY: mutants
mutants: install ## Put deliberate bugs into copies of the code, show which test catches each (ONLY=name,name)
	$(BIN)/python -m tests.support.mutants $(if $(ONLY),--only $(ONLY))

.PHONY: mutate
mutate: install ## Change the code at random, count what no test notices (ROOM=sidecar/plan, KIND=name,name, SINCE=commit, ONLY=id,id, COUNT=n, SEED=n, SECONDS=n, WORKERS=n)
	$(BIN)/python -m tests.support.mutation $(if $(SINCE)$(ONLY),,--page) $(if $(filter file,$(origin WORKERS)),,--workers $(WORKERS)) $(if $(ROOM),--room $(ROOM)) $(if $(KIND),--kind "$(KIND)") $(if $(SINCE),--since $(SINCE)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(TESTS),--tests "$(TESTS)")

.PHONY: architectures
architectures: install engine ## Load PEFT's adapters of each architecture into real vLLM, write docs/architectures.md (ONLY=name,name, FRESH=yes)
	nice -n 19 $(BIN)/python -m tests.architectures $(if $(ONLY),--only $(ONLY)) $(if $(FRESH),--fresh)

.PHONY: bench
bench: install .venv-envoy/.installed ## Measure what is promised, each beside its floor (ONLY=name for one); last line: all figures
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

.PHONY: bench-report
bench-report: install .venv-plots/.installed ## Measure how work grows with replicas and records, write docs/performance.md with its figures (ONLY=name for one)
	$(BIN)/python -m bench.report $(if $(ONLY),--only $(ONLY))
	.venv-plots/bin/python -m bench.plots docs/performance
