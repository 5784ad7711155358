"""The paths to one peer: their health, their round trips, and the summary a congestion control sees.

A path is a UDP source port on one plane, a plane being a pair of addresses. All connections to a peer share this state,
so a subflow is only a port. The rules of the path state machine are the table TRANSITIONS and the floor, and nothing
else:

    GOOD      carries data
    SUSPECT   something on it is late or lost; it is probed, and carries data only if there are fewer GOOD paths than
              the floor
    BAD       its probes failed: carries nothing until its back-off has passed
    PROBING   a probe is out to see whether it came back
    DENIED    the user forbids it

Random loss does not evict a path: a delivery makes it GOOD again, and only failed probes make it BAD. The usable paths
are the GOOD ones and, if those are fewer than the floor, as many SUSPECT ones as are missing. A transition to BAD or
DENIED that would leave fewer GOOD and SUSPECT paths than the floor does not happen.

When probes are sent and what their outcome means is transport/probes.py. All work here is constant per packet and per
transition, whatever the number of paths.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cython

from transport.arbiter import arbitrate
from transport.clock import NEVER
from transport.errors import ConfigError
from transport.path import BAD, DENIED, GOOD, PROBING, STATE_NAMES, SUSPECT, Path
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

#: A path's share of marks is a moving average, the newest acknowledgement weighs one in this many.
_MARK_WEIGHT = 4
#: A path counts as congested above this share: one acknowledgement full of marks is enough.
_CONGESTED = 0.2
#: The same average over what the other paths bring, and the share above which marks are everywhere.
_SCATTER_WEIGHT = 16
_SCATTERED = 0.125
#: "In use" are the paths of the latest acknowledgements, this many.
_IN_USE = 32
#: Round trip samples the summary is taken over.
_SAMPLES = 16
#: Events kept for a reader; older ones give way.
_MAX_EVENTS = 1024
#: Base round trips after which a packet is late when nobody has measured anything.
_GENEROUS = 10
#: How many further paths are looked at to steer around a marked one, and on another plane for a usable one.
_TRIES = 4
#: Packets that other paths delivered in place of this one, without a delivery between, that make it SUSPECT.
_BLAMES = 2


@dataclass(frozen=True, slots=True)
class PathEvent:
    """The path to `peer` by source port `entropy` on `plane` changed its state at `time` (picoseconds) because of
    `cause`."""

    time: int
    peer: str
    entropy: int
    old: int
    new: int
    cause: str
    plane: int = 0


class PathSet:
    """All paths to one peer.

    Path i is source port i % len(entropies) on plane i // len(entropies), so that equal ports on two planes are two
    paths. floor: paths that stay usable whatever happens. base_rtt: round trip of an idle network, picoseconds. usable:
    the paths that carry data, in no meaningful order. heard_at: last delivery by any path. generation: counts changes
    of `usable`. events_dropped: PathEvents that nobody fetched in time.
    """

    def __init__(
        self,
        entropies: Sequence[int],
        selector: Selector,
        rng: random.Random,
        base_rtt: int,
        floor: int,
        peer: str,
        planes: int = 1,
    ) -> None:
        count = len(entropies)
        self.planes = planes
        self.paths: list[Path] = [Path(i, entropies[i % count], i // count) for i in range(count * planes)]
        self.usable: list[Path] = []
        self.selector = selector
        self.rng = rng
        self.base_rtt = base_rtt
        self.floor = min(max(1, floor), len(self.paths))
        self.peer = peer
        self.resumed_at = -NEVER  # when this process was last found to have stood still
        self.srtt = -1
        self.rttvar = 0
        self.min_rtt = -1
        self.median_rtt = -1
        self.spread_rtt = -1
        self.marked_fraction = 0.0
        self.heard_at = -1
        self.congested_count = 0  # among the usable
        self.in_use: list[Path] = []  # the paths of the latest deliveries, a ring
        self.turn = 0  # of its oldest entry
        self.active_count = 0  # different ones among them
        self.active_congested = 0
        self.scatter = 0.0
        self.generation = 0
        self.events: deque[PathEvent] = deque()
        self.events_dropped = 0
        self.wanting: deque[int] = deque()  # paths that want a probe soon
        self.kept: dict[int, Path] = {}  # SUSPECT and usable, for the floor's sake; the longest kept first
        self.aside: dict[int, Path] = {}  # SUSPECT and not usable
        self.samples = 0
        self.recent = array("q", bytes(8 * _SAMPLES))  # the latest samples, a ring
        self.sorted = array("q", bytes(8 * _SAMPLES))  # the same, by size
        selector.bind(self.paths)
        for first in range(count):  # neighbours on different planes, so that a pass loads all planes alike
            for path in self.paths[first::count]:
                self._include(path)

    # What the engine asks

    def select(self, now: cython.longlong, flow: cython.longlong, avoid: cython.longlong) -> cython.longlong:
        """The index of the path for the next send of `flow`, a stable random number of the connection. `avoid`: an
        index that must not be chosen if there is another, -1 for none. It lost this packet, so its plane is avoided too
        if `across` finds a path on another."""
        path: Path
        count: cython.longlong = len(self.usable)
        place: cython.longlong = self.selector.choose(self.usable, self.rng, now, flow)
        path = self.usable[place]
        # Marks on a minority: look at a few more for a path that has none (the arbiter's SWITCH).
        # A selector that goes around marks by itself may not be overruled: it has counted this path as taken.
        if (
            path.congested
            and self.selector.steers
            and not self.selector.aware
            and 2 * self.congested_count <= count
            and not self._scattered()
        ):
            self.selector.turns += 1
            for _ in range(_TRIES):
                place = place + 1 if place + 1 < count else 0
                path = self.usable[place]
                if not path.congested and path.index != avoid:
                    break
        if avoid >= 0 and self.planes > 1:
            path = self._elsewhere(path, avoid)
        if path.index == avoid and count > 1:
            path = self.usable[place + 1 if place + 1 < count else 0]
        return path.index

    def _elsewhere(self, path: Path, avoid: cython.longlong) -> Path:
        """`path`, or instead of one on the plane of `avoid` one on another."""
        step: cython.longlong
        lost: Path = self.paths[avoid]
        if path.plane == lost.plane:
            for step in range(1, self.planes):
                index: cython.longlong = self.across(avoid, step)
                if index >= 0:
                    return self.paths[index]
        return path

    def across(self, index: cython.longlong, step: cython.longlong) -> cython.longlong:
        """A usable path `step` planes on from that of path `index`: the one of the same source port, or one of the next
        few; -1 if none of these is usable."""
        i: cython.longlong
        count: cython.longlong = len(self.paths) // self.planes
        plane: cython.longlong = (index // count + step) % self.planes
        for i in range(min(_TRIES, count)):
            other: Path = self.paths[plane * count + (index + i) % count]
            if other.usable >= 0:
                return other.index
        return -1

    def loss_delay(self, index: cython.longlong) -> cython.longlong:
        """Picoseconds after which a packet on this path is late: `delay_bound`, and while the path has no sample at
        least ten base round trips, since slow paths are the last to be sampled."""
        path: Path = self.paths[index]
        bound: cython.longlong = self.delay_bound(index)
        return bound if path.srtt > 0 else max(bound, _GENEROUS * self.base_rtt)

    def delay_bound(self, index: cython.longlong) -> cython.longlong:
        """Picoseconds that a round trip on this path should not take: the smoothed one and four deviations, at least a
        quarter more; the peer's where the path has no sample, ten base round trips where nobody has."""
        path: Path = self.paths[index]
        if path.srtt > 0:
            return path.srtt + max(path.srtt // 4, 4 * path.rttvar)
        if self.srtt > 0:
            return self.srtt + max(self.srtt // 4, 4 * self.rttvar)
        return _GENEROUS * self.base_rtt

    def slow_down(self) -> cython.bint:
        """Whether marks mean slow down; if not, they mean switch path (transport/arbiter.py). A selector that does not
        steer around marked paths leaves nothing but to slow down."""
        return not self.selector.steers or arbitrate(self.active_count, self.active_congested, self._scattered()) != 1

    def name(self, index: int) -> str:
        """What errors call a path: its source port, and the plane where there are several."""
        path = self.paths[index]
        return f"{path.entropy}" if self.planes == 1 else f"{path.entropy} of plane {path.plane}"

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
        """`packets` (1 or more), `size` payload bytes in all, arrived by this path, `marked` of them with CE: it
        lives."""
        path: Path = self.paths[index]
        path.heard_at = now
        path.losses = 0
        self.heard_at = now
        self._use(path)
        if marked or path.ecn > 0.0 or self.scatter > 0.0:
            self._mark(path, marked / packets)
        if path.state == SUSPECT:
            self._move(now, path, "delivery")
        self.selector.on_delivered(path, marked)

    def sampled(self, now: cython.longlong, index: cython.longlong, rtt: cython.longlong) -> cython.bint:
        """An exact round trip of this path, more than 0 picoseconds (RFC 6298 section 2). False if it was not taken:
        this process stood still in the meantime, and the packet waited for it, not for the network."""
        if now - rtt < self.resumed_at:
            return False
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
        return True

    def suspected(self, now: cython.longlong, index: cython.longlong) -> None:
        """Data sent on this path is late, and nothing says yet whether the path is to blame."""
        self.doubted(now, index)
        self.selector.on_timeout(self.paths[index], now, self.srtt if self.srtt > 0 else self.base_rtt)

    def lost(self, index: cython.longlong) -> None:
        """A packet of this path was declared lost, or trimmed."""
        self.selector.on_lost(self.paths[index])

    def doubted(self, now: cython.longlong, index: cython.longlong) -> None:
        """The path may be dead: it is to be probed. No data was seen to be late."""
        path: Path = self.paths[index]
        if path.state == GOOD:
            self._move(now, path, "late")
        if path.state == SUSPECT:
            self.want_probe(path)

    def blamed(self, now: cython.longlong, index: cython.longlong) -> None:
        """Another path delivered what this one lost."""
        path: Path = self.paths[index]
        path.losses += 1
        if path.losses >= _BLAMES or path.state == SUSPECT:
            self.doubted(now, index)

    # What the prober tells (transport/probes.py)

    def want_probe(self, path: Path) -> None:
        """Queue a SUSPECT path for a probe."""
        if not path.wants_probe:
            path.wants_probe = True
            self.wanting.append(path.index)

    def probe_failed(self, now: cython.longlong, index: cython.longlong) -> None:
        """Enough probes on this path were not answered."""
        self._move(now, self.paths[index], "probe failed")

    def back_off_over(self, now: cython.longlong, index: cython.longlong) -> None:
        """A BAD path may be probed again."""
        self._move(now, self.paths[index], "back-off over")

    def recovered(self, now: cython.longlong, index: cython.longlong) -> None:
        """Enough probes on this path were answered in a row. What was known of it is from before."""
        self._forget(self.paths[index])
        self._move(now, self.paths[index], "recovered")

    # What the user tells

    def deny(self, now: int, index: int) -> None:
        """Never use this path until `allow`. ConfigError if too few would remain for the floor."""
        path = self.paths[index]
        self._move(now, path, "denied")
        if path.state != DENIED:
            raise ConfigError(
                f"deny = {path.entropy:#x}: this path is {STATE_NAMES[path.state]}, and the floor keeps {self.floor} "
                "paths GOOD or SUSPECT; allowed are paths beyond those"
            )

    def allow(self, now: int, index: int) -> None:
        """Use a denied path again."""
        path = self.paths[index]
        if path.state == DENIED:
            self._forget(path)
            self._move(now, path, "allowed")

    # Inside

    def _scattered(self) -> cython.bint:
        return self.scatter > _SCATTERED

    def _use(self, path: Path) -> None:
        """Note a delivery by `path` among the latest ones."""
        old: Path
        if path.recent == 0:
            self.active_count += 1
            if path.congested:
                self.active_congested += 1
        path.recent += 1
        if len(self.in_use) < _IN_USE:
            self.in_use.append(path)
        else:
            old = self.in_use[self.turn]
            self.in_use[self.turn] = path
            self.turn = (self.turn + 1) % _IN_USE
            old.recent -= 1
            if old.recent == 0:
                self.active_count -= 1
                if old.congested:
                    self.active_congested -= 1

    def _mark(self, path: Path, share: cython.double) -> None:
        if not path.congested:
            self.scatter += (share - self.scatter) / _SCATTER_WEIGHT
            if self.scatter < 0.001:
                self.scatter = 0.0
        path.ecn += (share - path.ecn) / _MARK_WEIGHT
        if path.ecn < 0.001:
            path.ecn = 0.0
        self._set_congested(path, path.ecn > _CONGESTED)

    def _set_congested(self, path: Path, congested: cython.bint) -> None:
        change: cython.longlong = 1 if congested else -1
        if congested == path.congested:
            return
        path.congested = congested
        if path.recent > 0:
            self.active_congested += change
        if path.usable >= 0:
            self.congested_count += change
            self._refresh()

    def _forget(self, path: Path) -> None:
        """The path was away: nothing measured on it holds any more."""
        path.srtt = -1
        path.losses = 0
        path.penalty = 0
        path.ecn = 0.0
        self._set_congested(path, False)

    def _summarise(self, rtt: cython.longlong) -> None:
        """Median and spread over the latest samples, kept sorted: a fixed amount of work."""
        place: cython.longlong = self.samples % _SAMPLES
        oldest: cython.longlong = self.recent[place]
        i: cython.longlong
        count: cython.longlong = min(self.samples + 1, _SAMPLES)
        self.recent[place] = rtt
        i = count - 1  # becomes the place of the sample that goes
        if self.samples >= _SAMPLES:
            while self.sorted[i] != oldest:
                i -= 1
        while i > 0 and self.sorted[i - 1] > rtt:
            self.sorted[i] = self.sorted[i - 1]
            i -= 1
        while i + 1 < count and self.sorted[i + 1] < rtt:
            self.sorted[i] = self.sorted[i + 1]
            i += 1
        self.sorted[i] = rtt
        self.samples += 1
        self.median_rtt = self.sorted[count // 2]
        self.spread_rtt = self.sorted[count - 1] - self.sorted[0]

    def _move(self, now: cython.longlong, path: Path, cause: str) -> None:
        """Apply the table, unless the floor forbids it."""
        old = path.state
        new = TRANSITIONS.get((old, cause), -1)
        if new < 0:
            return
        # GOOD paths are all usable, so the GOOD and SUSPECT ones are the usable and those set aside.
        if new in (BAD, DENIED) and old in (GOOD, SUSPECT) and len(self.usable) + len(self.aside) <= self.floor:
            return
        path.state = new
        path.tried = path.failed = 0
        self.kept.pop(path.index, None)
        self.aside.pop(path.index, None)
        if new == GOOD:
            if path.usable < 0:
                self._include(path)
                self._trim()
        elif new == SUSPECT:
            if len(self.usable) > self.floor:
                self._exclude(path)
                self.aside[path.index] = path
            else:
                self.kept[path.index] = path
        elif path.usable >= 0:
            self._exclude(path)
            self._fill()
        if len(self.events) >= _MAX_EVENTS:
            self.events.popleft()
            self.events_dropped += 1
        self.events.append(PathEvent(now, self.peer, path.entropy, old, new, cause, path.plane))

    def _trim(self) -> None:
        """A SUSPECT path that the floor needed may not be needed any more: the one kept longest goes first."""
        if len(self.usable) > self.floor and self.kept:
            index = next(iter(self.kept))
            path = self.kept.pop(index)
            self._exclude(path)
            self.aside[index] = path

    def _fill(self) -> None:
        """Keep the floor with the SUSPECT path that was set aside last: least is known against it."""
        if len(self.usable) < self.floor:
            index, path = self.aside.popitem()
            self._include(path)
            self.kept[index] = path

    def _include(self, path: Path) -> None:
        path.usable = len(self.usable)
        self.usable.append(path)
        if path.congested:
            self.congested_count += 1
        self.selector.on_usable(path)
        self.generation += 1
        self._refresh()

    def _exclude(self, path: Path) -> None:
        last: Path = self.usable.pop()
        if last is not path:
            self.usable[path.usable] = last
            last.usable = path.usable
        path.usable = -1
        if path.congested:
            self.congested_count -= 1
        self.selector.on_usable(path)
        self.generation += 1
        self._refresh()

    def _refresh(self) -> None:
        count: cython.longlong = len(self.usable)
        self.marked_fraction = self.congested_count / count if count else 0.0
