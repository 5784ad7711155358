"""One queue pair over two planes: addresses, equal source ports, a plane that dies and comes back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ALICE, BOB, CAPS, Host, Pair, Wire, data_packets
from transport import selectors
from transport.clock import NEVER, US
from transport.completion import Status
from transport.config import EndpointConfig
from transport.connection import Connection
from transport.control import Ack, Probe, ProbeReply, Reject
from transport.endpoint import Endpoint
from transport.packet import DATA, Packet
from transport.path import BAD, GOOD, PROBING
from transport.paths import PathEvent
from transport.placement import Access

RTT = CAPS.base_rtt
#: What an eviction may take: max(3 RTT, 1 RTO), the least timeout being 20 base round trips.
BOUND = 20 * RTT
ALICES = (ALICE, bytes([10, 1, 0, 1]))
BOBS = (BOB, bytes([10, 1, 0, 2]))
PLANES = {(ALICES[0], BOBS[0]): 0, (BOBS[0], ALICES[0]): 0, (ALICES[1], BOBS[1]): 1, (BOBS[1], ALICES[1]): 1}


def plane_of(packet: Packet) -> int:
    return PLANES[packet.src, packet.dst]


class Planes(Pair):
    """A Pair whose hosts have two addresses each. kills: (plane, start, end, sender or None for both) in virtual time;
    lost: when they swallowed a packet, by plane."""

    def __init__(self, seed: int = 1, wire: Wire | None = None, **config: Any) -> None:
        super().__init__(seed, wire, **config)
        settings = EndpointConfig(**{"idle_after": NEVER, **config})
        self.alice = Host(Endpoint(settings, ALICES, CAPS, random.Random(f"{seed}a")))
        self.bob = Host(Endpoint(settings, BOBS, CAPS, random.Random(f"{seed}b")))
        self.hosts = {**dict.fromkeys(ALICES, self.alice), **dict.fromkeys(BOBS, self.bob)}
        self.kills: list[tuple[int, int, int, tuple[bytes, ...]]] = []
        self.lost: dict[int, list[int]] = {0: [], 1: []}
        self.wire.touch = self._touch

    def kill(self, plane: int, start: int, end: int = NEVER, senders: tuple[bytes, ...] = ALICES + BOBS) -> None:
        self.kills.append((plane, start, end, senders))

    def _touch(self, now: int, packet: Packet) -> Packet | None:
        for plane, start, end, senders in self.kills:
            if plane == plane_of(packet) and start <= now < end and packet.src in senders:
                self.lost[plane].append(now)
                return None
        return packet


def stream(pair: Pair, messages: int, size: int = 65536, depth: int = 4) -> Connection:
    """Alice writes `messages` to Bob, `depth` at a time."""
    ours, theirs = pair.connect()
    memory = theirs.context.domain.register(size, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
    posted = 0

    def post(*_: Any) -> None:
        nonlocal posted
        if posted < messages:
            posted += 1
            ours.post_write(pair.now, posted, size, memory.address, memory.rkey)

    pair.on_completion = post
    for _ in range(depth):
        post()
    return ours


def path_events(host: Host) -> list[PathEvent]:
    found = []
    while (event := host.endpoint.poll_event()) is not None:
        found.append(event)
    return found


def all_succeeded(pair: Pair) -> bool:
    return all(item.status == Status.SUCCESS for item in pair.alice.completions)


# Addresses


@pytest.mark.parametrize("selector", [name for name in selectors.names() if name != "single"])
def test_one_queue_pair_uses_every_source_port_of_both_planes(selector):
    pair = Planes(3, paths=4, selector=selector)
    stream(pair, 60)
    pair.drive_messages(60)
    assert all_succeeded(pair)
    ports = pair.alice.endpoint.entropies
    used = {(plane_of(packet), packet.entropy) for packet in data_packets(pair.sent)}
    assert used <= {(plane, port) for plane in (0, 1) for port in ports}
    assert {plane for plane, _ in used} == {0, 1}
    if selector not in ("reps", "mixed"):  # which recycle few
        assert len(used) == 8


def test_both_planes_carry_their_share():
    pair = Planes(3, paths=8)
    stream(pair, 100)
    pair.drive_messages(100)
    data = data_packets(pair.sent)
    assert 0.3 < sum(plane_of(packet) for packet in data) / len(data) < 0.7


def test_answers_go_back_by_the_plane_and_source_port_of_what_they_answer():
    pair = Planes(3, Wire(loss=0.02), paths=4)
    asked: dict[int, tuple[int, int]] = {}
    answered: dict[int, tuple[int, int]] = {}

    def touch(now: int, packet: Packet) -> Packet | None:
        if packet.src in ALICES and isinstance(packet.control, Probe):
            asked[packet.control.nonce] = (plane_of(packet), packet.entropy)
        if packet.src in BOBS and isinstance(packet.control, ProbeReply):
            answered[packet.control.nonce] = (plane_of(packet), packet.entropy)
        if packet.src in BOBS and isinstance(packet.control, Ack) and packet.control.trigger_space == 0:
            trigger = packet.control.trigger_psn
            mine = [item for item in pair.sent if item.kind == DATA and item.psn <= trigger < item.psn + item.count]
            assert [(plane_of(item), item.entropy) for item in mine] == [(plane_of(packet), packet.entropy)]
        return packet

    pair.wire.touch = touch
    ours = stream(pair, 400)
    ours.context.psn = 0  # does not wrap in this test
    pair.drive_messages(400)
    assert {plane for plane, _ in answered.values()} == {0, 1}
    assert answered == {nonce: asked[nonce] for nonce in answered}


def test_a_refusal_goes_back_by_the_plane_it_came_by():
    pair = Planes(1, paths=2)
    ours, _ = pair.connect()
    for plane in (0, 1):
        packet = ours.context.packet(DATA, 0xC123, 1, plane)
        packet.rkey, packet.payload, packet.length, packet.stride = 0xBAD, b"data", 4, packet.segment
        packet.seq = ours.sender.next & 0xFFFFFFFF
        pair.inject(packet)
        pair.now += 100 * RTT  # refusals are limited in rate
        pair.drive()
    answers = [packet for packet in pair.sent if isinstance(packet.control, Reject)]
    assert [(plane_of(packet), packet.entropy) for packet in answers] == [(0, 0xC123), (1, 0xC123)]


@pytest.mark.parametrize(
    ("source", "destination"),
    [(ALICES[0], BOBS[1]), (ALICES[1], BOBS[0]), (bytes([10, 2, 0, 1]), BOBS[0]), (BOBS[0], BOBS[0])],
    ids=["first to second", "second to first", "a stranger", "itself"],
)
def test_a_packet_that_ran_between_no_two_addresses_of_one_plane_is_dropped_and_counted(source, destination):
    pair = Planes(1, paths=2)
    ours, theirs = pair.connect()
    memory = theirs.context.domain.register(4096, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
    packet = ours.context.packet(DATA, 0xC000, 1, 1)
    packet.src, packet.dst = source, destination
    packet.seq = ours.sender.next & 0xFFFFFFFF
    packet.rkey, packet.address, packet.payload = memory.rkey, memory.address, b"evil"
    packet.length, packet.stride = 4, packet.segment
    pair.inject(packet)
    pair.drive()
    counters = pair.bob.endpoint.counters()
    assert counters["dropped_wrong_address"] == 1
    assert counters["bytes_placed"] == 0
    assert memory.view is None or bytes(memory.view[:4]) == bytes(4)


def test_connections_to_the_same_addresses_share_their_paths_and_to_others_do_not():
    pair = Planes(1, paths=2)
    first, _ = pair.connect()
    second, theirs = pair.connect()
    assert first.context.paths is second.context.paths
    swapped = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
    other = type(theirs.parameters)(**{**theirs.parameters.to_json(), "addresses": theirs.parameters.addresses[::-1]})
    swapped.connect(pair.now, other)
    assert swapped.context.paths is not first.context.paths


def test_one_address_alone_gives_the_same_packets_as_a_list_of_one():
    def trace(alice: Any, bob: Any) -> list[str]:
        pair = Pair(5, Wire(loss=0.02), paths=8)
        settings = EndpointConfig(paths=8, idle_after=NEVER)
        pair.alice = Host(Endpoint(settings, alice, CAPS, random.Random("a")))
        pair.bob = Host(Endpoint(settings, bob, CAPS, random.Random("b")))
        pair.hosts = {ALICE: pair.alice, BOB: pair.bob}
        stream(pair, 20)
        pair.drive_messages(20)
        return [f"{packet.src!r} {packet.dst!r} {packet.entropy} {packet!r}" for packet in pair.sent]

    assert trace(ALICE, BOB) == trace([ALICE], (BOB,))


# A plane dies


def moved_and_came_back(pair: Planes, messages: int, start: int, end: int) -> None:
    """Plane 1 died at `start` and came back at `end`: the claims that all tests of that make."""
    pair.drive_messages(messages)
    assert all_succeeded(pair)
    count = len(pair.alice.endpoint.entropies)
    events = path_events(pair.alice)
    bad = [event for event in events if event.new == BAD and event.time < end and event.old != PROBING]
    assert {event.plane for event in bad} == {1}
    assert len({event.entropy for event in bad}) == count, "every path of the plane"
    assert max(event.time for event in bad) - pair.lost[1][0] <= BOUND
    back = [event for event in events if event.new == GOOD and event.old == PROBING and event.time >= end]
    assert {event.plane for event in back} == {1}
    assert len({event.entropy for event in back}) == count
    assert not [event for event in events if event.new == GOOD and event.old == PROBING and event.time < end]
    last = max(event.time for event in back)
    after = [packet for packet in data_packets(pair.sent) if packet.sent_at > last]
    assert {plane_of(packet) for packet in after} == {0, 1}, "data uses the plane again"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("selector", ["pot", "random", "round_robin"])
def test_a_plane_dies_midway_the_traffic_moves_and_comes_back(selector, seed):
    pair = Planes(seed, paths=8, selector=selector)
    stream(pair, 700)
    start, end = pair.now + 300 * US, pair.now + 800 * US
    pair.kill(1, start, end)
    moved_and_came_back(pair, 700, start, end)
    silent = [packet for packet in data_packets(pair.sent) if start + BOUND < packet.sent_at < end]
    assert silent
    assert {plane_of(packet) for packet in silent} == {0}


def test_the_other_plane_may_die_later():
    pair = Planes(2, paths=8)
    stream(pair, 900)
    begin = pair.now
    pair.kill(1, begin + 200 * US, begin + 600 * US)
    pair.kill(0, begin + 1500 * US, begin + 2000 * US)
    pair.drive_messages(900)
    assert all_succeeded(pair)
    evicted = [event.plane for event in path_events(pair.alice) if event.new == BAD and event.old != PROBING]
    assert evicted == sorted(evicted, reverse=True), "first plane 1, then plane 0"
    assert set(evicted) == {0, 1}


@pytest.mark.parametrize("senders", [ALICES, BOBS], ids=["there", "back"])
def test_only_one_direction_of_a_plane_dies_and_all_messages_complete(senders):
    pair = Planes(4, paths=8)
    stream(pair, 400)
    pair.kill(1, pair.now + 200 * US, NEVER, senders)
    pair.drive_messages(400)
    assert all_succeeded(pair)
    assert pair.lost[1]


def test_the_traffic_moves_under_loss_everywhere():
    for seed in range(3):
        pair = Planes(seed, Wire(loss=0.02), paths=8, control="fixed")
        stream(pair, 900)
        start, end = pair.now + 300 * US, pair.now + 1000 * US
        pair.kill(1, start, end)
        pair.drive_messages(900)
        assert all_succeeded(pair)
        events = path_events(pair.alice)
        assert {event.plane for event in events if event.new == BAD} == {1}, "loss evicts no path of a living plane"
        assert {event.entropy for event in events if event.new == BAD} == set(pair.alice.endpoint.entropies)
        recovered = [event for event in events if event.new == GOOD and event.old == PROBING]
        assert {event.entropy for event in recovered} == set(pair.alice.endpoint.entropies)


def test_a_trickle_learns_of_a_dead_plane_from_few_lost_messages():
    """With 32 paths on the dead plane, a message each round trip would find them one by one: 32 late messages."""
    pair = Planes(6, paths=32, selector="random")
    ours, theirs = pair.connect()
    memory = theirs.context.domain.register(4096, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
    pair.kill(1, pair.now)
    for number in range(200):
        ours.post_write(pair.now, number, 4096, memory.address, memory.rkey)
        pair.drive_messages(number + 1)
        pair.now += RTT
    assert all_succeeded(pair)
    dead = [packet for packet in data_packets(pair.sent) if plane_of(packet) == 1]
    assert 1 <= len(dead) <= 16


@pytest.mark.parametrize("seed", range(6))
def test_after_silence_one_packet_goes_out_on_every_plane_and_only_the_path_that_lost_it_is_blamed(seed):
    pair = Planes(seed, paths=4)
    ours, theirs = pair.connect()
    memory = theirs.context.domain.register(4096, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
    swallowed: list[Packet] = []

    def touch(now: int, packet: Packet) -> Packet | None:
        if packet.kind == DATA and not swallowed:
            swallowed.append(packet)
            return None
        return packet

    pair.wire.touch = touch
    ours.post_write(pair.now, 1, 4096, memory.address, memory.rkey)
    pair.drive_messages(1)
    assert all_succeeded(pair)
    first, *copies = data_packets(pair.sent)
    assert {plane_of(packet) for packet in copies} == {0, 1}
    assert len({packet.sent_at for packet in copies}) == 1
    blamed = {(path.plane, path.entropy) for path in ours.context.paths.paths if path.losses}
    assert blamed <= {(plane_of(first), first.entropy)}


def test_control_goes_out_on_every_plane_after_silence_too():
    pair = Planes(1, paths=4)
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 1, bytearray(64))
    pair.drive()
    pair.kill(1, pair.now)
    for number in range(20):
        theirs.post_recv(pair.now, number, bytearray(64))
        ours.post_send(pair.now, number, b"inline")
        before = pair.now
        pair.drive_messages(number + 1)
        assert pair.now - before < 3 * BOUND, "one timeout at most, no back-off"
        pair.drive()
    assert all_succeeded(pair)


def test_when_both_planes_die_the_error_names_peer_and_path():
    pair = Planes(1, paths=4, retries=3)
    stream(pair, 100)
    for plane in (0, 1):
        pair.kill(plane, pair.now + 100 * US)
    pair.drive(lambda: any(item.status != Status.SUCCESS for item in pair.alice.completions))
    failed = next(item for item in pair.alice.completions if item.status != Status.SUCCESS)
    assert failed.status == Status.RETRY_EXC_ERR
    assert "peer 10.0.0.2" in failed.error
    ports = pair.alice.endpoint.entropies
    assert any(f"path {port} of plane {plane}" in failed.error for port in ports for plane in (0, 1))
    assert not [event for event in path_events(pair.alice) if event.new == BAD], "silence is no evidence against a path"


# Equal source ports on two planes


def test_the_same_source_port_lives_on_one_plane_and_is_dead_on_the_other():
    pair = Planes(1, paths=4)
    port = pair.alice.endpoint.entropies[2]
    touch: Callable[[int, Packet], Packet | None] = lambda now, packet: (  # noqa: E731
        None if packet.entropy == port and plane_of(packet) == 1 else packet
    )
    pair.wire.touch = touch
    stream(pair, 200)
    pair.drive_messages(200)
    assert all_succeeded(pair)
    changed = {(event.plane, event.entropy) for event in path_events(pair.alice) if event.new == BAD}
    assert changed == {(1, port)}
    late = [packet for packet in data_packets(pair.sent) if packet.sent_at > pair.now - 100 * US]
    assert (0, port) in {(plane_of(packet), packet.entropy) for packet in late}


def test_a_probe_reply_by_the_other_plane_is_no_evidence():
    """Whatever plane 1 loses, an attacker on plane 0 answers: the right number, the wrong plane."""
    pair = Planes(2, paths=4)

    def touch(now: int, packet: Packet) -> Packet | None:
        if plane_of(packet) == 0 or packet.src in BOBS:
            return packet
        if isinstance(packet.control, Probe):
            forged = theirs.context.packet(packet.kind, packet.entropy, 1, 0)
            forged.control = ProbeReply(packet.control.nonce, packet.control.entropy, 0, False)
            pair.inject(forged, RTT // 2)
        return None

    pair.wire.touch = touch
    stream(pair, 300)
    theirs = pair.connections[1]
    pair.drive_messages(300)
    assert all_succeeded(pair)
    assert pair.alice.endpoint.counters()["dropped_bad_probe"] > 0
    events = path_events(pair.alice)
    assert {event.plane for event in events} == {1}
    assert len({event.entropy for event in events if event.new == BAD}) == 4
    assert not [event for event in events if event.new == GOOD]


def test_acknowledgements_that_come_by_a_plane_are_no_evidence_for_it():
    """All acknowledgements arrive by plane 1, on which nothing that Alice sends arrives."""
    pair = Planes(3, paths=4)

    def touch(now: int, packet: Packet) -> Packet | None:
        if packet.src in ALICES:
            return None if plane_of(packet) == 1 else packet
        if isinstance(packet.control, Ack):
            moved = packet.copy()
            moved.src, moved.dst = BOBS[1], ALICES[1]
            return moved
        return packet

    pair.wire.touch = touch
    stream(pair, 300)
    pair.drive_messages(300)
    assert all_succeeded(pair)
    events = path_events(pair.alice)
    assert {event.plane for event in events} == {1}
    assert len({event.entropy for event in events if event.new == BAD}) == 4
    assert not [event for event in events if event.new == GOOD]


@given(seed=st.integers(0, 1 << 16), plane=st.sampled_from([0, 1]), start=st.integers(0, 60), length=st.integers(1, 80))
def test_whenever_a_plane_dies_every_message_completes_and_only_its_paths_are_evicted(seed, plane, start, length):
    pair = Planes(seed, paths=4)
    stream(pair, 60)
    pair.kill(plane, pair.now + start * RTT, pair.now + (start + length) * RTT)
    pair.drive_messages(60)
    assert all_succeeded(pair)
    assert {event.plane for event in path_events(pair.alice)} <= {plane}
