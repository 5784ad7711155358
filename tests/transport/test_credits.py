"""Receiver credits: what is granted and to whom, and that nothing is lost or waited for in vain, come what may."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import CAPS, Pair, Wire
from transport.clock import MS, NEVER, US
from transport.completion import Status
from transport.connection import Connection
from transport.control import Credit, Demand
from transport.errors import NegotiationError
from transport.packet import DATA, Packet
from transport.placement import Access

BDP = 125_000  # of tests.helpers.CAPS
EVERYTHING = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


def pair(seed: int = 1, wire: Wire | None = None, **config: object) -> Pair:
    return Pair(seed, wire or Wire(rate=CAPS.rate), control="credit", paths=4, **config)


def write(made: Pair, ours: Connection, theirs: Connection, size: int, wr_id: int = 1) -> bytearray:
    inbox = bytearray(size)
    region = theirs.context.domain.register(inbox, EVERYTHING)
    data = random.Random(wr_id).randbytes(size)
    ours.post_write(made.now, wr_id, data, region.address, region.rkey)
    made.expected = [*getattr(made, "expected", []), (inbox, data)]  # type: ignore[attr-defined]
    return inbox


def check(made: Pair) -> None:
    assert all(inbox == data for inbox, data in made.expected)  # type: ignore[attr-defined]
    assert all(item.status == Status.SUCCESS for item in made.alice.completions)


def controls(made: Pair, kind: type) -> list[object]:
    return [packet.control for packet in made.sent if isinstance(packet.control, kind)]


def test_the_first_bytes_go_unsolicited_and_the_rest_when_it_is_granted() -> None:
    made = pair()
    ours, theirs = made.connect()
    write(made, ours, theirs, 4 * BDP)
    made.flush()
    before = sum(packet.length for packet in made.sent if packet.kind == DATA)
    assert BDP <= before < BDP + 4096
    made.drive()
    check(made)
    account, grant = ours.context.account, theirs.context.grant
    assert account is not None
    assert grant is not None
    assert account.spent == account.wanted == grant.received == 4 * BDP
    assert account.unsolicited + account.granted >= account.spent
    assert grant.granted == account.granted == 4 * BDP - account.unsolicited


def test_a_message_that_fits_into_the_unsolicited_bytes_asks_for_nothing() -> None:
    made = pair()
    ours, theirs = made.connect()
    write(made, ours, theirs, 50_000)
    made.drive()
    check(made)
    assert not controls(made, Demand)
    assert not controls(made, Credit)


def test_after_a_pause_the_first_bytes_go_unsolicited_again() -> None:
    made = pair()
    ours, theirs = made.connect()
    for wr_id in (1, 2, 3):
        write(made, ours, theirs, 2 * BDP, wr_id)
        made.drive()
    check(made)
    assert ours.context.account is not None
    assert ours.context.account.unsolicited == 3 * BDP


def test_messages_behind_each_other_ask_once_each_and_wait_for_no_round_trip() -> None:
    made = pair()
    ours, theirs = made.connect()
    begin = made.now
    for wr_id in range(1, 17):
        write(made, ours, theirs, 62_500, wr_id)
    made.drive()
    check(made)
    floor = 16 * 62_500 * 4160 // 4096 * 80
    assert made.now - begin < 1.2 * floor + 100 * US + 2 * MS  # `drive` runs on until the last timer has fired
    assert max(item for item in [d.total for d in controls(made, Demand)]) == 16 * 62_500  # type: ignore[attr-defined]


@pytest.mark.parametrize("operation", ["read", "send"])
def test_reads_and_sends_are_granted_too(operation: str) -> None:
    made = pair()
    ours, theirs = made.connect()
    size = 3 * BDP
    source, target = random.Random(1).randbytes(size), bytearray(size)
    if operation == "read":
        region = theirs.context.domain.register(bytearray(source), EVERYTHING)
        ours.post_read(made.now, 1, target, region.address, region.rkey)
    else:
        theirs.post_recv(made.now, 1, target)
        ours.post_send(made.now, 1, source)
    made.drive()
    assert target == source
    assert controls(made, Credit)


def test_a_credit_for_more_than_was_asked_for_is_dropped_and_counted() -> None:
    made = pair()
    ours, theirs = made.connect()
    write(made, ours, theirs, 4 * BDP)
    made.flush()
    forged = theirs.context.packet(2, 0xC000, 1)
    forged.control = Credit(1 << 40)
    made.alice.endpoint.receive(forged, made.now)
    assert made.alice.endpoint.counters()["dropped_bad_control"] == 1
    assert ours.context.account is not None
    assert ours.context.account.granted == 0
    made.drive()
    check(made)


def test_a_demand_that_is_older_changes_nothing() -> None:
    made = pair()
    ours, theirs = made.connect()
    write(made, ours, theirs, 4 * BDP)
    made.drive()
    grant = theirs.context.grant
    assert grant is not None
    before = grant.demand, grant.granted, grant.outstanding()
    old = ours.context.packet(2, 0xC000, 1)
    old.control = Demand(5, 0, 0)
    made.bob.endpoint.receive(old, made.now)
    made.drive()
    assert (grant.demand, grant.granted, grant.outstanding()) == before


def test_both_sides_need_credits() -> None:
    ours, others = pair(), Pair(control="dctcp", paths=4)
    one = ours.alice.endpoint.create_connection(ours.alice.endpoint.protection_domain(), 0)
    other = others.bob.endpoint.create_connection(others.bob.endpoint.protection_domain(), 0)
    with pytest.raises(
        NegotiationError, match="control: credit here, dctcp at the peer: credits need the same at both"
    ):
        one.connect(0, other.parameters)


@pytest.mark.parametrize("lost", [Demand, Credit])
def test_every_second_demand_or_credit_may_be_lost(lost: type) -> None:
    seen = [0]

    def touch(now: int, packet: Packet) -> Packet | None:
        seen[0] += isinstance(packet.control, lost)
        return None if isinstance(packet.control, lost) and seen[0] % 2 else packet

    made = pair(wire=Wire(rate=CAPS.rate, touch=touch))
    ours, theirs = made.connect()
    for wr_id in (1, 2):
        write(made, ours, theirs, 5 * BDP, wr_id)
        made.drive()
    check(made)
    assert seen[0] > 2


def test_a_peer_that_dies_while_credit_is_waited_for_is_noticed() -> None:
    dead = [False]
    made = pair(wire=Wire(rate=CAPS.rate, touch=lambda now, packet: None if dead[0] else packet), retries=3)
    ours, theirs = made.connect()
    write(made, ours, theirs, 4 * BDP)
    made.flush()
    dead[0] = True
    made.drive()
    (failed,) = made.alice.completions
    assert failed.status == Status.RETRY_EXC_ERR
    assert "peer 10.0.0.2" in failed.error


@given(st.integers(0, 1 << 30), st.floats(0, 0.05), st.floats(0, 0.2), st.integers(0, 30), st.integers(1, 6))
def test_whatever_the_network_does_everything_arrives_and_no_more_is_granted_than_wanted(
    seed: int, loss: float, duplicate: float, jitter: int, messages: int
) -> None:
    rng = random.Random(seed)
    wire = Wire(rate=CAPS.rate, loss=loss, duplicate=duplicate, jitter=jitter * US)
    made = pair(seed, wire, retries=20, control_parameters={"unsolicited_bdps": 0.1})
    ours, theirs = made.connect()
    for wr_id in range(1, messages + 1):
        write(made, ours, theirs, rng.choice((0, 1, 4096, BDP // 10, 60_005)), wr_id)
        if rng.random() < 0.5:
            made.drive()
    made.drive()
    check(made)
    account, grant = ours.context.account, theirs.context.grant
    assert account is not None
    assert grant is not None
    assert grant.unsolicited + grant.granted <= max(grant.demand, grant.unsolicited)
    assert account.granted <= grant.granted
    assert account.spent <= account.wanted + 4096


def test_a_connection_that_ends_leaves_the_burst_of_the_others_alone() -> None:
    made = pair()
    ends = [made.connect() for _ in range(3)]
    for number, (ours, theirs) in enumerate(ends):
        write(made, ours, theirs, 3 * BDP, number + 1)
    made.flush()
    ends[0][1].destroy()
    made.drive()
    granter = made.bob.endpoint.granter
    assert granter is not None
    assert granter.burst == 0
    assert {item.wr_id: item.status for item in made.alice.completions if item.wr_id > 1} == {
        2: Status.SUCCESS, 3: Status.SUCCESS,
    }  # fmt: skip


def test_credits_sleep_and_wake_with_their_connection() -> None:
    made = pair(idle_after=50 * US)
    ours, theirs = made.connect()
    for wr_id in (1, 2):
        write(made, ours, theirs, 3 * BDP, wr_id)
        made.drive()
        assert ours.dormant is not None
    check(made)
    assert made.alice.endpoint.poll_timeout() == NEVER


def test_the_rate_of_grants_is_that_of_the_receivers_link() -> None:
    slow = replace(CAPS, rate=CAPS.rate // 10)
    made = Pair(1, Wire(rate=CAPS.rate), slow, control="credit", paths=4)
    ours, theirs = made.connect()
    write(made, ours, theirs, 40 * BDP // 10)
    granted: list[tuple[int, int]] = []
    made.wire.touch = lambda now, packet: (
        (granted.append((now, packet.control.total)) if isinstance(packet.control, Credit) else None) or packet
    )
    made.drive()
    check(made)
    (first, low), (last, high) = granted[0], granted[-1]
    rate = (high - low) * 8 / ((last - first) / 1e12)
    assert 0.95 < rate * 4160 / 4096 / slow.rate < 1.001


@pytest.mark.parametrize("lie", [Demand((1 << 63) - 1, (1 << 63) - 1, 0), Demand(1 << 62, 5, (1 << 63) - 1)])
def test_a_demand_that_cannot_be_is_dropped_and_harms_nobody_else(lie: Demand) -> None:
    made = pair()
    (liar, heard), (ours, theirs) = made.connect(), made.connect()
    packet = liar.context.packet(2, 0xC000, 1)
    packet.control = lie
    made.bob.endpoint.receive(packet, made.now)
    assert made.bob.endpoint.counters()["dropped_bad_control"] == 1
    assert heard.context.grant is not None
    assert heard.context.grant.demand == 0
    write(made, ours, theirs, 4 * BDP)
    made.drive()
    check(made)


def test_a_peer_that_wants_everything_and_sends_nothing_gets_its_cap_and_no_more() -> None:
    made = pair()
    (liar, heard), (ours, theirs) = made.connect(), made.connect()
    packet = liar.context.packet(2, 0xC000, 1)
    packet.control = Demand((1 << 63) - 1, BDP, 0)
    made.bob.endpoint.receive(packet, made.now)
    write(made, ours, theirs, 8 * BDP)
    made.drive()
    check(made)
    assert heard.context.grant is not None
    assert heard.context.grant.granted <= 1.6 * BDP
