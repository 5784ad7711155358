"""Out-of-band exchange over one TCP connection, for programs that wait: the language is that of transport/exchange.py.

Every wait has a deadline for the whole of what is waited for, so that a peer which sends a byte now and then gains no
time. With an ssl context the connection is TLS. Without one there is no authentication: whoever reaches the port can
negotiate.

This module is not part of the core: it does I/O and reads the clock.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl as tls
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from transport import exchange
from transport.config import ConnectionParameters
from transport.errors import ConfigError, NegotiationError, NicError
from transport.exchange import MAX_LINE, PATIENCE, PORT, Exchange, PeerGoneError, Refusal

__all__ = ["MAX_LINE", "PATIENCE", "PORT", "Channel", "Listener", "PeerGoneError", "connect"]

#: Peers that may be in their handshake at one Listener; another one takes the place of the oldest.
_MOST_COMING = 64


class Channel:
    """Messages over a connected stream socket, which it owns.

    A message is a dict with a text `type`. peer: what errors call the other side. `send` and `receive` wait at most
    `patience` seconds for it. max_line: longest message, bytes.
    """

    def __init__(self, sock: socket.socket, peer: str, patience: float = PATIENCE, max_line: int = MAX_LINE) -> None:
        self.patience = patience
        self._exchange = Exchange(peer, max_line)
        self._socket = sock
        sock.setblocking(False)

    @property
    def peer(self) -> str:
        return self._exchange.peer

    @peer.setter
    def peer(self, name: str) -> None:
        self._exchange.peer = name

    @property
    def max_line(self) -> int:
        return self._exchange.max_line

    @max_line.setter
    def max_line(self, count: int) -> None:
        self._exchange.max_line = count

    def fileno(self) -> int:
        """For select: readable when a message, or the end, may have come."""
        return self._socket.fileno()

    @property
    def local(self) -> str:
        """This side's own IP address on the connection."""
        return str(self._socket.getsockname()[0])

    # Messages

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. PeerGoneError if nobody is there to take it."""
        deadline = time.monotonic() + self.patience
        view = memoryview(self._exchange.encode(message))
        while view:
            try:
                view = view[self._socket.send(view) :]
            except (BlockingIOError, tls.SSLWantWriteError):
                self._wait(deadline, "take", write=True)
            except tls.SSLWantReadError:
                self._wait(deadline, "take")
            except OSError as error:
                raise self._broken(error) from None

    def receive(self, *expected: str, patience: float | None = None) -> dict[str, Any]:
        """The next message. One whose type is not in `expected` is refused, unless none is given.

        A refusal or a bye of the peer where something else was expected is a NegotiationError that says so.
        """
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        while (message := self.poll()) is None:
            self._wait(deadline, "send " + (" or ".join(expected) or "a message"))
        with self._refusing():
            return self._exchange.expect(message, expected)

    def poll(self) -> dict[str, Any] | None:
        """The next message if it is there, None if not yet. Never waits. PeerGoneError at an end without bye."""
        with self._refusing():
            while (message := self._exchange.next()) is None:
                try:
                    self._exchange.feed(self._read())
                except (BlockingIOError, tls.SSLWantReadError, tls.SSLWantWriteError):
                    return None
                except OSError as error:
                    self._exchange.feed(b"")
                    raise self._broken(error) from None
            return message

    def refuse(self, reason: str) -> NegotiationError:
        """Tell the peer why this side will not go on; the error to raise."""
        with contextlib.suppress(NegotiationError):
            self.send(exchange.refused(reason))
        return NegotiationError(f"{self.peer}: {reason}")

    # The exchange

    def hello(self, patience: float | None = None) -> None:
        """Both sides say protocol and version first. Anything else there is a NegotiationError naming both values."""
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        self.send(exchange.HELLO)
        while not self.greeted():
            self._wait(deadline, "send hello")

    def greeted(self) -> bool:
        """Whether the peer's hello has come, after ours was sent. Never waits."""
        message = self.poll()
        if message is None:
            return False
        with self._refusing():
            self._exchange.check_hello(self._exchange.expect(message, ("hello",)))
        return True

    def exchange(
        self, connections: Sequence[ConnectionParameters], **more: Any
    ) -> tuple[list[ConnectionParameters], dict[str, Any]]:
        """Send ours, receive theirs: parameters of as many connections, in order, and fields beside them.

        more: JSON-able fields; the peer must send the same names, what it has too much or too little is refused.
        """
        self.send(exchange.parameters(connections, more))
        message = self.receive("parameters")
        with self._refusing():
            return self._exchange.check_parameters(message, len(connections), more)

    def bye(self) -> None:
        """Say that the end which follows is meant, and close. A peer that is already gone does not matter."""
        with contextlib.suppress(NegotiationError, OSError):
            self.send(exchange.BYE)
            self._socket.shutdown(socket.SHUT_WR)
        self.close()

    def close(self) -> None:
        """Close without a bye: to the peer this side has died."""
        self._socket.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.bye()
        else:
            self.close()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """A Refusal inside is told to the peer."""
        try:
            yield
        except Refusal as refusal:
            self.refuse(refusal.reason)
            raise

    def _read(self) -> bytes:
        """What is there; everything, if it is TLS, since select sees nothing of what is already decrypted."""
        data = self._socket.recv(1 << 16)
        if isinstance(self._socket, tls.SSLSocket):
            while data and (more := self._socket.pending()):
                data += self._socket.recv(more)
        return data

    def _wait(self, deadline: float, what: str, write: bool = False) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not _ready([] if write else [self], [self] if write else [], left):
            raise self._exchange.late(what)

    def _broken(self, error: OSError) -> PeerGoneError:
        return PeerGoneError(f"{self.peer}: the bootstrap channel broke: {error.strerror or error}")


