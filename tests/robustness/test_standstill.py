"""A process that stood still, or whose peer did, still finds out about a dead peer in bounded time."""

from __future__ import annotations

import pytest

from tests.helpers import Pair
from transport.clock import MS, NEVER, SECOND, US
from transport.completion import Status
from transport.connection import Connection
from transport.placement import Access


def busy() -> tuple[Pair, Connection]:
    """A WRITE has been carried out, so round trips are known, and many more are on their way."""
    pair = Pair(1, retries=4)
    ours, theirs = pair.connect()
    region = theirs.context.domain.register(bytearray(1 << 20), Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    ours.post_write(pair.now, 0, bytes(100_000), region.address, region.rkey)
    pair.drive_messages(1)
    for i in range(1, 20):
        ours.post_write(pair.now, i, bytes(50_000), region.address, region.rkey)
    return pair, ours


def give_up(pair: Pair) -> int:
    """The peer is dead from now on. How long until the last request has failed, picoseconds."""
    pair.wire.touch = lambda now, packet: None
    pair.flush()
    begin = pair.now
    pair.alice.completions.clear()  # of what was acknowledged before
    pair.drive_messages(1, limit=1000 * SECOND)
    assert {item.status for item in pair.alice.completions} == {Status.RETRY_EXC_ERR}
    return pair.now - begin


def test_round_trips_that_this_process_slept_through_are_not_taken() -> None:
    pair, ours = busy()
    pair.flush()
    while pair.flying and pair.bob.endpoint.counters()["acks_sent"] < 8:  # the peer answers, and nobody runs us
        pair.now, _, packet = pair.flying.pop(0)
        if packet.dst == pair.bob.endpoint.address:
            pair.bob.endpoint.receive(packet, pair.now)
            for answer in pair.bob.endpoint.poll_transmit(pair.now, 64):
                pair.inject(answer, 2 * SECOND)
    waited = [packet for _, _, packet in pair.flying if packet.dst == pair.alice.endpoint.address]
    assert waited
    pair.flying.clear()
    pair.now += 2 * SECOND
    before = ours.context.paths.srtt
    acks = pair.alice.endpoint.counters()["acks_received"]
    for packet in waited:
        pair.alice.endpoint.receive(packet, pair.now)
    assert pair.alice.endpoint.counters()["acks_received"] > acks
    assert ours.context.paths.srtt == before
    assert ours.context.paths.resumed_at == pair.now
    pair.flying.clear()
    assert give_up(pair) <= ours.context.give_up() + ours.context.probe_timeout() < 80 * ours.context.rto_min


def test_a_process_that_is_run_in_time_has_never_stood_still() -> None:
    pair, ours = busy()
    pair.drive()
    assert ours.context.paths.resumed_at == -NEVER


@pytest.mark.parametrize("late", [500 * US, 2 * MS], ids=["half a millisecond", "two milliseconds"])
def test_a_peer_that_stood_still_makes_the_give_up_time_no_longer_than_some_timeouts(late: int) -> None:
    """Its answers come late, so the round trip has grown: that is true, for all we know."""
    pair, ours = busy()
    pair.wire.delay = late
    pair.drive(lambda: ours.context.paths.srtt > late // 8)
    context = ours.context
    assert context.rto() > context.rto_min
    assert context.backed_off(0) == context.rto()
    assert context.backed_off(4) == max(context.rto(), 16 * context.rto_min)
    pair.flying.clear()
    assert give_up(pair) <= context.give_up() + context.probe_timeout()
