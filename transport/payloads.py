"""Bytes of the control payloads of transport.control, from the type code on; docs/wire.md has the offsets.

Encodings are canonical: a payload has exactly one, reserved bytes are 0, and nothing follows. A payload that any of
this, or a value without meaning, keeps from being ours is a WireError.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

import cython

from transport.completion import Status
from transport.control import (
    CMP_SWAP,
    OP_READ_RESPONSE,
    OUT_OF_ORDER,
    SPACE_CONTROL,
    Ack,
    Atomic,
    AtomicReply,
    Close,
    Control,
    Credit,
    Demand,
    Msg,
    Nack,
    Probe,
    ProbeReply,
    ReadReq,
    Receive,
    RecvAdvert,
    Reject,
    Retire,
    Retired,
    Terminate,
)
from transport.errors import LocalProtocolError, WireError

# Type codes. Reliable payloads have 0x10 to 0x1F, unreliable ones 0x20 to 0x2F.
MSG = 0x10
RECV_ADVERT = 0x11
READ_REQ = 0x12
ATOMIC = 0x13
ATOMIC_REPLY = 0x14
TERMINATE = 0x15
CLOSE = 0x16
RETIRE = 0x17
RETIRED = 0x18
ACK = 0x20
NACK = 0x21
REJECT = 0x22
PROBE = 0x23
PROBE_REPLY = 0x24
DEMAND = 0x25
CREDIT = 0x26

#: Bytes of the verification tag that precedes the type code.
TAG = 4
#: Bytes that UD puts between tag and type code of a reliable payload.
UD_RELIABLE = 8
#: Longest message that travels inside its Msg.
INLINE_LIMIT = 256
#: CSNs that an ACK tells about, in bytes of bitmap.
CONTROL_BITMAP = 16

_MSG = Struct(">BBBxIIIIQ")
_ADVERT = Struct(">BBxxI")
_RECEIVE = Struct(">IQQ")
_READ_REQ = Struct(">BxxxIIIIQQQ")
_ATOMIC = Struct(">BBxxIIIQQQ")
_ATOMIC_REPLY = Struct(">BxxxIQ")
_TERMINATE = Struct(">BBBxI")
_CLOSE = Struct(">BxxxII")
_RETIRE = Struct(">BxHI")
_RETIRED = Struct(">BxHII")
_ACK = Struct(">BBHIIIIIHBxIIIIQ")
_NACK = Struct(">BBHII")
_REJECT = Struct(">BBxxIIQ")
_PROBE = Struct(">BBHQI")
_TOTAL = Struct(">BxxxQ")
_DEMAND = Struct(">BxxxQQQ")

_ZERO = b"\0\0\0\0"
_HOLD_UNIT = 1000  # picoseconds
_MAX_HOLD = 0xFFFFFFFF
_MASK24 = 0xFFFFFF
_MAX_SIZE = (1 << 63) - 1  # lengths and totals: what a signed 64-bit number holds, as the engine computes with them
_STATUS = {int(status): status for status in Status}


def max_ack_bits(mtu: int) -> int:
    """How many DSNs the bitmaps of one Ack can span if the payload may have `mtu` bytes."""
    return (mtu - TAG - _ACK.size - CONTROL_BITMAP) // 2 * 8


def max_advert(mtu: int) -> int:
    """How many receives one RecvAdvert can hold if the payload may have `mtu` bytes, with or without UD."""
    return (mtu - TAG - UD_RELIABLE - _ADVERT.size) // _RECEIVE.size


def max_inline(mtu: int) -> int:
    """Longest message that fits into its Msg if the payload may have `mtu` bytes, with or without UD; at most 256."""
    return min(INLINE_LIMIT, mtu - TAG - UD_RELIABLE - _MSG.size)


def encode(control: Control) -> bytes:
    """Bytes of a control payload, without the tag. LocalProtocolError if a field does not fit its place."""
    try:
        data = _encode(control)
    except (StructError, OverflowError, TypeError) as error:
        raise LocalProtocolError(f"{control!r} does not fit its wire format: {error}") from None
    return data


def is_reliable(kind: cython.longlong) -> cython.bint:
    """Whether payloads of this type code belong into reliable control packets."""
    return 0x10 <= kind < 0x20


def _wrong(control: Control, field: str) -> LocalProtocolError:
    return LocalProtocolError(f"{control!r} does not fit its wire format: {field}")


def _fitting(control: Control, size: int) -> int:
    if size > _MAX_SIZE:
        raise _wrong(control, "a length or total has 63 bits")
    return size


def _encode(control: Control) -> bytes:
    if isinstance(control, Ack):
        return _encode_ack(control)
    if isinstance(control, Msg):
        return _encode_msg(control)
    if isinstance(control, Probe):
        return _PROBE.pack(PROBE, 0, control.entropy, control.nonce, 0)
    if isinstance(control, ProbeReply):
        return _PROBE.pack(PROBE_REPLY, control.marked, control.entropy, control.nonce, _hold(control.hold))
    if isinstance(control, Demand):
        totals = (control.total, control.unsolicited, control.lost)
        return _DEMAND.pack(DEMAND, *[_fitting(control, total) for total in totals])
    if isinstance(control, Credit):
        return _TOTAL.pack(CREDIT, _fitting(control, control.total))
    if isinstance(control, RecvAdvert):
        return _ADVERT.pack(RECV_ADVERT, len(control.receives), control.number) + b"".join(
            [_RECEIVE.pack(item.rkey, item.address, _fitting(control, item.length)) for item in control.receives]
        )
    if isinstance(control, ReadReq):
        return _READ_REQ.pack(
            READ_REQ, control.number, control.edge, control.rkey, control.reply_rkey, control.address,
            control.reply_address, _fitting(control, control.length),
        )  # fmt: skip
    if isinstance(control, Atomic):
        if not 0 <= control.op <= CMP_SWAP:
            raise _wrong(control, "op")
        return _ATOMIC.pack(
            ATOMIC, control.op, control.number, control.edge, control.rkey, control.address, control.operand,
            control.compare,
        )  # fmt: skip
    if isinstance(control, AtomicReply):
        return _ATOMIC_REPLY.pack(ATOMIC_REPLY, control.number, control.value)
    if isinstance(control, Terminate):
        if control.status not in _STATUS or not 0 <= control.kind <= 2:
            raise _wrong(control, "status or kind")
        return _TERMINATE.pack(TERMINATE, control.status, control.kind, control.number)
    if isinstance(control, Close):
        return _CLOSE.pack(CLOSE, control.final_dsn, control.final_csn)
    if isinstance(control, Retire):
        if control.qpn > _MASK24:
            raise _wrong(control, "qpn")
        return _RETIRE.pack(RETIRE, control.path, control.qpn)
    if isinstance(control, Retired):
        if control.qpn > _MASK24 or control.new_qpn > _MASK24:
            raise _wrong(control, "qpn or new_qpn")
        return _RETIRED.pack(RETIRED, control.path, control.qpn, control.new_qpn)
    if isinstance(control, Nack):
        if control.psn > _MASK24 or not 0 <= control.reason <= OUT_OF_ORDER:
            raise _wrong(control, "psn or reason")
        return _NACK.pack(NACK, control.reason, control.entropy, control.seq, control.psn)
    if isinstance(control, Reject):
        if control.status not in _STATUS:
            raise _wrong(control, "status")
        return _REJECT.pack(REJECT, control.status, control.seq, control.rkey, control.address)
    raise LocalProtocolError(f"{control!r} is no control payload")


def _hold(hold: cython.longlong) -> cython.longlong:
    """Picoseconds to nanoseconds in 32 bits, saturating at both ends."""
    return max(0, min(hold // _HOLD_UNIT, _MAX_HOLD))


def _encode_ack(ack: Ack) -> bytes:
    size: cython.longlong = (ack.bits + 7) >> 3
    control_size: cython.longlong = len(ack.control_received)
    if ack.bits < 0 or len(ack.received) != size or len(ack.marked) != size:
        raise _wrong(ack, "received and marked need as many bytes as `bits` bits take")
    if not _canonical(ack.bits, ack.received, ack.marked):
        raise _wrong(ack, "received or marked has bits beyond `bits`")
    if control_size > CONTROL_BITMAP:
        raise _wrong(ack, "control_received")
    if not 0 <= ack.trigger_space <= SPACE_CONTROL or ack.trigger_psn > _MASK24:
        raise _wrong(ack, "trigger_space or trigger_psn")
    head = _ACK.pack(
        ACK, ack.trigger_space, ack.bits, ack.edge, ack.base, ack.control_edge, ack.trigger_seq, ack.trigger_psn,
        ack.trigger_entropy, control_size, _hold(ack.hold), ack.last_duplicate, ack.duplicates, ack.marked_packets,
        ack.marked_bytes,
    )  # fmt: skip
    return head + ack.control_received + ack.received + ack.marked


def _canonical(bits: cython.longlong, received: bytes, marked: bytes) -> cython.bint:
    """Whether the bits beyond `bits` in the last byte of both bitmaps are 0."""
    used: cython.longlong = bits & 7
    return used == 0 or (received[len(received) - 1] | marked[len(marked) - 1]) >> used == 0


def _encode_msg(msg: Msg) -> bytes:
    if not 0 <= msg.op <= OP_READ_RESPONSE:
        raise _wrong(msg, "op")
    length = _fitting(msg, msg.length)
    head = _MSG.pack(MSG, msg.op, msg.inline is not None, msg.number, msg.first, msg.count, msg.imm, length)
    if msg.inline is None:
        return head
    if len(msg.inline) != msg.length or msg.length > INLINE_LIMIT:
        raise _wrong(msg, f"inline must have `length` bytes, at most {INLINE_LIMIT}")
    return head + msg.inline


def decode(data: bytes, reliable: cython.bint) -> Control:
    """The record of a control payload without its tag. reliable: what the packet's opcode says. Raises WireError."""
    size: cython.longlong = len(data)
    if size == 0:
        raise WireError("control payload is empty")
    kind: cython.longlong = data[0]
    if is_reliable(kind) != reliable:
        raise WireError(f"control type {kind:#x} in a packet of the wrong kind")
    if kind == ACK:
        return _decode_ack(data)
    if kind == MSG:
        return _decode_msg(data)
    if kind == RECV_ADVERT:
        return _decode_advert(data)
    if kind in (PROBE, PROBE_REPLY):
        return _decode_probe(data)
    layout = _LAYOUTS.get(kind)
    if layout is None:
        raise WireError(f"control type {kind:#x} is unknown")
    if size != layout.size:
        raise WireError(f"control type {kind:#x} has {size} bytes instead of {layout.size}")
    values = layout.unpack(data)
    if kind == DEMAND:
        control: Control = Demand(_size(values[1]), _size(values[2]), _size(values[3]))
    elif kind == CREDIT:
        control = Credit(_size(values[1]))
    elif kind == READ_REQ:
        _, number, edge, rkey, reply_rkey, address, reply_address, length = values
        control = ReadReq(number, edge, rkey, address, _size(length), reply_rkey, reply_address)
    elif kind == ATOMIC:
        if values[1] > CMP_SWAP:
            raise WireError(f"atomic operation {values[1]} is unknown")
        control = Atomic(values[2], values[1], *values[3:])
    elif kind == ATOMIC_REPLY:
        control = AtomicReply(*values[1:])
    elif kind == TERMINATE:
        if values[2] > 2:
            raise WireError(f"TERMINATE of kind {values[2]} is unknown")
        control = Terminate(_status(values[1]), *values[2:])
    elif kind == CLOSE:
        control = Close(*values[1:])
    elif kind == RETIRE:
        control = Retire(values[1], _number24(values[2]))
    elif kind == RETIRED:
        control = Retired(values[1], _number24(values[2]), _number24(values[3]))
    elif kind == NACK:
        if values[1] > OUT_OF_ORDER:
            raise WireError(f"NACK for reason {values[1]} is unknown")
        control = Nack(values[3], _number24(values[4]), values[2], values[1])
    else:
        control = Reject(values[2], values[3], values[4], _status(values[1]))
    # Pad bytes of a layout are skipped by unpack: only packing again shows whether they were 0.
    if layout.pack(*values) != data:
        raise WireError(f"control type {kind:#x} has reserved bytes that are not 0")
    return control


