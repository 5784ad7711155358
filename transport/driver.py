"""Drives one Endpoint over one Nic, in the Nic's own time. The only place, beside the runner, that holds both."""

from __future__ import annotations

from collections.abc import Callable

from transport.clock import NEVER, Time
from transport.completion import Completion
from transport.endpoint import Endpoint
from transport.nic.base import Nic
from transport.packet import Packet

_BATCH = 64


class Driver:
    """Moves packets and time between `endpoint` and `nic`.

    low_latency: `step` returns as soon as a completion is there, before anything is sent, so that an answer of the
    application leaves in one batch with the acknowledgement. For callers that call `step` again at once.
    interrupt: called by the next turn before it touches the endpoint, which is at rest then; for signal handlers.
    """

    def __init__(self, endpoint: Endpoint, nic: Nic, low_latency: bool = False) -> None:
        self.low_latency = low_latency
        self.endpoint = endpoint
        self.nic = nic
        self.unsent: list[Packet] = []
        self.interrupt: Callable[[], None] | None = None

    def now(self) -> Time:
        return self.nic.now()

    def step(self, block_until: Time | None = 0) -> list[Completion]:
        """Receive, let time pass, transmit; if that did nothing, wait for a packet, a timeout, or `block_until` (None:
        no limit). Returns the completions that are due."""
        busy = self.turn()
        completions = self.completions()
        if not busy and not completions and block_until != 0:
            until = self.endpoint.poll_timeout()
            if block_until is not None:
                until = min(until, block_until)
            self.nic.wait(until if until < NEVER else None)
            self.turn()
            completions = self.completions()
        return completions

    def close(self) -> None:
        self.nic.close()

    def turn(self) -> bool:
        """Receive, let time pass, transmit, once and without waiting. True if packets moved: then there may be more."""
        if self.interrupt is not None:
            self.interrupt()
        endpoint, nic = self.endpoint, self.nic
        packets = nic.receive(_BATCH)
        now = nic.now()
        for packet in packets:
            endpoint.receive(packet, now)
        if endpoint.poll_timeout() <= now:
            endpoint.handle_timeout(now)
        if self.low_latency and endpoint.completions:
            return True
        if not self.unsent:
            self.unsent = endpoint.poll_transmit(now, _BATCH)
        sent = nic.send(self.unsent)  # also when empty: the Nic may hold the rest of a run
        del self.unsent[:sent]
        return bool(packets) or sent > 0

    def completions(self) -> list[Completion]:
        """Those that are due, in order."""
        done: list[Completion] = []
        while (completion := self.endpoint.poll_completion()) is not None:
            done.append(completion)
        return done
