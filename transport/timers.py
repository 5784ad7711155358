"""Timers without cost for what does not expire: a heap that is only touched when a deadline moves closer.

Each `Timed` thing has one deadline. Moving it later costs nothing: the old heap entry fires early and is put back at
the true time. Moving it earlier pushes a second entry and leaves the first behind, stale.
"""

from __future__ import annotations

from heapq import heappop, heappush

import cython

from transport.clock import NEVER
from transport.packet import Packets


class Timed:
    """Something with one deadline (picoseconds, NEVER when unset)."""

    def __init__(self) -> None:
        self.deadline = NEVER
        self.scheduled = NEVER

    def expire(self, now: cython.longlong) -> None:
        """The deadline has come."""


class Source(Timed):
    """Something that transmits when the endpoint gives it a turn. queued: it waits for one."""

    def __init__(self) -> None:
        Timed.__init__(self)
        self.queued = False

    def transmit(self, now: cython.longlong, out: Packets, limit: cython.longlong) -> cython.bint:
        """Append at most about `limit` packets to `out`; True if there is more to send right now."""
        return False


class Timers:
    """All deadlines of one endpoint. Equal times fire in the order they were set."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Timed]] = []
        self.serial = 0

    def arm(self, timed: Timed, deadline: cython.longlong) -> None:
        """Set the deadline, earlier or later than before; NEVER unsets it."""
        timed.deadline = deadline
        if deadline < timed.scheduled:
            timed.scheduled = deadline
            self.serial += 1
            heappush(self.heap, (deadline, self.serial, timed))

    def next(self) -> cython.longlong:
        """When `run` should be called next; may be early, never late. NEVER if nothing is armed."""
        while self.heap:
            entry = self.heap[0]
            timed: Timed = entry[2]
            if timed.scheduled == entry[0]:
                if timed.deadline <= timed.scheduled:
                    return timed.scheduled
                heappop(self.heap)
                timed.scheduled = NEVER
                if timed.deadline < NEVER:
                    self.arm(timed, timed.deadline)
            else:
                heappop(self.heap)
        return NEVER

    def run(self, now: cython.longlong) -> None:
        """Expire everything due at `now`, each at most once."""
        due: list[Timed] = []
        while self.next() <= now:
            timed: Timed = heappop(self.heap)[2]
            timed.scheduled = NEVER
            timed.deadline = NEVER
            due.append(timed)
        for timed in due:
            timed.expire(now)
