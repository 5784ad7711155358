"""What the parts of one connection share: its agreed parameters, its peer, its control, and how a packet starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cython

from cc.base import Control
from cc.signals import AckSignal, LossSignal
from transport.counters import Counters
from transport.credits import Account, Grant
from transport.pacing import Pacer
from transport.packet import CLASS_CONTROL, PSN_MASK, Packet
from transport.paths import PathSet
from transport.placement import ProtectionDomain
from transport.timers import Ready, Timers

if TYPE_CHECKING:
    from transport.config import EndpointConfig
    from transport.path import Planes
    from transport.peer import Peer

#: A timeout never grows beyond 2**10 times the least one.
_MAX_BACKOFF = 10


class Context:
    """Shared state of one connection; policy-free, every field is public.

    tag_out, tag_in: verification tags of the control payloads sent and expected. flow: the connection's own random
    number (selectors). classic: go-back-N over one path (transport/go_back.py). planes: own and peer's address of each
    plane, none before the connection has a peer. generation: the path set the control last knew; last_path: index of
    the path of the latest data, -1 before any. Times are picoseconds.
    """

    def __init__(
        self, config: EndpointConfig, domain: ProtectionDomain, counters: Counters, timers: Timers,
        ready: Ready, signals: tuple[AckSignal, LossSignal],
    ) -> None:  # fmt: skip
        self.config = config
        self.domain = domain
        self.counters = counters
        self.timers = timers
        self.ready = ready
        self.owner: Any = None  # its Connection
        # Known from `Connection.connect` on; nothing that uses them runs before.
        self.peer: Peer = None  # type: ignore[assignment]
        self.paths: PathSet = None  # type: ignore[assignment]
        self.control: Control = None  # type: ignore[assignment]
        self.pacer = Pacer(0)
        self.account: Account | None = None  # both only with receiver credits
        self.grant: Grant | None = None
        self.ack_signal, self.loss_signal = signals  # filled anew for each event: all connections share them
        self.qpn = 0
        self.peer_qpn = 0
        self.planes: Planes = ()
        self.tag_in = 0
        self.tag_out = 0
        self.flow = 0
        self.psn = 0
        self.segment = 0
        self.max_run = 1
        self.classic = False
        self.window = 0
        self.max_ack_bits = 0
        self.max_advert = 1
        self.inline = 0
        self.max_rd_atomic = 1
        self.ack_every = 0
        self.base_rtt = 0
        self.rto_min = 0
        self.generation = 0
        self.last_path = -1

    def packet(
        self, kind: cython.int, entropy: cython.longlong, count: cython.longlong, plane: cython.longlong = 0
    ) -> Packet:  # fmt: skip
        """A new packet to the peer, by `entropy` on `plane`, with `count` fresh PSNs. Control packets get their class
        and tag."""
        packet = Packet()
        packet.kind = kind
        packet.src, packet.dst = self.planes[plane]
        packet.qpn = self.peer_qpn
        packet.src_qpn = self.qpn
        packet.entropy = entropy
        packet.psn = self.psn
        packet.count = count
        packet.segment = self.segment
        packet.tag = self.tag_out
        packet.priority = CLASS_CONTROL
        self.psn = (self.psn + count) & PSN_MASK
        return packet

    def plane_of(self, packet: Packet) -> cython.longlong:
        """The plane by which a packet of the peer came; -1 if it did not run between two addresses of one plane."""
        plane: cython.longlong
        for plane, (source, destination) in enumerate(self.planes):
            if packet.src == destination and packet.dst == source:
                return plane
        return -1

    def wake(self) -> None:
        """The connection may have something to send: give it a turn."""
        self.ready.push(self.owner)

    def round_trip(self) -> cython.longlong:
        """Smoothed round trip to the peer, picoseconds; the network's idle one before the first sample."""
        paths: PathSet = self.paths
        return paths.srtt if paths.srtt > 0 else self.base_rtt

    def ack_delay(self) -> cython.longlong:
        """How long an acknowledgement may be held back: a quarter of the round trip."""
        return self.round_trip() // 4

    def rto(self) -> cython.longlong:
        """Retransmission timeout (RFC 6298 section 2) plus the peer's ack delay, picoseconds."""
        paths: PathSet = self.paths
        if paths.srtt <= 0:
            return max(self.rto_min, 10 * self.base_rtt)
        return max(self.rto_min, paths.srtt + 4 * paths.rttvar + self.ack_delay())

    def backed_off(self, times: cython.longlong) -> cython.longlong:
        """Retransmission timeout after `times` in a row. What doubles is the least one: a round trip that was long
        once, because a process stood still, must not make the give-up time hundreds of times as long."""
        return max(self.rto(), self.rto_min << min(times, _MAX_BACKOFF))

    def give_up(self) -> cython.longlong:
        """A bound of the silence after which the peer counts as dead, picoseconds: all of `backed_off` together."""
        timeouts: cython.longlong = self.config.retries + 1
        doubled: cython.longlong = min(timeouts, _MAX_BACKOFF + 1)
        least: cython.longlong = (1 << doubled) - 1 + ((timeouts - doubled) << _MAX_BACKOFF)
        return timeouts * self.rto() + least * self.rto_min

    def probe_timeout(self) -> cython.longlong:
        """Silence after which the tail is probed (RFC 8985 section 7: two round trips, and room for a held ACK)."""
        paths: PathSet = self.paths
        if paths.srtt <= 0:
            return 10 * self.base_rtt
        return 2 * paths.srtt + max(paths.srtt // 2, 4 * paths.rttvar)
