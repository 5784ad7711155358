"""What is looked at while a job runs over a simulated fabric, where counters at the end of a phase are not enough.

Queues and windows are sampled at fixed intervals; the share of packets on cables with faults is that of those that
leave once the transport has had time to notice; acknowledgements are timed one way. Nothing here acts on the job, but
samples are events of its loop: a run that is watched breaks ties between events of one picosecond in another order.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.rank import Rank
from testbed.sim.loop import Event, Loop
from testbed.sim.port import Port
from transport.clock import US, Time
from transport.connection import Connection
from transport.control import Ack
from transport.nic.base import Nic
from transport.nic.wrapper import Wrapper
from transport.packet import Packet


@dataclass(frozen=True)
class WatchPlan:
    """Picoseconds after the first phase began: samples are taken from `start` to `end`, `every` so often (0: none);
    packets on cables are counted from `settle` on. acks: they are timed."""

    every: Time = 0
    start: Time = 0
    end: Time = 0
    settle: Time = 0
    acks: bool = False


NOTHING = WatchPlan()


class Sampler(Event):
    """queues: ports, whose waiting data bytes are taken. connections: whose windows and bytes in flight are taken while
    they have any. least_window: the least window as a share of the connection's first one."""

    def __init__(self, loop: Loop, every: Time, end: Time, queues: Sequence[Port], flows: Sequence[Connection]) -> None:
        Event.__init__(self)
        self.loop = loop
        self.every = every
        self.end = end
        self.queues = queues
        self.flows = flows
        self.first_windows = [flow.context.control.window for flow in flows]
        self.least_window = 1.0
        self.waiting = array("q")
        self.flying = array("q")

    def fire(self, now: int) -> None:
        self.waiting.append(sum(port.data.size for port in self.queues))
        for flow, first in zip(self.flows, self.first_windows, strict=True):
            sender = flow.sender  # None while the connection is dormant
            if sender is not None and sender.in_flight:
                self.flying.append(sender.in_flight)
                self.least_window = min(self.least_window, flow.context.control.window / first)
        if now + self.every <= self.end:
            self.loop.arm(self, now + self.every)

    def metrics(self, bdp: float) -> dict[str, float | None]:
        """bdp: bytes."""
        values: dict[str, float | None] = {}
        if self.waiting:
            values |= {
                "queue_mean_bytes": float(np.mean(self.waiting)),
                "queue_p99_bytes": float(np.percentile(self.waiting, 99)),
                "queue_max_bytes": max(self.waiting),
            }
        if self.flying:
            values["window_least_percent"] = 100.0 * self.least_window
            values["in_flight_percent"] = 100.0 * float(np.mean(self.flying)) / bdp
        return values


class Tally(Event):
    """From when it fires on, counts data packets that leave by some ports, and by all that are like them."""

    def __init__(self, some: Sequence[Port], alike: Sequence[Port]) -> None:
        Event.__init__(self)
        self.groups = (some, alike)
        self.before: tuple[int, int] | None = None

    def _packets(self) -> tuple[int, int]:
        some, alike = (sum(port.packets for port in group) for group in self.groups)
        return some, alike

    def fire(self, now: int) -> None:
        self.before = self._packets()

    def percent(self) -> float | None:
        """The share of some among all. None if nothing left."""
        if self.before is None:
            return None
        some, alike = (after - before for after, before in zip(self._packets(), self.before, strict=True))
        return 100.0 * some / alike if alike else None


class AckClock:
    """One-way times of acknowledgements: from when an endpoint hands one to its port to when the other has it."""

    def __init__(self) -> None:
        self.under_way: dict[int, tuple[Packet, Time]] = {}  # by identity, which lasts as long as the packet is kept
        self.times = array("q")

    def at(self, nic: Nic) -> Nic:
        """The Nic of a rank, seen by this clock."""
        return _Timed(nic, self)

    def p99_us(self) -> float | None:
        return float(np.percentile(self.times, 99)) / US if self.times else None


class _Timed(Wrapper):
    def __init__(self, inner: Nic, clock: AckClock) -> None:
        super().__init__(inner)
        self.clock = clock

    def send(self, packets: Sequence[Packet]) -> int:
        now = self.inner.now()
        for packet in packets:
            if isinstance(packet.control, Ack):
                self.clock.under_way.setdefault(id(packet), (packet, now))
        return self.inner.send(packets)

    def receive(self, limit: int) -> list[Packet]:
        packets = self.inner.receive(limit)
        for packet in packets:
            left = self.clock.under_way.pop(id(packet), None)
            if left is not None:
                self.clock.times.append(self.inner.now() - left[1])
        return packets


def senders(ranks: Iterable[Rank]) -> list[Connection]:
    """The connections that carry data of any phase away from their rank."""
    return [
        peer.connection
        for rank in ranks
        for peer in rank.peers()
        if any(m.src == rank.number and m.dst == peer.number for phase in rank.phases for m in phase.messages)
    ]


def alike(names: Iterable[str], some: Iterable[str]) -> list[str]:
    """Of `names`, those that differ from one of `some` in numbers only: ports between the same tiers."""
    kinds = {re.sub(r"\d+", "", name) for name in some}
    return [name for name in names if re.sub(r"\d+", "", name) in kinds]
