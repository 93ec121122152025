"""What the documents say about names, files, settings and layers is so."""
import asyncio
import dataclasses
import importlib
import re

import pytest
from doc_examples import DOCUMENTS, ROOT, prose

import zcloop
from zcloop import states

TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in DOCUMENTS}
ARCHITECTURE = TEXTS["docs/architecture.md"]


def section(text, title):
    """A section's text: from its heading to the next one of the same level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.M | re.S)
    assert found, f"no section {title!r}"
    return found[2]


def table(text):
    """The cells of each row of a section's first table, without its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)\s]+)\)", prose(TEXTS[name]))
    broken = [link for link in links if not re.match(r"https?://|#", link)
              and not (ROOT / name).parent.joinpath(link.partition("#")[0]).exists()]
    assert not broken


@pytest.mark.parametrize("name", TEXTS)
def test_files_named_in_backticks_exist(name):
    """Files are named with their folder: `zcloop/loop.py`, `native/fill.c`."""
    named = re.findall(r"`((?:zcloop|native|tests|benchmarks|docs)/[\w./-]+)`", TEXTS[name])
    assert not [path for path in named if not (ROOT / path).exists()]


def test_native_functions_named_in_the_architecture_exist():
    header = (ROOT / "native/zcloop.h").read_text()
    header += (ROOT / "native/binding/dispatch.h").read_text()
    header += (ROOT / "native/engine_internal.h").read_text()
    header += (ROOT / "native/binding/holds.h").read_text()
    named = set(re.findall(r"\b(?:zc_[a-z_]+|ZC_[A-Z_]+)\b", ARCHITECTURE))
    named = {name.removesuffix("_nogil") for name in named if not name.endswith("_")}
    assert named
    assert not [name for name in named if not re.search(rf"\b{name}\b", header)]


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for text in TEXTS.values()
               for target in re.findall(r"^ {4}make ([\w-]+)", text, re.M)}
    assert targets >= {"bench", "test"}
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)]


def test_the_readme_has_one_place_for_the_figures():
    marks = re.findall(r"^<!-- /?figures -->$", TEXTS["README.md"], re.M)
    assert marks == ["<!-- figures -->", "<!-- /figures -->"]


def test_the_factory_given_to_servers_makes_loops():
    named = {name for text in TEXTS.values() for name in re.findall(r"--loop (zcloop:\w+)", text)}
    assert named
    for name in named:
        module, _, attribute = name.partition(":")
        loop = getattr(importlib.import_module(module), attribute)()
        assert isinstance(loop, asyncio.AbstractEventLoop)
        loop.close()


def test_every_setting_is_described_with_its_default():
    rows = {row[0].strip("`"): row for row in table(section(
        TEXTS["docs/configuration.md"], "The fields"))}
    fields = {field.name: field for field in dataclasses.fields(zcloop.Config)}
    assert rows.keys() == fields.keys()
    for name, row in rows.items():
        default = fields[name].default
        assert row[1] == f"`{default!r}`"
        assert row[2] == f"`ZCLOOP_{name.upper()}`"


def test_no_document_names_a_variable_that_is_none():
    known = {f"ZCLOOP_{field.name.upper()}" for field in dataclasses.fields(zcloop.Config)}
    for name in ("README.md", "docs/configuration.md", "docs/from-uvloop.md", "docs/streams.md"):
        assert set(re.findall(r"\bZCLOOP_[A-Z_]+\b", TEXTS[name])) <= known


def test_the_state_table_is_that_of_the_code():
    rows = table(section(ARCHITECTURE, "States"))
    said = {row[0].strip("`"): set(re.findall(r"`([A-Z]+)`", row[2])) for row in rows}
    assert said == {state.name: {step.name for step in steps}
                    for state, steps in states._STEPS.items()}


def modules_and_folders():
    """{name: its files} of what is directly in the package."""
    found = {path.stem: [path] for path in (ROOT / "zcloop").glob("*.py")
             if path.stem != "__init__"}
    found |= {path.parent.name: list(path.parent.rglob("*.py"))
              for path in (ROOT / "zcloop").glob("*/__init__.py")}
    return found


def test_every_module_is_in_the_table_of_layers():
    rows = table(section(ARCHITECTURE, "Import order"))
    said = [name for row in rows for name in re.findall(r"`(\w+)`", row[1])]
    assert sorted(said) == sorted(modules_and_folders())


def test_imports_go_down_the_table_of_layers():
    rows = table(section(ARCHITECTURE, "Import order"))
    level = {name: number for number, row in enumerate(rows)
             for name in re.findall(r"`(\w+)`", row[1])}
    upward = []
    for name, files in modules_and_folders().items():
        for path in files:
            source = path.read_text()
            source = source.replace("    from .transport import StreamTransport\n", "")  # for types
            dots = r"\." * len(path.relative_to(ROOT / "zcloop").parts)
            upward += [f"{name} imports {other}" for other in re.findall(
                           rf"^ *from {dots}(\w+)[\w.]* import", source, re.M)
                       if other != "_native" and level[other] >= level[name]]
    assert not upward


def test_every_native_file_is_named():
    named = set(re.findall(r"`native/([\w/.]+)`", ARCHITECTURE))
    files = {str(path.relative_to(ROOT / "native")) for path in (ROOT / "native").glob("*.[ch]")}
    assert not files - named
