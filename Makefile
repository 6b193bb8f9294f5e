# One short target per thing a person does. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
SETUPS := $(addprefix setup-,dengine dist images lint bench torture kubernetes test)
.PHONY: help setup $(SETUPS) dengine dist demo demo-down up down test sim sim-planted models mutants torture power-loss fuzz overload failover hostile older etcd-differ etcd-suites etcd-common etcd-python e2e-full kwok test-setup bench bench-servers bench-baseline images lint fix protos crds

# Outside the checkout, so that a fresh one does not compile RocksDB again; where the target folder is gone, ccache still
# has its C++.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dengine
export CARGO_TARGET_DIR ?= $(CACHE)/target
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin
# Looked up for each recipe: `setup` may just have installed it, and another compiler next time would compile RocksDB again.
export CC = $(if $(shell command -v ccache),ccache )cc
export CXX = $(if $(shell command -v ccache),ccache )c++

comma := ,
# One profile for all tests and tools: what they share is compiled once.
# The simulator turns on what nothing that ships has, so it is built by itself.
ALL := --workspace --exclude dengine-simulator
CARGO_TEST := cargo test --release --locked $(ALL)
# Always the whole workspace: what a dependency is compiled with depends on which packages are asked for, and
# with several answers it would be compiled several times.
BUILD := cargo build --release --locked $(ALL) --bins
E2E := $(BUILD) && $(CARGO_TARGET_DIR)/release/dengine-e2e
# As they ship: server and load generator, optimized across crates and by a profile of what users do (profile-guided
# optimization), and what is measured beside them. The tools look for them in their own folder. Under `make kwok` no load generator runs.
DIST := $(CARGO_TARGET_DIR)/dist
BUILD_DIST = $(E2E) dist $(if $(TRAIN),--train) dengine $(MEASURED) && \
  ln -f $(addprefix $(CARGO_TARGET_DIR)/release/,dengine-e2e kubectl-dengine) $(DIST)
MEASURE = $(BUILD_DIST) && $(DIST)/dengine-e2e
dist: MEASURED = dengine-bench
bench bench-servers: MEASURED = dengine-bench dengine-bench-bounds $(if $(findstring embedded,$(SCENARIO))$(findstring all,$(SCENARIO)),dengine-bench-embedded)
# Variables as flags of `dengine-e2e`, where they are set: $(call as_flag,etcd-version) is `--etcd-version $(ETCD_VERSION)`.
as_variable = $(subst -,_,$(shell echo $(1) | tr a-z A-Z))
as_flag = $(if $($(as_variable)),--$(1) $($(as_variable)))
CRDGEN := $(BUILD) --quiet && $(CARGO_TARGET_DIR)/release/crdgen
# For kubectl, and in the chart: Helm takes nothing from outside of it.
CRDS := crds/yaml charts/dengine-operator/files/crds
CRDS_AGAIN := $(CARGO_TARGET_DIR)/crds
SIM := cargo run --release --locked --quiet -p dengine-simulator --
SIM_PLANTED := cargo run --release --locked --quiet -p dengine-simulator --features planted-bugs --
SIM_TEST := cargo test --release --locked -p dengine-simulator --features planted-bugs --lib
# Each puts other types in place of std's, so it is a program of its own; neither compiles RocksDB.
MODELS_LOOM := cargo test --release --locked -p dengine-raft --features loom --lib -- models::
MODELS_SHUTTLE := cargo test --release --locked -p dengine-raft --features shuttle --lib -- models::
# Tests of more than one unit: a file or a folder each. Those on Kubernetes are one program.
TEST_FOLDERS := $(addsuffix /tests,$(wildcard engine/* engine/verification/*) crds operator operator/plugin bench-jobs bench-jobs/bounds bench-jobs/embedded)
# Those that a target of their own runs, for not every machine can: it takes root and /dev/fuse.
OWN_TARGET := power_loss
TESTS := $(filter-out $(OWN_TARGET), \
         $(basename $(notdir $(wildcard $(addsuffix /*.rs,$(TEST_FOLDERS))))) \
         $(notdir $(patsubst %/main.rs,%,$(wildcard $(addsuffix /*/main.rs,$(TEST_FOLDERS))))))

