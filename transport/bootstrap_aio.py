"""Out-of-band exchange over one TCP connection, for asyncio: the language is that of transport/exchange.py, deadlines
and errors are those of transport/bootstrap.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl as tls
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from transport import exchange
from transport.bootstrap import check_side, handshake_failed, tune
from transport.config import ConnectionParameters
from transport.errors import NegotiationError, NicError
from transport.exchange import MAX_LINE, PATIENCE, PORT, Exchange, PeerGoneError, Refusal

__all__ = ["AsyncChannel", "AsyncListener", "connect"]

#: Peers that may be in their handshake, or wait to be accepted, at one AsyncListener; more are turned away.
_MOST_COMING = 64


class AsyncChannel:
    """Messages over a connected stream, which it owns: transport.bootstrap.Channel with `await`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str, patience: float = PATIENCE,
        max_line: int = MAX_LINE,
    ) -> None:  # fmt: skip
        self.patience = patience
        self._exchange = Exchange(peer, max_line)
        self._reader = reader
        self._writer = writer

    @property
    def peer(self) -> str:
        return self._exchange.peer

    # Messages

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. PeerGoneError if nobody is there to take it."""
        line = self._exchange.encode(message)
        async with self._within(self.patience, "take"):
            self._writer.write(line)
            await self._writer.drain()

    async def receive(self, *expected: str, patience: float | None = None) -> dict[str, Any]:
        """The next message. One whose type is not in `expected` is refused, unless none is given.

        A refusal or a bye of the peer where something else was expected is a NegotiationError that says so.
        """
        what = "send " + (" or ".join(expected) or "a message")
        async with self._refusing(), self._within(self.patience if patience is None else patience, what):
            while (message := self._exchange.next()) is None:
                self._exchange.feed(await self._reader.read(1 << 16))
            return self._exchange.expect(message, expected)

    async def refuse(self, reason: str) -> NegotiationError:
        """Tell the peer why this side will not go on; the error to raise."""
        with contextlib.suppress(NegotiationError):
            await self.send(exchange.refused(reason))
        return NegotiationError(f"{self.peer}: {reason}")

    # The exchange

    async def hello(self, patience: float | None = None) -> None:
        """Both sides say protocol and version first. Anything else there is a NegotiationError naming both values."""
        await self.send(exchange.HELLO)
        message = await self.receive("hello", patience=patience)
        async with self._refusing():
            self._exchange.check_hello(message)

    async def exchange(
        self, connections: Sequence[ConnectionParameters], **more: Any
    ) -> tuple[list[ConnectionParameters], dict[str, Any]]:
        """Send ours, receive theirs: parameters of as many connections, in order, and fields beside them.

        more: JSON-able fields; the peer must send the same names, what it has too much or too little is refused.
        """
        await self.send(exchange.parameters(connections, more))
        message = await self.receive("parameters")
        async with self._refusing():
            return self._exchange.check_parameters(message, len(connections), more)

    async def bye(self) -> None:
        """Say that the end which follows is meant, and close. A peer that is already gone does not matter."""
        with contextlib.suppress(NegotiationError):
            await self.send(exchange.BYE)
        self.close()

    def close(self) -> None:
        """Close. Without a bye before, to the peer this side has died."""
        self._writer.close()

    @contextlib.asynccontextmanager
    async def _refusing(self) -> AsyncIterator[None]:
        """A Refusal inside is told to the peer."""
        try:
            yield
        except Refusal as refusal:
            await self.refuse(refusal.reason)
            raise

    @contextlib.asynccontextmanager
    async def _within(self, seconds: float, what: str) -> AsyncIterator[None]:
        """A deadline for what is inside, and names for what breaks there."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise self._exchange.late(what) from None
        except OSError as error:
            text = error.strerror or str(error) or type(error).__name__
            raise PeerGoneError(f"{self.peer}: the bootstrap channel broke: {text}") from None


