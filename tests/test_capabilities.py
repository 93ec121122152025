"""zcloop.capabilities(): what was probed, as an immutable mapping that people can read."""

import dataclasses
import errno
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import zcloop
from zcloop import capabilities as module  # the function: it hides the module of its name
from zcloop.capabilities import _FEATURES, Capability, _capability
from zcloop.engine import ffi, lib


def probed_names():
    records = ffi.new("zc_capability[]", lib.ZC_CAPABILITY_COUNT)
    assert lib.zc_probe(records, len(records)) == len(records)
    return [ffi.string(record.name).decode() for record in records]


def test_every_probed_feature_is_described_and_no_other():
    assert list(zcloop.capabilities()) == probed_names()
    assert set(_FEATURES) == set(probed_names())


def test_probed_once_per_process():
    assert zcloop.capabilities() is zcloop.capabilities()
    assert module is zcloop.capabilities


def test_immutable():
    found = zcloop.capabilities()
    with pytest.raises(TypeError):
        found["eventfd"] = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        found["eventfd"].available = False
    with pytest.raises(KeyError):
        found["no such feature"]


@pytest.mark.parametrize("capability", zcloop.capabilities().values(), ids=lambda one: one.name)
def test_each_is_either_available_or_has_a_reason(capability):
    assert bool(capability) is capability.available
    if capability.available:
        assert capability.errno is None
    else:
        assert errno.errorcode[capability.errno] in capability.detail
        assert capability.value is None


def test_figures_are_what_the_system_says_elsewhere():
    found = zcloop.capabilities()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    optmem = Path("/proc/sys/net/core/optmem_max")
    assert found["page_size"].value == mmap.PAGESIZE
    assert found["rlimit_memlock"].value == (None if soft == resource.RLIM_INFINITY else soft)
    if found["optmem_max"]:
        assert found["optmem_max"].value == int(optmem.read_text())
    else:
        assert not os.access(optmem, os.R_OK)


def test_reads_as_a_table():
    lines = str(zcloop.capabilities()).splitlines()
    assert [line.split()[0] for line in lines] == probed_names()
    assert {line.split()[1] for line in lines} <= {"yes", "no"}


def test_a_record_that_failed_reads_as_its_errno():
    assert _capability("msg_zerocopy", errno.ENETUNREACH, 0) == Capability(
        name="msg_zerocopy",
        available=False,
        detail="send without a copy, with completion: "
        f"ENETUNREACH, {os.strerror(errno.ENETUNREACH)}",
        errno=errno.ENETUNREACH,
    )


@pytest.mark.parametrize(
    ("name", "value", "reading", "figure"),
    [
        ("page_size", 4096, "unit of mapping: 4096 bytes", 4096),
        ("eventfd", 0, "doorbell between processes", None),
        ("rlimit_memlock", -1, "bound on memory pinned by zero-copy sends: no limit", None),
    ],
)
def test_a_record_that_succeeded_reads_with_its_figure(name, value, reading, figure):
    capability = _capability(name, 0, value)
    assert (capability.detail, capability.value) == (reading, figure)


def test_a_feature_that_cannot_be_tried_is_unavailable():
    """Out of descriptors: the probe answers for each feature, and the process goes on."""
    script = (
        "import resource, zcloop\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))\n"
        "found = zcloop.capabilities()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "print(found['page_size'].available, found['msg_zerocopy'].errno)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["True", str(errno.EMFILE)]
    assert run.stderr == ""
