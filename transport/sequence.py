"""Sequence numbers: 32 bits on the wire, unwrapped to 63 bits inside, so that only this file knows they wrap."""

from __future__ import annotations

import cython

_RANGE = 1 << 32
_HALF = 1 << 31


def unwrap(wire: cython.longlong, reference: cython.longlong) -> cython.longlong:
    """The number congruent to the 32-bit `wire` that lies nearest to `reference` (RFC 1982 serial arithmetic)."""
    delta: cython.longlong = (wire - reference) & (_RANGE - 1)
    if delta >= _HALF:
        delta -= _RANGE
    return reference + delta


def wrap(sequence: cython.longlong) -> cython.longlong:
    """The number as on the wire."""
    return sequence & (_RANGE - 1)
