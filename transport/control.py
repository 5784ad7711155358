"""Control payloads as records. `transport.wire` turns them into bytes and back; a Nic without bytes carries them as
they are.

Records are never changed after they were made; they are not frozen dataclasses only because those cost 2 us each to
make. Sequence numbers in them are as on the wire: 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cc.signals import Hop

# Operations a message can be (field `op` of Msg).
OP_SEND = 0
OP_SEND_IMM = 1
OP_WRITE_IMM = 2
OP_READ_RESPONSE = 3

# Atomic operations.
FETCH_ADD = 0
CMP_SWAP = 1

# Why a NACK asks for data again.
TRIMMED = 0
OUT_OF_ORDER = 1

# Sequence spaces of an ACK's trigger.
SPACE_DATA = 0
SPACE_CONTROL = 1


class Ack:
    """What a receiver has. Bit `i` of `received` and `marked` (least significant bit of each byte first) stands for
    DSN `base + i`; everything below `edge` has arrived. `base` lies at least two ACKs behind, so that the marks of a
    lost ACK are told again. `control_received` holds the 128 CSNs from `control_edge`.

    trigger_*: the very packet that asked for this ACK: its space, sequence, PSN and entropy; hold: picoseconds it
    waited at the receiver. marked_packets, marked_bytes, duplicates: totals since the connection began. hops: in-band
    telemetry of the newest data packet; only a Nic that hands over records carries it, it has no place on the wire.
    """

    __slots__ = (
        "base", "bits", "control_edge", "control_received", "duplicates", "edge", "hold", "hops", "last_duplicate",
        "marked", "marked_bytes", "marked_packets", "received", "trigger_entropy", "trigger_psn", "trigger_seq",
        "trigger_space",
    )  # fmt: skip

    def __init__(self) -> None:
        self.edge = 0
        self.base = 0
        self.bits = 0
        self.received = b""
        self.marked = b""
        self.control_edge = 0
        self.control_received = b""
        self.trigger_space = SPACE_DATA
        self.trigger_seq = 0
        self.trigger_psn = 0
        self.trigger_entropy = 0
        self.hold = 0
        self.marked_packets = 0
        self.marked_bytes = 0
        self.duplicates = 0
        self.last_duplicate = 0
        self.hops: list[Hop] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ack) and all(getattr(self, name) == getattr(other, name) for name in ACK_FIELDS)

    def __hash__(self) -> int:
        return hash((self.edge, self.trigger_seq, self.trigger_psn))

    def __repr__(self) -> str:
        return f"Ack({', '.join(f'{name}={getattr(self, name)!r}' for name in ACK_FIELDS)})"


ACK_FIELDS: tuple[str, ...] = (
    "edge", "base", "bits", "received", "marked", "control_edge", "control_received", "trigger_space", "trigger_seq",
    "trigger_psn", "trigger_entropy", "hold", "marked_packets", "marked_bytes", "duplicates", "last_duplicate",
)  # fmt: skip


@dataclass(slots=True, unsafe_hash=True)
class Msg:
    """A message the ledger must deliver. number: the receive it consumes (or, for OP_READ_RESPONSE, the read it
    answers); first, count: its DSNs; length: bytes; inline: the payload itself when the message has no DSNs."""

    number: int
    op: int
    first: int
    count: int
    length: int
    imm: int = 0
    inline: bytes | None = None


@dataclass(slots=True, unsafe_hash=True)
class Receive:
    """One posted receive inside a RecvAdvert: a single-use key to its buffer."""

    rkey: int
    address: int
    length: int


@dataclass(slots=True, unsafe_hash=True)
class RecvAdvert:
    """Receives `number`, `number + 1`, ... of the sender of this packet are posted."""

    number: int
    receives: tuple[Receive, ...]


@dataclass(slots=True, unsafe_hash=True)
class ReadReq:
    """Write `length` bytes from (rkey, address) of the responder to (reply_rkey, reply_address) of the requester, once
    everything below `edge`, the requester's DSN when it posted this, has arrived."""

    number: int
    edge: int
    rkey: int
    address: int
    length: int
    reply_rkey: int
    reply_address: int


@dataclass(slots=True, unsafe_hash=True)
class Atomic:
    """FETCH_ADD adds `operand`; CMP_SWAP stores `operand` if the value equals `compare`. 8 aligned bytes in
    host order."""

    number: int
    op: int
    edge: int
    rkey: int
    address: int
    operand: int
    compare: int = 0


@dataclass(slots=True, unsafe_hash=True)
class AtomicReply:
    """The value before atomic `number`."""

    number: int
    value: int


@dataclass(slots=True, unsafe_hash=True)
class Terminate:
    """The sender of this packet has gone to ERR. status: a completion status; number: the message, read or atomic that
    caused it; kind: 0 message, 1 read or atomic, 2 the connection."""

    status: int
    kind: int
    number: int


@dataclass(slots=True, unsafe_hash=True)
class Close:
    """No sequence number at or above these will ever be used by the sender of this packet."""

    final_dsn: int
    final_csn: int


@dataclass(slots=True, unsafe_hash=True)
class Retire:
    """The path's queue pair `qpn` is dead at the sender; destroy yours and answer. For Nics that place by
    themselves."""

    path: int
    qpn: int


@dataclass(slots=True, unsafe_hash=True)
class Retired:
    """Answer to Retire: nothing of `qpn` will be placed any more; `new_qpn` takes over the path."""

    path: int
    qpn: int
    new_qpn: int


@dataclass(slots=True, unsafe_hash=True)
class Nack:
    """Data is wanted again. TRIMMED: a switch cut the payload of DSN `seq`, which came by `entropy` as `psn`.
    OUT_OF_ORDER, in classic mode: DSN `seq` is the next one, and something behind it came so."""

    seq: int
    psn: int
    entropy: int
    reason: int = TRIMMED


@dataclass(slots=True, unsafe_hash=True)
class Reject:
    """Data packet `seq` was refused: a completion status says why. Changes nothing at its sender, the responder."""

    seq: int
    rkey: int
    address: int
    status: int


@dataclass(slots=True, unsafe_hash=True)
class Probe:
    """Asks for a reply to measure the round trip of the path `entropy`."""

    nonce: int
    entropy: int


@dataclass(slots=True, unsafe_hash=True)
class ProbeReply:
    """hold: picoseconds between the probe's arrival and this reply; marked: the probe came with CE."""

    nonce: int
    entropy: int
    hold: int
    marked: bool


@dataclass(slots=True, unsafe_hash=True)
class Demand:
    """Cumulative bytes that the sender ever wanted to send, copies included; of them, those that it sends without
    credit; and those that it has declared lost without being told that a switch trimmed them."""

    total: int
    unsolicited: int = 0
    lost: int = 0


@dataclass(slots=True, unsafe_hash=True)
class Credit:
    """Cumulative bytes that the receiver ever granted, beside the unsolicited ones."""

    total: int


Control = (
    Ack | Msg | RecvAdvert | ReadReq | Atomic | AtomicReply | Terminate | Close | Retire | Retired | Nack | Reject
    | Probe | ProbeReply | Demand | Credit
)  # fmt: skip
