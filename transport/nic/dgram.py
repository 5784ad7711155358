"""RoCEv2 over UDP sockets that asyncio-dgram moves, for systems without Linux's calls for batches and ancillary data.

What a Nic on sockets does is in transport.nic.udp; here is only how a datagram gets into a socket and out of one. Made
outside of an event loop, the Nic has a loop of its own, which runs inside `send`, `receive` and `wait` and nowhere
else. Made inside a running one it lives there, without a thread; then `on_arrival` is called when something has come.

Not done: ECN. Without ancillary data a receiver cannot see CE, so packets leave as not ECN-capable, all that arrives is
NOT_ECT and CLASS_DATA, and `caps.ecn` is False. DSCP is a property of a socket and set when it changes.
"""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from transport.clock import US, Time
from transport.errors import ConfigError, NicError
from transport.nic import _mmsg, realtime
from transport.nic.streams import Arrivals, Name, Notify, Room, Strays, Stream
from transport.nic.udp import BATCH, UdpNic

_MAX_NAMES = 4096
#: Waits spin for their last part: the kernel's timers are this late by default (prctl(2), timer slack).
_SPIN = 50 * US

#: A datagram of a batch: owner, path, destination, type of service, what it is made of.
Entry = tuple[int, int, bytes, int, list[bytes | memoryview]]
#: Rounds of the loop beyond the datagrams wanted, for those that come to sockets which nobody reads.
_MORE_ROUNDS = 16


class _Sender:
    """A batch of at most `capacity` datagrams, as transport.nic._mmsg.Sender has it.

    register: makes a stream of a socket. turn: lets the loop find out what has room again. failed: destination of the
    datagram that `send` reported an errno for. full: the sockets that take nothing now.
    """

    def __init__(
        self, capacity: int, port: int, scope: int, register: Callable[[socket.socket], Stream], turn: Notify
    ) -> None:
        self.capacity = capacity
        self.port = port
        self.scope = scope
        self.failed = b""
        self.streams: list[Stream] = []
        self.full: set[Room] = set()
        self._register = register
        self._turn = turn
        self._names: dict[bytes, Name] = {}
        self._entries: list[Entry] = []
        self._last = -1

    @property
    def pending(self) -> int:
        """Datagrams added and not sent."""
        return len(self._entries)

    def register(self, sock: socket.socket) -> int:
        """Make a socket known; the number returned names it in `add`."""
        self.streams.append(self._register(sock))
        return len(self.streams) - 1

    def add(
        self, path: int, address: bytes, tos: int, owner: int, header: bytes, payload: memoryview | None, trailer: bytes
    ) -> None:
        """Add a datagram; buffers are read when it is sent. owner: ascending number of what it belongs to."""
        if len(self._entries) >= self.capacity:
            raise IndexError("batch is full")
        parts: list[bytes | memoryview] = [header, trailer] if payload is None else [header, payload, trailer]
        self._entries.append((owner, path, address, tos & ~3, parts))

    def send(self) -> int:
        """Send what is pending, socket by socket, in order on each. 0, or the errno that stopped it; EAGAIN: a socket
        is full."""
        if self.full:
            self._turn()
        order: dict[int, list[Entry]] = {}
        for entry in self._entries:
            order.setdefault(entry[1], []).append(entry)
        left = set(map(id, self._entries))
        for path, entries in order.items():
            stream = self.streams[path]
            for entry in entries:
                owner, _, address, tos, parts = entry
                error = stream.send(b"".join(parts), self._name(address), tos)
                if error:
                    self.failed = address
                    self._entries = [entry for entry in self._entries if id(entry) in left]
                    return error
                left.discard(id(entry))
                self._last = max(self._last, owner)
        self.clear()
        return 0

    def settle(self) -> int:
        """After EAGAIN: give up the datagrams of all owners of which none was sent and none of a later owner was. The
        others stay, owned by -1. Returns the last owner of which something was sent, -1 if there is none."""
        last, self._last = self._last, -1
        self._entries = [(-1, *entry[1:]) for entry in self._entries if entry[0] <= last]
        return last

    def clear(self) -> None:
        """Forget all datagrams and let go of their buffers."""
        self._entries = []
        self._last = -1

    def _name(self, address: bytes) -> Name:
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


