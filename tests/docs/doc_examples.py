"""The documents, and the fenced blocks in them."""
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """A ```python block, and the ```text block that follows it at once: what it prints."""
    name: str           # file:line of the block's first line of code
    code: str
    output: str         # "" where no ```text block follows


def fences(text):
    """(language, content, start, end) of each fenced block."""
    return [(m[2], m[3], m.start(), m.end()) for m in _FENCE.finditer(text)]


def examples(text, name):
    found = fences(text)
    result = []
    for index, (language, code, start, end) in enumerate(found):
        if language != "python":
            continue
        output = ""
        if index + 1 < len(found):
            following, content, next_start, _ = found[index + 1]
            if following == "text" and not text[end:next_start].strip():
                output = content
        line = text.count("\n", 0, start) + 2
        result.append(Example(f"{name}:{line}", code, output))
    return result


def all_examples():
    return [example for path in DOCUMENTS
            for example in examples(path.read_text(), str(path.relative_to(ROOT)))]


def prose(text):
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)
