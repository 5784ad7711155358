"""The RoCEv2 layers that scapy.contrib.roce lacks: RETH, ImmDt, DETH, and our control payloads. Needs scapy.

Importing this module binds them to scapy's BTH, so that scapy dissects, shows and builds packets of ours. It shares no
code with transport.wire: the two check each other. scapy is GPL-2, so nothing else imports this module (NOTICE).
"""

from __future__ import annotations

from typing import Any

from scapy.contrib.roce import BTH
from scapy.fields import (
    ByteEnumField,
    ByteField,
    ConditionalField,
    FieldLenField,
    IntField,
    LongField,
    PacketListField,
    ShortField,
    StrLenField,
    ThreeBytesField,
    XIntField,
    XLongField,
)
from scapy.packet import NoPayload, Packet, Raw, bind_layers

UC_SEND_ONLY = 0x24
UC_SEND_ONLY_IMMEDIATE = 0x25
UC_WRITE_ONLY = 0x2A
UC_WRITE_ONLY_IMMEDIATE = 0x2B
UD_SEND_ONLY = 0x64

_WRITES = (0x06, 0x0A, 0x0B, 0x0C, 0x26, 0x2A, 0x2B)
_WRITES_WITH_IMMEDIATE = (0x0B, 0x2B)
_OTHERS_WITH_IMMEDIATE = (0x03, 0x05, 0x09, 0x23, 0x25, 0x29)

_TYPES = {
    0x01: "UD_DATA", 0x02: "UD_CONTROL", 0x10: "MSG", 0x11: "RECV_ADVERT", 0x12: "READ_REQ", 0x13: "ATOMIC",
    0x14: "ATOMIC_REPLY", 0x15: "TERMINATE", 0x16: "CLOSE", 0x17: "RETIRE", 0x18: "RETIRED", 0x20: "ACK", 0x21: "NACK",
    0x22: "REJECT", 0x23: "PROBE", 0x24: "PROBE_REPLY", 0x25: "DEMAND", 0x26: "CREDIT",
}  # fmt: skip


class RETH(Packet):
    name = "RETH"
    fields_desc = [XLongField("va", 0), XIntField("rkey", 0), IntField("dmalen", 0)]

    def guess_payload_class(self, payload: bytes) -> Any:
        bth = self.underlayer
        if isinstance(bth, BTH) and bth.opcode in _WRITES_WITH_IMMEDIATE:
            return ImmDt
        return super().guess_payload_class(payload)


class ImmDt(Packet):
    name = "ImmDt"
    fields_desc = [XIntField("immediate", 0)]

    def guess_payload_class(self, payload: bytes) -> Any:
        bth = self.underlayer
        if isinstance(bth, BTH) and bth.opcode == UC_SEND_ONLY_IMMEDIATE:
            return Tag
        return super().guess_payload_class(payload)


class DETH(Packet):
    name = "DETH"
    fields_desc = [XIntField("qkey", 0x1EE7C0DE), ByteField("reserved", 0), ThreeBytesField("srcqp", 0)]

    def guess_payload_class(self, payload: bytes) -> Any:
        return Tag


class Tag(Packet):
    """The verification tag; the type code behind it says what follows."""

    name = "polyroce tag"
    fields_desc = [XIntField("tag", 0)]

    def guess_payload_class(self, payload: bytes) -> Any:
        return _guess(payload)


class _Typed(Packet):
    """A payload that starts with its type code. Only padding follows it, as Raw: the ICRC covers it."""

    def guess_payload_class(self, payload: bytes) -> Any:
        return Raw


class UDData(_Typed):
    """What UC has in RETH and ImmDt. Data follows, and padding."""

    name = "polyroce UD data"
    fields_desc = [
        ByteEnumField("type", 0x01, _TYPES), ThreeBytesField("reserved", 0), XIntField("dsn", 0), XIntField("rkey", 0),
        XLongField("address", 0),
    ]  # fmt: skip


class UDControl(_Typed):
    """What UC has in ImmDt. A reliable payload follows, from its type code on."""

    name = "polyroce UD control"
    fields_desc = [ByteEnumField("type", 0x02, _TYPES), ThreeBytesField("reserved", 0), XIntField("csn", 0)]

    def guess_payload_class(self, payload: bytes) -> Any:
        return _guess(payload)


class Msg(_Typed):
    name = "polyroce MSG"
    fields_desc = [
        ByteEnumField("type", 0x10, _TYPES), ByteField("op", 0), ByteField("inlined", 0), ByteField("reserved", 0),
        IntField("number", 0), XIntField("first", 0), IntField("count", 0), XIntField("imm", 0), LongField("length", 0),
        ConditionalField(
            StrLenField("data", b"", length_from=lambda packet: packet.length), lambda packet: packet.inlined
        ),
    ]  # fmt: skip


class Receive(Packet):
    name = "polyroce receive"
    fields_desc = [XIntField("rkey", 0), XLongField("address", 0), LongField("length", 0)]

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


class RecvAdvert(_Typed):
    name = "polyroce RECV_ADVERT"
    fields_desc = [
        ByteEnumField("type", 0x11, _TYPES), FieldLenField("count", None, count_of="receives", fmt="B"),
        ShortField("reserved", 0), IntField("number", 0),
        PacketListField("receives", [], Receive, count_from=lambda packet: packet.count),
    ]  # fmt: skip


class ReadReq(_Typed):
    name = "polyroce READ_REQ"
    fields_desc = [
        ByteEnumField("type", 0x12, _TYPES), ThreeBytesField("reserved", 0), IntField("number", 0),
        XIntField("edge", 0), XIntField("rkey", 0), XIntField("reply_rkey", 0), XLongField("address", 0),
        XLongField("reply_address", 0), LongField("length", 0),
    ]  # fmt: skip


