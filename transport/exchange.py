"""The language of the bootstrap, without I/O: two sides tell each other what their endpoints need to know.

JSON, one object a line, each with a `type`. Both sides begin with hello; everything after that is between the users of
the channel, and its end is a bye:

    {"type": "hello", "protocol": "polyroce-bootstrap", "version": 1}
    {"type": "parameters", "connections": [{...ConnectionParameters...}], ...}
    {"type": "refused", "reason": "..."}
    {"type": "bye"}

It fails closed: what one side does not know is a Refusal, of which the other side is told why. Two faces carry it over
TCP: transport/bootstrap.py waits, transport/bootstrap_aio.py is for asyncio.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from transport.config import ConnectionParameters
from transport.errors import NegotiationError

PROTOCOL = "polyroce-bootstrap"
VERSION = 1

#: TCP port of the exchange. The UDP port of RoCEv2 is 4791; perftest meets on 18515.
PORT = 18515
#: Longest line, bytes. 1024 connections of one endpoint fit.
MAX_LINE = 1 << 20
#: Seconds that a peer may take for an answer.
PATIENCE = 10.0

HELLO = {"type": "hello", "protocol": PROTOCOL, "version": VERSION}
BYE = {"type": "bye"}


class Refusal(NegotiationError):
    """What the peer said is not accepted, and it is to be told. reason: the text for it."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"{peer}: {reason}")
        self.reason = reason


class PeerGoneError(NegotiationError):
    """The channel ended without a bye: the peer's process died or the network between broke."""


class Exchange:
    """One side of a channel. peer: what errors call the other side; max_line: longest message, bytes."""

    def __init__(self, peer: str, max_line: int = MAX_LINE) -> None:
        self.peer = peer
        self.max_line = max_line
        self._received = bytearray()
        self._searched = 0
        self._ended = False

    # Bytes to messages

    def feed(self, data: bytes) -> None:
        """What came from the peer. Nothing is the end of its side."""
        self._received += data
        self._ended = not data

    def next(self) -> dict[str, Any] | None:
        """The next message if it is there, None if not yet. Refusal if it is none; PeerGoneError at an end without bye;
        both again at every call."""
        if self._received and self._received[0] != ord("{"):
            raise self.refusal(f"no JSON object with a type: {bytes(self._received[:60])!r}")
        end = self._received.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._received)
            if self._searched >= self.max_line:
                raise self.refusal(f"a line of more than {self.max_line} bytes")
            if self._ended:
                raise PeerGoneError(f"{self.peer} ended the bootstrap channel without a bye")
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        try:
            message = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise self.refusal(f"no JSON object with a type: {line[:60]!r}")
        return message

    def encode(self, message: Mapping[str, Any]) -> bytes:
        """A message as a line."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(line) > self.max_line:
            raise NegotiationError(
                f"message {message.get('type')!r} has {len(line)} bytes: at most {self.max_line} are allowed"
            )
        return line

    # What a message must be

    def expect(self, message: dict[str, Any], expected: Sequence[str]) -> dict[str, Any]:
        """The message, if its type is one of those or none is given. A refusal or a bye of the peer where something
        else was expected is a NegotiationError that says so, all else a Refusal."""
        kind = message["type"]
        if not expected or kind in expected:
            return message
        if kind == "refused":
            raise NegotiationError(f"{self.peer} refused: {message.get('reason')!s:.1000}")
        if kind == "bye":
            raise NegotiationError(f"{self.peer} said bye where {' or '.join(expected)} was expected")
        raise self.refusal(f"message type: {kind!r:.60} came, {' or '.join(expected)} was expected")

    def check_hello(self, message: dict[str, Any]) -> None:
        """Both sides say protocol and version first. Anything else there is a Refusal that names both values."""
        for name, ours in HELLO.items():
            theirs = message.pop(name, None)
            if theirs != ours or type(theirs) is not type(ours):
                raise self.refusal(f"{name}: {ours!r} here, {theirs!r:.60} at the peer")
        for name in message:
            raise self.refusal(f"hello has an unknown field {name:.60} = {message[name]!r:.60}")

    def check_parameters(
        self, message: dict[str, Any], count: int, more: Mapping[str, Any]
    ) -> tuple[list[ConnectionParameters], dict[str, Any]]:
        """The parameters of exactly `count` connections, and the fields beside them: those that `more` has."""
        del message["type"]
        listed = message.pop("connections", None)
        if not isinstance(listed, list) or len(listed) != count:
            theirs = len(listed) if isinstance(listed, list) else None
            raise self.refusal(f"connections: {count} here, {theirs} at the peer")
        for name in sorted(more.keys() ^ message.keys()):
            where = "unknown here" if name in message else "missing at the peer"
            raise self.refusal(f"field {name:.60} is {where}")
        try:
            return [ConnectionParameters.from_json(_object(item)) for item in listed], message
        except NegotiationError as error:
            raise self.refusal(str(error)) from None

    def refusal(self, reason: str) -> Refusal:
        return Refusal(self.peer, reason)

    def late(self, what: str) -> NegotiationError:
        """The error of a deadline."""
        return NegotiationError(f"{self.peer} did not {what} in time")


def parameters(connections: Sequence[ConnectionParameters], more: Mapping[str, Any]) -> dict[str, Any]:
    """The message that tells the parameters of connections."""
    return {"type": "parameters", "connections": [item.to_json() for item in connections], **more}


def refused(reason: str) -> dict[str, Any]:
    """The message that tells the peer why this side will not go on."""
    return {"type": "refused", "reason": reason}


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NegotiationError(f"connections: {value!r:.60} at the peer is not a JSON object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
