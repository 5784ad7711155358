"""The example control of docs/congestion.md as a file, so that what the page shows is what is tested."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "congestion.md"


def write_example(directory: Path) -> str:
    """Write the page's first Python block into `directory` and return its spec, path/to/file.py:Class."""
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    path = directory / "gentle.py"
    path.write_text(block.group(1))
    return f"{path}:Gentle"
