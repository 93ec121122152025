"""The shape of the source: imports go downward, files stay small, no path of a machine."""
import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "zcloop"

# From the bottom up. A module may import those of lower layers only, and leaves import nothing.
LEAVES = {"config", "states", "stats"}
LAYERS = [
    {"_native"}, {"engine"}, {"capabilities", "pages"}, {"receive", "send"}, {"friends"},
    {"transport"}, {"connect", "server"}, {"loop"}, {"streams"}, {"runner"}, {"contrib"}, {"demo"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MAX_LINES = 800


def modules():
    return {path.stem: path for path in sorted(PACKAGE.glob("*.py"))}


def imports(path):
    """Names of zcloop's modules that a file imports, at any depth, other than for type checking."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.If)
        and "TYPE_CHECKING" in ast.unparse(node.test) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            if node.level == 1 and node.module:
                yield node.module.split(".")[0]
            elif node.level == 1:
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.split(".")[0] == "zcloop":
                yield ([*node.module.split("."), node.names[0].name])[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("zcloop."):
                    yield alias.name.split(".")[1]


def folders():
    """Packages inside the package: each is one module in the order, whatever is in it."""
    return {path.parent.name: path.parent for path in sorted(PACKAGE.glob("*/__init__.py"))}


def test_contrib_is_above_all_and_below_nothing():
    """Its modules import zcloop's, and one another; none of zcloop's imports them."""
    for path in PACKAGE.glob("*.py"):
        assert "contrib" not in set(imports(path)), path
    own = {path.stem for path in (PACKAGE / "contrib").glob("*.py")}
    assert own >= {"aiohttp", "body", "memory", "parsers"}
    for path in (PACKAGE / "contrib").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                name = (node.module or "").split(".")[0]
                assert name in (own if node.level == 1 else modules()), (path, node.module)
                assert name != "_native"


def test_contrib_imports_other_libraries_when_they_are_needed():
    """So that importing it costs nothing, and fails only where something is called."""
    for path in (PACKAGE / "contrib").glob("*.py"):
        at_once = {node.module or "" for node in ast.parse(path.read_text()).body
                   if isinstance(node, ast.ImportFrom) and not node.level}
        at_once |= {alias.name for node in ast.parse(path.read_text()).body
                    if isinstance(node, ast.Import) for alias in node.names}
        assert {name.split(".")[0] for name in at_once} <= sys.stdlib_module_names, path


def level_of(name, seen=()):
    """A named module's layer; a helper module belongs just above the highest thing it imports."""
    if name in LEVEL:
        return LEVEL[name]
    below = [level_of(other, (*seen, name)) for other in set(imports(modules()[name]))
             if other not in LEAVES and other not in seen]
    return max(below, default=0) + 0.5


def test_modules_import_downward_only():
    wrong = [f"{name} imports {other}" for name, path in modules().items()
             if name not in LEAVES | {"__init__", "__main__"} for other in imports(path)
             if other not in LEAVES and level_of(other) >= level_of(name)]
    assert not wrong


def test_folders_import_what_is_below_them():
    wrong = []
    for name, folder in folders().items():
        for path in folder.rglob("*.py"):
            above = {"." * (1 + len(path.relative_to(folder).parts))}
            wrong += [f"{path.relative_to(PACKAGE)} imports {other}"
                      for dots, other in re.findall(
                          r"^ *from (\.+)(\w+)[\w.]* import", path.read_text(), re.M)
                      if dots in above and other not in LEAVES
                      and level_of(other) >= level_of(name)]
            wrong += [f"{path.relative_to(PACKAGE)} imports all of zcloop"
                      for dots in re.findall(r"^ *from (\.+) import", path.read_text(), re.M)
                      if dots in above]
    assert not wrong


def test_no_cycles():
    graph = {name: set(imports(path)) & set(modules()) for name, path in modules().items()}

    def walk(name, above):
        assert name not in above, " -> ".join([*above, name])
        for other in graph[name]:
            walk(other, [*above, name])
    for name in graph:
        walk(name, [])


def test_leaves_import_nothing_of_ours():
    assert not [f"{name} imports {other}" for name in LEAVES & set(modules())
                for other in imports(modules()[name])]


def test_only_the_engine_imports_the_native_library():
    assert [name for name, path in modules().items() if "_native" in imports(path)] == ["engine"]


def tracked():
    """Files of the repository, or of the source archive where there is no repository."""
    listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                              "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        paths = list(ROOT.rglob("*"))
    return [path for path in paths if path.is_file()]


SOURCES = {".py", ".pyi", ".c", ".h"}


@pytest.mark.parametrize("folder", ["zcloop", "native", "tests", "benchmarks"])
def test_files_are_small(folder):
    files = [p for p in tracked() if p.is_relative_to(ROOT / folder) and p.suffix in SOURCES]
    assert files
    long = {str(p.relative_to(ROOT)): n for p in files
            if (n := len(p.read_text().splitlines())) > MAX_LINES}
    assert not long


def test_no_path_of_a_machine():
    """Home folders and scratch folders of whoever wrote it mean nothing to others."""
    # Split, so that this file does not find itself.
    folders = ["ro" "ot", "wo" "rk", r"home/\w+", "tmp/" "w"]
    wrong = re.compile(r"(?<![\w.$}])/(?:" + "|".join(folders) + ")/")
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
                  for number, line in enumerate(text.splitlines(), 1) if wrong.search(line)]
    assert not found
