"""Writes what crosses a Nic to a capture file, as whole frames.

The frames are made of the records: also a Nic that carries no bytes can be captured. Of a received packet the fields
that a record does not have (hop limit, flow label) are those that we would send. Bytes that exist only in number are
written as zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from transport.clock import Time
from transport.nic.base import Nic
from transport.nic.wrapper import Wrapper
from transport.packet import Packet
from transport.wire import ID0, Codec


class FrameSink(Protocol):
    """Where frames go: a transport.pcapfile.PcapFile."""

    def write(self, time_ps: Time, frame: bytes) -> None:
        """Append a frame seen at `time_ps` picoseconds."""


class PcapWriter(Wrapper):
    """Writes each segment sent, received, or both, to `file`, which its owner closes; several Nics may share it.

    codec: as the connection has it (ICRC mode, DSCP). Time stamps are of the Nic's clock.
    """

    def __init__(
        self, inner: Nic, file: FrameSink, codec: Codec | None = None, *, sent: bool = True, received: bool = True
    ) -> None:
        super().__init__(inner)
        self.file = file
        self.codec = codec or Codec(ID0)
        self.sent = sent
        self.received = received

    def send(self, packets: Sequence[Packet]) -> int:
        now = self.inner.now()
        taken = self.inner.send(packets)
        if self.sent:
            for packet in packets[:taken]:
                self._write(now, packet)
        return taken

    def receive(self, limit: int) -> list[Packet]:
        packets = self.inner.receive(limit)
        if self.received:
            for packet in packets:
                self._write(packet.received_at or self.inner.now(), packet)
        return packets

    def _write(self, time: Time, packet: Packet) -> None:
        for index in range(packet.count):
            self.file.write(time, self.codec.frame(packet, index))