_LAYOUTS = {
    READ_REQ: _READ_REQ, ATOMIC: _ATOMIC, ATOMIC_REPLY: _ATOMIC_REPLY, TERMINATE: _TERMINATE, CLOSE: _CLOSE,
    RETIRE: _RETIRE, RETIRED: _RETIRED, NACK: _NACK, REJECT: _REJECT, DEMAND: _DEMAND, CREDIT: _TOTAL,
}  # fmt: skip


def _status(value: int) -> Status:
    status = _STATUS.get(value)
    if status is None:
        raise WireError(f"completion status {value} is unknown")
    return status


def _size(value: int) -> int:
    if value > _MAX_SIZE:
        raise WireError(f"{value:#x} is no length or total: it has more than 63 bits")
    return value


def _number24(value: int) -> int:
    if value > _MASK24:
        raise WireError(f"{value:#x} is no 24-bit number")
    return value


def _decode_ack(data: bytes) -> Ack:
    size: cython.longlong = len(data)
    fixed: cython.longlong = _ACK.size
    if size < fixed:
        raise WireError(f"ACK has {size} bytes, needs {fixed}")
    ack = Ack()
    (
        _, space, bits, ack.edge, ack.base, ack.control_edge, ack.trigger_seq, psn, ack.trigger_entropy, control_bytes,
        hold, ack.last_duplicate, ack.duplicates, ack.marked_packets, marked_bytes,
    ) = _ACK.unpack_from(data)  # fmt: skip
    control_size: cython.longlong = control_bytes
    count: cython.longlong = bits
    width: cython.longlong = (count + 7) >> 3
    received: cython.longlong = fixed + control_size
    marked: cython.longlong = received + width
    if space > SPACE_CONTROL or psn > _MASK24 or control_size > CONTROL_BITMAP or data[_ACK_RESERVED]:
        raise WireError("ACK has a field that is out of range")
    if size != marked + width:
        raise WireError(f"ACK of {count} bits has {size} bytes instead of {marked + width}")
    ack.trigger_space = space
    ack.trigger_psn = psn
    ack.bits = count
    ack.marked_bytes = _size(marked_bytes)
    ack.hold = hold * _HOLD_UNIT
    ack.control_received = data[fixed:received]
    ack.received = data[received:marked]
    ack.marked = data[marked:size]
    if not _canonical(count, ack.received, ack.marked):
        raise WireError("ACK has bits beyond the end of its bitmaps")
    return ack


