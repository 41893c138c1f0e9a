PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
CONSTRAINTS ?= constraints.txt
INSTALLED = $(VENV)/.installed
COMPILED = $(VENV)/.compiled
FUZZED ?= $(patsubst tests/fuzz/readers/%.py,%,$(wildcard tests/fuzz/readers/*.py))
FUZZ_RUNS ?= 1000000
# The tests start many processes. Python writes what one of them compiles, so that the others only read it. Some
# environments forbid that.
export PYTHONDONTWRITEBYTECODE =

.PHONY: install demo test pytest test-fast check fix api docs sanitize torture fuzz bench release-check images hosts clean

install: $(INSTALLED)

# The pip of Python 3.11 needs a minute more to find the packages.
$(INSTALLED): pyproject.toml constraints.txt setup.py $(shell find pipeline student -path '*/cpp/*')
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c $(CONSTRAINTS) pip
	$(BIN)/pip install --quiet --no-compile -c $(CONSTRAINTS) -e '.[teacher,augment,prompt,ray,onnx,s3,report,results,serve,docs,dev]'
	touch $@

# The first collection compiles the tests and the modules that they import. Otherwise both workers would do it.
$(COMPILED): $(INSTALLED)
	$(BIN)/pytest --quiet --collect-only > $(VENV)/collected || true
	touch $@

demo: install
	$(BIN)/distill quickstart --demo

test: install check docs pytest

# Apart from the checks, so that make -j 2 starts the tests while types are still checked.
pytest: install $(COMPILED)
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-fast: install
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow"

check: api
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.prose

fix: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

api: install
	$(BIN)/python -m distill.commands.stub

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

gpu: install
	$(BIN)/python -m tests.gpu

sanitize: install
	tests/sanitize.sh $(abspath $(BIN)/python)

torture: install
	$(BIN)/python -m tests.torture --results torture.jsonl

fuzz: install
	$(BIN)/pip install --quiet -c $(CONSTRAINTS) -e '.[fuzz]'
	for reader in $(FUZZED); do $(BIN)/python -m tests.fuzz $$reader -runs=$(FUZZ_RUNS) || exit 1; done
	$(BIN)/python -m tests.fuzz.coverage $(FUZZED)
	$(BIN)/python -m tests.fuzz.queries
	$(BIN)/python -m tests.fuzz.flips

release-check:
	rm -rf build/release
	tests/release.sh $(PYTHON) build/release

images:
	tests/images.sh $(IMAGE_FLAGS)

hosts: install
	tests/hosts.sh $(abspath $(BIN)/python) -m tests.hosts

bench: install
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV) build *.egg-info demo
