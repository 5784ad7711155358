"""Packets that come late are neither duplicates nor lost.

Known from other stacks: a window of 128 packet numbers against duplicates refuses good packets; a fixed threshold of
three later packets sends most of them again.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.helpers import ALICE, CAPS, Pair, Wire
from tests.transport.test_queue_pair import expose, outcome
from transport.clock import MS, US
from transport.control import RecvAdvert
from transport.packet import CONTROL, DATA, Packet
from transport.placement import MemoryRegion


class Late(Pair):
    """A Pair whose wire holds each of alice's data packets back for `extra(packet)` picoseconds more. arrivals: (time,
    DSN) of each."""

    def __init__(self, extra: Callable[[Packet], int], **settings) -> None:
        super().__init__(**settings)
        self.extra = extra
        self.arrivals: list[tuple[int, int]] = []

    def _enter(self, host, packet):
        if packet.src != ALICE or packet.kind != DATA:
            super()._enter(host, packet)
            return
        whole, base = packet, self.wire.delay
        for i in range(whole.count):
            part = whole.split(i, 1)
            self.wire.delay = base + self.extra(part)
            super()._enter(host, part)
            self.arrivals.append((max(self.now, host.free_at) + self.wire.delay, part.seq))
        self.wire.delay = base


def overtaken(arrivals: list[tuple[int, int]], least: int) -> int:
    """How many arrived after at least `least` packets that were sent later."""
    seen: list[int] = []
    count = 0
    for _, place in sorted((time, place) for place, (time, _) in enumerate(arrivals)):
        count += len(seen) - bisect_left(seen, place) >= least
        insort(seen, place)
    return count


#: Rate, MTU, delay of the slow path, and the packets it is behind by: with headers of 64 bytes 240, without them 244.
SKEWS = [
    pytest.param(1_600_000_000, 1024, 5 * MS, 689, id="1.6 Gbit/s and 5 ms"),
    pytest.param(400_000_000_000, 4096, 20 * US, 240, id="400 Gbit/s and 20 us"),
]


@pytest.mark.parametrize(("rate", "mtu", "skew", "apart"), SKEWS)
@pytest.mark.parametrize("max_run", [1, 8])
def test_no_packet_is_refused_as_a_duplicate_or_outside_however_far_paths_are_apart(rate, mtu, skew, apart, max_run):
    size = 8 << 20
    pair = Late(
        lambda packet: skew if packet.entropy == slow else 0,
        wire=Wire(rate=rate), caps=replace(CAPS, rate=rate, base_rtt=2 * skew), mtu=mtu, max_run=max_run, paths=2,
        selector="round_robin", control="fixed", control_parameters={"window_bytes": 1 << 30},
    )  # fmt: skip
    slow = pair.alice.endpoint.entropies[1]
    ours, theirs = pair.connect()
    source = random.Random(5).randbytes(size)
    target, region = expose(theirs, size)
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    spread: list[int] = []
    ledger = theirs.receiver.ledger
    pair.drive(lambda: spread.append(ledger.top - ledger.edge) or pair.alice.completions)
    pair.drive()
    counters = pair.bob.endpoint.counters()
    assert max(spread) >= apart
    assert counters["dropped_outside_window"] == 0
    assert counters["bytes_placed"] == size
    # What was called a duplicate is what had come before, and nothing else.
    assert counters["duplicates"] == len(pair.arrivals) - size // mtu
    assert counters["duplicates"] < 0.05 * size // mtu
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert target == source


def test_a_whole_window_behind_one_missing_packet_is_taken():
    """The packet that all others overtake is as far behind as the window allows; each of the others is new."""
    pair = Late(
        lambda packet: 2 * MS if packet.seq == first else 0,
        wire=Wire(delay=10 * MS, rate=CAPS.rate), caps=replace(CAPS, base_rtt=20 * MS), control="fixed",
        control_parameters={"window_bytes": 1 << 30},
    )  # fmt: skip
    ours, theirs = pair.connect()
    first = ours.sender.next
    window = ours.context.window
    target, region = expose(theirs, (window + 100) * 4096)
    ours.post_write(pair.now, 1, b"w" * len(target), region.address, region.rkey)
    ledger = theirs.receiver.ledger
    pair.drive(lambda: ledger.top - ledger.edge == window)
    assert ledger.edge == first
    pair.drive()
    counters = pair.bob.endpoint.counters()
    assert (counters["dropped_outside_window"], counters["duplicates"]) == (0, 0)
    assert pair.alice.endpoint.counters()["retransmits"] == 0
    assert target == b"w" * len(target)


def test_all_128_packets_of_reliable_control_may_overtake_the_first():
    late: list[Packet] = []

    def hold_the_first(now: int, packet: Packet) -> Packet | None:
        if packet.kind == CONTROL and packet.src == ALICE and not late:
            late.append(packet)
            return None
        return packet

    pair = Pair(control="fixed", caps=replace(CAPS, base_rtt=20 * MS))
    ours, theirs = pair.connect()
    pair.wire.touch = hold_the_first
    for _ in range(128):
        ours.channel.post(RecvAdvert(0, ()))
    pair.flush()
    pair.inject(late[0], delay=MS)
    pair.drive(lambda: not ours.channel.pending())
    counters = pair.bob.endpoint.counters()
    assert (counters["dropped_outside_window"], counters["control_duplicates"]) == (0, 0)
    assert pair.alice.endpoint.counters()["control_retransmits"] == 0
    assert theirs.channel.seen == 0


@pytest.mark.parametrize("max_run", [1, 16])
@pytest.mark.parametrize("paths", [1, 16])
def test_nothing_is_sent_again_when_a_quarter_of_all_packets_are_late(paths, max_run):
    """1.6 Gbit/s, round trip 197 ms, a quarter of the packets 5 ms late, none lost."""
    rng = random.Random(6)
    pair = Late(
        lambda packet: 5 * MS if rng.random() < 0.25 else 0,
        wire=Wire(delay=98_500 * US, rate=1_600_000_000),
        caps=replace(CAPS, rate=1_600_000_000, base_rtt=197 * MS), mtu=1024, max_run=max_run, paths=paths,
        control="fixed", window=32768,
    )  # fmt: skip
    ours, theirs = pair.connect()
    size = 4 << 20
    region: MemoryRegion = theirs.context.domain.register(size, 7)
    for number in range(3):
        ours.post_write(pair.now, number, size, region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(3)]
    # A threshold of three later packets would take a fifth of them for lost.
    assert overtaken(pair.arrivals, 3) > 0.2 * len(pair.arrivals)
    assert pair.alice.endpoint.counters()["retransmits"] == 0
    assert pair.bob.endpoint.counters()["duplicates"] == 0
    assert pair.bob.endpoint.counters()["bytes_placed"] == 3 * size


@pytest.mark.parametrize("late", [1, 2, 4])
def test_a_late_packet_that_closes_a_gap_is_acknowledged_in_time(late):
    """The sender waits a quarter of the round trip for what was overtaken: an ACK that is held that long on top of the
    lateness would make it send again what has arrived."""
    pair = Late(
        lambda packet: late * MS if packet.seq == missing else 0,
        wire=Wire(delay=10 * MS, rate=CAPS.rate), caps=replace(CAPS, base_rtt=20 * MS), control="fixed",
        control_parameters={"window_bytes": 1 << 30},
    )  # fmt: skip
    ours, theirs = pair.connect()
    missing = (ours.sender.next + 5) & 0xFFFFFFFF
    _, region = expose(theirs, 40 * 4096)
    began = pair.now
    ours.post_write(pair.now, 1, bytes(40 * 4096), region.address, region.rkey)
    pair.drive(lambda: pair.alice.completions)
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert pair.now - began < (20 + late) * MS + 100 * US
    assert pair.alice.endpoint.counters()["retransmits"] == 0
