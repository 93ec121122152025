# Everything happens in a virtual environment (VENV) made with PYTHON.  Needed on
# the machine: Linux, python3 >= 3.11 with venv and Python.h, a C compiler, make;
# CMake and Ninja come from PyPI.
#
#   make test            build, then the Python test suite
#   make test-ecosystem  aiohttp, uvicorn, asyncpg, distributed and others on the loop
#   make test-demo       the tests of the demo, its page in Chromium included
#   make demo            the web page that compares the loops
#   make bench           build, then the benchmarks
#   make build           build again after a change in native/
#   make lint types      ruff; mypy
#   make test-native     C tests; test-native-asan: the same under ASan and UBSan
#   make conformance     CPython's own asyncio tests on zcloop
#   make test-nic        tests on emulated network cards, in a guest of its own (needs QEMU)
#   make dist            sdist and wheel into dist/
#   make clean           remove what these made
#
#   make test PYTHON=python3.13 VENV=.venv-3.13 ARGS='-k stub -x'

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

bin := $(VENV)/bin
# One stamp for each set of extras; the interpreter's version is part of it, so that
# another PYTHON makes the environment anew.
version := $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)
ready   := $(VENV)/.ready-$(version)
native  := $(wildcard native/*.c native/*.h native/CMakeLists.txt native/binding/*)

.PHONY: build test test-ecosystem demo test-demo bench lint types test-native test-native-asan \
    test-nic conformance dist clean check-tools check-browser
.DELETE_ON_ERROR:

build: $(ready)

test: $(ready)
	$(bin)/python -m pytest --ignore tests/ecosystem --ignore tests/demo $(ARGS)

# Apart, so that nobody needs forty packages to test zcloop, and no release of any of
# them stands in the way of those who do.
test-ecosystem: $(ready)-ecosystem
	$(bin)/python -m pytest tests/ecosystem $(ARGS)

demo: $(ready)-demo
	$(bin)/python -m zcloop demo $(ARGS)

test-demo: $(ready)-browser | check-browser
	$(bin)/python -m pytest tests/demo --browser $(ARGS)

bench: $(ready)-bench
	$(bin)/python -m benchmarks $(ARGS)

lint: $(ready)-lint
	$(bin)/ruff check .

types: $(ready)-lint
	$(bin)/mypy

conformance: $(ready)
	$(bin)/python -m tests.conformance --compare uvloop $(ARGS)

test-nic: $(ready)
	$(bin)/python -m tests.nic $(ARGS)

dist: $(ready)
	$(bin)/python -m build --outdir dist .

test-native: $(ready)
	$(call ctest,build/native)

test-native-asan: $(ready)
	$(call ctest,build/native-asan,-DZCLOOP_SANITIZE=ON)

# ctest(build folder, further CMake options)
define ctest
	$(bin)/cmake -S native -B $(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(bin)/ninja) \
	    -DZCLOOP_BUILD_TESTS=ON -DZCLOOP_WERROR=ON $(2) --log-level=WARNING
	$(bin)/cmake --build $(1)
	$(bin)/ctest --test-dir $(1) --verbose --no-tests=error $(ARGS)
endef

$(ready): pyproject.toml README.md $(native) | check-tools
	@test -e $@ || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	$(bin)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

$(ready)-%: $(ready)
	$(bin)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,$*]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One sentence for each thing that may be missing.
check-tools:
	@test "$$(uname -s)" = Linux || $(call missing,this system is $$(uname -s) and zcloop needs Linux; use uvloop or asyncio here)
	@command -v $(PYTHON) >/dev/null || $(call missing,'$(PYTHON)' was not found; install Python 3.11 or newer or name one with PYTHON=path)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || $(call missing,'$(PYTHON)' is Python $(version) and zcloop needs 3.11 or newer; name one with PYTHON=path)
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(call missing,'$(PYTHON)' has no venv module; install it (Debian and Ubuntu: apt install python3-venv))
	@$(PYTHON) -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' || $(call missing,the C header Python.h of '$(PYTHON)' was not found; install it (Debian and Ubuntu: apt install python3-dev))
	@command -v $${CC:-cc} >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || $(call missing,no C compiler was found; install one (Debian and Ubuntu: apt install gcc libc6-dev) or set CC)
check-browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || $(call missing,Chromium or its driver was not found and the demo is tested in it; install them (Debian and Ubuntu: apt install chromium chromium-driver))
missing = { echo "zcloop: $(1)." >&2; exit 1; }
