"""Fuzzed messages against the language of the bootstrap, and against a connection that is to accept what they say.

    python -m tests.fuzz.bootstrap --count 1000000 --seed 1 --jobs 2

Every message is what a peer may say at that place, after zero or more of: a field left out, added, or of an odd value;
bytes changed, left out or repeated; a line that never ends. It comes in pieces of any size, and is carried as far as it
goes: hello, parameters, `Connection.connect`, connected.

Held to: nothing but NegotiationError comes out, its text is bounded, and the peer can be told of it; what is received
is not kept beyond the longest line; the resident set does not grow after the first tenth. Prints one JSON object; the
exit status is 0 if all of that held.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.fuzz.packets import SLACK, Wrong, require, resident
from tests.helpers import CAPS
from transport import exchange
from transport.clock import SECOND
from transport.completion import Status
from transport.config import ConnectionParameters, EndpointConfig
from transport.endpoint import Endpoint
from transport.errors import NegotiationError
from transport.exchange import Exchange
from transport.states import State

MAX_LINE = 4096
#: The longest text that an error may have.
LONGEST_ERROR = 1500
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 2**16, 2**24, 2**32 - 1, 2**32, 2**64, 10**40, 0.5, 1e308, -0.0,
    "", "0", "id0", "7f000001", "\ud800", "\u0000", "x" * 3000, [], {}, [[]], [{}], {"type": "bye"},
    ["7f000001"] * 9, ["7f000001", "7f000001"], ["zz"],
)  # fmt: skip


class Fuzzer:
    """Sessions of a peer that speaks almost the language, and the local side of each."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"bootstrap fuzz {seed}")
        self.endpoint = Endpoint(EndpointConfig(paths=4), b"\x7f\0\0\1", CAPS, random.Random(seed))
        self.domain = self.endpoint.protection_domain()
        peer = Endpoint(EndpointConfig(paths=4), b"\x7f\0\0\2", CAPS, random.Random(seed + 1))
        self.theirs = peer.create_connection(peer.protection_domain(), 0).parameters.to_json()
        self.messages = 0
        self.ends: Counter[str] = Counter()
        self.now = 0

    def run(self, count: int) -> None:
        """At least `count` messages."""
        end = self.messages + count
        while self.messages < end:
            self.session()

    def session(self) -> None:
        """One peer, from hello as far as it gets."""
        line = Exchange("the peer", MAX_LINE)
        connection = self.endpoint.create_connection(self.domain, self.now)
        place = "hello"
        try:
            for place in ("hello", "parameters", "connected"):
                message = self.hear(line, self.say(place))
                line.expect(message, (place,))
                if place == "hello":
                    line.check_hello(message)
                elif place == "parameters":
                    [theirs], _ = line.check_parameters(message, 1, {"data": None})
                    require(isinstance(theirs, ConnectionParameters), theirs)
                    connection.connect(self.now, theirs)
            self.ends["connected"] += 1
        except NegotiationError as error:
            self.ends[f"{place}: {type(error).__name__}"] += 1
            require(len(str(error)) <= LONGEST_ERROR, f"an error of {len(str(error))} characters")
            line.encode(exchange.refused(str(error)))
        require(len(line._received) <= 2 * MAX_LINE, f"{len(line._received)} bytes are kept")
        if connection.state == State.RTS:
            connection.fail(self.now, Status.FATAL_ERR, "the session is over", None)
        connection.close(self.now)
        self.now += SECOND  # its number may be used again

    def hear(self, line: Exchange, data: bytes) -> dict[str, Any]:
        """The next message of what comes, in pieces. An end of the channel is one more piece."""
        rng = self.rng
        while (message := line.next()) is None:
            size = rng.choice((1, 7, 100, MAX_LINE))
            if len(data) > 64 and size == 1:
                size = 50
            line.feed(data[:size])
            data = data[size:]
        return message

    def say(self, place: str) -> bytes:
        """What the peer says at that place."""
        rng = self.rng
        self.messages += 1
        messages: dict[str, dict[str, Any]] = {
            "hello": exchange.HELLO,
            "parameters": {"type": "parameters", "connections": [self.theirs], "data": None},
            "connected": {"type": "connected"},
        }
        message = messages[place]
        if rng.random() < 0.4:
            return json.dumps(message).encode() + b"\n"
        if rng.random() < 0.7:
            message = self.change(message)
        data = json.dumps(message).encode() + b"\n"
        if rng.random() < 0.3:
            data = self.damage(data)
        return data

    def change(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with odd fields, at any depth."""
        rng = self.rng
        changed = dict(message)
        if place := changed.get("connections"):
            changed["connections"] = [self.change(place[0])] if rng.random() < 0.7 else place
            if rng.random() < 0.7:
                return changed
        for _ in range(rng.choice((1, 1, 2, 5))):
            name = rng.choice([*changed, "reason", "extra"]) if changed else "type"
            kind = rng.random()
            if kind < 0.25:
                changed.pop(name, None)
            elif kind < 0.35:
                changed["type"] = rng.choice(("bye", "refused", "hello", "parameters", "connected", "", 7))
            else:
                changed[name] = rng.choice(_ODD) if rng.random() < 0.7 else rng.getrandbits(rng.choice((4, 8, 24, 33)))
        return changed

    def damage(self, data: bytes) -> bytes:
        """The bytes after an accident."""
        rng = self.rng
        place = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind == 0:
            return data[:place]
        if kind == 1:
            return data[:place] + rng.randbytes(rng.randrange(1, 20)) + data[place:]
        if kind == 2:
            return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
        if kind == 3:
            return data[:place] + data[place:] * 3
        if kind == 4:
            return b"[" * rng.randrange(1, 5000) if rng.random() < 0.5 else b'{"type":' * rng.randrange(1, 2000)
        return data.replace(b"\n", b"")


def work(seed: int, count: int) -> dict[str, object]:
    """The share of one process."""
    begin = time.monotonic()
    fuzzer = Fuzzer(seed)
    fuzzer.run(count // 10)
    before = resident()
    fuzzer.run(count - count // 10)
    after = resident()
    require(after <= before + SLACK, f"resident set: {before} bytes after a tenth, {after} at the end")
    return {
        "seed": seed, "messages": fuzzer.messages, "seconds": round(time.monotonic() - begin, 1),
        "rss_after_a_tenth_bytes": before, "rss_at_the_end_bytes": after, "ends": dict(sorted(fuzzer.ends.items())),
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.bootstrap", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    shares = [options.count // options.jobs + (i < options.count % options.jobs) for i in range(options.jobs)]
    try:
        with ProcessPoolExecutor(options.jobs) as pool:
            results = list(pool.map(work, [options.seed * 1000 + i for i in range(options.jobs)], shares))
    except Wrong as error:
        print(json.dumps({"wrong": str(error)}))
        return 1
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
