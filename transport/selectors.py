"""Path selectors: which of the usable paths the next send takes.

A selector answers with a place in the list of usable paths it is given, in constant time (`bitmap`: on average over a
pass). It draws only from the generator it is handed. Selectors that steer are led around marked paths by the PathSet
while marks are on a minority, or go around them by themselves; a control learns of the marks of those that do not.
"""

from __future__ import annotations

from collections import deque
from math import gcd
from typing import TYPE_CHECKING, Any

import cython

from transport.clock import NEVER
from transport.errors import ConfigError
from transport.path import Path, Paths

if TYPE_CHECKING:
    import random

#: Bytes a path is charged with for the packet that is about to be sent.
_PACKET = 4096
#: Round trips that REPS stays frozen: as long as evicting a dead path may take.
_FREEZE_RTTS = 16
#: Ports that REPS keeps in store.
_DEPTH = 8
#: Passes that `bitmap` skips a path for: marks, a lost packet, one that is late; and the most that can be due.
_MARKED = 1
_LOST = 4
_LATE = 15
_MOST = 15


class Selector:
    """Base of all selectors. steers: marked paths are to be avoided. aware: the selector does so by itself, and its
    choice stands. turns: how often the path whose turn it was had to give way to another. One instance serves one
    peer."""

    name = ""

    def __init__(self) -> None:
        self.steers = True
        self.aware = False
        self.turns = 0
        self.paths: Paths = []

    def bind(self, paths: Paths) -> None:
        """All paths of the peer, usable or not, by index; told once."""
        self.paths = paths

    def choose(self, usable: Paths, rng: random.Random, now: cython.longlong, flow: cython.longlong) -> cython.longlong:
        """A place in `usable`, which is never empty. flow: a stable random number of the connection."""
        return 0

    def on_delivered(self, path: Path, marked: cython.longlong) -> None:
        """Packets arrived by `path`, `marked` of them with CE."""

    def on_lost(self, path: Path) -> None:
        """A packet of `path` was lost, which is known from a trimmed rest of it, from later packets of `path` that
        arrived, or because it is late."""

    def on_timeout(self, path: Path, now: cython.longlong, rtt: cython.longlong) -> None:
        """Something on `path` is late; rtt: the peer's round trip, picoseconds."""

    def on_usable(self, path: Path) -> None:
        """`path` has become usable, or stopped being so: path.usable says which."""


class Single(Selector):
    """One path for each connection, by its flow number: what ECMP does to a connection with one source port. A flow
    moves only while its own path cannot be used."""

    name = "single"

    def __init__(self) -> None:
        Selector.__init__(self)
        self.steers = False

    def choose(self, usable: Paths, rng: random.Random, now: cython.longlong, flow: cython.longlong) -> cython.longlong:
        path: Path
        count: cython.longlong = len(self.paths)
        draw: cython.longlong = flow
        for _ in range(8):
            path = self.paths[draw % count]
            if path.usable >= 0:
                return path.usable
            # Any fixed shuffle of all bits: the flow comes back when its path does.
            draw = ((draw ^ draw >> 13) * 1103515245 + 12345) >> 5 & 0x7FFFFFFF
        return flow % len(usable)


class RoundRobin(Selector):
    """Each usable path once per pass."""

    name = "round_robin"

    def __init__(self) -> None:
        Selector.__init__(self)
        self.place = -1

    def choose(self, usable: Paths, rng: random.Random, now: cython.longlong, flow: cython.longlong) -> cython.longlong:
        self.place = self.place + 1 if self.place + 1 < len(usable) else 0
        return self.place


class Random(Selector):
    """Oblivious spraying: any usable path, all alike."""

    name = "random"

    def __init__(self) -> None:
        Selector.__init__(self)
        self.steers = False

    def choose(self, usable: Paths, rng: random.Random, now: cython.longlong, flow: cython.longlong) -> cython.longlong:
        return int(rng.random() * len(usable))


class PowerOfTwo(Selector):
    """Power of two choices (Mitzenmacher 2001): of two paths drawn at random the one with the smaller product of round
    trip and bytes in flight, one packet more included. Where one is not measured, bytes in flight alone decide."""

    name = "pot"

    def choose(self, usable: Paths, rng: random.Random, now: cython.longlong, flow: cython.longlong) -> cython.longlong:
        count: cython.longlong = len(usable)
        draw: cython.longlong = int(rng.random() * (count * count))
        first: cython.longlong = draw % count
        second: cython.longlong = draw // count
        a: Path = usable[first]
        b: Path = usable[second]
        if a.srtt < 0 or b.srtt < 0:
            return first if a.in_flight <= b.in_flight else second
        # In a double: the product of bytes and picoseconds may pass 63 bits.
        cost_a: cython.double = float(a.srtt) * (a.in_flight + _PACKET)
        cost_b: cython.double = float(b.srtt) * (b.in_flight + _PACKET)
        return first if cost_a <= cost_b else second


