"""Our codec against scapy's: what one writes the other reads, field for field, and both compute one ICRC."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.wire_packets import assert_same, packets
from transport import headers
from transport.control import ACK_FIELDS, Ack, Control, Msg, Receive, RecvAdvert
from transport.packet import CNP, CONTROL, DATA, Packet
from transport.wire import QKEY, Codec

pytest.importorskip("scapy", reason="scapy is not installed")

from scapy.contrib.roce import AETH, BTH, CNPPadding
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from transport import scapy_layers

MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
LAYER_OF = {type(layer).__name__: layer for layer in (item() for item in scapy_layers.LAYERS.values())}


def expected(control: Control) -> dict[str, Any]:
    """Fields that the scapy layer of a control payload must show."""
    names = ACK_FIELDS if isinstance(control, Ack) else tuple(field.name for field in fields(control))
    values = {name: getattr(control, name) for name in names}
    if "hold" in values:
        values["hold"] //= 1000
    if "marked" in values and not isinstance(control, Ack):
        values["marked"] = int(values["marked"])
    if isinstance(control, Msg):
        inline = values.pop("inline")
        values |= {"inlined": 0} if inline is None else {"inlined": 1, "data": inline}
    if isinstance(control, RecvAdvert):
        values |= {"count": len(control.receives)}
        values["receives"] = [expected(item) for item in control.receives]
    return values


def shown(layer: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The same fields as scapy read them."""
    found = {name: layer.getfieldval(name) for name in values}
    if "receives" in found:
        names = [field.name for field in fields(Receive)]
        found["receives"] = [{name: item.getfieldval(name) for name in names} for item in found["receives"]]
    return found


def control_layer(control: Control) -> Any:
    values = expected(control)
    if "receives" in values:
        values["receives"] = [scapy_layers.Receive(**item) for item in values["receives"]]
    return type(LAYER_OF[type(control).__name__])(**values)


@given(packet=packets(), ud=st.booleans(), identification=st.integers(0, 0xFFFF))
def test_scapy_reads_what_we_write(packet: Packet, ud: bool, identification: int) -> None:
    index = packet.count - 1
    sent = packet.split(index, 1) if packet.kind == DATA else packet
    frame = Codec(ud=ud).frame(packet, index, identification)
    seen = Ether(frame)
    bth = seen[BTH]
    last = packet.ack_request, packet.solicited
    assert (bth.dqpn, bth.psn, bth.pkey, bth.version, bth.migreq) == (sent.qpn, sent.psn, 0xFFFF, 0, 0)
    assert (bool(bth.ackreq), bool(bth.solicited)) == last
    assert (bth.fecn, bth.becn) == (0, int(sent.kind == CNP))
    assert seen[UDP].sport == sent.entropy
    payload = sent.segment_payload(0)
    body = bytes(payload) if payload is not None else b""
    if packet.kind == CNP:
        assert isinstance(bth.payload, CNPPadding)
    elif ud:
        assert (bth.opcode, bth[scapy_layers.DETH].qkey, bth[scapy_layers.DETH].srcqp) == (0x64, QKEY, sent.src_qpn)
        assert bth[scapy_layers.Tag].tag == sent.tag
        if packet.kind == DATA:
            data = bth[scapy_layers.UDData]
            assert (data.dsn, data.rkey, data.address) == (sent.seq, sent.rkey, sent.address & (1 << 64) - 1)
            assert bytes(data.payload) == body + bytes(bth.padcount)
        elif packet.kind == CONTROL:
            assert bth[scapy_layers.UDControl].csn == sent.seq
    elif packet.kind == DATA:
        reth = bth[scapy_layers.RETH]
        assert bth.opcode == 0x2B
        assert (reth.va, reth.rkey, reth.dmalen) == (sent.address & (1 << 64) - 1, sent.rkey, sent.length)
        assert bth[scapy_layers.ImmDt].immediate == sent.seq
        assert bytes(bth[scapy_layers.ImmDt].payload) == body + bytes(bth.padcount)
    else:
        assert bth.opcode == (0x25 if packet.kind == CONTROL else 0x24)
        assert bth[scapy_layers.Tag].tag == sent.tag
        if packet.kind == CONTROL:
            assert bth[scapy_layers.ImmDt].immediate == sent.seq
    if packet.control is not None:
        layer = bth[type(LAYER_OF[type(packet.control).__name__])]
        values = expected(packet.control)
        assert shown(layer, values) == values
    bth.icrc = None  # have it computed
    assert bytes(seen) == frame


