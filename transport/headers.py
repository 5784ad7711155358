"""Headers of whole frames: Ethernet, IPv4 or IPv6, UDP, and every RoCEv2 header that RC, UC, UD and CNP packets have.

For captures and tools, also of packets that are not ours; the hot path of our own packets is transport.wire. Not
modelled: IPv6 extension headers, IP fragments, RoCEv1, the RD and XRC services. These are a WireError.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from transport import icrc
from transport.errors import WireError
from transport.icrc import ROCE_PORT

# Link types of a capture file (https://www.tcpdump.org/linktypes.html).
ETHERNET = 1
RAW_IP = 101

_ETHERNET_HEADER = 14
_IPV4_ETHERTYPE = 0x0800
_IPV6_ETHERTYPE = 0x86DD
_ROCEV1_ETHERTYPE = 0x8915
_VLAN_ETHERTYPES = (0x8100, 0x88A8)
_MAX_VLANS = 2
_UDP = 17
_BTH_SIZE = 12
_ICRC_SIZE = 4

# Low 5 bits of an opcode: what the packet is. The high 3 bits are the service (volume 1, table 35).
_WITH_RETH = {0x06, 0x0A, 0x0B, 0x0C}
_WITH_IMMEDIATE = {0x03, 0x05, 0x09, 0x0B}
_WITH_AETH = {0x0D, 0x0F, 0x10, 0x11, 0x12}
_ATOMIC_ACK = 0x12
_ATOMICS = {0x13, 0x14}
_WITH_INVALIDATE = {0x16, 0x17}
_RC = 0x00
_UC = 0x20
_UD = 0x60
CNP_OPCODE = 0x81
OPCODES = frozenset(
    [_RC | low for low in range(0x18) if low != 0x15]
    + [_UC | low for low in range(0x0C)]
    + [_UD | 0x04, _UD | 0x05, CNP_OPCODE]
)

_BTH = Struct(">BBHII")
_RETH = Struct(">QII")
_DETH = Struct(">II")
_ATOMIC_ETH = Struct(">QIQQ")
_WORD = Struct(">I")
_LONG = Struct(">Q")


@dataclass(frozen=True, slots=True)
class Datagram:
    """An IP/UDP datagram inside a frame. ip, udp, end: offsets of the IP header, of the UDP header, and of the first
    byte after the IP datagram. src, dst: 4 or 16 bytes. identification: of IPv4, None for IPv6. udp_length: as found;
    the IP header alone says where the datagram ends."""

    ip: int
    udp: int
    end: int
    src: bytes
    dst: bytes
    tos: int
    hop_limit: int
    identification: int | None
    source_port: int
    destination_port: int
    udp_length: int
    udp_checksum: int


@dataclass(frozen=True, slots=True)
class Reth:
    """RDMA extended transport header."""

    address: int
    rkey: int
    length: int


@dataclass(frozen=True, slots=True)
class Deth:
    """Datagram extended transport header."""

    qkey: int
    source_qpn: int


@dataclass(frozen=True, slots=True)
class Aeth:
    """ACK extended transport header."""

    syndrome: int
    msn: int


@dataclass(frozen=True, slots=True)
class AtomicEth:
    """Atomic extended transport header."""

    address: int
    rkey: int
    swap_or_add: int
    compare: int


@dataclass(frozen=True, slots=True)
class Headers:
    """What a RoCEv2 frame says. Extended headers that its opcode does not have are None.

    payload: without padding. icrc: as found; expected_icrc: as it should be. trailing: bytes between the end of the IP
    datagram and the end of the frame.
    """

    datagram: Datagram
    opcode: int
    solicited: bool
    migreq: bool
    pad: int
    version: int
    pkey: int
    fecn: bool
    becn: bool
    qpn: int
    ack_request: bool
    psn: int
    reth: Reth | None
    immediate: int | None
    deth: Deth | None
    aeth: Aeth | None
    atomic: AtomicEth | None
    atomic_ack: int | None
    invalidate: int | None
    payload: memoryview
    icrc: int
    expected_icrc: int
    trailing: int

    @property
    def icrc_valid(self) -> bool:
        return self.icrc == self.expected_icrc

    @property
    def ecn(self) -> int:
        return self.datagram.tos & 3

    @property
    def dscp(self) -> int:
        return self.datagram.tos >> 2


def find_datagram(frame: memoryview, linktype: int = ETHERNET) -> Datagram:
    """The UDP datagram in a frame, VLAN tags skipped. WireError if there is none."""
    size = len(frame)
    ip = 0
    if linktype == ETHERNET:
        ip = _ETHERNET_HEADER
        vlans = 0
        while True:
            if size < ip:
                raise WireError(f"frame of {size} bytes has no Ethernet header")
            ethertype = int.from_bytes(frame[ip - 2 : ip], "big")
            if ethertype not in _VLAN_ETHERTYPES or vlans == _MAX_VLANS:
                break
            vlans += 1
            ip += 4
        if ethertype == _ROCEV1_ETHERTYPE:
            raise WireError("RoCEv1 frame (EtherType 0x8915), not RoCEv2")
        if ethertype not in (_IPV4_ETHERTYPE, _IPV6_ETHERTYPE):
            raise WireError(f"EtherType {ethertype:#06x} is not IP")
    elif linktype != RAW_IP:
        raise WireError(f"link type {linktype}: Ethernet ({ETHERNET}) and raw IP ({RAW_IP}) are understood")
    version = frame[ip] >> 4 if size > ip else 0
    if linktype == ETHERNET and version != (4 if ethertype == _IPV4_ETHERTYPE else 6):
        raise WireError(f"IP version {version} in EtherType {ethertype:#06x}")
    identification = None
    if version == 4 and size >= ip + 20:
        udp = ip + (frame[ip] & 0x0F) * 4
        end = ip + int.from_bytes(frame[ip + 2 : ip + 4], "big")
        tos, hop_limit, protocol = frame[ip + 1], frame[ip + 8], frame[ip + 9]
        identification = int.from_bytes(frame[ip + 4 : ip + 6], "big")
        if int.from_bytes(frame[ip + 6 : ip + 8], "big") & 0x3FFF:
            raise WireError("IPv4 fragment")
        if udp < ip + 20:
            raise WireError(f"IPv4 header of {udp - ip} bytes")
        src, dst = bytes(frame[ip + 12 : ip + 16]), bytes(frame[ip + 16 : ip + 20])
    elif version == 6 and size >= ip + 40:
        udp = ip + 40
        end = udp + int.from_bytes(frame[ip + 4 : ip + 6], "big")
        tos = int.from_bytes(frame[ip : ip + 2], "big") >> 4 & 0xFF
        protocol, hop_limit = frame[ip + 6], frame[ip + 7]
        src, dst = bytes(frame[ip + 8 : ip + 24]), bytes(frame[ip + 24 : ip + 40])
    else:
        raise WireError(f"no IP header: version {version}, {size - ip} bytes")
    if protocol != _UDP:
        raise WireError(f"IP protocol {protocol} is not UDP")
    if end > size or end < udp + 8:
        raise WireError(f"IP datagram of {end - ip} bytes in a frame that has {size - ip} for it")
    return Datagram(
        ip, udp, end, src, dst, tos, hop_limit, identification,
        int.from_bytes(frame[udp : udp + 2], "big"),
        int.from_bytes(frame[udp + 2 : udp + 4], "big"),
        int.from_bytes(frame[udp + 4 : udp + 6], "big"),
        int.from_bytes(frame[udp + 6 : udp + 8], "big"),
    )  # fmt: skip


def parse_headers(frame: bytes | bytearray | memoryview, linktype: int = ETHERNET) -> Headers:
    """Every header of a RoCEv2 frame that goes to or comes from UDP port 4791. WireError if it is none.

    Requests go to port 4791; some implementations answer from it. The ICRC is the last 4 bytes of the IP datagram. That
    it, or the UDP length, is wrong is no error here: it is told.
    """
    view = memoryview(frame)
    datagram = find_datagram(view, linktype)
    if ROCE_PORT not in (datagram.source_port, datagram.destination_port):
        raise WireError(f"UDP ports {datagram.source_port} and {datagram.destination_port}: neither is {ROCE_PORT}")
    at = datagram.udp + 8
    end = datagram.end - _ICRC_SIZE
    if end - at < _BTH_SIZE:
        raise WireError(f"UDP payload of {datagram.end - at} bytes has no BTH and ICRC")
    opcode, flags, pkey, qpn, psn = _BTH.unpack_from(view, at)
    at += _BTH_SIZE
    if opcode not in OPCODES:
        raise WireError(f"BTH opcode {opcode:#04x} is unknown")
    service, low = opcode & 0xE0, opcode & 0x1F
    cnp = opcode == CNP_OPCODE
    deth = reth = aeth = atomic = immediate = atomic_ack = invalidate = None
    if service == _UD:
        source: tuple[int, ...]
        source, at = _take(_DETH, view, at, end)
        deth = Deth(source[0], source[1] & 0xFFFFFF)
    if low in _WITH_RETH:
        fields, at = _take(_RETH, view, at, end)
        reth = Reth(*fields)
    if low in _ATOMICS:
        (address, rkey, swap, compare), at = _take(_ATOMIC_ETH, view, at, end)
        atomic = AtomicEth(address, rkey, swap, compare)
    if low in _WITH_IMMEDIATE and not cnp:
        (immediate,), at = _take(_WORD, view, at, end)
    if low in _WITH_AETH:
        (word,), at = _take(_WORD, view, at, end)
        aeth = Aeth(word >> 24, word & 0xFFFFFF)
    if low == _ATOMIC_ACK:
        (atomic_ack,), at = _take(_LONG, view, at, end)
    if low in _WITH_INVALIDATE:
        (invalidate,), at = _take(_WORD, view, at, end)
    pad = flags >> 4 & 3
    if at + pad > end:
        raise WireError(f"{pad} bytes of padding in {end - at} bytes of payload")
    return Headers(
        datagram=datagram,
        opcode=opcode,
        solicited=bool(flags & 0x80),
        migreq=bool(flags & 0x40),
        pad=pad,
        version=flags & 0x0F,
        pkey=pkey,
        fecn=bool(qpn >> 31),
        becn=bool(qpn >> 30 & 1),
        qpn=qpn & 0xFFFFFF,
        ack_request=bool(psn >> 31),
        psn=psn & 0xFFFFFF,
        reth=reth,
        immediate=immediate,
        deth=deth,
        aeth=aeth,
        atomic=atomic,
        atomic_ack=atomic_ack,
        invalidate=invalidate,
        payload=view[at : end - pad],
        icrc=int.from_bytes(view[end : end + _ICRC_SIZE], "little"),
        expected_icrc=expected_icrc(view, datagram),
        trailing=len(view) - datagram.end,
    )


def expected_icrc(frame: memoryview, datagram: Datagram, identification: int | None = None) -> int:
    """The ICRC that the datagram should carry; identification as in transport.icrc.of_datagram."""
    ip = datagram.ip
    return icrc.of_datagram(frame[ip:], datagram.udp - ip, datagram.end - _ICRC_SIZE - ip, identification)


def _take(layout: Struct, view: memoryview, at: int, end: int) -> tuple[tuple[int, ...], int]:
    if at + layout.size > end:
        raise WireError(f"extended header of {layout.size} bytes does not fit into {end - at}")
    return layout.unpack_from(view, at), at + layout.size


def build_headers(
    src: bytes,
    dst: bytes,
    source_port: int,
    tos: int,
    hop_limit: int,
    identification: int,
    payload: bytes,
    linktype: int,
) -> bytes:
    """Headers of the frame whose UDP payload, up to the ICRC included, is given; linktype: what comes first.

    MAC addresses are locally administered ones made of the IP addresses. The UDP checksum is 0 over IPv4, as RoCEv2
    NICs send it, and computed over IPv6, where 0 is not allowed in general (RFC 8200 section 8.1).
    """
    udp_length = 8 + len(payload)
    udp = b"".join(value.to_bytes(2, "big") for value in (source_port, ROCE_PORT, udp_length))
    if len(src) == 4:
        ethertype = _IPV4_ETHERTYPE
        head = bytearray(b"\x45" + bytes([tos]) + (20 + udp_length).to_bytes(2, "big"))
        head += identification.to_bytes(2, "big") + b"\x40\x00" + bytes([hop_limit, _UDP]) + b"\0\0" + src + dst
        head[10:12] = _checksum(head).to_bytes(2, "big")
        udp += b"\0\0"
    else:
        ethertype = _IPV6_ETHERTYPE
        head = bytearray((0x60000000 | tos << 20).to_bytes(4, "big") + udp_length.to_bytes(2, "big"))
        head += bytes([_UDP, hop_limit]) + src + dst
        pseudo = src + dst + udp_length.to_bytes(4, "big") + bytes([0, 0, 0, _UDP])
        udp += (_checksum(pseudo + udp + b"\0\0" + payload) or 0xFFFF).to_bytes(2, "big")
    link = b""
    if linktype == ETHERNET:
        link = b"\x02\0" + dst[-4:] + b"\x02\0" + src[-4:] + ethertype.to_bytes(2, "big")
    elif linktype != RAW_IP:
        raise WireError(f"link type {linktype}: Ethernet ({ETHERNET}) and raw IP ({RAW_IP}) are understood")
    return link + bytes(head) + udp


def _checksum(data: bytes | bytearray) -> int:
    """The Internet checksum (RFC 1071): ones' complement sum, which is the number modulo 65535."""
    total = int.from_bytes(data + b"\0" * (len(data) % 2), "big")
    return ~(total % 0xFFFF) & 0xFFFF
