"""Streams of asyncio-dgram as a Nic needs them: bounded, without tasks, and telling what a socket said.

The streams that asyncio_dgram.bind makes queue without a bound and report a datagram's error with the next one. Here
they are made of the same parts around queues of our own. A queue is never waited on: whoever reads it looks into it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any, Literal

from asyncio_dgram.aio import DatagramServer, Protocol, TransportClosed

Name = tuple[str, int] | tuple[str, int, int, int]
Notify = Callable[[], None]


class Arrivals(asyncio.Queue[Any]):
    """What came to the receive socket, bounded. came: all that did; dropped: for which there was no room."""

    def __init__(self, bound: int, notify: Notify) -> None:
        super().__init__(bound)
        self.came = 0
        self.dropped = 0
        self.notify = notify

    def put_nowait(self, item: Any) -> None:
        if item[0] is None:  # the stream's end
            return
        self.came += 1
        if self.full():
            self.dropped += 1
            return
        super().put_nowait(item)
        if self.qsize() == 1:
            self.notify()


class Strays(asyncio.Queue[Any]):
    """What came to a source port: nothing that anybody wants. Counted, not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.came = 0

    def put_nowait(self, item: Any) -> None:
        self.came += item[0] is not None


class Faults(asyncio.Queue[Exception]):
    """The first error of a socket that was not reported yet. An ICMP error about an earlier datagram is no news."""

    def __init__(self) -> None:
        super().__init__(1)

    def put_nowait(self, item: Exception) -> None:
        if getattr(item, "errno", None) != errno.ECONNREFUSED and not self.full():
            super().put_nowait(item)

    def take(self) -> int:
        """Its number, and forget it; 0 if there is none."""
        if self.empty():
            return 0
        return getattr(self.get_nowait(), "errno", None) or errno.EIO


class Room(asyncio.Event):
    """Set while a socket takes datagrams; `full` has those that do not."""

    def __init__(self, full: set[Room], notify: Notify) -> None:
        super().__init__()
        self.full_ones = full
        self.notify = notify
        self.clear()

    def set(self) -> None:
        super().set()
        if self in self.full_ones:
            self.full_ones.discard(self)
            self.notify()

    def clear(self) -> None:
        super().clear()
        self.full_ones.add(self)

    async def wait(self) -> Literal[True]:
        """Nobody waits here for room: what was sent is taken, and whoever sends more looks first."""
        return True


class Stream:
    """A bound socket in the loop. queue: where to put what comes to it. Takes no datagrams before `open` is done."""

    def __init__(self, sock: socket.socket, queue: Arrivals | Strays, room: Room, longest: int) -> None:
        self.sock = sock
        self.queue = queue
        self.faults = Faults()
        self.room = room
        self.longest = longest
        self.tos = -1
        self.transport: asyncio.DatagramTransport | None = None
        self.stream: DatagramServer | None = None
        self.opening: asyncio.Task[None] | None = None

    async def open(self, loop: asyncio.AbstractEventLoop) -> None:
        transport, _ = await loop.create_datagram_endpoint(self._protocol, sock=self.sock)
        transport.set_write_buffer_limits(high=0)  # type: ignore[attr-defined]  # one datagram that waits is a full socket
        if hasattr(transport, "max_size"):
            transport.max_size = self.longest  # what asyncio allocates for each datagram
        self.transport = transport
        self.stream = DatagramServer(transport, self.queue, self.faults, self.room)  # type: ignore[arg-type]
        self.room.set()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open in a loop that runs already."""
        self.opening = loop.create_task(self.open(loop))
        self.opening.add_done_callback(self._opened)

    def _protocol(self) -> Protocol:
        protocol = Protocol(self.queue, self.faults, self.room)
        self.room.clear()  # the protocol has set it
        return protocol

    def _opened(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError):
            self.faults.put_nowait(error)
        elif error is not None:
            raise error
        if task.cancelled():
            self.sock.close()

    def send(self, data: bytes, name: Name, tos: int) -> int:
        """Send; 0, or the errno that says why not. Only for a socket that has room."""
        error = self.faults.take()
        if error:
            return error
        if self.stream is None or not self.room.is_set():
            return errno.EAGAIN
        if tos != self.tos:
            self._set_tos(tos)
        sending = self.stream.send(data, name)
        try:
            sending.send(None)
        except StopIteration:
            return self.faults.take()
        except TransportClosed:
            return errno.EBADF
        raise AssertionError("asyncio_dgram waits for something else than room")

    def _set_tos(self, tos: int) -> None:
        if self.sock.family == socket.AF_INET:
            self.sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        elif self.sock.family == socket.AF_INET6:
            self.sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
        self.tos = tos

    def close(self) -> None:
        if self.opening is not None and not self.opening.done():
            self.opening.cancel()  # the socket is closed when the loop has let go of it
            return
        if self.transport is not None:
            self.transport.abort()
        self.sock.close()
