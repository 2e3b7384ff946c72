# Every target works from a fresh clone with nothing but Python >= 3.11: it makes its own .venv and keeps to this folder.
#
#   PYTHON=...         the interpreter .venv is made with (default: the first one found that is new enough)
#   ARGS=...           more arguments for pytest:  make test ARGS="-k onsager"
#   JAX_PLATFORMS=...  cpu unless you say otherwise:  make bench JAX_PLATFORMS=cuda

VENV   := .venv
BIN    := $(VENV)/bin
OUT    := out
comma  := ,
PIP    := $(BIN)/python -m pip --disable-pip-version-check
UV     := $(BIN)/uv pip install --quiet --python $(BIN)/python
PYTEST := $(BIN)/python -m pytest

# One stamp per set of packages; a set is installed again when pyproject.toml changes.
MADE := $(VENV)/.made
DEMO := $(VENV)/.installed-demo
DEV  := $(VENV)/.installed-dev

CANDIDATES := $(if $(PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)

JAX_PLATFORMS ?= cpu
export JAX_PLATFORMS

# Nothing from outside comes in, and nothing is left outside. Bytecode is kept: without it a process reads jax for 1.6 s longer.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE := 1
PIP_CACHE_DIR ?= $(CURDIR)/.cache/pip
export PIP_CACHE_DIR
export PIP_NO_INPUT := 1
UV_CACHE_DIR ?= $(CURDIR)/.cache/uv
export UV_CACHE_DIR
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/.cache/pyright
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib
export IPYTHONDIR := $(CURDIR)/.cache/ipython
export JUPYTER_CONFIG_DIR := $(CURDIR)/.cache/jupyter
export JUPYTER_DATA_DIR := $(CURDIR)/.cache/jupyter
export JUPYTER_RUNTIME_DIR := $(CURDIR)/.cache/jupyter/runtime
export MPLBACKEND := Agg

# What was compiled once, tests, notebooks and the demo do not compile again: a gigabyte of programs at most, here. JAXSMI_CACHE=off: none.
ifneq ($(JAXSMI_CACHE),off)
demo: export JAXSMI_CACHE := $(CURDIR)/.cache/programs
test examples suite validate notebooks figures: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.cache/programs
test examples suite validate notebooks figures: export JAX_COMPILATION_CACHE_MAX_SIZE := 1073741824
test examples suite validate notebooks figures: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0.1
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test examples suite validate bench notebooks figures docs dist lint format clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO)  ## learn a deep attention model, and say where the results lie (under out/)
	$(BIN)/jaxsmi run deep-attention --dimension 500 --tolerance 0.01 --out $(OUT) --overwrite
	@echo
	@echo "The results lie in $(OUT)/:"
	@find $(OUT) -type f | sort | sed 's/^/  /'

# Most of the fast suite is compilation: conftest.py calls smi.setup(), whose flags of XLA halve it.
define TESTING
run() { echo "$(PYTEST) -n 2 --dist worksteal $$*"; $(PYTEST) -n 2 --dist worksteal "$$@"; };
endef

test: $(if $(ARGS),$(DEV),examples suite)  ## doctests and notebooks, then the test suite (minutes, CPU)
	$(if $(ARGS),@$(TESTING) run -q $(ARGS))

examples: $(DEV)  ## doctests and notebooks
	@$(TESTING) run -q --doctest-modules jaxsmi tests/notebooks

suite: $(DEV)  ## the test suite
	@$(TESTING) run -q --ignore=tests/notebooks

validate: $(DEV)  ## the slow tests: physics at full size, published figures (hours; a line a test)
	@$(TESTING) run -v -m "slow and not gpu" --durations=60 --doctest-modules $(or $(ARGS),jaxsmi tests)

bench: $(DEV)  ## the benchmarks, into out/report.html and .json; fails where a ratio has become worse
	@mkdir -p $(OUT)
	$(PYTEST) benchmarks --benchmark-only --benchmark-json=$(OUT)/benchmarks.json $(ARGS)
	$(BIN)/python benchmarks/report.py $(OUT)

notebooks: $(DEV)  ## execute the notebooks at full size and write them with their outputs (ARGS=03 for one of them)
	$(BIN)/python notebooks/execute.py $(ARGS)

figures: $(DEV)  ## run the figure scripts, into out/figures (ARGS=spectral for one of them, ARGS="spectral --quick" at small size)
	@set -e; for script in $(or $(filter-out --%,$(ARGS)),$(notdir $(basename $(wildcard notebooks/figures/[a-z]*.py)))); do \
	    echo "$$script"; $(BIN)/python notebooks/figures/$$script.py $(filter --%,$(ARGS)); \
	done

# Node's wheel renders the formulas; nothing is fetched, and what Sphinx warns of ends the build.
docs: $(DEV)  ## the documentation as a site, out/site/index.html
	rm -rf $(OUT)/site
	$(BIN)/python -m sphinx -q -b html -W --keep-going -c docs -d $(OUT)/doctrees . $(OUT)/site

dist: $(DEV)  ## wheel and sdist, into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

lint: $(DEV)  ## ruff (rules and format) and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pyright

format: $(DEV)  ## let ruff format the code and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove caches and build products (out/ and .venv stay)
	rm -rf build dist *.egg-info .benchmarks .coverage htmlcov .pytest_cache .ruff_cache .cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv
	rm -rf $(VENV)

# A Python without ensurepip cannot make a working venv (Debian keeps it in a package of its own): look further.
$(MADE):
	@found=; for python in $(CANDIDATES); do \
	    if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	    then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "jaxsmi needs Python 3.11 or newer, with its venv and ensurepip modules. Tried: $(CANDIDATES)." >&2; \
	    echo "Install one (on Debian and Ubuntu: python3 and python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	fi; \
	echo "Making $(VENV) with $$($$found --version)"; \
	$$found -m venv --clear $(VENV)
	@touch $@

# uv installs the development tools in 9 seconds, pip in 59. It does not read pip's settings (a mirror, a proxy): where it fails, pip installs.
# Modules are compiled when they are imported, most never are (--no-compile; uv compiles none unless told, as for the demo).
define INSTALL
	@echo "Installing jaxsmi $(1) (half a minute or more, the first time)"
	@$(PIP) install --no-compile --quiet uv && $(UV) $(3) -e '.[$(2)]' \
	    || $(PIP) install --no-compile --quiet -e '.[$(2)]'
endef

$(DEMO): pyproject.toml $(MADE)
	$(call INSTALL,for the demo,plot$(comma)data,--compile-bytecode)
	@touch $@

# The development set contains the demo's.
$(DEV): pyproject.toml $(MADE)
	$(call INSTALL,and the development tools,all$(comma)dev$(comma)docs)
	@touch $(DEMO) $@
