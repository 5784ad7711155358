"""The loop: events in order of time, in integer picoseconds.

An Event has one time. Whoever needs several at once has several events. Events at the same time fire in an order that
follows from the loop's seed and from nothing else, new for each time an event is armed: two symmetric senders that meet
at one port in the same picosecond win equally often.

The heap is kept in flat arrays, four children to a node, so that to move an entry touches no object.
"""

from __future__ import annotations

from array import array

import cython

from testbed.sim.mix import Draws
from transport.clock import NEVER

_SMALLEST = 64


class Event:
    """Something that happens once, at `when`, unless it is moved or disarmed before. number: among the events of its
    loop, -1 before it was armed."""

    def __init__(self) -> None:
        self.when = NEVER
        self.armed = False
        self.number = -1

    def fire(self, now: cython.longlong) -> None:
        """It is time."""


class Loop:
    """now: picoseconds, moved by `run` alone. fired: events so far. halted: makes `run` return after this event."""

    def __init__(self, seed: int, now: int = 0) -> None:
        self.now = now
        self.fired = 0
        self.halted = False
        self._draws = Draws(seed)
        self._events: list[Event] = []
        self._size = 0  # of the heap
        self._free = False  # its root, whose event fires: what is armed first takes its place
        self._whens = array("q", bytes(8 * _SMALLEST))  # of its entries: time,
        self._keys = array("Q", bytes(8 * _SMALLEST))  # order among those of the same time,
        self._numbers = array("q", bytes(8 * _SMALLEST))  # and event
        self._places = array("q", bytes(8 * _SMALLEST))  # in the heap, by an event's number

    def arm(self, event: Event, when: cython.longlong) -> None:
        """Let it fire at `when`, not before now, whether it was armed or not."""
        place: cython.longlong
        if when < self.now:
            when = self.now
        event.when = when
        if event.armed:
            self._close()
            place = self._places[event.number]
        else:
            if event.number < 0:
                self._register(event)
            event.armed = True
            if self._free:
                place = 0
                self._free = False
            else:
                place = self._size
                self._size += 1
        self._settle(when, self._draws.draw(), event.number, place)

    def disarm(self, event: Event) -> None:
        """It does not fire any more."""
        if event.armed:
            event.armed = False
            event.when = NEVER
            self._remove(self._places[event.number])

    def run(self, until: cython.longlong, limit: cython.longlong) -> cython.longlong:
        """Fire what is due, up to and including `until`, at most `limit` events; return how many fired. `now` is then
        the time of the last one."""
        event: Event
        count: cython.longlong = 0
        self.halted = False
        while count < limit and self._size and not self.halted and self._whens[0] <= until:
            event = self._events[self._numbers[0]]
            self.now = event.when
            event.when = NEVER
            event.armed = False
            self._free = True
            count += 1
            event.fire(self.now)
            self._close()
        self.fired += count
        return count

    def next(self) -> cython.longlong:
        """When the next event fires, NEVER if none is armed."""
        return self._whens[0] if self._size else NEVER

    def _register(self, event: Event) -> None:
        """Give an event its number, and room in the arrays."""
        event.number = len(self._events)
        self._events.append(event)
        room: cython.longlong = len(self._places)
        if event.number == room:
            self._whens = array("q", bytes(self._whens) + bytes(8 * room))
            self._keys = array("Q", bytes(self._keys) + bytes(8 * room))
            self._numbers = array("q", bytes(self._numbers) + bytes(8 * room))
            self._places = array("q", bytes(self._places) + bytes(8 * room))

    def _close(self) -> None:
        """Nothing took the place of the event that fires."""
        if self._free:
            self._free = False
            self._remove(0)

    def _remove(self, place: cython.longlong) -> None:
        self._size -= 1
        last: cython.longlong = self._size
        if place < last:
            self._settle(self._whens[last], self._keys[last], self._numbers[last], place)

    def _settle(
        self, when: cython.longlong, key: cython.ulonglong, number: cython.longlong, place: cython.longlong
    ) -> None:
        """Put an entry where it belongs, given a place that is free: up first, then down."""
        above: cython.longlong
        while place > 0:
            above = (place - 1) >> 2
            if when > self._whens[above] or (when == self._whens[above] and key > self._keys[above]):
                break
            self._move(above, place)
            place = above
        child: cython.longlong
        best: cython.longlong
        end: cython.longlong
        while True:
            best = (place << 2) + 1
            if best >= self._size:
                break
            end = min(best + 4, self._size)
            for child in range(best + 1, end):
                if self._whens[child] < self._whens[best] or (
                    self._whens[child] == self._whens[best] and self._keys[child] < self._keys[best]
                ):
                    best = child
            if when < self._whens[best] or (when == self._whens[best] and key < self._keys[best]):
                break
            self._move(best, place)
            place = best
        self._whens[place] = when
        self._keys[place] = key
        self._numbers[place] = number
        self._places[number] = place

    def _move(self, source: cython.longlong, place: cython.longlong) -> None:
        self._whens[place] = self._whens[source]
        self._keys[place] = self._keys[source]
        self._numbers[place] = self._numbers[source]
        self._places[self._numbers[source]] = place
