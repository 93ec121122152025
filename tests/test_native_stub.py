"""The hand-written stub zcloop/_native.pyi says what the compiled module really has."""

import ast
from pathlib import Path

import pytest

import zcloop
from zcloop import engine

STUB = Path(zcloop.__file__).with_name("_native.pyi")
# A struct's class in the stub, and its C type.
STRUCTS = {
    "EngineStats": "zc_engine_stats",
    "ConnStats": "zc_conn_stats",
    "PagesStats": "zc_pages_stats",
    "CalibrationFigures": "zc_calibration",
    "Event": "zc_event",
    "CapabilityRecord": "zc_capability",
}
# What the stub may call a C type of a given kind, in a parameter or a result.
NAMES_OF_KIND = {
    "primitive": {"int"},
    "enum": {"int"},
    "void": {"None"},
    "pointer": {"CData", "Engine", "_ReadableMemory", *STRUCTS},
}


def stub_class(name):
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def stub_functions():
    return {
        node.name: node for node in stub_class("_Lib").body if isinstance(node, ast.FunctionDef)
    }


def stub_constants():
    return {
        node.target.id: ast.literal_eval(node.value)
        for node in stub_class("_Lib").body
        if isinstance(node, ast.AnnAssign)
    }


def c_functions():
    return {
        name: engine.ffi.typeof(getattr(engine.lib, name))
        for name in dir(engine.lib)
        if not isinstance(getattr(engine.lib, name), int)
    }


def stub_name_fits(annotation, ctype):
    """Whether the stub's name for a type can stand for the C type."""
    name = ast.unparse(annotation)
    if name not in NAMES_OF_KIND[ctype.kind]:
        return False
    if name == "Engine":
        return ctype.item.cname == "struct zc_engine"
    if name in STRUCTS:
        return ctype.item.cname == STRUCTS[name]
    if name == "_ReadableMemory":
        # cffi drops the const of a parameter; the caller vouches for it.
        return ctype.item.cname == "char"
    return True


def test_the_same_functions():
    assert set(stub_functions()) == set(c_functions())


def test_the_same_constants():
    real = {
        name: value
        for name in dir(engine.lib)
        if isinstance(value := getattr(engine.lib, name), int)
    }
    assert stub_constants() == real


@pytest.mark.parametrize("name", sorted(c_functions()))
def test_the_same_signature(name):
    stub, real = stub_functions()[name], c_functions()[name]
    parameters = [*stub.args.posonlyargs, *stub.args.args][1:]
    assert len(parameters) == len(real.args)
    for parameter, ctype in zip(parameters, real.args, strict=True):
        assert stub_name_fits(parameter.annotation, ctype), parameter.arg
    assert stub_name_fits(stub.returns, real.result)


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_the_same_fields(name):
    fields = [node.target.id for node in stub_class(name).body if isinstance(node, ast.AnnAssign)]
    assert fields == [field for field, _ in engine.ffi.typeof(STRUCTS[name]).fields]


@pytest.mark.parametrize("name", sorted(n for n in c_functions() if n.endswith("_nogil")))
def test_a_nogil_twin_has_its_sibling_s_signature(name):
    twin, sibling = c_functions()[name], c_functions()[name.removesuffix("_nogil")]
    assert (twin.args, twin.result) == (sibling.args, sibling.result)
