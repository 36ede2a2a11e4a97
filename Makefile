# A thin front of commands that work without it: see .ci/run for what CI does.
# Needs Go, a C compiler and git.

BIN := $(CURDIR)/.bin
MODULES := client cmd/tandem examples integration loadtest pkg proto simulate $(wildcard services/*)

.DEFAULT_GOAL := help
.PHONY: help build test race images integration demo picture latency evidence soak swarm release tags lint generate kernels kernels-check gpu-check tidy servers tools ci

help: ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## Build the tandem binary into .bin/
	go build -buildvcs=false -ldflags "$$(tools/version --ldflags)" -o $(BIN)/tandem ./cmd/tandem

test: ## Run the tests that need nothing but Go and a C compiler (LONG=1: also those that take long, LONG=all: even those that CI leaves out)
	TANDEM_LONG=$(LONG) go test work

race: ## Run the tests under the race detector, without the CPU kernels
	go test -race $$(go list ./client/... ./pkg/... $(addsuffix /...,$(addprefix ./,$(wildcard services/*))) ./loadtest/... ./simulate/... ./cmd/tandem/... | grep -v -e /pkg/engine/cpu -e /pkg/engine/cuda)

images: ## Build the container images, which takes no registry
	bash deploy/images/build

integration: images ## Run the integration suite over containers
	bash integration/run

demo: build ## Record docs/images/demo.svg, the moving picture of the README
	cd tools/record && GOWORK=off go build -o $(BIN)/record . && \
	PATH=$(BIN):$$PATH $(BIN)/record --script demo.sh --out $(CURDIR)/docs/images/demo.svg

picture: ## Sweep the bundled model and make docs/images/report.png of the report (takes a browser and ten minutes)
	bash tools/record/report.sh

latency: ## Compare the modes at equal rates and make the tables and the picture of docs/benchmarks.md (takes a browser, a quiet machine and ten minutes)
	bash tools/record/modes.sh

evidence: build ## Measure what the claim rests on, and write docs/evidence.md (SECTION=distserve, TRACES=DIR)
	$(BIN)/tandem bench evidence $(addprefix --section ,$(SECTION)) $(addprefix --traces ,$(TRACES))

soak: ## Break a mesh of processes at random for ten minutes, every token compared and all event logs replayed (FOR=1h, SEED=7, RECORD=DIR)
	go test -count=1 -timeout 0 -v -run 'TestChaos$$' ./integration -chaos $(or $(FOR),10m) -chaos-seed $(or $(SEED),1) -chaos-record "$(abspath $(RECORD))"

swarm: ## Simulate random clusters, loads and faults for ten minutes, and check what must hold (FOR=1h, SEED=7)
	go test -count=1 -timeout 0 -v -run 'TestSwarm$$' ./simulate/swarmtest -swarm.time $(or $(FOR),10m) -swarm.seed $(or $(SEED),0)

release: ## Build archives for downloading, with checksums, into .bin/release/ (VERSION=v1.2.3)
	rm -rf $(BIN)/release
	VERSION=$(VERSION) bash deploy/archives/build $(BIN)/release

tags: ## Tag every module at HEAD as others can use it (VERSION=v1.2.3); then push the tags
	cd tools/release && GOWORK=off go run . --version $(VERSION) --tag

lint: $(BIN)/.checkers ## Run the linters over Go and proto
	$(BIN)/golangci-lint run $(MODULES:%=./%/...)
	@for module in tools tools/deploytest tools/record tools/release; do (cd $$module && GOWORK=off $(BIN)/golangci-lint run ./...) || exit 1; done
	$(BIN)/buf lint

generate: $(BIN)/.checkers ## Generate Go and docs/api.md from the proto files and pkg/api/reason.go
	$(BIN)/buf generate

kernels: ## Compile the CUDA kernels to PTX, which takes Debian's clang-19
	pkg/engine/cuda/internal/kernels/compile

kernels-check: ## Check the CUDA kernels on a CPU, on eight times as many shapes as CI (takes C++)
	library=$$(go test -count=1 -v -run '^TestLibrary$$' ./pkg/engine/cuda/cudatest | grep -o '/.*/libcuda\.so\.1') && \
	mkdir -p $(BIN) && pkg/engine/cuda/internal/kernels/check/build $(BIN)/kernels-check "$$library" && $(BIN)/kernels-check long

gpu-check: ## Build the check of a GPU into .bin/gpu-check, and run it where there is a driver
	@bash deploy/gpu-check/build $(BIN)/gpu-check
	@if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then bash $(BIN)/gpu-check/check --out $(BIN)/gpu-check-results; \
	else echo "no CUDA driver here (libcuda.so.1): copy $(BIN)/gpu-check to a machine with one and run its check there"; fi

tidy: ## Bring every go.mod and go.sum up to date, with equal versions
	go work sync
	@for module in $(MODULES) tools tools/deploytest tools/record tools/release tools/compose; do (cd $$module && GOWORK=off go mod tidy) || exit 1; done

servers: $(BIN)/.servers ## Build etcd and nats-server into .bin/, for a mesh of processes

tools: $(BIN)/.servers $(BIN)/.checkers ## Build all tools into .bin/: the servers, buf, its plugins, the linter

$(BIN)/.servers $(BIN)/.checkers: $(BIN)/.%: tools/build tools/go.mod tools/go.sum $(wildcard tools/etcd/*.go tools/protoc-gen-apidoc/*.go)
	bash tools/build $*
	@touch $@

ci: ## Run what CI runs
	bash .ci/run
