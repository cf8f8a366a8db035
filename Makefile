# Every target creates .venv and installs what it needs, if that is missing or out of date. $(ARGS) is passed on:
# make pytest ARGS='-k domains', make reproduce ARGS=--quick.
PYTHON ?= python3
BIN := .venv/bin

# Some virtual machines list AMX among the CPU's features but forbid it: bfloat16 products would crash there.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE

.PHONY: help reproduce test pytest test-integrations test-sanitized test-torch test-platforms fuzz analyze lint format bench advice publish docs build test-build test-wheels sbom audit release test-readme test-targets clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 26

reproduce: .venv/ready ## run the paper's experiments, judge its claims, write results/report.html (about 8 minutes)
	@echo "reproduce: the paper's experiments"
	@$(BIN)/python -m reproduction $(ARGS)

test: .venv/ready-test ## lint, types, doctests and tests
	@$(MAKE) --no-print-directory -j 2 lint pytest

pytest: .venv/ready-test ## doctests and tests
	@echo "test: doctests and tests"
	@$(BIN)/python -m pytest -n 2 $(ARGS)

# ARGS may select no test of one of the two: pytest then ends with 5.
test-integrations: .venv/ready-integrations ## tests against other libraries, in a browser, on downloaded data, and of GPU kernels in an interpreter
	@echo "test-integrations: tests against TorchRec, FBGEMM, Transformers, Accelerate, Lightning, optax and pytorch-optimizer, in a browser, and on MovieLens"
	@INTEGRATIONS=1 $(BIN)/python -m pytest -n 2 tests/integration tests/benchmarks/test_advice_tasks.py $(ARGS) || test $$? = 5
	@echo "test-integrations: the Triton kernels, in Triton's interpreter"
	@TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 tests/triton $(ARGS) || test $$? = 5

