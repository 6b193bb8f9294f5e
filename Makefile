# One short target per thing a person does. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-down up down test images lint fix crds

# Outside the checkout, so that a fresh checkout does not compile RocksDB again; ccache keeps its C++ even beyond that.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dengine
export CARGO_TARGET_DIR ?= $(CACHE)/target
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin
ifneq ($(shell command -v ccache),)
export CC := ccache cc
export CXX := ccache c++
endif

E2E := cargo run --quiet --release --locked --package dengine-e2e --
CRDS := charts/dengine-operator/files/crds
# Tests of whole processes are one binary each, those of Kubernetes are one of all.
PROCESS_TESTS := $(patsubst %.rs,--test %,$(notdir $(wildcard $(addsuffix /tests/*.rs,engine engine/* crds operator bench-jobs))))

# $(call part,NAME,COMMAND): runs, and notes how long it took.
TIMES := $(shell mktemp --dry-run /tmp/dengine-test.XXXXXX)
part = start=$$SECONDS; echo "== $(1)"; $(2); printf '%-44s %4d s\n' "$(1)" $$((SECONDS - start)) | tee -a $(TIMES)

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | column -t -s $$'\t'

setup: ## install what a fresh Debian machine lacks (as root; Rust and Go must be there)
	@e2e/setup.sh

demo: setup ## a cluster of three on Kubernetes, benchmarked (E2E_USE_CURRENT_CONTEXT=1: on the current context)
	@$(E2E) demo

demo-down: ## remove everything that demo or up started
	@$(E2E) demo-down

up: setup ## only bring up the local Kubernetes
	@$(E2E) up

down: ## take the local Kubernetes down
	@$(E2E) down

test: setup ## every test, on a real Kubernetes too
	@trap 'rm -f $(TIMES)' EXIT
	$(call part,Build,cargo test --release --locked --workspace --no-run)
	$(call part,Units and documentation,cargo test --release --locked --workspace --lib --bins --examples && cargo test --release --locked --workspace --doc)
	$(call part,Processes,cargo test --release --locked --workspace --no-fail-fast $(PROCESS_TESTS))
	$(call part,Kubernetes,cargo test --release --locked --workspace --no-fail-fast --test kubernetes)
	echo "== How long each part took"
	cat $(TIMES)

images: setup ## write the container images to target/images as archives
	@$(E2E) images

lint: ## formats, lints and generated files; changes nothing
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings
	@generated=$$(mktemp -d); trap 'rm -rf "$$generated"' EXIT
	cargo run --quiet --release --locked --package dengine-crds --bin crdgen "$$generated"
	diff --unified --recursive $(CRDS) "$$generated" || { echo "the CRDs are not what the types say: make crds" >&2; exit 1; }

fix: ## format, and apply what the linter can fix itself
	cargo fmt --all
	cargo clippy --release --locked --workspace --all-targets --fix --allow-dirty --allow-staged

crds: ## write the CRDs of the chart anew from their Rust types
	cargo run --quiet --release --locked --package dengine-crds --bin crdgen $(CRDS)


