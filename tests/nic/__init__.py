"""Tests on network cards that really send from and receive into whole pages.

Loopback and veth can show neither a zero-copy send that wasn't copied after all nor a plain
sender's data mapped into the receiver; README.md says why, and what is done about it.
`python -m tests.nic` boots a guest with two emulated cards and runs `guest/` inside it.
"""


class CannotRun(Exception):
    """Something that the machine lacks: what, and what to do about it."""
