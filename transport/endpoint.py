"""The endpoint: finds the queue pair of a packet, gives every queue pair its turn, owns what is host-wide.

Sans-IO. After `receive`, `handle_timeout` or any post_*, drain `poll_transmit` and `poll_completion`, then call
`handle_timeout` at `poll_timeout`. Early or repeated calls are harmless.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import cython

from cc.signals import AckSignal, LossSignal
from transport.clock import Time
from transport.completion import Completion
from transport.config import CLASSIC, MAX_PLANES, PROTOCOL_VERSION, ConnectionParameters, EndpointConfig
from transport.connection import Connection
from transport.context import Context
from transport.counters import Counters
from transport.credits import Account, Grant, Granter
from transport.errors import ConfigError
from transport.nic.base import NicCaps
from transport.packet import Packet, Packets
from transport.peer import Peer
from transport.placement import ProtectionDomain
from transport.table import Table
from transport.timers import Ready, Source, Timers

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from typing import Any

    from transport.paths import PathEvent
    from transport.responder import Responder

#: Packets a connection may send before the next one has its turn.
QUANTUM = 32


class Endpoint:
    """One host's transport. address: its IP address, 4 or 16 bytes, or several of one family, the first for plane 0 and
    so on: a connection then runs over all of these planes. rng: the only source of randomness."""

    def __init__(
        self, config: EndpointConfig, address: bytes | Sequence[bytes], caps: NicCaps, rng: random.Random
    ) -> None:
        addresses = (address,) if isinstance(address, bytes) else tuple(address)
        if config.mtu > caps.mtu:
            raise ConfigError(f"mtu = {config.mtu}: this Nic carries at most {caps.mtu}")
        for one in addresses:
            if len(one) not in (4, 16):
                raise ConfigError(f"address = {one!r}: 4 bytes (IPv4) or 16 bytes (IPv6) are allowed")
        if not 1 <= len(addresses) <= MAX_PLANES or len(set(addresses)) < len(addresses):
            raise ConfigError(f"address = {address!r}: 1 to {MAX_PLANES} are allowed, each once")
        if len({len(one) for one in addresses}) > 1:
            raise ConfigError(f"address = {address!r}: addresses of one family are allowed")
        if config.mode == CLASSIC and len(addresses) > 1:
            raise ConfigError(f"address = {address!r}: mode = {CLASSIC!r} has one path, so 1 address is allowed")
        self.config = config
        self.address = addresses[0]
        self.addresses = addresses
        self.caps = caps
        self.rng = rng
        self.told = tuple(one.hex() for one in addresses)  # the same text for all connections
        self.entropies = config.ports()
        if len(self.entropies) > caps.max_entropies:
            raise ConfigError(
                f"paths = {len(self.entropies)}: this Nic sends from at most {caps.max_entropies} source ports"
            )
        self.totals = Counters()
        self.timers = Timers()
        self.ready = Ready()
        self.signals = (AckSignal(), LossSignal())
        self.completions: deque[Completion] = deque()
        self.connections = Table(rng, 1 << 24)
        self.peers: dict[tuple[bytes, ...], Peer] = {}
        self.resting: deque[tuple[Time, int]] = deque()
        self.deferred: list[Responder] = []  # run when the packets of the last poll_transmit have been sent
        self.now = 0
        self.granter: Granter | None = None
        self.late = config.least_rto(caps)

    # Objects

    def protection_domain(self) -> ProtectionDomain:
        return ProtectionDomain(self.rng)

    def create_connection(self, domain: ProtectionDomain, now: Time) -> Connection:
        """A queue pair in INIT. Its `parameters` are what the peer needs for `Connection.connect`."""
        while self.resting and self.resting[0][0] <= now:
            self.connections.remove(self.resting.popleft()[1])
        context = Context(self.config, domain, self.totals, self.timers, self.ready, self.signals)
        context.qpn = self.connections.add(None)
        context.tag_in = self.rng.getrandbits(32)
        context.flow = self.rng.getrandbits(31)
        context.psn = self.rng.getrandbits(24)
        first = (self.rng.getrandbits(32), self.rng.getrandbits(32))
        config = self.config
        parameters = ConnectionParameters(
            version=PROTOCOL_VERSION, addresses=self.told, qpn=context.qpn, tag=context.tag_in, dsn=first[0],
            csn=first[1], mtu=config.mtu, window=config.window, max_rd_atomic=config.max_rd_atomic,
            inline=config.inline,
            icrc="id0" if config.icrc else "off",
            control=config.control if isinstance(config.control, str) else config.control.name,
            mode=config.mode,
        )  # fmt: skip
        connection = Connection(self, context, parameters, first)
        context.owner = connection
        self.connections.put(context.qpn, connection)
        return connection

    def peer(self, addresses: tuple[bytes, ...]) -> Peer:
        """The peer host at these addresses, one for each of ours, with its paths."""
        peer = self.peers.get(addresses)
        if peer is None:
            floor = self.config.floor or max(1, len(self.entropies) // 4)
            classic = self.config.mode == CLASSIC
            if classic:  # no path is ever left, whatever it loses
                floor = len(self.entropies)
            planes = tuple(zip(self.addresses, addresses, strict=True))
            peer = Peer(
                _text(addresses[0]), planes, self.entropies, self.config.path_selector, self.caps.base_rtt, floor,
                self.rng, self.timers, self.ready, probes=not classic,
            )  # fmt: skip
            self.peers[addresses] = peer
        return peer

    def give_credits(self, context: Context, control: Any) -> None:
        """A connection whose control leaves it to the receiver what is sent. The first one settles how this endpoint
        grants."""
        if self.granter is None:
            bdp = max(self.config.mtu, int(self.caps.rate / 8 * self.caps.base_rtt / 1e12))
            self.granter = Granter(self.timers, self.ready, self.caps, control.parameters, bdp)
        context.account = Account(control.first, context.probe_timeout())
        context.grant = Grant(context)

    def forget(self, connection: Connection) -> None:
        """A queue pair is gone. Its number rests until no packet of its time can be on its way any more."""
        if connection.context.grant is not None:
            self.granter.end(connection.context.grant)  # type: ignore[union-attr]
        peer = connection.context.peer
        if peer is not None:
            peer.leave(connection)
            peer.users -= 1
            if not peer.users:
                self.peers.pop(tuple(theirs for _, theirs in peer.planes), None)
        self.connections.put(connection.qpn, None)
        rest = 2 * (self.config.least_rto(self.caps) << min(self.config.retries + 1, 10))
        self.resting.append((self.now + rest, connection.qpn))

    # Driving

    def receive(self, packet: Packet, now: cython.longlong) -> None:
        """A packet has arrived from the Nic."""
        if now != self.now:
            self._notice_standstill(now)
        self.now = now
        self.totals.packets_received += packet.count
        connection: Connection | None = self.connections.get(packet.qpn)
        if connection is None:
            self.totals.dropped_unknown_qpn += packet.count
            return
        packet.plane = connection.context.plane_of(packet)
        if packet.plane < 0:
            self.totals.dropped_wrong_address += packet.count
            return
        connection.receive(now, packet)

    def poll_transmit(self, now: cython.longlong, limit: cython.longlong) -> Packets:
        """At most about `limit` packets to hand to the Nic, in order, before this is called again: their payload is
        read from the user's memory when the Nic sends it. Empty when there is nothing to send now."""
        out: Packets = []
        self.fill(now, out, limit)
        return out

    def fill(self, now: cython.longlong, out: Packets, limit: cython.longlong) -> None:
        """`poll_transmit` into a list that is empty."""
        source: Source
        packet: Packet
        self.now = now
        while self.deferred:
            self.deferred.pop().run(now)
        while self.ready.count and len(out) < limit:
            source = self.ready.pop()
            if source.transmit(now, out, min(QUANTUM, limit - len(out))):
                self.ready.push(source)
        for packet in out:
            self.totals.packets_sent += packet.count

    def handle_timeout(self, now: cython.longlong) -> None:
        """Let time pass: everything due at `now` happens."""
        self._notice_standstill(now)
        self.now = now
        self.timers.run(now)

    def _notice_standstill(self, now: cython.longlong) -> None:
        """If a timer is overdue by a retransmission timeout nobody ran this process: no path is to blame for that."""
        if self.timers.next() < now - self.late:
            for peer in self.peers.values():
                peer.paths.resumed_at = now

    def poll_timeout(self) -> cython.longlong:
        """When to call `handle_timeout` next, NEVER if nothing waits."""
        return self.timers.next()

    def poll_completion(self) -> Completion | None:
        """The next work completion, or None."""
        return self.completions.popleft() if self.completions else None

    def poll_event(self) -> PathEvent | None:
        """The next change of a path's state, or None."""
        for peer in self.peers.values():
            event = peer.paths.poll_event()
            if event is not None:
                return event
        return None

    def counters(self) -> dict[str, int]:
        """Totals of this endpoint by name."""
        return self.totals.as_dict()


def _text(address: bytes) -> str:
    """An IP address as people write it."""
    if len(address) == 4:
        return ".".join(map(str, address))
    return ":".join(f"{address[i] << 8 | address[i + 1]:x}" for i in range(0, 16, 2))
