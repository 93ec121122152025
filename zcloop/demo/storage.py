"""The folder of uploaded files: what is in it outlives a worker, not the demo.

A file is ``<id>.data`` with its description ``<id>.json`` beside it, which is written when
the upload is complete: what has none is of no use, and the next worker removes it.  Ids
are made here; no name that a client gave is ever part of a path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any, BinaryIO

from .options import FOLDER_FACTOR

__all__ = ["PIECE", "NoRoom", "Storage", "StoredFile", "TooLarge", "clean_name"]

PIECE = 4 << 20
"""Bytes of which the browser hashes each piece; see :meth:`Storage.digests`."""

RESERVE = 64 << 20
"""Bytes of the disk that an upload must leave free."""

_ID = re.compile(r"[0-9a-f]{16}")
_NAME_BYTES = 200


class TooLarge(Exception):
    """The file is larger than the largest allowed."""


class NoRoom(Exception):
    """The disk, or the share of it that the demo may use, is full."""


def clean_name(text: str) -> str:
    """A file's name as it may be shown and offered for saving: no path, no control characters."""
    name = text.replace("\\", "/").rpartition("/")[2]
    name = "".join(c for c in name if c.isprintable()).strip().lstrip(".")
    return name.encode("utf-8", "ignore")[:_NAME_BYTES].decode("utf-8", "ignore") or "unnamed"


class StoredFile:
    """One complete file."""

    def __init__(self, folder: Path, described: dict[str, Any]) -> None:
        self.id: str = described["id"]
        self.name: str = described["name"]
        self.size: int = described["size"]
        self.path = folder / f"{self.id}.data"
        self.description = folder / f"{self.id}.json"

    def describe(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"id": self.id, "name": self.name, "size": self.size}


class Storage:
    """The folder, for one worker at a time; methods block for as long as the disk does."""

    def __init__(self, folder: Path, max_size: int) -> None:
        self.folder = folder
        self.max_size = max_size
        self.files: dict[str, StoredFile] = {}
        self._results = folder / "results.json"
        for description in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
            if _ID.fullmatch(description.stem):
                file = StoredFile(folder, json.loads(description.read_text()))
                self.files[file.id] = file
        for data in folder.glob("*.data"):
            if data.stem not in self.files:
                data.unlink()

    def check_room(self, size: int) -> None:
        """Raise :exc:`TooLarge` or :exc:`NoRoom` unless ``size`` more bytes may come."""
        if size > self.max_size:
            raise TooLarge
        used = sum(file.size for file in self.files.values())
        if used + size > FOLDER_FACTOR * self.max_size:
            raise NoRoom("The demo's folder is full. Delete files from the list and try again.")
        if shutil.disk_usage(self.folder).free < size + RESERVE:
            raise NoRoom("The server's disk is full.")

    def create(self) -> tuple[str, BinaryIO]:
        """A new id and its file, open for writing and unbuffered."""
        new = secrets.token_hex(8)
        return new, (self.folder / f"{new}.data").open("xb", buffering=0)

    def keep(self, new: str, name: str, size: int) -> StoredFile:
        """The upload of ``new`` is complete."""
        file = StoredFile(self.folder, {"id": new, "name": clean_name(name), "size": size})
        _replace(file.description, file.describe())
        self.files[new] = file
        return file

    def discard(self, new: str) -> None:
        """Remove a file, complete or not."""
        file = self.files.pop(new, None)
        if file is not None:
            file.description.unlink(missing_ok=True)
        (self.folder / f"{new}.data").unlink(missing_ok=True)

    def digests(self, file: StoredFile) -> dict[str, Any]:
        """SHA-256 of the whole file, and of each piece of it.

        A browser can hash only what it has in memory as a whole; by pieces it can
        compare a file of any size.
        """
        whole = hashlib.sha256()
        pieces = []
        with file.path.open("rb", buffering=0) as data:
            while piece := data.read(PIECE):
                whole.update(piece)
                pieces.append(hashlib.sha256(piece).hexdigest())
        return {"sha256": whole.hexdigest(), "piece_bytes": PIECE, "pieces": pieces}

    def results(self) -> list[dict[str, Any]]:
        """The last figures of each loop and kind of transfer."""
        if not self._results.exists():
            return []
        found: list[dict[str, Any]] = json.loads(self._results.read_text())
        return found

    def remember(self, result: dict[str, Any]) -> None:
        """Put a transfer's figures in the place of those before it."""
        key = (result["loop"], result["kind"])
        others = [one for one in self.results() if (one["loop"], one["kind"]) != key]
        _replace(self._results, [*others, result])


def _replace(path: Path, content: object) -> None:
    """Write a file so that a reader finds the old one or the new one, whole."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    os.replace(draft, path)
