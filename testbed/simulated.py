"""Runs a job with all ranks in this process, over a simulated fabric, in virtual time.

The same job, fabric and seed give the same result to the bit, on any machine, compiled or interpreted. A host takes
part only when something happens to it: a packet comes, its port has room, or a timer is due.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from testbed import nics
from testbed.errors import RunError
from testbed.job import Job
from testbed.progress import Watcher
from testbed.rank import Rank, addresses_of
from testbed.sim.fabric import Fabric, FabricSpec
from testbed.sim.loop import Event, Loop
from testbed.sim.mix import seed_of
from testbed.sim.nic import SimNic
from testbed.sim.port import Port
from testbed.together import Together
from transport.clock import NEVER, SECOND, US, Time
from transport.endpoint import Endpoint
from transport.nic.base import NicCaps
from transport.packet import Packet

#: Packets asked of an endpoint at a time. Few, so that what leaves next is decided late.
_BATCH = 2
#: Packets taken in at a time.
_MOST = 64
#: Events between two looks at the real clock.
_SLICE = 50_000


@dataclass(frozen=True)
class CableChange:
    """From `at` on, picoseconds after the first phase began, the ports named have that share of the rate they were
    built with and lose that share of frames, or all if they are down."""

    at: Time
    ports: tuple[str, ...]
    rate: float = 1.0
    loss: float = 0.0
    up: bool = True


class _Change(Event):
    def __init__(self, change: CableChange, ports: Sequence[tuple[Port, int]]) -> None:
        Event.__init__(self)
        self.change = change
        self.ports = ports

    def fire(self, now: int) -> None:
        for port, rate in self.ports:
            port.set_rate(max(1, round(rate * self.change.rate)))
            port.link.loss = round(self.change.loss * (1 << 32))
            port.link.up = self.change.up


class Host(Event):
    """One rank with its endpoint and Nic. The event is its timer."""

    def __init__(self, number: int, nic: nics.Meter, job: Job, world: World) -> None:
        Event.__init__(self)
        self.nic = nic
        self.world = world
        self.loop = world.loop
        self.endpoint = Endpoint(job.config, nic.addresses, nic.caps, random.Random(f"{job.seed} endpoint {number}"))
        self.rank = Rank(number, self.endpoint, job.phases, job.seed, nic.now(), job.phantom)
        self.sent: dict[str, str] = {}
        self.unsent: list[Packet] = []
        self.done = False

    def arrived(self, now: int) -> None:
        """A packet came."""
        for packet in self.nic.receive(_MOST):
            self.endpoint.receive(packet, now)
        self.settle(now)

    def fire(self, now: int) -> None:
        """A timer is due, of the endpoint, of the rank, or of what is wrapped around the Nic."""
        if self.nic.next_event() <= now:
            self.arrived(now)
        else:
            self.settle(now)

    def settle(self, now: int) -> None:
        """Everything that follows at this moment, and the timer for what does not."""
        endpoint, rank = self.endpoint, self.rank
        if endpoint.poll_timeout() <= now:
            endpoint.handle_timeout(now)
        if rank.next_post <= now:
            rank.handle_timeout(now)
        self.push(now)
        if endpoint.completions:
            while (completion := endpoint.poll_completion()) is not None:
                rank.on_completion(completion, now)
                self.world.completed += 1
            self.push(now)
            if rank.done and not self.done:
                self.done = True
                self.world.finished()
        due = min(endpoint.poll_timeout(), rank.next_post, self.nic.next_event())
        if due <= now:  # what is due waits for room in the port, which tells when it is there
            due = NEVER if self.unsent else now + 1
        if due != self.when:
            if due < NEVER:
                self.loop.arm(self, due)
            else:
                self.loop.disarm(self)

    def push(self, now: int) -> None:
        """Send until the port or the endpoint has enough."""
        while True:
            if not self.unsent:
                self.unsent = self.endpoint.poll_transmit(now, _BATCH)
                if not self.unsent:
                    return
            taken = self.nic.send(self.unsent)
            del self.unsent[:taken]
            if self.unsent:
                return


class World(Together):
    """All ranks of a job on one fabric."""

    def __init__(
        self, job: Job, spec: FabricSpec, changes: Sequence[CableChange], timeout_s: float, watcher: Watcher
    ) -> None:
        super().__init__(job, timeout_s, watcher)
        self.loop = Loop(seed_of(job.seed, "loop"), US)
        self.fabric = Fabric(spec, self.loop, job.seed)
        self.completed = 0
        self.waiting = 0
        self.changes = changes
        self.caps = caps(self.fabric, job.config.mtu, spec.queue.int_telemetry)
        self.hosts = [self._host(number) for number in range(job.ranks)]

    def _host(self, number: int) -> Host:
        per_plane = len(self.fabric.hosts) // self.fabric.spec.planes
        ends = [self.fabric.hosts[plane * per_plane + number] for plane in range(self.job.ports)]
        addresses = addresses_of(number, self.job.ports)
        nic = SimNic(ends, addresses, self.caps)
        host = Host(number, nics.wrapped(nic, addresses, self.job, number), self.job, self)
        for end in ends:
            end.on_arrival = host.arrived
            end.on_room = host.settle
        return host

    def _wake(self, number: int, now: Time) -> None:
        self.loop.arm(self.hosts[number], now)

    def finished(self) -> None:
        """A rank is done with the phase."""
        self.waiting -= 1
        if not self.waiting:
            self.loop.halted = True

    def now(self) -> Time:
        return self.loop.now

    def _all(self) -> Sequence[Host]:
        return self.hosts

    def _begin(self, now: Time) -> None:
        super()._begin(now)
        built = {name: (port, port.rate) for name, port in self.fabric.all_ports()}
        for change in self.changes:
            ports = [built[name] for name in change.ports]
            event = _Change(change, ports)
            if change.at:
                self.loop.arm(event, now + change.at)
            else:
                event.fire(now)

    def _drive(self) -> None:
        loop = self.loop
        self.completed = 0
        for host in self.hosts:
            host.done = host.rank.done
        self.waiting = sum(not host.done for host in self.hosts)
        for host in self.hosts:
            host.settle(loop.now)
        deadline = time.monotonic() + self.timeout_s
        last = loop.now + round(self.timeout_s * SECOND)
        while self.waiting:
            fired = loop.run(last, _SLICE)
            self.watcher.step(self.completed)
            if self.waiting and (not fired or time.monotonic() > deadline):
                stuck = next(host for host in self.hosts if not host.done)
                why = f"{self.timeout_s:g} s are over" if loop.next() < NEVER else "nothing more would happen"
                raise RunError(f"rank {stuck.rank.number}: {why}. {stuck.rank.missing()}")


def caps(fabric: Fabric, mtu: int, int_telemetry: bool = False) -> NicCaps:
    """What a Nic on this fabric can do."""
    return NicCaps(
        mtu=mtu, max_run=1, max_entropies=16384, ecn=True, rate=fabric.rate, base_rtt=max(US, fabric.base_rtt),
        priorities=True, int_telemetry=int_telemetry, virtual_time=True,
    )  # fmt: skip
