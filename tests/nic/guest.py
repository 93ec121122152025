"""The guest: its initial RAM disk, its QEMU, and the verdict that its console gives.

The guest has no disk. It gets the host's whole file system read-only over 9p, puts a RAM overlay
above it, and changes root into that, so this process's own interpreter, virtual environment and
tree are found there at their own paths. Hence also the one limit: an x86-64 host.

The emulation is always TCG, even where KVM could be had: everybody's guest is the same then.
"""
import os
import platform
import re
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from . import CannotRun

ROOT = Path(__file__).resolve().parents[2]
INIT = Path(__file__).with_name("init")

# Seconds without a word, after which a guest has hung. pytest says after 300 where a test hangs.
SILENCE_LIMIT = 600

ENDED = re.compile(rb"^tests\.nic: ended with status (\d+)\r?$", re.M)   # what `init` says


def emulator():
    """The path of QEMU."""
    if platform.machine() != "x86_64":
        raise CannotRun(f"this machine is {platform.machine()}, but the guest runs this machine's "
                        "programs on an emulated x86-64; run this on an x86-64 machine")
    found = shutil.which("qemu-system-x86_64")
    if found is None:
        raise CannotRun("qemu-system-x86_64 was not found; install it "
                        "(Debian and Ubuntu: apt install --no-install-recommends qemu-system-x86)")
    return found


def run(emulator, parts, pytest_arguments):
    """Boot, run the tests of `guest/`, and return pytest's status, or 1 if there is none."""
    ram_disk = parts.image.parent / f"ram-disk-{os.getpid()}"
    try:
        ram_disk.write_bytes(archive(ram_disk_files(parts, pytest_arguments)))
        return watch([emulator, *options(), "-kernel", parts.image, "-initrd", ram_disk])
    finally:
        ram_disk.unlink(missing_ok=True)


def ram_disk_files(parts, pytest_arguments):
    """{path: content}, folders before what is in them; None is a folder."""
    color = "yes" if sys.stdout.isatty() else "no"
    # Plugins are named, not looked for: that took half of pytest's start under emulation.
    pytest = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", sys.executable, "-m", "pytest", "-v",
              "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider", f"--color={color}",
              "--loops", "zcloop", "tests/nic/guest", *pytest_arguments]
    job = f"tree={shlex.quote(str(ROOT))}\nset -- {shlex.join(pytest)}\n"
    return {
        "bin": None,
        "bin/busybox": parts.busybox.read_bytes(),
        "modules": None,
        **{f"modules/{path.name}": path.read_bytes() for path in parts.modules},
        "init": INIT.read_bytes(),
        "job": job.encode(),
    }


def archive(files):
    """The files as a cpio archive in the format that the kernel unpacks ("newc")."""
    content = bytearray()

    def pad():
        content.extend(bytes(-len(content) % 4))

    def add(number, name, mode, data):
        path = os.fsencode(name) + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        content.extend(b"070701" + b"".join(b"%08x" % field for field in fields) + path)
        pad()
        content.extend(data)
        pad()

    for number, (name, data) in enumerate(files.items(), 1):
        if data is None:
            add(number, name, 0o040755, b"")
        else:
            add(number, name, 0o100755, data)
    add(0, "TRAILER!!!", 0, b"")
    return bytes(content)


def options():
    """QEMU's: two e1000e cards on one hub, the host's files, the console on standard output."""
    cards = []
    for card in ("a", "b"):
        cards += ["-netdev", f"hubport,id={card},hubid=0",
                  "-device", f"e1000e,netdev={card},mac=52:54:00:00:00:0{card}"]
    return ["-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "2048",
            "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            "-serial", "stdio", *cards,
            "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,"
                       "multidevs=remap",
            # A guest that panics restarts at once, which -no-reboot turns into an end.
            "-append", "console=ttyS0 quiet panic=-1 mitigations=off"]


def watch(command, silence_limit=SILENCE_LIMIT):
    """Run the guest and show its console; the status that it reported, or 1 without one."""
    console = bytearray()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as process:
        try:
            while True:
                ready, _, _ = select.select([process.stdout], [], [], silence_limit)
                if not ready:
                    print(f"\ntests.nic: the guest was silent for {silence_limit} s; ended it",
                          flush=True)
                    break
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    break
                console += piece
                sys.stdout.buffer.write(piece.replace(b"\r", b""))
                sys.stdout.flush()
        finally:
            process.kill()
    ended = ENDED.findall(console)
    if not ended:
        print("tests.nic: the guest ended without having run the tests", flush=True)
        return 1
    return int(ended[-1])