# $(call part,NAME,COMMANDS,TIME): runs them, and notes how long it took; TIME is what it takes on two cores.
TIMES := $(CARGO_TARGET_DIR)/test-times
part = SECONDS=0; echo "== $(1): about $(3)"; ($(2)) || exit 1; printf '%-28s %3d min %2d s\n' "$(1)" $$((SECONDS / 60)) $$((SECONDS % 60)) >>$(TIMES)

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "%-19s  %s\n", $$1, $$2 }'

setup: setup-kubernetes ## install what a fresh Debian machine lacks for all of it (as root; Rust and Go must be there)

$(SETUPS): setup-%:
	@e2e/setup.sh $*

dengine: setup-dengine ## the server and its tools, without Kubernetes (no Go, no containers)
	@$(BUILD)
	@echo "dengine, dengine-bench and kubectl-dengine are in $(CARGO_TARGET_DIR)/release; to have them at hand:"
	@echo 'export PATH=$(CARGO_TARGET_DIR)/release:$$PATH'

dist: setup-dist ## the same as it ships and is measured: optimized across crates and by a profile, which takes 40 minutes of CPU more the first time (TRAIN=1: makes the profile again)
	@$(BUILD_DIST)
	@$(DIST)/dengine --version
	@echo "dengine, dengine-bench and kubectl-dengine are in $(DIST)"

demo: setup-kubernetes ## a cluster of three on Kubernetes, benchmarked (E2E_USE_CURRENT_CONTEXT=1: on the current context; STORE=, KUBERNETES_VERSION=: as for up)
	@$(E2E) demo $(call as_flag,store) $(call as_flag,kubernetes-version)

demo-down: ## remove everything that demo or up started (E2E_USE_CURRENT_CONTEXT=1: on the current context, what demo made)
	@$(E2E) demo-down

up: setup-kubernetes ## only bring up the local Kubernetes (STORE=etcd|etcd-of-three|dengine: what its API server keeps its objects in, by default etcd; KUBERNETES_VERSION=1.36.3|1.34.4)
	@$(E2E) up $(call as_flag,store) $(call as_flag,kubernetes-version)

down: ## take the local Kubernetes down
	@$(E2E) down

