"""The invariant CRC of RoCEv2 (InfiniBand architecture annex A17, section 9 of volume 1): CRC-32 with the Ethernet
polynomial over 8 bytes of ones, the IP header, the UDP header and the packet up to the ICRC itself, where every field
that a switch may change is taken as ones. It is sent least significant byte first.

The CRC of the parts is computed one after the other; no payload is ever copied to be next to its headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython
from zlib_ng.zlib_ng import crc32

from transport.errors import LocalProtocolError
from transport.octets import put16

if TYPE_CHECKING:
    from transport.octets import MutableOctets

# Modes, one a connection (docs/wire.md).
EXACT = 0  #: over the packet as it is on the wire
ID0 = 1  #: the IPv4 identification is taken as 0, for sockets that number their datagrams and cannot see the numbers
OFF = 2  #: 4 zero bytes, not checked

MODES = {"exact": EXACT, "id0": ID0, "off": OFF}

#: The UDP destination port of RoCEv2.
ROCE_PORT = 4791
#: Where a pseudo header ends; it begins at 0 (IPv6) or 20 (IPv4).
PSEUDO_END = 56

# Private constants are C variables in compiled code (icrc.pxd): reading them costs nothing.
_ROCE_PORT = ROCE_PORT
_UDP = 17
_DONT_FRAGMENT = 0x4000


def pseudo_header(
    out: MutableOctets,
    src: bytes,
    dst: bytes,
    source_port: cython.ulonglong,
    udp_length: cython.ulonglong,
    identification: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Write what the ICRC sees before the BTH into out[start:PSEUDO_END]; return start.

    It is the header of a datagram from src to dst (4 or 16 bytes each) as a Linux UDP socket sends it: IPv4 without
    options and with DF set, UDP destination port 4791. udp_length counts the UDP header.
    """
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(src)
    if size != len(dst) or (size != 4 and size != 16):
        raise LocalProtocolError(f"addresses {src.hex()} and {dst.hex()}: both must have 4 bytes, or both 16")
    if size == 4:
        start = 20
        out[28] = 0x45
        out[29] = 0xFF  # type of service
        put16(out, 30, 20 + udp_length)
        put16(out, 32, identification)
        put16(out, 34, _DONT_FRAGMENT)
        out[36] = 0xFF  # time to live
        out[37] = _UDP
        put16(out, 38, 0xFFFF)  # checksum
        for i in range(4):
            out[40 + i] = src[i]
            out[44 + i] = dst[i]
    else:
        start = 0
        out[8] = 0x6F  # the low half is the traffic class, as are the next 4 bits; then the flow label
        out[9] = 0xFF
        put16(out, 10, 0xFFFF)
        put16(out, 12, udp_length)
        out[14] = _UDP
        out[15] = 0xFF  # hop limit
        for i in range(16):
            out[16 + i] = src[i]
            out[32 + i] = dst[i]
    for i in range(8):
        out[start + i] = 0xFF
    put16(out, 48, source_port)
    put16(out, 50, _ROCE_PORT)
    put16(out, 52, udp_length)
    put16(out, 54, 0xFFFF)  # checksum
    return start


def of_datagram(datagram: memoryview, udp: int, end: int, identification: int | None = None) -> int:
    """The ICRC that an IP datagram should carry at datagram[end:end + 4].

    udp: where its UDP header starts; the BTH follows. identification: take the IPv4 identification as this instead of
    what is there.
    """
    head = bytearray(datagram[: udp + 16])
    if head[0] >> 4 == 4:
        head[1] = head[8] = head[10] = head[11] = 0xFF
        if identification is not None:
            head[4:6] = identification.to_bytes(2, "big")
    else:
        head[0] |= 0x0F
        head[1] = head[2] = head[3] = head[7] = 0xFF
    head[udp + 6] = head[udp + 7] = head[udp + 12] = 0xFF
    return crc32(datagram[udp + 16 : end], crc32(head, crc32(b"\xff" * 8)))
