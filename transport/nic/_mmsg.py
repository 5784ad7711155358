"""Datagrams in batches between buffers and UDP sockets: the plain-Python sibling of _mmsg.pyx, one system call each.

Python imports the compiled one instead where it was built; it needs one system call a batch. Both have one interface
and give the same results. Ports and addresses are numbers and bytes, the destination port of a Sender is fixed, and
every socket is a non-blocking one.
"""

from __future__ import annotations

import errno
import select
import socket
from array import array
from struct import Struct

COMPILED = False

_INT = Struct("i")
_ANCILLARY = socket.CMSG_SPACE(_INT.size)
_MAX_NAMES = 4096
_SELECT_LIMIT = 1024  # FD_SETSIZE


class Sender:
    """A batch of at most `capacity` datagrams to UDP port `port`; scope: of link-local destinations.

    pending: datagrams added and not sent. failed: destination of the one that `send` reported an errno for.
    """

    def __init__(self, capacity: int, port: int, scope: int) -> None:
        self.capacity = capacity
        self.port = port
        self.scope = scope
        self.pending = 0
        self.failed = b""
        self.stalled = -1
        self._sockets: list[socket.socket] = []
        self._names: dict[bytes, tuple[str, int] | tuple[str, int, int, int]] = {}
        self._entries: list[tuple[int, bytes, int, list[bytes | memoryview]]] = []
        self._owners: list[int] = []
        self._done: list[bool] = []

    def register(self, sock: socket.socket) -> int:
        """Make a socket known; the number returned names it in `add`."""
        self._sockets.append(sock)
        return len(self._sockets) - 1

    def room(self) -> int:
        """Datagrams that can be added. All of them when nothing is pending."""
        return self.capacity - len(self._entries)

    def add(
        self,
        path: int,
        address: bytes,
        tos: int,
        owner: int,
        header: bytes,
        payload: memoryview | None,
        trailer: bytes,
    ) -> None:
        """Add a datagram to leave by socket `path` to `address`, 4 or 16 bytes, as the socket's family wants. Nothing
        is copied: buffers are read when it is sent. owner: ascending number of what it belongs to, see `settle`."""
        if len(self._entries) >= self.capacity:
            raise IndexError("batch is full")
        if self._sockets[path].family != (socket.AF_INET if len(address) == 4 else socket.AF_INET6):
            raise ValueError(f"address {address.hex()} is not of the socket's family")
        parts: list[bytes | memoryview] = [header, trailer] if payload is None else [header, payload, trailer]
        self._entries.append((path, address, tos, parts))
        self._owners.append(owner)
        self._done.append(False)
        self.pending += 1

    def send(self) -> int:
        """Send what is pending, socket by socket, in order on each. Returns 0, or the errno that stopped it.

        An ICMP error about an earlier datagram (ECONNREFUSED) is no news and does not stop it. After EAGAIN and
        ENOBUFS, `stalled` is the file descriptor to wait for.
        """
        self.stalled = -1
        order: dict[int, list[int]] = {}
        for index, done in enumerate(self._done):
            if not done:
                order.setdefault(self._entries[index][0], []).append(index)
        for path, indexes in order.items():
            for index in indexes:
                error = self._send_one(self._sockets[path], index)
                if error:
                    return error
        self.clear()
        return 0

    def _send_one(self, sock: socket.socket, index: int) -> int:
        _, address, tos, parts = self._entries[index]
        if sock.family == socket.AF_INET:
            ancillary = [(socket.IPPROTO_IP, socket.IP_TOS, _INT.pack(tos))]
        else:
            ancillary = [(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _INT.pack(tos))]
        refused = 0
        while True:
            try:
                sock.sendmsg(parts, ancillary, 0, self._name(address))
            except OSError as error:
                number = error.errno or errno.EIO
                if number == errno.ECONNREFUSED and refused < 8:
                    refused += 1
                    continue
                if number in (errno.EAGAIN, errno.ENOBUFS):
                    self.stalled = sock.fileno()
                self.failed = address
                return number
            self._done[index] = True
            self.pending -= 1
            return 0

    def _name(self, address: bytes) -> tuple[str, int] | tuple[str, int, int, int]:
        name = self._names.get(address)
        if name is None:
            if len(address) == 4:
                name = (socket.inet_ntop(socket.AF_INET, address), self.port)
            else:
                link_local = address[0] == 0xFE and address[1] & 0xC0 == 0x80
                name = (socket.inet_ntop(socket.AF_INET6, address), self.port, 0, self.scope if link_local else 0)
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[address] = name
        return name

    def settle(self) -> int:
        """After a stall: give up the datagrams of all owners of which none was sent and none of a later owner was. The
        others stay, owned by -1. Returns the last owner of which something was sent, -1 if there is none."""
        last = max((owner for owner, done in zip(self._owners, self._done, strict=True) if done), default=-1)
        for index, owner in enumerate(self._owners):
            if not self._done[index] and owner > last:
                self._done[index] = True
                self.pending -= 1
            self._owners[index] = -1
        if self.pending == 0:
            self.clear()
        return last

    def clear(self) -> None:
        """Forget all datagrams and let go of their buffers."""
        self._entries.clear()
        self._owners.clear()
        self._done.clear()
        self.pending = 0