class _Coming:
    """A peer at a Listener that has not said hello yet. deadline: for all of that."""

    def __init__(self, sock: socket.socket, peer: str, ssl: tls.SSLContext | None) -> None:
        self.deadline = time.monotonic() + PATIENCE
        self.peer = peer
        self.writing = False
        self._greeted = False
        tune(sock)
        sock.setblocking(False)
        if ssl is not None:
            sock = ssl.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self.socket = sock
        self.channel = Channel(sock, peer)

    def fileno(self) -> int:
        return self.socket.fileno()

    def step(self) -> bool:
        """Whether it has said hello. Never waits for the peer. NegotiationError if it never will."""
        try:
            if not self._greeted and isinstance(self.socket, tls.SSLSocket):
                self.socket.do_handshake()
        except tls.SSLWantReadError:
            self.writing = False
        except tls.SSLWantWriteError:
            self.writing = True
        except OSError as error:
            raise handshake_failed(self.peer, error) from None
        else:
            self.writing = False
            if not self._greeted:
                self._greeted = True
                self.channel.send(exchange.HELLO)
            if self.channel.greeted():
                return True
        if time.monotonic() >= self.deadline:
            raise NegotiationError(f"{self.peer} did not send hello in time")
        return False


class Listener:
    """Waits for peers on a TCP address; a port in use is a NicError. Port 0 takes a free one, see `port`. ssl: for TLS.

    Peers say hello side by side: one that stalls holds up no other.
    """

    def __init__(self, address: str, port: int = PORT, *, ssl: tls.SSLContext | None = None) -> None:
        check_side(ssl, server=True)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._ssl = ssl
        self._coming: list[_Coming] = []
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise NicError(f"cannot listen on TCP {address} port {port}: {error.strerror}") from None
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def accept(self, patience: float | None = None) -> Channel:
        """The next peer, after hello. None waits for ever; else NegotiationError after `patience` seconds.

        NegotiationError, too, for a peer that came and did not say hello as it must, within PATIENCE seconds.
        """
        deadline = None if patience is None else time.monotonic() + patience
        while True:
            for peer in self._coming[:]:
                try:
                    arrived = peer.step()
                except NegotiationError:
                    self._coming.remove(peer)
                    peer.channel.close()
                    raise
                if arrived:
                    self._coming.remove(peer)
                    return peer.channel
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise NegotiationError(f"nobody came within {patience:g} s")
            self._wait(now, deadline)

    def _wait(self, now: float, deadline: float | None) -> None:
        """Until something may have happened; takes in who has come."""
        ends = [peer.deadline for peer in self._coming] + ([] if deadline is None else [deadline])
        reading: list[Any] = [peer for peer in self._coming if not peer.writing]
        reading.append(self._socket)
        writing = [peer for peer in self._coming if peer.writing]
        _ready(reading, writing, max(0.0, min(ends) - now) if ends else None)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connected, peer = self._socket.accept()
            try:
                self._coming.append(_Coming(connected, str(peer[0]), self._ssl))
            except OSError:  # it is gone again
                connected.close()
            if len(self._coming) > _MOST_COMING:  # the one that has kept quiet for longest makes room
                self._coming.pop(0).channel.close()

    def close(self) -> None:
        for peer in self._coming:
            peer.channel.close()
        self._coming.clear()
        self._socket.close()