test: setup-test ## every test but the long ones, those on a real Kubernetes included (as root)
	@mkdir -p $(CARGO_TARGET_DIR); rm -f $(TIMES)
	@$(call part,Build,$(BUILD) && $(CARGO_TEST) --no-run,10 min the first time$(comma) 30 if RocksDB has not been compiled yet)
	@$(call part,Units,$(CARGO_TEST) --no-fail-fast --lib --bins --examples,15 s)
	@$(call part,Documentation,$(CARGO_TEST) --no-fail-fast --doc,10 s)
	@$(call part,Conformance and processes,$(CARGO_TEST) --no-fail-fast $(addprefix --test ,$(sort $(TESTS))) -- --skip overload:: --skip under_attack_,4 min)
	@$(call part,Simulation,$(SIM_TEST),6 min)
	@$(call part,Models,$(MODELS_LOOM) && $(MODELS_SHUTTLE),3 min)
	@$(call part,Kubernetes,$(CARGO_TEST) --no-fail-fast --test kubernetes -- --skip full::,6 min$(comma) and 15 for Kubernetes the first time)
	@$(call part,etcd's API,$(DIFFER) --seed 1 --with leases --seconds 90,90 s)
	@printf '\nEverything passed. It took\n'; cat $(TIMES)

torture: setup-torture ## real members under faults, checked for linearizability (DURATION=5m, SEED=; as root)
	@$(BUILD)
	@DENGINE_TORTURE_DURATION=$(or $(DURATION),5m) DENGINE_TORTURE_SEED=$(SEED) \
	  $(CARGO_TEST) --test torture -- --nocapture

power-loss: setup-dengine ## the power cut at every sync of a real server's disk (SAMPLES=100 other cuts, SEED=, CUT='sync 12'; as root)
	@$(BUILD)
	@DENGINE_POWER_LOSS_SAMPLES=$(SAMPLES) DENGINE_POWER_LOSS_SEED=$(SEED) DENGINE_POWER_LOSS_CUT="$(CUT)" \
	  $(CARGO_TEST) --test power_loss -- --nocapture

fuzz: setup-dengine ## mutated bytes into every decoder (DURATION=1m for each; SEED= of a failure: draws its input again first)
	@DENGINE_FUZZ_DURATION=$(or $(DURATION),1m) BOLERO_RANDOM_SEED=$(SEED) \
	  $(CARGO_TEST) --test fuzz -- --nocapture

overload: setup-dengine ## more writes than a member takes: it must shed, keep its leader and its memory, and recover
	@$(BUILD)
	@$(CARGO_TEST) --test processes -- overload::

failover: setup-dengine ## how long writes stop when the leader of three is killed (COUNT=30 times, and as often just after all were restarted)
	@$(BUILD)
	@DENGINE_FAILOVER_COUNT=$(or $(COUNT),30) $(CARGO_TEST) --test processes -- --ignored --nocapture failover::

hostile: setup-dengine ## attackers against a member in 512 MiB, beside honest clients (DURATION=30s of each, ONLY=watch|etcd|..., MEMBERS=1|3; as root)
	@$(BUILD)
	@DENGINE_HOSTILE_DURATION=$(DURATION) DENGINE_HOSTILE_ONLY=$(ONLY) DENGINE_HOSTILE_MEMBERS=$(MEMBERS) \
	  $(CARGO_TEST) --test hostile -- --exact under_attack_the_honest_notice_nothing --nocapture

# Its own target folder, so that two trees do not take turns in one; ccache has RocksDB's C++.
OLDER := $(CACHE)/older
older: FROM := $(or $(FROM),082bf19)
older: setup-dengine ## a cluster of an older commit, upgraded member by member under load (FROM=082bf19, FOLDERS=DIR: where its data directories are kept)
	@mkdir -p $(OLDER)/folders; [ -e $(OLDER)/$(FROM) ] || git worktree add --force --detach $(OLDER)/$(FROM) $(FROM)
	@cd $(OLDER)/$(FROM) && CARGO_TARGET_DIR=$(OLDER)/target cargo build --release --locked --bin dengine
	@cp $(OLDER)/target/release/dengine $(OLDER)/dengine-$(FROM); git worktree remove --force $(OLDER)/$(FROM)
	@$(BUILD)
	@DENGINE_OLDER_PROGRAM=$(OLDER)/dengine-$(FROM) DENGINE_OLDER_NAME=$(FROM) DENGINE_OLDER_FOLDERS=$(abspath $(or $(FOLDERS),$(OLDER)/folders)) \
	  $(CARGO_TEST) --test processes -- --ignored older::

# What is compared unless LEFT= and RIGHT= name other systems; $(1): which etcd. Its path is assigned first: as a part
# of an argument, its failure would be nobody's.
DIFFER = $(if $(LEFT),,etcd=$$($(CARGO_TARGET_DIR)/release/dengine-e2e etcd $(1)) &&) $(CARGO_TARGET_DIR)/release/etcd-differ \
  --left $(or $(LEFT),etcd=$$etcd) --right $(or $(RIGHT),dengine=$(CARGO_TARGET_DIR)/release/dengine)
etcd-differ: setup-bench ## random calls of the etcd API on etcd and on DEngine, compared (DURATION=60 seconds, JOBS=1 at a time, SEED=, MEMBERS=1|3, WITH=leases,alarms, ETCD_VERSION=3.6.16|3.7.3, REPLAY=FILE; LEFT=, RIGHT= other systems: etcd=PROGRAM, dengine=PROGRAM or addresses)
	@$(BUILD)
	@$(call DIFFER,$(ETCD_VERSION:%=--etcd-version %)) $(if $(REPLAY),--replay $(REPLAY),--seconds $(or $(DURATION),60)) \
	  $(call as_flag,jobs) $(call as_flag,seed) $(call as_flag,members) $(call as_flag,with)

# One package after the other: each test has a cluster of three. What the variables name is what is tested.
SUITES_PROGRAM = $(if $(ETCD),ETCD_SUITES_ETCD=$(abspath $(ETCD)),ETCD_SUITES_DENGINE=$(CARGO_TARGET_DIR)/release/dengine)
SUITES_ENV = CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false" \
  $(if $(ENDPOINTS),ETCD_SUITES_ENDPOINTS=$(ENDPOINTS) ETCD_SUITES_KILL="$(KILL)",$(SUITES_PROGRAM))
etcd-suites: setup-bench ## clients and suites of etcd and Kubernetes on clusters of three (ETCD=PROGRAM or ENDPOINTS=ADDRESS,… with KILL=COMMAND, all keys deleted: on these instead; ONLY=TestWatch, KILLS=4)
	@$(if $(ETCD)$(ENDPOINTS),,$(BUILD))
	@cd engine/verification/etcd-suites && env $(SUITES_ENV) ETCD_SUITES_KILLS=$(KILLS) \
	  go test -count=1 -p 1 -timeout 60m $(if $(ONLY),-run '$(ONLY)') ./...

# Each of its tests has ten to thirty seconds, which the start of a cluster is part of: this needs a machine that rests.
etcd-common: setup-bench ## etcd's own tests/common on clusters of one and three (ETCD=PROGRAM: of that etcd; ONLY=TestWatch)
	@$(if $(ETCD),,$(BUILD))
	@env $(SUITES_ENV) engine/verification/etcd-suites/common/go.sh test -count=1 -timeout 30m $(if $(ONLY),-run '$(ONLY)')

PYTHON_ETCD := $(CACHE)/python-etcd3
etcd-python: setup-dengine ## python-etcd3 on a member, as its users call it (python3 with venv and PyPI have to be there)
	@$(BUILD)
	@python3 -m venv $(PYTHON_ETCD) || { echo "needs python3 with venv: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON_ETCD)/bin/pip install --quiet --disable-pip-version-check --requirement engine/verification/etcd-suites/python/requirements.txt
	@$(PYTHON_ETCD)/bin/python engine/verification/etcd-suites/python/client.py $(CARGO_TARGET_DIR)/release/dengine

e2e-full: setup-test ## the operator's long tests on a real Kubernetes (ONLY=repair: those whose name has it; ONLY=store, ONLY=kwok: only then, Kubernetes itself on DEngine)
	@$(BUILD)
	@$(CARGO_TEST) --no-fail-fast --test kubernetes -- full::$(ONLY) $(if $(filter store% kwok%,$(ONLY)),,--skip full::store --skip full::kwok)

# In flags as `dengine-e2e kwok` has them, but that both stores are the default here.
KWOK_FLAGS = $(foreach flag,nodes pods repeat output,$(call as_flag,$(flag))) --store $(or $(STORE),dengine$(comma)etcd-of-three)
kwok: NODES := $(or $(NODES),1000)
kwok: PODS := $(or $(PODS),10000)
kwok: setup-kubernetes setup-dist ## Kubernetes of many nodes that kwok plays, on DEngine and etcd in turns (NODES=1000, PODS=10000, STORE=dengine,etcd-of-three, REPEAT=1 there and back, OUTPUT=FILE; none may be up)
	@$(MEASURE) kwok $(KWOK_FLAGS)

test-setup: ## set-up on fresh Debian roots, for each purpose (SUITE=bookworm: only there; as root, on Debian)
	@e2e/test-setup.sh $(SUITE)

sim: ## the deterministic simulator: fresh seeds for BUDGET seconds (60), or SEED=… replayed as a readable trace
	@$(SIM) $(if $(SEED),--seed $(SEED),--budget $(or $(BUDGET),60) --threads $(or $(THREADS),$(shell nproc)))

sim-planted: ## how many seeds it takes the simulator to find each planted bug, from three seeds on; fails if any is not found (BUG=…, MAX=…, FROM=…)
	@$(SIM_PLANTED) --planted $(or $(BUG),all) --from $(or $(FROM),1$(comma)100000$(comma)200000) --max-seeds $(or $(MAX),5000) --threads $(or $(THREADS),$(shell nproc))

models: ## what threads do to each other, under loom and shuttle
	@$(MODELS_LOOM)
	@$(MODELS_SHUTTLE)

mutants: setup-dengine ## mutation tests of the core (SHARD=0/8: the first of eight parts; SHARD=report: all parts so far; DIFF=origin/main: of what changed since, 8 min)
	@engine/verification/mutants.sh $(if $(DIFF),diff $(DIFF),$(if $(filter report,$(SHARD)),report,all $(SHARD)))

images: setup-images ## write the container images to target/images, server and load generator as of `make dist`, for kind load image-archive or ctr images import (TRAIN=1: as for dist)
	@$(if $(TRAIN),$(E2E) dist --train dengine dengine-bench && )$(E2E) images

# Variables of `make bench` as flags of `dengine-e2e bench`. A list is separated by commas.
BENCH_FLAGS = $(if $(WORKLOAD),--workload $(WORKLOAD),--profile $(or $(PROFILE),standard)) \
  $(foreach flag,total clients warm-up scenario system etcd-version durability wire repeat output baseline budget,$(call as_flag,$(flag))) \
  $(SERVER_ARGS:%=--server-arg=%) $(BENCH_ARGS:%=--bench-arg=%)
# Only etcd needs Go, and it is measured unless systems are named without it.
BENCH_SETUP = $(if $(filter embedded,$(SCENARIO))$(if $(SYSTEM),$(if $(findstring etcd,$(SYSTEM)),,x)),dist,bench)

bench: setup-$(BENCH_SETUP) ## DEngine beside etcd on this machine, with a report (PROFILE=standard, SCENARIO=cluster|single|embedded|all, SYSTEM=dengine,etcd,floor,echo, ETCD_VERSION=3.7.3|3.6.16, DURABILITY=fsync|memory-first, WIRE=pipelined|unary|etcd, REPEAT=1, WORKLOAD=, TOTAL=, CLIENTS=, WARM_UP=, BASELINE=, BUDGET=, OUTPUT=, BENCH_ARGS=, SERVER_ARGS=)
	@$(if $(BASELINE),,$(if $(BUDGET),$(error BUDGET= is how much worse than BASELINE= is allowed: give BASELINE=RESULT.json too)))
	@$(MEASURE) bench $(BENCH_FLAGS)

bench-servers: setup-$(if $(filter etcd,$(SYSTEM)),bench,dist) ## members to load by hand until Ctrl-C (SYSTEM=dengine|etcd|floor|echo, ETCD_VERSION=, SCENARIO=cluster|single, DURABILITY=, WIRE=etcd, SERVER_ARGS=)
	@$(MEASURE) bench --serve $(call as_flag,scenario) --system $(or $(SYSTEM),dengine) $(call as_flag,etcd-version) $(call as_flag,durability) $(call as_flag,wire) $(SERVER_ARGS:%=--server-arg=%)

bench-baseline: ## instruction counts of hot paths against the committed ones (UPDATE=1 writes them; needs valgrind)
	@cargo bench --locked --quiet -p dengine-raft --bench instructions -- $(if $(UPDATE),--update)

# Clippy and rustdoc share what they check of the dependencies, and RocksDB with build and tests: one profile, the whole
# workspace. It has every feature that a test turns on, so what has features is linted by itself too, as it ships.
CLIPPY := cargo clippy --release --locked --all-targets
GO_FOLDERS := e2e/local-kubernetes/programs engine/verification/etcd-suites
lint: setup-lint ## formats, lints with every feature, documentation, the tests it names, dependencies, generated files; changes nothing
	@rustc --version; cargo clippy --version
	cargo fmt --all --check
	engine/verification/regressions.sh
	@unformatted=$$(gofmt -l $(GO_FOLDERS)); [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted" >&2; exit 1; }
	$(CLIPPY) $(ALL) -- -D warnings
	cargo clippy --release --locked -p dengine-client --no-default-features -- -D warnings
	cargo clippy --release --locked -p dengine-raft -p dengine-bench-model -- -D warnings
	$(CLIPPY) $(ALL) --no-default-features -- -D warnings
	$(CLIPPY) -p dengine-raft --features planted-bugs -- -D warnings
	$(CLIPPY) -p dengine-simulator -- -D warnings
	$(CLIPPY) -p dengine-simulator --features planted-bugs -- -D warnings
	$(CLIPPY) -p dengine-raft --features loom -- -D warnings
	$(CLIPPY) -p dengine-raft --features shuttle -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace --no-deps --document-private-items
	@cargo deny --version >/dev/null 2>&1 || { echo "installing cargo-deny, once: about five minutes"; env -u CARGO_TARGET_DIR cargo install --quiet --locked cargo-deny; }
	cargo deny --locked check bans licenses sources
	@rm -rf $(CRDS_AGAIN); $(CRDGEN) $(CRDS_AGAIN)
	@for crds in $(CRDS); do diff --unified --recursive $$crds $(CRDS_AGAIN) || { echo "the CRDs are not what the types say: make crds" >&2; exit 1; }; done

fix: ## format, and apply what the linter can fix itself
	cargo fmt --all
	cargo clippy --release --locked --workspace --all-targets --fix --allow-dirty --allow-staged
	gofmt -w $(GO_FOLDERS)

protos: setup-dengine ## generate the Rust code of the protocols from their .proto files
	@cargo run --release --locked --quiet -p dengine-protogen -- engine

crds: setup-dengine ## generate the CRDs from their Rust types
	@for crds in $(CRDS); do $(CRDGEN) $$crds; done
