"""Headers of packets that others made: a kernel, two vendors' test vectors, and kinds no public capture has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from transport import pcapfile
from transport.errors import WireError
from transport.headers import ETHERNET, RAW_IP, Aeth, AtomicEth, Deth, Headers, Reth, build_headers, parse_headers
from transport.packet import DATA
from transport.wire import OFF, Codec

PCAP = Path(__file__).parent.parent / "data" / "pcap"
CEREBRAS = "cerebras_libtins_rocev2_vectors.pcap"
SRC, DST = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])


def parse(name: str) -> list[Headers]:
    linktype, frames = pcapfile.read(PCAP / name)
    return [parse_headers(frame, linktype) for _, frame in frames]


def test_kernel_frames_of_every_service() -> None:
    parsed = parse("rxe_kernel_6.1.pcap")
    assert len(parsed) == 102
    assert all(item.icrc_valid and item.trailing == 0 and item.version == 0 for item in parsed)
    assert {item.opcode & 0xE0 for item in parsed} == {0x00, 0x20, 0x60}
    assert all(item.payload.nbytes + item.pad == item.payload.nbytes + 3 & ~3 for item in parsed)
    assert all(item.pkey == 0xFFFF and not item.fecn and not item.becn for item in parsed)


def test_kernel_acks_and_the_nak_of_a_psn_gap() -> None:
    syndromes = Counter(item.aeth.syndrome for item in parse("rxe_kernel_6.1.pcap") if item.aeth)
    assert syndromes == {0x1F: 15, 0x60: 1}


def test_kernel_read_response_and_write_lengths() -> None:
    parsed = parse("rxe_kernel_6.1.pcap")
    responses = [item for item in parsed if 0x0D <= item.opcode <= 0x10]
    assert {len(item.payload) for item in responses if item.opcode in (0x0D, 0x0E)} == {4096}
    assert all((item.aeth is None) == (item.opcode == 0x0E) for item in responses)
    writes = [item for item in parsed if item.opcode & 0x1F in (0x0A, 0x0B)]
    assert writes
    assert all(item.reth and item.reth.length == len(item.payload) for item in writes)


def test_vendor_frames_without_an_icrc_are_read_anyway() -> None:
    parsed = parse(CEREBRAS)
    assert [item.opcode for item in parsed] == [0x04, 0x04, 0x11, 0x04, 0x11, 0x11]
    assert [item.icrc for item in parsed] == [0] * 6
    assert [item.icrc_valid for item in parsed] == [False] * 6
    assert [item.trailing for item in parsed] == [0, 29, 0, 4, 19, 0]
    assert [item.fecn for item in parsed] == [False, True, False, False, True, False]
    assert [item.becn for item in parsed] == [False] * 6
    assert [item.qpn for item in parsed if item.fecn] == [0x41, 0x41]
    assert [item.ecn for item in parsed].count(3) == 2
    assert [item.aeth.syndrome for item in parsed if item.aeth].count(0x1B) == 1
    assert all(item.datagram.udp_checksum for item in parsed if item.fecn)


def test_vendor_packets_on_raw_ip_in_both_port_directions() -> None:
    linktype, frames = pcapfile.read(PCAP / "fpga_hls_rocev2_vectors_rawip.pcap")
    assert linktype == RAW_IP
    parsed = [parse_headers(frame, linktype) for _, frame in frames]
    assert [item.opcode for item in parsed] == [0x06, 0x08, 0x0C, 0x11, 0x11, 0x10]
    assert [item.datagram.destination_port for item in parsed] == [4791] * 3 + [18515] * 3
    assert [item.datagram.source_port for item in parsed] == [18515] * 3 + [4791] * 3
    assert parsed[0].reth is not None
    assert parsed[0].reth.length == 0x80
    assert len(parsed[0].payload) + len(parsed[1].payload) == 0x80
    assert parsed[2].reth == Reth(0x10, 0, 64)
    assert parsed[5].aeth == Aeth(0x1F, 3)
    assert [item.psn for item in parsed[:3]] == [0x9DBE5D, 0x9DBE5E, 0x9DBE5F]
    assert {item.icrc for item in parsed} == {0xDEADBEEF}  # sent least significant byte first: efbeadde
    assert not any(item.icrc_valid for item in parsed)
    assert {item.datagram.hop_limit for item in parsed} == {64}


def test_a_udp_length_that_contradicts_the_ip_length_is_told() -> None:
    told = [item.datagram.udp_length - (item.datagram.end - item.datagram.udp) for item in parse(CEREBRAS)]
    assert told == [0, 0, 0, -60, 0, 0]


def test_of_the_captures_only_the_kernels_uc_writes_with_immediate_are_packets_of_ours() -> None:
    for path in sorted(PCAP.glob("*.pcap")):
        linktype, frames = pcapfile.read(path)
        for _, frame in frames:
            parsed = parse_headers(frame, linktype)
            if parsed.opcode == 0x2B:
                packet = Codec().parse_frame(frame, linktype)
                assert packet.kind == DATA
                assert packet.segment_payload(0) == parsed.payload
                assert parsed.reth == Reth(packet.address, packet.rkey, packet.length)
                assert (packet.seq, packet.psn, packet.qpn) == (parsed.immediate, parsed.psn, parsed.qpn)
            else:
                with pytest.raises(WireError):
                    Codec(icrc=OFF).parse_frame(frame, linktype)


def test_the_codec_writes_the_very_bytes_of_the_kernels_uc_writes() -> None:
    _, frames = pcapfile.read(PCAP / "rxe_kernel_6.1.pcap")
    again = 0
    for _, frame in frames:
        parsed = parse_headers(frame)
        if parsed.opcode == 0x2B:
            packet = Codec().parse_frame(frame)
            identification = parsed.datagram.identification
            assert identification is not None
            codec = Codec(data_dscp=parsed.dscp, hop_limit=parsed.datagram.hop_limit)
            assert codec.frame(packet, 0, identification)[14:] == frame[14:]
            again += 1
    assert again == 27


def build(opcode: int, after_bth: bytes, linktype: int = ETHERNET, vlans: bytes = b"", options: bytes = b"") -> bytes:
    """A frame with any opcode, its ICRC right."""
    bth = bytes([opcode, 0, 0xFF, 0xFF]) + (0x40000017).to_bytes(4, "big") + (0x80000005).to_bytes(4, "big")
    body = bth + after_bth + bytes(4)
    frame = build_headers(SRC, DST, 0xC000, 0, 64, 9, body, linktype) + body
    frame = frame[:12] + vlans + frame[12:] if vlans else frame
    if options:
        ip = bytearray(frame[14:34])
        ip[0] = 0x45 + len(options) // 4
        ip[2:4] = (int.from_bytes(ip[2:4], "big") + len(options)).to_bytes(2, "big")
        frame = frame[:14] + ip + options + frame[34:]
    return frame[:-4] + parse_headers(frame, linktype).expected_icrc.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("opcode", "after", "field", "value"),
    [
        (0x11, bytes([0x60, 0, 0, 7]), "aeth", Aeth(0x60, 7)),  # NAK, PSN sequence error
        (0x12, bytes([0, 0, 0, 7]) + bytes(7) + b"\x09", "atomic_ack", 9),
        (0x13, (1 << 40).to_bytes(8, "big") + bytes(4) + bytes(15) + b"\x01", "atomic", AtomicEth(1 << 40, 0, 0, 1)),
        (0x14, bytes(12) + bytes(7) + b"\x05" + bytes(8), "atomic", AtomicEth(0, 0, 5, 0)),
        (0x17, bytes([1, 2, 3, 4]) + bytes(8), "invalidate", 0x01020304),
        (0x0B, bytes(12) + bytes([0, 0, 0, 4]) + b"\1\1\1\1" + bytes(4), "immediate", 0x01010101),
        (0x65, bytes([0, 0, 0, 9, 0xFF, 0, 0, 8]) + b"\2\2\2\2" + bytes(4), "deth", Deth(9, 8)),
        (0x65, bytes([0, 0, 0, 9, 0xFF, 0, 0, 8]) + b"\2\2\2\2" + bytes(4), "immediate", 0x02020202),
    ],
)
def test_extended_headers(opcode: int, after: bytes, field: str, value: object) -> None:
    parsed = parse_headers(build(opcode, after))
    assert getattr(parsed, field) == value
    assert (parsed.qpn, parsed.psn, parsed.ack_request, parsed.becn, parsed.icrc_valid) == (0x17, 5, True, True, True)


@pytest.mark.parametrize("opcode", [0x0A, 0x0B, 0x0C, 0x11, 0x12, 0x13, 0x17, 0x64, 0x65, 0x25])
def test_an_extended_header_that_is_cut_off_is_a_wire_error(opcode: int) -> None:
    body = bytes([opcode, 0, 0xFF, 0xFF]) + bytes(8) + bytes(3) + bytes(4)
    with pytest.raises(WireError, match="extended header"):
        parse_headers(build_headers(SRC, DST, 0xC000, 0, 64, 9, body, ETHERNET) + body)


@pytest.mark.parametrize("opcode", [0x15, 0x18, 0x2C, 0x44, 0x60, 0x80, 0xA4, 0xFF])
def test_an_opcode_of_no_known_service_is_a_wire_error(opcode: int) -> None:
    with pytest.raises(WireError, match="opcode"):
        build(opcode, bytes(40))


def test_vlan_tags_are_skipped() -> None:
    for vlans in (bytes.fromhex("8100000a"), bytes.fromhex("88a800018100000a")):
        parsed = parse_headers(build(0x24, bytes(8), vlans=vlans))
        assert parsed.icrc_valid
        assert len(parsed.payload) == 8
    with pytest.raises(WireError, match="0x8100"):
        build(0x24, bytes(8), vlans=bytes.fromhex("8100000a") * 3)


def test_ip_options_belong_to_the_header() -> None:
    parsed = parse_headers(build(0x24, bytes(8), options=b"\x94\x04\0\0"))
    assert len(parsed.payload) == 8
    assert parsed.icrc_valid


def changed(at: int, value: bytes) -> bytes:
    frame = build(0x24, bytes(8))
    return frame[:at] + value + frame[at + len(value) :]


@pytest.mark.parametrize(
    ("frame", "linktype", "text"),
    [
        (b"", ETHERNET, "no Ethernet header"),
        (b"", RAW_IP, "no IP header"),
        (changed(12, b"\x89\x15"), ETHERNET, "RoCEv1"),
        (changed(12, b"\x08\x06"), ETHERNET, "not IP"),
        (changed(12, b"\x86\xdd"), ETHERNET, "IP version 4"),
        (changed(14, b"\x44"), ETHERNET, "header of 16 bytes"),
        (changed(16, b"\xff\xff"), ETHERNET, "IP datagram of 65535 bytes"),
        (changed(16, b"\0\x14"), ETHERNET, "IP datagram of 20 bytes"),
        (changed(20, b"\x20\0"), ETHERNET, "fragment"),
        (changed(20, b"\0\x01"), ETHERNET, "fragment"),
        (changed(23, b"\x06"), ETHERNET, "protocol 6"),
        (changed(36, b"\0\x35"), ETHERNET, "neither is 4791"),
        (build(0x24, bytes(8)), 197, "link type 197"),
    ],
)
def test_frames_that_are_no_rocev2_are_named(frame: bytes, linktype: int, text: str) -> None:
    with pytest.raises(WireError, match=text):
        parse_headers(frame, linktype)


def test_a_frame_of_ours_whose_udp_length_is_wrong_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="UDP length is 8"):
        Codec(icrc=OFF).parse_frame(changed(38, b"\0\x08"))


def test_padding_longer_than_the_payload_is_a_wire_error() -> None:
    body = bytes([0x24, 0x30, 0xFF, 0xFF]) + bytes(8) + bytes(4)
    with pytest.raises(WireError, match="padding"):
        parse_headers(build_headers(SRC, DST, 0xC000, 0, 64, 9, body, ETHERNET) + body)
