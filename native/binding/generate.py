"""Generate the C source of zcloop._native from native/zcloop.h.

usage: python generate.py native/zcloop.h OUTPUT.c

The header is the only description of the C API: this script hands it to cffi
as the cdef and the generated C includes it, so the two cannot drift.

GIL policy.  cffi's API mode releases the GIL around every call.  Most of our
calls take well under a microsecond, and each release is an invitation to a
CPU-bound thread to keep the GIL for a whole switch interval (5 ms): the convoy
effect.  So the policy is turned round: a function holds the GIL, and for each
name in NOGIL there is a second one, `<name>_nogil`, of the same signature,
that lets go of it.  The caller decides by the size of the work at hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cffi import FFI

# The functions that can take longer than a microsecond or so.
NOGIL = (
    "zc_engine_poll",
    "zc_engine_spin",
    "zc_recv",
    "zc_fill_begin",
    "zc_fill_begin_pages",
    "zc_calibrate",
    "zc_send",
    "zc_sendv",
    "zc_sendfile",
    "zc_probe",
)

# cffi wraps each call between these two macros; plain braces keep the GIL.
HOLD_GIL = """
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS {
#define Py_END_ALLOW_THREADS }
"""

# What dispatch.h adds to the header's functions: the part that knows Python.
DISPATCH_CDEF = """
int zc_dispatch(zc_engine *engine, uintptr_t sinks, uintptr_t readers, uintptr_t failures,
                int at, int count);
int zc_turn(zc_engine *engine, uintptr_t sinks, uintptr_t readers, uintptr_t failures,
            int rounds, int release);
enum { ZC_UNFINISHED = 256 };
enum { FAILED_DATA_RECEIVED, FAILED_GET_BUFFER, FAILED_RECEIVE, FAILED_BUFFER_UPDATED,
       FAILED_PAGES_RECEIVED };
"""

# What page_types.h adds: the types that Python holds mapped memory by.
PAGE_TYPES_CDEF = """
int zc_page_types(uintptr_t names);
zc_memory *zc_memory_of(uintptr_t object);
int64_t zc_memory_put(uintptr_t object, const char *bytes, size_t count);
"""

# The same of holds.h.
HOLDS_CDEF = """
int64_t zc_send_held(zc_engine *engine, uint32_t slot, uintptr_t data, uint64_t flight,
                     size_t offset, size_t len, int release);
int64_t zc_send_whole(zc_engine *engine, uint32_t slot, uintptr_t data, size_t len, int release);
int zc_release_completed(zc_engine *engine, uint32_t slot, uintptr_t flights);
int zc_release_orphans(void);
"""

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CDEF = re.compile(r"/\* cdef: begin \*/(.*?)/\* cdef: end \*/", re.DOTALL)
_PARAM_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\])?$")


class HeaderError(Exception):
    """zcloop.h holds something that this script cannot turn into a cdef."""


def cdef_of(header: str) -> str:
    """What stands between the header's two cdef marks, without its comments."""
    found = _CDEF.findall(header)
    if len(found) != 1:
        raise HeaderError("expected '/* cdef: begin */ ... /* cdef: end */' once")
    cdef = _COMMENT.sub(" ", found[0])
    for line in cdef.splitlines():
        # cffi reads no preprocessor, so C would see something else than Python.
        if line.lstrip().startswith("#"):
            raise HeaderError(f"no preprocessor between the cdef marks: {line.strip()}")
    return cdef


def nogil_twin(cdef: str, name: str) -> tuple[str, str]:
    """Declaration and C definition of `<name>_nogil`, from `name`'s own declaration."""
    found = re.search(rf"([\w\s*]+?)\b{name}\s*\(([^()]*)\)\s*;", cdef)
    if found is None:
        raise HeaderError(f"NOGIL names {name}, which the header does not declare")
    returns, params = (" ".join(part.split()) for part in found.groups())
    arguments: list[str] = []
    if params not in ("", "void"):
        for param in params.split(","):
            match = _PARAM_NAME.search(param.strip())
            if match is None:
                raise HeaderError(f"{name}: the parameter {param.strip()!r} has no name")
            arguments.append(match[1])
    call = f"{name}({', '.join(arguments)})"
    signature = f"{returns} {name}_nogil({params})"
    body = f"{call};" if returns == "void" else f"{returns} result = {call};"
    after = "" if returns == "void" else " return result;"
    definition = (
        f"static {signature} {{\n"
        f"    PyThreadState *state = PyEval_SaveThread();\n"
        f"    {body}\n"
        f"    PyEval_RestoreThread(state);\n"
        f"   {after}\n"
        f"}}\n"
    )
    return f"{signature};", definition


def main(header_path: str, output_path: str) -> None:
    cdef = cdef_of(Path(header_path).read_text(encoding="utf-8"))
    twins = [nogil_twin(cdef, name) for name in NOGIL]
    ffi = FFI()
    twin_cdef = [declaration for declaration, _ in twins]
    ffi.cdef("\n".join([cdef, *twin_cdef, DISPATCH_CDEF, PAGE_TYPES_CDEF, HOLDS_CDEF]))
    prologue = "\n".join(
        [
            '#include "zcloop.h"',
            HOLD_GIL,
            *(definition for _, definition in twins),
            "#include <errno.h>",
            "#include <stdlib.h>",
            "#include <string.h>",
            '#include "page_types.h"',
            '#include "dispatch.h"',
            '#include "holds.h"',
        ]
    )
    ffi.set_source("zcloop._native", prologue, py_limited_api=True)
    ffi.emit_c_code(output_path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} zcloop.h OUTPUT.c")
    try:
        main(sys.argv[1], sys.argv[2])
    except HeaderError as error:
        sys.exit(f"zcloop.h: {error}")
