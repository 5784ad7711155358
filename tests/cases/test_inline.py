"""How much travels inside a message is what both sides and the segment allow; a wish for more is no failure.

Known from other stacks: a request above the limit fails instead of being clamped; one limit is taken for all services.
"""

from __future__ import annotations

import pytest

from tests.helpers import Pair, data_packets
from tests.transport.test_queue_pair import outcome
from transport.config import EndpointConfig
from transport.control import Msg
from transport.wire import max_inline


def between(ours: int, theirs: int, mtu: int = 4096):
    """Two sides that wish for different limits. The pair, its queue pairs."""
    pair = Pair(inline=ours, mtu=mtu, control="fixed")
    pair.bob.endpoint.config = EndpointConfig(inline=theirs, mtu=mtu, control="fixed", idle_after=1 << 62)
    return pair, *pair.connect()


def travels(pair: Pair, sender, receiver, size: int) -> str:
    """How a SEND of `size` bytes goes: inline or data. It must arrive whole."""
    host = pair.alice if sender.endpoint is pair.alice.endpoint else pair.bob
    buffer = bytearray(512)
    receiver.post_recv(pair.now, size, buffer)
    pair.drive()
    pair.sent.clear()
    sender.post_send(pair.now, size, bytes(range(256))[:size])
    pair.drive()
    assert outcome(host, sender)[-1] == (size, "SUCCESS")
    assert buffer == bytes(range(256))[:size] + bytes(512 - size)
    (message,) = [packet.control for packet in pair.sent if isinstance(packet.control, Msg)]
    data = sum(packet.length for packet in data_packets(pair.sent))
    assert (message.inline is None, data) in ((True, size), (False, 0))
    return "data" if message.inline is None else "inline"


@pytest.mark.parametrize(("ours", "theirs"), [(220, 101), (101, 220), (101, 101)])
def test_a_wish_of_220_meets_a_limit_of_101_and_the_smaller_one_holds_on_both_sides(ours, theirs):
    pair, near, far = between(ours, theirs)
    assert near.context.inline == far.context.inline == 101
    for sender, receiver in ((near, far), (far, near)):
        assert travels(pair, sender, receiver, 100) == "inline"
        assert travels(pair, sender, receiver, 101) == "inline"
        assert travels(pair, sender, receiver, 102) == "data"
        assert travels(pair, sender, receiver, 220) == "data"


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
def test_the_limit_is_that_of_the_segment_where_that_is_smaller(mtu):
    pair, near, far = between(256, 256, mtu)
    limit = min(256, max_inline(mtu))
    assert near.context.inline == far.context.inline == limit
    assert travels(pair, near, far, limit) == "inline"
    if limit < 256:
        assert travels(pair, near, far, limit + 1) == "data"
    assert travels(pair, near, far, 256) == ("inline" if limit == 256 else "data")


def test_where_nothing_may_travel_inline_all_but_nothing_goes_as_data():
    pair, near, far = between(256, 0)
    assert near.context.inline == 0
    assert travels(pair, near, far, 1) == "data"
    assert travels(pair, near, far, 256) == "data"
