"""Big-endian integers in byte buffers. The caller has checked that the bytes are there and that the value fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence

    Octets = Sequence[int]
    MutableOctets = MutableSequence[int]


def put16(out: MutableOctets, at: cython.Py_ssize_t, value: cython.ulonglong) -> None:
    """Write the 16-bit `value` to out[at:at + 2]."""
    out[at] = (value >> 8) & 0xFF
    out[at + 1] = value & 0xFF


def put32(out: MutableOctets, at: cython.Py_ssize_t, value: cython.ulonglong) -> None:
    """Write the 32-bit `value` to out[at:at + 4]."""
    out[at] = (value >> 24) & 0xFF
    out[at + 1] = (value >> 16) & 0xFF
    out[at + 2] = (value >> 8) & 0xFF
    out[at + 3] = value & 0xFF


def get24(data: Octets, at: cython.Py_ssize_t) -> cython.ulonglong:
    """The 24-bit number at data[at:at + 3]."""
    a: cython.ulonglong = data[at]
    b: cython.ulonglong = data[at + 1]
    return a << 16 | b << 8 | data[at + 2]


def get32(data: Octets, at: cython.Py_ssize_t) -> cython.ulonglong:
    """The 32-bit number at data[at:at + 4]."""
    a: cython.ulonglong = data[at]
    return a << 24 | get24(data, at + 1)