class _Receiver:
    """Arrivals into slots of one buffer, as transport.nic._mmsg.Receiver has it."""

    def __init__(self, stream: Stream, arrivals: Arrivals, buffer: bytearray, slots: int, turn: Callable[[int], None]):
        self.stream = stream
        self.arrivals = arrivals
        self.slot_size = len(buffer) // slots
        self.slots = slots
        self.sources = [b""] * slots
        self.ports = [0] * slots
        self.tos = [0] * slots
        self.lengths = [0] * slots
        self._turn = turn
        self._view = memoryview(buffer)
        self._names: dict[str, bytes] = {}

    def receive(self, limit: int) -> int:
        """Fill slots from the first on with at most `limit` datagrams; return how many. OSError if the socket fails."""
        limit = min(limit, self.slots)
        if self.arrivals.qsize() < limit:
            self._turn(limit)
        count = max(0, min(limit, self.arrivals.qsize()))
        error = 0 if count else self.stream.faults.take()
        if error:
            raise OSError(error, errno.errorcode.get(error, "unknown"))
        for index in range(count):
            data, name = self.arrivals.get_nowait()
            length = len(data)
            self.sources[index] = self._source(name[0])
            self.ports[index] = name[1]
            if length > self.slot_size:
                self.lengths[index] = -1
                continue
            at = index * self.slot_size
            self._view[at : at + length] = data
            self.lengths[index] = length
        return count

    def _source(self, name: str) -> bytes:
        source = self._names.get(name)
        if source is None:
            plain = name.partition("%")[0]
            source = socket.inet_pton(socket.AF_INET6 if ":" in plain else socket.AF_INET, plain)
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[name] = source
        return source


