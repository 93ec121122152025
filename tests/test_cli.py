"""``python -m zcloop``: help that a newcomer understands, what doctor tells, and errors that
name cause and remedy."""
import dataclasses
import os
import platform
import re
import subprocess
import sys

import pytest

import zcloop
from zcloop import cli


def command(*arguments, **environment):
    done = subprocess.run([sys.executable, "-W", "error", "-m", "zcloop", *arguments],
                          env=os.environ | environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_help_names_every_command():
    status, out, err = command("--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: python -m zcloop")
    for name in ("demo", "doctor"):
        assert f"\n    {name} " in out
        status, text, err = command(name, "--help")
        assert (status, err) == (0, "")
        assert text.startswith(f"usage: python -m zcloop {name}")
        assert len(text.splitlines()) > 6


def test_the_version():
    assert command("--version") == (0, f"zcloop {zcloop.__version__}\n", "")


def test_no_command_is_an_error():
    status, out, err = command()
    assert (status, out) == (2, "")
    assert "the following arguments are required: COMMAND" in err


@pytest.mark.parametrize(("arguments", "words"), [
    (["demo", "--loop", "trio"], "invalid choice: 'trio'"),
    (["demo", "--port", "70000"], "'70000' is not a port; valid are 0 to 65535"),
    (["demo", "--max-size", "much"], "'much' is not a size; write 512M or 4G, say"),
])
def test_wrong_options(arguments, words):
    status, _, err = command(*arguments)
    assert status == 2
    assert words in err


def test_the_demo_without_aiohttp(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "zcloop: the demo needs aiohttp, which isn't installed: pip install 'zcloop[demo]'\n")


def test_doctor_tells_everything():
    status, out, err = command("doctor", ZCLOOP_BUSY_POLL="off")
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    assert f"zcloop {zcloop.__version__} " in words
    assert f"Python {platform.python_version()} " in words
    assert f"kernel Linux {os.uname().release}" in words
    for field in dataclasses.fields(zcloop.Config):
        assert f"\n  {field.name} " in out
    assert "busy_poll off (from ZCLOOP_BUSY_POLL)" in words
    assert "receive auto (default)" in words
    for name in zcloop.capabilities():
        assert f"\n  {name} " in out
    assert re.search(r"\n  a page of 4 KiB, .* \d+ ns mapped|\n  not measured: ", out)


def test_doctor_with_a_wrong_setting_still_tells_the_rest():
    status, out, _ = command("doctor", ZCLOOP_BUSY_POLL="fast")
    assert status == 1
    assert "wrong: environment variable ZCLOOP_BUSY_POLL" in out
    assert "page_size" in out


def test_doctor_into_a_pipe_that_is_closed_early():
    """As `doctor | head -1`: no traceback, and status 0 for what was shown."""
    program = subprocess.Popen([sys.executable, "-m", "zcloop", "doctor"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() == 0
