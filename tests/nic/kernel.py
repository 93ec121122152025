"""What the guest boots, taken out of two Debian packages: kernel, modules and busybox.

Nothing is installed. The few files that are needed stay in a cache outside the tree, so that
only the first run on a machine downloads the packages, about 110 MB.
"""
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import typing
from pathlib import Path

from . import CannotRun

PACKAGES = ("linux-image-6.12-amd64", "linux-image-amd64")
"""Kernels by preference; each is an empty package that depends on the newest of its series."""

# The modules we name; those that they need are found by what each says of itself.
WANTED = ("virtio_pci", "e1000e", "9pnet_virtio", "9p", "overlay")
_MODULE = re.compile(r".*/([^/]+)\.ko(\.xz)?")
_BUILT_IN = re.compile(r".*/modules\.builtin")


class Parts(typing.NamedTuple):
    """Files for the guest. `modules` are in an order in which they can be loaded."""

    version: str
    image: Path
    busybox: Path
    modules: list[Path]


def cache_folder():
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "zcloop-nic")


def parts(packages):
    """The Parts of the first of `packages` that is in the cache or known to apt."""
    for package in packages:
        folder = cache_folder() / package
        if not folder.is_dir():
            if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
                raise CannotRun("the guest's kernel comes from a Debian package, and apt-get or "
                                "dpkg-deb was not found; run this on Debian or in its container")
            image_package = newest(package)
            if image_package is None:
                continue
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                fill(Path(scratch, "parts"), image_package)
                os.rename(Path(scratch, "parts"), folder)   # whole, or not there
        return Parts((folder / "version").read_text(), folder / "vmlinuz", folder / "busybox",
                     sorted((folder / "modules").iterdir()))
    raise CannotRun(f"apt knows no package {' or '.join(packages)}; "
                    "run 'apt-get update' as root, or name another with --kernel")


def newest(package):
    """The package with the files that `package` depends on; None where apt doesn't know it."""
    listing = subprocess.run(["apt-cache", "depends", "--important", package],
                             capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    found = re.search(r"Depends: (linux-image-\S+)", listing.stdout)
    return found and found[1]


def fill(folder, image_package):
    (folder / "modules").mkdir(parents=True)
    print(f"tests.nic: fetching {image_package} and busybox-static into {folder.parents[1]}",
          flush=True)
    busybox = folder / "busybox"
    [content] = unpack("busybox-static", re.compile(r".*/bin/busybox$")).values()
    busybox.write_bytes(content)
    busybox.chmod(0o755)

    files = unpack(image_package, re.compile(
        rf"\./boot/vmlinuz-.*|{_MODULE.pattern}|{_BUILT_IN.pattern}"))
    [image] = [name for name in files if name.startswith("./boot/")]
    (folder / "vmlinuz").write_bytes(files.pop(image))
    (folder / "version").write_text(image.removeprefix("./boot/vmlinuz-"))
    [listing] = [name for name in files if _BUILT_IN.fullmatch(name)]
    built_in = {module_name(line) for line in files.pop(listing).decode().splitlines()}

    def content_of(name):
        if not name.endswith(".xz"):
            return files[name]
        # By busybox: not every Python has lzma.
        return subprocess.run([busybox, "xzcat"], input=files[name], stdout=subprocess.PIPE,
                              check=True).stdout

    paths = {module_name(path): path for path in files}
    wanted = [name for name in WANTED if name not in built_in]
    for number, (name, module) in enumerate(closure(wanted, paths, content_of)):
        (folder / "modules" / f"{number:02}-{name}.ko").write_bytes(module)


def module_name(path):
    """As the kernel calls it; files may have - where names have _."""
    return _MODULE.fullmatch(path)[1].replace("-", "_")


def unpack(package, wanted):
    """{name: content} of a package's files whose whole names match `wanted`."""
    with tempfile.TemporaryDirectory() as folder:
        got = subprocess.run(["apt-get", "-q", "download", package], cwd=folder, text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        archives = list(Path(folder).glob("*.deb"))
        if got.returncode or len(archives) != 1:
            raise CannotRun(f"'apt-get download {package}' failed; run 'apt-get update' as root "
                            f"and see that the mirror can be reached. It said:\n{got.stdout}")
        with (subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archives[0]],
                               stdout=subprocess.PIPE) as archive,
              tarfile.open(fileobj=archive.stdout, mode="r|") as members):
            files = {member.name: members.extractfile(member).read() for member in members
                     if member.isfile() and wanted.fullmatch(member.name)}
        if archive.returncode:
            raise CannotRun(f"'dpkg-deb --fsys-tarfile' of {package} failed; is the disk full?")
    return files


def closure(wanted, paths, content_of):
    """(name, content) of the wanted modules and all that they need, each after what it needs.

    `paths` is {name: path} of all modules; `content_of(path)` reads one. What is built into the
    kernel is in nobody's list of dependencies.
    """
    loaded = {}

    def load(name):
        if name in loaded:
            return
        if name not in paths:
            raise CannotRun(f"the kernel package has no module {name}; "
                            "leave out --kernel or name another package")
        content = content_of(paths[name])
        for needed in re.search(rb"\0depends=([^\0]*)\0", content)[1].decode().split(","):
            if needed:
                load(needed.replace("-", "_"))
        loaded[name] = content

    for name in wanted:
        load(name)
    return list(loaded.items())
