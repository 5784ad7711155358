"""Square matrices of bytes: row i, column j is what rank i sends to rank j.

Entries are separated by blanks or commas and may end in K, M or G, powers of ten. A square table of counts, such as how
many tokens went from an expert of one layer to an expert of the next, has the same form. What a rank has for itself is
kept: it is traffic of the pattern, though not of the network.
"""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np

from testbed.workloads.base import Bytes
from transport.errors import ConfigError

_ENTRY = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,9})?)([KMG]?)")
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_MOST = 1 << 53


def parse(text: str, source: str) -> Bytes:
    """The matrix, with its diagonal."""
    rows: list[list[int]] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        rows.append([_entry(word, f"{source}, line {number}") for word in words])
        lines.append(number)
    if len(rows) < 2:
        raise ConfigError(f"{source}: {len(rows)} rows: a matrix for at least 2 ranks is needed")
    for number, row in zip(lines, rows, strict=True):
        if len(row) != len(rows):
            raise ConfigError(
                f"{source}, line {number}: {len(row)} entries in a file of {len(rows)} rows: the matrix must be square"
            )
    return np.array(rows, dtype=np.int64)


def _entry(word: str, place: str) -> int:
    match = _ENTRY.fullmatch(word)
    value = Fraction(match[1]) * _FACTORS[match[2]] if match else Fraction(-1)
    if value.denominator != 1 or not 0 <= value <= _MOST:
        raise ConfigError(
            f"{place}: {word!r}: allowed are whole numbers from 0 to 2^53, also with K, M or G for 10^3, 10^6, 10^9"
        )
    return int(value)
