"""Timers without cost for what does not expire: a heap that is only touched when a deadline moves closer.

Each `Timed` thing has one deadline. Moving it later costs nothing: its entry stays where it is, and is put back at the
true time when it comes to the top.
"""

from __future__ import annotations

import cython

from transport.clock import NEVER
from transport.packet import Packets


class Timed:
    """Something with one deadline (picoseconds, NEVER when unset). scheduled, ticket, place: of its entry in the heap,
    place -1 if it has none."""

    def __init__(self) -> None:
        self.deadline = NEVER
        self.scheduled = NEVER
        self.ticket = 0
        self.place = -1

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
        self.heap: list[Timed] = []
        self.serial = 0

    def arm(self, timed: Timed, deadline: cython.longlong) -> None:
        """Set the deadline, earlier or later than before; NEVER unsets it."""
        timed.deadline = deadline
        if deadline < timed.scheduled:
            if timed.place < 0:
                timed.place = len(self.heap)
                self.heap.append(timed)
            self._schedule(timed)

    def next(self) -> cython.longlong:
        """When `run` should be called next; may be early, never late. NEVER if nothing is armed."""
        while self.heap:
            first: Timed = self.heap[0]
            if first.deadline <= first.scheduled:
                return first.scheduled
            if first.deadline < NEVER:
                self._schedule(first)
            else:
                self._drop(first)
        return NEVER

    def run(self, now: cython.longlong) -> None:
        """Expire everything due at `now`, each at most once."""
        timed: Timed
        due: list[Timed] = []
        while self.next() <= now:
            timed = self.heap[0]
            self._drop(timed)
            timed.deadline = NEVER
            due.append(timed)
        for timed in due:
            timed.expire(now)

    def _schedule(self, timed: Timed) -> None:
        """Move an entry to where its deadline belongs."""
        timed.scheduled = timed.deadline
        self.serial += 1
        timed.ticket = self.serial
        self._settle(timed, timed.place)

    def _drop(self, timed: Timed) -> None:
        place: cython.longlong = timed.place
        timed.place = -1
        timed.scheduled = NEVER
        last: Timed = self.heap.pop()
        if last is not timed:
            self._settle(last, place)

    def _settle(self, timed: Timed, place: cython.longlong) -> None:
        """Put an entry where it belongs, given a place that is free: up first, then down."""
        above: Timed
        below: Timed
        other: Timed
        while place > 0:
            above = self.heap[(place - 1) >> 1]
            if not _before(timed, above):
                break
            self._put(above, place)
            place = (place - 1) >> 1
        child: cython.longlong
        size: cython.longlong = len(self.heap)
        while True:
            child = 2 * place + 1
            if child >= size:
                break
            below = self.heap[child]
            if child + 1 < size:
                other = self.heap[child + 1]
                if _before(other, below):
                    below = other
                    child += 1
            if _before(timed, below):
                break
            self._put(below, place)
            place = child
        self._put(timed, place)

    def _put(self, timed: Timed, place: cython.longlong) -> None:
        self.heap[place] = timed
        timed.place = place


def _before(one: Timed, other: Timed) -> cython.bint:
    return one.scheduled < other.scheduled or (one.scheduled == other.scheduled and one.ticket < other.ticket)
