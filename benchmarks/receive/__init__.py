"""Receiving with and without a copy: zcloop beside a C reference program, uvloop and asyncio.

``python -m benchmarks.receive --help`` shows the options; ../README.md tells the method.
"""
