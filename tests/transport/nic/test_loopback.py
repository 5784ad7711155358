"""The in-process network: its clock, its queues, its marks, and who owns the bytes."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.nic.helpers import content, data, probe, segments
from transport.clock import NEVER, SECOND, US, transmit_time
from transport.errors import ConfigError, NicError
from transport.nic.loopback import HEADER_BYTES, LoopbackNic, Network
from transport.packet import CE, CLASS_CONTROL, ECT_0, NOT_ECT, Packet

A, B, C = b"\x0a\0\0\1", b"\x0a\0\0\2", b"\x0a\0\0\3"
RATE = 8_000_000_000  # 1000 ps a byte
SIZE = 4096 + HEADER_BYTES


def pair(**knobs: object) -> tuple[Network, LoopbackNic, LoopbackNic]:
    network = Network(**knobs)  # type: ignore[arg-type]
    return network, LoopbackNic(network, A), LoopbackNic(network, B)


def drain(network: Network, nic: LoopbackNic) -> list[Packet]:
    """Everything that arrives at nic, however long it takes."""
    found: list[Packet] = []
    while network.next_event() < NEVER:
        network.advance(max(network.now(), network.next_event()))
        found += nic.receive(1000)
    return found


def test_a_packet_takes_serialisation_and_delay() -> None:
    network, alice, bob = pair(rate=RATE, delay=3 * US)
    assert alice.send([data(A, B)]) == 1
    due = SIZE * 1000 + 3 * US
    assert network.next_event() == due
    network.advance(due - 1)
    assert bob.receive(10) == []
    network.advance(due)
    (packet,) = bob.receive(10)
    assert packet.received_at == due == bob.now()
    assert network.next_event() == NEVER


def test_packets_to_one_receiver_leave_space_for_each_other() -> None:
    network, alice, bob = pair(rate=RATE, delay=US)
    carol = LoopbackNic(network, C)
    alice.send([data(A, C, 1), data(A, C, 2)])
    bob.send([data(B, C, 3), data(B, A, 4)])
    network.advance(SECOND)
    times = {packet.seq: packet.received_at for packet in carol.receive(10)}
    assert times == {n: n * transmit_time(SIZE, RATE) + US for n in (1, 2, 3)}
    assert alice.receive(10)[0].received_at == SIZE * 1000 + US, "another port, another queue"


def test_time_stands_still_until_everyone_has_received() -> None:
    network, alice, bob = pair(rate=0, delay=US)
    alice.send([data(A, B)])
    alice.wait(None)
    alice.wait(SECOND)
    assert network.now() == network.next_event() == US
    bob.receive(1)
    alice.wait(SECOND)
    assert network.now() == SECOND


def test_an_infinitely_fast_network_only_delays() -> None:
    network, alice, bob = pair(rate=0, delay=7)
    alice.send([data(A, B, 1), data(A, B, 2)])
    assert [(packet.seq, packet.received_at) for packet in drain(network, bob)] == [(1, 7), (2, 7)]


def test_without_delay_a_packet_arrives_at_once() -> None:
    network, alice, bob = pair(rate=0, delay=0)
    alice.send([data(A, B)])
    assert len(bob.receive(1)) == 1
    assert network.now() == 0


def test_wait_moves_the_clock_to_the_next_event_or_to_until() -> None:
    network, alice, bob = pair(rate=0, delay=10 * US)
    bob.wait(2 * US)
    assert network.now() == 2 * US
    alice.send([data(A, B)])
    bob.wait(5 * US)
    assert network.now() == 5 * US
    bob.wait(None)
    assert network.now() == 12 * US
    bob.wait(20 * US)
    assert network.now() == 12 * US, "a packet lies in the inbox"
    assert len(bob.receive(5)) == 1
    bob.wait(None)
    assert network.now() == 12 * US, "nothing will ever happen"


def test_an_alarm_stops_the_clock() -> None:
    network, alice, _ = pair(rate=0, delay=10 * US)
    alice.alarm(4 * US)
    assert network.next_event() == 4 * US
    alice.wait(None)
    assert network.now() == 4 * US
    assert network.next_event() == NEVER


def test_time_does_not_run_backwards() -> None:
    network, _, _ = pair(start=5)
    with pytest.raises(NicError, match="time is already 5 ps"):
        network.advance(4)


def test_bytes_on_the_wire_are_those_of_the_moment_of_sending() -> None:
    network, alice, bob = pair()
    buffer = bytearray(b"before__")
    packet = data(A, B, length=8)
    packet.payload, packet.offset = buffer, 0
    alice.send([packet])
    buffer[:] = b"after___"
    packet.seq = 7
    (received,) = drain(network, bob)
    assert content(received) == b"before__"
    assert received.seq == 100
    assert packet.payload is buffer


def test_bytes_that_exist_only_in_number_cross() -> None:
    network, alice, bob = pair()
    packet = data(A, B, count=3, length=9000)
    packet.payload = None
    alice.send([packet])
    (received,) = drain(network, bob)
    assert (received.payload, received.length, received.count) == (None, 9000, 3)


@pytest.mark.parametrize("count", [1, 2, 16, 64])
def test_a_run_crosses_whole(count: int) -> None:
    network, alice, bob = pair(rate=RATE, delay=0)
    sent = data(A, B, count=count, length=count * 4096 - 100)
    alice.send([sent])
    (received,) = drain(network, bob)
    assert received.count == count
    assert segments([received]) == segments([sent])
    assert received.received_at == (count * SIZE - 100) * 1000


def test_a_full_queue_drops_the_tail() -> None:
    network, alice, bob = pair(rate=RATE, delay=0, queue_limit=3 * SIZE)
    alice.send([data(A, B, n) for n in range(5)])
    assert [packet.seq for packet in drain(network, bob)] == [0, 1, 2]
    assert bob.counters() == {"sent": 5, "delivered": 3, "dropped": 2, "marked": 0}


def test_a_queue_has_room_again_byte_by_byte_as_the_link_sends() -> None:
    network, alice, bob = pair(rate=RATE, delay=0, queue_limit=2 * SIZE)
    alice.send([data(A, B, 0), data(A, B, 1)])
    network.advance(SIZE * 1000 - 1000)
    alice.send([data(A, B, 2)])
    network.advance(SIZE * 1000)
    alice.send([data(A, B, 3)])
    assert [packet.seq for packet in drain(network, bob)] == [0, 1, 3]


def test_a_run_is_cut_where_the_queue_is_full() -> None:
    network, alice, bob = pair(rate=RATE, delay=0, queue_limit=10 * SIZE)
    sent = data(A, B, count=16)
    alice.send([sent])
    received = drain(network, bob)
    assert segments(received) == segments([sent])[:10]
    assert network.counters()["dropped"] == 6


def test_packets_that_find_a_long_queue_are_marked() -> None:
    network, alice, bob = pair(rate=RATE, delay=0, ecn_threshold=2 * SIZE)
    packets = [data(A, B, n) for n in range(4)]
    packets[3].ecn = NOT_ECT
    alice.send(packets)
    assert [packet.ecn for packet in drain(network, bob)] == [ECT_0, ECT_0, CE, NOT_ECT]
    assert [packet.ecn for packet in packets] == [ECT_0] * 3 + [NOT_ECT], "the sender's records are the sender's"
    alice.send([data(A, B, 9)])
    assert [packet.ecn for packet in drain(network, bob)] == [ECT_0], "the queue is empty again"


def test_a_run_is_cut_where_marking_begins() -> None:
    network, alice, bob = pair(rate=RATE, delay=0, ecn_threshold=3 * SIZE)
    sent = data(A, B, count=8)
    alice.send([sent])
    received = drain(network, bob)
    assert [(packet.count, packet.ecn) for packet in received] == [(3, ECT_0), (5, CE)]
    assert segments(received) == segments([sent])
    assert bob.counters()["marked"] == 5


def test_threshold_zero_marks_everything() -> None:
    network, alice, bob = pair(rate=RATE, ecn_threshold=0)
    alice.send([data(A, B, 1)])
    assert drain(network, bob)[0].ecn == CE


def test_control_overtakes_waiting_data_but_not_the_packet_in_transmission() -> None:
    network, alice, bob = pair(rate=RATE, delay=0)
    alice.send([data(A, B, 1), data(A, B, 2)])
    control = probe(A, B)
    control.seq = 99
    alice.send([control])
    received = drain(network, bob)
    assert [packet.seq for packet in received] == [1, 99, 2]
    assert received[1].received_at == (SIZE + HEADER_BYTES) * 1000


def test_without_priorities_control_waits_its_turn() -> None:
    network, alice, bob = pair(rate=RATE, delay=0, priorities=False)
    control = probe(A, B)
    control.seq = 99
    alice.send([data(A, B, 1), data(A, B, 2), control])
    assert [packet.seq for packet in drain(network, bob)] == [1, 2, 99]
    assert not bob.caps.priorities


def test_a_full_data_queue_does_not_drop_control() -> None:
    network, alice, bob = pair(rate=RATE, delay=0, queue_limit=SIZE)
    alice.send([data(A, B, 1), data(A, B, 2), probe(A, B)])
    assert [packet.priority for packet in drain(network, bob)] == [0, CLASS_CONTROL]


def test_a_jump_over_many_events_serves_them_in_order() -> None:
    network, alice, bob = pair(rate=RATE, delay=US)
    alice.send([data(A, B, n) for n in range(10)])
    network.advance(SECOND)
    received = bob.receive(100)
    assert [packet.received_at for packet in received] == [(n + 1) * SIZE * 1000 + US for n in range(10)]


def test_receive_takes_no_more_than_asked_for() -> None:
    network, alice, bob = pair(rate=0, delay=0)
    alice.send([data(A, B, n) for n in range(5)])
    assert [len(bob.receive(2)) for _ in range(4)] == [2, 2, 1, 0]
    assert network.next_event() == NEVER


def test_nobody_at_the_address() -> None:
    network, alice, bob = pair()
    alice.send([data(A, C, count=2)])
    bob.close()
    alice.send([data(A, B)])
    assert network.counters()["unreachable"] == 3


def test_a_closed_nic_loses_what_was_on_its_way() -> None:
    network, alice, bob = pair()
    alice.send([data(A, B)])
    bob.close()
    network.advance(SECOND)
    assert network.next_event() == NEVER
    with pytest.raises(NicError, match="is closed"):
        bob.receive(1)
    LoopbackNic(network, B)


def test_an_address_in_use_is_refused() -> None:
    network, _, _ = pair()
    with pytest.raises(NicError, match="is in use"):
        LoopbackNic(network, A)


@pytest.mark.parametrize(
    ("knobs", "field"),
    [
        ({"rate": -1}, "rate"), ({"delay": -5}, "delay"), ({"queue_limit": 0}, "queue_limit"), ({"mtu": 1500}, "mtu"),
        ({"ecn_threshold": -1}, "ecn_threshold"), ({"max_run": 0}, "max_run"),
    ],
)  # fmt: skip
def test_a_bad_knob_is_named(knobs: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field} = "):
        pair(**knobs)


def test_an_address_has_4_or_16_bytes() -> None:
    with pytest.raises(ConfigError, match="address"):
        LoopbackNic(Network(), b"10.0.0.1")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20_000_000), st.booleans(), st.integers(1, 5), st.integers(0, 4096), st.sampled_from([A, B])
        ),
        max_size=30,
    ),
    st.sampled_from([0, 1_000_000_000, RATE, 400_000_000_000]),
    st.none() | st.integers(1, 40_000),
    st.none() | st.integers(0, 40_000),
    st.booleans(),
)
def test_whatever_is_sent_arrives_in_class_order_spaced_and_counted(
    sends: list[tuple[int, bool, int, int, bytes]],
    rate: int,
    limit: int | None,
    threshold: int | None,
    priorities: bool,
) -> None:
    def play() -> tuple[list[tuple[int, int, int, int, int]], dict[str, int]]:
        network, alice, bob = pair(
            rate=rate, delay=US, queue_limit=limit, ecn_threshold=threshold, priorities=priorities
        )
        carol = LoopbackNic(network, C)
        got: list[Packet] = []
        serial = 0
        for gap, control, count, last, source in sends:
            network.advance(network.now() + gap)
            got += carol.receive(1000)
            packet = data(source, C, serial, count, length=(count - 1) * 4096 + last)
            packet.priority = int(control)
            serial += count
            (alice if source == A else bob).send([packet])
        got += drain(network, carol)
        seen = [(packet.received_at, packet.seq, packet.count, packet.length, packet.priority) for packet in got]
        return seen, network.counters()

    seen, counters = play()
    assert play() == (seen, counters), "virtual time is deterministic"
    assert counters["sent"] == counters["delivered"] + counters["dropped"] == sum(item[2] for item in sends)
    if limit is None or rate == 0:
        assert counters["dropped"] == 0
    if threshold is None or rate == 0:
        assert counters["marked"] == 0
    for priority in (0, 1):
        order = [seq for _, seq, _, _, own in seen if own == priority]
        assert order == sorted(order)
    if rate:
        for (before, *_), (after, _, count, length, _) in pairwise(seen):
            assert after - before >= transmit_time(length + count * HEADER_BYTES, rate)


@pytest.mark.parametrize("rate", [0, RATE])
def test_real_time_carries_between_threads(rate: int) -> None:
    network, alice, bob = pair(rate=rate, delay=100 * US, virtual=False)
    assert not alice.caps.virtual_time
    echoed: list[Packet] = []

    def echo() -> None:
        while len(echoed) < 20:
            bob.wait(None)
            for packet in bob.receive(64):
                echoed.append(packet)
                bob.send([data(B, A, packet.seq)])

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    received: list[Packet] = []
    end = network.now() + 20 * SECOND
    for n in range(20):
        sent_at = network.now()
        alice.send([data(A, B, n)])
        while len(received) <= n and network.now() < end:
            alice.wait(end)
            received += alice.receive(64)
        assert network.now() - sent_at >= 200 * US
    thread.join(20)
    assert [packet.seq for packet in received] == list(range(20))
    with pytest.raises(NicError, match="real time"):
        network.advance(network.now() + SECOND)


def test_a_real_time_wait_lasts_until_its_end() -> None:
    network, alice, _ = pair(virtual=False)
    until = network.now() + 2000 * US
    alice.wait(until)
    assert network.now() >= until
    alice.wait(until)
