"""Queue pairs under what goes wrong: errors and flushes, dead peers, wrong packets, wraps, limits, closing."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ALICE, BOB, CAPS, Host, Pair, Wire, data_packets, forge, forge_control
from transport.clock import MS, NEVER, SECOND, US
from transport.completion import Opcode, Status
from transport.config import EndpointConfig
from transport.connection import Connection
from transport.control import (
    OP_SEND,
    Ack,
    Atomic,
    AtomicReply,
    Close,
    Credit,
    Msg,
    Probe,
    ReadReq,
    RecvAdvert,
    Terminate,
)  # fmt: skip
from transport.dormant import Dormant, awaken
from transport.endpoint import Endpoint
from transport.errors import ConfigError, LocalProtocolError, QueueFullError
from transport.packet import CONTROL, DATA, DATAGRAM, Packet
from transport.placement import Access, MemoryRegion
from transport.states import State

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
CAROL = bytes([10, 0, 0, 3])


def pair_of(**config) -> Pair:
    return Pair(**{"control": "fixed", **config})


def expose(connection: Connection, size: int) -> tuple[bytearray, MemoryRegion]:
    buffer = bytearray(size)
    return buffer, connection.context.domain.register(buffer, ALL)


def outcome(host: Host, connection: Connection) -> list[tuple[int, str]]:
    return [(item.wr_id, item.status.name) for item in host.results(connection)]


def swallow_all_to(address: bytes):
    return lambda now, packet: None if packet.dst == address else packet


# Flush on error


def test_an_error_completes_the_guilty_request_and_flushes_the_rest_in_the_order_posted():
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 64)
    for number in range(3):
        ours.post_recv(pair.now, 100 + number, bytearray(8))
    ours.post_write(pair.now, 0, bytes(64), region.address, region.rkey)
    ours.post_write(pair.now, 1, bytes(65), region.address, region.rkey)
    ours.post_send(pair.now, 2, b"no receive is posted")
    ours.post_read(pair.now, 3, bytearray(8), region.address, region.rkey)
    ours.post_fetch_add(pair.now, 4, region.address, region.rkey, 1)
    pair.drive()
    assert outcome(pair.alice, ours) == [
        (0, "SUCCESS"), (1, "REM_ACCESS_ERR"), (2, "WR_FLUSH_ERR"), (3, "WR_FLUSH_ERR"), (4, "WR_FLUSH_ERR"),
        (100, "WR_FLUSH_ERR"), (101, "WR_FLUSH_ERR"), (102, "WR_FLUSH_ERR"),
    ]  # fmt: skip
    assert ours.state == State.ERR
    assert theirs.state == State.ERR  # the requester told it
    assert ours.sender.in_flight == 0
    assert not ours.sender.flow.oldest


def test_requests_posted_in_err_are_flushed_behind_the_others():
    pair = pair_of()
    ours, _ = pair.connect()
    ours.post_send(pair.now, 1, b"waits")
    ours.fail(pair.now, Status.FATAL_ERR, "the device is gone", None)
    ours.post_send(pair.now, 2, b"late")
    ours.post_recv(pair.now, 3, bytearray(1))
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "FATAL_ERR"), (2, "WR_FLUSH_ERR"), (3, "WR_FLUSH_ERR")]
    assert all("the device is gone" in item.error for item in pair.alice.completions)


def test_a_queue_pair_in_err_does_not_disturb_the_others():
    pair = pair_of()
    bad, bad_peer = pair.connect()
    good, good_peer = pair.connect()
    target, region = expose(good_peer, 1 << 16)
    good.post_write(pair.now, 1, b"g" * (1 << 16), region.address, region.rkey)
    bad.post_write(pair.now, 2, b"b", 0, 77)
    pair.drive()
    assert outcome(pair.alice, good) == [(1, "SUCCESS")]
    assert outcome(pair.alice, bad) == [(2, "REM_ACCESS_ERR")]
    assert target == b"g" * (1 << 16)
    assert good.state == good_peer.state == State.RTS
    assert bad_peer.state == State.ERR


def test_paths_carry_nothing_of_a_failed_queue_pair_any_more():
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 20)
    ours.post_write(pair.now, 1, 1 << 20, region.address, region.rkey)
    pair.flush()
    assert sum(path.in_flight for path in ours.context.paths.paths) > 0
    ours.fail(pair.now, Status.FATAL_ERR, "made to fail", None)
    assert [path.in_flight for path in ours.context.paths.paths] == [0] * 16
    assert all(subflow.oldest is None for subflow in ours.context.peer.subflows)


def test_a_terminate_of_unknown_status_ends_the_connection_all_the_same():
    pair = pair_of()
    ours, theirs = pair.connect()
    ours.post_send(pair.now, 1, b"waits")
    pair.inject(forge_control(theirs, CONTROL, Terminate(200, 2, 0), theirs.channel.next))
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "WR_FLUSH_ERR")]
    assert ours.state == State.ERR


# Giving up


POSTS = {
    "write": lambda qp, now, wr, region: qp.post_write(now, wr, bytes(100_000), region.address, region.rkey),
    "zero bytes": lambda qp, now, wr, region: qp.post_write(now, wr, b"", 0, 0),
    "write_imm": lambda qp, now, wr, region: qp.post_write(now, wr, bytes(10), region.address, region.rkey, imm=1),
    "inline": lambda qp, now, wr, region: qp.post_send(now, wr, b"hello"),
    "send": lambda qp, now, wr, region: qp.post_send(now, wr, bytes(5000)),
    "read": lambda qp, now, wr, region: qp.post_read(now, wr, bytearray(5000), region.address, region.rkey),
    "fetch_add": lambda qp, now, wr, region: qp.post_fetch_add(now, wr, region.address, region.rkey, 1),
}


@pytest.mark.parametrize("retries", [1, 7])
@pytest.mark.parametrize("operation", POSTS)
def test_a_black_hole_ends_in_bounded_retries_with_backoff_and_an_error(operation, retries):
    pair = pair_of(retries=retries, max_run=4)
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 17)
    for number in range(4):
        theirs.post_recv(pair.now, 100 + number, bytearray(8192))
    ours.post_write(pair.now, 0, bytes(100), region.address, region.rkey)  # the network is known
    pair.drive()
    pair.sent.clear()
    times: list[int] = []

    def black_hole(now: int, packet: Packet) -> Packet | None:
        if packet.dst != BOB:
            return packet
        if not isinstance(packet.control, Probe):
            times.append(now)
        return None

    pair.wire.touch = black_hole
    began = pair.now
    for wr_id in (1, 2):
        POSTS[operation](ours, pair.now, wr_id, region)
    pair.drive()
    assert outcome(pair.alice, ours) == [(0, "SUCCESS"), (1, "RETRY_EXC_ERR"), (2, "RETRY_EXC_ERR")]
    error = pair.alice.completions[1].error
    assert "10.0.0.2" in error
    assert any(f"path {path.entropy}" in error for path in ours.context.paths.paths)
    assert f"no answer after {retries} retransmission timeouts" in error
    # One tail probe, then `retries` timeouts, each twice as far from the next as from the one before.
    moments = sorted(set(times))
    rto = ours.context.rto()
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert len(moments) == retries + 2
    assert gaps[1:] == [rto << power for power in range(retries)]
    assert pair.alice.completions[1].status == Status.RETRY_EXC_ERR
    assert moments[0] == began
    assert len(times) <= (retries + 2) * 32  # at constant rate it would be a window each round trip
    assert ours.state == State.ERR
    assert pair.alice.endpoint.poll_timeout() == NEVER


def connect_to(pair: Pair, address: bytes) -> tuple[Host, Connection, Connection]:
    """A third host, with a queue pair from alice."""
    host = Host(Endpoint(pair.alice.endpoint.config, address, CAPS, random.Random("third")))
    pair.hosts[address] = host
    ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
    theirs = host.endpoint.create_connection(host.endpoint.protection_domain(), pair.now)
    ours.connect(pair.now, theirs.parameters)
    theirs.connect(pair.now, ours.parameters)
    pair.connections += [ours, theirs]
    return host, ours, theirs


def test_other_peers_go_on_when_one_is_lost():
    pair = pair_of(max_run=16)
    lost, lost_peer = pair.connect()
    _, good, good_peer = connect_to(pair, CAROL)
    _, region = expose(lost_peer, 1 << 20)
    target, other = expose(good_peer, 1 << 20)
    pair.wire.touch = swallow_all_to(BOB)
    lost.post_write(pair.now, 1, 1 << 20, region.address, region.rkey)
    for number in range(40):
        pair.drive(lambda: len(pair.alice.results(good)) == number, limit=MS)  # noqa: B023
        good.post_write(pair.now, number, bytes([number]) * (1 << 20), other.address, other.rkey)
    pair.drive()
    assert outcome(pair.alice, good) == [(number, "SUCCESS") for number in range(40)]
    assert outcome(pair.alice, lost) == [(1, "RETRY_EXC_ERR")]
    assert target == bytes([39]) * (1 << 20)
    assert good.state == State.RTS


def test_a_peer_that_comes_back_in_time_costs_retransmissions_only():
    pair = pair_of()
    ours, theirs = pair.connect()
    target, region = expose(theirs, 1 << 18)
    back = pair.now + 3 * MS
    pair.wire.touch = lambda now, packet: packet if now >= back else None
    source = random.Random(3).randbytes(1 << 18)
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert target == source
    assert pair.alice.endpoint.counters()["timeouts"] >= 3


def test_one_way_silence_is_found_by_the_sender_and_harms_no_data():
    """Everything arrives, no acknowledgement does: the request fails, the bytes are there once."""
    pair = pair_of()
    ours, theirs = pair.connect()
    target, region = expose(theirs, 5000)
    pair.wire.touch = swallow_all_to(ALICE)
    ours.post_write(pair.now, 1, b"x" * 5000, region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "RETRY_EXC_ERR")]
    assert target == b"x" * 5000
    assert pair.bob.endpoint.counters()["bytes_placed"] == 5000
    assert pair.bob.endpoint.counters()["duplicates"] > 0


def test_a_send_that_waits_for_a_receive_finds_out_that_its_peer_is_gone():
    pair = pair_of()
    ours, _ = pair.connect()
    ours.post_send(pair.now, 1, b"waits")
    pair.drive(limit=20 * MS)
    assert not pair.alice.completions
    pair.wire.touch = swallow_all_to(BOB)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "RETRY_EXC_ERR")]
    assert "10.0.0.2" in pair.alice.completions[0].error


def test_a_send_may_wait_for_a_receive_as_long_as_its_peer_lives():
    pair = pair_of()
    ours, theirs = pair.connect()
    ours.post_send(pair.now, 1, b"patience")
    pair.drive(limit=5 * SECOND)
    assert not pair.alice.completions
    sent = pair.alice.endpoint.counters()["packets_sent"]
    assert sent < 5 * SECOND // ours.context.rto() // 4  # asks seldom
    buffer = bytearray(8)
    theirs.post_recv(pair.now, 2, buffer)
    pair.drive(lambda: pair.alice.completions)
    assert buffer == b"patience"
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]


# SENDs and receives


@pytest.mark.parametrize("imm", [None, 7])
@pytest.mark.parametrize("size", [9, 256, 257, 70_000])
def test_a_send_longer_than_its_receive_is_an_error_on_both_sides(size, imm):
    pair = pair_of()
    ours, theirs = pair.connect()
    small = bytearray(8)
    _, region = expose(theirs, 64)
    for number in range(3):
        theirs.post_recv(pair.now, 10 + number, small if number == 0 else bytearray(100_000))
    pair.drive()
    ours.post_send(pair.now, 1, b"\xee" * size, imm)
    ours.post_send(pair.now, 2, b"next")
    ours.post_write(pair.now, 3, bytes(64), region.address, region.rkey)
    for number in range(4, 7):
        ours.post_send(pair.now, number, b"waits for an advert")
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "REM_INV_REQ_ERR")] + [(n, "WR_FLUSH_ERR") for n in range(2, 7)]
    assert outcome(pair.bob, theirs) == [(10, "LOC_LEN_ERR"), (11, "WR_FLUSH_ERR"), (12, "WR_FLUSH_ERR")]
    assert f"SEND of {size} bytes into a receive of 8" in pair.bob.completions[0].error
    assert ours.state == theirs.state == State.ERR
    assert small == bytes(8)


def test_an_overlong_send_is_refused_in_its_turn_after_the_ones_before_it():
    pair = pair_of()
    ours, theirs = pair.connect()
    buffers = [bytearray(6000), bytearray(4), bytearray(6000)]
    for number, buffer in enumerate(buffers):
        theirs.post_recv(pair.now, number, buffer)
    pair.drive()
    for number in range(3):
        ours.post_send(pair.now, number, b"\x05" * 5000)
    pair.drive()
    assert outcome(pair.bob, theirs) == [(0, "SUCCESS"), (1, "LOC_LEN_ERR"), (2, "WR_FLUSH_ERR")]
    assert outcome(pair.alice, ours)[1] == (1, "REM_INV_REQ_ERR")
    assert buffers[0][:5000] == b"\x05" * 5000
    assert buffers[1] == bytes(4)


def test_a_write_with_immediate_consumes_a_receive_and_none_of_its_buffer():
    pair = pair_of()
    ours, theirs = pair.connect()
    target, region = expose(theirs, 5000)
    buffers = [bytearray(2), bytearray(8)]
    theirs.post_recv(pair.now, 0, buffers[0])
    theirs.post_recv(pair.now, 1, buffers[1])
    ours.post_write(pair.now, 0, b"w" * 5000, region.address, region.rkey, imm=0xFFFFFFFF)
    ours.post_send(pair.now, 1, b"s")
    pair.drive()
    assert [(item.wr_id, item.opcode, item.byte_len, item.imm) for item in pair.bob.completions] == [
        (0, Opcode.RECV_RDMA_WITH_IMM, 5000, 0xFFFFFFFF),
        (1, Opcode.RECV, 1, None),
    ]
    assert (buffers[0], buffers[1]) == (bytes(2), b"s" + bytes(7))
    assert target == b"w" * 5000


@given(count=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_receives_are_used_in_the_order_posted_however_the_adverts_arrive(count, seed):
    pair = pair_of(seed=seed, wire=Wire(jitter=100 * US, loss=0.05))
    ours, theirs = pair.connect()
    rng = random.Random(seed)
    buffers = [bytearray(2) for _ in range(count)]
    for number, buffer in enumerate(buffers):
        theirs.post_recv(pair.now, number, buffer)
        if rng.random() < 0.1:
            pair.flush()
    for number in range(count):
        ours.post_send(pair.now, number, number.to_bytes(2, "big"))
    pair.drive(lambda: len(pair.bob.completions) == count and len(pair.alice.completions) == count)
    assert [item.wr_id for item in pair.bob.completions] == list(range(count))
    assert [int.from_bytes(buffer, "big") for buffer in buffers] == list(range(count))


def test_buffers_are_the_users_own_again_once_completions_are_seen():
    pair = pair_of(max_run=4)
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 16)
    source, received, read = bytearray(b"s" * 60_000), bytearray(60_000), bytearray(60_000)
    theirs.post_recv(pair.now, 0, received)
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    ours.post_send(pair.now, 2, source)
    ours.post_read(pair.now, 3, read, region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS"), (2, "SUCCESS"), (3, "SUCCESS")]
    pair.sent.clear()
    for buffer in (source, received, read):
        assert buffer == b"s" * 60_000
        buffer.clear()  # BufferError if anything still held it


# READs and atomics


@pytest.mark.parametrize("wrong", ["key", "address", "length"])
def test_a_read_of_what_is_not_exposed_ends_the_connection(wrong):
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 64)
    here = bytearray(65 if wrong == "length" else 64)
    ours.post_read(
        pair.now, 1, here, region.address + (wrong == "address"), region.rkey ^ (1 if wrong == "key" else 0)
    )  # fmt: skip
    ours.post_send(pair.now, 2, b"behind it")
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "REM_ACCESS_ERR"), (2, "WR_FLUSH_ERR")]
    assert ours.state == theirs.state == State.ERR
    assert not any(here)


@pytest.mark.parametrize("operation", ["fetch_add", "cmp_swap"])
@pytest.mark.parametrize(
    ("offset", "key", "status"),
    [(0, 1, "REM_ACCESS_ERR"), (8, 0, "REM_ACCESS_ERR"), (-8, 0, "REM_ACCESS_ERR"), (4, 0, "REM_INV_REQ_ERR")],
)
def test_an_atomic_on_a_wrong_or_unaligned_address_ends_the_connection(operation, offset, key, status):
    pair = pair_of()
    ours, theirs = pair.connect()
    memory = bytearray(16)
    region = theirs.context.domain.register(memoryview(memory)[: 16 if offset == 4 else 8], ALL)
    address, rkey = region.address + offset, region.rkey ^ key
    if operation == "fetch_add":
        ours.post_fetch_add(pair.now, 1, address, rkey, 1)
    else:
        ours.post_cmp_swap(pair.now, 1, address, rkey, 0, 1)
    ours.post_send(pair.now, 2, b"behind it")
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, status), (2, "WR_FLUSH_ERR")]
    assert ours.state == theirs.state == State.ERR
    assert not any(memory)


def test_fetch_add_wraps_and_compare_and_swap_swaps_only_on_equality():
    pair = pair_of()
    ours, theirs = pair.connect()
    memory, region = expose(theirs, 8)
    top = (1 << 64) - 1
    memory[:] = (top - 1).to_bytes(8, sys.byteorder)
    post, at, key = pair.now, region.address, region.rkey
    ours.post_fetch_add(post, 0, at, key, 5)  # top - 1 -> 3
    ours.post_fetch_add(post, 1, at, key, top)  # 3 -> 2
    ours.post_cmp_swap(post, 2, at, key, 3, 9)  # differs: stays 2
    ours.post_cmp_swap(post, 3, at, key, 2, top)  # 2 -> top
    ours.post_fetch_add(post, 4, at, key, 0)
    pair.drive()
    assert [(item.wr_id, item.value, item.status.name) for item in pair.alice.completions] == [
        (0, top - 1, "SUCCESS"), (1, 3, "SUCCESS"), (2, 2, "SUCCESS"), (3, 2, "SUCCESS"), (4, top, "SUCCESS"),
    ]  # fmt: skip
    assert memory == top.to_bytes(8, sys.byteorder)


@given(
    seed=st.integers(0, 2**32),
    adds=st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=40),
    loss=st.floats(0, 0.2),
    duplicate=st.floats(0, 0.5),
)
def test_an_atomic_runs_exactly_once_under_loss_and_duplication(seed, adds, loss, duplicate):
    pair = pair_of(seed=seed, wire=Wire(loss=loss, duplicate=duplicate, jitter=50 * US), max_rd_atomic=4, retries=20)
    ours, theirs = pair.connect()
    memory, region = expose(theirs, 8)
    for number, add in enumerate(adds):
        ours.post_fetch_add(pair.now, number, region.address, region.rkey, add)
    pair.drive(lambda: len(pair.alice.completions) == len(adds))
    before, total = [], 0
    for add in adds:
        before.append(total)
        total = (total + add) % (1 << 64)
    assert [item.value for item in pair.alice.completions] == before
    assert int.from_bytes(memory, sys.byteorder) == total


@pytest.mark.parametrize("limit", [1, 3, 16])
def test_no_more_reads_and_atomics_are_outstanding_than_agreed(limit):
    pair = pair_of(max_rd_atomic=limit)
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    most = 0

    def count(now: int, packet: Packet) -> Packet:
        nonlocal most
        most = max(most, len(ours.sender.starter.reads))
        return packet

    pair.wire.touch = count
    replies = [bytearray(100) for _ in range(20)]
    for number in range(20):
        ours.post_read(pair.now, 2 * number, replies[number], region.address, region.rkey)
        ours.post_fetch_add(pair.now, 2 * number + 1, region.address, region.rkey, 1)
    pair.drive()
    assert most == limit
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(40)]
    assert [reply[0] for reply in replies] == list(range(20))  # each READ sees the atomics before it, none after it


def test_a_requester_beyond_the_agreed_limit_is_not_served():
    pair = pair_of(max_rd_atomic=2)
    ours, theirs = pair.connect()
    _, region = expose(theirs, 64)
    for number in range(9):  # nothing runs: CSN `next` has not come
        request = ReadReq(number, 0, region.rkey, region.address, 8, 0, 0)
        pair.inject(forge_control(ours, CONTROL, request, ours.channel.next + 1 + number))
    pair.drive(limit=MS)
    assert theirs.state == State.ERR
    assert "ReadReq(number=2" in theirs.error
    assert not theirs.responder.pending


# Depths


def test_posts_fail_at_the_depth_of_the_send_queue_and_queue_nothing():
    pair = pair_of(sq_depth=3)
    ours, theirs = pair.connect()
    target, region = expose(theirs, 8)
    for number in range(3):
        ours.post_write(pair.now, number, bytes([number]), region.address, region.rkey)
    for post in POSTS.values():
        with pytest.raises(QueueFullError, match="sq_depth = 3"):
            post(ours, pair.now, 9, region)
    assert len(ours.sender.queue) == len(ours.sender.starter.unsent) == 3
    pair.drive()
    ours.post_write(pair.now, 3, b"\x03", region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(4)]
    assert target[0] == 3


def test_posts_fail_at_the_depth_of_the_receive_queue_and_queue_nothing():
    pair = pair_of(rq_depth=2)
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 0, bytearray(8))
    theirs.post_recv(pair.now, 1, bytearray(8))
    keys = len(theirs.context.domain.table)
    with pytest.raises(QueueFullError, match="rq_depth = 2"):
        theirs.post_recv(pair.now, 2, bytearray(8))
    assert len(theirs.receiver.queue) == 2
    assert len(theirs.context.domain.table) == keys
    ours.post_send(pair.now, 0, b"x")
    pair.drive()
    theirs.post_recv(pair.now, 3, bytearray(8))
    assert [receive.wr_id for receive in theirs.receiver.queue] == [1, 3]


BAD_POSTS = [
    lambda qp: qp.post_write(0, 1, b"x", -1, 0),
    lambda qp: qp.post_write(0, 1, b"x", 1 << 64, 0),
    lambda qp: qp.post_write(0, 1, b"", 1 << 64, 0),
    lambda qp: qp.post_write(0, 1, b"x", 0, -1),
    lambda qp: qp.post_write(0, 1, b"x", 0, 1 << 32),
    lambda qp: qp.post_write(0, 1, b"x", 0, 0, imm=1 << 32),
    lambda qp: qp.post_write(0, 1, b"x", 0, 0, imm=-1),
    lambda qp: qp.post_write(0, 1, "text", 0, 0),
    lambda qp: qp.post_write(0, 1, None, 0, 0),
    lambda qp: qp.post_write(0, 1, memoryview(b"abcdef")[::2], 0, 0),
    lambda qp: qp.post_send(0, 1, -1),
    lambda qp: qp.post_send(0, 1, (1 << 32) + 1),
    lambda qp: qp.post_read(0, 1, b"constant", 0, 0),
    lambda qp: qp.post_read(0, 1, bytearray(8), (1 << 64) - 7, 0),
    lambda qp: qp.post_fetch_add(0, 1, 0, 0, 1 << 64),
    lambda qp: qp.post_fetch_add(0, 1, 0, 0, -1),
    lambda qp: qp.post_cmp_swap(0, 1, 0, 0, -1, 0),
    lambda qp: qp.post_cmp_swap(0, 1, 0, 0, 0, 1 << 64),
    lambda qp: qp.post_cmp_swap(0, 1, (1 << 64) - 7, 0, 0, 0),
    lambda qp: qp.post_recv(0, 1, b"constant"),
    lambda qp: qp.post_recv(0, 1, "text"),
    lambda qp: qp.post_recv(0, 1, -1),
]


@pytest.mark.parametrize("post", BAD_POSTS, ids=range(len(BAD_POSTS)))
def test_a_request_with_a_bad_value_is_refused_and_not_queued(post):
    pair = pair_of()
    ours, _ = pair.connect()
    with pytest.raises(ConfigError):
        post(ours)
    assert not ours.sender.queue
    assert not ours.receiver.queue


# Sizes


@pytest.mark.parametrize("max_run", [1, 64])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 300_000, (3 << 20) + 5])
def test_messages_of_every_size_by_every_operation(size, max_run):
    pair = pair_of(max_run=max_run, wire=Wire(rate=100_000_000_000))
    ours, theirs = pair.connect()
    source = random.Random(size).randbytes(size)
    target, region = expose(theirs, size + 3)
    received, read = bytearray(size), bytearray(size)
    theirs.post_recv(pair.now, 0, received)
    ours.post_write(pair.now, 0, source, region.address + 3, region.rkey)
    ours.post_send(pair.now, 1, source)
    ours.post_read(pair.now, 2, read, region.address + 3, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(0, "SUCCESS"), (1, "SUCCESS"), (2, "SUCCESS")]
    assert target == bytes(3) + source
    assert received == read == source
    assert pair.bob.completions[0].byte_len == pair.alice.completions[2].byte_len == size
    counters = pair.alice.endpoint.counters(), pair.bob.endpoint.counters()
    assert counters[0]["retransmits"] == counters[1]["retransmits"] == 0
    for sender, receiver in (counters, counters[::-1]):
        assert sender["packets_sent"] == receiver["packets_received"]
        assert sender["data_packets_sent"] == receiver["data_packets_received"]


def test_every_hundredth_packet_lost_both_ways():
    """Repeats of what has arrived are acknowledged again, so it ends; each byte is placed once."""
    pair = pair_of()
    ours, theirs = pair.connect()
    size = 4 << 20
    source = random.Random(4).randbytes(size)
    target, region = expose(theirs, size)
    seen = 0

    def every_hundredth(now: int, packet: Packet) -> Packet | None:
        nonlocal seen
        seen += 1
        return packet if seen % 100 else None

    pair.wire.touch = every_hundredth
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert target == source
    assert pair.bob.endpoint.counters()["bytes_placed"] == size
    assert pair.alice.endpoint.counters()["retransmits"] < 3 * seen // 100


def test_copies_of_what_left_in_the_first_round_trip_are_counted_apart():
    """One of the first packets is lost, and one of those that leave once acknowledgements came."""
    lost = []
    for which in (3, 400):
        pair = pair_of(window=256)
        ours, theirs = pair.connect()
        size = 512 * 4096
        _, region = expose(theirs, size)
        seen = 0

        def drop(now: int, packet: Packet, which: int = which) -> Packet | None:
            nonlocal seen
            seen += packet.kind == DATA
            return None if packet.kind == DATA and seen == which else packet

        pair.wire.touch = drop
        ours.post_write(pair.now, 1, random.Random(4).randbytes(size), region.address, region.rkey)
        pair.drive()
        counters = pair.alice.endpoint.counters()
        lost.append((counters["retransmits"], counters["early_retransmits"]))
    assert lost == [(1, 1), (1, 0)]


def test_phantom_bytes_are_counted_and_go_nowhere():
    pair = pair_of(max_run=64)
    ours, theirs = pair.connect()
    region = theirs.context.domain.register(1 << 22, ALL)
    theirs.post_recv(pair.now, 9, 1 << 20)
    ours.post_write(pair.now, 0, 1 << 22, region.address, region.rkey)
    ours.post_send(pair.now, 1, 1 << 20)
    ours.post_read(pair.now, 2, 1 << 22, region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(0, "SUCCESS"), (1, "SUCCESS"), (2, "SUCCESS")]
    assert pair.bob.completions[0].byte_len == 1 << 20
    assert pair.bob.endpoint.counters()["bytes_placed"] == (1 << 22) + (1 << 20)
    assert all(packet.payload is None for packet in data_packets(pair.sent))


def test_a_round_trip_that_grows_a_hundredfold_is_learnt_from_earlier_copies():
    """Every segment is sent again before its first copy is acknowledged: only first copies can tell the round trip."""
    pair = pair_of(max_run=16, wire=Wire(rate=1_000_000_000))
    ours, theirs = pair.connect()
    region = theirs.context.domain.register(4 << 20, ALL)
    ours.post_write(pair.now, 1, 4 << 20, region.address, region.rkey)
    pair.drive(lambda: pair.alice.completions)
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert ours.context.paths.srtt > 50 * ours.context.base_rtt
    assert pair.alice.endpoint.counters()["retransmits"] < 100  # of 1024


# Wraps


def connect_at(pair: Pair, dsn: int, csn: int, psn: int) -> tuple[Connection, Connection]:
    """Connected queue pairs whose numbers start where the test says, in both directions."""
    created = []
    for host in (pair.alice, pair.bob):
        connection = host.endpoint.create_connection(host.endpoint.protection_domain(), pair.now)
        connection.parameters = replace(connection.parameters, dsn=dsn, csn=csn)
        connection.dormant = Dormant(dsn, csn)
        connection.context.psn = psn
        created.append(connection)
    ours, theirs = created
    ours.connect(pair.now, theirs.parameters)
    theirs.connect(pair.now, ours.parameters)
    pair.connections += created
    for connection in created:
        awaken(connection)
    return ours, theirs


def test_four_packets_from_psn_fffffe_are_completed_by_the_ack_of_psn_1():
    pair = pair_of(paths=1)
    ours, theirs = connect_at(pair, 0xFFFFFFFE, 0, 0xFFFFFE)
    target, region = expose(theirs, 4 * 4096)
    ours.post_write(pair.now, 1, b"w" * 4 * 4096, region.address, region.rkey)
    pair.drive()
    packets = data_packets(pair.sent)
    assert [packet.psn for packet in packets] == [0xFFFFFE, 0xFFFFFF, 0, 1]
    assert [packet.seq for packet in packets] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    acks = [packet.control for packet in pair.sent if isinstance(packet.control, Ack)]
    assert [(ack.trigger_psn, ack.edge) for ack in acks] == [(1, 2)]
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert target == b"w" * 4 * 4096


@given(
    below=st.integers(0, 60),
    seed=st.integers(0, 2**32),
    max_run=st.sampled_from([1, 8]),
    loss=st.sampled_from([0.0, 0.05]),
)
def test_all_operations_across_the_wrap_of_all_numbers(below, seed, max_run, loss):
    pair = pair_of(seed=seed, mtu=1024, max_run=max_run, wire=Wire(loss=loss, duplicate=0.05, jitter=30 * US))
    start = (1 << 32) - below
    ours, theirs = connect_at(pair, start % (1 << 32), (start + 30) % (1 << 32), (1 << 24) - 1 - below)
    target, region = expose(theirs, 8 + 40 * 1024)
    buffers, reads = [bytearray(1500) for _ in range(15)], [bytearray(2000) for _ in range(5)]
    source = random.Random(seed).randbytes(40 * 1024)
    for number, buffer in enumerate(buffers):
        theirs.post_recv(pair.now, number, buffer)
    ours.post_write(pair.now, 0, source, region.address + 8, region.rkey)
    for number in range(15):
        ours.post_send(pair.now, 1 + number, source[: 100 * number])
    for number in range(5):
        ours.post_fetch_add(pair.now, 16 + 2 * number, region.address, region.rkey, 1)
        ours.post_read(pair.now, 17 + 2 * number, reads[number], region.address + 8, region.rkey)
    pair.drive(lambda: len(pair.alice.completions) == 26)
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(26)]
    assert outcome(pair.bob, theirs) == [(number, "SUCCESS") for number in range(15)]
    assert target[8:] == source
    assert int.from_bytes(target[:8], sys.byteorder) == 5
    assert all(buffer == source[: 100 * n] + bytes(1500 - 100 * n) for n, buffer in enumerate(buffers))
    assert all(read == source[:2000] for read in reads)


# Packets that should not be


def test_an_ack_for_the_future_is_ignored_and_counted():
    """Acknowledgements of an earlier incarnation, or forged: next DSN is 10 above `una`, they tell of 200."""
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 20)
    pair.wire.touch = lambda now, packet: None
    ours.post_write(pair.now, 1, 10 * 4096, region.address, region.rkey)
    pair.flush()
    pair.wire.touch = None
    una, following, first = ours.sender.una, ours.sender.next, data_packets(pair.sent)[0]
    assert following == una + 10
    later = pair.now + 50 * US

    def ack(**changes) -> Ack:
        message = Ack()
        message.edge = message.base = una & 0xFFFFFFFF
        message.control_edge = ours.channel.una & 0xFFFFFFFF
        message.trigger_seq, message.trigger_psn, message.trigger_entropy = first.seq, first.psn, first.entropy
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    bad = [
        ack(edge=una + 200 & 0xFFFFFFFF),
        ack(edge=una + 11 & 0xFFFFFFFF),
        ack(bits=200, received=b"\xff" * 25, marked=bytes(25)),
        ack(bits=11, received=b"\xff" * 2, marked=bytes(2)),
        ack(base=una + 190 & 0xFFFFFFFF, bits=1, received=b"\1", marked=b"\0"),
        ack(bits=10, received=b"\xff", marked=b"\xff"),  # bitmaps shorter than they say
        ack(edge=una + 1 & 0xFFFFFFFF, control_edge=ours.channel.next + 1 & 0xFFFFFFFF),
        ack(edge=una + 1 & 0xFFFFFFFF, control_received=b"\1"),
    ]
    for number, message in enumerate(bad):
        pair.alice.endpoint.receive(forge_control(theirs, DATAGRAM, message), later)
        assert pair.alice.endpoint.counters()["dropped_bad_ack"] == number + 1
        assert (ours.sender.una, ours.sender.in_flight) == (una, 10 * 4096)
        assert all(path.srtt <= 0 for path in ours.context.paths.paths)
    assert ours.state == State.RTS
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]


def test_an_old_ack_changes_nothing():
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 16)
    for number in range(4):
        ours.post_write(pair.now, number, 1 << 16, region.address, region.rkey)
        pair.drive()
    old = [packet for packet in pair.sent if isinstance(packet.control, Ack)]
    una, in_flight = ours.sender.una, ours.sender.in_flight
    for packet in reversed(old):
        pair.alice.endpoint.receive(packet, pair.now)
    assert (ours.sender.una, ours.sender.in_flight) == (una, in_flight)
    assert pair.alice.endpoint.counters()["dropped_bad_ack"] == 0
    assert len(pair.alice.completions) == 4


def test_a_control_packet_with_a_wrong_tag_is_dropped_without_an_answer():
    pair = pair_of()
    ours, theirs = pair.connect()
    ours.post_send(pair.now, 1, b"waits")
    pair.drive(limit=MS)
    sent = pair.alice.endpoint.counters()["packets_sent"]
    for control in (RecvAdvert(0, ()), Terminate(5, 2, 0), Close(0, 0)):
        packet = forge_control(theirs, CONTROL, control, theirs.channel.next)
        packet.tag ^= 1
        pair.alice.endpoint.receive(packet, pair.now)
    packet = forge_control(theirs, DATAGRAM, Ack())
    packet.tag = 0
    pair.alice.endpoint.receive(packet, pair.now)
    assert pair.alice.endpoint.counters()["dropped_wrong_tag"] == 4
    assert ours.state == State.RTS
    pair.flush()
    assert pair.alice.endpoint.counters()["packets_sent"] == sent


def test_packets_from_another_address_or_to_an_unknown_queue_pair_are_dropped():
    pair = pair_of()
    ours, theirs = pair.connect()
    target, region = expose(theirs, 8)
    packet = forge(ours, ours.sender.next, b"x", region.rkey, region.address)
    packet.src = CAROL
    pair.bob.endpoint.receive(packet, pair.now)
    assert pair.bob.endpoint.counters()["dropped_wrong_address"] == 1
    for qpn in (0, 1, theirs.qpn ^ 1, theirs.qpn ^ 1 << 23):
        stray = forge(ours, ours.sender.next, b"x", region.rkey, region.address)
        stray.qpn = qpn
        pair.bob.endpoint.receive(stray, pair.now)
    assert pair.bob.endpoint.counters()["dropped_unknown_qpn"] == 4
    assert not any(target)
    assert not pair.bob.endpoint.poll_transmit(pair.now, 10)


@pytest.mark.parametrize("ahead", [0, 1, 1000, 1 << 20, (1 << 31) - 4096])
def test_packets_outside_the_window_are_dropped(ahead):
    pair = pair_of(window=64)
    ours, theirs = pair.connect()
    target, region = expose(theirs, 8)
    edge, window = ours.sender.next, theirs.receiver.ledger.window
    assert window == 64
    pair.bob.endpoint.receive(forge(ours, edge + window + ahead, b"x", region.rkey, region.address), pair.now)
    pair.bob.endpoint.receive(forge_control(ours, CONTROL, Close(0, 0), ours.channel.next + 128 + ahead), pair.now)
    assert pair.bob.endpoint.counters()["dropped_outside_window"] == 2
    assert not any(target)
    assert theirs.state == State.RTS
    pair.bob.endpoint.receive(forge(ours, edge + window - 1, b"x", region.rkey, region.address), pair.now)
    assert target[0] == ord("x")


def test_control_that_nobody_waits_for_is_counted_and_acknowledged():
    pair = pair_of()
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 1, bytearray(8))
    pair.drive()
    at = ours.sender.next & 0xFFFFFFFF
    idle = [
        Msg(0xFFFFFFFF, OP_SEND, at, 0, 4, inline=b"four"),  # was delivered long ago
        Msg(7, 3, at, 1, 5),  # answers no READ
        AtomicReply(0, 5),
        AtomicReply(12345, 5),
        None,
        Credit(5),
    ]
    csn = ours.channel.next
    for number, control in enumerate(idle):
        pair.inject(forge_control(ours, CONTROL, control, csn + number))
    pair.drive(limit=MS)
    assert pair.bob.endpoint.counters()["dropped_bad_control"] == len(idle)
    assert theirs.channel.edge_in & 0xFFFFFFFF == csn + len(idle) & 0xFFFFFFFF
    assert theirs.state == State.RTS
    assert not pair.bob.completions


@pytest.mark.parametrize(
    ("number", "count", "length", "inline"),
    [(1, 0, 4, b"four"), (0, 0, 5, b"four"), (0, 0, 8, None), (0, 2, 8, None), (0, 1, 4, b"four"), (0, 1, 9, None)],
    ids=[
        "not posted",
        "lengths differ",
        "no segments",
        "too many segments",
        "inline and segments",
        "too long, segments",
    ],
)
def test_a_message_that_contradicts_itself_ends_the_connection_and_is_never_delivered(number, count, length, inline):
    pair = pair_of()
    ours, theirs = pair.connect()
    buffer = bytearray(8)
    theirs.post_recv(pair.now, 1, buffer)
    pair.drive()
    message = Msg(number, OP_SEND, ours.sender.next & 0xFFFFFFFF, count, length, inline=inline)
    pair.inject(forge_control(ours, CONTROL, message, ours.channel.next))
    pair.drive(limit=MS)
    assert theirs.state == State.ERR
    assert outcome(pair.bob, theirs) == [(1, "WR_FLUSH_ERR")]
    assert not any(buffer)


def test_a_queue_pair_in_error_acknowledges_no_message_that_it_flushed():
    pair = pair_of()
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 1, bytearray(64))
    pair.drive()
    lost = []

    def touch(now, packet):
        if isinstance(packet.control, Terminate) and not lost:
            lost.append(packet)
            return None
        return packet

    pair.wire.touch = touch
    theirs.fail(pair.now, Status.WR_FLUSH_ERR, "a fault of its own", None, Terminate(Status.REM_OP_ERR, 2, 0))
    ours.post_send(pair.now, 5, bytes(50))
    pair.drive(limit=SECOND)
    assert lost
    assert outcome(pair.alice, ours) == [(5, "WR_FLUSH_ERR")]


def test_closing_after_an_error_still_tells_the_peer():
    pair = pair_of()
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 1, bytearray(64))
    pair.drive()
    ours.fail(pair.now, Status.WR_FLUSH_ERR, "a fault of its own", None, Terminate(Status.REM_OP_ERR, 2, 0))
    ours.close(pair.now)
    pair.drive(limit=SECOND)
    assert outcome(pair.bob, theirs) == [(1, "WR_FLUSH_ERR")]
    assert ours.state == State.RESET


def test_a_terminate_without_a_reason_completes_nothing_with_success():
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 20)
    ours.post_read(pair.now, 3, bytearray(1 << 20), region.address, region.rkey)
    pair.flush()
    pair.inject(forge_control(theirs, CONTROL, Terminate(Status.SUCCESS, 1, 0), theirs.channel.next))
    pair.drive(limit=MS)
    assert outcome(pair.alice, ours) == [(3, "REM_OP_ERR")]


def test_a_repeated_message_header_delivers_once():
    pair = pair_of()
    ours, theirs = pair.connect()
    buffers = [bytearray(4), bytearray(4)]
    for number, buffer in enumerate(buffers):
        theirs.post_recv(pair.now, number, buffer)
    pair.drive()
    ours.post_send(pair.now, 1, b"once")
    pair.drive()
    header = next(packet for packet in pair.sent if isinstance(packet.control, Msg))
    buffers[0][:] = b"mine"
    for _ in range(3):
        pair.inject(header.copy())
    pair.inject(forge_control(ours, CONTROL, header.control, ours.channel.next))  # and under a number of its own
    pair.drive()
    assert outcome(pair.bob, theirs) == [(0, "SUCCESS")]
    assert buffers == [b"mine", bytes(4)]


@given(
    controls=st.lists(
        st.one_of(
            st.builds(Msg, st.integers(0, 5), st.integers(0, 4), st.integers(0, 2**32 - 1), st.integers(0, 5),
                      st.integers(0, 300), st.just(0), st.one_of(st.none(), st.binary(max_size=256))),
            st.builds(ReadReq, st.integers(0, 9), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1),
                      st.integers(0, 2**64 - 1), st.integers(0, 2**32), st.integers(0, 2**32 - 1),
                      st.integers(0, 2**64 - 1)),
            st.builds(Atomic, st.integers(0, 9), st.integers(0, 2), st.integers(0, 2**32 - 1),
                      st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
            st.builds(AtomicReply, st.integers(0, 9), st.integers(0, 2**64 - 1)),
            st.builds(Terminate, st.integers(0, 255), st.integers(0, 255), st.integers(0, 5)),
            st.builds(Close, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
            st.builds(RecvAdvert, st.integers(0, 5), st.just(())),
        ),
        max_size=12,
    ),
    ahead=st.lists(st.integers(0, 6), min_size=12, max_size=12),
)  # fmt: skip
def test_a_hostile_peer_ends_its_own_connection_at_worst(controls, ahead):
    pair = pair_of()
    good, good_peer = pair.connect()
    ours, theirs = pair.connect()
    ours.post_recv(pair.now, 1, bytearray(100))
    ours.post_send(pair.now, 2, b"waits")
    memory, _ = expose(ours, 64)
    csn = theirs.channel.next
    for control, offset in zip(controls, ahead, strict=False):
        pair.inject(forge_control(theirs, CONTROL, control, csn + offset))
    pair.drive(limit=MS)
    target, open_region = expose(good_peer, 4)
    good.post_write(pair.now, 3, b"fine", open_region.address, open_region.rkey)
    pair.drive(lambda: outcome(pair.alice, good) == [(3, "SUCCESS")])
    assert target == b"fine"
    assert not any(memory)
    assert len(outcome(pair.alice, ours)) <= 2


# Closing


def closed(pair: Pair, *connections: Connection) -> None:
    """The queue pairs are gone, and so is what they held."""
    for connection in connections:
        assert connection.state == State.RESET
        assert not connection.sender.queue
        assert not connection.receiver.queue
        assert connection.deadline == NEVER
    for host in pair.hosts.values():
        assert all(item is None for item in host.endpoint.connections.values())
        assert not host.endpoint.peers
        assert host.endpoint.poll_timeout() == NEVER


@pytest.mark.parametrize("who", ["alice", "bob", "both", "one after the other"])
def test_a_close_by_either_side_frees_both(who):
    pair = pair_of()
    ours, theirs = pair.connect()
    if who in ("alice", "both"):
        ours.close(pair.now)
    if who in ("bob", "both"):
        theirs.close(pair.now)
    if who == "one after the other":
        ours.close(pair.now)
        pair.drive(lambda: theirs.state == State.SQD)
        theirs.close(pair.now)
        ours.close(pair.now)
    pair.drive()
    closed(pair, ours, theirs)
    assert not pair.alice.completions
    assert pair.now < SECOND  # not by giving up


@given(seed=st.integers(0, 2**32), loss=st.floats(0, 0.3), work=st.integers(0, 3), both=st.booleans())
def test_a_close_under_loss_finishes_what_was_posted_and_frees_both(seed, loss, work, both):
    pair = pair_of(seed=seed, wire=Wire(loss=loss, duplicate=0.1, jitter=20 * US), retries=24)
    ours, theirs = pair.connect()
    target, region = expose(theirs, 3 * 20_000)
    for number in range(work):
        ours.post_write(pair.now, number, bytes([number + 1]) * 20_000, region.address + 20_000 * number, region.rkey)
    ours.close(pair.now)
    if both:
        theirs.close(pair.now)
    pair.drive()
    closed(pair, ours, theirs)
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(work)]
    assert target == b"".join(bytes([number + 1 if number < work else 0]) * 20_000 for number in range(3))


def test_posts_after_close_are_refused():
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 8)
    ours.close(pair.now)
    for state in ("SQD", "RESET"):
        assert ours.state.name == state
        for post in POSTS.values():
            with pytest.raises(LocalProtocolError, match=f"is in {state}"):
                post(ours, pair.now, 9, region)
        pair.drive()


def test_closing_flushes_the_receives_that_nothing_came_for():
    pair = pair_of()
    ours, theirs = pair.connect()
    for number in range(3):
        theirs.post_recv(pair.now, number, bytearray(8))
    pair.drive()
    ours.post_send(pair.now, 7, b"the last")
    ours.close(pair.now)
    pair.drive()
    assert outcome(pair.alice, ours) == [(7, "SUCCESS")]
    assert outcome(pair.bob, theirs) == [(0, "SUCCESS"), (1, "WR_FLUSH_ERR"), (2, "WR_FLUSH_ERR")]
    closed(pair, ours, theirs)


def test_a_transfer_longer_than_the_time_to_give_up_is_finished_by_close():
    pair = pair_of(max_run=16, wire=Wire(rate=1_000_000_000))
    ours, theirs = pair.connect()
    size = 8 << 20  # 67 ms on this wire
    region = theirs.context.domain.register(size, ALL)
    back = ours.context.domain.register(size, ALL)
    ours.post_write(pair.now, 1, size, region.address, region.rkey)
    theirs.post_write(pair.now, 2, size, back.address, back.rkey)
    theirs.post_write(pair.now, 3, size, back.address, back.rkey)
    patience = pair.now + (ours.context.rto() << 8)
    ours.close(pair.now)
    pair.drive(limit=60 * SECOND)
    assert pair.now > 2 * patience
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert outcome(pair.bob, theirs) == [(2, "SUCCESS"), (3, "SUCCESS")]
    closed(pair, ours, theirs)


@pytest.mark.parametrize("posted", ["nothing", "a write", "a send without a receive"])
@pytest.mark.parametrize("known", [False, True])
def test_a_peer_that_never_answers_does_not_keep_a_closing_queue_pair_alive(posted, known):
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 16)
    if known:
        ours.post_write(pair.now, 0, 1 << 16, region.address, region.rkey)
        pair.drive()
    pair.wire.touch = swallow_all_to(BOB)
    if posted == "a write":
        ours.post_write(pair.now, 1, 1 << 16, region.address, region.rkey)
    elif posted == "a send without a receive":
        ours.post_send(pair.now, 1, b"x")
    ours.post_recv(pair.now, 2, bytearray(4))
    began = pair.now
    ours.close(pair.now)
    pair.drive()
    assert ours.state == State.RESET
    assert not pair.alice.endpoint.peers
    assert pair.alice.endpoint.poll_timeout() == NEVER
    assert pair.now - began < 4 * (ours.context.rto() << 8)
    ends = dict(outcome(pair.alice, ours))
    assert ends.pop(0, "SUCCESS") == "SUCCESS"
    assert ends.pop(2) in ("WR_FLUSH_ERR", "RETRY_EXC_ERR")
    assert set(ends) == (set() if posted == "nothing" else {1})
    assert all(status in ("WR_FLUSH_ERR", "RETRY_EXC_ERR") for status in ends.values())


def test_a_live_peer_with_requests_that_cannot_finish_does_not_keep_a_closing_queue_pair_alive():
    pair = pair_of()
    ours, theirs = pair.connect()
    theirs.post_send(pair.now, 1, b"no receive will ever come")
    pair.drive(limit=MS)
    ours.close(pair.now)
    pair.drive()
    closed(pair, ours, theirs)
    assert outcome(pair.bob, theirs) == [(1, "WR_FLUSH_ERR")]


def test_an_error_during_close_frees_the_queue_pair():
    pair = pair_of()
    ours, theirs = pair.connect()
    ours.post_write(pair.now, 1, b"wrong key", 0, 99)
    ours.close(pair.now)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "REM_ACCESS_ERR")]
    assert ours.state == State.RESET
    assert theirs.state == State.ERR
    theirs.close(pair.now)
    pair.drive()
    closed(pair, ours, theirs)


def test_packets_for_a_closed_queue_pair_are_counted_and_its_number_rests():
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 8)
    packet = forge(ours, ours.sender.next, b"late", region.rkey, region.address)
    control = forge_control(ours, CONTROL, Terminate(5, 2, 0), 5)
    theirs.close(pair.now)
    pair.drive()
    endpoint = pair.bob.endpoint
    assert theirs.state == State.RESET
    before = endpoint.counters()["dropped_unknown_qpn"]
    endpoint.receive(packet, pair.now)
    endpoint.receive(control, pair.now)
    assert endpoint.counters()["dropped_unknown_qpn"] == before + 2
    assert theirs.qpn in [qpn for _, qpn in endpoint.resting]
    numbers = {endpoint.create_connection(endpoint.protection_domain(), pair.now).qpn for _ in range(50)}
    assert theirs.qpn not in numbers
    assert theirs.qpn in [qpn for _, qpn in endpoint.resting]
    endpoint.create_connection(endpoint.protection_domain(), pair.now + 10 * SECOND)
    assert theirs.qpn not in [qpn for _, qpn in endpoint.resting]


def test_closing_in_err_frees_at_once():
    pair = pair_of()
    ours, _ = pair.connect()
    ours.fail(pair.now, Status.FATAL_ERR, "made to fail", None)
    ours.close(pair.now)
    assert ours.state == State.RESET
    ours.close(pair.now)
    assert ours.state == State.RESET
    assert not pair.alice.endpoint.peers


def test_a_final_ack_that_was_lost_is_repeated_by_the_tombstone():
    pair = pair_of()
    ours, theirs = pair.connect()
    pair.drive()
    lost = 0

    def lose_acks_of_closes(now: int, packet: Packet) -> Packet | None:
        nonlocal lost
        if isinstance(packet.control, Ack) and packet.dst == ALICE and lost < 2:
            lost += 1
            return None
        return packet

    pair.wire.touch = lose_acks_of_closes
    ours.close(pair.now)
    pair.drive()
    assert lost == 2
    closed(pair, ours, theirs)
    assert pair.alice.endpoint.counters()["control_retransmits"] >= 1
    assert not pair.alice.completions


def test_the_configuration_of_the_bench_is_the_engines_own():
    """The defaults that the cases above lean on."""
    config = EndpointConfig()
    assert (config.retries, config.inline, config.window, config.max_rd_atomic) == (7, 256, 2048, 16)
