"""The Packet record: everything that crosses a Nic.

A Packet is one segment, or a *run*: `count` contiguous segments of one message that leave back to back on one
path. Segment `i` of a run has sequence `seq + i`, PSN `psn + i`, remote address `address + i * segment` and its
payload at `payload[offset + i * stride]`; every segment is `segment` bytes long, the last one may be shorter.

The receiver of a Packet may read `payload` until the next call of `Nic.receive`; who keeps a packet longer calls
`detach` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython

from cc.signals import Hop as Hop

if TYPE_CHECKING:
    from transport.control import Control

# Kinds, each a BTH opcode on the wire (docs/wire.md).
DATA = 0  #: UC RDMA WRITE ONLY with immediate; `seq` is a DSN
CONTROL = 1  #: reliable control, UC SEND ONLY with immediate; `seq` is a CSN
DATAGRAM = 2  #: unreliable control, UC SEND ONLY
CNP = 3  #: congestion notification packet

# The ECN field of the IP header (RFC 3168 section 5).
NOT_ECT = 0
ECT_1 = 1
ECT_0 = 2
CE = 3

# Traffic classes.
CLASS_DATA = 0
CLASS_CONTROL = 1

PSN_MASK = 0xFFFFFF
SEQ_MASK = 0xFFFFFFFF


class Packet:
    """One segment or one run; see the module's text for what the fields of a run mean.

    src, dst: IP addresses as 4 or 16 bytes. entropy: the UDP source port, which is the path. qpn: the destination
    queue pair. tag: verification tag of a control payload. priority: CLASS_DATA or CLASS_CONTROL. length: payload
    bytes of the whole run. payload: a buffer, or None for bytes that exist only in number (the simulator).
    control: the decoded control payload of CONTROL and DATAGRAM packets. trimmed: a switch has cut the payload off.
    hops: one for each port on the way that stamped it, None where nobody does. plane: by which it came, -1 before an
    endpoint took it in. Times are picoseconds.
    """

    __slots__ = (
        "ack_request", "address", "control", "count", "dst", "ecn", "entropy", "hops", "kind", "length", "offset",
        "payload", "plane", "priority", "psn", "qpn", "received_at", "rkey", "segment", "sent_at", "seq", "solicited",
        "src", "src_qpn", "stride", "tag", "trimmed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.kind = DATA
        self.src = b""
        self.dst = b""
        self.entropy = 0
        self.qpn = 0
        self.src_qpn = 0
        self.psn = 0
        self.seq = 0
        self.count = 1
        self.segment = 0
        self.length = 0
        self.rkey = 0
        self.address = 0
        self.payload: bytes | bytearray | memoryview | None = None
        self.offset = 0
        self.stride = 0
        self.control: Control | None = None
        self.tag = 0
        self.ecn = NOT_ECT
        self.priority = CLASS_DATA
        self.ack_request = False
        self.solicited = False
        self.sent_at = 0
        self.received_at = 0
        self.plane = -1
        self.trimmed = False
        self.hops: list[Hop] | None = None

    def copy(self) -> Packet:
        """A second record of the same packet; the payload buffer is shared."""
        other = Packet()
        for name in FIELDS:
            setattr(other, name, getattr(self, name))
        return other

    def segment_length(self, index: cython.longlong) -> cython.longlong:
        """Payload bytes of segment `index` of the run."""
        return min(self.segment, self.length - index * self.segment) if self.count > 1 else self.length

    def segment_payload(self, index: int) -> memoryview | None:
        """A view of the payload of segment `index`, None where there are no bytes."""
        if self.payload is None:
            return None
        start = self.offset + index * self.stride
        return memoryview(self.payload)[start : start + self.segment_length(index)]

    def detach(self) -> None:
        """Copy the payload out of the buffer it was received into, so that the packet may be kept."""
        if self.payload is None:
            return
        self.payload = b"".join(bytes(view) for i in range(self.count) if (view := self.segment_payload(i)) is not None)
        self.offset = 0
        self.stride = self.segment

    def split(self, first: cython.longlong, count: cython.longlong) -> Packet:
        """The run of `count` segments that starts with segment `first` of this one. The payload is shared."""
        part = self.copy()
        part.seq = (self.seq + first) & SEQ_MASK
        part.psn = (self.psn + first) & PSN_MASK
        part.address = self.address + first * self.segment
        part.offset = self.offset + first * self.stride
        part.count = count
        part.length = min(count * self.segment, self.length - first * self.segment) if self.count > 1 else self.length
        last = first + count == self.count
        part.ack_request = self.ack_request and last
        part.solicited = self.solicited and last
        return part

    def __repr__(self) -> str:
        kind = ("DATA", "CONTROL", "DATAGRAM", "CNP")[self.kind]
        return (
            f"<Packet {kind} qpn={self.qpn:#x} seq={self.seq} x{self.count} psn={self.psn} path={self.entropy} "
            f"length={self.length} {self.control or ''}>"
        )


FIELDS: tuple[str, ...] = (
    "kind", "src", "dst", "entropy", "qpn", "src_qpn", "psn", "seq", "count", "segment", "length", "rkey", "address",
    "payload", "offset", "stride", "control", "tag", "ecn", "priority", "ack_request", "solicited", "sent_at",
    "received_at", "plane", "trimmed", "hops",
)  # fmt: skip

#: A batch of packets. Hot signatures use this name: Cython takes a parametrised list for another type than `list`.
Packets = list[Packet]
