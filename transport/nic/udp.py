"""RoCEv2 over Linux UDP sockets: one receives on port 4791, and one for each path sends from that path's source port.

Batches cross the kernel in one system call a socket (transport.nic._mmsg), a run as one datagram a segment. ECN and
DSCP are set on each datagram and read from each. Datagrams carry DF; over IPv4 their identification is 0, so an ICRC in
mode ID0 is exact on the wire. What arrives next to each other and continues a run is one Packet again.

Not done: UDP segmentation and receive offload, kernel timestamps, path MTU discovery (the link's own MTU is checked
when the Nic is opened; a datagram that does not fit further on is a NicError). Sockets keep no priority order among
what is on its way.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any

import cython

from transport.clock import US, Time
from transport.errors import ConfigError, LinkDownError, NicError, WireError
from transport.nic import _mmsg, link, realtime
from transport.nic.base import VERBS_MTUS, NicCaps
from transport.packet import DATA, PSN_MASK, SEQ_MASK, Packet
from transport.wire import ID0, MODES, OFF, ROCE_PORT, Codec

#: Datagrams of one batch in each direction; no run may be longer.
BATCH = 256

#: Bytes of an arena slot beyond the MTU: BTH, RETH, immediate, padding and ICRC, up to a multiple of a cache line.
_SLOT_HEADERS = 64

#: Waits spin for their last part, because the kernel's timers are this late by default (prctl(2), timer slack).
_SPIN = 50 * US

#: What Linux says while an interface is down, its address or route is gone, or a firewall is in the way. A bound socket
#: survives all of that.
_DOWN = frozenset(
    {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EPERM}
)

_SEND_BUFFER = 1 << 20
_SINK_BUFFER = 2048

_LINUX = sys.platform == "linux"

# Of linux/in.h, linux/in6.h and asm-generic/socket.h; the socket module does not have them.
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_PMTUDISC_DO = 2
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55
_MEMINFO = Struct("9I")


def _resolve(address: str) -> tuple[int, bytes, int]:
    """(family, address as 4 or 16 bytes, IPv6 scope) of a numeric unicast address; ConfigError if it is none."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
    except (OSError, UnicodeError, TypeError):
        raise ConfigError(f"address = {address!r}: allowed is one numeric IPv4 or IPv6 address of this host") from None
    family, name = found[0], found[4]
    packed = socket.inet_pton(family, str(name[0]).partition("%")[0])
    if not any(packed):
        raise ConfigError(f"address = {address!r}: the ICRC needs one address of this host, not all of them")
    return family, packed, int(name[3]) if len(name) == 4 else 0


def _bind(family: int, address: str, scope: int, port: int) -> socket.socket:
    """A non-blocking UDP socket bound to (address, port); OSError of the system, the caller names it."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if _LINUX:
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_DO)
            sock.bind((address.partition("%")[0], port, 0, scope))
        else:
            if _LINUX:
                sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)
            sock.bind((address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _set_buffer(sock: socket.socket, force: int, plain: int, size: int) -> None:
    """Set a socket buffer to `size` bytes, or to what the system's limit allows an unprivileged process."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, force if _LINUX else plain, size)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, plain, size)


def _bind_error(address: str, port: int, error: OSError) -> NicError:
    if error.errno == errno.EADDRINUSE:
        return NicError(f"UDP {_endpoint(address, port)} is in use")
    return NicError(f"UDP {_endpoint(address, port)} cannot be bound: {error.strerror}")


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def free_entropies(addresses: Sequence[str], wanted: Iterable[int], count: int) -> list[int]:
    """The first `count` of the `wanted` source ports that can be bound on all `addresses` now. NicError if there are
    fewer.

    Nothing is reserved: another process may be faster.
    """
    found: list[int] = []
    tried = 0
    for port in wanted:
        if len(found) == count:
            break
        tried += 1
        if all(_is_free(address, port) for address in addresses):
            found.append(port)
    if len(found) < count:
        shown = ", ".join(addresses)
        raise NicError(f"only {len(found)} of {tried} source ports can be bound on {shown}, {count} are needed")
    return found


def _is_free(address: str, port: int) -> bool:
    family, _, scope = _resolve(address)
    try:
        _bind(family, address, scope, port).close()
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise _bind_error(address, port, error) from error
        return False
    return True


