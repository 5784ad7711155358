"""The loop: events in order of time, in integer picoseconds.

An Event has one time. Whoever needs several at once has several events. Events at the same time fire in an order that
follows from the loop's seed and from nothing else, new for each time an event is armed: two symmetric senders that meet
at one port in the same picosecond win equally often.
"""

from __future__ import annotations

import cython

from testbed.sim.mix import mix
from transport.clock import NEVER


class Event:
    """Something that happens once, at `when`, unless it is moved or disarmed before. place: in the loop's heap, -1 if
    it is not armed."""

    def __init__(self) -> None:
        self.when = NEVER
        self.key = 0
        self.place = -1

    def fire(self, now: cython.longlong) -> None:
        """It is time."""


class Loop:
    """now: picoseconds, moved by `run` alone. fired: events so far. halted: makes `run` return after this event."""

    def __init__(self, seed: int, now: int = 0) -> None:
        self.now = now
        self.fired = 0
        self.halted = False
        self.heap: list[Event] = []
        self.draws = seed

    def arm(self, event: Event, when: cython.longlong) -> None:
        """Let it fire at `when`, not before now, whether it was armed or not."""
        golden: cython.ulonglong = 0x9E3779B97F4A7C15
        mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
        if when < self.now:
            when = self.now
        self.draws = (self.draws + golden) & mask
        event.when = when
        event.key = mix(self.draws)
        place: cython.longlong = event.place
        if place < 0:
            place = len(self.heap)
            self.heap.append(event)
        self._settle(event, place)

    def disarm(self, event: Event) -> None:
        """It does not fire any more."""
        place: cython.longlong = event.place
        if place < 0:
            return
        event.place = -1
        event.when = NEVER
        last: Event = self.heap.pop()
        if last is not event:
            self._settle(last, place)

    def run(self, until: cython.longlong, limit: cython.longlong) -> cython.longlong:
        """Fire what is due, up to and including `until`, at most `limit` events; return how many fired. `now` is then
        the time of the last one."""
        event: Event
        count: cython.longlong = 0
        self.halted = False
        while count < limit and self.heap and not self.halted:
            event = self.heap[0]
            if event.when > until:
                break
            self.now = event.when
            event.when = NEVER
            event.place = -1
            last: Event = self.heap.pop()
            if last is not event:
                self._sink(last, 0)
            count += 1
            event.fire(self.now)
        self.fired += count
        return count

    def next(self) -> cython.longlong:
        """When the next event fires, NEVER if none is armed."""
        if not self.heap:
            return NEVER
        event: Event = self.heap[0]
        return event.when

    def _settle(self, event: Event, place: cython.longlong) -> None:
        """Move an event from where it stands to where it belongs: every event has four children."""
        parent: Event
        above: cython.longlong
        start: cython.longlong = place
        while place > 0:
            above = (place - 1) >> 2
            parent = self.heap[above]
            if event.when > parent.when or (event.when == parent.when and event.key > parent.key):
                break
            self.heap[place] = parent
            parent.place = place
            place = above
        if place < start:
            self.heap[place] = event
            event.place = place
        else:
            self._sink(event, place)

    def _sink(self, event: Event, place: cython.longlong) -> None:
        child: Event
        best: Event
        size: cython.longlong = len(self.heap)
        first: cython.longlong
        at: cython.longlong
        i: cython.longlong
        while True:
            first = (place << 2) + 1
            if first >= size:
                break
            at = first
            best = self.heap[first]
            for i in range(first + 1, min(first + 4, size)):
                child = self.heap[i]
                if child.when < best.when or (child.when == best.when and child.key < best.key):
                    best = child
                    at = i
            if event.when < best.when or (event.when == best.when and event.key < best.key):
                break
            self.heap[place] = best
            best.place = place
            place = at
        self.heap[place] = event
        event.place = place
