"""Pacing: the earliest time the next send may leave, from a rate."""

from __future__ import annotations

import cython

from transport.clock import transmit_time


class Pacer:
    """Spaces sends of one connection. slack: how much of a late wake-up may be made up for at once, picoseconds."""

    def __init__(self, slack: cython.longlong) -> None:
        self.slack = slack
        self.next_at = -(1 << 62)

    def spend(self, now: cython.longlong, size: cython.longlong, rate: cython.longlong) -> None:
        """`size` bytes left at `now` at `rate` bits per second; rate 0 does not pace."""
        if rate > 0:
            self.next_at = max(self.next_at, now - self.slack) + transmit_time(size, rate)
