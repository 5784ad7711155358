"""Packets of ours to bytes and back, and what becomes of bytes that are not ours."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.wire_packets import acks, assert_same, holds, number, packets, receives
from transport import headers
from transport.completion import Status
from transport.control import (
    Ack,
    Atomic,
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
    Terminate,
)
from transport.errors import LocalProtocolError, WireError
from transport.packet import CE, CLASS_CONTROL, CNP, CONTROL, DATA, DATAGRAM, ECT_0, Packet
from transport.wire import (
    EXACT,
    ID0,
    OFF,
    UNKNOWN_ID,
    Codec,
    max_ack_bits,
    max_advert,
    max_inline,
    max_ud_segment,
)

MTUS = (256, 512, 1024, 2048, 4096)
V4 = (bytes([192, 168, 77, 1]), bytes([192, 168, 77, 2]))
V6 = (bytes(range(16)), bytes(range(100, 116)))
modes = st.sampled_from([EXACT, ID0, OFF])


def datagram(codec: Codec, packet: Packet, index: int = 0) -> bytes:
    """The UDP payload of a segment, as a socket would gather it."""
    header, payload, trailer = codec.encode(packet, index)
    return header + bytes(payload or b"") + trailer


def decode(codec: Codec, data: bytes | bytearray, packet: Packet, offset: int = 0, length: int | None = None) -> Packet:
    length = len(data) if length is None else length
    return codec.decode(data, offset, length, packet.src, packet.dst, packet.entropy, codec.traffic_class(packet))


def data_packet(length: int = 0, family: tuple[bytes, bytes] = V4) -> Packet:
    packet = Packet()
    packet.src, packet.dst = family
    packet.entropy = 0xC001
    packet.qpn = 0x123456
    packet.psn = 7
    packet.seq = 9
    packet.rkey = 0xABCDEF01
    packet.address = 0x7F0000001000
    packet.payload = bytes(i & 0xFF for i in range(length))
    packet.length = packet.segment = packet.stride = length
    return packet


def control_packet(control: Control, kind: int = CONTROL, family: tuple[bytes, bytes] = V4) -> Packet:
    packet = Packet()
    packet.kind = kind
    packet.src, packet.dst = family
    packet.entropy = 0xC002
    packet.qpn = 0x654321
    packet.tag = 0x01020304
    packet.control = control
    return packet


@given(packet=packets(), mode=modes, ud=st.booleans())
def test_every_segment_comes_back_from_its_datagram_as_it_was(packet: Packet, mode: int, ud: bool) -> None:
    sender, receiver = Codec(icrc=mode, ud=ud), Codec(icrc=mode)
    for index in range(packet.count):
        data = datagram(sender, packet, index)
        assert len(data) % 4 == 0
        assert_same(decode(receiver, data, packet), packet, index, ud)


@given(packet=packets(), mode=modes, ud=st.booleans(), linktype=st.sampled_from([1, 101]), identification=number(16))
def test_every_segment_comes_back_from_its_frame_as_it_was(
    packet: Packet, mode: int, ud: bool, linktype: int, identification: int
) -> None:
    codec = Codec(icrc=mode, ud=ud)
    for index in range(packet.count):
        frame = codec.frame(packet, index, identification, linktype)
        assert_same(codec.parse_frame(frame, linktype), packet, index, ud)


@given(packet=packets(), before=st.binary(max_size=9), after=st.binary(max_size=40), ud=st.booleans())
def test_a_datagram_in_a_slab_is_read_where_it_is_and_not_beyond(
    packet: Packet, before: bytes, after: bytes, ud: bool
) -> None:
    data = datagram(Codec(ud=ud), packet)
    slab = bytearray(before + data + after)
    found = decode(Codec(), slab, packet, len(before), len(data))
    assert_same(found, packet, 0, ud)
    if packet.kind == DATA:
        assert found.payload is slab
        assert len(before) < found.offset <= len(before) + len(data) - 4 - found.length


def test_a_payload_is_handed_on_without_a_copy() -> None:
    packet = data_packet(64)
    packet.payload = bytearray(64)
    _, payload, _ = Codec().encode(packet, 0)
    assert payload is not None
    packet.payload[3] = 77
    assert payload[3] == 77


def test_a_payload_of_wider_elements_is_taken_as_bytes() -> None:
    packet = data_packet(16)
    packet.payload = memoryview(bytes(range(32))).cast("I")
    packet.offset = 8
    _, payload, _ = Codec().encode(packet, 0)
    assert payload == bytes(range(8, 24))


@pytest.mark.parametrize("length", [0, 1, 300, 5000])
def test_bytes_that_exist_only_in_number_are_zeros_on_the_wire(length: int) -> None:
    packet = data_packet(length)
    packet.payload = None
    found = decode(Codec(), datagram(Codec(), packet), packet)
    view = found.segment_payload(0)
    assert view is not None
    assert bytes(view) == bytes(length)


@pytest.mark.parametrize(
    ("length", "size"), [(0, 78), (1, 82), (4, 82), (5, 86), (8, 86), (4096, 4174)]
)  # 74 B for a WRITE ONLY of nothing, and 4 for the immediate
def test_frame_lengths_without_fcs(length: int, size: int) -> None:
    assert len(Codec().frame(data_packet(length))) == size
    assert len(Codec().frame(data_packet(length, V6))) == size + 20


def test_a_write_of_nothing_takes_one_psn_and_says_length_0() -> None:
    parsed = headers.parse_headers(Codec().frame(data_packet(0)))
    assert parsed.reth == headers.Reth(0x7F0000001000, 0xABCDEF01, 0)
    assert (parsed.opcode, parsed.psn, parsed.immediate, len(parsed.payload)) == (0x2B, 7, 9, 0)


def test_sequence_psn_and_address_wrap_inside_a_run() -> None:
    packet = data_packet(8)
    packet.count, packet.segment, packet.stride = 4, 2, 2
    packet.psn, packet.seq, packet.address = 0xFFFFFE, 0xFFFFFFFE, (1 << 64) - 4
    found = [decode(Codec(), datagram(Codec(), packet, i), packet) for i in range(4)]
    assert [item.psn for item in found] == [0xFFFFFE, 0xFFFFFF, 0, 1]
    assert [item.seq for item in found] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    assert [item.address for item in found] == [(1 << 64) - 4, (1 << 64) - 2, 0, 2]


@pytest.mark.parametrize(
    ("packet", "opcode", "ud_opcode"),
    [
        (data_packet(5), 0x2B, 0x64),
        (control_packet(Close(1, 2)), 0x25, 0x64),
        (control_packet(Probe(1, 2), DATAGRAM), 0x24, 0x64),
        (control_packet(Close(1, 2), CNP), 0x81, 0x81),
    ],
)
def test_each_kind_has_its_opcode(packet: Packet, opcode: int, ud_opcode: int) -> None:
    assert datagram(Codec(), packet)[0] == opcode
    assert datagram(Codec(ud=True), packet)[0] == ud_opcode


@pytest.mark.parametrize("family", [V4, V6])
def test_class_and_ecn_stand_in_the_ip_header(family: tuple[bytes, bytes]) -> None:
    codec = Codec(data_dscp=10, control_dscp=40)
    packet = data_packet(4, family)
    packet.ecn = ECT_0
    parsed = headers.parse_headers(codec.frame(packet))
    assert (parsed.dscp, parsed.ecn) == (10, ECT_0)
    packet.priority, packet.ecn = CLASS_CONTROL, CE
    parsed = headers.parse_headers(codec.frame(packet))
    assert (parsed.dscp, parsed.ecn) == (40, CE)
    found = codec.parse_frame(codec.frame(packet))
    assert (found.priority, found.ecn) == (CLASS_CONTROL, CE)


def test_a_cnp_is_the_one_of_rocev2() -> None:
    packet = control_packet(Close(0, 0), CNP)
    parsed = headers.parse_headers(Codec().frame(packet))
    assert (parsed.opcode, parsed.becn, parsed.fecn, parsed.qpn) == (0x81, True, False, 0x654321)
    assert bytes(parsed.payload) == bytes(16)


# ICRC modes


@given(packet=packets(families=(4,)), identification=st.integers(1, 0xFFFF))
def test_id0_ignores_an_identification_that_exact_needs(packet: Packet, identification: int) -> None:
    sender = Codec(icrc=ID0)
    frame = sender.frame(packet, 0, identification)
    assert_same(Codec(icrc=ID0).parse_frame(frame), packet, 0)
    with pytest.raises(WireError, match="ICRC"):
        Codec(icrc=EXACT).parse_frame(frame)
    exact = Codec(icrc=EXACT).frame(packet, 0, identification)
    assert headers.parse_headers(exact).icrc_valid
    with pytest.raises(WireError, match="ICRC"):
        Codec(icrc=ID0).parse_frame(exact)


@given(packet=packets())
def test_with_identification_0_and_over_ipv6_both_modes_agree(packet: Packet) -> None:
    assert datagram(Codec(icrc=EXACT), packet) == datagram(Codec(icrc=ID0), packet)


def test_an_identification_that_nobody_knows_leaves_ipv4_unchecked_and_ipv6_checked() -> None:
    for family, checked in ((V4, False), (V6, True)):
        packet = data_packet(8, family)
        data = bytearray(datagram(Codec(), packet))
        data[-1] ^= 1
        codec = Codec()
        if checked:
            with pytest.raises(WireError, match="ICRC"):
                codec.decode(data, 0, len(data), *family, packet.entropy, 0, UNKNOWN_ID)
        else:
            assert codec.decode(data, 0, len(data), *family, packet.entropy, 0, UNKNOWN_ID).length == 8
        with pytest.raises(WireError, match="ICRC"):
            codec.decode(data, 0, len(data), *family, packet.entropy)


@given(packet=packets())
def test_off_sends_4_zero_bytes_and_looks_at_none(packet: Packet) -> None:
    data = bytearray(datagram(Codec(icrc=OFF), packet))
    assert data[-4:] == bytes(4)
    data[-4:] = b"\1\2\3\4"
    assert_same(decode(Codec(icrc=OFF), data, packet), packet, 0)
    with pytest.raises(WireError, match="ICRC"):
        decode(Codec(), data, packet)


@given(packet=packets(), bit=st.integers(0), ud=st.booleans())
def test_any_flipped_bit_is_found_but_those_a_switch_may_change(packet: Packet, bit: int, ud: bool) -> None:
    data = bytearray(datagram(Codec(ud=ud), packet))
    at, shift = divmod(bit % (len(data) * 8), 8)
    data[at] ^= 1 << shift
    if at == 4:  # FECN, BECN and the reserved bits behind them
        assert_same(decode(Codec(), data, packet), packet, 0, ud)
    else:
        with pytest.raises(WireError):
            decode(Codec(), data, packet)


@given(packet=packets(), field=st.sampled_from(["src", "dst", "entropy"]))
def test_a_datagram_of_another_flow_has_another_icrc(packet: Packet, field: str) -> None:
    data = datagram(Codec(), packet)
    other = packet.copy()
    if field == "entropy":
        other.entropy ^= 1
    else:
        address = bytearray(getattr(packet, field))
        address[-1] ^= 1
        setattr(other, field, bytes(address))
    with pytest.raises(WireError, match="ICRC"):
        decode(Codec(), data, other)


# Bytes that are not ours


def outcome(codec: Codec, data: bytes, offset: int = 0, length: int | None = None) -> Packet | str:
    """The packet, or the text of its WireError. Any other exception fails the test that asks."""
    try:
        return codec.decode(data, offset, len(data) if length is None else length, *V4, 0xC000)
    except WireError as error:
        return str(error)


def canonical(data: bytes) -> bytes:
    """A datagram without what may differ between equal packets: MigReq, P_Key membership, reserved bits, padding."""
    out = bytearray(data)
    pad = out[1] >> 4 & 3
    out[1] &= 0xBF
    out[2] |= 0x80
    out[4] = 0
    out[8] &= 0x80
    if out[0] == 0x64:
        out[16] = 0
    if out[0] == 0x81:
        out[12:28] = bytes(16)
    out[len(out) - 4 - pad :] = bytes(4 + pad)
    return bytes(out)


OPCODES = st.sampled_from([0x2B, 0x25, 0x24, 0x64, 0x81]) | number(8)


@st.composite
def near_packets(draw: st.DrawFn) -> bytes:
    """Bytes that get far into the parser: a plausible BTH, type codes where they belong, then anything."""
    head = bytes([draw(OPCODES), draw(st.sampled_from([0, 0, 0x10, 0x80]) | number(8)), 0xFF, 0xFF])
    rest = draw(st.binary(min_size=8, max_size=8))
    if head[0] == 0x64:
        rest += (0x1EE7C0DE).to_bytes(4, "big") + draw(st.binary(min_size=4, max_size=4))
    if head[0] == 0x25:
        rest += draw(st.binary(min_size=4, max_size=4))
    if head[0] != 0x2B:
        types = st.sampled_from([1, 2, *range(0x10, 0x19), *range(0x20, 0x27)])
        rest += draw(st.binary(min_size=4, max_size=4)) + bytes([draw(types)])
    size = draw(st.integers(0, 120))
    body = draw(st.just(bytes(size)) | st.binary(min_size=size, max_size=size))
    return head + rest + body


@given(data=st.binary(max_size=120) | near_packets(), mode=modes)
def test_arbitrary_bytes_are_a_packet_or_a_wire_error(data: bytes, mode: int) -> None:
    found = outcome(Codec(icrc=mode), data)
    if isinstance(found, Packet) and mode == OFF:
        assert canonical(datagram(Codec(icrc=OFF, ud=data[0] == 0x64), found)) == canonical(data)


@given(
    packet=packets(families=(4,)), ud=st.booleans(), edits=st.lists(st.tuples(st.integers(0), number(8)), max_size=4)
)
def test_altered_packets_are_a_packet_with_just_these_bytes_or_a_wire_error(
    packet: Packet, ud: bool, edits: list[tuple[int, int]]
) -> None:
    codec = Codec(icrc=OFF, ud=ud)
    data = bytearray(datagram(codec, packet))
    for at, value in edits:
        data[at % len(data)] = value
    found = outcome(codec, bytes(data))
    if isinstance(found, Packet):
        again = datagram(Codec(icrc=OFF, ud=data[0] == 0x64), found)
        assert canonical(again) == canonical(bytes(data))


@given(packet=packets(families=(4,)), ud=st.booleans(), cut=st.integers(0), after=st.binary(max_size=8))
def test_a_cut_packet_is_judged_by_what_is_left_alone(packet: Packet, ud: bool, cut: int, after: bytes) -> None:
    codec = Codec(icrc=OFF, ud=ud)
    data = datagram(codec, packet)
    left = data[: cut % len(data)]
    alone, beside = outcome(codec, left), outcome(codec, left + after + bytes(200), 0, len(left))
    if isinstance(alone, str):
        assert isinstance(beside, str)
    else:
        assert isinstance(beside, Packet)
        assert datagram(codec, alone) == datagram(codec, beside)


@given(packet=packets(), ud=st.booleans(), cut=st.integers(0))
def test_a_cut_packet_has_a_wrong_icrc(packet: Packet, ud: bool, cut: int) -> None:
    data = datagram(Codec(ud=ud), packet)
    with pytest.raises(WireError):
        decode(Codec(), data[: cut % len(data)], packet)


@pytest.mark.parametrize(("offset", "length"), [(-1, 40), (0, 100), (60, 40), (1 << 40, 40), (0, -1), (0, 1 << 62)])
def test_a_place_outside_the_buffer_is_a_wire_error(offset: int, length: int) -> None:
    with pytest.raises(WireError):
        Codec().decode(bytes(64), offset, length, *V4, 0xC000)


@given(frame=st.binary(max_size=120), linktype=st.sampled_from([1, 101, 197]))
def test_arbitrary_frames_are_a_packet_or_a_wire_error(frame: bytes, linktype: int) -> None:
    for parse in (Codec(icrc=OFF).parse_frame, headers.parse_headers):
        with suppress(WireError):
            assert parse(frame, linktype).qpn >= 0


@given(packet=packets(), edits=st.lists(st.tuples(st.integers(0), number(8)), max_size=3), cut=st.integers(0, 60))
def test_altered_frames_are_a_packet_or_a_wire_error(packet: Packet, edits: list[tuple[int, int]], cut: int) -> None:
    frame = bytearray(Codec(icrc=OFF).frame(packet))
    for at, value in edits:
        frame[at % len(frame)] = value
    for parse in (Codec(icrc=OFF).parse_frame, headers.parse_headers):
        with suppress(WireError):
            assert parse(bytes(frame[: len(frame) - cut])).qpn >= 0


def altered(packet: Packet, at: int, value: int) -> bytes:
    data = bytearray(datagram(Codec(icrc=OFF), packet))
    data[at] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (altered(data_packet(8), 1, 0x01), "version"),
        (altered(data_packet(8), 2, 0x12), "partition"),
        (altered(data_packet(8), 0, 0x0A), "opcode"),
        (altered(data_packet(8), 27, 9), "RETH says 9 bytes, 8 are there"),
        (altered(data_packet(8), 1, 0x10), "RETH says 8 bytes, 7 are there"),
        (datagram(Codec(icrc=OFF), data_packet(8)) + b"\0", "padding"),
        (altered(control_packet(Close(1, 2)), 20, 0x99), "wrong kind"),
        (altered(control_packet(Close(1, 2)), 20, 0x1F), "unknown"),
        (altered(control_packet(Close(1, 2)), 20, 0x26), "wrong kind"),
        (altered(control_packet(Probe(1, 2), DATAGRAM), 16, 0x16), "wrong kind"),
        (altered(control_packet(Close(1, 2)), 23, 1), "reserved"),
        (altered(control_packet(Terminate(Status.REM_OP_ERR, 1, 1)), 21, 99), "completion status 99"),
        (altered(control_packet(Terminate(Status.REM_OP_ERR, 1, 1)), 22, 3), "kind 3"),
        (altered(control_packet(Reject(1, 2, 3, Status.REM_ACCESS_ERR), DATAGRAM), 17, 3), "completion status 3"),
        (altered(control_packet(Atomic(1, 0, 2, 3, 8, 5)), 21, 2), "atomic operation 2"),
        (altered(control_packet(Msg(1, 0, 2, 3, 4)), 40, 0x80), "63 bits"),
        (altered(control_packet(RecvAdvert(1, (Receive(1, 2, 3),))), 40, 0x80), "63 bits"),
        (altered(control_packet(ReadReq(1, 2, 3, 4, 5, 6, 7)), 56, 0x80), "63 bits"),
        (altered(control_packet(Ack(), DATAGRAM), 60, 0x80), "63 bits"),
        (altered(control_packet(Demand(1), DATAGRAM), 20, 0xFF), "63 bits"),
        (altered(control_packet(Credit(1), DATAGRAM), 20, 0x80), "63 bits"),
        (altered(control_packet(Retire(1, 2)), 24, 1), "24-bit"),
        (altered(control_packet(Nack(1, 2, 3), DATAGRAM), 24, 1), "24-bit"),
        (altered(control_packet(Nack(1, 2, 3), DATAGRAM), 17, 2), "NACK for reason 2 is unknown"),
        (altered(control_packet(Msg(1, 0, 2, 3, 4)), 21, 4), "out of range"),
        (altered(control_packet(Msg(1, 0, 2, 3, 4)), 22, 1), "MSG of 4 bytes carries 0"),
        (altered(control_packet(RecvAdvert(1, (Receive(1, 2, 3),))), 21, 2), "RECV_ADVERT of 2"),
        (altered(control_packet(RecvAdvert(1, (Receive(1, 2, 3),))), 21, 0), "RECV_ADVERT of 0"),
        (altered(control_packet(Ack(), DATAGRAM), 19, 8), "ACK of 8 bits"),
        (altered(control_packet(Ack(), DATAGRAM), 42, 17), "out of range"),
        (altered(control_packet(Ack(), DATAGRAM), 17, 2), "out of range"),
        (altered(control_packet(ProbeReply(1, 2, 3, True), DATAGRAM), 17, 2), "flags"),
        (altered(control_packet(Probe(1, 2), DATAGRAM), 17, 1), "reserved"),
    ],
)
def test_impossible_values_are_named(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        Codec(icrc=OFF).decode(data, 0, len(data), *V4, 0xC000)


@given(packet=packets(kinds=(CONTROL, DATAGRAM), families=(4,)), extra=st.sampled_from([4, 8, 32]))
def test_a_control_payload_with_something_behind_it_is_a_wire_error(packet: Packet, extra: int) -> None:
    data = datagram(Codec(icrc=OFF), packet)
    longer = data[:-4] + bytes(extra) + data[-4:]
    assert isinstance(outcome(Codec(icrc=OFF), longer), str)


def test_a_ud_packet_with_another_q_key_is_a_wire_error() -> None:
    data = bytearray(datagram(Codec(icrc=OFF, ud=True), data_packet(8)))
    data[12] ^= 0x80
    assert outcome(Codec(icrc=OFF), bytes(data)) == "Q_Key is wrong"


# What cannot be sent


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qpn", 1 << 24), ("qpn", -1), ("src_qpn", 1 << 24), ("psn", 1 << 24), ("seq", 1 << 32), ("rkey", 1 << 32),
        ("rkey", -1), ("tag", 1 << 32), ("entropy", 1 << 16), ("ecn", 4), ("length", -1), ("length", 70000),
        ("kind", 9), ("dst", b"123"), ("dst", bytes(16)),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_refused_and_never_cut(field: str, value: int | bytes) -> None:
    packet = data_packet(8)
    packet.payload = None
    setattr(packet, field, value)
    with pytest.raises(LocalProtocolError):
        Codec().encode(packet, 0)


@pytest.mark.parametrize(
    "control",
    [
        Msg(1 << 32, 0, 0, 0, 0),
        Msg(0, 4, 0, 0, 0),
        Msg(0, 0, 0, 0, -1),
        Msg(0, 0, 0, 0, 1 << 63),
        ReadReq(0, 0, 0, 0, 1 << 63, 0, 0),
        RecvAdvert(0, (Receive(0, 0, 1 << 63),)),
        Msg(0, 0, 0, 0, 3, inline=b"four"),
        Msg(0, 0, 0, 0, 257, inline=bytes(257)),
        RecvAdvert(0, (Receive(0, 1 << 64, 0),)),
        RecvAdvert(0, (Receive(0, 0, 0),) * 256),
        Atomic(0, 2, 0, 0, 0, 0),
        Atomic(0, 0, 0, 0, 0, -1),
        Terminate(99, 0, 0),
        Terminate(0, 3, 0),
        Retire(1 << 16, 0),
        Retire(0, 1 << 24),
        Close(0, -1),
    ],
)
def test_a_control_field_that_does_not_fit_is_refused(control: Control) -> None:
    with pytest.raises(LocalProtocolError):
        Codec().encode(control_packet(control), 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bits", 8), ("bits", -1), ("received", b"\0"), ("control_received", bytes(17)), ("trigger_space", 2),
        ("trigger_psn", 1 << 24), ("edge", 1 << 32), ("trigger_entropy", 1 << 16), ("marked_bytes", -1),
    ],
)  # fmt: skip
def test_an_ack_field_that_does_not_fit_is_refused(name: str, value: int | bytes) -> None:
    ack = Ack()
    setattr(ack, name, value)
    with pytest.raises(LocalProtocolError):
        Codec().encode(control_packet(ack, DATAGRAM), 0)


def test_bits_beyond_the_end_of_an_ack_are_refused() -> None:
    ack = Ack()
    ack.bits = 3
    ack.received, ack.marked = b"\x07", b"\x08"
    with pytest.raises(LocalProtocolError):
        Codec().encode(control_packet(ack, DATAGRAM), 0)


@pytest.mark.parametrize(("control", "kind"), [(Close(1, 2), DATAGRAM), (Probe(1, 2), CONTROL)])
def test_a_payload_in_a_packet_of_the_wrong_kind_is_refused(control: Control, kind: int) -> None:
    with pytest.raises(LocalProtocolError, match="wrong kind"):
        Codec().encode(control_packet(control, kind), 0)


def test_a_control_packet_without_payload_is_refused() -> None:
    packet = control_packet(Close(1, 2))
    packet.control = None
    with pytest.raises(LocalProtocolError, match="no control payload"):
        Codec().encode(packet, 0)


@pytest.mark.parametrize("index", [-1, 1])
def test_a_segment_that_does_not_exist_is_refused(index: int) -> None:
    with pytest.raises(LocalProtocolError, match="does not exist"):
        Codec().encode(data_packet(8), index)


def test_a_payload_that_ends_before_the_segment_is_refused() -> None:
    packet = data_packet(8)
    packet.offset = 1
    with pytest.raises(LocalProtocolError, match="beyond its payload"):
        Codec().encode(packet, 0)


# What fits


def payload_size(control: Control, kind: int, ud: bool) -> int:
    """Bytes that a control payload takes of the MTU, padding included; more than any MTU for what cannot be sent."""
    try:
        data = datagram(Codec(icrc=OFF, ud=ud), control_packet(control, kind))
    except LocalProtocolError as error:
        return int(str(error).split("payload of ")[1].split()[0])
    headers_size = 12 + (8 if ud else 4 if kind == CONTROL else 0)
    return len(data) - headers_size - 4


def ack_of(bits: int) -> Ack:
    ack = Ack()
    ack.bits = bits
    ack.received = ack.marked = bytes((bits + 7) // 8)
    ack.control_received = bytes(16)
    return ack


@pytest.mark.parametrize("mtu", MTUS)
@pytest.mark.parametrize("ud", [False, True])
def test_the_longest_control_payloads_fit_into_the_mtu_and_longer_ones_do_not(mtu: int, ud: bool) -> None:
    assert payload_size(ack_of(max_ack_bits(mtu)), DATAGRAM, ud) <= mtu
    assert payload_size(ack_of(max_ack_bits(mtu) + 9), DATAGRAM, ud) > mtu
    receive = Receive(1, 2, 3)
    assert payload_size(RecvAdvert(0, (receive,) * max_advert(mtu)), CONTROL, ud) <= mtu
    assert payload_size(RecvAdvert(0, (receive,) * (max_advert(mtu) + 1)), CONTROL, True) > mtu
    inline = bytes(max_inline(mtu))
    assert payload_size(Msg(0, 0, 0, 0, len(inline), inline=inline), CONTROL, ud) <= mtu
    longer = bytes(max_inline(mtu) + 1)
    assert len(longer) > 256 or payload_size(Msg(0, 0, 0, 0, len(longer), inline=longer), CONTROL, True) > mtu
    packet = data_packet(max_ud_segment(mtu))
    assert len(datagram(Codec(ud=True), packet)) == 12 + 8 + mtu + 4


def test_the_documented_limits() -> None:
    assert [max_ack_bits(mtu) for mtu in MTUS] == [736, 1760, 3808, 7904, 16096]
    assert [max_advert(mtu) for mtu in MTUS] == [11, 24, 50, 101, 203]
    assert [max_inline(mtu) for mtu in MTUS] == [216, 256, 256, 256, 256]
    assert max_ud_segment(4096) == 4072


@given(
    control=acks() | st.builds(ProbeReply, number(64), number(16), holds, st.booleans()),
    hold=st.integers(-(2**50), 2**50),
)
def test_hold_times_are_whole_nanoseconds_and_saturate(control: Ack | ProbeReply, hold: int) -> None:
    if isinstance(control, Ack):
        control.hold = hold
    else:
        control = replace(control, hold=hold)
    packet = control_packet(control, DATAGRAM)
    found = decode(Codec(), datagram(Codec(), packet), packet).control
    assert isinstance(found, Ack | ProbeReply)
    assert found.hold == min(max(hold // 1000, 0), 0xFFFFFFFF) * 1000


def test_a_reply_is_not_larger_than_its_probe() -> None:
    assert payload_size(ProbeReply(1, 2, 3, True), DATAGRAM, False) == payload_size(Probe(1, 2), DATAGRAM, False)


@given(items=st.lists(receives, max_size=203))
def test_a_long_advert_comes_back_whole(items: list[Receive]) -> None:
    packet = control_packet(RecvAdvert(7, tuple(items)))
    assert decode(Codec(), datagram(Codec(), packet), packet).control == packet.control


@given(ack=acks(max_bits=max_ack_bits(4096)))
def test_a_long_ack_comes_back_whole(ack: Ack) -> None:
    packet = control_packet(ack, DATAGRAM, V6)
    assert decode(Codec(ud=True), datagram(Codec(ud=True), packet), packet).control == ack