class Receiver:
    """Receives into `slots` slots of `slot_size` bytes each, in one buffer.

    What the last `receive` found, per slot: sources, ports, tos, lengths (-1 for a datagram that did not fit).
    """

    def __init__(self, sock: socket.socket, buffer: bytearray, slots: int, slot_size: int) -> None:
        if len(buffer) < slots * slot_size:
            raise ValueError("buffer is too small")
        self.sources: list[bytes] = [b""] * slots
        self.ports = array("i", bytes(4 * slots))
        self.tos = array("i", bytes(4 * slots))
        self.lengths = array("i", bytes(4 * slots))
        self._socket = sock
        self._slots = slots
        view = memoryview(buffer)
        self._views = [view[i * slot_size : (i + 1) * slot_size] for i in range(slots)]
        self._names: dict[str, bytes] = {}

    def receive(self, limit: int) -> int:
        """Fill slots from the first on with at most `limit` datagrams that have arrived; return how many. Never blocks.
        OSError if the socket fails."""
        count = min(limit, self._slots)
        for index in range(count):
            try:
                length, ancillary, flags, name = self._socket.recvmsg_into([self._views[index]], _ANCILLARY)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED):
                    return index
                raise
            self.lengths[index] = -1 if flags & socket.MSG_TRUNC else length
            self.sources[index] = self._source(name[0])
            self.ports[index] = name[1]
            tos = 0
            for level, kind, data in ancillary:
                if (level, kind) in ((socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)):
                    tos = data[0]
            self.tos[index] = tos
        return max(count, 0)

    def _source(self, name: str) -> bytes:
        source = self._names.get(name)
        if source is None:
            plain = name.partition("%")[0]
            source = socket.inet_pton(socket.AF_INET6 if ":" in plain else socket.AF_INET, plain)
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[name] = source
        return source


def wait(readable: int, writable: int, timeout: int) -> bool:
    """Wait until one file descriptor can be read, or another (-1: none) written; at most `timeout` nanoseconds, -1 for
    no limit, 0 to look only. Says whether one can. Here it may take up to a millisecond longer than asked when a
    descriptor is above 1023."""
    if max(readable, writable) < _SELECT_LIMIT:
        writables = [writable] if writable >= 0 else []
        ready = select.select([readable], writables, [], None if timeout < 0 else timeout / 1e9)
        return bool(ready[0] or ready[1])
    poll = select.poll()
    poll.register(readable, select.POLLIN)
    if writable >= 0:
        poll.register(writable, select.POLLOUT)
    return bool(poll.poll(None if timeout < 0 else timeout / 1e6))