class UdpNic:
    """One host address on UDP; see the module's text.

    address: numeric IPv4 or IPv6, of this host. entropies: source ports to send from, opened at once. A packet with
    another entropy (a reply, which leaves on the path that its trigger came by) opens a socket for it, up to
    max_sockets in all; if that is not possible, it leaves by one of `entropies`, always the same. port: of the receive
    socket, and of every destination. mtu: payload bytes of a segment. icrc: ID0 or OFF of transport.wire.
    receive_buffer: bytes, as far as the system allows. busy_poll: `wait` spins instead of sleeping. max_run: longest
    run that is put together, and that caps promise. data_dscp, control_dscp: DSCP of the traffic classes. rate,
    base_rtt: what caps say.

    ConfigError for values that are not allowed; NicError, which names address and port, if the system refuses.
    """

    def __init__(
        self,
        address: str,
        entropies: Sequence[int],
        port: int = ROCE_PORT,
        mtu: int = 4096,
        icrc: int = ID0,
        *,
        receive_buffer: int = 16 << 20,
        busy_poll: bool = False,
        max_run: int = 64,
        max_sockets: int = 256,
        data_dscp: int = 26,
        control_dscp: int = 48,
        rate: int = 10_000_000_000,
        base_rtt: Time = 50 * US,
    ) -> None:
        if mtu not in VERBS_MTUS:
            raise ConfigError(f"mtu = {mtu!r}: allowed are the verbs MTUs {', '.join(map(str, VERBS_MTUS))}")
        for name, value, low, high in (
            ("port", port, 1, 65535), ("max_run", max_run, 1, BATCH), ("receive_buffer", receive_buffer, 1, 1 << 30),
            ("number of entropies", len(entropies), 1, max_sockets), ("data_dscp", data_dscp, 0, 63),
            ("control_dscp", control_dscp, 0, 63), *(("entropy", entropy, 1, 65535) for entropy in entropies),
        ):  # fmt: skip
            if not low <= value <= high:
                raise ConfigError(f"{name} = {value!r}: allowed are whole numbers from {low} to {high}")
        if icrc not in (ID0, OFF):
            names = [name for name, mode in MODES.items() if mode in (ID0, OFF)]
            raise ConfigError(f"icrc = {icrc!r}: a UDP socket allows {' and '.join(names)}")
        self.family, self.address, self.scope = _resolve(address)
        link.check_mtu(mtu, address, self.address)
        self.text = address
        self.port_number = port
        self.max_run = max_run
        self.max_sockets = max_sockets
        self.busy_poll = busy_poll
        self.entropies = list(dict.fromkeys(entropies))
        self.caps = NicCaps(mtu=mtu, max_run=max_run, max_entropies=max_sockets, ecn=True, rate=rate, base_rtt=base_rtt)
        self.codec = Codec(icrc, data_dscp=data_dscp, control_dscp=control_dscp)
        self.unchecked = Codec(OFF, data_dscp=data_dscp, control_dscp=control_dscp)
        self.sockets: list[socket.socket] = []
        self.paths: dict[int, int] = {}  # source port -> number in the sender
        self.aliases: dict[int, int] = {}  # entropy without a socket -> source port that stands for it
        self.slot_size = mtu + _SLOT_HEADERS
        self.arena = bytearray(BATCH * self.slot_size)
        self.sent = 0
        self.received = 0
        self.malformed = 0
        self.bad_icrc = 0
        self.truncated = 0
        self.closed = False
        self.sender = self._make_sender(port)
        try:
            self.socket = self._open(port)
            self._prepare_receive(receive_buffer)
            for entropy in self.entropies:
                self._open_path(entropy)
        except BaseException:
            self.close()
            raise
        self.fd = self.socket.fileno()
        self.receiver = self._make_receiver()

    def _make_sender(self, port: int) -> Any:
        """What moves datagrams out: with the interface of _mmsg.Sender."""
        return _mmsg.Sender(BATCH, port, self.scope)

    def _make_receiver(self) -> Any:
        """What moves datagrams in: with the interface of _mmsg.Receiver."""
        return _mmsg.Receiver(self.socket, self.arena, BATCH, self.slot_size)

    def _open(self, port: int) -> socket.socket:
        try:
            sock = _bind(self.family, self.text, self.scope, port)
        except OSError as error:
            raise _bind_error(self.text, port, error) from error
        self.sockets.append(sock)
        return sock

    def _prepare_receive(self, size: int) -> None:
        self._set_receive_buffer(size)
        if self.family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        else:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)

    def _set_receive_buffer(self, size: int) -> None:
        _set_buffer(self.socket, _SO_RCVBUFFORCE, socket.SO_RCVBUF, size)

    def _open_path(self, entropy: int) -> int:
        """Open the socket that sends from source port `entropy`; its number in the sender."""
        sock = self._open(entropy)
        _set_buffer(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, _SEND_BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SINK_BUFFER)  # nobody reads it
        path: int = self.sender.register(sock)
        self.paths[entropy] = path
        return path

    def now(self) -> Time:
        return realtime.now()

    def fileno(self) -> int:
        """Readable when something has arrived."""
        return int(self.fd)

    def backlog(self) -> int:
        """Datagrams of taken packets that wait for room in a socket."""
        return int(self.sender.pending)

    def counters(self) -> dict[str, int]:
        """Datagrams sent and received; of those received, malformed, with a bad_icrc, and truncated (longer than a
        slot) ones were dropped. overrun: dropped by the kernel because the receive buffer was full."""
        self._check_open()
        info = _MEMINFO.unpack(self.socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))
        return {
            "sent": self.sent, "received": self.received, "malformed": self.malformed, "bad_icrc": self.bad_icrc,
            "truncated": self.truncated, "overrun": info[8],
        }  # fmt: skip

    def send(self, packets: Sequence[Packet]) -> int:
        """Send in order on each path. Payload buffers are read by the kernel, not copied before.

        When a socket is full, packets of which a part was sent, and those before them, count as taken; what is left of
        them is sent first by the next call. NicError if the system refuses a datagram, LinkDownError if the link
        is down; what was not sent is lost then.
        """
        self._check_open()
        try:
            return self._send(packets)
        except BaseException:
            self.sender.clear()
            raise

    def _send(self, packets: Sequence[Packet]) -> cython.longlong:
        sender = self.sender
        total: cython.longlong = len(packets)
        taken: cython.longlong = 0
        following: cython.longlong = 0
        room: cython.longlong
        if sender.pending and not self._flush():
            sender.settle()
            return 0
        while taken < total:
            room = BATCH
            while following < total:
                packet: Packet = packets[following]
                if packet.count > room:
                    break
                room -= packet.count
                self._add(packet, following)
                following += 1
            if following == taken:
                raise NicError(f"run of {packets[taken].count} segments: at most {BATCH} are possible")
            if not self._flush():
                return max(taken, int(sender.settle()) + 1)
            taken = following
        return taken

    def _add(self, packet: Packet, owner: cython.longlong) -> None:
        """Encode all segments of a packet into the batch."""
        codec: Codec = self.codec
        index: cython.longlong
        path = self.paths.get(packet.entropy)
        if path is None:
            path = self._path(packet.entropy)
            packet = packet.copy()  # the ICRC covers the source port
            packet.entropy = self.aliases.get(packet.entropy, packet.entropy)
        if len(packet.dst) != len(self.address):
            raise NicError(f"destination {packet.dst.hex()} is not of the address family of {self.text}")
        if packet.src != self.address:
            raise NicError(f"a packet from {packet.src.hex()} cannot leave from {self.text}")
        tos = codec.traffic_class(packet)
        for index in range(packet.count):
            header, payload, trailer = codec.encode(packet, index)
            self.sender.add(path, packet.dst, tos, owner, header, payload, trailer)

    def _path(self, entropy: int) -> int:
        """The path for a source port that is not open: opened now, or the one that stands for it."""
        alias = self.aliases.get(entropy)
        if alias is None:
            if len(self.paths) < self.max_sockets and 0 < entropy < 1 << 16:
                with suppress(NicError):
                    return self._open_path(entropy)
            alias = self.entropies[entropy % len(self.entropies)]
            self.aliases[entropy] = alias
        return int(self.paths[alias])

    def _flush(self) -> cython.bint:
        """Send the batch; False if a socket is full. NicError if the system refuses."""
        sender = self.sender
        before: cython.longlong = sender.pending
        error: cython.longlong = sender.send()
        self.sent += before - sender.pending
        if error == 0:
            return True
        if error == errno.EAGAIN or error == errno.ENOBUFS:
            return False
        self._refused(error)
        return False

    def _refused(self, error: int) -> None:
        target = _endpoint(socket.inet_ntop(self.family, self.sender.failed), self.port_number)
        reason = os.strerror(error)
        if error == errno.EMSGSIZE:
            reason += f" (the MTU of the way there is too small for mtu {self.caps.mtu})"
        raise (LinkDownError if error in _DOWN else NicError)(f"UDP from {self.text} to {target}: {reason}")

    def receive(self, limit: int) -> list[Packet]:
        self._check_open()
        try:
            count = self.receiver.receive(limit)
        except OSError as error:
            kind = LinkDownError if error.errno in _DOWN else NicError
            raise kind(f"UDP {_endpoint(self.text, self.port_number)}: {error.strerror}") from error
        return self._packets(count) if count else []

    def _packets(self, count: cython.longlong) -> list[Packet]:
        """The packets in the first `count` slots of the arena."""
        codec: Codec = self.codec
        receiver = self.receiver
        lengths, sources, ports, classes = receiver.lengths, receiver.sources, receiver.ports, receiver.tos
        packets: list[Packet] = []
        last: Packet | None = None
        packet: Packet
        now: cython.longlong = realtime.now()
        length: cython.longlong
        i: cython.longlong
        self.received += count
        for i in range(count):
            length = lengths[i]
            if length < 0:
                self.truncated += 1
                continue
            try:
                packet = codec.decode(
                    self.arena, i * self.slot_size, length, sources[i], self.address, ports[i], classes[i]
                )
            except WireError:
                self._drop(i)
                continue
            packet.received_at = now
            if last is not None and self._continues(last, packet):
                last.count += 1
                last.length += packet.length
                last.ack_request = packet.ack_request
                last.solicited = packet.solicited
            else:
                if packet.kind == DATA:
                    packet.stride = self.slot_size
                    last = packet
                else:
                    last = None
                packets.append(packet)
        return packets

    def _continues(self, run: Packet, packet: Packet) -> cython.bint:
        """Whether a packet is the next segment of a run that ends in the slot before."""
        count: cython.longlong = run.count
        segment: cython.longlong = run.segment
        return (
            packet.kind == DATA
            and packet.seq == (run.seq + count) & SEQ_MASK
            and packet.psn == (run.psn + count) & PSN_MASK
            and packet.offset == run.offset + count * run.stride
            and 0 < packet.length <= segment
            # Only whole segments of a verbs MTU have a next one of the same message; what asks for an ACK ends a run.
            and run.length == count * segment
            and segment & (segment - 1) == 0
            and segment >= 256
            and not run.ack_request
            and not run.solicited
            and count < self.max_run
            and packet.rkey == run.rkey
            and packet.qpn == run.qpn
            and packet.address > run.address
            and packet.address - run.address == run.length
            and packet.entropy == run.entropy
            and packet.ecn == run.ecn
            and packet.priority == run.priority
            and packet.src == run.src
        )

    def _drop(self, slot: int) -> None:
        """Count the datagram in a slot, which did not parse: as one with a bad ICRC if only that is wrong."""
        receiver = self.receiver
        at = slot * self.slot_size
        try:
            self.unchecked.decode(self.arena, at, receiver.lengths[slot], receiver.sources[slot], self.address, 0)
        except WireError:
            self.malformed += 1
        else:
            self.bad_icrc += 1

    def wait(self, until: Time | None) -> None:
        """Also returns when a socket that was full can send again."""
        self._check_open()
        sender = self.sender
        left: cython.longlong
        while True:
            if until is None:
                left = -1
            else:
                left = until - realtime.now()
                if left <= 0:
                    return
            timeout: cython.longlong = 0
            if not self.busy_poll:
                if left < 0:
                    timeout = -1
                elif left > _SPIN:
                    timeout = (left - _SPIN) // 1000
            if _mmsg.wait(self.fd, sender.stalled, timeout):
                return

    def close(self) -> None:
        self.closed = True
        self.sender.clear()
        for sock in self.sockets:
            sock.close()

    def _check_open(self) -> None:
        if self.closed:
            raise NicError(f"UDP {_endpoint(self.text, self.port_number)} is closed")
