"""The ICRC against an implementation that shares nothing with ours but the specification, and kernel frames."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.wire_packets import number, packets
from transport import headers, pcapfile
from transport.errors import LocalProtocolError
from transport.icrc import PSEUDO_END, of_datagram, pseudo_header
from transport.packet import Packet
from transport.wire import Codec

PCAP = Path(__file__).parent.parent / "data" / "pcap"


def independent(ip: bytes) -> int:
    """ICRC of an IPv4 datagram without options, or IPv6, that ends with one: the whole of it as one masked number."""
    version4 = ip[0] >> 4 == 4
    size = 20 if version4 else 40
    ones = [1, 8, 10, 11] if version4 else [1, 2, 3, 7]
    ones += [size + 6, size + 7, size + 8 + 4]
    masked = bytes(0xFF if at in ones else byte for at, byte in enumerate(ip[:-4]))
    if not version4:
        masked = bytes([masked[0] | 0x0F]) + masked[1:]
    return zlib.crc32(b"\xff" * 8 + masked)


@given(packet=packets(), identification=number(16), ud=st.booleans())
def test_every_packet_carries_the_icrc_that_others_compute(packet: Packet, identification: int, ud: bool) -> None:
    for index in range(packet.count):
        datagram = Codec(ud=ud).frame(packet, index, identification, headers.RAW_IP)
        assert int.from_bytes(datagram[-4:], "little") == independent(datagram)


@given(packet=packets(), tos=number(8), hop_limit=number(8), label=number(20), checksum=number(16), noise=number(8))
def test_what_a_switch_may_change_does_not_change_the_icrc(
    packet: Packet, tos: int, hop_limit: int, label: int, checksum: int, noise: int
) -> None:
    datagram = bytearray(Codec().frame(packet, linktype=headers.RAW_IP))
    before = of_datagram(memoryview(bytes(datagram)), headers_size(packet), len(datagram) - 4)
    if len(packet.src) == 4:
        datagram[1], datagram[8] = tos, hop_limit
        datagram[10:12] = checksum.to_bytes(2, "big")
    else:
        datagram[0:4] = (6 << 28 | tos << 20 | label).to_bytes(4, "big")
        datagram[7] = hop_limit
    size = headers_size(packet)
    datagram[size + 6 : size + 8] = checksum.to_bytes(2, "big")
    datagram[size + 12] = noise  # FECN, BECN, reserved
    assert of_datagram(memoryview(bytes(datagram)), size, len(datagram) - 4) == before


def headers_size(packet: Packet) -> int:
    return 20 if len(packet.src) == 4 else 40


@given(packet=packets(), at=st.integers(0), bit=st.integers(0, 7))
def test_every_other_bit_changes_the_icrc(packet: Packet, at: int, bit: int) -> None:
    datagram = bytearray(Codec().frame(packet, linktype=headers.RAW_IP))
    size = headers_size(packet)
    masked = {1, 8, 10, 11} if size == 20 else {0, 1, 2, 3, 7}
    masked |= {size + 6, size + 7, size + 12}
    places = [place for place in range(1, len(datagram) - 4) if place not in masked]
    before = of_datagram(memoryview(bytes(datagram)), size, len(datagram) - 4)
    datagram[places[at % len(places)]] ^= 1 << bit
    assert of_datagram(memoryview(bytes(datagram)), size, len(datagram) - 4) != before


def test_every_frame_of_the_kernel_has_the_icrc_we_compute() -> None:
    _, frames = pcapfile.read(PCAP / "rxe_kernel_6.1.pcap")
    assert len(frames) == 102
    assert all(int.from_bytes(frame[-4:], "little") == independent(frame[14:]) for _, frame in frames)
    assert all(headers.parse_headers(frame).icrc_valid for _, frame in frames)


def test_a_changed_kernel_frame_has_another() -> None:
    _, frames = pcapfile.read(PCAP / "rxe_kernel_6.1.pcap")
    changed = bytearray(frames[0][1])
    changed[-5] ^= 1
    assert not headers.parse_headers(changed).icrc_valid


@pytest.mark.parametrize(
    ("src", "dst"), [(b"", b""), (bytes(4), bytes(16)), (bytes(16), bytes(4)), (bytes(6), bytes(6))]
)
def test_addresses_of_no_or_two_families_are_refused(src: bytes, dst: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="addresses"):
        pseudo_header(bytearray(PSEUDO_END), src, dst, 0xC000, 100, 0)