_ACK_RESERVED = 27  # offset of the one reserved byte


def _decode_msg(data: bytes) -> Msg:
    size: cython.longlong = len(data)
    fixed: cython.longlong = _MSG.size
    if size < fixed:
        raise WireError(f"MSG has {size} bytes, needs {fixed}")
    _, op, is_inline, number, first, count, imm, length = _MSG.unpack_from(data)
    if op > OP_READ_RESPONSE or is_inline > 1 or data[3]:
        raise WireError("MSG has a field that is out of range")
    inline: bytes | None = None
    if is_inline:
        inline = data[fixed:size]
        if length > INLINE_LIMIT or length != size - fixed:
            raise WireError(f"MSG of {length} bytes carries {size - fixed}")
    elif size != fixed:
        raise WireError(f"MSG has {size} bytes instead of {fixed}")
    return Msg(number, op, first, count, _size(length), imm, inline)


def _decode_advert(data: bytes) -> RecvAdvert:
    i: cython.longlong
    size: cython.longlong = len(data)
    fixed: cython.longlong = _ADVERT.size
    step: cython.longlong = _RECEIVE.size
    count: cython.longlong = data[1] if size > 1 else 0
    if size != fixed + count * step or data[2] or data[3]:
        raise WireError(f"RECV_ADVERT of {count} receives has {size} bytes or reserved bytes that are not 0")
    _, _, number = _ADVERT.unpack_from(data)
    receives = []
    for i in range(count):
        rkey, address, length = _RECEIVE.unpack_from(data, fixed + i * step)
        receives.append(Receive(rkey, address, _size(length)))
    return RecvAdvert(number, tuple(receives))


def _decode_probe(data: bytes) -> Probe | ProbeReply:
    if len(data) != _PROBE.size:
        raise WireError(f"PROBE or PROBE_REPLY has {len(data)} bytes instead of {_PROBE.size}")
    kind, marked, entropy, nonce, hold = _PROBE.unpack(data)
    if kind == PROBE:
        if marked or hold:
            raise WireError("PROBE has reserved bytes that are not 0")
        return Probe(nonce, entropy)
    if marked > 1:
        raise WireError(f"PROBE_REPLY has the flags {marked:#x}")
    return ProbeReply(nonce, entropy, hold * _HOLD_UNIT, marked == 1)
