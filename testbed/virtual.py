"""Runs a job with all ranks in this process, over the loopback network, in virtual time.

The same job and seed give the same result to the bit, on any machine, compiled or interpreted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from testbed import nics
from testbed.errors import RunError
from testbed.job import Job, PathChange
from testbed.metrics import PhaseRecord
from testbed.progress import Watcher
from testbed.rank import Rank
from testbed.together import Together
from transport.clock import NEVER, SECOND, Time
from transport.endpoint import Endpoint
from transport.nic.loopback import Network

_BATCH = 64


class Host:
    """One rank with its endpoint and Nic."""

    def __init__(self, number: int, nic: nics.RankNic, job: Job) -> None:
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


class World(Together):
    """All ranks of a job on one network."""

    def __init__(self, job: Job, network: Network, timeout_s: float, watcher: Watcher) -> None:
        super().__init__(job, timeout_s, watcher)
        self.network = network
        self.hosts = [Host(number, nics.loopback(job, network, number), job) for number in range(job.ranks)]

    def now(self) -> Time:
        return self.network.now()

    def _all(self) -> Sequence[Host]:
        return self.hosts

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
