"""Packages are built as a user would build them, and installed where nothing else is.

The interpreters are those of the environment variable INSTALL_TEST_PYTHONS (paths
joined by os.pathsep), or the one that runs the tests.  pip takes what it needs
from the package index that it is set up for.
"""

import os
import platform
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import zcloop

pytestmark = pytest.mark.install

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = os.environ.get("INSTALL_TEST_PYTHONS", sys.executable).split(os.pathsep)

# What a first user does, with warnings as errors.
USE = """
import asyncio, importlib.metadata, sys, zcloop

async def echo(reader, writer):
    writer.write(await reader.read(100))
    writer.close()
    await writer.wait_closed()

async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer, type(asyncio.get_running_loop())

assert zcloop.run(main()) == (b"hello", zcloop.EventLoop)
assert zcloop.capabilities()["nested_epoll"]
assert importlib.metadata.version("zcloop") == zcloop.__version__
assert zcloop.engine.lib.__name__ == "zcloop._native.lib"
print(zcloop.__file__)
"""


def clean_environment():
    """The environment without what would let a Python look outside its own installation,
    and without what an outer make tells an inner one."""
    outer = ("PYTHON", "MAKE", "MFLAGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(outer)}


def run(*command, cwd, env=None, expect=0):
    """Run a command; its output, standard error included.  A wrong status fails the test."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env or clean_environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if (done.returncode == 0) != (expect == 0):
        pytest.fail(f"{command} ended with {done.returncode}:\n{done.stdout}", pytrace=False)
    return done.stdout


def one_line(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """(sdist, wheel); `python -m build` makes the wheel from the sdist, not from the tree."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
    [sdist], [wheel] = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(params=PYTHONS, ids=[Path(path).parents[1].name for path in PYTHONS])
def clean(request, tmp_path):
    """The Python of a new virtual environment."""
    folder = tmp_path / "venv"
    run(request.param, "-m", "venv", folder, cwd=tmp_path)
    return folder / "bin" / "python"


def install(python, *arguments, cwd):
    run(python, "-m", "pip", "--disable-pip-version-check", "install", *arguments, cwd=cwd)
    run(python, "-m", "pip", "check", cwd=cwd)


def use(python, cwd):
    """Run USE in an empty folder; where the package was imported from."""
    return Path(run(python, "-W", "error", "-c", USE, cwd=cwd).strip())


def test_the_wheel_is_for_every_supported_python(packages):
    _, wheel = packages
    assert re.fullmatch(
        rf"zcloop-{re.escape(zcloop.__version__)}-cp311-abi3-linux_\w+\.whl", wheel.name
    )


def test_the_wheel_holds_the_package_and_nothing_else(packages):
    with zipfile.ZipFile(packages[1]) as archive:
        names = archive.namelist()
    sources = {
        f"zcloop/{path.relative_to(ROOT / 'zcloop')}"
        for path in (ROOT / "zcloop").rglob("*")
        if path.suffix in {".py", ".pyi", ".typed", ".html", ".css", ".js", ".svg"}
    }
    assert sources | {"zcloop/_native.abi3.so"} == {n for n in names if n.startswith("zcloop/")}
    [licence] = [name for name in names if name.endswith("LICENSE")]
    info = licence.split("/")[0]
    assert all(name.startswith(("zcloop/", f"{info}/")) for name in names)


def test_the_sdist_holds_what_building_and_testing_need(packages):
    with tarfile.open(packages[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "Makefile",
        "native/zcloop.h",
        "native/binding/generate.py",
        "native/tests/support.h",
        "tests/test_install.py",
        "zcloop/_native.pyi",
    } <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops.isdisjoint({".git", ".venv", ".ci", "build", "dist"})
    assert not [name for name in names if "__pycache__" in name or name.endswith((".so", ".o"))]


def test_the_wheel_works_in_a_clean_environment(packages, clean, tmp_path):
    install(clean, packages[1], cwd=tmp_path)
    assert use(clean, tmp_path).is_relative_to(tmp_path)


def test_pip_install_from_the_source_tree_works(clean, tmp_path):
    install(clean, ROOT, cwd=tmp_path)
    assert use(clean, tmp_path).is_relative_to(tmp_path)


def test_an_editable_install_works_and_uses_the_tree(clean, tmp_path):
    install(clean, "--editable", ROOT, cwd=tmp_path)
    assert use(clean, tmp_path) == ROOT / "zcloop" / "__init__.py"


def test_pip_install_without_a_compiler_says_so(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    env = clean_environment() | {"PATH": str(tmp_path)}
    env.pop("CC", None)
    output = run(python, "-m", "pip", "install", "--no-deps", ROOT, cwd=tmp_path, env=env, expect=1)
    assert (
        one_line(output).count(
            "zcloop: no C compiler was found, and the native core must be compiled; install gcc "
            "(Debian, Ubuntu: apt install gcc libc6-dev) or set CC."
        )
        == 1
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["-DCMAKE_SYSTEM_NAME=Darwin"],
            "zcloop: this system is Darwin, and zcloop needs Linux (epoll, MSG_ZEROCOPY, "
            "TCP_ZEROCOPY_RECEIVE); use uvloop or asyncio here.",
        ),
        (
            [
                "-DZCLOOP_BUILD_MODULE=ON",
                f"-DPython_EXECUTABLE={sys.executable}",
                "-DPython_INCLUDE_DIR=/nonexistent",
            ],
            f"zcloop: the C header Python.h of {sys.executable} was not found; install this "
            "interpreter's development files (Debian, Ubuntu: apt install python3-dev).",
        ),
    ],
    ids=["another system", "no Python.h"],
)
def test_what_the_build_lacks_is_named_in_one_sentence(options, sentence, tmp_path):
    ninja = Path(sys.executable).with_name("ninja")
    output = run(
        sys.executable,
        "-m",
        "cmake",
        "-S",
        ROOT / "native",
        "-B",
        tmp_path,
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        *options,
        cwd=tmp_path,
        expect=1,
    )
    assert one_line(output).count(sentence) == 1
    assert output.count("CMake Error") == 1


@pytest.mark.parametrize(
    ("lacks", "sentence"),
    [
        ("version_info", "is Python {version} and zcloop needs 3.11 or newer"),
        (
            "ensurepip",
            "has no venv module; install it (Debian and Ubuntu: apt install python3-venv)",
        ),
        ("Python.h", "was not found; install it (Debian and Ubuntu: apt install python3-dev)"),
    ],
)
def test_make_names_what_the_python_lacks(lacks, sentence, tmp_path):
    """A Python that fails when asked about one thing stands for one without it."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *{lacks}*) exit 1;; esac\nexec \'{sys.executable}\' "$@"\n'
    )
    python.chmod(0o755)
    output = run("make", "check-tools", f"PYTHON={python}", cwd=ROOT, expect=1)
    said = output.splitlines()[0]
    assert said.startswith("zcloop: ") and str(python) in said
    assert sentence.format(version=platform.python_version()) in said


def test_make_says_that_there_is_no_python():
    output = run("make", "check-tools", "PYTHON=no-such-python", cwd=ROOT, expect=1)
    assert output.startswith("zcloop: 'no-such-python' was not found; install Python 3.11 or newer")


def test_the_package_refuses_another_system_when_imported():
    script = "import sys; sys.platform = 'darwin'; import zcloop"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(
        r"^ImportError: zcloop runs on Linux only \(this is darwin\)", done.stderr, re.MULTILINE
    )
