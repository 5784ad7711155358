"""Sizes as people write them, and numbers as people read them."""

from __future__ import annotations

import re

from transport.errors import ConfigError

#: The longest message the transport carries.
MAX_SIZE = 1 << 32

_FACTORS = {
    "": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9,
}  # fmt: skip
_SIZE = re.compile(r"\s*(-?\d+)\s*([A-Za-z]*)\s*")


def parse_size(text: object, name: str = "size") -> int:
    """Bytes of a whole number, or of a text such as 64, "64KiB", "1 MiB", "2MB". ConfigError otherwise."""
    value: int | None = None
    if isinstance(text, int) and not isinstance(text, bool):
        value = text
    elif isinstance(text, str):
        match = _SIZE.fullmatch(text)
        if match and match[2] in _FACTORS:
            value = int(match[1]) * _FACTORS[match[2]]
    if value is None or not 0 <= value <= MAX_SIZE:
        raise ConfigError(
            f"{name} = {text if isinstance(text, int) else repr(text)}: allowed are 0 to 4 GiB, as whole bytes or with "
            "one of the units B, KiB, MiB, GiB, kB, MB, GB"
        )
    return value


def show_size(size: int) -> str:
    """The shortest exact spelling in binary units: 65536 is 64KiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def show_bytes(size: float) -> str:
    """About how many bytes, for people: 12.3 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size:.0f} B"


def show_us(value: float | None) -> str:
    """A duration given in microseconds, in the unit that reads best; a dash for what was not measured."""
    if value is None:
        return "-"
    if value >= 1e6:
        return f"{value / 1e6:.2f} s"
    return f"{value / 1e3:.2f} ms" if value >= 1e3 else f"{value:.1f} us"
