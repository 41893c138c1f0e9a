PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: install demo test check sanitize bench clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt setup.py $(shell find pipeline student -path '*/cpp/*')
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[teacher,pos,sweep,onnx,s3,report,dev]'
	touch $@

demo: install
	$(BIN)/distill demo

test: check
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

sanitize: install
	tests/sanitize.sh $(abspath $(BIN)/python)

bench: install
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV) build *.egg-info demo