class AsyncListener:
    """Waits for peers on a TCP address, once started; a port in use is a NicError. Port 0 takes a free one, see `port`.
    ssl: for TLS. Peers say hello side by side: one that stalls holds up no other."""

    def __init__(self, address: str, port: int = PORT, *, ssl: tls.SSLContext | None = None) -> None:
        check_side(ssl, server=True)
        self.address = address
        self.port = port
        self._ssl = ssl
        self._server: asyncio.Server | None = None
        self._coming: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._arrived: asyncio.Queue[AsyncChannel | NegotiationError] = asyncio.Queue(_MOST_COMING)

    async def start(self) -> None:
        """Bind and listen."""
        try:
            self._server = await asyncio.start_server(self._come, self.address, self.port)
        except OSError as error:
            text = error.strerror or str(error)
            raise NicError(f"cannot listen on TCP {self.address} port {self.port}: {text}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def accept(self, patience: float | None = None) -> AsyncChannel:
        """The next peer, after hello. None waits for ever; else NegotiationError after `patience` seconds.

        NegotiationError, too, for a peer that came and did not say hello as it must, within PATIENCE seconds.
        """
        try:
            async with asyncio.timeout(patience):
                arrived = await self._arrived.get()
        except TimeoutError:
            raise NegotiationError(f"nobody came within {patience:g} s") from None
        if isinstance(arrived, NegotiationError):
            raise arrived
        return arrived

    async def close(self) -> None:
        """Stop listening and turn away who was not accepted yet."""
        if self._server is not None:
            self._server.close()
        for task in self._coming:
            task.cancel()
        if self._coming:
            await asyncio.wait(self._coming)
        while not self._arrived.empty():
            arrived = self._arrived.get_nowait()
            if isinstance(arrived, AsyncChannel):
                arrived.close()

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer connected."""
        if self._arrived.full():
            writer.close()
            return
        if len(self._coming) >= _MOST_COMING:  # the one that has kept quiet for longest makes room
            oldest = next(iter(self._coming))
            oldest.cancel()
            self._coming.pop(oldest)
        task = asyncio.ensure_future(self._greet(reader, writer))
        self._coming[task] = None
        task.add_done_callback(lambda done: self._coming.pop(done, None))

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = str(writer.get_extra_info("peername")[0])
        tune(writer.get_extra_info("socket"))
        channel = AsyncChannel(reader, writer, peer)
        try:
            async with asyncio.timeout(PATIENCE):
                if self._ssl is not None:
                    await _secure(writer, self._ssl, peer)
                await channel.hello()
        except NegotiationError as error:
            channel.close()
            self._arrive(error)
        except TimeoutError:
            channel.close()
            self._arrive(NegotiationError(f"{peer} did not send hello in time"))
        except asyncio.CancelledError:
            channel.close()
            raise
        else:
            self._arrive(channel)

    def _arrive(self, arrived: AsyncChannel | NegotiationError) -> None:
        """Hand it to `accept`, unless too many wait for that already."""
        try:
            self._arrived.put_nowait(arrived)
        except asyncio.QueueFull:
            if isinstance(arrived, AsyncChannel):
                arrived.close()


async def connect(
    host: str, port: int = PORT, patience: float = PATIENCE, *, ssl: tls.SSLContext | None = None
) -> AsyncChannel:  # fmt: skip
    """A channel to the listener at `host`, after hello. Tries again until `patience` is over; then NicError.

    ssl: for TLS, with a certificate for `host` at the peer.
    """
    check_side(ssl, server=False)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + 0.1)):
                reader, writer = await asyncio.open_connection(host, port)
            break
        except socket.gaierror as error:
            raise NicError(f"cannot find host {host!r}: {error.strerror}") from None
        except OSError as error:
            if loop.time() + 0.1 > deadline:
                text = error.strerror or str(error) or "it did not answer in time"
                raise NicError(f"cannot connect to {host} TCP port {port}: {text}") from None
            await asyncio.sleep(0.05)
    tune(writer.get_extra_info("socket"))
    channel = AsyncChannel(reader, writer, host)
    left = max(0.1, deadline - loop.time())
    try:
        async with asyncio.timeout(left):
            if ssl is not None:
                await _secure(writer, ssl, host)
            await channel.hello(left)
    except TimeoutError:
        channel.close()
        raise NegotiationError(f"{host} did not send hello in time") from None
    except BaseException:
        channel.close()
        raise
    return channel


async def _secure(writer: asyncio.StreamWriter, ssl: tls.SSLContext, peer: str) -> None:
    """The TLS handshake, on the side that the stream is on. Whoever calls it sets the deadline."""
    server = ssl.protocol == tls.PROTOCOL_TLS_SERVER
    try:
        await writer.start_tls(ssl, server_hostname=None if server else peer)
    except OSError as error:
        raise handshake_failed(peer, error) from None
