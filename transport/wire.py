"""RoCEv2 bytes of Packets and back. docs/wire.md has every layout; control payloads are in transport.payloads.

Two faces: the bytes from the BTH to the ICRC, which are the payload of a UDP datagram (encode, decode), and whole
frames or raw IP packets, as a capture file and a link have them (frame, parse_frame).
"""

from __future__ import annotations

from struct import Struct

import cython
from zlib_ng.zlib_ng import crc32

from transport import headers, payloads
from transport.errors import LocalProtocolError, WireError
from transport.icrc import EXACT, ID0, MODES, OFF, PSEUDO_END, ROCE_PORT, pseudo_header
from transport.octets import get24, get32, put16, put32
from transport.packet import (
    CLASS_CONTROL,
    CLASS_DATA,
    CNP,
    CONTROL,
    DATA,
    DATAGRAM,
    PSN_MASK,
    SEQ_MASK,
    Packet,
)
from transport.payloads import max_ack_bits, max_advert, max_inline

__all__ = [
    "EXACT", "ID0", "MODES", "OFF", "ROCE_PORT", "UNKNOWN_ID", "Codec", "max_ack_bits", "max_advert", "max_inline",
    "max_ud_segment",
]  # fmt: skip

# BTH opcodes (InfiniBand architecture volume 1, table 35; CNP: annex A17).
UC_SEND_ONLY = 0x24
UC_SEND_ONLY_IMMEDIATE = 0x25
UC_WRITE_ONLY_IMMEDIATE = 0x2B
UD_SEND_ONLY = 0x64
CNP_OPCODE = 0x81

#: The default partition, full member.
PKEY = 0xFFFF
#: The Q_Key of all our UD queue pairs. Its high bit is clear: a set one asks for a privileged queue pair.
QKEY = 0x1EE7C0DE

# Type codes of UD payloads that carry what UC has in RETH and ImmDt.
UD_DATA = 0x01
UD_CONTROL = 0x02

#: identification argument of decode: it is not known, so an IPv4 ICRC cannot be checked.
UNKNOWN_ID = -1

# Private constants are C variables in compiled code (wire.pxd): reading them costs nothing.
_BTH_AT = PSEUDO_END  # of the scratch memory
_BTH = 12
_RETH = 16
_IMMEDIATE = 4
_DETH = 8
_ICRC = 4
_UDP = 8
_CNP_PAYLOAD = 16
_UD_DATA = 24
_UD_CONTROL = 12
_TAG = 4
_MAX_PAYLOAD = 4096
_MAX_UDP = 65507
_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_ICRC_LAYOUT = Struct("<I")
_PADS = (b"", b"\0", b"\0\0", b"\0\0\0")
_ZEROS = bytes(_MAX_PAYLOAD)


def max_ud_segment(mtu: int) -> int:
    """Data bytes of one segment in UD mode, if the payload may have `mtu` bytes."""
    return mtu - _UD_DATA


