"""Hostile packets beside a transfer, in virtual time: each is counted by its cause, and the transfer is unharmed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ALICE, BOB, Pair, Wire, forge, forge_control
from tests.properties.test_delivery import Case, Operation, operations
from tests.robustness.attacks import ALL, DROPS, UNTAGGED, Attack, Scene, state_of
from transport.clock import MS, US
from transport.completion import Status
from transport.connection import Connection
from transport.control import Close, RecvAdvert, Reject
from transport.packet import CE, CONTROL, Packet
from transport.placement import Access
from transport.states import State
from transport.wire import Codec

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "robustness.md"
#: A bit of everything, so that both sides have something outstanding in every place that keeps state.
EVERYTHING = [
    Operation(kind, 9000, 3)
    for kind in ("write", "send", "read", "fetch_add", "write_imm", "send_imm", "cmp_swap", "write")
]


def drops(counters: dict[str, int]) -> dict[str, int]:
    return {name: counters[name] for name in DROPS if counters[name]}


def size(packets: list[Packet]) -> int:
    """Bytes that packets are as frames."""
    codec = Codec()
    return sum(len(codec.frame(packet, i)) for packet in packets for i in range(packet.count))


def busy_case(**config) -> tuple[Pair, Case]:
    """A transfer of everything, in the middle of it: half of the first packets are lost, nothing is acknowledged."""
    pair = Pair(1, **config)
    pair.wire.touch = lambda now, packet: packet if packet.psn % 2 else None
    case = Case(pair, EVERYTHING, 1)
    pair.flush()
    pair.wire.touch = None
    return pair, case


@pytest.mark.parametrize("side", [0, 1], ids=["requester", "responder"])
@pytest.mark.parametrize("attack", ALL, ids=repr)
def test_each_kind_moves_exactly_its_counter_and_no_other_state(attack: Attack, side: int) -> None:
    pair, case = busy_case()
    victim = (case.ours, case.theirs)[side]
    host = (pair.alice, pair.bob)[side]
    scene = Scene(victim, 7)
    before = state_of(victim)
    expected = 0
    for _ in range(60):
        packet = attack.make(scene)
        host.endpoint.receive(packet, pair.now)
        expected += packet.count
        assert drops(host.endpoint.counters()) == {attack.counter: expected}
        assert state_of(victim) == before
    assert not any(map(any, scene.memories))
    case.run()
    case.check()
    assert drops(host.endpoint.counters()) == {attack.counter: expected}


@pytest.mark.parametrize("attack", ALL, ids=repr)
def test_nobody_is_sent_more_than_they_sent_and_a_stranger_without_the_tag_nothing(attack: Attack) -> None:
    pair = Pair(1)
    _, victim = pair.connect()
    scene = Scene(victim, 3)
    for _ in range(20):
        packet = attack.make(scene)
        pair.bob.endpoint.receive(packet, pair.now)
        answers = pair.bob.endpoint.poll_transmit(pair.now, 100)
        assert {answer.dst for answer in answers} <= {ALICE}
        if attack.counter != "dropped_bad_key":
            assert answers == []
        else:  # refusing is for the real peer, and no more than a packet each
            assert size(answers) <= size([packet])
        pair.now += MS


def test_a_refusal_is_as_rare_as_a_round_trip_however_many_wrong_keys_come() -> None:
    pair = Pair(1)
    _, victim = pair.connect()
    scene = Scene(victim, 3)
    attack = next(attack for attack in UNTAGGED if attack.counter == "dropped_bad_key")
    for _ in range(1000):
        pair.bob.endpoint.receive(attack.make(scene), pair.now)
    assert len(pair.bob.endpoint.poll_transmit(pair.now, 10_000)) == 1
    assert pair.bob.endpoint.counters()["rejects_sent"] == 1


class Attackers:
    """Beside every packet of the transfer comes what `plan` says for it: (attack, side of the victim, delay)."""

    def __init__(self, pair: Pair, case: Case, plan: list[tuple[Attack, int, int] | None]) -> None:
        self.pair = pair
        self.scenes = [Scene(case.ours, 1), Scene(case.theirs, 2)]
        self.plan = plan
        self.expected = [Counter(), Counter()]
        self.count = 0
        pair.wire.touch = self._touch

    def _touch(self, now: int, packet: Packet) -> Packet:
        item = self.plan[self.count % len(self.plan)]
        self.count += 1
        # A refusal answers an attack: one beside it would call for the next, for ever.
        if item is not None and not isinstance(packet.control, Reject):
            attack, side, delay = item
            hostile = attack.make(self.scenes[side])
            self.expected[side][attack.counter] += hostile.count
            self.pair.inject(hostile, delay)
        return packet

    def check(self) -> None:
        for host, expected, other in (
            (self.pair.alice, self.expected[0], self.pair.bob),
            (self.pair.bob, self.expected[1], self.pair.alice),
        ):
            found = drops(host.endpoint.counters())
            # The real peer is told about wrong keys, and does not believe that it used them.
            copies = 2 if self.pair.wire.duplicate else 1
            refused = found.pop("dropped_bad_reject", 0) - expected.pop("dropped_bad_reject", 0)
            assert 0 <= refused <= copies * other.endpoint.counters()["rejects_sent"]
            late = found.pop("dropped_bad_probe", 0) - expected.pop("dropped_bad_probe", 0)
            assert 0 <= late <= copies * copies * host.endpoint.counters()["probes_sent"]
            assert found == dict(expected)
        assert {packet.dst for packet in self.pair.sent} <= {ALICE, BOB}
        assert not any(any(memory) for scene in self.scenes for memory in scene.memories)


attackers = st.lists(
    st.none() | st.tuples(st.sampled_from(ALL), st.integers(0, 1), st.sampled_from([0, 1, 4 * US, 20 * US])),
    min_size=1,
    max_size=30,
)


@given(
    plan=operations,
    hostile=attackers,
    seed=st.integers(0, 2**32),
    jitter=st.sampled_from([0, 1, 50 * US]),
    loss=st.sampled_from([0.0, 0.0, 0.03]),
    max_run=st.sampled_from([1, 7, 64]),
    mtu=st.sampled_from([256, 4096]),
)
def test_any_mix_of_attacks_beside_any_operations_harms_nothing(plan, hostile, seed, jitter, loss, max_run, mtu):
    pair = Pair(seed, Wire(jitter=jitter, loss=loss, duplicate=loss), max_run=max_run, mtu=mtu)
    case = Case(pair, plan, seed)
    crowd = Attackers(pair, case, hostile)
    case.run()
    case.check()
    crowd.check()


def test_a_flood_of_strangers_packets_does_not_keep_a_dead_peer_alive() -> None:
    """The survivor waits for a receive that its dead peer will never advertise, while strangers fill its ears."""
    pair = Pair(1, retries=2)
    ours, theirs = pair.connect()
    ours.post_send(pair.now, 1, b"waits")
    scene = Scene(ours, 1)
    old = forge_control(theirs, CONTROL, RecvAdvert(0, ()), theirs.channel.next)
    pair.drive(limit=MS)

    def dead(now: int, packet: Packet) -> None:
        pair.inject(scene.data(0, 0))
        pair.inject(old.copy())

    pair.wire.touch = dead
    for _ in range(3000):
        for attack in UNTAGGED:
            pair.alice.endpoint.receive(attack.make(scene), pair.now)
        pair.alice.endpoint.receive(old.copy(), pair.now)
        pair.drive(limit=50 * US)
        if pair.alice.completions:
            break
    assert [(item.wr_id, item.status) for item in pair.alice.completions] == [(1, Status.RETRY_EXC_ERR)]
    assert "10.0.0.2" in pair.alice.completions[0].error


@pytest.mark.parametrize("state", [State.INIT, State.ERR, State.RESET], ids=lambda state: state.name)
def test_a_queue_pair_that_takes_no_packets_counts_them(state: State) -> None:
    pair = Pair(1)
    ours, theirs = pair.connect()
    region = theirs.context.domain.register(bytearray(8), Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    packet = forge(ours, ours.sender.next, b"x", region.rkey, region.address)
    counter = "dropped_wrong_state"
    if state == State.INIT:
        fresh: Connection = pair.bob.endpoint.create_connection(theirs.context.domain, pair.now)
        packet.qpn = fresh.qpn
        counter = "dropped_wrong_address"  # it has no peer yet
    elif state == State.ERR:
        theirs.fail(pair.now, Status.FATAL_ERR, "an error", None)
    else:
        theirs.destroy()
        counter = "dropped_unknown_qpn"
    for _ in range(5):
        pair.bob.endpoint.receive(packet, pair.now)
    assert drops(pair.bob.endpoint.counters()) == {counter: 5}
    assert not pair.bob.endpoint.poll_transmit(pair.now, 10)


def test_a_duplicate_of_control_is_counted_and_run_once() -> None:
    pair = Pair(1)
    ours, theirs = pair.connect()
    word = bytearray(8)
    region = theirs.context.domain.register(word, Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_ATOMIC)
    ours.post_fetch_add(pair.now, 1, region.address, region.rkey, 5)
    pair.drive()
    request = next(packet for packet in pair.sent if packet.kind == CONTROL)
    for _ in range(10):
        pair.inject(request.copy())
    pair.drive()
    assert int.from_bytes(word, "little") == 5
    assert pair.bob.endpoint.counters()["control_duplicates"] == 10
    assert len(pair.alice.completions) == 1


def test_a_mark_on_hostile_packets_slows_nobody_down() -> None:
    pair, case = busy_case()
    scene = Scene(case.theirs, 1)
    window = case.ours.context.control.window
    for _ in range(100):
        for attack in UNTAGGED:
            packet = attack.make(scene)
            packet.ecn = CE
            pair.bob.endpoint.receive(packet, pair.now)
    assert case.theirs.receiver.ledger.marked_packets == 0
    case.run()
    case.check()
    assert pair.alice.endpoint.counters()["marked_packets"] == 0
    assert case.ours.context.control.window >= window


def test_a_close_from_a_stranger_closes_nothing() -> None:
    pair = Pair(1)
    ours, theirs = pair.connect()
    packet = forge_control(ours, CONTROL, Close(0, 0), ours.channel.next)
    packet.tag = ours.context.tag_in  # the tag of the other direction
    pair.inject(packet)
    pair.drive()
    assert [ours.state, theirs.state] == [State.RTS, State.RTS]
    assert drops(pair.bob.endpoint.counters()) == {"dropped_wrong_tag": 1}


def test_the_document_lists_every_attack_with_its_counter() -> None:
    rows = re.findall(r"^\| (.+?) \| `(\w+)` \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert {(attack.name, attack.counter) for attack in ALL} <= set(rows)
