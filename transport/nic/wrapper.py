"""A Nic around a Nic that changes nothing: what fault injection, capture and tracing start from. Wrappers stack."""

from __future__ import annotations

from collections.abc import Sequence

from transport.clock import NEVER, Time
from transport.nic.base import Nic
from transport.packet import Packet


class Wrapper:
    """Passes every call on to `inner`, also those that only some Nics have."""

    def __init__(self, inner: Nic) -> None:
        self.inner = inner
        self.caps = inner.caps
        self.address = inner.address
        #: Of a Nic with several ports all, else the one.
        self.addresses: tuple[bytes, ...] = getattr(inner, "addresses", (inner.address,))

    def now(self) -> Time:
        return self.inner.now()

    def send(self, packets: Sequence[Packet]) -> int:
        return self.inner.send(packets)

    def receive(self, limit: int) -> list[Packet]:
        return self.inner.receive(limit)

    def wait(self, until: Time | None) -> None:
        self.inner.wait(until)

    def close(self) -> None:
        self.inner.close()

    def next_event(self) -> Time:
        """In virtual time, when the network or a wrapper has something to do next; else NEVER."""
        inner = getattr(self.inner, "next_event", None)
        return int(inner()) if inner is not None else NEVER

    def alarm(self, due: Time) -> None:
        """Make virtual time stop at `due`; a Nic in real time does not need it."""
        inner = getattr(self.inner, "alarm", None)
        if inner is not None:
            inner(due)

    def counters(self) -> dict[str, int]:
        """Those of the innermost Nic that has some."""
        inner = getattr(self.inner, "counters", None)
        return dict(inner()) if inner is not None else {}

    def backlog(self) -> int:
        """That of the innermost Nic: what it took and could not send yet."""
        inner = getattr(self.inner, "backlog", None)
        return int(inner()) if inner is not None else 0

    def fileno(self) -> int:
        """That of the innermost Nic; -1 if it has none."""
        inner = getattr(self.inner, "fileno", None)
        return int(inner()) if inner is not None else -1