class Codec:
    """Packets to bytes and back, for one Nic and one thread.

    icrc: EXACT, ID0 or OFF. ud: send UD instead of UC; both are understood. data_dscp, control_dscp: DSCP of the two
    traffic classes. hop_limit: of frames.
    """

    def __init__(
        self, icrc: int = EXACT, ud: bool = False, data_dscp: int = 26, control_dscp: int = 48, hop_limit: int = 64
    ) -> None:
        self.icrc = icrc
        self.ud = ud
        self.data_dscp = data_dscp
        self.control_dscp = control_dscp
        self.hop_limit = hop_limit
        # Pseudo header, then BTH, then what follows it: all that an ICRC is computed over, but the payload.
        self.memory = bytearray(_BTH_AT + _BTH + _DETH + _RETH + _IMMEDIATE + _MAX_PAYLOAD)
        self.scratch = self.memory
        self.window = memoryview(self.memory)
        self.source: object = self.memory
        self.source_window = self.window
        self.view = self.memory

    def traffic_class(self, packet: Packet) -> cython.longlong:
        """The IP type of service or traffic class byte of a packet: DSCP and ECN."""
        dscp: cython.longlong = self.control_dscp if packet.priority == CLASS_CONTROL else self.data_dscp
        return dscp << 2 | packet.ecn

    def encode(self, packet: Packet, index: cython.longlong) -> tuple[bytes, memoryview | None, bytes]:
        """Segment `index` of a packet as (header, payload, trailer), to be gathered into one UDP datagram.

        The header starts with the BTH and holds a control payload whole; payload is a view of the packet's own buffer,
        None for no bytes, zeros where the bytes exist only in number; the trailer is padding and ICRC. The ICRC is that
        of a datagram with IPv4 identification 0. LocalProtocolError if a field does not fit its place.
        """
        return self._encode(packet, index, 0)

    def _encode(
        self, packet: Packet, index: cython.longlong, identification: cython.longlong
    ) -> tuple[bytes, memoryview | None, bytes]:
        view: memoryview | None = None
        length: cython.Py_ssize_t = 0
        start: cython.Py_ssize_t
        if index < 0 or index >= packet.count:
            raise LocalProtocolError(f"segment {index} of {packet!r} does not exist")
        if packet.kind == DATA:
            length = packet.segment_length(index)
            if length > 0:
                view = self._payload(packet, index, length)
        end: cython.Py_ssize_t = self._header(packet, index, length)
        pad: cython.Py_ssize_t = -(end + length) & 3  # _BTH_AT is a multiple of 4
        udp_length: cython.longlong = _UDP + end - _BTH_AT + length + pad + _ICRC
        if udp_length - _UDP > _MAX_UDP:
            raise LocalProtocolError(f"segment of {length} bytes does not fit into a UDP datagram")
        self.scratch[_BTH_AT + 1] |= pad << 4
        header = self.window[_BTH_AT:end].tobytes()
        if self.icrc == OFF:
            return header, view, _PADS[pad] + b"\0\0\0\0"
        start = pseudo_header(self.scratch, packet.src, packet.dst, packet.entropy, udp_length, identification)
        self.scratch[_BTH_AT + 4] = 0xFF  # FECN, BECN, reserved
        crc = crc32(self.window[start:end])
        if view is not None:
            crc = crc32(view, crc)
        if pad:
            return header, view, _PADS[pad] + _ICRC_LAYOUT.pack(crc32(_PADS[pad], crc))
        return header, view, _ICRC_LAYOUT.pack(crc)

    def _payload(self, packet: Packet, index: cython.longlong, length: cython.Py_ssize_t) -> memoryview:
        if packet.payload is None:
            return memoryview(_ZEROS)[:length] if length <= _MAX_PAYLOAD else memoryview(bytes(length))
        whole = memoryview(packet.payload)
        if whole.ndim != 1 or whole.itemsize != 1:
            whole = whole.cast("B")
        at: cython.Py_ssize_t = packet.offset + index * packet.stride
        if at < 0 or at + length > len(whole):
            raise LocalProtocolError(f"{packet!r} reaches beyond its payload of {len(whole)} bytes")
        return whole[at : at + length]

    def _header(self, packet: Packet, index: cython.longlong, length: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write what precedes the payload to scratch[_BTH_AT:end], with a pad count of 0; return end."""
        i: cython.Py_ssize_t
        size: cython.Py_ssize_t
        kind: cython.longlong = packet.kind
        last: cython.bint = index == packet.count - 1
        psn: cython.ulonglong = (packet.psn + index) & PSN_MASK
        seq: cython.ulonglong = (packet.seq + index) & SEQ_MASK
        address: cython.ulonglong = (packet.address + index * packet.segment) & _MASK64
        at: cython.Py_ssize_t = _BTH_AT + _BTH
        opcode: cython.longlong
        ud: cython.bint = self.ud and kind != CNP
        if (
            packet.qpn >> 24
            or packet.src_qpn >> 24
            or packet.psn >> 24
            or packet.seq >> 32
            or packet.rkey >> 32
            or packet.tag >> 32
            or packet.entropy >> 16
            or packet.ecn >> 2
            or length < 0
        ):
            raise LocalProtocolError(
                f"a field of {packet!r} does not fit its place: qpn, src_qpn and psn have 24 bits; "
                "seq, rkey and tag 32; entropy 16; ecn 2"
            )
        if ud:
            opcode = UD_SEND_ONLY
            put32(self.scratch, at, QKEY)
            put32(self.scratch, at + 4, packet.src_qpn)
            at += _DETH
        elif kind == DATA:
            opcode = UC_WRITE_ONLY_IMMEDIATE
        elif kind == CONTROL:
            opcode = UC_SEND_ONLY_IMMEDIATE
        elif kind == DATAGRAM:
            opcode = UC_SEND_ONLY
        elif kind == CNP:
            opcode = CNP_OPCODE
        else:
            raise LocalProtocolError(f"packet kind {kind} is unknown")
        self.scratch[_BTH_AT] = opcode
        self.scratch[_BTH_AT + 1] = 0x80 if packet.solicited and last else 0
        put16(self.scratch, _BTH_AT + 2, PKEY)
        put32(self.scratch, _BTH_AT + 4, packet.qpn)
        put32(self.scratch, _BTH_AT + 8, psn | (0x80000000 if packet.ack_request and last else 0))
        if kind == DATA:
            if ud:
                put32(self.scratch, at, packet.tag)
                put32(self.scratch, at + 4, UD_DATA << 24)
                put32(self.scratch, at + 8, seq)
                put32(self.scratch, at + 12, packet.rkey)
                put32(self.scratch, at + 16, address >> 32)
                put32(self.scratch, at + 20, address & _MASK32)
                return at + _UD_DATA
            put32(self.scratch, at, address >> 32)
            put32(self.scratch, at + 4, address & _MASK32)
            put32(self.scratch, at + 8, packet.rkey)
            put32(self.scratch, at + 12, length)
            put32(self.scratch, at + 16, seq)
            return at + _RETH + _IMMEDIATE
        if kind == CNP:
            self.scratch[_BTH_AT + 4] = 0x40  # BECN
            for i in range(_CNP_PAYLOAD):
                self.scratch[at + i] = 0
            return at + _CNP_PAYLOAD
        if packet.control is None:
            raise LocalProtocolError(f"{packet!r} has no control payload")
        data: bytes = payloads.encode(packet.control)
        size = len(data)
        if payloads.is_reliable(data[0]) != (kind == CONTROL):
            raise LocalProtocolError(f"{packet!r} is of the wrong kind for its control payload")
        if kind == CONTROL and not ud:
            put32(self.scratch, at, seq)
            at += _IMMEDIATE
        first: cython.Py_ssize_t = at
        put32(self.scratch, at, packet.tag)
        at += _TAG
        if kind == CONTROL and ud:
            put32(self.scratch, at, UD_CONTROL << 24)
            put32(self.scratch, at + 4, seq)
            at += payloads.UD_RELIABLE
        if at + size - first > _MAX_PAYLOAD:
            raise LocalProtocolError(f"control payload of {at + size - first} bytes is above {_MAX_PAYLOAD}")
        self.window[at : at + size] = data
        return at + size

    def decode(
        self,
        buffer: bytes | bytearray | memoryview,
        offset: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        src: bytes,
        dst: bytes,
        entropy: cython.longlong,
        tos: cython.longlong = 0,
        identification: cython.longlong = 0,
    ) -> Packet:
        """The packet in buffer[offset:offset + length], the UDP payload of a datagram (src, entropy) to (dst, 4791).

        A data packet refers to the buffer; control payloads are copied out of it. tos: the byte of IP that holds DSCP
        and ECN. identification: of the IPv4 header, UNKNOWN_ID if the sender does not leave it 0 and the socket cannot
        tell; then the ICRC is not checked. Raises WireError for bytes that are not a packet of ours.

        The codec refers to the last buffer until the next one comes: give it the same big one, for speed, and do not
        resize it.
        """
        self._attach(buffer)
        self._bounds(offset, length)
        if self.icrc != OFF and (identification >= 0 or len(src) != 4):
            self._check(offset, length, src, dst, entropy, 0 if self.icrc == ID0 else identification)
        return self._decode(buffer, offset, length, src, dst, entropy, tos)

    def _attach(self, buffer: object) -> None:
        if self.source is not buffer:
            window = memoryview(buffer)  # type: ignore[arg-type]
            self.view = window  # type: ignore[assignment]
            self.source_window = window
            self.source = buffer

    def _bounds(self, offset: cython.Py_ssize_t, length: cython.Py_ssize_t) -> None:
        size: cython.Py_ssize_t = len(self.source_window)
        if length < _BTH + _ICRC or offset < 0 or offset > size - length:
            raise WireError(f"no BTH and ICRC in {length} bytes at {offset} of {size}")

    def _check(
        self,
        offset: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        src: bytes,
        dst: bytes,
        entropy: cython.longlong,
        identification: cython.longlong,
    ) -> None:
        """WireError unless the ICRC is right."""
        i: cython.Py_ssize_t
        end: cython.Py_ssize_t = offset + length - _ICRC
        start: cython.Py_ssize_t = pseudo_header(self.scratch, src, dst, entropy, _UDP + length, identification)
        for i in range(8):
            self.scratch[_BTH_AT + i] = self.view[offset + i]
        self.scratch[_BTH_AT + 4] = 0xFF
        crc: cython.ulonglong = crc32(self.source_window[offset + 8 : end], crc32(self.window[start : _BTH_AT + 8]))
        found: cython.ulonglong = get32(self.view, end)
        found = found >> 24 | found >> 8 & 0xFF00 | (found & 0xFF00) << 8 | (found & 0xFF) << 24
        if crc != found:
            raise WireError(f"ICRC is {found:#010x}, should be {crc:#010x}")

    def _decode(
        self,
        buffer: object,
        offset: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        src: bytes,
        dst: bytes,
        entropy: cython.longlong,
        tos: cython.longlong,
    ) -> Packet:
        at: cython.Py_ssize_t = offset + _BTH
        opcode: cython.longlong = self.view[offset]
        flags: cython.longlong = self.view[offset + 1]
        key: cython.longlong = self.view[offset + 2] & 0x7F  # the membership bit does not matter
        end: cython.Py_ssize_t = offset + length - _ICRC - (flags >> 4 & 3)
        reth_length: cython.longlong
        if flags & 0x0F:
            raise WireError(f"transport header version {flags & 0x0F} instead of 0")
        if key != PKEY >> 8 & 0x7F or self.view[offset + 3] != PKEY & 0xFF:
            raise WireError("packet of a partition that is not the default one")
        if length & 3:
            raise WireError(f"packet of {length} bytes: padding is missing")
        if end < at:
            raise WireError("padding is longer than the payload")
        packet = Packet()
        packet.src = src
        packet.dst = dst
        packet.entropy = entropy
        packet.ecn = tos & 3
        packet.priority = CLASS_CONTROL if tos >> 2 == self.control_dscp else CLASS_DATA
        packet.solicited = flags & 0x80 != 0
        packet.qpn = get24(self.view, offset + 5)
        packet.ack_request = self.view[offset + 8] & 0x80 != 0
        packet.psn = get24(self.view, offset + 9)
        if opcode == UC_WRITE_ONLY_IMMEDIATE:
            if end - at < _RETH + _IMMEDIATE:
                raise WireError(f"no RETH and immediate in {end - at} bytes")
            packet.address = get32(self.view, at) << 32 | get32(self.view, at + 4)
            packet.rkey = get32(self.view, at + 8)
            reth_length = get32(self.view, at + 12)
            packet.seq = get32(self.view, at + 16)
            at += _RETH + _IMMEDIATE
            if reth_length != end - at:  # a NIC may report either, so neither is to be trusted alone
                raise WireError(f"RETH says {reth_length} bytes, {end - at} are there")
            self._place(packet, buffer, at, end)
        elif opcode == UC_SEND_ONLY_IMMEDIATE:
            if end - at < _IMMEDIATE + _TAG:
                raise WireError(f"no immediate and tag in {end - at} bytes")
            packet.seq = get32(self.view, at)
            packet.tag = get32(self.view, at + _IMMEDIATE)
            self._control(packet, CONTROL, at + _IMMEDIATE + _TAG, end)
        elif opcode == UC_SEND_ONLY:
            if end - at < _TAG:
                raise WireError(f"no tag in {end - at} bytes")
            packet.tag = get32(self.view, at)
            self._control(packet, DATAGRAM, at + _TAG, end)
        elif opcode == UD_SEND_ONLY:
            self._decode_ud(packet, buffer, at, end)
        elif opcode == CNP_OPCODE:
            if end - at != _CNP_PAYLOAD or flags & 0x30:
                raise WireError(f"CNP with {end - at} bytes after the BTH instead of {_CNP_PAYLOAD}")
            packet.kind = CNP
        else:
            raise WireError(f"BTH opcode {opcode:#04x} is not of ours")
        return packet

    def _decode_ud(self, packet: Packet, buffer: object, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> None:
        kind: cython.longlong
        if end - at < _DETH + _TAG + 1:
            raise WireError(f"no DETH, tag and type in {end - at} bytes")
        if get32(self.view, at) != QKEY:
            raise WireError("Q_Key is wrong")
        packet.src_qpn = get24(self.view, at + 5)
        at += _DETH
        packet.tag = get32(self.view, at)
        kind = self.view[at + 4]
        if kind != UD_DATA and kind != UD_CONTROL:
            self._control(packet, DATAGRAM, at + _TAG, end)
            return
        if end - at < _UD_CONTROL or get24(self.view, at + 5) != 0:
            raise WireError("UD header is cut short, or has reserved bytes that are not 0")
        packet.seq = get32(self.view, at + 8)
        if kind == UD_CONTROL:
            self._control(packet, CONTROL, at + _UD_CONTROL, end)
            return
        if end - at < _UD_DATA:
            raise WireError("UD data header is cut short")
        packet.rkey = get32(self.view, at + 12)
        packet.address = get32(self.view, at + 16) << 32 | get32(self.view, at + 20)
        self._place(packet, buffer, at + _UD_DATA, end)

    def _place(self, packet: Packet, buffer: object, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> None:
        packet.kind = DATA
        packet.payload = buffer  # type: ignore[assignment]
        packet.offset = at
        packet.length = packet.segment = packet.stride = end - at

    def _control(self, packet: Packet, kind: cython.longlong, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> None:
        packet.kind = kind
        packet.control = payloads.decode(self.source_window[at:end].tobytes(), kind == CONTROL)

    def frame(self, packet: Packet, index: int = 0, identification: int = 0, linktype: int = headers.ETHERNET) -> bytes:
        """Segment `index` as a whole frame, or as a raw IP packet (headers.RAW_IP). identification: of IPv4."""
        header, payload, trailer = self._encode(packet, index, 0 if self.icrc == ID0 else identification)
        body = b"".join((header, payload if payload is not None else b"", trailer))
        tos = self.traffic_class(packet)
        return (
            headers.build_headers(
                packet.src, packet.dst, packet.entropy, tos, self.hop_limit, identification, body, linktype
            )
            + body
        )

    def parse_frame(self, frame: bytes | bytearray | memoryview, linktype: int = headers.ETHERNET) -> Packet:
        """The packet in a frame or raw IP packet. What follows the IP datagram is ignored. Raises WireError."""
        self._attach(frame)
        window = self.source_window
        datagram = headers.find_datagram(window, linktype)
        if datagram.destination_port != ROCE_PORT:
            raise WireError(f"UDP destination port is {datagram.destination_port}, not {ROCE_PORT}")
        offset = datagram.udp + _UDP
        length = datagram.end - offset
        if datagram.udp_length != length + _UDP:
            raise WireError(f"UDP length is {datagram.udp_length}, but the IP datagram holds {length + _UDP} bytes")
        self._bounds(offset, length)
        if self.icrc != OFF:
            expected = headers.expected_icrc(window, datagram, 0 if self.icrc == ID0 else None)
            found = int.from_bytes(window[datagram.end - _ICRC : datagram.end], "little")
            if found != expected:
                raise WireError(f"ICRC is {found:#010x}, should be {expected:#010x}")
        return self._decode(frame, offset, length, datagram.src, datagram.dst, datagram.source_port, datagram.tos)
