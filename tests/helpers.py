"""A Pair of endpoints over a virtual wire with plain knobs, driven to quiet within a bounded number of steps."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transport.clock import MS, NEVER, SECOND, US, transmit_time
from transport.completion import Completion
from transport.config import EndpointConfig
from transport.connection import Connection
from transport.control import Control
from transport.dormant import awaken
from transport.endpoint import Endpoint
from transport.nic.base import NicCaps
from transport.packet import CLASS_DATA, DATA, ECT_0, SEQ_MASK, Packet

ALICE = bytes([10, 0, 0, 1])
BOB = bytes([10, 0, 0, 2])
CAPS = NicCaps(
    mtu=4096, max_run=64, max_entropies=16384, ecn=True, rate=100_000_000_000, base_rtt=10 * US, virtual_time=True
)


@dataclass
class Wire:
    """What happens to a packet: one-way delay, uniform jitter on top, and probabilities. A run is split by faults.

    touch: called with (time, packet) before a packet enters; returning None swallows it. rate: one link in each
    direction, bits per second, 0 for infinitely fast.
    """

    delay: int = 5 * US
    jitter: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    rate: int = 0
    touch: Callable[[int, Packet], Packet | None] | None = None


@dataclass
class Host:
    """One endpoint with what it has received."""

    endpoint: Endpoint
    completions: list[Completion] = field(default_factory=list)
    free_at: int = 0

    def results(self, connection: Connection) -> list[Completion]:
        return [item for item in self.completions if item.qpn == connection.qpn]


class Pair:
    """Two endpoints, one virtual clock. `connect` makes a pair of connected queue pairs, `drive` runs until quiet.
    Connections stay awake unless `idle_after` is given."""

    def __init__(self, seed: int = 1, wire: Wire | None = None, caps: NicCaps = CAPS, **config: Any) -> None:
        self.rng = random.Random(seed)
        self.now = 1_000 * US
        self.wire = wire or Wire()
        settings = EndpointConfig(**{"idle_after": NEVER, **config})
        self.alice = Host(Endpoint(settings, ALICE, caps, random.Random(f"{seed}a")))
        self.bob = Host(Endpoint(settings, BOB, caps, random.Random(f"{seed}b")))
        self.hosts = {ALICE: self.alice, BOB: self.bob}
        self.flying: list[tuple[int, int, Packet]] = []
        self.serial = 0
        self.sent: list[Packet] = []
        self.connections: list[Connection] = []
        self.on_completion: Callable[[Host, Completion], None] | None = None

    def connect(self) -> tuple[Connection, Connection]:
        """A connected queue pair on each side, each in a protection domain of its own; awake, for tests that look at
        their parts."""
        ours = self.alice.endpoint.create_connection(self.alice.endpoint.protection_domain(), self.now)
        theirs = self.bob.endpoint.create_connection(self.bob.endpoint.protection_domain(), self.now)
        ours.connect(self.now, theirs.parameters)
        theirs.connect(self.now, ours.parameters)
        for connection in (ours, theirs):
            awaken(connection)
        self.connections += [ours, theirs]
        return ours, theirs

    def flush(self) -> None:
        """Hand every packet that is ready to the wire, and collect completions."""
        for host in self.hosts.values():
            busy = True
            while busy:
                packets = host.endpoint.poll_transmit(self.now, 64)
                for packet in packets:
                    self.sent.append(packet)
                    self._enter(host, packet)
                busy = bool(packets)
                while (completion := host.endpoint.poll_completion()) is not None:
                    busy = True  # whoever hears of it may post more
                    host.completions.append(completion)
                    if self.on_completion is not None:
                        self.on_completion(host, completion)
        for connection in self.connections:
            sender, channel = connection.sender, connection.channel
            if connection.dormant is not None:
                continue
            if sender.flow.oldest is not None or channel.outstanding:
                assert connection.endpoint.poll_timeout() < NEVER, "stuck: data is outstanding and no timer is armed"

    def drive(self, until: Callable[[], bool] | None = None, limit: int = 10 * SECOND, steps: int = 100_000) -> None:
        """Run until `until` holds, or nothing is left to happen before `limit` of virtual time has passed."""
        end = self.now + limit
        for _ in range(steps):
            self.flush()
            if until is not None and until():
                return
            following = min(
                self.flying[0][0] if self.flying else end + 1,
                *(host.endpoint.poll_timeout() for host in self.hosts.values()),
            )
            if following > end:
                if until is None or until():
                    return
                raise AssertionError(f"nothing more happens, and the situation was not reached: {self}")
            self.now = max(self.now, following)
            for host in self.hosts.values():
                if host.endpoint.poll_timeout() <= self.now:
                    host.endpoint.handle_timeout(self.now)
            while self.flying and self.flying[0][0] <= self.now:
                packet = heapq.heappop(self.flying)[2]
                self.hosts[packet.dst].endpoint.receive(packet, self.now)
        raise AssertionError(f"still busy after {steps} steps: {self}")

    def drive_messages(self, count: int, host: Host | None = None, limit: int = 10 * SECOND) -> None:
        """Run until `host` (alice if not given) has `count` completions."""
        chosen = host or self.alice
        self.drive(lambda: len(chosen.completions) >= count, limit)

    def inject(self, packet: Packet, delay: int = 0) -> None:
        """Put a packet on the wire as an attacker would: no faults touch it."""
        self.serial += 1
        heapq.heappush(self.flying, (self.now + delay, self.serial, packet))

    def _enter(self, host: Host, packet: Packet) -> None:
        wire = self.wire
        if packet.payload is not None and packet.length:
            packet.detach()  # the wire carries the bytes as they are now
        if wire.loss or wire.duplicate or wire.corrupt or wire.jitter:
            parts: Sequence[Packet] = [packet.split(i, 1) for i in range(packet.count)]
        else:
            parts = [packet]
        for part in parts:
            if wire.touch is not None:
                touched = wire.touch(self.now, part)
                if touched is None:
                    continue
                part = touched
            if wire.rate:
                host.free_at = max(host.free_at, self.now) + transmit_time(part.length + 64 * part.count, wire.rate)
            if self.rng.random() < wire.loss or self.rng.random() < wire.corrupt:  # a bad ICRC is dropped by the Nic
                continue
            copies = 2 if self.rng.random() < wire.duplicate else 1
            for _ in range(copies):
                at = max(self.now, host.free_at) + wire.delay + (self.rng.randrange(wire.jitter) if wire.jitter else 0)
                self.serial += 1
                heapq.heappush(self.flying, (at, self.serial, part))

    def __repr__(self) -> str:
        return (
            f"Pair at {self.now / MS:.3f} ms, {len(self.flying)} packets flying, "
            f"alice {self.alice.endpoint.counters()}, bob {self.bob.endpoint.counters()}"
        )


def data_packets(packets: Sequence[Packet]) -> list[Packet]:
    return [packet for packet in packets if packet.kind == DATA]


def forge(source: Connection, seq: int, payload: bytes, rkey: int, address: int, entropy: int = 0xC000) -> Packet:
    """A data packet as `source` would send it to its peer, with number, key and address of the test's choice."""
    packet = source.context.packet(DATA, entropy, 1)
    packet.seq = seq & SEQ_MASK
    packet.rkey = rkey
    packet.address = address
    packet.payload = payload
    packet.length = len(payload)
    packet.stride = packet.segment
    packet.ecn = ECT_0
    packet.priority = CLASS_DATA
    return packet


def forge_control(source: Connection, kind: int, control: Control, seq: int = 0) -> Packet:
    """A control packet (CONTROL or DATAGRAM) with the right verification tag, as the peer of `source` accepts it."""
    packet = source.context.packet(kind, 0xC000, 1)
    packet.seq = seq & SEQ_MASK
    packet.control = control
    return packet
