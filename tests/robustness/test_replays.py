"""Replayed captures, in virtual time: during the transfer, after it, on a later connection, to a later incarnation."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import BOB, Host, Pair, Wire
from tests.properties.test_delivery import Case, operations
from tests.robustness.attacks import DROPS, state_of
from tests.robustness.test_hostile_traffic import EVERYTHING
from transport.clock import MS, US
from transport.control import Ack, Probe, ProbeReply
from transport.endpoint import Endpoint
from transport.packet import CONTROL, DATA, Packet
from transport.states import State


class Capture:
    """All packets that enter the wire, as they were."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.packets: list[Packet] = []
        pair.wire.touch = self._touch

    def _touch(self, now: int, packet: Packet) -> Packet:
        self.packets.append(packet.copy())
        return packet

    def replay(self, gap: int = US) -> None:
        """All of it, in order."""
        self.pair.wire.touch = None
        for i, packet in enumerate(self.packets):
            self.pair.inject(packet.copy(), i * gap)
        self.pair.drive()

    def to(self, address: bytes) -> Counter[str]:
        """Segments towards `address` by kind."""
        found: Counter[str] = Counter()
        for packet in self.packets:
            if packet.dst == address:
                kind = "data" if packet.kind == DATA else "control" if packet.kind == CONTROL else ""
                found[kind or type(packet.control).__name__] += packet.count
        return found


def counted(host: Host) -> Counter[str]:
    return Counter(host.endpoint.counters())


@pytest.mark.parametrize("window", [16, 2048])
def test_the_whole_capture_again_after_the_transfer_is_counted_by_kind_and_changes_nothing(window: int) -> None:
    pair = Pair(3, window=window)
    capture = Capture(pair)
    case = Case(pair, EVERYTHING * 2, 3)
    case.run()
    hosts = (pair.alice, pair.bob)
    before = [counted(host) for host in hosts]
    edges = [(end.receiver.ledger.edge, end.channel.edge_in, end.sender.una) for end in (case.ours, case.theirs)]
    capture.replay()
    case.check()
    assert edges == [
        (end.receiver.ledger.edge, end.channel.edge_in, end.sender.una) for end in (case.ours, case.theirs)
    ]
    after = [counted(host) - start for host, start in zip(hosts, before, strict=True)]
    for host, found, other in ((pair.alice, after[0], after[1]), (pair.bob, after[1], after[0])):
        replayed = capture.to(host.endpoint.address)
        assert all(replayed[kind] for kind in ("data", "control", "Ack"))
        # Repeats are counted as such while they are near enough to be honest, else as outside the window.
        known = found["duplicates"] + found["control_duplicates"] + found["dropped_outside_window"]
        assert known == replayed["data"] + replayed["control"]
        assert found["stale_acks"] == found["acks_received"] == replayed["Ack"] + other["acks_sent"]
        assert found["probes_received"] == replayed["Probe"]
        assert found["dropped_bad_probe"] == replayed["ProbeReply"] + other["probes_received"]
        assert not any(found[name] for name in DROPS if name not in ("dropped_outside_window", "dropped_bad_probe"))
        assert found["bytes_placed"] == found["messages_delivered"] == found["requests_completed"] == 0
    assert (after[1]["dropped_outside_window"] > 0) == (window == 16)


@given(
    plan=operations,
    seed=st.integers(0, 2**32),
    delays=st.lists(st.sampled_from([0, 1, 5 * US, 6 * US, 100 * US, 3 * MS]), min_size=1, max_size=4),
    jitter=st.sampled_from([0, 30 * US]),
    loss=st.sampled_from([0.0, 0.03]),
    window=st.sampled_from([16, 2048]),
)
def test_replays_of_everything_during_the_transfer_harm_nothing(plan, seed, delays, jitter, loss, window):
    """Each packet is seen on the wire and sent again, also before the original arrives."""
    pair = Pair(seed, Wire(jitter=jitter, loss=loss), window=window, mtu=1024)

    def replay(now: int, packet: Packet) -> Packet:
        for delay in delays:
            pair.inject(packet.copy(), delay)
        return packet

    pair.wire.touch = replay
    case = Case(pair, plan, seed)
    case.run()
    pair.wire.touch = None
    pair.drive()
    case.check()
    for host in (pair.alice, pair.bob):
        found = counted(host)
        harmless = ("dropped_outside_window", "dropped_bad_probe", "dropped_bad_control")
        assert not any(found[name] for name in DROPS if name not in harmless)


