"""A round trip is measured from the departure of the very packet that was answered, and without the answer's hold.

Known from other stacks: a start stamp of another moment, which made a delay-based control almost three times slower.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers import ALICE, CAPS, Pair, Wire, data_packets, forge_control
from tests.transport.test_queue_pair import expose
from transport.clock import NS, US
from transport.control import Probe, ProbeReply
from transport.packet import DATA, DATAGRAM, Packet

RTT = 8 * US
QUIET = replace(CAPS, base_rtt=RTT)


def idle_pair(**settings) -> Pair:
    return Pair(**{"wire": Wire(delay=RTT // 2), "caps": QUIET, "control": "fixed", **settings})


def samples(pair: Pair) -> list[int]:
    """Latest, least and smoothed round trip of each path of alice that has one."""
    found = []
    for path in pair.connections[0].context.paths.paths:
        if path.srtt >= 0:
            found += [path.latest_rtt, path.min_rtt, path.srtt]
    return found


def within_a_percent(pair: Pair) -> bool:
    found = samples(pair)
    return bool(found) and all(0.99 * RTT <= rtt <= 1.01 * RTT for rtt in found)


@pytest.mark.parametrize("operation", ["write", "send", "long send", "read", "atomic", "immediate"])
def test_every_sample_on_an_idle_path_is_within_a_percent(operation):
    pair = idle_pair()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 16)
    for number in range(40):
        if "send" in operation or operation == "immediate":
            theirs.post_recv(pair.now, number, bytearray(9000))
        if operation == "write":
            ours.post_write(pair.now, number, bytes(5000), region.address, region.rkey)
        elif operation == "send":
            ours.post_send(pair.now, number, b"short")
        elif operation == "long send":
            ours.post_send(pair.now, number, bytes(9000))
        elif operation == "read":
            ours.post_read(pair.now, number, bytearray(9000), region.address, region.rkey)
        elif operation == "atomic":
            ours.post_fetch_add(pair.now, number, region.address, region.rkey, 1)
        else:
            ours.post_write(pair.now, number, bytes(5000), region.address, region.rkey, imm=number)
        pair.drive()
        assert within_a_percent(pair), (number, samples(pair))


def test_the_time_that_an_acknowledgement_was_held_is_no_part_of_it():
    """A SEND waits for a receive behind the write, so the write asks for no ACK and its ACK is held."""
    pair = idle_pair()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    began = pair.now
    ours.post_write(pair.now, 1, bytes(4096), region.address, region.rkey)
    ours.post_send(pair.now, 2, b"waits")
    pair.drive(lambda: pair.alice.completions)
    assert not data_packets(pair.sent)[0].ack_request
    assert pair.now - began > 1.2 * RTT
    assert within_a_percent(pair)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_segment_that_was_sent_again_counts_from_the_copy_that_was_answered(lost):
    pair = idle_pair()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    ours.post_write(pair.now, 0, bytes(4096), region.address, region.rkey)
    pair.drive()
    copies: list[int] = []

    def lose_the_first(now: int, packet: Packet) -> Packet | None:
        if packet.kind == DATA:
            copies.append(packet.psn)
        return packet if packet.kind != DATA or len(copies) > lost else None

    pair.wire.touch = lose_the_first
    ours.post_write(pair.now, 1, bytes(4096), region.address, region.rkey)
    pair.drive()
    assert len(copies) == lost + 1
    assert within_a_percent(pair)


def test_an_answer_to_the_first_copy_after_the_second_has_left_counts_from_the_first():
    pair = idle_pair()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    ours.post_write(pair.now, 0, bytes(4096), region.address, region.rkey)
    pair.drive()
    grown = 40 * US
    pair.wire.delay = grown - RTT // 2  # one way; back it takes as long as ever
    departures: list[int] = []

    def back_as_ever(now: int, packet: Packet) -> Packet:
        pair.wire.delay = grown - RTT // 2 if packet.src == ALICE else RTT // 2
        if packet.kind == DATA:
            departures.append(now)
        return packet

    pair.wire.touch = back_as_ever
    ours.post_write(pair.now, 1, bytes(4096), region.address, region.rkey)
    pair.drive(lambda: len(pair.alice.completions) == 2)
    assert len(departures) > 1
    assert departures[1] - departures[0] < grown
    assert grown in [path.latest_rtt for path in ours.context.paths.paths]


def test_probes_measure_what_data_measures():
    pair = idle_pair(paths=8)
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 16)
    for number in range(100):
        ours.post_write(pair.now, number, bytes(1 << 16), region.address, region.rkey)
        pair.drive(lambda: len(pair.alice.completions) == number + 1)  # noqa: B023
    assert within_a_percent(pair)


@pytest.mark.parametrize("held", [0, 1 * NS, 7 * US, 3000 * US])
def test_a_reply_says_how_long_its_probe_was_held_by_a_host_that_was_busy(held):
    pair = idle_pair()
    _, theirs = pair.connect()
    ours = pair.connections[0]
    pair.bob.endpoint.poll_transmit(pair.now, 64)
    pair.bob.endpoint.receive(forge_control(ours, DATAGRAM, Probe(77, 0xC000)), pair.now)
    (reply,) = pair.bob.endpoint.poll_transmit(pair.now + held, 64)
    assert reply.control == ProbeReply(77, 0xC000, held, False)
    assert theirs.datagrams == []


def test_an_acknowledgement_says_how_long_a_host_that_was_busy_held_it():
    pair = idle_pair()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    ours.post_write(pair.now, 1, bytes(4096), region.address, region.rkey)
    (packet,) = data_packets(pair.alice.endpoint.poll_transmit(pair.now, 64))
    pair.bob.endpoint.poll_transmit(pair.now, 64)
    pair.bob.endpoint.receive(packet, pair.now)
    (ack,) = pair.bob.endpoint.poll_transmit(pair.now + 3 * US, 64)
    assert ack.control.hold == 3 * US


@pytest.mark.parametrize("rate", [10_000_000_000, 100_000_000_000])
def test_a_delay_based_control_is_not_slowed_down_on_an_idle_path(rate):
    """With right samples, a lone flow of small messages never meets the delay target: its window is never cut."""
    pair = idle_pair(control="swift", caps=replace(QUIET, rate=rate))
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    before = ours.context.control.window
    for number in range(200):
        ours.post_write(pair.now, number, bytes(4096), region.address, region.rkey)
        pair.drive(lambda: len(pair.alice.completions) == number + 1)  # noqa: B023
    assert ours.context.control.window >= before
    assert within_a_percent(pair)


def test_a_round_trip_belongs_to_the_path_of_the_data_whichever_way_the_acknowledgement_takes():
    pair = idle_pair(paths=2, selector="round_robin")
    slow, quick = pair.alice.endpoint.entropies
    enter = pair._enter

    def late(host, packet):
        pair.wire.delay = RTT // 2 + (50 * US if packet.src == ALICE and packet.entropy == slow else 0)
        enter(host, packet)

    def back_by_the_quick_one(now: int, packet: Packet) -> Packet:
        if packet.src != ALICE:
            packet.entropy = quick
        return packet

    pair._enter = late
    pair.wire.touch = back_by_the_quick_one
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    for number in range(20):
        ours.post_write(pair.now, number, bytes(4096), region.address, region.rkey)
        pair.drive()
    first, second = ours.context.paths.paths
    assert (first.entropy, first.latest_rtt, first.min_rtt) == (slow, RTT + 50 * US, RTT + 50 * US)
    assert (second.entropy, second.latest_rtt, second.min_rtt) == (quick, RTT, RTT)
