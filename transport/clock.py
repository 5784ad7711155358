"""One clock unit for the whole project: the integer picosecond.

Nothing here reads a clock. A Nic says what time it is; everything else is told.
"""

from __future__ import annotations

import cython

Time = int  #: picoseconds

NS: Time = 1_000
US: Time = 1_000_000
MS: Time = 1_000_000_000
SECOND: Time = 1_000_000_000_000

#: A time that never comes. Small enough that adding a timeout to it stays inside 64 bits.
NEVER: Time = 1 << 62


def transmit_time(size: cython.longlong, rate: cython.longlong) -> cython.longlong:
    """Picoseconds that `size` bytes (at most 8 MiB) occupy a link of `rate` bits per second.

    Exact integer arithmetic: whole picoseconds per byte first, then the remainder, so that no product
    leaves 63 bits for rates up to 1 Tbit/s.
    """
    second: cython.longlong = 8_000_000_000_000  # bits of a byte x picoseconds of a second, typed for C
    return size * (second // rate) + size * (second % rate) // rate


def to_us(time: Time) -> float:
    return time / US
