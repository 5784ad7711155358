"""A rank as a process of its own: takes orders from the coordinator over an inherited socket, drives one endpoint.

Started by testbed.processes as `python -m testbed.rank_process FD`, or by a launcher, see testbed/launched.py. It never
outlives the coordinator: an end of the channel ends it, and a child is killed by the kernel with its parent
(PR_SET_PDEATHSIG). While it waits it sleeps in select, on the network and on the channel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from testbed import nics
from testbed.errors import RunError
from testbed.job import Job, Outcome, drain_events
from testbed.rank import Rank
from transport import telemetry
from transport.bootstrap import Channel
from transport.clock import MS, NEVER, SECOND, Time
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.errors import PolyroceError

#: Longest message between coordinator and rank, bytes.
MAX_LINE = 1 << 28

#: How long a rank serves its peers after it closed its connections.
_LINGER = 100 * MS

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, in whatever way."""
    parent = int(os.environ.get("POLYROCE_PARENT", "0"))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:  # it ended before that call
        sys.exit(1)


class RankProcess:
    """Carries out the coordinator's orders until `finish`."""

    def __init__(self, channel: Channel, number: int, job: Job) -> None:
        self.channel = channel
        # Waited for in place of all the others: select is exact, but takes no descriptor above 1023, so it comes early.
        self.ready = select.epoll()
        self.number = number
        self.job = job
        self.nic, config = nics.udp(job, number)
        rng = random.Random(f"{job.seed} endpoint {number}")
        self.endpoint = Endpoint(config, self.nic.addresses, self.nic.caps, rng)
        self.driver = Driver(self.endpoint, self.nic)
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable: a signal wants a turn
        for descriptor in (self.nic.fileno(), self.channel.fileno(), self.wake):
            self.ready.register(descriptor, select.EPOLLIN)
        self.telemetry = telemetry.install(
            self.driver, f"rank {number}", wake=lambda: os.eventfd_write(self.wake, 1), stream=None
        )
        self.rank = Rank(number, self.endpoint, job.phases, job.seed, self.driver.now())
        self.sent: dict[str, str] = {}

    def serve(self) -> None:
        """Announce this rank, then do what comes."""
        self.channel.send({"type": "ready", "described": self.rank.describe()})
        orders: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "connect": self._connect, "prepare": self._prepare, "go": self._go, "verify": self._verify,
        }  # fmt: skip
        while (order := self._next_order())["type"] != "finish":
            answer = orders[order["type"]](order)
            if answer is not None:
                self.channel.send(answer)
        self._finish()

    def _next_order(self) -> dict[str, Any]:
        while (order := self.channel.poll()) is None:
            self._step(NEVER)
        return order

    def _step(self, until: Time) -> None:
        """Drive the endpoint; if there is nothing to do, sleep until a packet, a timeout, an order, or `until`."""
        if self._drive():
            return
        now = self.driver.now()
        due = min(until, self.endpoint.poll_timeout(), self.nic.next_event(), self.rank.next_post)
        if self.driver.unsent:
            due = min(due, now + MS)
        timeout = None if due >= NEVER else max(0, due - now) / SECOND
        select.select([self.ready], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake)

    def _drive(self) -> bool:
        """One step without waiting; whether something happened."""
        before = self.endpoint.totals.packets_sent, self.endpoint.totals.packets_received
        completions = self.driver.step(0)
        now = self.driver.now()
        posts = self.rank.next_post <= now
        if posts:
            self.rank.handle_timeout(now)
        for completion in completions:
            self.rank.on_completion(completion, now)
        after = self.endpoint.totals.packets_sent, self.endpoint.totals.packets_received
        return posts or bool(completions) or before != after

    def _connect(self, order: dict[str, Any]) -> dict[str, Any]:
        self.rank.connect(self.driver.now(), order["described"])
        return {"type": "connected"}

    def _prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        self.sent = self.rank.prepare(self.driver.now(), order["phase"])
        return {"type": "prepared"}

    def _go(self, order: dict[str, Any]) -> dict[str, Any]:
        deadline = self.driver.now() + round(order["timeout_s"] * SECOND)
        if self.rank.phase == 0:
            self.nic.begin(self.driver.now())
        self.rank.start(self.driver.now())
        while not self.rank.done:
            if self.driver.now() > deadline:
                raise RunError(f"rank {self.number}: {order['timeout_s']} s are over. {self.rank.missing()}")
            self._step(deadline)
            if not self.rank.done and (message := self.channel.poll()) is not None:
                raise RunError(f"rank {self.number}: order {message['type']!r} in the middle of a phase")
        return {"type": "done"}

    def _verify(self, order: dict[str, Any]) -> dict[str, Any]:
        outcome = Outcome(
            self.rank.rows, self.rank.counted(), self.rank.paths_used(), self.sent, self.rank.verify()
        )  # fmt: skip
        events = [asdict(change) for change in drain_events(self.number, self.endpoint)]
        return {"type": "verified", "outcome": asdict(outcome), "events": events}

    def _finish(self) -> None:
        """Close the connections, serve the peers until they have closed theirs, and say goodbye."""
        self.rank.close(self.driver.now())
        end = self.driver.now() + _LINGER
        while self.driver.now() < end:
            with contextlib.suppress(RunError):  # receives that are flushed
                self._drive()
            self.nic.wait(min(end, self.driver.now() + 5 * MS))
        self.telemetry.close()
        self.driver.close()
        self.channel.send({"type": "finished"})


def carry_out(channel: Channel, order: dict[str, Any]) -> None:
    """Be the rank of a `job` order to its end. What goes wrong is told to the coordinator, and raised."""
    try:
        RankProcess(channel, order["rank"], Job.from_json(order["job"])).serve()
    except PolyroceError as error:
        with contextlib.suppress(PolyroceError):
            channel.send({"type": "failed", "kind": type(error).__name__, "text": str(error)})
        raise


def main() -> None:
    """Serve the coordinator whose socket has the number in the first argument. What goes wrong is told to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the coordinator ends the ranks
    die_with_parent()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), "the coordinator", max_line=MAX_LINE)
    try:
        carry_out(channel, channel.receive("job", patience=60.0))
    except PolyroceError:
        sys.exit(1)
    channel.bye()


if __name__ == "__main__":
    main()
