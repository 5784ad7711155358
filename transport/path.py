"""One path to a peer: a UDP source port and what is known of it. The rules of its states are in transport/paths.py."""

from __future__ import annotations

import cython

GOOD = 0
SUSPECT = 1
BAD = 2
PROBING = 3
DENIED = 4

STATE_NAMES = ("GOOD", "SUSPECT", "BAD", "PROBING", "DENIED")


class Path:
    """One path. Times are picoseconds, -1 before the first; ecn: moving share of marked packets; in_flight: bytes,
    kept by
    the engine; losses: blamed since the last delivery; usable: place in the set's list of usable paths, -1 if not in
    it."""

    def __init__(self, index: cython.longlong, entropy: cython.longlong) -> None:
        self.index = index
        self.entropy = entropy
        self.state = GOOD
        self.srtt = -1
        self.rttvar = 0
        self.min_rtt = -1
        self.latest_rtt = -1
        self.ecn = 0.0
        self.congested = False
        self.in_flight = 0
        self.losses = 0
        self.heard_at = -1
        self.sent_at = -1
        self.usable = -1
        self.wants_probe = False
