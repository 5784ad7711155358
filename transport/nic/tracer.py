"""Remembers the last packets that crossed a Nic, as text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from transport.clock import Time, to_us
from transport.nic.base import Nic
from transport.nic.wrapper import Wrapper
from transport.packet import Packet

_KINDS = ("DATA", "CONTROL", "DATAGRAM", "CNP")
_ECN = ("", " ECT(1)", " ECT(0)", " CE")


def _line(time: Time, verb: str, packet: Packet) -> str:
    peer = packet.dst if verb == "sent" else packet.src
    count = f" x{packet.count}" if packet.count > 1 else ""
    control = f" {packet.control}" if packet.control is not None else ""
    return (
        f"{to_us(time):.3f} us {verb} {_KINDS[packet.kind]} {peer.hex()} path={packet.entropy} qpn={packet.qpn:#x} "
        f"seq={packet.seq}{count} psn={packet.psn} length={packet.length}{_ECN[packet.ecn]}{control}"
    )


class Tracer(Wrapper):
    """Keeps the last `events` packets; `lines` says what they were. callback: called with the line of each at once.

    Without a callback text is only made when it is asked for. A record is kept without its payload.
    """

    def __init__(self, inner: Nic, events: int = 1000, callback: Callable[[str], object] | None = None) -> None:
        super().__init__(inner)
        self.callback = callback
        self._events: deque[tuple[Time, str, Packet]] = deque(maxlen=events)

    def lines(self) -> list[str]:
        """One line for each packet, the oldest first: time, sent or received, and what the record says."""
        return [_line(*event) for event in self._events]

    def send(self, packets: Sequence[Packet]) -> int:
        now = self.inner.now()
        taken = self.inner.send(packets)
        for packet in packets[:taken]:
            self._note(now, "sent", packet)
        return taken

    def receive(self, limit: int) -> list[Packet]:
        packets = self.inner.receive(limit)
        if packets:
            now = self.inner.now()
            for packet in packets:
                self._note(now, "received", packet)
        return packets

    def _note(self, now: Time, verb: str, packet: Packet) -> None:
        kept = packet.copy()
        kept.payload = None
        self._events.append((now, verb, kept))
        if self.callback is not None:
            self.callback(_line(now, verb, kept))
