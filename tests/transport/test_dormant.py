"""Idle connections give their parts back, and nobody can tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Pair, Wire, forge, forge_control
from transport.clock import NEVER, SECOND, US
from transport.completion import Status
from transport.control import Ack, Probe, Reject
from transport.errors import ConfigError
from transport.packet import CONTROL, DATAGRAM
from transport.placement import Access
from transport.states import State

WRITABLE = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


def nap(pair: Pair) -> None:
    """Let everything become quiet and fall asleep."""
    pair.drive()
    assert all(connection.dormant is not None for connection in pair.connections)


def connected(**config) -> tuple[Pair, object, object]:
    """A pair that sleeps as soon as it may."""
    pair = Pair(**{"control": "fixed", "idle_after": 1, **config})
    ours, theirs = pair.connect()
    ours.context.wake()
    theirs.context.wake()
    nap(pair)
    return pair, ours, theirs


def target(connection, size: int = 4096):
    buffer = bytearray(size)
    return buffer, connection.context.domain.register(buffer, WRITABLE)


def test_a_connection_is_born_dormant_and_sends_nothing():
    pair = Pair(idle_after=0)
    ends = [host.endpoint.create_connection(host.endpoint.protection_domain(), 0) for host in (pair.alice, pair.bob)]
    ends[0].connect(0, ends[1].parameters)
    ends[1].connect(0, ends[0].parameters)
    assert all(connection.dormant is not None for connection in ends)
    pair.drive()
    assert pair.sent == []


def test_a_connection_with_receives_posted_before_connect_tells_the_peer():
    pair = Pair(idle_after=1)
    ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), 0)
    theirs = pair.bob.endpoint.create_connection(pair.bob.endpoint.protection_domain(), 0)
    buffer = bytearray(5)
    theirs.post_recv(0, 1, buffer)
    ours.connect(0, theirs.parameters)
    theirs.connect(0, ours.parameters)
    pair.connections += [ours, theirs]
    nap(pair)
    ours.post_send(pair.now, 2, b"hello")
    pair.drive_messages(1, pair.bob)
    assert buffer == b"hello"


def test_two_timeouts_after_the_last_packet_the_parts_are_gone():
    pair = Pair(idle_after=0)
    ours, theirs = pair.connect()
    _, region = target(theirs, 1 << 18)
    ours.post_write(pair.now, 1, 1 << 18, region.address, region.rkey)
    pair.drive_messages(1)
    last = pair.now
    assert ours.dormant is None
    nap(pair)
    assert ours.sender is None
    assert pair.now - last >= ours.context.rto_min
    sent = len(pair.sent)
    pair.drive(limit=10 * SECOND)
    assert len(pair.sent) == sent


def test_a_connection_that_is_told_to_stay_awake_does():
    pair = Pair(idle_after=NEVER)
    ours, theirs = pair.connect()
    _, region = target(theirs)
    ours.post_write(pair.now, 1, b"x", region.address, region.rkey)
    pair.drive(limit=100 * SECOND)
    assert ours.dormant is None
    assert theirs.dormant is None


def test_a_wrong_time_to_fall_asleep_is_refused():
    with pytest.raises(ConfigError, match="idle_after = -1"):
        Pair(idle_after=-1)


def test_receives_and_adverts_survive_sleep():
    pair, ours, theirs = connected()
    buffers = [bytearray(300) for _ in range(3)]
    for number, buffer in enumerate(buffers):
        theirs.post_recv(pair.now, number, buffer)
    nap(pair)
    assert len(ours.dormant.adverts) == len(theirs.dormant.receives) == 3
    for number in range(3):
        ours.post_send(pair.now, number, bytes([number]) * 300)
        nap(pair)
    assert buffers == [bytes([number]) * 300 for number in range(3)]
    assert [item.wr_id for item in pair.bob.completions] == [0, 1, 2]
    assert ours.dormant.adverts is theirs.dormant.receives is None


def test_the_control_keeps_what_it_learnt():
    pair, ours, theirs = connected(control="dctcp")
    _, region = target(theirs, 1 << 20)
    before = ours.context.control
    ours.post_write(pair.now, 1, 1 << 20, region.address, region.rkey)
    nap(pair)
    assert ours.context.control is before


def test_a_late_duplicate_wakes_the_receiver_and_is_not_placed():
    pair, ours, theirs = connected()
    buffer, region = target(theirs)
    ours.post_write(pair.now, 1, b"first", region.address, region.rkey)
    nap(pair)
    old = next(packet for packet in pair.sent if packet.length == 5)
    buffer[:5] = b"other"
    pair.inject(old)
    nap(pair)
    assert buffer[:5] == b"other"
    assert pair.bob.endpoint.counters()["duplicates"] == 1


def test_a_wrong_tag_does_not_wake():
    pair, ours, theirs = connected()
    packet = forge_control(ours, DATAGRAM, Ack())
    packet.tag ^= 1
    pair.bob.endpoint.receive(packet, pair.now)
    assert theirs.dormant is not None
    assert pair.bob.endpoint.counters()["dropped_wrong_tag"] == 1


def test_a_probe_is_answered_without_waking():
    pair, ours, theirs = connected()
    pair.inject(forge_control(ours, DATAGRAM, Probe(7, 0xC000)))
    before = len(pair.sent)
    pair.drive()
    assert theirs.dormant is not None
    assert [type(packet.control).__name__ for packet in pair.sent[before:]] == ["ProbeReply"]


@pytest.mark.parametrize("control", [Ack(), Reject(0, 1, 2, Status.REM_ACCESS_ERR)], ids=["ack", "reject"])
def test_what_an_idle_connection_need_not_hear_does_no_harm(control):
    pair, ours, theirs = connected()
    pair.inject(forge_control(ours, DATAGRAM, control))
    nap(pair)
    assert theirs.state == State.RTS


def test_a_wrong_key_is_refused_by_one_that_slept():
    pair, ours, _ = connected()
    pair.inject(forge(ours, ours.dormant.dsn, b"bad", 1, 2))
    nap(pair)
    assert pair.bob.endpoint.counters()["dropped_bad_key"] == 1


def test_unknown_control_of_the_future_is_outside_the_window():
    pair, ours, theirs = connected()
    pair.inject(forge_control(ours, CONTROL, Ack(), seq=theirs.dormant.peer_csn + 128))
    nap(pair)
    assert pair.bob.endpoint.counters()["dropped_outside_window"] == 1


@pytest.mark.parametrize("closer", [0, 1])
def test_a_sleeper_is_closed_by_either_side(closer):
    pair, *ends = connected()
    ends[closer].close(pair.now)
    pair.drive()
    assert [connection.state for connection in ends] == [State.RESET, State.RESET]
    assert len(pair.alice.endpoint.connections.values()) == 1  # its number rests


def test_a_sleeper_that_is_made_to_fail_flushes_its_receives():
    pair, _, theirs = connected()
    theirs.post_recv(pair.now, 5, bytearray(1))
    nap(pair)
    theirs.fail(pair.now, Status.FATAL_ERR, "the peer's process died", None)
    pair.drive()
    assert [(item.wr_id, item.status) for item in pair.bob.completions] == [(5, Status.WR_FLUSH_ERR)]
    assert "the peer's process died" in pair.bob.completions[0].error


@given(
    kinds=st.lists(st.sampled_from(["write", "write_imm", "send", "read", "fetch_add"]), min_size=1, max_size=8),
    sizes=st.lists(st.integers(0, 9000), min_size=8, max_size=8),
    ours_post=st.lists(st.booleans(), min_size=8, max_size=8),
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.05]),
    idle_after=st.sampled_from([0, 1, 10 * US, NEVER]),
)
def test_a_nap_between_any_two_requests_changes_no_byte(kinds, sizes, ours_post, seed, loss, idle_after):
    pair = Pair(seed, Wire(loss=loss, duplicate=loss, jitter=20 * US), idle_after=idle_after, mtu=1024)
    ends = pair.connect()
    word, counter = target(ends[0], 8)
    expected = 0
    for number, (kind, size, by_ours) in enumerate(zip(kinds, sizes, ours_post, strict=False)):
        poster, other = ends if by_ours else ends[::-1]
        buffer, region = target(other, size + 1)
        source = pair.rng.randbytes(size)
        result = bytearray(size)
        if kind == "write":
            poster.post_write(pair.now, number, source, region.address, region.rkey)
        elif kind == "write_imm":
            other.post_recv(pair.now, number, bytearray(0))
            poster.post_write(pair.now, number, source, region.address, region.rkey, imm=number)
        elif kind == "send":
            other.post_recv(pair.now, number, buffer)
            poster.post_send(pair.now, number, source)
        elif kind == "read":
            buffer[:size] = source
            poster.post_read(pair.now, number, result, region.address, region.rkey)
        else:
            ends[1].post_fetch_add(pair.now, number, counter.address, counter.rkey, 3)
            expected += 3
        pair.drive(limit=60 * SECOND)
        if kind == "read":
            assert result == source
        elif kind != "fetch_add":
            assert buffer[:size] == source
        if idle_after < NEVER:
            assert all(connection.dormant is not None for connection in ends)
    assert int.from_bytes(word, "little") == expected
    completions = pair.alice.completions + pair.bob.completions
    assert all(item.status == Status.SUCCESS for item in completions)
    assert len(completions) == len(kinds) + sum(kind in ("write_imm", "send") for kind in kinds)
