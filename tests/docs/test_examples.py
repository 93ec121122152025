"""Every Python example of the documents runs, as a program of its own, and prints what they say."""
import subprocess
import sys

import pytest
from doc_examples import all_examples, examples

EXAMPLES = all_examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_example(example, tmp_path):
    """Warnings are errors, and nothing else is printed; policies are deprecated by design."""
    program = tmp_path / "example.py"
    program.write_text(example.code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:zcloop.install():DeprecationWarning",
         program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", example.output)


def test_the_main_documents_have_examples():
    documents = {example.name.partition(":")[0] for example in EXAMPLES}
    assert documents >= {"README.md", "docs/streams.md", "docs/from-uvloop.md", "docs/aiohttp.md",
                         "docs/configuration.md"}


def test_blocks_are_found_with_their_output():
    text = ("# Title\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
            "```python\npass\n```\nSomething else:\n```text\nno output\n```\n"
            "```sh\nmake\n```\n````python\ns = '''\n```\n'''\n````\n")
    assert examples(text, "X.md") == [
        ("X.md:4", "print(1)\n", "1\n"), ("X.md:12", "pass\n", ""),
        ("X.md:22", "s = '''\n```\n'''\n", "")]
