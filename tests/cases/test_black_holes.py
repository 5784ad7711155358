"""A peer that falls silent ends its own requests after few, ever rarer tries, on either side and in any situation.

Known from other stacks: a crash at the retry limit; resending at a constant rate, which ruins the link for all.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.helpers import ALICE, BOB, Pair
from tests.transport.test_queue_pair import CAROL, connect_to, expose, outcome
from transport.clock import MS, NEVER, SECOND
from transport.control import Probe
from transport.packet import Packet
from transport.states import State


def test_a_peer_that_is_silent_from_the_first_second_on_is_given_up_and_the_others_go_on():
    pair = Pair(control="dctcp", max_run=16)
    lost, lost_peer = pair.connect()
    _, good, good_peer = connect_to(pair, CAROL)
    _, region = expose(lost_peer, 1 << 20)
    target, other = expose(good_peer, 1 << 20)
    begin, sent = pair.now + SECOND, []

    def black_hole(now: int, packet: Packet) -> Packet | None:
        if packet.dst != BOB or now < begin:
            return packet
        if not isinstance(packet.control, Probe):
            sent.append((now, packet.count))
        return None

    pair.wire.touch = black_hole
    for number in range(3):
        lost.post_write(pair.now, number, bytes(1 << 18), region.address, region.rkey)
        pair.drive()
    pair.now = begin
    for number in range(3, 6):
        lost.post_write(pair.now, number, bytes(1 << 18), region.address, region.rkey)
    done = 0
    while len(pair.alice.results(lost)) < 6:
        good.post_write(pair.now, done, bytes([done % 256]) * (1 << 18), other.address, other.rkey)
        pair.drive(limit=MS)
        done += 1
        assert len(pair.alice.results(good)) == done
    assert done > 10
    assert outcome(pair.alice, good) == [(number, "SUCCESS") for number in range(done)]
    assert outcome(pair.alice, lost) == [(n, "SUCCESS" if n < 3 else "RETRY_EXC_ERR") for n in range(6)]
    assert (lost.state, good.state) == (State.ERR, State.RTS)
    moments = sorted({now for now, _ in sent})
    quiet = [later - earlier for earlier, later in pairwise(moments)]
    assert max(quiet) >= lost.context.rto() << (lost.context.config.retries - 1)
    assert sum(count for _, count in sent) < 12 * 64
    good.post_write(pair.now, 999, b"still here", other.address, other.rkey)
    pair.drive()
    assert target[:10] == b"still here"


@pytest.mark.parametrize("operation", ["read", "atomic"])
def test_a_responder_whose_requester_falls_silent_is_freed_of_it_too(operation):
    """The answers are what is repeated here, and no request of this side's own is there to fail."""
    pair = Pair(control="dctcp")
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 20)
    theirs.post_recv(pair.now, 7, bytearray(8))
    pair.drive()
    pair.wire.touch = lambda now, packet: None if packet.dst == ALICE else packet
    if operation == "read":
        ours.post_read(pair.now, 1, bytearray(1 << 20), region.address, region.rkey)
    else:
        ours.post_fetch_add(pair.now, 1, region.address, region.rkey, 1)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "RETRY_EXC_ERR")]
    assert outcome(pair.bob, theirs) == [(7, "WR_FLUSH_ERR")]
    assert "no answer after 7 retransmission timeouts" in pair.bob.completions[0].error
    assert (ours.state, theirs.state) == (State.ERR, State.ERR)
    assert pair.bob.endpoint.poll_timeout() == NEVER
    assert theirs.sender.in_flight == 0


@pytest.mark.parametrize("retries", [1, 2, 7])
@pytest.mark.parametrize("idle_after", [0, NEVER])
def test_the_limit_ends_both_sides_at_once_when_the_network_is_cut(retries, idle_after):
    pair = Pair(control="swift", retries=retries, idle_after=idle_after)
    pairs = [pair.connect() for _ in range(4)]
    regions = [(expose(theirs, 1 << 16)[1], expose(ours, 1 << 16)[1]) for ours, theirs in pairs]
    pair.drive(limit=10 * MS)
    pair.wire.touch = lambda now, packet: None
    for (ours, theirs), (far, near) in zip(pairs, regions, strict=True):
        for number in range(3):
            ours.post_write(pair.now, number, bytes(1 << 16), far.address, far.rkey)
            theirs.post_write(pair.now, number, b"", near.address, near.rkey)
    pair.drive()
    for ours, theirs in pairs:
        assert outcome(pair.alice, ours) == [(number, "RETRY_EXC_ERR") for number in range(3)]
        assert outcome(pair.bob, theirs) == [(number, "RETRY_EXC_ERR") for number in range(3)]
    assert pair.alice.endpoint.poll_timeout() == pair.bob.endpoint.poll_timeout() == NEVER
