"""Fault injection on records in virtual time, and on real sockets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.nic.helpers import content, data, probe, receive_segments, segments
from transport.clock import MS, NEVER, SECOND, US, Time
from transport.errors import ConfigError
from transport.nic.base import NicCaps
from transport.nic.faults import ANY, FaultInjector, Faults
from transport.nic.loopback import LoopbackNic, Network
from transport.nic.tracer import Tracer
from transport.nic.udp import UdpNic
from transport.packet import CE, CONTROL, DATA, DATAGRAM, ECT_0, NOT_ECT, Packet

A, B = b"\x0a\0\0\1", b"\x0a\0\0\2"
DELAY = 5 * US


class World:
    """Alice sends through faults to bob; both in virtual time."""

    def __init__(self, faults: Faults, seed: int = 1, epoch: Time = 0) -> None:
        self.network = Network(rate=0, delay=DELAY)
        self.alice = FaultInjector(LoopbackNic(self.network, A), faults, seed, epoch)
        self.bob = LoopbackNic(self.network, B)

    def drain(self) -> list[Packet]:
        """Everything that arrives at bob, and time moves as far as that takes."""
        found = self.bob.receive(10_000)
        while self.alice.next_event() < NEVER:
            self.alice.wait(None)
            found += self.bob.receive(10_000)
        return found


def test_no_faults_change_nothing() -> None:
    world = World(Faults())
    sent = [data(A, B, 1, 16), probe(A, B), data(A, B, 17, 3)]
    assert world.alice.send(sent) == 3
    received = world.drain()
    assert [(packet.kind, packet.count) for packet in received] == [(DATA, 16), (DATAGRAM, 1), (DATA, 3)]
    assert world.alice.injected() == {
        "lost": 0, "corrupted": 0, "duplicated": 0, "marked": 0, "reordered": 0, "blackholed": 0, "held": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "counter", "expected"),
    [
        (Faults(loss=0.1), "lost", 1000),
        (Faults(corrupt=0.02), "corrupted", 200),
        (Faults(duplicate=0.05), "duplicated", 500),
        (Faults(mark=0.3), "marked", 3000),
        (Faults(reorder=0.01), "reordered", 100),
    ],
)
def test_faults_are_as_frequent_as_asked_for(faults: Faults, counter: str, expected: int) -> None:
    world = World(faults)
    for n in range(0, 10_000, 10):
        world.alice.send([data(A, B, n, 10, segment=256)])
    hit = world.alice.injected()[counter]
    assert abs(hit - expected) < 5 * expected**0.5, "five standard deviations of a Poisson count"
    received = world.drain()
    total = sum(packet.count for packet in received)
    assert total == 10_000 + {"lost": -hit, "corrupted": -hit, "duplicated": hit}.get(counter, 0)
    if counter == "marked":
        assert sum(packet.count for packet in received if packet.ecn == CE) == hit


def test_the_same_seed_gives_the_same_faults_and_another_one_does_not() -> None:
    def play(seed: int) -> list[tuple[int, int, int, int]]:
        world = World(Faults(loss=0.1, duplicate=0.1, mark=0.1, reorder=0.1, jitter_ps=20 * US), seed)
        for n in range(0, 200, 4):
            world.alice.send([data(A, B, n, 4)])
        return [(packet.received_at, packet.seq, packet.count, packet.ecn) for packet in world.drain()]

    assert play(3) == play(3)
    assert play(3) != play(4)


def test_a_lost_segment_splits_a_run() -> None:
    world = World(Faults(loss=0.2), seed=2)
    sent = data(A, B, 0, 16)
    world.alice.send([sent])
    received = world.drain()
    arrived = {segment[0] for segment in segments(received)}
    assert 0 < world.alice.lost == 16 - len(arrived)
    assert segments(received) == [segment for segment in segments([sent]) if segment[0] in arrived]
    gaps = sum(1 for n in range(15) if n in arrived and n + 1 not in arrived)
    assert len(received) == gaps + (15 in arrived), "what was not hit stays together"


def test_everything_lost_is_taken_and_never_arrives() -> None:
    world = World(Faults(loss=1.0))
    assert world.alice.send([data(A, B, 0, 5)]) == 1
    assert world.drain() == []
    assert world.alice.lost == 5


def test_a_fixed_delay_keeps_the_order() -> None:
    world = World(Faults(delay_ps=30 * US))
    world.alice.send([data(A, B, 0), data(A, B, 1)])
    world.alice.send([data(A, B, 2)])
    assert [(packet.seq, packet.received_at) for packet in world.drain()] == [(n, 30 * US + DELAY) for n in range(3)]


def test_jitter_makes_packets_overtake_each_other() -> None:
    world = World(Faults(jitter_ps=50 * US))
    world.alice.send([data(A, B, n) for n in range(50)])
    received = world.drain()
    order = [packet.seq for packet in received]
    assert sorted(order) == list(range(50)) != order
    assert all(DELAY <= packet.received_at <= DELAY + 50 * US for packet in received)


def test_a_reordered_packet_comes_later_by_the_time_given() -> None:
    world = World(Faults(reorder=0.5, reorder_ps=40 * US))
    world.alice.send([data(A, B, n) for n in range(20)])
    times = {packet.received_at for packet in world.drain()}
    assert times == {DELAY, DELAY + 40 * US}


def test_a_slow_path_delays_only_its_own_packets() -> None:
    world = World(Faults(entropy_delay=((50002, 70 * US),)))
    world.alice.send([data(A, B, 0, entropy=50001), data(A, B, 1, entropy=50002)])
    assert {packet.entropy: packet.received_at for packet in world.drain()} == {50001: DELAY, 50002: DELAY + 70 * US}


def test_marks_on_one_path_only_and_only_on_what_can_be_marked() -> None:
    world = World(Faults(entropy_mark=((50002, 1.0),)))
    deaf = data(A, B, 3, entropy=50002)
    deaf.ecn = NOT_ECT
    sent = [data(A, B, 0, 4, entropy=50001), data(A, B, 4, 4, entropy=50002), deaf]
    world.alice.send(sent)
    assert [(packet.entropy, packet.ecn) for packet in world.drain()] == [
        (50001, ECT_0), (50002, CE), (50002, NOT_ECT),
    ]  # fmt: skip
    assert sent[1].ecn == ECT_0, "the sender's record is the sender's"
    assert world.alice.marked == 4


def test_a_path_marked_less_than_the_others() -> None:
    world = World(Faults(mark=1.0, entropy_mark=((50002, 0.0),)))
    world.alice.send([data(A, B, 0, entropy=50001), data(A, B, 1, entropy=50002)])
    assert [packet.ecn for packet in world.drain()] == [CE, ECT_0]


def test_a_black_hole_swallows_one_path_from_start_to_end() -> None:
    world = World(Faults(blackhole=((50001, 10 * US, 20 * US),)))
    for time in (0, 10 * US - 1, 10 * US, 20 * US - 1, 20 * US):
        world.network.advance(time)
        world.alice.send([data(A, B, time, entropy=50001), data(A, B, time, entropy=50002)])
    survivors = [packet.seq for packet in world.drain() if packet.entropy == 50001]
    assert survivors == [0, 10 * US - 1, 20 * US]
    assert world.alice.blackholed == 2


def test_a_black_hole_for_all_paths_counted_from_an_epoch() -> None:
    world = World(Faults(blackhole=((ANY, 5 * US, NEVER),)), epoch=SECOND)
    world.network.advance(SECOND)
    world.alice.send([data(A, B, 1)])
    world.network.advance(SECOND + 5 * US)
    world.alice.send([data(A, B, 2, 3, entropy=50007)])
    assert [packet.seq for packet in world.drain()] == [1]
    assert world.alice.blackholed == 3


def test_only_the_kinds_named_are_touched() -> None:
    world = World(Faults(loss=1.0, kinds=(DATAGRAM, CONTROL)))
    world.alice.send([data(A, B), probe(A, B)])
    assert [packet.kind for packet in world.drain()] == [DATA]


def test_a_held_packet_keeps_the_bytes_it_was_sent_with() -> None:
    world = World(Faults(delay_ps=US))
    buffer = bytearray(b"first")
    packet = data(A, B, length=5)
    packet.payload, packet.offset = buffer, 0
    world.alice.send([packet])
    buffer[:] = b"later"
    assert world.alice.injected()["held"] == 1
    assert content(world.drain()[0]) == b"first"


def test_a_clock_of_someone_else_stops_for_what_is_held() -> None:
    world = World(Faults(delay_ps=30 * US))
    world.alice.send([data(A, B)])
    assert world.network.next_event() == 30 * US
    world.bob.wait(None)
    assert world.network.now() == 30 * US
    world.alice.receive(1)
    world.bob.wait(None)
    assert len(world.bob.receive(1)) == 1


def test_a_wait_ends_when_asked_though_packets_are_held() -> None:
    world = World(Faults(delay_ps=30 * US))
    world.alice.send([data(A, B)])
    world.alice.wait(10 * US)
    assert world.network.now() == 10 * US


def test_held_packets_die_with_the_nic() -> None:
    world = World(Faults(delay_ps=30 * US))
    world.alice.send([data(A, B)])
    world.alice.close()
    assert world.alice.injected()["held"] == 0


class Narrow:
    """A Nic that takes at most `room` packets at a time and shows what it took."""

    def __init__(self, room: int) -> None:
        self.caps = NicCaps(4096, 64, 16, ecn=True, rate=10**10, base_rtt=US)
        self.address = A
        self.room = room
        self.taken: list[Packet] = []
        self.waits: list[Time | None] = []

    def now(self) -> Time:
        return 0

    def send(self, packets: Sequence[Packet]) -> int:
        self.taken += packets[: self.room]
        return min(len(packets), self.room)

    def receive(self, limit: int) -> list[Packet]:
        return []

    def wait(self, until: Time | None) -> None:
        self.waits.append(until)

    def close(self) -> None:
        pass


def test_a_nic_that_takes_little_gets_everything_in_order() -> None:
    narrow = Narrow(2)
    injector = FaultInjector(narrow, Faults(duplicate=1.0), 1)
    buffer = bytearray(b"first")
    packets = [data(A, B, n, length=5) for n in range(3)]
    packets[2].payload, packets[2].offset = buffer, 0
    assert injector.send(packets) == 3
    buffer[:] = b"later"
    assert injector.send([data(A, B, 9)]) == 0, "backpressure: the last ones go first"
    injector.wait(None)
    assert narrow.waits[-1] is None, "nothing is left to send"
    assert [packet.seq for packet in narrow.taken] == [0, 0, 1, 1, 2, 2]
    assert content(narrow.taken[-1]) == b"first"
    assert injector.send([data(A, B, 9)]) == 1


def test_a_wait_behind_a_blocked_nic_is_short() -> None:
    narrow = Narrow(0)
    injector = FaultInjector(narrow, Faults(), 1)
    injector.send([data(A, B)])
    injector.wait(None)
    assert narrow.waits == [100 * US]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=20),
    st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1), st.integers(0, 50 * US), st.integers(0, 2**32),
)  # fmt: skip
def test_every_segment_is_accounted_for_and_whole(
    sends: list[tuple[int, int]], loss: float, duplicate: float, mark: float, jitter: int, seed: int
) -> None:
    world = World(Faults(loss=loss, corrupt=loss / 2, duplicate=duplicate, mark=mark, jitter_ps=jitter), seed)
    sent: list[Packet] = []
    serial = 0
    for path, count in sends:
        sent.append(data(A, B, serial, count, segment=256, entropy=50000 + path))
        serial += count
        assert world.alice.send(sent[-1:]) == 1
    received = world.drain()
    original = segments(sent)
    arrived = segments(received)
    assert set(arrived) <= set(original)
    counts = world.alice.injected()
    assert len(arrived) == len(original) - counts["lost"] - counts["corrupted"] + counts["duplicated"]
    assert len(set(arrived)) == len(original) - counts["lost"] - counts["corrupted"]
    assert counts["held"] == 0


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"loss": 1.1}, "loss = 1.1"),
        ({"mark": -0.1}, "mark = -0.1"),
        ({"duplicate": "often"}, "duplicate = 'often'"),
        ({"jitter_ps": -1}, "jitter_ps = -1"),
        ({"delay_ps": 0.5}, "delay_ps = 0.5"),
        ({"entropy_mark": ((50000, 2.0),)}, "entropy_mark = 2.0"),
        ({"entropy_delay": ((70000, 5),)}, "source port 70000"),
        ({"entropy_delay": ((50000, -5),)}, "entropy_delay = -5"),
        ({"blackhole": ((50000, 5),)}, "blackhole = "),
        ({"blackhole": ((50000, 5, 5),)}, "the end must be after the start"),
        ({"kinds": (9,)}, "kinds"),
    ],
)
def test_a_bad_plan_is_named(knobs: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Faults(**knobs)  # type: ignore[arg-type]
    assert text in str(caught.value)


@pytest.mark.xdist_group("ports")
def test_the_same_faults_work_on_sockets() -> None:
    faults = Faults(loss=0.1, duplicate=0.1, delay_ps=MS, jitter_ps=MS, entropy_mark=((50001, 1.0),))
    bob = UdpNic("127.1.0.2", [50001])
    udp = UdpNic("127.1.0.1", [50001, 50002])
    alice = Tracer(FaultInjector(udp, faults, 5))
    injector = alice.inner
    assert isinstance(injector, FaultInjector)
    try:
        sent = [data(udp.address, bob.address, 8 * n, 8, entropy=50001 + n % 2) for n in range(25)]
        assert alice.send(sent) == 25
        buffers = segments(sent)
        while injector.injected()["held"]:
            alice.wait(alice.now() + MS)
        expected = 200 - injector.lost + injector.duplicated
        assert 0 < injector.lost < 60
        received = receive_segments(bob, expected)
        assert set(segments(received)) <= set(buffers)
        assert {(packet.entropy, packet.ecn) for packet in received} == {(50001, CE), (50002, ECT_0)}
        assert alice.counters()["sent"] == expected
        assert alice.fileno() == udp.fileno()
    finally:
        alice.close()
        bob.close()
