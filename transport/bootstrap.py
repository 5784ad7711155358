"""Out-of-band exchange: two sides tell each other what their endpoints need to know, over one TCP connection.

JSON, one object a line, each with a `type`. Both sides begin with hello; everything after that is between the users of
the channel, and its end is a bye:

    {"type": "hello", "protocol": "polyroce-bootstrap", "version": 1}
    {"type": "parameters", "connections": [{...ConnectionParameters...}], ...}
    {"type": "refused", "reason": "..."}
    {"type": "bye"}

It fails closed: what one side does not know is refused with a NegotiationError that names it, and the other side is
told why. Every wait has a deadline, every line a longest length. This module is not part of the core: it does I/O and
reads the clock.

Not modelled: authentication and encryption. Whoever reaches the port can negotiate.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from transport.config import ConnectionParameters
from transport.errors import NegotiationError, NicError

PROTOCOL = "polyroce-bootstrap"
VERSION = 1

#: TCP port of the exchange. The UDP port of RoCEv2 is 4791; perftest meets on 18515.
PORT = 18515
#: Longest line, bytes. 1024 connections of one endpoint fit.
MAX_LINE = 1 << 20
#: Seconds that a peer may take for an answer.
PATIENCE = 10.0

_HELLO = {"type": "hello", "protocol": PROTOCOL, "version": VERSION}


class PeerGoneError(NegotiationError):
    """The channel ended without a bye: the peer's process died or the network between broke."""


class Channel:
    """JSON lines over a connected stream socket, which it owns.

    A message is a dict with a text `type`. peer: what errors call the other side. `send` and `receive` wait at most
    `patience` seconds for it. max_line: longest message, bytes.
    """

    def __init__(self, sock: socket.socket, peer: str, patience: float = PATIENCE, max_line: int = MAX_LINE) -> None:
        self.peer = peer
        self.patience = patience
        self.max_line = max_line
        self._socket = sock
        self._received = bytearray()
        self._ended = False
        sock.setblocking(False)

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
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(line) > self.max_line:
            raise NegotiationError(
                f"message {message.get('type')!r} has {len(line)} bytes: at most {self.max_line} are allowed"
            )
        deadline = time.monotonic() + self.patience
        view = memoryview(line)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._wait(deadline, "take", write=True)
            except OSError as error:
                raise PeerGoneError(f"{self.peer}: the bootstrap channel broke: {error.strerror}") from None

    def receive(self, *expected: str, patience: float | None = None) -> dict[str, Any]:
        """The next message. One whose type is not in `expected` is refused, unless none is given.

        A refusal or a bye of the peer where something else was expected is a NegotiationError that says so.
        """
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        while (message := self.poll()) is None:
            self._wait(deadline, "send " + (" or ".join(expected) or "a message"))
        kind = message["type"]
        if expected and kind not in expected:
            if kind == "refused":
                raise NegotiationError(f"{self.peer} refused: {message.get('reason')}")
            if kind == "bye":
                raise NegotiationError(f"{self.peer} said bye where {' or '.join(expected)} was expected")
            raise self.refuse(f"message type: {kind!r} came, {' or '.join(expected)} was expected")
        return message

    def poll(self) -> dict[str, Any] | None:
        """The next message if it is there, None if not yet. Never waits. PeerGoneError at an end without bye."""
        while True:
            end = self._received.find(b"\n")
            if end >= 0:
                line = bytes(self._received[:end])
                del self._received[: end + 1]
                return self._parse(line)
            if len(self._received) >= self.max_line:
                raise self.refuse(f"a line of more than {self.max_line} bytes")
            if self._ended:
                raise PeerGoneError(f"{self.peer} ended the bootstrap channel without a bye")
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return None
            except OSError as error:
                self._ended = True
                raise PeerGoneError(f"{self.peer}: the bootstrap channel broke: {error.strerror}") from None
            self._ended = not data
            self._received += data

    def refuse(self, reason: str) -> NegotiationError:
        """Tell the peer why this side will not go on; the error to raise."""
        with contextlib.suppress(NegotiationError):
            self.send({"type": "refused", "reason": reason})
        return NegotiationError(f"{self.peer}: {reason}")

    # The exchange

    def hello(self) -> None:
        """Both sides say protocol and version first. Anything else there is a NegotiationError naming both values."""
        self.send(_HELLO)
        message = self.receive("hello")
        for name, ours in _HELLO.items():
            theirs = message.pop(name, None)
            if theirs != ours:
                raise self.refuse(f"{name}: {ours!r} here, {theirs!r} at the peer")
        for name in message:
            raise self.refuse(f"hello has an unknown field {name} = {message[name]!r}")

    def exchange(
        self, connections: Sequence[ConnectionParameters], **more: Any
    ) -> tuple[list[ConnectionParameters], dict[str, Any]]:
        """Send ours, receive theirs: parameters of as many connections, in order, and fields beside them.

        more: JSON-able fields; the peer must send the same names, what it has too much or too little is refused.
        """
        told = [item.to_json() for item in connections]
        self.send({"type": "parameters", "connections": told, **more})
        message = self.receive("parameters")
        del message["type"]
        listed = message.pop("connections", None)
        if not isinstance(listed, list) or len(listed) != len(connections):
            count = len(listed) if isinstance(listed, list) else None
            raise self.refuse(f"connections: {len(connections)} here, {count} at the peer")
        for name in sorted(more.keys() ^ message.keys()):
            where = "unknown here" if name in message else "missing at the peer"
            raise self.refuse(f"field {name} is {where}")
        try:
            theirs = [ConnectionParameters.from_json(_object(item)) for item in listed]
        except NegotiationError as error:
            raise self.refuse(str(error)) from None
        return theirs, message

    def bye(self) -> None:
        """Say that the end which follows is meant, and close. A peer that is already gone does not matter."""
        with contextlib.suppress(NegotiationError, OSError):
            self.send({"type": "bye"})
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

    def _wait(self, deadline: float, what: str, write: bool = False) -> None:
        left = deadline - time.monotonic()
        if left > 0:
            readable, writable, _ = select.select([] if write else [self], [self] if write else [], [], left)
            if readable or writable:
                return
        raise NegotiationError(f"{self.peer} did not {what} in time")

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise self.refuse(f"no JSON object with a type: {line[:60]!r}")
        return message


class Listener:
    """Waits for peers on a TCP address; a port in use is a NicError. Port 0 takes a free one, see `port`."""

    def __init__(self, address: str, port: int = PORT) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise NicError(f"cannot listen on TCP {address} port {port}: {error.strerror}") from None
        self.port: int = self._socket.getsockname()[1]

    def accept(self, patience: float | None = None) -> Channel:
        """The next peer, after hello. None waits for ever; else NegotiationError after `patience` seconds."""
        self._socket.settimeout(patience)
        try:
            connected, peer = self._socket.accept()
        except TimeoutError:
            raise NegotiationError(f"nobody came within {patience} s") from None
        channel = Channel(_tuned(connected), str(peer[0]))
        try:
            channel.hello()
        except NegotiationError:
            channel.close()
            raise
        return channel

    def close(self) -> None:
        self._socket.close()


def connect(host: str, port: int = PORT, patience: float = PATIENCE) -> Channel:
    """A channel to the listener at `host`, after hello. Tries again until `patience` is over; then NicError."""
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
    channel = Channel(_tuned(connected), host)
    try:
        channel.hello()
    except NegotiationError:
        channel.close()
        raise
    return channel


def _tuned(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NegotiationError(f"connections: {value!r:.60} at the peer is not a JSON object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