class DgramNic(UdpNic):
    """One host address on UDP, see the module's text; arguments and errors are those of UdpNic.

    max_queued: datagrams that wait for `receive`; what comes beyond that is dropped and counted as overrun. Inside a
    running loop a socket opens while the loop goes round: until then its packets are not taken. `wait` is an error
    there.
    """

    def __init__(
        self, address: str, entropies: Sequence[int], *args: Any, max_queued: int = 4096, **knobs: Any
    ) -> None:
        if not 1 <= max_queued <= 1 << 20:
            raise ConfigError(f"max_queued = {max_queued!r}: allowed are whole numbers from 1 to {1 << 20}")
        self._hook: Callable[[], object] | None = None
        self._arrivals = Arrivals(max_queued, self._notify)
        self._strays = Strays()
        self._streams: list[Stream] = []
        self._rounds = self._wanted = self._seen = 0
        self._loop = _running_loop()
        self._selector: Any = None
        if self._loop is None:
            self._selector = selectors.DefaultSelector()
            if not hasattr(self._selector, "fileno"):
                self._selector.close()
                raise NicError("a loop of its own needs epoll, kqueue or /dev/poll, which this system does not have")
            self._loop = asyncio.SelectorEventLoop(self._selector)
        try:
            super().__init__(address, entropies, *args, **knobs)
        except BaseException:
            self._close_streams()
            raise
        self.caps = replace(self.caps, ecn=False)
        self.fd = -1 if self._selector is None else self._selector.fileno()

    @property
    def on_arrival(self) -> Callable[[], object] | None:
        """Called inside the running loop when something has come, or can be sent again. Not there without such a
        loop."""
        if self._selector is not None:
            raise AttributeError("on_arrival: this Nic was not made inside a running event loop")
        return self._hook

    @on_arrival.setter
    def on_arrival(self, hook: Callable[[], object] | None) -> None:
        self._hook = hook
        if not self._arrivals.empty():
            self._notify()

    def backlog(self) -> int:
        """Datagrams of taken packets that wait for room in a socket."""
        return int(self.sender.pending) + len(self.sender.full)

    def counters(self) -> dict[str, int]:
        """As UdpNic; overrun: dropped here because max_queued were waiting. What the kernel drops is not known.
        strays: came to a source port, where nothing is received, and were dropped."""
        self._check_open()
        return {
            "sent": self.sent, "received": self.received, "malformed": self.malformed, "bad_icrc": self.bad_icrc,
            "truncated": self.truncated, "overrun": self._arrivals.dropped, "strays": self._strays.came,
        }  # fmt: skip

    def wait(self, until: Time | None) -> None:
        """Also returns when a socket that was full can send again."""
        self._check_open()
        if self._selector is None:
            raise NicError("wait would stop the running event loop, and with it this Nic: use on_arrival")
        stream, full = self.receiver.stream, len(self.sender.full)
        while self._arrivals.empty() and stream.faults.empty() and len(self.sender.full) >= full:
            timeout = -1
            if until is not None:
                left = until - realtime.now()
                if left <= 0:
                    return
                timeout = 0 if self.busy_poll or left <= _SPIN else (left - _SPIN) // 1000
            elif self.busy_poll:
                timeout = 0
            if _mmsg.wait(self.fd, -1, timeout):
                self._turn(1)

    def close(self) -> None:
        self.closed = True
        self.sender.clear()
        self._close_streams()

    def _notify(self) -> None:
        if self._hook is not None:
            self._hook()

    def _make_sender(self, port: int) -> Any:
        return _Sender(BATCH, port, self.scope, self._register, self._flush_loop)

    def _make_receiver(self) -> Any:
        return _Receiver(self._streams[0], self._arrivals, self.arena, BATCH, self._turn)

    def _prepare_receive(self, size: int) -> None:
        self._set_receive_buffer(size)
        self._open_stream(self.socket, self._arrivals)

    def _register(self, sock: socket.socket) -> Stream:
        return self._open_stream(sock, self._strays)

    def _open_stream(self, sock: socket.socket, queue: Arrivals | Strays) -> Stream:
        room = Room(self.sender.full, self._notify)
        stream = Stream(sock, queue, room, self.slot_size + 1)
        self._streams.append(stream)
        assert self._loop is not None
        if self._selector is None:
            stream.start(self._loop)
        else:
            self._run(stream.open(self._loop))
        return stream

    def _run(self, coroutine: Any = None) -> None:
        """Run the loop of its own: to the end of a coroutine, or until it is stopped."""
        assert self._loop is not None
        if _running_loop() is not None:
            if coroutine is not None:
                coroutine.close()
            raise NicError("a Nic made outside of an event loop cannot be used inside a running one")
        if coroutine is not None:
            self._loop.run_until_complete(coroutine)
        else:
            self._loop.run_forever()

    def _flush_loop(self) -> None:
        self._turn(1)

    def _turn(self, wanted: int) -> None:
        """Let the loop of its own read until `wanted` datagrams wait or nothing is there, and send what sockets had no
        room for. A running loop does that by itself."""
        if self._selector is None or not _mmsg.wait(self.fd, -1, 0):
            return
        assert self._loop is not None
        self._wanted, self._seen, self._rounds = wanted, -1, wanted + _MORE_ROUNDS
        self._loop.call_soon(self._round)
        self._run()

    def _round(self) -> None:
        """Before each round of the loop: go on only if the one before has brought something."""
        assert self._loop is not None
        seen = self._arrivals.came + self._strays.came
        self._rounds -= 1
        if seen == self._seen or self._arrivals.qsize() >= self._wanted or self._rounds <= 0:
            self._loop.stop()
        else:
            self._seen = seen
            self._loop.call_soon(self._round)

    def _close_streams(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()
        for sock in getattr(self, "sockets", None) or ():
            if all(stream.sock is not sock for stream in streams):
                sock.close()
        if self._selector is None or self._loop is None or self._loop.is_closed():
            return
        if _running_loop() is None:
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()  # let the transports say goodbye
        self._loop.close()


#: The Nics on sockets, by name: that of Linux, and that of any system with asyncio.
SOCKETS: dict[str, type[UdpNic]] = {"udp": UdpNic, "dgram": DgramNic}


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
