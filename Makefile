# Two commands do everything from a fresh clone: `make demo` and `make test`. They need Python 3.11 or newer with venv,
# and a C compiler. PYTHON chooses the interpreter, VENV the folder of the virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOURCES = $(wildcard kernels/*.pyx kernels/*.pxd kernels/*.h) setup.py pyproject.toml

.PHONY: demo test lint bench dist build-inplace clean

demo: $(VENV)/.installed-cli
	$(BIN)/fedvar-fast demo

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/compare.py

# A wheel and a source distribution, each installed into an environment of its own and tried outside this folder.
dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	VENV=$(abspath $(VENV)) PYTHON=$(PYTHON) sh tests/try_distributions.sh dist

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedvar_fast needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

# Editable, so that a changed Python file counts at once; a changed kernel is built again.
$(VENV)/.installed-%: $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info kernels/*.c fedvar_fast/kernels/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +
