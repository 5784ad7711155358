"""The programs of docs/api.md and of README.md run, and print what stands below them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("ports")

ROOT = Path(__file__).parents[3]
#: A program and, if it follows at once, what it prints.
PROGRAM = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(program, output, id=f"{page}-{number}")
    for page in ("docs/api.md", "README.md")
    for number, (program, output) in enumerate(PROGRAM.findall((ROOT / page).read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("program", "output"), EXAMPLES)
def test_an_example_prints_what_the_page_says(program: str, output: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == output


def test_both_pages_have_examples_that_print_something() -> None:
    assert len(EXAMPLES) >= 8
    assert all(example.values[1] for example in EXAMPLES)
    assert any(str(example.id).startswith("README.md") for example in EXAMPLES)
