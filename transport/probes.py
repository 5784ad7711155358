"""Probes: the round trip of paths that carry no data, and whether suspected ones live.

A probe is a small packet in the data class on the path's own source port; its reply says how long the peer held it.
Probes go out only while data flows to the peer: an idle connection sends none.

- A SUSPECT path gets a volley. Any delivery or reply clears it; when the whole volley has failed it is BAD. A failure
  counts only if the peer was heard, by another path, after it should have answered: a peer that is silent as a whole is
  no evidence against one path. If it was not heard, a witness (a usable path) is probed beside the next attempt.
- A BAD path is probed when its back-off has passed, and is GOOD again after replies in a row. A late reply counts: a
  path that has only become slow is not dead.
- A path without traffic is probed now and then, to know its round trip.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import cython

from transport.clock import NEVER
from transport.path import BAD, GOOD, PROBING, SUSPECT, Path
from transport.paths import PathSet

if TYPE_CHECKING:
    import random

#: At most one probe every this fraction of a round trip for each plane, and this many without an answer.
_PER_RTT = 8
_MAX_OUTSTANDING = 64
#: Probes to a SUSPECT path, all of which must fail: at 5 % loss each way a healthy path fails one volley in 100,000.
_VOLLEY = 5
#: A probe is not given up before this many base round trips: late and dead are told apart within a retransmission
#: timeout, which is 20 of them, and a growing queue is no death.
_PATIENCE = 5
#: A path that heard nothing for this many round trips is probed while data flows, one path every so many round trips.
_SILENT_RTTS = 16
_WALK_RTTS = 16
#: Paths looked at in one step of that walk.
_WALK_STEP = 8
#: Without data for this many round trips, probing stops.
_ACTIVE_RTTS = 64
#: Probing a silent peer slows down: the pause doubles with every eight failures, this often.
_LONGEST_HUSH = 9
#: Replies in a row that bring a path back.
_RECOVERY = 2
#: Back-off of a BAD path, doubling from the first to the last, in round trips.
_FIRST_BACK_OFF = 4
_LAST_BACK_OFF = 100


class Outstanding:
    """A probe that was sent and not answered. failed: its time is over."""

    def __init__(self, index: int, sent_at: int) -> None:
        self.index = index
        self.sent_at = sent_at
        self.failed = False


class Recovering:
    """A path that is BAD or PROBING. at: when it may be probed, NEVER while a probe is out; nonce: its latest probe, -1
    before the first; replies: in a row."""

    def __init__(self, back_off: int) -> None:
        self.at = NEVER
        self.back_off = back_off
        self.nonce = -1
        self.replies = 0


class Prober:
    """Decides when to probe which path of `paths`. Times are picoseconds."""

    def __init__(self, paths: PathSet, rng: random.Random) -> None:
        self.paths = paths
        self.rng = rng
        self.outstanding: dict[int, Outstanding] = {}  # by nonce
        self.deadlines: list[tuple[int, int]] = []  # heap of (time, nonce); answered ones are stale
        self.recovering: dict[int, Recovering] = {}  # by path index
        self.schedule: list[tuple[int, int]] = []  # heap of (time, path index); stale if not the Recovering's `at`
        self.witness = False
        self.silences = 0  # failures in a row while the peer as a whole was silent
        self.silent_at = -NEVER
        self.pointer = 0
        self.active_until = -NEVER
        self.next_at = -NEVER
        self.walk_at = -NEVER
        self.unknown_replies = 0

    def activity(self, now: cython.longlong) -> cython.bint:
        """Data is flowing. True if `poll` may have a path to probe."""
        if now > self.active_until:
            self.next_at = now
        self.active_until = now + _ACTIVE_RTTS * self._rtt()
        return now >= self.next_at

    def next_timeout(self) -> cython.longlong:
        """When `handle_timeout`, then `poll`, should be called; NEVER if there is nothing to wait for."""
        due: cython.longlong = NEVER
        wanted: cython.longlong = NEVER
        while self.deadlines:
            probe = self.outstanding.get(self.deadlines[0][1])
            if probe is not None and not probe.failed:
                due = self.deadlines[0][0]
                break
            heappop(self.deadlines)
        if self.paths.wanting or self.witness:
            wanted = self.next_at
        elif self.recovering:
            while self.schedule:
                item = self.recovering.get(self.schedule[0][1])
                if item is not None and item.at == self.schedule[0][0]:
                    wanted = max(self.next_at, self.schedule[0][0])
                    break
                heappop(self.schedule)
        return min(due, wanted) if wanted <= self.active_until else due

    def handle_timeout(self, now: cython.longlong) -> None:
        """Probes whose time is over have failed."""
        while self.deadlines and self.deadlines[0][0] <= now:
            nonce = heappop(self.deadlines)[1]
            probe = self.outstanding.get(nonce)
            if probe is not None and not probe.failed:
                self._failed(now, nonce, probe)

    def poll(self, now: cython.longlong) -> cython.longlong:
        """The index of a path to probe now, -1 if none. Call `sent` for it."""
        path: Path
        index: cython.longlong
        paths = self.paths
        if now < self.next_at:
            return -1
        if paths.heard_at > self.silent_at:
            self.silences = 0
        pause: cython.longlong = max(1, self._rtt() // (_PER_RTT * paths.planes))
        self.next_at = now + (pause << min(self.silences // _PER_RTT, _LONGEST_HUSH))
        if now > self.active_until or len(self.deadlines) >= _MAX_OUTSTANDING * paths.planes:
            return -1
        while paths.wanting:
            path = paths.paths[paths.wanting.popleft()]
            path.wants_probe = False
            if path.state == SUSPECT and path.tried < _VOLLEY:
                path.tried += 1
                if path.tried < _VOLLEY:
                    paths.want_probe(path)
                return path.index
        if self.witness:  # after those it is to speak for
            self.witness = False
            self._step()
            path = paths.usable[self.pointer % len(paths.usable)]
            if path.state == GOOD:
                return path.index
        index = self._due(now)
        return index if index >= 0 else self._walk(now)

    def sent(self, now: cython.longlong, index: cython.longlong) -> int:
        """The probe of `poll` is going out: its nonce, 32 bits."""
        nonce = self.rng.getrandbits(32)
        while nonce in self.outstanding:
            nonce = self.rng.getrandbits(32)
        path: Path = self.paths.paths[index]
        path.sent_at = now
        self.outstanding[nonce] = Outstanding(index, now)
        due = now + max(self.paths.delay_bound(index), _PATIENCE * self.paths.base_rtt)
        heappush(self.deadlines, (due, nonce))
        item = self._recovering(path)
        if item is not None:
            self.outstanding.pop(item.nonce, None)
            item.nonce = nonce
        return nonce

    def reply(
        self, now: cython.longlong, nonce: int, entropy: int, hold: int, marked: bool, plane: int = 0
    ) -> bool:  # fmt: skip
        """A reply came by `plane`, after the peer held the probe for `hold` picoseconds. False if it answers no probe
        that is outstanding on this very path; then nothing was changed but a count."""
        probe = self.outstanding.get(nonce)
        path: Path | None = self.paths.paths[probe.index] if probe is not None else None
        if probe is None or path is None or path.entropy != entropy or path.plane != plane:
            self.unknown_replies += 1
            return False
        del self.outstanding[nonce]
        item = self._recovering(path)
        if item is not None and item.nonce == nonce:
            item.nonce = -1
            item.replies += 1
            if item.replies >= _RECOVERY:
                del self.recovering[probe.index]
                self.paths.recovered(now, probe.index)
            else:
                self._plan(probe.index, item, now)
        self.paths.delivered(now, probe.index, 0, 1, 1 if marked else 0)
        rtt = now - probe.sent_at - hold
        if rtt > 0:
            self.paths.sampled(now, probe.index, rtt)
        return True

    # Inside

    def _due(self, now: int) -> int:
        """A path whose back-off is over, -1 if there is none."""
        while self.schedule and self.schedule[0][0] <= now:
            at, index = heappop(self.schedule)
            item = self.recovering.get(index)
            if item is None or item.at != at or self._recovering(self.paths.paths[index]) is None:
                continue
            item.at = NEVER
            self.paths.back_off_over(now, index)
            return index
        return -1

    def _walk(self, now: int) -> int:
        """A path without traffic, -1 if it is not yet time for one or a few steps find none."""
        rtt = self._rtt()
        if now < self.walk_at:
            return -1
        self.walk_at = now + _WALK_RTTS * rtt
        for _ in range(min(_WALK_STEP, len(self.paths.paths))):
            path: Path = self.paths.paths[self.pointer]
            self._step()
            last = max(path.heard_at, path.sent_at)
            if path.state == GOOD and (last < 0 or now - last >= _SILENT_RTTS * rtt):
                return path.index
        return -1

    def _step(self) -> None:
        self.pointer = self.pointer + 1 if self.pointer + 1 < len(self.paths.paths) else 0

    def _failed(self, now: int, nonce: int, probe: Outstanding) -> None:
        paths = self.paths
        path: Path = paths.paths[probe.index]
        item = self._recovering(path)
        if item is not None and item.nonce == nonce:
            probe.failed = True  # kept until the next one is sent: a late reply counts
            item.replies = 0
            item.back_off = min(2 * item.back_off, _LAST_BACK_OFF * self._rtt())
            self._plan(probe.index, item, now + item.back_off)
            paths.probe_failed(now, probe.index)
            return
        del self.outstanding[nonce]
        if path.heard_at > probe.sent_at:
            return
        silence: cython.bint = paths.heard_at <= probe.sent_at + self._rtt()
        if path.state == GOOD and not silence:
            paths.doubted(now, probe.index)
        elif path.state == SUSPECT:
            if silence:
                self.silences += 1
                self.silent_at = now
                self.witness = True
                path.tried -= 1
                paths.want_probe(path)
                return
            path.failed += 1
            if path.failed >= _VOLLEY:
                self._evict(now, path)
                if paths.planes > 1:
                    self._doubt_plane(now, path.plane, probe.sent_at)

    def _evict(self, now: int, path: Path) -> None:
        path.tried = path.failed = 0
        self.paths.probe_failed(now, path.index)
        if path.state == BAD:
            item = self.recovering[path.index] = Recovering(_FIRST_BACK_OFF * self._rtt())
            self._plan(path.index, item, now + item.back_off)
        else:  # the floor kept it: ask again
            self.paths.want_probe(path)

    def _doubt_plane(self, now: int, plane: int, since: int) -> None:
        """A path of the plane is dead. If nothing was heard on all of the plane since then, ask its other paths too,
        before data is lost on each of them."""
        others = [path for path in self.paths.paths if path.plane == plane]
        if max(path.heard_at for path in others) <= since:
            for path in others:
                if path.state == GOOD:
                    self.paths.doubted(now, path.index)

    def _plan(self, index: int, item: Recovering, at: int) -> None:
        item.at = at
        heappush(self.schedule, (at, index))

    def _recovering(self, path: Path) -> Recovering | None:
        """What is known of a path that is BAD or PROBING. The user's denial ends it."""
        item = self.recovering.get(path.index)
        if item is not None and path.state != BAD and path.state != PROBING:
            del self.recovering[path.index]
            self.outstanding.pop(item.nonce, None)
            return None
        return item

    def _rtt(self) -> cython.longlong:
        # Never below the idle network's: probing must not run away where round trips are shorter than was said.
        return max(self.paths.srtt, self.paths.base_rtt)
