"""The text of an input file, or a ConfigError that says what the file is instead.

A pickle is refused, since loading one runs code that it contains. A Git LFS pointer is what a clone without LFS has in
the place of a large file. Files that come with the package have names that begin with "package:".
"""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path

from transport.errors import ConfigError

#: In front of the name of a file that comes with the package.
PACKAGE = "package:"

_PICKLE_SUFFIXES = (".pkl", ".pickle", ".pt", ".pth")
#: The first bytes of what the protocols 0 and 1, which have no signature, write for a dict, a list, and objects.
_PICKLE_STARTS = (b"(dp", b"(lp", b"}q\x00", b"]q\x00", b"ccopy_reg\n", b"ccollections\n", b"cnumpy")


def found_in(folder: Path, name: str) -> str:
    """The path from here of a file that a scenario in `folder` names: in that folder if it is there."""
    inside = os.path.join(folder, name)
    return inside if not name.startswith(PACKAGE) and os.path.exists(inside) else name


def read_text(path: Path) -> str:
    """The whole file as UTF-8 text."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
    if path.suffix.lower() in _PICKLE_SUFFIXES or _is_pickle(data):
        raise ConfigError(f"{path}: a Python pickle, which can run code when it is read; give its figures as text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8 text") from None
    if text.startswith("version https://git-lfs"):
        size = re.search(r"^size (\d+)$", text, re.MULTILINE)
        what = f" to {size[1]} bytes" if size else ""
        raise ConfigError(f"{path}: a Git LFS pointer{what}, not the file itself; fetch that with git lfs pull")
    if not text.strip():
        raise ConfigError(f"{path}: it is empty")
    return text


def packaged(name: str) -> str:
    """The text of "package:NAME", a connection matrix in testbed/workloads/data/cm."""
    folder = resources.files("testbed.workloads").joinpath("data", "cm")
    known = sorted(item.name for item in folder.iterdir() if item.name.endswith(".cm"))
    if name.removeprefix(PACKAGE) not in known:
        raise ConfigError(f"{name!r} does not come with the package; known: {', '.join(known)}")
    return folder.joinpath(name.removeprefix(PACKAGE)).read_text(encoding="utf-8")


def whole(text: str) -> int | None:
    """The whole number from 0 to 2^53 that a text is, None if it is none."""
    if not re.fullmatch(r"[0-9]{1,16}", text):
        return None
    return int(text) if int(text) <= 1 << 53 else None


def _is_pickle(data: bytes) -> bool:
    return (data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")) or data.startswith(
        _PICKLE_STARTS
    )
