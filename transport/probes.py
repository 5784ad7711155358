"""Probes: the round trip of paths that carry no data, and whether suspected ones live.

A probe is a small packet in the data class on the path's own source port; its reply says how long the peer held it.
Probes
go out only while data flows to the peer: idle connections cost nothing. Paths that want one (suspected, or BAD and due)
come first; otherwise, as acknowledgements come in, a pointer walks the paths and probes those that have been silent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import cython

from transport.clock import MS, NEVER
from transport.path import BAD, DENIED, PROBING, SUSPECT, Path
from transport.paths import PathSet

if TYPE_CHECKING:
    import random

#: At most one probe every this fraction of a round trip, and this many without an answer.
_PER_RTT = 8
_MAX_OUTSTANDING = 64
#: A path that heard nothing for this many round trips is probed while data flows.
_SILENT_RTTS = 16
#: Without data for this many round trips, probing stops.
_ACTIVE_RTTS = 64
#: Replies in a row that bring a path back.
_RECOVERY = 2
#: Back-off of a BAD path: doubles from this many round trips to the larger of 100 round trips and 50 ms.
_FIRST_BACK_OFF = 4
_LONGEST_BACK_OFF = 100
_LONGEST_BACK_OFF_TIME = 50 * MS


class Outstanding:
    """A probe that was sent and not answered."""

    def __init__(self, nonce: int, index: int, sent_at: int, due: int) -> None:
        self.nonce = nonce
        self.index = index
        self.sent_at = sent_at
        self.due = due
        self.answered = False


class Recovering:
    """A path that is BAD or PROBING: when it may be probed, its back-off, and replies in a row."""

    def __init__(self, at: int, back_off: int) -> None:
        self.at = at
        self.back_off = back_off
        self.replies = 0


class Prober:
    """Decides when to probe which path of `paths`. Times are picoseconds."""

    def __init__(self, paths: PathSet, rng: random.Random) -> None:
        self.paths = paths
        self.rng = rng
        self.outstanding: deque[Outstanding] = deque()  # in the order they were sent
        self.recovering: dict[int, Recovering] = {}
        self.pointer = 0
        self.active_until = -NEVER
        self.next_at = -NEVER
        self.unknown_replies = 0

    def activity(self, now: cython.longlong) -> bool:
        """Data is flowing. True if `poll` may have a path to probe."""
        if now > self.active_until:
            self.next_at = now
        self.active_until = now + _ACTIVE_RTTS * self._rtt()
        return now >= self.next_at

    def next_timeout(self) -> cython.longlong:
        """When `handle_timeout`, then `poll`, should be called; NEVER if there is nothing to wait for."""
        due: cython.longlong = self.outstanding[0].due if self.outstanding else NEVER
        wanted: cython.longlong = NEVER
        if self.paths.wanting:
            wanted = self.next_at
        elif self.recovering:
            wanted = max(self.next_at, min([item.at for item in self.recovering.values()]))
        return min(due, wanted) if wanted <= self.active_until else due

    def handle_timeout(self, now: cython.longlong) -> None:
        """Probes whose time is over have failed."""
        while self.outstanding and (self.outstanding[0].answered or self.outstanding[0].due <= now):
            probe = self.outstanding.popleft()
            if not probe.answered:
                self._failed(now, probe)

    def poll(self, now: cython.longlong) -> cython.longlong:
        """The index of a path to probe now, -1 if none. Call `sent` for it."""
        path: Path
        paths = self.paths
        if now < self.next_at:
            return -1
        self.next_at = now + max(1, self._rtt() // _PER_RTT)
        if now > self.active_until or len(self.outstanding) >= _MAX_OUTSTANDING:
            return -1
        while paths.wanting:
            path = paths.paths[paths.wanting.popleft()]
            path.wants_probe = False
            if path.state == SUSPECT:
                return path.index
        for index, item in self.recovering.items():
            if item.at <= now:
                item.at = NEVER  # until this probe is answered or has failed
                if paths.paths[index].state == BAD:
                    paths.back_off_over(now, index)
                return index
        path = paths.paths[self.pointer]
        self.pointer = self.pointer + 1 if self.pointer + 1 < len(paths.paths) else 0
        if path.state == DENIED or path.state == BAD or path.state == PROBING:
            return -1
        silent: cython.longlong = _SILENT_RTTS * self._rtt()
        if (path.heard_at >= 0 and now - path.heard_at < silent) or (path.sent_at >= 0 and now - path.sent_at < silent):
            return -1
        return path.index

    def sent(self, now: cython.longlong, index: cython.longlong) -> int:
        """The probe of `poll` is going out: its nonce."""
        nonce = self.rng.getrandbits(32)
        path: Path = self.paths.paths[index]
        path.sent_at = now
        self.outstanding.append(Outstanding(nonce, index, now, now + 2 * self.paths.loss_delay(index)))
        return nonce

    def reply(self, now: cython.longlong, nonce: int, entropy: int, hold: int, marked: bool) -> bool:
        """A reply came. False if it answers no outstanding probe; then nothing was changed but a count."""
        for probe in self.outstanding:
            if probe.nonce == nonce and not probe.answered and self.paths.paths[probe.index].entropy == entropy:
                break
        else:
            self.unknown_replies += 1
            return False
        probe.answered = True
        rtt = now - probe.sent_at - hold
        item = self.recovering.get(probe.index)
        if item is not None:
            item.replies += 1
            item.at = now
            if item.replies >= _RECOVERY:
                del self.recovering[probe.index]
                self.paths.recovered(now, probe.index)
        self.paths.delivered(now, probe.index, 0, 1, 1 if marked else 0)
        if rtt > 0:
            self.paths.sampled(now, probe.index, rtt)
        return True

    def _failed(self, now: cython.longlong, probe: Outstanding) -> None:
        path: Path = self.paths.paths[probe.index]
        if path.heard_at > probe.sent_at:
            return  # data sent later arrived: the probe alone was lost
        item = self.recovering.get(probe.index)
        if item is not None:
            item.replies = 0
            item.back_off = min(2 * item.back_off, self._longest_back_off())
            item.at = now + item.back_off
            self.paths.probe_failed(now, probe.index)
            return
        if path.state not in (SUSPECT, PROBING):
            self.paths.suspected(now, probe.index)
            return
        self.paths.probe_failed(now, probe.index)
        if path.state == BAD:
            back_off = _FIRST_BACK_OFF * self._rtt()
            self.recovering[probe.index] = Recovering(now + back_off, back_off)
        else:
            self.paths.suspected(now, probe.index)  # the floor kept it: ask again

    def _longest_back_off(self) -> int:
        return max(_LONGEST_BACK_OFF * self._rtt(), _LONGEST_BACK_OFF_TIME)

    def _rtt(self) -> int:
        return self.paths.srtt if self.paths.srtt > 0 else self.paths.base_rtt
