# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
VIDUR_VENV := .venv-vidur
TORCH_CPU := https://download.pytorch.org/whl/cpu

.PHONY: demo demo-live test test-vllm test-vidur lint types unit soak bench bench-live results results-vidur clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "bidroute needs Python >= 3.11, this is %d.%d; run: make PYTHON=python3.12 ..." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.installed-serve: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[serve]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## compare routing policies on a built-in workload; writes demo.html
	$(BIN)/bidroute compare --trace builtin:azure-conv-like --html demo.html

demo-live: $(VENV)/.installed-serve  ## the live router on three unlike stand-in workers, against round robin
	$(BIN)/bidroute demo-live

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 -rs

test: lint types unit  ## lint, types and all the tests

soak: $(VENV)/.installed-dev  ## 10 000 requests over ten workers while everything breaks; takes minutes
	$(BIN)/python -m tests.soak

# torch's CPU build is asked for where pip looks anyway, then at its own index; all the rest comes from the first only.
$(VLLM_VENV)/.installed: tests/vllm/requirements.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v[:2] in ((3, 11), (3, 12)) else "vLLM needs Python 3.11 or 3.12 here, this is %d.%d; run: make PYTHON=python3.12 test-vllm" % v[:2])'
	@$(PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || { echo "vLLM needs libnuma (on Debian: apt-get install libnuma1)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	torch=$$(grep '^torch==' $<); pip="$(VLLM_VENV)/bin/pip install --quiet --no-deps"; \
	{ $$pip "$$torch" 2>/dev/null || $$pip --index-url $(TORCH_CPU) "$$torch"; } && $$pip -r $< || \
	{ echo "vLLM could not be installed, so nothing was tested on real engines: see what pip says above." >&2; exit 1; }
	@touch $@

# Makes an environment with vLLM (2 GB), or uses the one whose python is named by BIDROUTE_VLLM_PYTHON.
test-vllm: $(VENV)/.installed-dev $(if $(BIDROUTE_VLLM_PYTHON),,$(VLLM_VENV)/.installed)  ## the router in front of three real vLLM engines on the CPU
	BIDROUTE_VLLM_PYTHON=$(or $(BIDROUTE_VLLM_PYTHON),$(CURDIR)/$(VLLM_VENV)/bin/python) $(BIN)/pytest -m vllm tests/vllm

$(VIDUR_VENV)/.installed: tests/vidur/requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v[:2] <= (3, 13) else "Vidur needs Python 3.11 to 3.13, this is %d.%d; run: make PYTHON=python3.12 test-vidur" % v[:2])'
	$(PYTHON) -m venv --clear $(VIDUR_VENV)
	$(VIDUR_VENV)/bin/pip install --quiet --no-deps -r $<
	$(VIDUR_VENV)/bin/pip install --quiet --no-deps -e .
	@touch $@

# Makes an environment with Vidur (0.8 GB), as for results-vidur.
test-vidur: $(VIDUR_VENV)/.installed  ## the policies inside the Vidur simulator, against our own
	$(VIDUR_VENV)/bin/python -m pytest -m vidur tests/vidur

bench: $(VENV)/.installed  ## time the simulator, decisions and price updates
	$(BIN)/bidroute bench

bench-live: $(VENV)/.installed-dev  ## what the live router costs, beside other routers where they are installed
	$(BIN)/python -m tests.bench_live

# What is there already is not made again. Traces that do not ship: make results AZURE_CONV=azure_conv.csv
results: $(VENV)/.installed  ## make docs/results/ again: every table and figure of docs/results.md; takes an hour
	$(BIN)/python -m tools.results $(if $(AZURE_CONV),--azure-conv $(AZURE_CONV)) $(RESULTS)

# What its journal has from the same code is not run again. Fewer runs: make results-vidur RESULTS='--only kv-over --seeds 1'
results-vidur: $(VIDUR_VENV)/.installed  ## run the paper's experiments in Vidur: the tables of docs/vidur.md; takes half an hour
	$(VIDUR_VENV)/bin/python -m tools.results_vidur $(RESULTS)

clean:  ## remove what make made
	rm -rf $(VENV) $(VLLM_VENV) $(VIDUR_VENV) .mypy_cache .ruff_cache .pytest_cache demo.html
