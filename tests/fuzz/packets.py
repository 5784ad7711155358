"""Fuzzed packets against the wire codec and against connections that carry live traffic.

    python -m tests.fuzz.packets --count 10000000 --seed 1 --jobs 2

Half of the packets are only decoded: random bytes, captured datagrams of the live traffic that were damaged, and whole
frames. The other half goes into `Endpoint.receive`: records with the right tag and keys and odd numbers
(tests/fuzz/grammar.py), damaged datagrams that still decode, and packets without the tag at a transfer that must stay
unharmed.

Held to: nothing but WireError comes out of the codec, nothing at all out of the endpoint; every request of a
connection that was ended by forgeries completes; the transfer that strangers aimed at has compared all of its bytes and
finishes; the state of every connection stays within its bounds, and the resident set does not grow after the first
tenth. Prints one JSON object; the exit status is 0 if all of that held.

Not coverage-guided. Atheris instruments Python bytecode, and what is under test runs compiled: it would see the
generators. Interpreted, the same loop runs an order of magnitude slower before any instrumentation is paid for, and the
numbers that matter here are known: they are read from the victim's state.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz.grammar import Grammar, damage
from tests.helpers import Host, Pair
from tests.robustness.attacks import DROPS
from tests.robustness.transfer import Transfer
from transport import wire
from transport.clock import SECOND, US
from transport.completion import Completion, Status
from transport.config import CONTROL_WINDOW
from transport.connection import Connection
from transport.errors import LocalProtocolError, WireError
from transport.headers import RAW_IP
from transport.packet import Packet
from transport.states import State
from transport.wire import EXACT, ID0, OFF, Codec

WINDOW = 256
#: Hostile packets between two turns of the live traffic, and how long such a turn is.
BATCH = 32
TURN = 6 * US
#: A victim that forgeries did not end is replaced after this many batches.
LIFE = 64
#: Captured datagrams that damaged ones are made of.
CORPUS = 256
#: The resident set may grow this much after the first tenth: heaps fragment.
SLACK = 8 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of the resident set of this process."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


class Wrong(AssertionError):
    """Something that must hold does not."""


def require(condition: object, what: object) -> None:
    if not condition:
        raise Wrong(what)


class Traffic:
    """A pair of connections with a transfer in both directions."""

    def __init__(self, pair: Pair, rng: random.Random) -> None:
        self.ends = pair.connect()
        self.hosts = (pair.alice, pair.bob)
        seeds = (rng.getrandbits(32), rng.getrandbits(32))
        self.transfers = (Transfer(self.ends[0], seeds[0], seeds[1]), Transfer(self.ends[1], seeds[1], seeds[0]))
        for mine, other in (self.transfers, self.transfers[::-1]):
            mine.remote = other.local
        self.grammars = [Grammar(rng, item.connection, *item.local) for item in self.transfers]

    def advance(self, now: int) -> None:
        for transfer in self.transfers:
            transfer.advance(now)


class Fuzzer:
    """One process's work. The pair of hosts lives in virtual time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pair = Pair(seed, mtu=1024, max_run=8, window=WINDOW, retries=3, idle_after=0)
        self.pair.on_completion = self._completed
        self.by_qpn: dict[int, Transfer] = {}
        self.steady = self._connect()
        self.victims = self._connect()
        self.age = 0
        self.replaced = 0
        self.codecs = [Codec(OFF), Codec(OFF), Codec(ID0), Codec(EXACT)]
        self.plain = self.codecs[0]
        self.corpus: list[tuple[bytes, Packet]] = []
        self.kinds: Counter[str] = Counter()
        while not self.corpus:
            self._turn()

    def run(self, count: int) -> None:
        """Exactly `count` hostile packets."""
        for first in range(0, count, BATCH):
            size = min(BATCH, count - first)
            try:
                for i in range(size):
                    if i & 1:
                        self._decode()
                    else:
                        self._receive()
                self._turn()
            except Exception as error:
                raise Wrong(f"after {first} packets: {type(error).__name__}: {error}") from error

    def finish(self) -> None:
        """The attacks end; what strangers aimed at finishes, with every byte compared."""
        self._retire()
        transfers = self.steady.transfers
        for transfer in transfers:
            transfer.limit = (transfer.posted // 8 + 2) * 8

        def done() -> bool:
            self.steady.advance(self.pair.now)
            return all(transfer.finished() for transfer in transfers)

        self.pair.drive(done, limit=600 * SECOND)
        self.pair.drive(limit=SECOND)
        for transfer, other in (transfers, transfers[::-1]):
            require(not transfer.wrong and not transfer.errors, (transfer.wrong, transfer.errors))
            require(transfer.checked == transfer.limit + other.limit // 8 * 3, "something was not compared")

    def counters(self) -> dict[str, int]:
        """What both endpoints dropped or ignored, by cause."""
        total: Counter[str] = Counter()
        for host in (self.pair.alice, self.pair.bob):
            total.update(host.endpoint.counters())
        ignored = (*DROPS, "duplicates", "control_duplicates", "stale_acks", "probes_received")
        return {name: total[name] for name in ignored if total[name]}

    # Live traffic

    def _connect(self) -> Traffic:
        traffic = Traffic(self.pair, self.rng)
        for transfer in traffic.transfers:
            self.by_qpn[transfer.connection.qpn] = transfer
        return traffic

    def _completed(self, host: Host, completion: Completion) -> None:
        host.completions.clear()
        transfer = self.by_qpn[completion.qpn]
        if transfer in self.victims.transfers:  # forgeries may have changed anything: only the counting must be right
            require(completion.wr_id in transfer.outstanding, f"completed twice: {completion}")
            del transfer.outstanding[completion.wr_id]
        else:
            transfer.take(self.pair.now, completion)

    def _turn(self) -> None:
        """Let the live traffic run on for a while, look at what it left behind, and capture some of it."""
        pair = self.pair
        self.steady.advance(pair.now)
        self.victims.advance(pair.now)
        pair.drive(limit=TURN)
        pair.now += TURN
        for packet in pair.sent[:4]:
            if packet.qpn in (self.victims.ends[0].qpn, self.victims.ends[1].qpn):
                self._capture(packet)
        pair.sent.clear()
        self.age += 1
        for connection in (*self.steady.ends, *self.victims.ends):
            check_bounds(connection)
        if self.age >= LIFE or any(end.state in (State.ERR, State.RESET) for end in self.victims.ends):
            self._retire()
            self.victims = self._connect()
            self.age = 0
            self.replaced += 1

    def _retire(self) -> None:
        """The victims end: nothing they had outstanding may be left."""
        pair = self.pair
        for end in self.victims.ends:
            if end.state != State.RESET:
                end.fail(pair.now, Status.WR_FLUSH_ERR, "replaced", None)
                end.destroy()
        pair.flush()
        for transfer in self.victims.transfers:
            require(not transfer.outstanding, f"never completed: {transfer.outstanding}")
            transfer.region.deregister()
            del self.by_qpn[transfer.connection.qpn]
        for end in self.victims.ends:
            pair.connections.remove(end)

    def _capture(self, packet: Packet) -> None:
        header, payload, trailer = self.plain.encode(packet, self.rng.getrandbits(8) % packet.count)
        item = (b"".join((header, payload or b"", trailer)), packet)
        if len(self.corpus) < CORPUS:
            self.corpus.append(item)
        else:
            self.corpus[self.rng.getrandbits(8)] = item

    # Hostile packets

    def _decode(self) -> None:
        """Bytes for the codec alone."""
        rng = self.rng
        way = rng.getrandbits(3)
        codec = self.codecs[rng.getrandbits(2)]
        src, dst = (b"\x0a\0\0\1", b"\x0a\0\0\2") if rng.getrandbits(2) else (bytes(16), bytes(16))
        if way < 2:
            self.kinds["random bytes"] += 1
            data = bytearray(rng.randbytes(rng.getrandbits(8)))
            if way and len(data) > 3:  # far enough to look like one of ours
                data[0] = (wire.UC_SEND_ONLY, wire.UC_SEND_ONLY_IMMEDIATE, wire.UC_WRITE_ONLY_IMMEDIATE, 0x64)[
                    rng.getrandbits(2)
                ]
                data[1:4] = b"\0\xff\xff"
                del data[len(data) & ~3 :]
        else:
            self.kinds["damaged bytes"] += 1
            data = damage(rng, self.corpus[int(rng.random() * len(self.corpus))][0])
        try:
            if way == 7:
                frame = self.plain.frame(self.corpus[int(rng.random() * len(self.corpus))][1], 0, 0, RAW_IP)
                codec.parse_frame(damage(rng, frame), RAW_IP)
            else:
                codec.decode(data, 0, len(data), src, dst, rng.getrandbits(16), rng.getrandbits(8))
            self.kinds["decoded"] += 1
        except WireError:
            self.kinds["refused"] += 1

    def _receive(self) -> None:
        """A packet for an endpoint."""
        rng = self.rng
        side = rng.getrandbits(1)
        host = (self.pair.alice, self.pair.bob)[side]
        way = rng.getrandbits(3)
        if way < 4:
            self.kinds["forged with the tag"] += 1
            packet = self.victims.grammars[side].packet()
        elif way < 6:
            self.kinds["without the tag"] += 1
            packet = self.steady.grammars[side].packet(tagged=False)
        else:
            data, original = self.corpus[int(rng.random() * len(self.corpus))]
            host = self.pair.hosts[original.dst]
            if way == 6:
                self.kinds["replayed"] += 1
                packet = original.copy()
            else:
                self.kinds["damaged"] += 1
                broken = damage(rng, data)
                try:
                    packet = self.plain.decode(broken, 0, len(broken), original.src, original.dst, original.entropy)
                except WireError:
                    return
        if way == 0:  # only what has bytes, as they come out of a codec
            try:
                header, payload, trailer = self.plain.encode(packet, 0)
            except LocalProtocolError:
                return
            data = b"".join((header, payload or b"", trailer))
            packet = self.plain.decode(data, 0, len(data), packet.src, packet.dst, packet.entropy)
        host.endpoint.receive(packet, self.pair.now)


def check_bounds(connection: Connection) -> None:
    """What a connection keeps is bounded by what was agreed, whatever the peer says."""
    if connection.dormant is not None or connection.state == State.RESET:
        return
    starter, receiver = connection.sender.starter, connection.receiver
    for what, size, limit in (
        ("early adverts", len(starter.early_adverts), 256),
        ("requests of the peer", len(connection.responder.pending), connection.context.max_rd_atomic),
        ("answers of ours", len(starter.responses), connection.context.max_rd_atomic),
        ("reliable control outstanding", len(connection.channel.outstanding), CONTROL_WINDOW),
        ("control bitmap", connection.channel.seen.bit_length(), CONTROL_WINDOW),
        ("datagrams", len(connection.datagrams), 16),
        ("ledger", receiver.ledger.mask + 1, 8 * WINDOW),
        ("data outstanding", connection.sender.next - connection.sender.una, WINDOW),
        ("reads answered", len(receiver.answers), len(starter.reads)),
        ("probes", len(connection.context.peer.prober.outstanding), 256),
    ):
        require(size <= limit, f"{what}: {size} are more than {limit}")


def work(seed: int, count: int) -> dict[str, object]:
    """The share of one process."""
    begin = time.monotonic()
    fuzzer = Fuzzer(seed)
    warm = count // 10
    fuzzer.run(warm)
    before = resident()
    fuzzer.run(count - warm)
    after = resident()
    fuzzer.finish()
    seconds = time.monotonic() - begin
    require(after <= before + SLACK, f"resident set: {before} bytes after a tenth, {after} at the end")
    return {
        "seed": seed, "packets": count, "seconds": round(seconds, 1), "packets_per_s": round(count / seconds),
        "rss_after_a_tenth_bytes": before, "rss_at_the_end_bytes": after, "victims": fuzzer.replaced,
        "compared": sum(transfer.checked for transfer in fuzzer.steady.transfers), "kinds": dict(fuzzer.kinds),
        "counted": fuzzer.counters(),
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.packets", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="packets in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    share = options.count // options.jobs
    counts = [share + (options.count - share * options.jobs if i == 0 else 0) for i in range(options.jobs)]
    seeds = [options.seed * 1000 + i for i in range(options.jobs)]
    try:
        if options.jobs == 1:
            results = [work(seeds[0], counts[0])]
        else:
            with ProcessPoolExecutor(options.jobs) as pool:
                results = list(pool.map(work, seeds, counts))
    except Wrong as error:
        print(json.dumps({"wrong": str(error)}))
        return 1
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
