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
    """Something that transmits when the endpoint gives it a turn. queued: it waits for one, and `following` comes after
    it."""

    def __init__(self) -> None:
        Timed.__init__(self)
        self.queued = False
        self.following: Source | None = None

    def transmit(self, now: cython.longlong, out: Packets, limit: cython.longlong) -> cython.bint:
        """Append at most about `limit` packets to `out`; True if there is more to send right now."""
        return False


class Ready:
    """Sources that wait for their turn, in order, each once. count: how many."""

    def __init__(self) -> None:
        self.count = 0
        self.first: Source | None = None
        self.last: Source | None = None

    def push(self, source: Source) -> None:
        """Let it wait, unless it does already."""
        if source.queued:
            return
        source.queued = True
        if self.first is None:
            self.first = source
        else:
            last: Source = self.last  # type: ignore[assignment]
            last.following = source
        self.last = source
        self.count += 1

    def pop(self) -> Source:
        """The first; there must be one."""
        source: Source = self.first  # type: ignore[assignment]
        source.queued = False
        self.first = source.following
        source.following = None
        if self.first is None:
            self.last = None
        self.count -= 1
        return source


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