class Reps(Selector):
    """REPS, recycled entropies (EuroSys 2026): the port of an unmarked delivery is used again, oldest first; without
    one in store a random path is explored. When something is late it freezes: stored ports are cycled and nothing is
    explored, so that a dead path is not met by chance; afterwards it begins with an empty store."""

    name = "reps"

    def __init__(self) -> None:
        Selector.__init__(self)
        self.store: deque[Path] = deque()
        self.frozen_until = -NEVER
        self.thawing = False

    def choose(self, usable: Paths, rng: random.Random, now: cython.longlong, flow: cython.longlong) -> cython.longlong:
        path: Path
        frozen: cython.bint = now < self.frozen_until
        if self.thawing and not frozen:
            self.thawing = False
            self.store.clear()
        while self.store:
            path = self.store.popleft()
            if path.usable >= 0:
                if frozen:
                    self.store.append(path)
                return path.usable
        return int(rng.random() * len(usable))

    def on_delivered(self, path: Path, marked: cython.longlong) -> None:
        if marked > 0:
            self.turns += 1
        elif path.usable >= 0 and len(self.store) < _DEPTH:
            self.store.append(path)

    def on_timeout(self, path: Path, now: cython.longlong, rtt: cython.longlong) -> None:
        if self.store:
            self.thawing = True
            self.frozen_until = now + _FREEZE_RTTS * rtt


class Bitmap(Selector):
    """Path-aware rotation (Ultra Ethernet Specification 1.0.3, sections 3.6.16.3 and 3.6.16.4): each usable path once
    per pass, in an order drawn anew for every pass. A path that came back marked, or lost something, is skipped in as
    many passes as its penalty says. Nothing is skipped while more than half of the paths have one: then it is not the
    paths that are to blame. The specification has a bit, to skip once; penalties are those of the consortium's
    simulator."""

    name = "bitmap"

    def __init__(self) -> None:
        Selector.__init__(self)
        self.aware = True
        self.penalised = 0  # usable paths with a penalty
        self.count = 0  # paths in this pass
        self.left = 0  # of them not visited yet
        self.place = 0
        self.stride = 1

    def choose(self, usable: Paths, rng: random.Random, now: cython.longlong, flow: cython.longlong) -> cython.longlong:
        path: Path
        place: cython.longlong
        minority: cython.bint
        count: cython.longlong = len(usable)
        # Ends: at most half of a pass is skipped.
        while True:
            if self.left == 0 or self.count != count:
                self._begin(count, rng)
            place = self.place
            self.left -= 1
            self.place += self.stride
            if self.place >= count:
                self.place -= count
            path = usable[place]
            if path.penalty == 0:
                return place
            minority = 2 * self.penalised <= count
            # Served also where it is not skipped: or else marks on all paths at once would never be forgotten.
            path.penalty -= 1
            if path.penalty == 0:
                self.penalised -= 1
            if not minority:
                return place
            self.turns += 1

    def _begin(self, count: cython.longlong, rng: random.Random) -> None:
        """A pass: from a place drawn at random, by a step without a common divisor with `count`, so that it meets every
        place once."""
        draw: cython.longlong = int(rng.random() * (count * count))
        self.count = self.left = count
        self.place = draw % count
        self.stride = 1 + draw // count
        while gcd(self.stride, count) != 1:
            self.stride += 1
        self.stride %= count

    def on_delivered(self, path: Path, marked: cython.longlong) -> None:
        if marked > 0:
            self._penalise(path, _MARKED)

    def on_lost(self, path: Path) -> None:
        self._penalise(path, _LOST)

    def on_timeout(self, path: Path, now: cython.longlong, rtt: cython.longlong) -> None:
        self._penalise(path, _LATE)

    def on_usable(self, path: Path) -> None:
        if path.penalty > 0:
            self.penalised += 1 if path.usable >= 0 else -1

    def _penalise(self, path: Path, passes: cython.longlong) -> None:
        if path.penalty == 0 and path.usable >= 0:
            self.penalised += 1
        path.penalty = min(path.penalty + passes, _MOST)


class Mixed(Bitmap):
    """The port of an unmarked delivery again, oldest first as in REPS but without freezing; where none is in store, the
    rotation of `bitmap`. What has got a penalty since it was stored is not recycled."""

    name = "mixed"

    def __init__(self) -> None:
        Bitmap.__init__(self)
        self.store: deque[Path] = deque()

    def choose(self, usable: Paths, rng: random.Random, now: cython.longlong, flow: cython.longlong) -> cython.longlong:
        path: Path
        while self.store:
            path = self.store.popleft()
            if path.usable >= 0 and path.penalty == 0:
                return path.usable
            self.turns += 1
        return Bitmap.choose(self, usable, rng, now, flow)

    def on_delivered(self, path: Path, marked: cython.longlong) -> None:
        if marked > 0:
            self._penalise(path, _MARKED)
        elif path.usable >= 0 and path.penalty == 0 and len(self.store) < _DEPTH:
            self.store.append(path)


_KINDS: tuple[type[Selector], ...] = (Single, RoundRobin, Random, PowerOfTwo, Reps, Bitmap, Mixed)
_SELECTORS: dict[str, type[Selector]] = {kind.name: kind for kind in _KINDS}


def names() -> list[str]:
    """The known selectors."""
    return sorted(_SELECTORS)


def check(name: Any) -> None:
    """ConfigError, with the known names, unless `name` is one of them."""
    if name not in _SELECTORS:
        raise ConfigError(f"selector = {name!r}: allowed are {', '.join(names())}")


def make(name: str) -> Selector:
    """A new selector for one peer."""
    check(name)
    return _SELECTORS[name]()
