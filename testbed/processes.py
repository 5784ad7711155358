"""Runs a job with one process a rank, over real sockets, and coordinates the phases. The processes are started here, or
were by a launcher and have joined a group, all but the one of rank 0.

The coordinator carries everything that must not go over the transport under test: connection parameters, addresses and
keys of buffers, barriers, digests and results. Every wait has a deadline. When a rank dies or fails, the run ends with
an error that names it, and whatever happens, no process is left behind.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import transport.errors
from testbed.errors import RunError
from testbed.job import Job, Outcome, PathChange, assemble
from testbed.metrics import PhaseRecord
from testbed.progress import Watcher
from testbed.rank_process import MAX_LINE
from transport.bootstrap import Channel, PeerGoneError
from transport.errors import PolyroceError
from transport.group import Group

#: Seconds for a rank to start, and for one to end on its own.
_START = 60.0
_END = 5.0
#: Seconds that a rank's own deadline for a phase lies before the coordinator's.
_GRACE = 5.0


def rank_environment() -> dict[str, str]:
    """For a Python child that imports this very package and dies with this process."""
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    environment["POLYROCE_PARENT"] = str(os.getpid())
    return environment


class _Member(Protocol):
    """A rank process that the coordinator speaks to."""

    number: int
    channel: Channel

    def obituary(self) -> str:
        """How the process ended, for an error."""

    def finish(self) -> None:
        """It said that it has finished: wait for its end, if that is to follow."""

    def kill(self) -> None:
        """Whatever happened: leave nothing behind."""


class _Child:
    """A rank process that was started here, with its end of the channel."""

    def __init__(self, number: int, job: Job, errors: Any) -> None:
        self.number = number
        self.errors = errors
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "testbed.rank_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=rank_environment(),
            )
        self.channel = Channel(ours, f"rank {number}", patience=_START, max_line=MAX_LINE)
        self.channel.send({"type": "job", "rank": number, "job": job.to_json()})

    def obituary(self) -> str:
        try:
            status = self.process.wait(_END)
        except subprocess.TimeoutExpired:
            return f"rank {self.number} (process {self.process.pid}) closed its channel"
        how = f"with status {status}"
        if status < 0:
            how = f"killed by signal {-status} ({signal.Signals(-status).name})"
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"rank {self.number} (process {self.process.pid}) died, {how}" + (f": {last[0]}" if last else "")

    def finish(self) -> None:
        try:
            self.process.wait(_END)
        except subprocess.TimeoutExpired:
            raise RunError(f"rank {self.number} did not end when it was told to") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.channel.close()
        self.errors.close()


class _Joined:
    """A rank process that a launcher started. Its channel is the group's, and stays for the next job."""

    def __init__(self, number: int, channel: Channel, job: Job) -> None:
        self.number = number
        self.channel = channel
        channel.send({"type": "job", "rank": number, "job": job.to_json()})

    def obituary(self) -> str:
        return f"rank {self.number} left: its process ended or cannot be reached any more"

    def finish(self) -> None:
        pass

    def kill(self) -> None:
        pass


class Coordinator:
    """Speaks to all ranks of a job. group: those that joined, by a launcher; all others are started."""

    def __init__(self, job: Job, timeout_s: float, watcher: Watcher, group: Group | None = None) -> None:
        self.job = job
        self.timeout_s = timeout_s
        self.watcher = watcher
        self.joined = group.channels if group is not None else {}
        self.members: list[_Member] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """The ranks' processes live inside this, and never longer."""
        try:
            for number in range(self.job.ranks):
                channel = self.joined.get(number)
                if channel is not None:
                    self.members.append(_Joined(number, channel, self.job))
                else:
                    errors = tempfile.TemporaryFile()  # noqa: SIM115  kill closes it
                    self.members.append(_Child(number, self.job, errors))
            yield
        finally:
            for member in self.members:
                member.kill()

    def run(self) -> tuple[list[PhaseRecord], list[PathChange]]:
        """All phases. RunError, or the error of the rank that failed, if it does not come to its end."""
        with self.running():
            self._meet()
            records: list[PhaseRecord] = []
            events: list[PathChange] = []
            for number, phase in enumerate(self.job.phases):
                self.watcher.phase(phase.name, number, len(self.job.phases), self.job.ranks)
                self._all({"type": "prepare", "phase": number}, "prepared", _START)
                self._all({"type": "go", "timeout_s": self.timeout_s}, "done", self.timeout_s + _GRACE, watch=True)
                answers = self._all({"type": "verify"}, "verified", _START)
                outcomes = [Outcome(**answer["outcome"]) for answer in answers]
                records.append(assemble(phase, self.job.ranks, outcomes))
                events += [PathChange(**change) for answer in answers for change in answer["events"]]
            self._all({"type": "finish"}, "finished", _START)
            for member in self.members:
                member.finish()
        return records, events

    def _meet(self) -> None:
        """Tell every rank what its peers say to it."""
        described = [answer["described"] for answer in self._gather("ready", _START)]
        for member in self.members:
            said = {other: described[int(other)][str(member.number)] for other in described[member.number]}
            member.channel.send({"type": "connect", "described": said})
        self._gather("connected", _START)

    def _all(self, order: dict[str, Any], answer: str, patience: float, watch: bool = False) -> list[dict[str, Any]]:
        for member in self.members:
            try:
                member.channel.send(order)
            except PeerGoneError:
                raise RunError(member.obituary()) from None
        return self._gather(answer, patience, watch)

    def _gather(self, kind: str, patience: float, watch: bool = False) -> list[dict[str, Any]]:
        """One answer of that kind from every rank, in order of the ranks."""
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as ready:
            for member in self.members:
                ready.register(member.channel, selectors.EVENT_READ, member)
            while len(answers) < len(self.members):
                left = deadline - time.monotonic()
                if left <= 0:
                    late = [str(member.number) for member in self.members if member.number not in answers]
                    raise RunError(f"rank {', '.join(late)}: no {kind!r} within {patience:g} s")
                for key, _ in ready.select(left):
                    member = key.data
                    message = self._message(member)
                    if message is None:
                        continue
                    if message["type"] != kind or member.number in answers:
                        raise RunError(f"rank {member.number} answered {message['type']!r} where {kind!r} was expected")
                    answers[member.number] = message
                    if kind == "finished":
                        ready.unregister(member.channel)  # its end is no death
                    if watch:
                        self.watcher.step(len(answers))
        return [answers[number] for number in range(len(self.members))]

    def _message(self, member: _Member) -> dict[str, Any] | None:
        try:
            message = member.channel.poll()
        except PeerGoneError:
            raise RunError(member.obituary()) from None
        if message is not None and message["type"] == "failed":
            kind = getattr(transport.errors, message["kind"], RunError)
            known = isinstance(kind, type) and issubclass(kind, PolyroceError)
            raise (kind if known else RunError)(message["text"])
        return message


def run(
    job: Job, timeout_s: float, watcher: Watcher, group: Group | None = None
) -> tuple[list[PhaseRecord], list[PathChange]]:
    """Run a job with one process for each rank. timeout_s: longest time for a phase. group: the processes that a
    launcher started, this one as rank 0."""
    return Coordinator(job, timeout_s, watcher, group).run()
