"""The clock of Nics in real time: integer picoseconds that stay far below NEVER however long the machine has been up.

The system's monotonic clock counts from boot. In picoseconds it passes NEVER after 53 days and 63 bits after 106, so
whole turns of 2**50 nanoseconds (13 days) are taken off. All Nics of a process share the clock; so do processes of one
machine that started within one turn, which lets their captures be merged in order of time.
"""

from __future__ import annotations

import time

from transport.clock import Time

_TURN_NS = 1 << 50
_EPOCH_NS = time.monotonic_ns() // _TURN_NS * _TURN_NS


def now() -> Time:
    """Picoseconds since an instant at most 13 days before this process started."""
    return (time.monotonic_ns() - _EPOCH_NS) * 1000
