"""One path to a peer: a plane, a UDP source port, and what is known of it. Its states' rules: transport/paths.py."""

from __future__ import annotations

import cython

GOOD = 0
SUSPECT = 1
BAD = 2
PROBING = 3
DENIED = 4

STATE_NAMES = ("GOOD", "SUSPECT", "BAD", "PROBING", "DENIED")


class Path:
    """One path. Times are picoseconds, -1 before the first.

    index: place among all paths to the peer; entropy: source port; plane: number of the pair of addresses it runs
    between. state: one of the above. srtt, rttvar, min_rtt, latest_rtt: round trips (RFC 6298). ecn: moving share
    of marked packets; congested: it is high. in_flight: payload bytes, kept by the engine. losses: blamed since the
    last delivery. heard_at, sent_at: last delivery, last departure; carried_at: last departure of data. usable: place
    in the set's list of usable paths, -1 if not in it. recent: deliveries among the set's latest ones. wants_probe:
    waits in the set's queue for one; tried, failed: probes since it is SUSPECT. penalty: passes in which a selector
    that goes by feedback skips it. delivered_packets, marked_packets, lost_packets: data so far that was acknowledged,
    that met CE, and that was taken for lost (also: trimmed, or sent again after silence).
    """

    def __init__(self, index: cython.longlong, entropy: cython.longlong, plane: cython.longlong = 0) -> None:
        self.index = index
        self.entropy = entropy
        self.plane = plane
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
        self.carried_at = -1
        self.usable = -1
        self.recent = 0
        self.wants_probe = False
        self.tried = 0
        self.failed = 0
        self.penalty = 0
        self.delivered_packets = 0
        self.marked_packets = 0
        self.lost_packets = 0


#: The pairs of addresses that paths run between, each (own, the peer's). Plane 0 comes first.
Planes = tuple[tuple[bytes, bytes], ...]
#: Several paths; see transport.packet.Packets for why the alias.
Paths = list[Path]
