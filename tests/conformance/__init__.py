"""CPython's own asyncio tests, run on any event loop.

The standard library's `test.test_asyncio` is the most thorough description of what an asyncio
program may rely on. Here it runs on the loops of a factory, one process per module, and its
outcome is compared with another loop's and with a list of exceptions that each have a reason.
Start at `__main__`; README.md is the manual.

Rejected: running the suite with unittest's own runner under a changed policy. One hang ends such
a run, a crash loses it, and a third of the suite makes its loops without asking the policy.
"""
