"""Runs a job with all ranks in this process, over a simulated fabric, in virtual time.

The same job, fabric and seed give the same result to the bit, on any machine, compiled or interpreted.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed import nics, watch
from testbed.errors import RunError
from testbed.job import Job
from testbed.metrics import PhaseRecord
from testbed.progress import Watcher
from testbed.rank import Rank, addresses_of
from testbed.record.recorder import VariantRecorder
from testbed.record.recording import Recording
from testbed.sim.fabric import Fabric, FabricSpec
from testbed.sim.host import Host
from testbed.sim.loop import Event, Loop
from testbed.sim.mix import seed_of
from testbed.sim.nic import SimNic
from testbed.sim.port import Port
from testbed.together import Together
from testbed.watch import NOTHING, AckClock, Sampler, Tally, WatchPlan
from testbed.workloads.base import received_by
from transport.clock import NEVER, SECOND, US, Time
from transport.endpoint import Endpoint
from transport.nic.base import NicCaps

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


class SimHost:
    """One rank with its endpoint and Nic."""

    def __init__(self, number: int, inner: SimNic, job: Job, loop: Loop, clock: AckClock | None) -> None:
        self.nic = nics.wrapped(clock.at(inner) if clock else inner, inner.addresses, job, number)
        rng = random.Random(f"{job.seed} endpoint {number}")
        self.endpoint = Endpoint(job.config, inner.addresses, inner.caps, rng)
        self.rank = Rank(number, self.endpoint, job.phases, job.seed, loop.now, job.phantom)
        self.sent: dict[str, str] = {}
        self.driven = Host(loop, inner, None if self.nic.plain and not clock else self.nic, self.endpoint, self.rank)


class World(Together):
    """All ranks of a job on one fabric."""

    def __init__(
        self, job: Job, spec: FabricSpec, changes: Sequence[CableChange], timeout_s: float, watcher: Watcher,
        plan: WatchPlan = NOTHING, recorder: VariantRecorder | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job, timeout_s, watcher)
        self.loop = Loop(seed_of(job.seed, "loop"), US)
        self.fabric = Fabric(spec, self.loop, job.seed)
        self.waiting = 0
        self.changes = changes
        self.plan = plan
        self.acks = AckClock() if plan.acks else None
        self.sampler: Sampler | None = None
        self.tally: Tally | None = None
        self.ports = dict(self.fabric.all_ports())
        self.sent_before = self._sent()
        self.caps = caps(self.fabric, job.config.mtu, spec.queue.int_telemetry)
        self.hosts = [self._host(number) for number in range(job.ranks)]
        self.recording: Recording | None = None
        if recorder is not None:
            self.recording = Recording(recorder, self.ports, [host.rank for host in self.hosts])

    def _host(self, number: int) -> SimHost:
        per_plane = len(self.fabric.hosts) // self.fabric.spec.planes
        ends = [self.fabric.hosts[plane * per_plane + number] for plane in range(self.job.ports)]
        for end in ends:
            end.one_class = not self.fabric.spec.priorities
        nic = SimNic(ends, addresses_of(number, self.job.ports), self.caps)
        host = SimHost(number, nic, self.job, self.loop, self.acks)
        host.driven.on_done = self._finished
        return host

    def _wake(self, number: int, now: Time) -> None:
        self.hosts[number].driven.wake(now)

    def _finished(self) -> None:
        """A rank is done with the phase."""
        self.waiting -= 1
        if not self.waiting:
            self.loop.halted = True

    def now(self) -> Time:
        return self.loop.now

    def _all(self) -> Sequence[SimHost]:
        return self.hosts

    def _begin(self, now: Time) -> None:
        super()._begin(now)
        self._watch(now)
        if self.recording is not None:
            self.recording.begin(now)
        built = {name: (port, port.rate) for name, port in self.ports.items()}
        for change in self.changes:
            ports = [built[name] for name in change.ports]
            event = _Change(change, ports)
            if change.at:
                self.loop.arm(event, now + change.at)
            else:
                event.fire(now)

    def _watch(self, now: Time) -> None:
        plan = self.plan
        if plan.every:
            total = sum(received_by(phase.messages, self.job.ranks) for phase in self.job.phases)
            flows = watch.senders(host.rank for host in self.hosts)
            queues = [self.ports[name] for name in self._to(int(np.argmax(total)))]
            self.sampler = Sampler(self.loop, plan.every, now + plan.end, queues, flows)
            self.loop.arm(self.sampler, now + plan.start)
        if plan.settle:
            some = sorted({name for change in self.changes for name in change.ports})
            alike = watch.alike(self.ports, some)
            self.tally = Tally([self.ports[name] for name in some], [self.ports[name] for name in alike])
            self.loop.arm(self.tally, now + plan.settle)

    def _to(self, rank: int) -> set[str]:
        """Ports of switches that lead to a rank, by name."""
        hosts = self.fabric.spec.topology.hosts
        per_plane = len(hosts) // self.fabric.spec.planes
        ends = {hosts[plane * per_plane + rank] for plane in range(self.fabric.spec.planes)}
        return {name for name in self.ports if name.split(">")[1] in ends}

    def _sent(self) -> dict[str, int]:
        """Bytes that each port of a switch has sent."""
        hosts = set(self.fabric.spec.topology.hosts)
        return {name: port.bytes for name, port in self.ports.items() if name.split(">")[0] not in hosts}

    def _ended(self, record: PhaseRecord) -> None:
        before, self.sent_before = self.sent_before, self._sent()
        busy = {name: (sent - before[name]) / self.ports[name].rate for name, sent in self.sent_before.items()}
        record.hot_port = max(busy, key=lambda name: busy[name])
        hottest = np.flatnonzero(record.received == record.received.max())
        record.hot_port_right = any(record.hot_port in self._to(int(rank)) for rank in hottest)

    def watched(self) -> dict[str, float | None]:
        """Metrics of what was looked at."""
        values: dict[str, float | None] = {}
        if self.sampler is not None:
            values |= self.sampler.metrics(self.fabric.rate * self.job.ports * self.caps.base_rtt / (8 * SECOND))
        if self.tally is not None:
            values["faulty_cables_percent"] = self.tally.percent()
        if self.acks is not None:
            values["ack_p99_us"] = self.acks.p99_us()
        return values

    def _drive(self) -> None:
        collects = gc.isenabled()
        gc.disable()  # or it would walk through all hosts every few thousand packets
        try:
            self._run_phase()
        finally:
            if self.recording is not None:
                self.recording.ended(self.loop.now)
            if collects:
                gc.enable()

    def _run_phase(self) -> None:
        loop = self.loop
        driven = [host.driven for host in self.hosts]
        self.waiting = sum(not host.rank.done for host in self.hosts)
        for host in driven:
            host.begin(loop.now)
        deadline = time.monotonic() + self.timeout_s
        last = loop.now + round(self.timeout_s * SECOND)
        recording = self.recording
        while self.waiting:
            until = last if recording is None else min(last, recording.due)
            fired = loop.run(until, _SLICE)
            gc.collect(0)  # cycles that a control of the user may leave behind
            self.watcher.step(sum(host.completed for host in driven))
            over = not fired
            if recording is not None and self.waiting and fired < _SLICE and recording.due <= until:
                # Between two events: the loop does the same with a recording and without.
                recording.sample(until, loop.next())
                over = False
            if self.waiting and (over or time.monotonic() > deadline):
                stuck = next(host.rank for host in self.hosts if not host.rank.done)
                why = f"{self.timeout_s:g} s are over" if loop.next() < NEVER else "nothing more would happen"
                raise RunError(f"rank {stuck.number}: {why}. {stuck.missing()}")


def caps(fabric: Fabric, mtu: int, int_telemetry: bool = False) -> NicCaps:
    """What a Nic on this fabric can do."""
    return NicCaps(
        mtu=mtu, max_run=1, max_entropies=16384, ecn=True, rate=fabric.rate, base_rtt=max(US, fabric.base_rtt),
        priorities=fabric.spec.priorities, int_telemetry=int_telemetry, virtual_time=True,
    )  # fmt: skip