class Atomic(_Typed):
    name = "polyroce ATOMIC"
    fields_desc = [
        ByteEnumField("type", 0x13, _TYPES), ByteField("op", 0), ShortField("reserved", 0), IntField("number", 0),
        XIntField("edge", 0), XIntField("rkey", 0), XLongField("address", 0), LongField("operand", 0),
        LongField("compare", 0),
    ]  # fmt: skip


class AtomicReply(_Typed):
    name = "polyroce ATOMIC_REPLY"
    fields_desc = [
        ByteEnumField("type", 0x14, _TYPES), ThreeBytesField("reserved", 0), IntField("number", 0),
        LongField("value", 0),
    ]  # fmt: skip


class Terminate(_Typed):
    name = "polyroce TERMINATE"
    fields_desc = [
        ByteEnumField("type", 0x15, _TYPES), ByteField("status", 0), ByteField("kind", 0), ByteField("reserved", 0),
        IntField("number", 0),
    ]  # fmt: skip


class Close(_Typed):
    name = "polyroce CLOSE"
    fields_desc = [
        ByteEnumField("type", 0x16, _TYPES), ThreeBytesField("reserved", 0), XIntField("final_dsn", 0),
        XIntField("final_csn", 0),
    ]  # fmt: skip


class Retire(_Typed):
    name = "polyroce RETIRE"
    fields_desc = [
        ByteEnumField("type", 0x17, _TYPES), ByteField("reserved", 0), ShortField("path", 0), XIntField("qpn", 0),
    ]  # fmt: skip


class Retired(_Typed):
    name = "polyroce RETIRED"
    fields_desc = [
        ByteEnumField("type", 0x18, _TYPES), ByteField("reserved", 0), ShortField("path", 0), XIntField("qpn", 0),
        XIntField("new_qpn", 0),
    ]  # fmt: skip


def _bitmap_size(packet: Packet) -> int:
    return int((packet.bits + 7) // 8)


class Ack(_Typed):
    """hold is in nanoseconds."""

    name = "polyroce ACK"
    fields_desc = [
        ByteEnumField("type", 0x20, _TYPES), ByteField("trigger_space", 0), ShortField("bits", 0), XIntField("edge", 0),
        XIntField("base", 0), XIntField("control_edge", 0), XIntField("trigger_seq", 0), IntField("trigger_psn", 0),
        ShortField("trigger_entropy", 0), FieldLenField("control_size", None, length_of="control_received", fmt="B"),
        ByteField("reserved", 0), IntField("hold", 0), XIntField("last_duplicate", 0), IntField("duplicates", 0),
        IntField("marked_packets", 0), LongField("marked_bytes", 0),
        StrLenField("control_received", b"", length_from=lambda packet: packet.control_size),
        StrLenField("received", b"", length_from=_bitmap_size), StrLenField("marked", b"", length_from=_bitmap_size),
    ]  # fmt: skip


class Nack(_Typed):
    name = "polyroce NACK"
    fields_desc = [
        ByteEnumField("type", 0x21, _TYPES), ByteField("reason", 0), ShortField("entropy", 0), XIntField("seq", 0),
        IntField("psn", 0),
    ]  # fmt: skip


class Reject(_Typed):
    name = "polyroce REJECT"
    fields_desc = [
        ByteEnumField("type", 0x22, _TYPES), ByteField("status", 0), ShortField("reserved", 0), XIntField("seq", 0),
        XIntField("rkey", 0), XLongField("address", 0),
    ]  # fmt: skip


class Probe(_Typed):
    name = "polyroce PROBE"
    fields_desc = [
        ByteEnumField("type", 0x23, _TYPES), ByteField("marked", 0), ShortField("entropy", 0), XLongField("nonce", 0),
        IntField("hold", 0),
    ]  # fmt: skip


class ProbeReply(Probe):
    """hold is in nanoseconds."""

    name = "polyroce PROBE_REPLY"
    fields_desc = [ByteEnumField("type", 0x24, _TYPES), *Probe.fields_desc[1:]]


class Demand(_Typed):
    name = "polyroce DEMAND"
    fields_desc = [
        ByteEnumField("type", 0x25, _TYPES), ThreeBytesField("reserved", 0), LongField("total", 0),
        LongField("unsolicited", 0), LongField("lost", 0),
    ]  # fmt: skip


class Credit(_Typed):
    name = "polyroce CREDIT"
    fields_desc = [ByteEnumField("type", 0x26, _TYPES), ThreeBytesField("reserved", 0), LongField("total", 0)]


#: The layer of each type code.
LAYERS: dict[int, type[Packet]] = {
    layer().type: layer
    for layer in (
        UDData, UDControl, Msg, RecvAdvert, ReadReq, Atomic, AtomicReply, Terminate, Close, Retire, Retired, Ack, Nack,
        Reject, Probe, ProbeReply, Demand, Credit,
    )
}  # fmt: skip


def _guess(payload: bytes) -> Any:
    return LAYERS.get(payload[0], Raw) if payload else NoPayload


for _opcode in _WRITES:
    bind_layers(BTH, RETH, opcode=_opcode)
for _opcode in _OTHERS_WITH_IMMEDIATE:
    bind_layers(BTH, ImmDt, opcode=_opcode)
bind_layers(BTH, Tag, opcode=UC_SEND_ONLY)
bind_layers(BTH, DETH, opcode=UD_SEND_ONLY)
