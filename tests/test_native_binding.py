"""native/binding/generate.py: what it makes of a header, and what it refuses."""

import importlib.util
import re
from pathlib import Path

import pytest

from zcloop.engine import lib

NATIVE = Path(__file__).resolve().parents[1] / "native"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", NATIVE / "binding" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def header(declarations):
    return f"#include <stdint.h>\n/* cdef: begin */\n{declarations}\n/* cdef: end */\n#endif\n"


def test_the_cdef_is_what_stands_between_the_marks(generate):
    cdef = generate.cdef_of(header("int f(int a); /* why */ // and how\nint g(void);"))
    assert cdef.split() == ["int", "f(int", "a);", "int", "g(void);"]


@pytest.mark.parametrize("text", ["int f(void);", header("") + header("")])
def test_the_marks_must_be_there_once(generate, text):
    with pytest.raises(generate.HeaderError, match=re.escape("/* cdef: begin */")):
        generate.cdef_of(text)


@pytest.mark.parametrize("line", ["#define SIZE 4", "  #if 1", "#include <stddef.h>"])
def test_a_preprocessor_line_between_the_marks_is_refused(generate, line):
    with pytest.raises(generate.HeaderError, match=re.escape(line.strip())):
        generate.cdef_of(header(f"int f(void);\n{line}"))


@pytest.mark.parametrize(
    ("declaration", "signature", "call"),
    [
        (
            "int64_t f(engine *e, uint32_t slot,\n    const char *buf, size_t len);",
            "int64_t f_nogil(engine *e, uint32_t slot, const char *buf, size_t len)",
            "int64_t result = f(e, slot, buf, len);",
        ),
        ("char *f(int fds[2]);", "char * f_nogil(int fds[2])", "char * result = f(fds);"),
        ("void f(void);", "void f_nogil(void)", "f();"),
    ],
)
def test_a_nogil_twin_repeats_the_signature_and_lets_go_of_the_gil(
    generate, declaration, signature, call
):
    declared, definition = generate.nogil_twin(f"int other(int f);\n{declaration}", "f")
    assert declared == signature + ";"
    words = " ".join(definition.split())
    assert words.startswith(f"static {signature} {{")
    save, run, restore = (words.index(w) for w in ("PyEval_SaveThread", call, "PyEval_Restore"))
    assert save < run < restore


def test_a_nogil_name_that_the_header_lacks_is_refused(generate):
    with pytest.raises(generate.HeaderError, match="zc_gone"):
        generate.nogil_twin("int zc_going(void);", "zc_gone")


def test_a_parameter_without_a_name_is_refused(generate):
    with pytest.raises(generate.HeaderError, match="no name"):
        generate.nogil_twin("int f(int fd, char *);", "f")


def test_the_module_has_each_twin_and_no_other(generate):
    twins = {name for name in dir(lib) if name.endswith("_nogil")}
    assert twins == {f"{name}_nogil" for name in generate.NOGIL}
