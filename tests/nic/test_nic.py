"""The host's half: what `make test` doesn't run is named, and no run passes without its tests.

The tests on the cards are in guest/, and `make test-nic` runs them; they are no part of this one.
"""
import platform
import subprocess
import sys

import pytest

from . import CannotRun, __main__, guest, kernel


def pytest_on(*arguments):
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
                          cwd=guest.ROOT, capture_output=True, text=True)


def test_a_plain_run_collects_no_test_of_the_guest():
    listing = pytest_on("--collect-only", "-q", "tests/nic")
    assert listing.returncode == 0, listing.stdout
    assert "tests/nic/test_nic.py::" in listing.stdout
    assert "guest/" not in listing.stdout


def test_on_the_host_they_say_where_they_run():
    refused = pytest_on("tests/nic/guest")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "'make test-nic'" in refused.stderr


# -- the verdict --------------------------------------------------------------------------------


@pytest.mark.parametrize("console, status", [
    ("1 passed\ntests.nic: ended with status 0\r\nreboot: Power down\n", 0),
    ("1 failed\ntests.nic: ended with status 1\n", 1),
    ("no tests ran\ntests.nic: ended with status 5\n", 5),
    ("1 passed\nKernel panic\n", 1),
    ("a test prints tests.nic: ended with status 0\n", 1),
    ("", 1),
])
def test_only_the_guests_own_word_is_a_pass(console, status, capsysbinary):
    script = "import sys; sys.stdout.write(sys.argv[1])"
    assert guest.watch([sys.executable, "-c", script, console]) == status
    assert console.replace("\r", "").encode() in capsysbinary.readouterr().out


def test_a_guest_that_hangs_is_ended(capsysbinary):
    hung = [sys.executable, "-c", "import signal; signal.pause()"]
    assert guest.watch(hung, silence_limit=0.01) == 1
    assert b"silent for 0.01 s; ended it" in capsysbinary.readouterr().out


# -- what the machine lacks -----------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with no programs and an empty cache: the folder of its programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return programs


def install(programs, name, script):
    program = programs / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("machine, words", [("x86_64", "apt install"), ("riscv64", "x86-64")])
def test_what_is_missing_fails_and_is_named(bare, monkeypatch, capsys, machine, words):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert __main__.main([]) == 2
    assert words in capsys.readouterr().err


def test_no_kernel_without_debian(bare):
    with pytest.raises(CannotRun, match="on Debian"):
        kernel.parts(kernel.PACKAGES)


def test_no_kernel_that_apt_knows_of(bare):
    install(bare, "apt-get", "exit 1")
    install(bare, "dpkg-deb", "exit 1")
    install(bare, "apt-cache", "echo E: No packages found >&2; exit 100")
    with pytest.raises(CannotRun, match="'apt-get update' as root"):
        kernel.parts(kernel.PACKAGES)


def test_a_failed_download_says_why_and_leaves_nothing(bare):
    install(bare, "apt-get", "echo E: 404 Not Found; exit 100")
    install(bare, "dpkg-deb", "exit 1")
    install(bare, "apt-cache", "echo '  Depends: linux-image-6.12.0-amd64'")
    with pytest.raises(CannotRun, match=r"(?s)'apt-get update' as root.*404 Not Found"):
        kernel.parts(kernel.PACKAGES)
    assert not list(kernel.cache_folder().iterdir())


def test_a_cached_kernel_needs_nothing_else(bare):
    folder = kernel.cache_folder() / kernel.PACKAGES[1]
    (folder / "modules").mkdir(parents=True)
    (folder / "modules" / "01-b.ko").touch()
    (folder / "modules" / "00-a.ko").touch()
    (folder / "version").write_text("6.1.0-1-amd64")
    # apt isn't asked whether it knows a better one: the first package is named to it here.
    parts = kernel.parts(kernel.PACKAGES[1:])
    assert parts.version == "6.1.0-1-amd64"
    assert [path.name for path in parts.modules] == ["00-a.ko", "01-b.ko"]


# -- modules ------------------------------------------------------------------------------------


def module(*needed):
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needed).encode() + b"\0name=it\0"


def test_modules_come_after_what_they_need():
    contents = {"a": module("b", "c-d"), "b": module("c-d"), "c_d": module(), "e": module("b")}
    loaded = kernel.closure(["a", "e"], {name: name for name in contents}, contents.get)
    assert loaded == [(name, contents[name]) for name in ("c_d", "b", "a", "e")]


def test_a_kernel_without_a_module_is_refused():
    with pytest.raises(CannotRun, match="no module b"):
        kernel.closure(["a"], {"a": "a"}, {"a": module("b")}.get)
