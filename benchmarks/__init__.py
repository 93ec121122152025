"""Benchmarks of event loops: unchanged asyncio servers on each loop, one load generator in C.

``python -m benchmarks --help`` shows the options; README.md beside this file tells the method.
"""
