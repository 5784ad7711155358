"""Sequence numbers: 32 bits on the wire, unwrapped to 63 bits inside, so that only this file knows they wrap."""

from __future__ import annotations

import cython


def unwrap(wire: cython.longlong, reference: cython.longlong) -> cython.longlong:
    """The number congruent to the 32-bit `wire` that lies nearest to `reference` (RFC 1982 serial arithmetic)."""
    delta: cython.longlong = (wire - reference) & 0xFFFFFFFF
    if delta >= 0x80000000:
        delta -= 0x100000000
    return reference + delta
