"""`python -m tests.nic [--kernel PACKAGE] [pytest's arguments]`: boot the guest, run its tests."""
import argparse
import sys
import time

from . import CannotRun, guest, kernel


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tests.nic", epilog="Other arguments go to the pytest inside the guest.")
    parser.add_argument("--kernel", metavar="PACKAGE",
                        help=f"Debian package of the guest's kernel; default: the first that "
                             f"apt knows of {', '.join(kernel.PACKAGES)}")
    options, for_pytest = parser.parse_known_args(arguments)
    start = time.monotonic()
    try:
        emulator = guest.emulator()
        parts = kernel.parts([options.kernel] if options.kernel else kernel.PACKAGES)
        status = guest.run(emulator, parts, for_pytest)
    except CannotRun as exc:
        print(f"tests.nic: {exc}", file=sys.stderr)
        return 2
    print(f"tests.nic: {parts.version}, {time.monotonic() - start:.0f} s, "
          f"{'passed' if status == 0 else 'FAILED'}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