@given(packet=packets(), ud=st.booleans(), identification=st.integers(0, 0xFFFF), label=st.integers(0, 0xFFFFF))
def test_we_read_what_scapy_writes(packet: Packet, ud: bool, identification: int, label: int) -> None:
    index = packet.count - 1
    sent = packet.split(index, 1) if packet.kind == DATA else packet
    payload = sent.segment_payload(0)
    body = bytes(payload) if payload is not None else b""
    codec = Codec(ud=ud)
    tos = codec.traffic_class(sent)
    ip: Any
    if len(sent.src) == 4:
        ip = IP(src=".".join(map(str, sent.src)), dst=".".join(map(str, sent.dst)), tos=tos, id=identification, ttl=9)
    else:
        ip = IPv6(src=ipv6(sent.src), dst=ipv6(sent.dst), tc=tos, fl=label, hlim=9)
    bth = BTH(dqpn=sent.qpn, psn=sent.psn, ackreq=sent.ack_request, solicited=sent.solicited)
    rest: Any
    if packet.kind == CNP:
        bth.opcode, bth.becn = 0x81, 1
        rest = CNPPadding()
    elif packet.kind == DATA:
        address = sent.address & (1 << 64) - 1
        if ud:
            data = scapy_layers.UDData(dsn=sent.seq, rkey=sent.rkey, address=address)
            rest = scapy_layers.DETH(srcqp=sent.src_qpn) / scapy_layers.Tag(tag=sent.tag) / data
        else:
            reth = scapy_layers.RETH(va=address, rkey=sent.rkey, dmalen=sent.length)
            rest = reth / scapy_layers.ImmDt(immediate=sent.seq)
        rest = rest / Raw(body)
        bth.opcode = 0x64 if ud else 0x2B
    else:
        assert sent.control is not None
        rest = control_layer(sent.control)
        if ud:
            rest = scapy_layers.UDControl(csn=sent.seq) / rest if packet.kind == CONTROL else rest
            rest = scapy_layers.DETH(srcqp=sent.src_qpn) / scapy_layers.Tag(tag=sent.tag) / rest
        else:
            rest = scapy_layers.Tag(tag=sent.tag) / rest
            rest = scapy_layers.ImmDt(immediate=sent.seq) / rest if packet.kind == CONTROL else rest
        bth.opcode = 0x64 if ud else 0x25 if packet.kind == CONTROL else 0x24
    bth.padcount = -len(bytes(rest)) % 4
    rest = rest / Raw(bytes(bth.padcount)) if bth.padcount else rest
    frame = bytes(Ether(**MACS) / ip / UDP(sport=sent.entropy, dport=4791, chksum=0) / bth / rest)
    assert_same(codec.parse_frame(frame), packet, index, ud)
    assert headers.parse_headers(frame).icrc_valid


def ipv6(address: bytes) -> str:
    return ":".join(address[at : at + 2].hex() for at in range(0, 16, 2))


@pytest.mark.parametrize("address", [bytes([10, 0, 0, 1]), bytes(range(16))])
def test_the_icrc_that_scapy_computes_is_never_nothing(address: bytes) -> None:
    packet = Packet()
    packet.src = packet.dst = address
    packet.kind = CNP
    seen = Ether(Codec().frame(packet))
    seen[BTH].icrc = None
    assert bytes(seen)[-4:] != bytes(4)


@pytest.mark.parametrize("syndrome", [0x1F, 0x60, 0x62, 0x21])
def test_we_read_the_aeth_that_scapy_writes(syndrome: int) -> None:
    frame = bytes(
        Ether(**MACS) / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=49152, dport=4791, chksum=0)
        / BTH(opcode=0x11, dqpn=5, psn=6) / AETH(syndrome=syndrome, msn=7)
    )  # fmt: skip
    parsed = headers.parse_headers(frame)
    assert parsed.aeth == headers.Aeth(syndrome, 7)
    assert parsed.icrc_valid
    assert len(frame) == 62
