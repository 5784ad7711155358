"""The paths to one peer: their health, their round trips, and the summary a congestion control sees.

A path is a UDP source port. All connections to a peer share this state, so a subflow is only a port. The rules of the
path state machine are the table TRANSITIONS, and nothing else:

    GOOD      carries data
    SUSPECT   something on it is late or lost; it is probed, and carries data only if too few GOOD paths remain
    BAD       its probe failed: carries nothing until its back-off has passed
    PROBING   a probe is out to see whether it came back
    DENIED    the user forbids it

Random loss does not evict a path: a delivery makes it GOOD again, and only a failed probe makes it BAD.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cython

from transport.arbiter import arbitrate
from transport.path import BAD, DENIED, GOOD, PROBING, SUSPECT, Path
from transport.selectors import Selector

if TYPE_CHECKING:
    import random

#: (state, event) -> state. An event that a state does not list changes nothing.
TRANSITIONS: dict[tuple[int, str], int] = {
    (GOOD, "late"): SUSPECT,
    (SUSPECT, "delivery"): GOOD,
    (SUSPECT, "probe failed"): BAD,
    (BAD, "back-off over"): PROBING,
    (PROBING, "recovered"): GOOD,
    (PROBING, "probe failed"): BAD,
    (GOOD, "denied"): DENIED,
    (SUSPECT, "denied"): DENIED,
    (BAD, "denied"): DENIED,
    (PROBING, "denied"): DENIED,
    (DENIED, "allowed"): GOOD,
}

#: Weight of the newest sample in a path's moving average of marks, one in this many.
_MARK_WEIGHT = 8
#: A path counts as congested above this share of marked packets.
_CONGESTED = 0.25
#: Round trip samples the summary is taken over.
_SAMPLES = 16
_MAX_EVENTS = 1024
_GENEROUS = 10
#: How many further paths are looked at to steer around a marked one.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class PathEvent:
    """A path to `peer` changed its state at `time` (picoseconds) because of `cause`."""

    time: int
    peer: str
    entropy: int
    old: int
    new: int
    cause: str


class PathSet:
    """All paths to one peer. floor: paths that stay usable whatever happens. base_rtt: of an idle network,
    picoseconds."""

    def __init__(
        self,
        entropies: Sequence[int],
        selector: Selector,
        rng: random.Random,
        base_rtt: int,
        floor: int,
        peer: str,
    ) -> None:
        self.paths: list[Path] = [Path(index, entropy) for index, entropy in enumerate(entropies)]
        self.usable: list[Path] = []
        self.selector = selector
        self.rng = rng
        self.base_rtt = base_rtt
        self.floor = min(max(1, floor), len(self.paths))
        self.peer = peer
        self.srtt = -1
        self.rttvar = 0
        self.min_rtt = -1
        self.median_rtt = -1
        self.spread_rtt = -1
        self.marked_fraction = 0.0
        self.active_count = 0
        self.congested_count = 0
        self.generation = 0
        self.events: deque[PathEvent] = deque()
        self.events_dropped = 0
        self.wanting: deque[int] = deque()  # paths that want a probe soon
        self.recent: list[int] = []  # the latest samples, oldest first
        self.sorted: list[int] = []  # the same, by size
        for path in self.paths:
            self._include(path)

    # What the engine asks

    def select(self, now: cython.longlong, flow: cython.longlong, avoid: cython.longlong) -> cython.longlong:
        """The index of the path for the next send of `flow`, a stable random number of the connection. `avoid`: an
        index
        that must not be chosen if there is another, -1 for none."""
        path: Path
        count: cython.longlong = len(self.usable)
        place: cython.longlong = self.selector.choose(self.usable, self.rng, now, flow)
        path = self.usable[place]
        if path.congested and self.selector.steers and 2 * self.congested_count <= count:
            # Marks on a minority: look at a few more for one that has none (the arbiter's SWITCH).
            for _ in range(_TRIES):
                place = place + 1 if place + 1 < count else 0
                path = self.usable[place]
                if not path.congested:
                    break
        if path.index == avoid and count > 1:
            path = self.usable[place + 1 if place + 1 < count else 0]
        return path.index

    def loss_delay(self, index: cython.longlong) -> cython.longlong:
        """Picoseconds after which a packet on this path is late: its round trip and four deviations, at least a quarter
        more; the peer's where the path has no sample, ten base round trips where nobody has."""
        path: Path = self.paths[index]
        if path.srtt > 0:
            return path.srtt + max(path.srtt // 4, 4 * path.rttvar)
        if self.srtt > 0:
            return self.srtt + max(self.srtt // 4, 4 * self.rttvar)
        return _GENEROUS * self.base_rtt

    def slow_down(self) -> cython.bint:
        """Whether marks mean slow down; if not, they mean switch path (transport/arbiter.py)."""
        return arbitrate(self.active_count, self.congested_count) != 1

    def poll_event(self) -> PathEvent | None:
        """The oldest untold change of state, or None."""
        return self.events.popleft() if self.events else None

    # What the engine tells

    def delivered(
        self,
        now: cython.longlong,
        index: cython.longlong,
        size: cython.longlong,
        packets: cython.longlong,
        marked: cython.longlong,
    ) -> None:
        """`packets` arrived by this path, `marked` of them with CE: it lives."""
        path: Path = self.paths[index]
        path.heard_at = now
        path.losses = 0
        if marked or path.ecn > 0.0:
            self._mark(path, marked / packets)
        if path.state == SUSPECT:
            self._move(now, path, "delivery")
        self.selector.on_delivered(path, marked)

    def sampled(self, now: cython.longlong, index: cython.longlong, rtt: cython.longlong) -> None:
        """An exact round trip of this path (RFC 6298 section 2)."""
        path: Path = self.paths[index]
        path.latest_rtt = rtt
        if path.srtt < 0:
            path.srtt = path.min_rtt = rtt
            path.rttvar = rtt // 2
        else:
            path.rttvar += (abs(path.srtt - rtt) - path.rttvar) // 4
            path.srtt += (rtt - path.srtt) // 8
            path.min_rtt = min(path.min_rtt, rtt)
        if self.srtt < 0:
            self.srtt = self.min_rtt = rtt
            self.rttvar = rtt // 2
        else:
            self.rttvar += (abs(self.srtt - rtt) - self.rttvar) // 4
            self.srtt += (rtt - self.srtt) // 8
            self.min_rtt = min(self.min_rtt, rtt)
        self._summarise(rtt)

    def suspected(self, now: cython.longlong, index: cython.longlong) -> None:
        """Something sent on this path is late, and nothing says yet whether the path is to blame."""
        path: Path = self.paths[index]
        self._move(now, path, "late")
        self._want_probe(path)
        self.selector.on_timeout(now, self.srtt if self.srtt > 0 else self.base_rtt)

    def blamed(self, now: cython.longlong, index: cython.longlong) -> None:
        """Another path delivered what this one lost."""
        path: Path = self.paths[index]
        path.losses += 1
        if path.state == SUSPECT:
            self._want_probe(path)

    def probe_failed(self, now: cython.longlong, index: cython.longlong) -> None:
        """A probe on this path was not answered."""
        self._move(now, self.paths[index], "probe failed")

    def back_off_over(self, now: cython.longlong, index: cython.longlong) -> None:
        """A BAD path may be probed again."""
        self._move(now, self.paths[index], "back-off over")

    def recovered(self, now: cython.longlong, index: cython.longlong) -> None:
        """Enough probes on this path were answered in a row."""
        path: Path = self.paths[index]
        path.srtt = -1  # what was known of its delay is from before
        path.losses = 0
        self._move(now, path, "recovered")

    def deny(self, now: int, index: int) -> None:
        """Never use this path until `allow`. The last usable path cannot be denied."""
        self._move(now, self.paths[index], "denied")

    def allow(self, now: int, index: int) -> None:
        self._move(now, self.paths[index], "allowed")

    # Inside

    def _want_probe(self, path: Path) -> None:
        if not path.wants_probe:
            path.wants_probe = True
            self.wanting.append(path.index)

    def _mark(self, path: Path, share: cython.double) -> None:
        path.ecn += (share - path.ecn) / _MARK_WEIGHT
        if path.ecn < 0.001:
            path.ecn = 0.0
        congested: cython.bint = path.ecn > _CONGESTED
        if congested != path.congested:
            path.congested = congested
            if path.usable >= 0:
                self.congested_count += 1 if congested else -1
                self.marked_fraction = self.congested_count / self.active_count

    def _summarise(self, rtt: cython.longlong) -> None:
        """Median and spread over the latest samples, kept sorted: a fixed amount of work."""
        i: cython.longlong
        if len(self.recent) == _SAMPLES:
            self.sorted.remove(self.recent.pop(0))
        self.recent.append(rtt)
        i = len(self.sorted)
        while i > 0 and self.sorted[i - 1] > rtt:
            i -= 1
        self.sorted.insert(i, rtt)
        self.median_rtt = self.sorted[len(self.sorted) // 2]
        self.spread_rtt = self.sorted[len(self.sorted) - 1] - self.sorted[0]

    def _move(self, now: cython.longlong, path: Path, cause: str) -> None:
        """Apply the table, unless the floor of usable paths forbids it."""
        old = path.state
        new = TRANSITIONS.get((old, cause), -1)
        if new < 0:
            return
        if new in (BAD, DENIED) and path.usable >= 0 and len(self.usable) <= self.floor and not self._replace(path):
            return
        path.state = new
        if new in (GOOD, SUSPECT):
            if path.usable < 0:
                self._include(path)
        elif path.usable >= 0:
            self._exclude(path)
        if new == SUSPECT:
            self._set_aside(path)
        if len(self.events) < _MAX_EVENTS:
            self.events.append(PathEvent(now, self.peer, path.entropy, old, new, cause))
        else:
            self.events_dropped += 1

    def _set_aside(self, path: Path) -> None:
        """A SUSPECT path carries no new data while enough others are usable."""
        if len(self.usable) > self.floor and path.usable >= 0:
            self._exclude(path)

    def _replace(self, path: Path) -> bool:
        """At the floor: put a GOOD or SUSPECT path that is set aside in the place of `path`. False if there is none."""
        for other in self.paths:
            if other.usable < 0 and other.state in (GOOD, SUSPECT) and other is not path:
                self._include(other)
                return True
        return False

    def _include(self, path: Path) -> None:
        path.usable = len(self.usable)
        self.usable.append(path)
        self._recount(1, path)

    def _exclude(self, path: Path) -> None:
        last: Path = self.usable.pop()
        if last is not path:
            self.usable[path.usable] = last
            last.usable = path.usable
        path.usable = -1
        self._recount(-1, path)

    def _recount(self, change: cython.longlong, path: Path) -> None:
        self.active_count += change
        if path.congested:
            self.congested_count += change
        self.marked_fraction = self.congested_count / self.active_count if self.active_count else 0.0
        self.generation += 1