def test_the_capture_of_a_closed_connection_finds_no_queue_pair_and_no_open_one_moves() -> None:
    pair = Pair(4)
    capture = Capture(pair)
    case = Case(pair, EVERYTHING, 4)
    case.run()
    case.ours.close(pair.now)
    pair.drive(lambda: case.theirs.state == case.ours.state == State.RESET)
    ends = pair.connect()
    before = [state_of(end) for end in ends]
    counters = [counted(host) for host in (pair.alice, pair.bob)]
    capture.replay()
    assert [state_of(end) for end in ends] == before
    for host, start in zip((pair.alice, pair.bob), counters, strict=True):
        moved = counted(host) - start
        segments = sum(capture.to(host.endpoint.address).values())
        assert moved == {"packets_received": segments, "dropped_unknown_qpn": segments}
    case.check()


def test_a_number_rests_until_nothing_of_its_time_can_be_on_its_way() -> None:
    pair = Pair(4)
    _, theirs = pair.connect()
    theirs.destroy()
    endpoint = pair.bob.endpoint
    [(until, number)] = endpoint.resting
    assert number == theirs.qpn
    endpoint.create_connection(endpoint.protection_domain(), until - 1)
    assert endpoint.resting
    endpoint.create_connection(endpoint.protection_domain(), until)
    assert not endpoint.resting


@pytest.mark.parametrize("same_number", [False, True], ids=["another number", "by chance the same number"])
def test_the_capture_of_an_earlier_incarnation_is_dropped_by_the_next(same_number: bool) -> None:
    """Bob's process dies and comes back under its address, with nothing in memory."""
    pair = Pair(5)
    capture = Capture(pair)
    case = Case(pair, EVERYTHING, 5)
    case.run()
    old = case.theirs
    case.ours.destroy()
    endpoint = Endpoint(pair.bob.endpoint.config, BOB, pair.bob.endpoint.caps, random.Random("another"))
    pair.bob.endpoint = endpoint
    ours, theirs = pair.connect()
    before = state_of(theirs)
    packets = [packet for packet in capture.packets if packet.dst == BOB]
    for packet in packets:
        repeated = packet.copy()
        if same_number:
            assert repeated.qpn == old.qpn
            repeated.qpn = theirs.qpn
        endpoint.receive(repeated, pair.now)
    assert state_of(theirs) == before
    found = {name: value for name, value in endpoint.counters().items() if name in DROPS and value}
    kinds = capture.to(BOB)
    if not same_number:
        assert found == {"dropped_unknown_qpn": sum(kinds.values())}
        assert not endpoint.poll_transmit(pair.now, 10)
    else:
        strangers = found.pop("dropped_outside_window", 0) + found.pop("dropped_bad_key", 0)
        assert strangers == kinds.pop("data")
        assert found == {"dropped_wrong_tag": sum(kinds.values())}
    buffer, source = bytearray(100), bytes(range(100))
    theirs.post_recv(pair.now, 1, buffer)
    ours.post_send(pair.now, 2, source)
    pair.drive()
    assert buffer == source


def test_what_a_capture_holds_is_everything_that_can_be_replayed() -> None:
    """Else the tests above would say less than they seem to."""
    pair = Pair(3)
    capture = Capture(pair)
    Case(pair, EVERYTHING * 2, 3).run()
    kinds = {type(packet.control) for packet in capture.packets if packet.control is not None}
    assert {Ack, Probe, ProbeReply} <= kinds
    assert len(kinds) >= 8
