"""What a figure depends on, stamped on every result."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from .cases import MALLOC_ENV

LIBRARIES = ("uvloop", "rloop", "aiofastnet", "zcloop", "cffi")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
SYSCTLS = (
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/core/busy_poll",
)


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _revision() -> str | None:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    except OSError:
        return None
    return done.stdout.strip() or None


def describe() -> dict[str, Any]:
    """Kernel, CPU, interpreter, library versions, allocator and zcloop environment, load, date."""
    kept = ("MALLOC_", "ZCLOOP_", "GLIBC_TUNABLES", "PYTHONMALLOC", "LD_PRELOAD")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "revision": _revision(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "governor": GOVERNOR.read_text().strip() if GOVERNOR.exists() else "not visible",
        "python": sys.version.split()[0],
        "libc": " ".join(platform.libc_ver()),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "env": {k: v for k, v in os.environ.items() if k.startswith(kept)},
        "allocator_control": MALLOC_ENV,
        "sysctl": {name.replace("/", "."): _sysctl(name) for name in SYSCTLS},
        "load_average": os.getloadavg(),
    }
