# The targets are what CI runs; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PREFIX ?= /usr/local
DESTDIR ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 60s
BENCH ?= .
BENCHTIME ?= 1s
# Packages tested at a time. Three starve each other on two CPUs: guests boot in software emulation.
TEST_PARALLEL ?= 2
# Packages whose tests are one goroutine each: the race detector has nothing to see there, and makes them several times as slow. That
# their code is fit for many goroutines, the tests of those who use it show.
LONE_TESTS = ./nodeagent/domainxml ./plan ./plan/policy

# A compiler that collects its garbage less often is a fifth faster, and needs some hundred MB more. Programs and tests are as always.
roomy = -toolexec "env GOGC=400"
# Whatever is compiled without the race detector is compiled like this, so that the linters, the programs, their tests and the cluster of
# `make e2e` compile once what they share. Without what only debuggers read it is a sixth faster.
lean = $(roomy) -trimpath -gcflags=all=-dwarf=false
go_build = go build $(lean) -ldflags "-X main.version=$(VERSION)"

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Show the main job on real parts (KEEP=1 leaves it running)
	@hack/demo.sh

.PHONY: build
build: ## Build bin/gitvirt, bin/gitvirt-launcher (static) and bin/gitvirt-agent (loads libvirt at run time)
	CGO_ENABLED=0 $(go_build) -o bin/gitvirt ./cmd/gitvirt
	CGO_ENABLED=0 go build $(lean) -ldflags "-s -w -X main.version=$(VERSION)" -o bin/gitvirt-launcher ./cmd/gitvirt-launcher
	CGO_ENABLED=1 $(go_build) -tags libvirt_dlopen,netgo,osusergo -o bin/gitvirt-agent ./cmd/gitvirt-agent

.PHONY: install
install: build ## Install the programs, and the plugin of kubectl, below PREFIX (default /usr/local)
	@# gitvirt-launcher is not among them: it is the first process of a VM's Pod, and comes with the Pod's image.
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -m 755 bin/gitvirt bin/gitvirt-agent "$(DESTDIR)$(PREFIX)/bin/"
	ln -sf gitvirt "$(DESTDIR)$(PREFIX)/bin/kubectl-gitvirt"
	ln -sf gitvirt "$(DESTDIR)$(PREFIX)/bin/kubectl_complete-gitvirt"

.PHONY: image
image: setup build ## Build the container images into bin/images (IMAGE_REPOSITORY=gitvirt.io)
	@hack/image.sh "$(VERSION)"

.PHONY: setup
setup: ## Install the Debian packages that the demo and the tests need
	@hack/setup.sh

.PHONY: guest
guest: setup ## Build the test guest (once, outside the work tree)
	@hack/guest/build.sh

.PHONY: gitea
gitea: setup ## Build Gitea, the real forge of the tests, and its runner (once, outside the work tree)
	@hack/gitea/build.sh

.PHONY: test
# Without vet, which looks at all that is imported as well: make lint has it, with more.
test: setup guest gitea ## Run every test, those against real libvirt, QEMU and Gitea included
	export GITVIRT_GUEST="$$(hack/guest/path.sh)" GITVIRT_GITEA="$$(hack/gitea/path.sh)"; \
	CGO_ENABLED=0 go test $(lean) -vet=off -p $(TEST_PARALLEL) -timeout 30m $(LONE_TESTS); \
	go test $(roomy) -vet=off -race -p $(TEST_PARALLEL) -timeout 30m $$(go list ./... | grep -vxFf <(go list $(LONE_TESTS)))

.PHONY: bench
bench: setup guest gitea ## Run the benchmarks (BENCH=regexp, BENCHTIME=1s)
	GITVIRT_GUEST="$$(hack/guest/path.sh)" GITVIRT_GITEA="$$(hack/gitea/path.sh)" go test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -p 1 -timeout 60m ./...

.PHONY: bench-kubevirt
bench-kubevirt: ## Measure rendering against KubeVirt's own converter
	@hack/bench_kubevirt.sh

.PHONY: bench-cluster
bench-cluster: image guest ## Measure how guests start on the cluster of make cluster
	@hack/bench_cluster.sh bin/images "$${IMAGE_REPOSITORY:-gitvirt.io}/gitvirt-launcher:$(VERSION)"

.PHONY: conformance
conformance: ## Ask KubeVirt's own converter whether what is kept of its domains is true
	GITVIRT_KUBEVIRT="$(CURDIR)/hack/kubevirt.sh" go test -count=1 -run TestCorpusIsKubeVirts ./nodeagent/domainxml

.PHONY: cluster
cluster: ## Start a real Kubernetes on this machine (GITVIRT_CLUSTER_NODES=2 for two nodes)
	@hack/cluster/cluster.sh up

.PHONY: cluster-down
cluster-down: ## Remove every trace of it (the cache of programs stays)
	@hack/cluster/cluster.sh down

.PHONY: cluster-check
cluster-check: ## Ask the running cluster whether it does what the tests need
	@hack/cluster/smoke.sh

.PHONY: e2e
e2e: image guest ## Run the tests that need a real cluster, on one of their own (KEEP=1 leaves it running)
	@hack/e2e.sh bin/images "$${IMAGE_REPOSITORY:-gitvirt.io}/gitvirt-launcher:$(VERSION)"

.PHONY: bench-cluster-scale
bench-cluster-scale: setup build ## Measure the controller with 5,000 VMs on Kubernetes, of which kwok plays the nodes (SCALE="-vms 1000")
	@hack/scale/run.sh $(SCALE)

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME (default 60s)
	@hack/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: setup ## Check layers, style, shell scripts and that generated code is fresh
	@hack/lint.sh

.PHONY: generate
generate: setup ## Generate the code of the agent's API, docs/support.md and docs/schemas
	@hack/generate.sh

.PHONY: generate-check
generate-check: setup ## Fail when what is generated is stale
	@hack/generate.sh check

.PHONY: clean
clean: ## Remove what was built (the cache of tools and guests stays)
	rm -rf bin
