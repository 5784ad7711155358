"""A job with all ranks in this process: its phases one after the other. Which network moves them is a subclass's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from testbed import nics
from testbed.gates import Gates
from testbed.job import Job, Outcome, PathChange, assemble, drain_events
from testbed.metrics import PhaseRecord
from testbed.progress import Watcher
from testbed.rank import Rank
from transport.clock import Time
from transport.endpoint import Endpoint


class Host(Protocol):
    """One rank with its endpoint and Nic. sent: the digests of what it sends in this phase."""

    rank: Rank
    endpoint: Endpoint
    nic: nics.RankNic
    sent: dict[str, str]


class Together:
    """timeout_s: longest real time for a phase, and longest virtual time."""

    def __init__(self, job: Job, timeout_s: float, watcher: Watcher) -> None:
        self.job = job
        self.timeout_s = timeout_s
        self.watcher = watcher

    def run(self) -> tuple[list[PhaseRecord], list[PathChange]]:
        """All phases, and what happened to the paths."""
        job, hosts = self.job, self._all()
        ranks = [host.rank for host in hosts]
        described = [rank.describe() for rank in ranks]
        for number, rank in enumerate(ranks):
            said = {other: described[int(other)][str(number)] for other in described[number]}
            rank.connect(self.now(), said)
        records: list[PhaseRecord] = []
        events: list[PathChange] = []
        for number, phase in enumerate(job.phases):
            self.watcher.phase(phase.name, number, len(job.phases), len(phase.messages))
            for host in hosts:
                host.sent = host.rank.prepare(self.now(), number)
            if number == 0:
                self._begin(self.now())
            Gates(phase, ranks, self._wake)
            for rank in ranks:
                rank.start(self.now())
            self._drive()
            outcomes = [
                Outcome(host.rank.rows, host.rank.counted(), host.rank.paths_used(), host.sent, host.rank.verify())
                for host in hosts
            ]
            records.append(assemble(phase, job.ranks, outcomes))
            self._ended(records[-1])
            for of_host, host in enumerate(hosts):
                events += drain_events(of_host, host.endpoint)
        for host in hosts:
            host.nic.close()
        return records, events

    def now(self) -> Time:
        """The network's clock."""
        raise NotImplementedError

    def _all(self) -> Sequence[Host]:
        raise NotImplementedError

    def _begin(self, now: Time) -> None:
        """The first phase begins: times of faults count from here."""
        for host in self._all():
            host.nic.begin(now)

    def _ended(self, record: PhaseRecord) -> None:
        """A phase is over: what the network knows of it can be added to its record."""

    def _wake(self, number: int, now: Time) -> None:
        """A rank has posted what waited for another one."""

    def _drive(self) -> None:
        """Until all ranks are done with the phase. RunError if they never will be."""
        raise NotImplementedError
