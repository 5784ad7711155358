"""Runs a job with all ranks in this process, over the loopback network, in virtual time.

The same job and seed give the same result to the bit, on any machine, compiled or interpreted.
"""

from __future__ import annotations

import random
import time

from testbed import nics
from testbed.errors import RunError
from testbed.gates import Gates
from testbed.job import Job, Outcome, PathChange, assemble, drain_events
from testbed.metrics import PhaseRecord
from testbed.progress import Watcher
from testbed.rank import Rank
from transport.clock import NEVER, SECOND, Time
from transport.endpoint import Endpoint
from transport.nic.loopback import Network

_BATCH = 64


class Host:
    """One rank with its endpoint and Nic."""

    def __init__(self, number: int, nic: nics.Meter, job: Job) -> None:
        self.nic = nic
        rng = random.Random(f"{job.seed} endpoint {number}")
        self.endpoint = Endpoint(job.config, nic.addresses, nic.caps, rng)
        self.rank = Rank(number, self.endpoint, job.phases, job.seed, nic.now())
        self.sent: dict[str, str] = {}

    def turn(self, now: Time) -> bool:
        """Everything that can happen at `now`; whether anything did."""
        endpoint = self.endpoint
        busy = False
        while packets := self.nic.receive(_BATCH):
            busy = True
            for packet in packets:
                endpoint.receive(packet, now)
        if endpoint.poll_timeout() <= now:
            busy = True
            endpoint.handle_timeout(now)
        while packets := endpoint.poll_transmit(now, _BATCH):
            busy = True
            while packets:
                packets = packets[self.nic.send(packets) :]
        if self.rank.next_post <= now:
            busy = True
            self.rank.handle_timeout(now)
        while (completion := endpoint.poll_completion()) is not None:
            busy = True
            self.rank.on_completion(completion, now)
        return busy

    def next_event(self) -> Time:
        """When something can happen next that this host knows of."""
        return min(self.nic.next_event(), self.endpoint.poll_timeout(), self.rank.next_post)


class World:
    """All ranks of a job on one network. timeout_s: longest real time for a phase, and longest virtual time."""

    def __init__(self, job: Job, network: Network, timeout_s: float, watcher: Watcher) -> None:
        self.job = job
        self.network = network
        self.timeout_s = timeout_s
        self.watcher = watcher
        self.nics = [nics.loopback(job, network, number) for number in range(job.ranks)]
        self.hosts = [Host(number, nic, job) for number, nic in enumerate(self.nics)]

    def run(self) -> tuple[list[PhaseRecord], list[PathChange]]:
        """All phases, and what happened to the paths."""
        job = self.job
        described = [host.rank.describe() for host in self.hosts]
        for number, host in enumerate(self.hosts):
            said = {other: described[int(other)][str(number)] for other in described[number]}
            host.rank.connect(self.network.now(), said)
        records: list[PhaseRecord] = []
        events: list[PathChange] = []
        for number, phase in enumerate(job.phases):
            self.watcher.phase(phase.name, number, len(job.phases), len(phase.messages))
            for host in self.hosts:
                host.sent = host.rank.prepare(self.network.now(), number)
            if number == 0:
                for nic in self.nics:
                    nic.begin(self.network.now())
            Gates(phase, [host.rank for host in self.hosts])
            for host in self.hosts:
                host.rank.start(self.network.now())
            self._drive()
            outcomes = [
                Outcome(host.rank.rows, host.rank.counted(), host.nic.paths_used(), host.sent, host.rank.verify())
                for host in self.hosts
            ]
            records.append(assemble(phase, job.ranks, outcomes))
            for number_of_host, host in enumerate(self.hosts):
                events += drain_events(number_of_host, host.endpoint)
        for nic in self.nics:
            nic.close()
        return records, events

    def _drive(self) -> None:
        """Until all ranks are done with the phase."""
        network = self.network
        deadline = time.monotonic() + self.timeout_s
        last = network.now() + round(self.timeout_s * SECOND)
        waiting = [host for host in self.hosts if not host.rank.done]
        while waiting:
            now = network.now()
            while sum(host.turn(now) for host in self.hosts):
                pass
            waiting = [host for host in waiting if not host.rank.done]
            self.watcher.step(sum(len(host.rank.rows) for host in self.hosts))
            following = min(host.next_event() for host in self.hosts)
            if waiting and (following >= NEVER or following > last or time.monotonic() > deadline):
                missing = waiting[0].rank.missing()
                why = "nothing more would happen" if following >= NEVER else f"{self.timeout_s:g} s are over"
                raise RunError(f"rank {waiting[0].rank.number}: {why}. {missing}")
            if waiting:
                network.advance(max(now, following))


def run(
    job: Job, network: Network, timeout_s: float, watcher: Watcher
) -> tuple[list[PhaseRecord], list[PathChange]]:  # fmt: skip
    """Run a job in virtual time on `network`."""
    return World(job, network, timeout_s, watcher).run()
