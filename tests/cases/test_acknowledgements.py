"""When a receiver acknowledges: as often as asked, always at the tail, and again for what it has already.

Known from other stacks: silence on duplicates, so a lost ACK is a livelock; an interval that holds only once; flows
that stall when the interval is raised.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.helpers import ALICE, CAPS, Pair, Wire, data_packets
from tests.transport.test_queue_pair import expose, outcome
from transport.clock import US
from transport.control import Ack
from transport.packet import Packet


def stream(segments: int, every: int, size: int = 4096, **settings) -> tuple[Pair, list[Ack]]:
    """A message of that many segments over 100 Gbit/s and 400 us to a receiver that acknowledges every `every` bytes:
    160 of them take less than the quarter of a round trip for which an ACK may be held."""
    settings = {"control_parameters": {"window_bytes": 1 << 30}, "idle_after": 1 << 60, **settings}
    pair = Pair(
        wire=Wire(delay=200 * US, rate=CAPS.rate), caps=replace(CAPS, base_rtt=400 * US), control="fixed",
        ack_every=every, **settings,
    )  # fmt: skip
    ours, theirs = pair.connect()
    target, region = expose(theirs, segments * size)
    ours.post_write(pair.now, 1, b"a" * len(target), region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert target == b"a" * len(target)
    assert pair.alice.endpoint.counters()["retransmits"] == 0
    assert pair.alice.endpoint.counters()["timeouts"] == 0
    return pair, [packet.control for packet in pair.sent if isinstance(packet.control, Ack)]


@pytest.mark.parametrize(
    ("segments", "interval", "acks"),
    [(160, 16, 10), (160, 1, 160), (160, 4, 40), (161, 16, 11), (175, 16, 11), (15, 16, 1), (1, 16, 1), (160, 160, 1)],
)
def test_every_interval_brings_one_ack_and_the_tail_one_too(segments, interval, acks):
    pair, found = stream(segments, interval * 4096)
    assert len(found) == acks
    first = data_packets(pair.sent)[0].seq
    told = [(ack.edge - first) & 0xFFFFFFFF for ack in found]
    assert told == [min(interval * (number + 1), segments) for number in range(acks)]


@pytest.mark.parametrize("window", [4096, 3 * 4096, 8 * 4096, 100_000])
def test_an_interval_longer_than_the_window_stalls_nothing(window):
    """The sender asks for an ACK where its window ends, so nothing waits for a timer."""
    pair, found = stream(500, 1 << 24, control_parameters={"window_bytes": window})
    rounds = 500 * 4096 / max(window, 4096)
    assert len(found) <= 1.5 * rounds + 2
    assert pair.now - 1_000 * US < 1.1 * rounds * 401 * US + 800 * US


@pytest.mark.parametrize("window", [16, 20])
def test_an_interval_longer_than_the_receivers_window_stalls_nothing(window):
    stream(500, 1 << 24, window=window)


@pytest.mark.parametrize("max_run", [1, 4, 16, 64])
def test_runs_are_acknowledged_as_often_as_their_length_allows(max_run):
    _, found = stream(1024, 16 * 4096, max_run=max_run)
    assert len(found) == 1024 // max(16, max_run)


def test_sixteen_megabytes_with_every_hundredth_packet_lost_each_way():
    """A lost ACK makes the sender repeat what has arrived: the repeat is acknowledged again, and placed never."""
    pair = Pair(control="fixed", control_parameters={"window_bytes": 1 << 19}, wire=Wire(rate=CAPS.rate))
    ours, theirs = pair.connect()
    size = 16 << 20
    source = random.Random(4).randbytes(size)
    target, region = expose(theirs, size)
    seen = {True: 0, False: 0}
    lost_acks = 0

    def every_hundredth(now: int, packet: Packet) -> Packet | None:
        nonlocal lost_acks
        seen[packet.src == ALICE] += 1
        if seen[packet.src == ALICE] % 100:
            return packet
        lost_acks += isinstance(packet.control, Ack)
        return None

    pair.wire.touch = every_hundredth
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    pair.drive()
    counters = pair.bob.endpoint.counters()
    assert lost_acks > 0
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert target == source
    assert counters["bytes_placed"] == size
    assert pair.alice.endpoint.counters()["retransmits"] < 2 * seen[True] // 100


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_the_only_ack_is_lost_and_each_repeat_is_acknowledged_and_not_placed(lost):
    pair = Pair(control="fixed")
    ours, theirs = pair.connect()
    target, region = expose(theirs, 4096)
    acks: list[Ack] = []

    def lose_acks(now: int, packet: Packet) -> Packet | None:
        if not isinstance(packet.control, Ack):
            return packet
        acks.append(packet.control)
        target[:] = bytes(4096)  # the application has gone on with its buffer
        return packet if len(acks) > lost else None

    pair.wire.touch = lose_acks
    ours.post_write(pair.now, 1, b"d" * 4096, region.address, region.rkey)
    pair.drive()
    counters = pair.bob.endpoint.counters()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert len(acks) == lost + 1
    assert (counters["duplicates"], counters["bytes_placed"]) == (lost, 4096)
    assert not any(target)


@pytest.mark.parametrize("lost", [1, 3])
def test_the_only_ack_of_reliable_control_is_lost_and_each_repeat_is_acknowledged_and_run_once(lost):
    pair = Pair(control="fixed")
    ours, theirs = pair.connect()
    target, region = expose(theirs, 8)
    acks: list[Ack] = []

    def lose_acks(now: int, packet: Packet) -> Packet | None:
        if packet.src == ALICE or not isinstance(packet.control, Ack):
            return packet
        acks.append(packet.control)
        return packet if len(acks) > lost else None

    pair.wire.touch = lose_acks
    ours.post_fetch_add(pair.now, 1, region.address, region.rkey, 1)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert pair.bob.endpoint.counters()["control_duplicates"] >= lost
    assert sum(target) == 1