SANITIZED := build/sanitized/_kernels.so
test-sanitized: .venv/ready-test ## the native kernels under the address and undefined-behaviour sanitizers
	@echo "test-sanitized: the kernels' tests, with every memory access checked"
	@mkdir -p $(dir $(SANITIZED))
	@ls src/matrix_adagrad/native/*.c | xargs -P 2 -I SOURCE sh -c '$(CC) -std=gnu11 -g -O1 -fPIC -fopenmp -Wall -Wextra -Werror \
	  -Wno-psabi -ffp-contract=off -fno-math-errno -fno-trapping-math -fsanitize=address,undefined -fno-sanitize-recover=all \
	  -c SOURCE -o $(dir $(SANITIZED))$$(basename SOURCE .c).o'
	@$(CC) -shared -fopenmp -fsanitize=address,undefined $(dir $(SANITIZED))*.o -o $(SANITIZED) -lm
	@ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest -q -n 2 -m "not separate_process" --kernels $(SANITIZED) tests/optim/test_fused.py \
	  tests/optim/test_sparse.py tests/bags tests/domains/test_native.py tests/native $(ARGS)

test-torch: ## tests with another release of torch, by hand: make test-torch TORCH=2.9.1 PYTHON=python3.12 (several GB)
	@test -n "$(TORCH)" || { echo "test-torch: which release? make test-torch TORCH=2.9.1"; exit 1; }
	@$(PYTHON) .ci/torch_release.py $(TORCH) $(ARGS)

test-platforms: ## compare the kernels' bits among gcc, clang, processors without AVX, and aarch64 (cross compiler, QEMU)
	@$(PYTHON) .ci/platforms.py

FUZZ_SECONDS ?= 60
fuzz: ## the native kernels on random calls, for FUZZ_SECONDS in all (needs clang)
	@echo "fuzz: $(FUZZ_SECONDS) seconds, after compiling"
	@$(PYTHON) .ci/fuzz.py $(FUZZ_SECONDS) $(ARGS)

CLANG_TIDY ?= clang-tidy
ANALYZED := $(wildcard src/matrix_adagrad/native/*.c)
# gcc's analyzer follows pointers and memory from call to call. The arithmetic has none of that, and takes it very long.
FOLLOWED := $(filter-out %/tiles.c %/tiles_avx2.c %/tiles_avx512.c,$(ANALYZED))
analyze: ## static analysis of the native kernels (needs gcc and clang-tidy)
	@command -v $(CLANG_TIDY) > /dev/null || { echo "analyze: $(CLANG_TIDY) is missing: install it"; exit 1; }
	@echo "analyze: gcc -fanalyzer"
	@ls $(FOLLOWED) | xargs -P 2 -I SOURCE gcc -std=gnu11 -O1 -fopenmp -Wall -Wextra -Wno-psabi -Werror -fanalyzer \
	  -c SOURCE -o /dev/null
	@echo "analyze: clang-tidy"
	@$(CLANG_TIDY) --quiet --warnings-as-errors='*' $(ANALYZED) -- -std=gnu11 -Wno-unknown-pragmas

C_FILES := $(wildcard src/matrix_adagrad/native/*.[ch] tests/fuzz/*.[ch] tests/native/*.c)
lint: .venv/ready-test ## style and types
	@echo "lint: ruff, mypy and clang-format"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)

format: .venv/ready-test ## rewrite the code in the project's style
	@echo "format: ruff and clang-format"
	@$(BIN)/ruff check --quiet --fix
	@$(BIN)/ruff format --quiet
	@$(BIN)/clang-format -i $(C_FILES)

bench: .venv/ready-bench ## time and memory of a step, compared with peers (about 3 minutes)
	@echo "bench: one step of each optimizer, interleaved, as ratios of medians"
	@$(BIN)/python -m benchmarks.speed $(ARGS)
	@echo "bench: memory with steps in the backward pass"
	@$(BIN)/python -m benchmarks.in_backward $(filter-out --quick,$(ARGS))

advice: .venv/ready-bench ## is the advisor's advice any good? (about 12 minutes, into results/advice/)
	@echo "advice: the advisor's choices, compared with full-length runs"
	@$(BIN)/python -m benchmarks.advice $(ARGS)

publish: .venv/ready ## copy the results of make reproduce to docs/reproduction.md and docs/results/
	@echo "publish: claims and figures of the full run, into docs/"
	@PYTHONPATH=. $(BIN)/python docs/publish.py

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/matrix_adagrad/version.py)
docs: .venv/ready-docs ## the documentation, in site/, beside the versions that are there
	@echo "docs: sphinx, strict, into site/$(VERSION)/"
	@$(BIN)/sphinx-build -W --keep-going -q -b html -d build/doctrees docs site/$(VERSION)
	@$(BIN)/python docs/versions.py site

# Two wheels of one version cannot be installed at once, so the pure wheel gets its own folder, and dist/*.whl is the one
# for this machine.
build: build/venv-build/ready ## release files: sdist and wheel with kernels in dist/, the wheel without them in dist/pure/
	@echo "build: sdist and wheels into dist/"
	@$(BUILD)/python .ci/build.py
	@ls dist dist/pure

test-build: build ## build the release files again, elsewhere: they have the same bytes
	@echo "test-build: in another folder, compared with dist/"
	@$(BUILD)/python .ci/build.py --again

test-wheels: build ## test both wheels, one after the other, in an empty venv
	@echo "test-wheels: in an empty venv"
	@rm -rf build/venv && $(PYTHON) -m venv build/venv
	@build/venv/bin/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt dist/*.whl
	@$(SMOKE) kernels
	@build/venv/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/pure/*.whl
	@$(SMOKE) pure
	@cd build && venv/bin/matrix-adagrad regret --rounds 50 > /dev/null
	@cd build && venv/bin/matrix-adagrad advise --demo mlp --steps 16 --seeds 2 --family adagrad; test $$? = 4
	@rm -rf build/advice
SMOKE := build/venv/bin/python -W error -W "ignore:Failed to initialize NumPy" .ci/smoke.py README.md

sbom: test-wheels build/venv-audit/ready ## what an installed wheel consists of, as CycloneDX, in dist/sbom.cdx.json
	@echo "sbom: the packages that were installed with the wheel"
	@sed 's/^dynamic = \["version"\]/version = "$(VERSION)"/' pyproject.toml > build/pyproject.toml
	@$(AUDIT)/cyclonedx-py environment --output-reproducible --pyproject build/pyproject.toml --mc-type library \
	  --output-file dist/sbom.cdx.json build/venv
	@rm -rf build/venv
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/matrix_adagrad/version.py)

audit: build/venv-audit/ready ## known vulnerabilities of what is tested together, and of the tools that build
	@echo "audit: constraints.txt, .ci/build.txt and .ci/audit.txt, by pip-audit"
	@$(AUDIT)/python .ci/audit.py constraints.txt .ci/build.txt .ci/audit.txt

release: ## everything before an upload: checks, files, their bill of materials and sums, and a message for the tag
	@$(PYTHON) .ci/release.py

test-readme: ## run every command in the README, in an empty venv
	@$(PYTHON) .ci/readme.py

test-targets: ## run every target in its own clone with an empty home; slow ones only in part
	@$(PYTHON) .ci/targets.py

clean: ## remove everything that make created
	@rm -rf .venv build dist site src/*.egg-info src/matrix_adagrad/native/*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache

SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/matrix_adagrad/native/*.[ch])
# No bytecode is compiled ahead of time: most of what is installed is never imported.
PIP := $(BIN)/pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --no-compile -c constraints.txt

# What builds a release, and what describes and audits it: each with the digests of its files.
BUILD := build/venv-build/bin
AUDIT := build/venv-audit/bin
build/venv-%/ready: .ci/%.txt
	@echo "setup: build/venv-$*"
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r $<
	@touch $@

.venv/ready: $(SOURCES)
	@echo "setup: .venv with matrix-adagrad"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@$(INSTALL) -e '.[reproduction]'
	@touch $@

# All in one call: a second one would build the kernels again.
.venv/ready-%: $(SOURCES)
	@echo "setup: .venv with matrix-adagrad, for $*"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@$(INSTALL) -e '.[reproduction,$*]'
	@case $* in integrations|bench) $(INSTALL) --no-deps fbgemm-gpu-cpu torchrec;; esac
	@touch .venv/ready $@