def connect(
    host: str, port: int = PORT, patience: float = PATIENCE, *, ssl: tls.SSLContext | None = None
) -> Channel:  # fmt: skip
    """A channel to the listener at `host`, after hello. Tries again until `patience` is over; then NicError.

    ssl: for TLS, with a certificate for `host` at the peer.
    """
    check_side(ssl, server=False)
    deadline = time.monotonic() + patience
    while True:
        try:
            connected = socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic()))
            break
        except socket.gaierror as error:
            raise NicError(f"cannot find host {host!r}: {error.strerror}") from None
        except OSError as error:
            if time.monotonic() + 0.1 > deadline:
                raise NicError(f"cannot connect to {host} TCP port {port}: {error.strerror or error}") from None
            time.sleep(0.05)
    tune(connected)
    if ssl is not None:
        connected = _secured(connected, ssl, host, deadline)
    channel = Channel(connected, host)
    try:
        channel.hello(max(0.1, deadline - time.monotonic()))
    except NegotiationError:
        channel.close()
        raise
    return channel


def _secured(sock: socket.socket, ssl: tls.SSLContext, host: str, deadline: float) -> tls.SSLSocket:
    """The socket after the handshake of a client."""
    sock.setblocking(False)
    secured = ssl.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            left = max(0.0, deadline - time.monotonic())
            reading, writing = [secured], [secured]
            try:
                secured.do_handshake()
                return secured
            except tls.SSLWantReadError:
                writing.clear()
            except tls.SSLWantWriteError:
                reading.clear()
            if not _ready(reading, writing, left):
                raise NegotiationError(f"{host} did not finish the TLS handshake in time")
    except OSError as error:
        secured.close()
        raise handshake_failed(host, error) from None
    except NegotiationError:
        secured.close()
        raise


def _ready(reading: Sequence[Any], writing: Sequence[Any], seconds: float | None) -> bool:
    """Wait until one of them can be read or written, at most `seconds`; None for ever. Says whether one can."""
    with selectors.DefaultSelector() as selector:
        for waiting in {*reading, *writing}:
            events = selectors.EVENT_READ * (waiting in reading) | selectors.EVENT_WRITE * (waiting in writing)
            selector.register(waiting, events)
        return bool(selector.select(seconds))


def handshake_failed(peer: str, error: OSError) -> NegotiationError:
    """What went wrong in a TLS handshake, in the words of the library."""
    if isinstance(error, tls.SSLCertVerificationError):
        text = f"certificate verify failed: {error.verify_message}"
    elif isinstance(error, tls.SSLError) and error.reason:
        text = error.reason.replace("_", " ").lower()
    else:
        text = error.strerror or str(error) or type(error).__name__
    return NegotiationError(f"{peer}: the TLS handshake failed: {text}")


def tune(sock: socket.socket) -> None:
    """For small messages that are answered: send each at once. A machine that is gone is noticed after a minute, also
    by who only listens."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # Linux, and most others
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def check_side(ssl: tls.SSLContext | None, server: bool) -> None:
    """ConfigError for an ssl context that is made for the other side of a connection."""
    if ssl is not None and ssl.protocol == (tls.PROTOCOL_TLS_CLIENT if server else tls.PROTOCOL_TLS_SERVER):
        ours, theirs = ("servers", "clients") if server else ("clients", "servers")
        raise ConfigError(f"ssl: a context for {theirs}; one for {ours} is allowed here")
