"""docs/placement.md as tests: one named test a rule, P1 to P9, and the segmentation vectors of RFC 5041."""

from __future__ import annotations

import gc
import random
import re
import sys
import types
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Pair, Wire, data_packets, forge
from transport.clock import US
from transport.completion import Opcode, Status
from transport.connection import Connection
from transport.control import OP_SEND, Msg, Reject
from transport.errors import ConfigError
from transport.ledger import NEW, Ledger
from transport.packet import CONTROL, DATA, DATAGRAM, Packet
from transport.placement import Access, MemoryRegion, ProtectionDomain
from transport.states import State

LOCAL, WRITE, READ, ATOMIC = Access.LOCAL_WRITE, Access.REMOTE_WRITE, Access.REMOTE_READ, Access.REMOTE_ATOMIC
WRITABLE = LOCAL | WRITE
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "placement.md"


def pair_of(**config) -> Pair:
    """A pair without congestion control, so that only placement decides."""
    return Pair(**{"control": "fixed", "control_parameters": {"window_bytes": 1 << 24}, "max_run": 64, **config})


def expose(connection: Connection, size: int, access: Access = WRITABLE) -> tuple[bytearray, MemoryRegion]:
    buffer = bytearray(size)
    return buffer, connection.context.domain.register(buffer, access)


def captured(pair: Pair, source: Connection) -> list[Packet]:
    """The data, segment by segment, and reliable control that `source` has to send now, taken off the wire."""
    packets: list[Packet] = []
    while got := source.endpoint.poll_transmit(pair.now, 64):
        packets += got
    for packet in packets:
        packet.detach()
    return [packet.split(i, 1) for packet in packets for i in range(packet.count) if packet.kind != DATAGRAM]


def advertised(pair: Pair, ours: Connection) -> None:
    """Run until the receives posted so far are known to `ours`."""
    pair.drive()
    assert ours.sender.starter.adverts


# P1: segmentation


def expected_segments(length: int, mtu: int) -> list[tuple[int, int]]:
    """Offset and length of each segment, written down independently of the engine."""
    if length == 0:
        return [(0, 0)]
    return [(offset, min(mtu, length - offset)) for offset in range(0, length, mtu)]


@pytest.mark.parametrize("max_run", [1, 3, 64])
@pytest.mark.parametrize("start", [0, 1, 7, 4095])
@pytest.mark.parametrize("mtu", [256, 4096])
@pytest.mark.parametrize(
    "case", ["0", "1", "mtu - 1", "mtu", "mtu + 1", "2 * mtu - 1", "2 * mtu", "2 * mtu + 1", "7 * mtu + 3"]
)
def test_p1_a_message_is_cut_into_segments_that_each_say_where_they_go(case, mtu, start, max_run):
    length = eval(case, {"mtu": mtu})
    pair = pair_of(mtu=mtu, max_run=max_run)
    ours, theirs = pair.connect()
    source = random.Random(length).randbytes(length)
    target, region = expose(theirs, length + start + 9)
    first = ours.sender.next
    ours.post_write(pair.now, 1, source, region.address + start, region.rkey)
    pair.drive()
    packets = data_packets(pair.sent)
    segments = [
        (packet.address + i * packet.segment - region.address - start, packet.segment_length(i))
        for packet in packets
        for i in range(packet.count)
    ]
    assert segments == expected_segments(length, mtu)
    assert [packet.seq + i for packet in packets for i in range(packet.count)] == [
        first + i & 0xFFFFFFFF for i in range(len(segments))
    ]
    assert [packet.solicited for packet in packets] == [False] * (len(packets) - 1) + [True]
    assert max(packet.count for packet in packets) == min(max_run, len(segments))
    assert target == bytes(start) + source + bytes(9)
    assert ours.sender.next == first + len(segments)
    assert [item.status for item in pair.alice.completions] == [Status.SUCCESS]


def test_p1_the_example_of_rfc_5041_section_5_2():
    """2048 bytes to tagged offset 16384, 1486 of them in a segment (MULPDU 1500 less 14 of header)."""
    pair = pair_of()
    ours, theirs = pair.connect()
    ours.context.segment = theirs.context.segment = 1486
    theirs.context.domain.next_address = 16384
    target, region = expose(theirs, 2048)
    source = random.Random(5041).randbytes(2048)
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    segments = captured(pair, ours)
    assert [(packet.address, packet.length, packet.solicited) for packet in segments] == [
        (16384, 1486, False),
        (17870, 562, True),
    ]
    for packet in segments:
        pair.bob.endpoint.receive(packet, pair.now)
    assert target == source


@pytest.mark.parametrize(
    ("length", "segment", "last"),
    [(1 << 32, 4096, 4096), ((1 << 32) - 1, 4096, 4095), (1 << 32, 256, 256), ((1 << 31) + 1, 1024, 1)],
)
def test_p1_a_message_of_four_gigabytes_ends_where_arithmetic_says(length, segment, last):
    """The middle is skipped: the last segments are sent as if all earlier ones had been acknowledged."""
    pair = pair_of(mtu=segment, max_run=1)
    ours, theirs = pair.connect()
    region = theirs.context.domain.register(length, WRITABLE)
    sender, start = ours.sender, ours.sender.next
    ours.post_write(pair.now, 1, length, region.address, region.rkey)
    first = captured(pair, ours)[0]
    assert (first.address, first.length) == (region.address, segment)
    work = sender.current
    count = (length + segment - 1) // segment
    assert (work.first, work.count) == (start, count)
    sender.abandon()
    sender.next = sender.una = start + count - 2
    work.sent = work.acked = count - 2
    sender.current = work
    ours.context.wake()
    tail = data_packets(captured(pair, ours))
    assert [packet.seq for packet in tail] == [start + count - 2 & 0xFFFFFFFF, start + count - 1 & 0xFFFFFFFF]
    assert [packet.length for packet in tail] == [segment, last]
    assert tail[-1].address + tail[-1].length == region.address + length
    assert [packet.solicited for packet in tail] == [False, True]
    assert sender.next == start + count


@pytest.mark.parametrize("length", [(1 << 32) + 1, -1])
def test_p1_a_longer_message_is_refused_when_posted(length):
    pair = pair_of()
    ours, _ = pair.connect()
    with pytest.raises(ConfigError, match="length"):
        ours.post_write(pair.now, 1, length, 0, 0)


# P2: whose key


def test_p2_a_key_opens_its_protection_domain_only():
    pair = pair_of()
    ours, _ = pair.connect()
    others, _ = pair.connect()
    stranger = pair.bob.endpoint.protection_domain()
    target = bytearray(8)
    region = stranger.register(target, WRITABLE)
    ours.post_write(pair.now, 1, b"intruder", region.address, region.rkey)
    pair.drive()
    assert [item.status for item in pair.alice.results(ours)] == [Status.REM_ACCESS_ERR]
    assert target == bytes(8)
    assert pair.bob.endpoint.counters()["dropped_bad_key"] == 1
    assert others.state == State.RTS


def test_p2_two_connections_of_one_domain_share_its_keys():
    pair = pair_of()
    first, second = pair.bob.endpoint.protection_domain(), pair.alice.endpoint.protection_domain()
    target = bytearray(2)
    region = first.register(target, WRITABLE)
    for byte in range(2):
        ours = pair.alice.endpoint.create_connection(second, pair.now)
        theirs = pair.bob.endpoint.create_connection(first, pair.now)
        ours.connect(pair.now, theirs.parameters)
        theirs.connect(pair.now, ours.parameters)
        ours.post_write(pair.now, byte, bytes([7 + byte]), region.address + byte, region.rkey)
    pair.drive()
    assert target == b"\x07\x08"


def test_p2_the_key_of_a_posted_receive_opens_for_its_own_connection_only():
    pair = pair_of()
    domain = pair.bob.endpoint.protection_domain()
    connections = []
    for _ in range(2):
        ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
        theirs = pair.bob.endpoint.create_connection(domain, pair.now)
        ours.connect(pair.now, theirs.parameters)
        theirs.connect(pair.now, ours.parameters)
        connections.append((ours, theirs))
    (first, theirs), (second, _) = connections
    buffer = bytearray(400)
    theirs.post_recv(pair.now, 1, buffer)
    advertised(pair, first)
    receive = first.sender.starter.adverts[0][1]
    second.post_write(pair.now, 2, b"x" * 400, receive.address, receive.rkey)
    pair.drive()
    assert [item.status for item in pair.alice.results(second)] == [Status.REM_ACCESS_ERR]
    assert buffer == bytes(400)
    first.post_send(pair.now, 3, b"y" * 400)
    pair.drive()
    assert buffer == b"y" * 400


def test_p2_keys_cannot_be_told_from_one_another():
    domain = Pair().bob.endpoint.protection_domain()
    keys = [domain.register(8, WRITABLE).rkey for _ in range(64)]
    assert len(set(keys)) == 64
    assert all(2 <= key < 1 << 32 for key in keys)
    assert len({right - left for left, right in pairwise(keys)}) == 63


# P3: zero length


@pytest.mark.parametrize("rkey", [0, 1, 0xFFFFFFFF])
@pytest.mark.parametrize("address", [0, (1 << 64) - 1])
def test_p3_zero_bytes_are_one_segment_and_no_key_is_looked_at(rkey, address):
    pair = pair_of()
    ours, theirs = pair.connect()
    psn, dsn = ours.context.psn, ours.sender.next
    ours.post_write(pair.now, 1, b"", address, rkey)
    pair.drive()
    assert [(packet.kind, packet.length, packet.count) for packet in pair.sent if packet.kind == DATA] == [(DATA, 0, 1)]
    assert [item.status for item in pair.alice.completions] == [Status.SUCCESS]
    assert ours.sender.next == dsn + 1
    assert data_packets(pair.sent)[0].psn == psn
    assert theirs.receiver.ledger.edge == dsn + 1
    assert pair.bob.endpoint.counters()["dropped_bad_key"] == 0


def test_p3_zero_byte_sends_reads_and_immediates_complete_too():
    pair = pair_of()
    ours, theirs = pair.connect()
    for number in range(3):
        theirs.post_recv(pair.now, 10 + number, bytearray(0))
    ours.post_send(pair.now, 0, b"")
    ours.post_write(pair.now, 1, b"", 0, 0, imm=5)
    ours.post_send(pair.now, 2, b"", imm=6)
    ours.post_read(pair.now, 3, bytearray(0), 0, 0)
    pair.drive()
    assert [(item.wr_id, item.status) for item in pair.alice.completions] == [(i, Status.SUCCESS) for i in range(4)]
    assert [(item.wr_id, item.byte_len, item.imm) for item in pair.bob.completions] == [
        (10, 0, None), (11, 0, 5), (12, 0, 6),
    ]  # fmt: skip


# P4: bounds, rights, wrap


def test_p4_regions_in_one_page_are_separate_to_the_byte():
    """Two regions of 64 bytes within one page of the user's memory: neither key reaches the other."""
    page = bytearray(4096)
    pair = pair_of()
    ours, theirs = pair.connect()
    domain = theirs.context.domain
    first = domain.register(memoryview(page)[0x100:0x140], WRITABLE)
    second = domain.register(memoryview(page)[0x200:0x240], WRITABLE)
    assert first.rkey != second.rkey
    assert (first.length, second.length) == (64, 64)
    for key, address, length in [
        (first.rkey, second.address, 64),
        (second.rkey, first.address, 64),
        (first.rkey, first.address, 65),
        (second.rkey, second.address, 65),
        (first.rkey, first.address - 1, 64),
        (first.rkey, first.address + 64, 1),
        (first.rkey, first.address + 63, 2),
    ]:
        pair.inject(forge(ours, ours.sender.next, b"\xee" * length, key, address))
        pair.drive()
        assert not any(page), (key, address, length)
    assert pair.bob.endpoint.counters()["dropped_bad_key"] == 7
    ours.post_write(pair.now, 1, b"a" * 64, first.address, first.rkey)
    ours.post_write(pair.now, 2, b"b", second.address + 63, second.rkey)
    pair.drive()
    assert page[0x100:0x140] == b"a" * 64
    assert page[0x23F:0x241] == b"b\0"
    assert [item.status for item in pair.alice.completions] == [Status.SUCCESS] * 2


TOP = 1 << 64


@pytest.mark.parametrize(
    ("address", "length", "allowed"),
    [
        (TOP - 4096, 4096, True),
        (TOP - 1, 1, True),
        (TOP - 4096, 1, True),
        (TOP - 4097, 1, False),
        (TOP - 4096, 4097, False),
        (TOP - 1, 2, False),
        (TOP - 100, 200, False),
        (0, 1, False),
        (0, 4096, False),
        (TOP - 4096, 1 << 32, False),
        (1, (1 << 32) - 1, False),
    ],
)
def test_p4_nothing_wraps_at_the_end_of_the_address_space(address, length, allowed):
    domain = ProtectionDomain(random.Random(1))
    domain.next_address = TOP - 4096
    region = domain.register(4096, WRITABLE)
    assert (domain.find(region.rkey, address, length, int(WRITE), 5) is region) == allowed


@pytest.mark.parametrize("operation", ["write", "read"])
def test_p4_a_request_over_the_end_of_the_address_space_is_refused_when_posted(operation):
    pair = pair_of()
    ours, _ = pair.connect()
    post = ours.post_write if operation == "write" else ours.post_read
    with pytest.raises(ConfigError, match=r"remote_address = .* 2\*\*64"):
        post(pair.now, 1, bytearray(5000), TOP - 4999, 7)
    assert not ours.sender.queue
    post(pair.now, 2, bytearray(5000), TOP - 5000, 7)  # the responder's to refuse
    pair.drive()
    assert [(item.wr_id, item.status) for item in pair.alice.completions] == [(2, Status.REM_ACCESS_ERR)]


RIGHTS = [
    access
    for access in (Access(value) for value in range(16))
    if access & LOCAL or not access & (WRITE | ATOMIC)
]  # fmt: skip
NEEDED = {"write": WRITE, "write_imm": WRITE, "read": READ, "fetch_add": ATOMIC, "cmp_swap": ATOMIC}


@pytest.mark.parametrize("operation", NEEDED)
@pytest.mark.parametrize("access", RIGHTS, ids=lambda access: repr(access))
def test_p4_each_operation_needs_its_own_right(access, operation):
    pair = pair_of()
    ours, theirs = pair.connect()
    memory, region = expose(theirs, 16, access)
    now, here = pair.now, bytearray(8)
    if operation == "write":
        ours.post_write(now, 1, b"8 bytes!", region.address, region.rkey)
    elif operation == "write_imm":
        theirs.post_recv(now, 2, bytearray(0))
        ours.post_write(now, 1, b"8 bytes!", region.address, region.rkey, imm=1)
    elif operation == "read":
        memory[:8] = b"8 bytes!"
        ours.post_read(now, 1, here, region.address, region.rkey)
    elif operation == "fetch_add":
        ours.post_fetch_add(now, 1, region.address, region.rkey, int.from_bytes(b"8 bytes!", sys.byteorder))
    else:
        ours.post_cmp_swap(now, 1, region.address, region.rkey, 0, int.from_bytes(b"8 bytes!", sys.byteorder))
    pair.drive()
    status = pair.alice.completions[0].status
    if access & NEEDED[operation]:
        assert status == Status.SUCCESS
        assert (here if operation == "read" else memory[:8]) == b"8 bytes!"
        assert ours.state == theirs.state == State.RTS
    else:
        assert status == Status.REM_ACCESS_ERR
        assert ours.state == State.ERR
        assert not any(here)
        assert operation == "read" or not any(memory)
        assert not [item for item in pair.bob.completions if item.status == Status.SUCCESS]


@pytest.mark.parametrize("access", [WRITE, ATOMIC, WRITE | READ, READ | ATOMIC])
def test_p4_remote_writes_need_the_local_right_too(access):
    domain = Pair().bob.endpoint.protection_domain()
    with pytest.raises(ConfigError, match="need LOCAL_WRITE"):
        domain.register(bytearray(8), access)


def test_p4_read_only_memory_is_only_ever_read():
    domain = Pair().bob.endpoint.protection_domain()
    assert domain.register(b"constant", READ).length == 8
    with pytest.raises(ConfigError, match="read-only"):
        domain.register(b"constant", WRITABLE)


def test_p4_a_run_is_validated_whole_before_its_first_byte_is_placed():
    pair = pair_of(mtu=256)
    ours, theirs = pair.connect()
    target, region = expose(theirs, 4 * 256 - 1)
    ours.post_write(pair.now, 1, b"\xee" * 1024, region.address, region.rkey)
    pair.drive()
    assert not any(target)
    assert [item.status for item in pair.alice.completions] == [Status.REM_ACCESS_ERR]


# P5: place in any order, buffer nothing


def payload_bytes_kept(endpoint: object, pattern: bytes, besides: object) -> int:
    """How many buffers that hold `pattern` can be reached from `endpoint`, the destination not counted."""
    seen: set[int] = {id(besides)}
    todo = [endpoint]
    kept = 0
    skipped = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, skipped):
            continue
        seen.add(id(thing))
        if isinstance(thing, (bytes, bytearray)):
            kept += pattern in thing
        elif isinstance(thing, memoryview):
            todo.append(thing.obj)
        else:
            todo += gc.get_referents(thing)
    return kept


class Payload(bytearray):
    """Received bytes that can be watched."""


@given(order=st.permutations(range(12)), size=st.integers(11 * 256 + 1, 12 * 256))
def test_p5_each_segment_is_placed_on_arrival_in_any_order_and_none_is_kept(order, size):
    pair = pair_of(mtu=256)
    ours, theirs = pair.connect()
    target, region = expose(theirs, size)
    source = random.Random(size).randbytes(size)
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    segments = captured(pair, ours)
    expected = bytearray(size)
    for index in order:
        packet = segments[index]
        start = 256 * index
        payload = Payload(packet.payload)
        alive = weakref.ref(payload)
        packet.payload = payload
        pair.bob.endpoint.receive(packet, pair.now)
        expected[start : start + packet.length] = source[start : start + packet.length]
        assert target == expected  # at once, not when the gaps before it are filled
        segments[index] = packet = payload = None
        assert alive() is None  # nobody holds the received buffer
    assert target == source


def test_p5_a_receiver_with_a_thousand_segments_after_a_gap_holds_none_of_their_bytes():
    pair = pair_of(window=2048)
    ours, theirs = pair.connect()
    size = 4096 * 1000
    target, region = expose(theirs, size)
    pattern = bytes(range(1, 17))
    theirs.receiver.answers.append(bytearray(pattern))
    assert payload_bytes_kept(pair.bob.endpoint, pattern, target) == 1  # the search finds what is kept
    theirs.receiver.answers.clear()
    ours.post_write(pair.now, 1, pattern * (size // 16), region.address, region.rkey)
    segments = [packet for packet in captured(pair, ours) if packet.kind == DATA]
    for packet in segments[1:]:
        pair.bob.endpoint.receive(packet, pair.now)
    del segments[1:], packet
    assert pair.bob.endpoint.counters()["bytes_placed"] == size - 4096
    assert payload_bytes_kept(pair.bob.endpoint, pattern, target) == 0
    pair.bob.endpoint.receive(segments.pop(), pair.now)
    assert target == pattern * (size // 16)


# P6: deliver once, in order, when everything is in


@given(data=st.data(), sizes=st.lists(st.sampled_from([0, 1, 100, 300, 900]), min_size=1, max_size=5))
def test_p6_messages_are_delivered_once_in_order_when_they_and_all_before_them_are_in(data, sizes):
    pair = pair_of(mtu=256, max_run=1)
    ours, theirs = pair.connect()
    buffers = [bytearray(1000) for _ in sizes]
    for number, buffer in enumerate(buffers):
        theirs.post_recv(pair.now, number, buffer)
    advertised(pair, ours)
    for number, size in enumerate(sizes):
        ours.post_send(pair.now, number, bytes([number + 1]) * size)
    packets = captured(pair, ours)
    announced = {packet.control.number: packet for packet in packets if isinstance(packet.control, Msg)}
    assert sorted(announced) == list(range(len(sizes)))
    start = ours.sender.next - sum(packet.kind == DATA for packet in packets)
    delivered: list[int] = []
    arrived: set[int] = set()
    told: set[int] = set()
    plan = data.draw(st.permutations(packets)) + data.draw(st.lists(st.sampled_from(packets), max_size=5))
    for packet in plan:
        pair.bob.endpoint.receive(packet, pair.now)
        if packet.kind == DATA:
            arrived.add(packet.seq - start & 0xFFFFFFFF)
        else:
            told.add(packet.control.number)
        edge = 0
        while edge in arrived:
            edge += 1
        ready = 0
        while ready in told and edge >= (announced[ready].control.first - start & 0xFFFFFFFF) + (
            announced[ready].control.count
        ):
            ready += 1
        while (completion := pair.bob.endpoint.poll_completion()) is not None:
            assert (completion.status, completion.byte_len) == (Status.SUCCESS, sizes[completion.wr_id])
            assert buffers[completion.wr_id] == bytes([completion.wr_id + 1]) * completion.byte_len + bytes(
                1000 - completion.byte_len
            )
            delivered.append(completion.wr_id)
        assert delivered == list(range(ready))
    assert delivered == list(range(len(sizes)))


@pytest.mark.parametrize("max_run", [1, 64])
def test_p6_a_flag_behind_data_is_seen_only_when_all_of_it_is_placed(max_run):
    """64 writes over 8 paths, one path 50 us slower, then an immediate, a SEND, an atomic and a READ."""
    late: list[int] = []

    def slow_path(now: int, packet: Packet) -> Packet:
        if packet.kind == DATA and packet.entropy == ours.context.paths.paths[3].entropy:
            late.append(packet.seq)
        return packet

    pair = pair_of(paths=8, selector="round_robin", max_run=max_run, mtu=1024)
    ours, theirs = pair.connect()
    pair.wire.touch = slow_path
    enter = pair._enter

    def delayed(host, packet):
        slow = packet.kind == DATA and packet.entropy == ours.context.paths.paths[3].entropy
        pair.wire.delay = 55 * US if slow else 5 * US
        enter(host, packet)

    pair._enter = delayed
    target, region = expose(theirs, 64 * 2048 + 8, LOCAL | WRITE | READ | ATOMIC)
    source = random.Random(14).randbytes(64 * 2048)
    theirs.post_recv(pair.now, 100, bytearray(0))
    theirs.post_recv(pair.now, 101, bytearray(8))
    flag, seen = region.address + 64 * 2048, []

    def look(host, completion):
        if host is pair.bob:
            seen.append((completion.wr_id, target[: 64 * 2048] == source))

    pair.on_completion = look
    pair.drive()
    for number in range(64):
        piece = source[2048 * number : 2048 * (number + 1)]
        ours.post_write(pair.now, number, piece, region.address + 2048 * number, region.rkey)
    ours.post_write(pair.now, 64, b"", 0, 0, imm=1)
    ours.post_send(pair.now, 65, b"flag")
    ours.post_fetch_add(pair.now, 66, flag, region.rkey, 1)
    reply = bytearray(64 * 2048)
    ours.post_read(pair.now, 67, reply, region.address, region.rkey)
    flagged: list[bool] = []
    pair.drive(lambda: any(target[64 * 2048 :]) and (flagged.append(target[: 64 * 2048] == source) or True))
    pair.drive()
    assert late
    assert seen == [(100, True), (101, True)]
    assert flagged == [True]
    assert reply == source
    assert [item.wr_id for item in pair.alice.completions] == list(range(68))


def test_p6_completion_comes_from_the_ledger_not_from_the_last_byte():
    pair = pair_of(mtu=256, max_run=1)
    ours, theirs = pair.connect()
    buffer = bytearray(1024)
    theirs.post_recv(pair.now, 1, buffer)
    advertised(pair, ours)
    ours.post_send(pair.now, 1, b"\x09" * 1024)
    packets = captured(pair, ours)
    data = [packet for packet in packets if packet.kind == DATA]
    announcement = next(packet for packet in packets if packet.kind == CONTROL)
    for packet in [announcement, data[3], data[2], data[0]]:
        pair.bob.endpoint.receive(packet, pair.now)
    assert buffer[-1] == 9
    assert pair.bob.endpoint.poll_completion() is None
    pair.bob.endpoint.receive(data[1], pair.now)
    assert pair.bob.endpoint.poll_completion().byte_len == 1024


# P7: deregistration


@pytest.mark.parametrize("max_run", [1, 64])
def test_p7_deregistration_stops_placement_at_once_with_packets_on_their_way(max_run):
    pair = pair_of(max_run=max_run, wire=Wire(rate=10_000_000_000))
    ours, theirs = pair.connect()
    target, region = expose(theirs, 1 << 20)
    ours.post_write(pair.now, 1, b"\xaa" * (1 << 20), region.address, region.rkey)
    pair.drive(lambda: pair.bob.endpoint.counters()["bytes_placed"] >= 1 << 18)
    assert pair.flying
    region.deregister()
    before = bytes(target)
    assert before.count(0xAA) < 1 << 20
    pair.drive()
    assert target == before
    assert [item.status for item in pair.alice.completions] == [Status.REM_ACCESS_ERR]
    assert theirs.state == State.ERR  # told by the requester, which went to ERR
    assert pair.bob.endpoint.counters()["dropped_bad_key"] > 0


def test_p7_the_memory_is_the_users_own_again_when_deregister_returns():
    pair = pair_of()
    _, theirs = pair.connect()
    target, region = expose(theirs, 64)
    with pytest.raises(BufferError):
        target.extend(b"more")  # exported: it cannot move
    region.deregister()
    target.extend(b"more")
    region.deregister()  # again: no harm


@pytest.mark.parametrize("which", ["the first segments", "retransmissions", "the tail probe"])
def test_p7_a_deregistered_region_is_not_read_any_more_either(which):
    window = 64 * 4096 if which == "the first segments" else 1 << 24
    pair = pair_of(max_run=1, control_parameters={"window_bytes": window})
    ours, theirs = pair.connect()
    memory, region = expose(theirs, 1 << 19, READ)
    memory[:] = b"\x55" * len(memory)
    here = bytearray(1 << 19)
    sent: list[int] = []

    def lose(now: int, packet: Packet) -> Packet | None:
        if packet.kind != DATA:
            return packet
        sent.append(packet.seq)
        lost = {"retransmissions": len(sent) in (20, 40), "the tail probe": 120 < len(sent) <= 128}
        return None if lost.get(which) else packet

    pair.wire.touch = lose
    ours.post_read(pair.now, 1, here, region.address, region.rkey)
    pair.drive(lambda: len(sent) >= (64 if which == "the first segments" else 128))
    region.deregister()
    memory[:] = b"\x66" * len(memory)  # of its next user
    pair.drive()
    assert 0x66 not in here
    assert 0x55 in here
    assert [(item.wr_id, item.status) for item in pair.alice.completions] == [(1, Status.REM_ACCESS_ERR)]


def test_p7_the_key_of_a_receive_is_dead_before_its_completion_is_seen():
    pair = pair_of()
    ours, theirs = pair.connect()
    buffer = bytearray(1000)
    theirs.post_recv(pair.now, 1, buffer)
    advertised(pair, ours)
    receive = ours.sender.starter.adverts[0][1]
    keys = []
    pair.on_completion = lambda host, completion: keys.append(theirs.context.domain.table.get(receive.rkey))
    ours.post_send(pair.now, 2, b"s" * 1000)
    pair.drive()
    assert keys[0] is None
    buffer[:] = b"reused" + bytes(994)
    pair.inject(forge(ours, ours.sender.next, b"late", receive.rkey, receive.address))
    pair.drive()
    assert buffer[:6] == b"reused"
    assert pair.bob.endpoint.counters()["dropped_bad_key"] == 1
    buffer.extend(b"and grown")


def test_p7_the_key_of_a_read_is_dead_before_its_completion_is_seen():
    pair = pair_of()
    ours, theirs = pair.connect()
    memory, region = expose(theirs, 1000, READ)
    memory[:] = b"r" * 1000
    here = bytearray(1000)
    ours.post_read(pair.now, 1, here, region.address, region.rkey)
    keys = []
    pair.on_completion = lambda host, completion: keys.append(ours.context.domain.table.get(answer.rkey))
    pair.drive(lambda: data_packets(pair.sent))
    answer = data_packets(pair.sent)[0]
    pair.drive()
    assert here == b"r" * 1000
    assert keys == [None]
    here[:4] = b"mine"
    pair.inject(forge(theirs, theirs.sender.next, b"late", answer.rkey, answer.address))
    pair.drive()
    assert here[:4] == b"mine"
    assert pair.alice.endpoint.counters()["dropped_bad_key"] == 1


# P8: late duplicates


class Forgetful(Ledger):
    """A ledger without the check: everything is new."""

    def classify(self, sequence: int) -> int:
        return NEW


def reused_after_a_late_duplicate(ledger: type[Ledger], operation: str, size: int) -> tuple[bytes, dict[str, int]]:
    """The application's reused buffer after a copy of a delivered message's packet came late."""
    pair = pair_of(max_run=1)
    ours, theirs = pair.connect()
    theirs.receiver.ledger = theirs.responder.ledger = ledger(ours.parameters.dsn, ours.context.window)
    target, region = expose(theirs, size)
    if operation == "write":
        ours.post_write(pair.now, 1, b"o" * size, region.address, region.rkey)
    else:
        theirs.post_recv(pair.now, 9, bytearray(0))
        ours.post_write(pair.now, 1, b"o" * size, region.address, region.rkey, imm=7)
    pair.drive()
    assert pair.alice.completions[0].status == Status.SUCCESS
    assert target == b"o" * size
    target[:] = b"n" * size
    acks = pair.bob.endpoint.counters()["acks_sent"]
    pair.inject(data_packets(pair.sent)[0].copy())
    pair.drive()
    counters = pair.bob.endpoint.counters()
    counters["acks_sent"] -= acks
    return bytes(target), counters


@pytest.mark.parametrize("size", [600, 100_000])
@pytest.mark.parametrize("operation", ["write", "write_imm"])
def test_p8_a_late_duplicate_is_acknowledged_and_never_placed(operation, size):
    target, counters = reused_after_a_late_duplicate(Ledger, operation, size)
    assert target == b"n" * size
    assert counters["duplicates"] == 1
    assert counters["acks_sent"] == 1


@pytest.mark.parametrize("size", [600, 100_000])
@pytest.mark.parametrize("operation", ["write", "write_imm"])
def test_p8_without_the_ledgers_check_the_reused_buffer_is_overwritten(operation, size):
    target, counters = reused_after_a_late_duplicate(Forgetful, operation, size)
    assert target[:4096] == b"o" * min(size, 4096)
    assert counters["duplicates"] == 0


def test_p8_a_run_that_is_half_new_places_only_the_new_half():
    pair = pair_of(mtu=256, max_run=8)
    ours, theirs = pair.connect()
    target, region = expose(theirs, 8 * 256)
    ours.post_write(pair.now, 1, b"\x01" * 2048, region.address, region.rkey)
    run = next(packet for packet in ours.endpoint.poll_transmit(pair.now, 64) if packet.kind == DATA)
    assert run.count == 8
    for part in (run.split(0, 1), run.split(2, 2), run.split(7, 1)):
        pair.bob.endpoint.receive(part, pair.now)
    for index in (0, 2, 3, 7):
        target[256 * index : 256 * (index + 1)] = b"\x09" * 256
    pair.bob.endpoint.receive(run, pair.now)
    assert target == b"".join(bytes([9 if index in (0, 2, 3, 7) else 1]) * 256 for index in range(8))
    assert pair.bob.endpoint.counters()["duplicates"] == 4


# P9: refusal


def test_p9_a_refused_segment_changes_nothing_at_the_responder():
    pair = pair_of()
    ours, theirs = pair.connect()
    target, region = expose(theirs, 16)
    edge, top = theirs.receiver.ledger.edge, theirs.receiver.ledger.top
    for _ in range(50):
        pair.inject(forge(ours, ours.sender.next, b"x" * 16, region.rkey ^ 1, region.address))
        pair.inject(forge(ours, ours.sender.next + 3, b"x" * 17, region.rkey, region.address))
    pair.drive()
    assert (theirs.receiver.ledger.edge, theirs.receiver.ledger.top) == (edge, top)
    assert theirs.state == ours.state == State.RTS
    assert not any(target)
    counters = pair.bob.endpoint.counters()
    assert counters["dropped_bad_key"] == 100
    assert counters["rejects_sent"] == 1  # the answers are rate-limited
    assert sum(isinstance(packet.control, Reject) for packet in pair.sent) == 1
    ours.post_write(pair.now, 1, b"y" * 16, region.address, region.rkey)
    pair.drive()
    assert target == b"y" * 16
    assert [item.status for item in pair.alice.completions] == [Status.SUCCESS]


def test_p9_a_requester_believes_a_refusal_only_of_what_it_really_sent():
    pair = pair_of(max_run=1)
    ours, theirs = pair.connect()
    _, region = expose(theirs, 3 * 4096)
    pair.wire.touch = lambda now, packet: None  # nothing arrives: all of it is outstanding
    ours.post_write(pair.now, 1, b"y" * 3 * 4096, region.address, region.rkey)
    start = ours.sender.next
    pair.flush()
    pair.wire.touch = None
    for seq, rkey, address in [
        (start + 3, region.rkey, region.address),  # never sent
        (start - 1, region.rkey, region.address),
        (start, region.rkey ^ 1, region.address),
        (start, region.rkey, region.address + 4096),  # another segment's
        (start + 1, region.rkey, region.address + 4096 + 1),
    ]:
        packet = forge(theirs, 0, b"", 0, 0)
        packet.kind, packet.control = 2, Reject(seq & 0xFFFFFFFF, rkey, address, Status.REM_ACCESS_ERR)
        pair.alice.endpoint.receive(packet, pair.now)
        assert ours.state == State.RTS, (seq - start, address - region.address)
    packet = forge(theirs, 0, b"", 0, 0)
    packet.kind, packet.control = (
        2,
        Reject(start + 1 & 0xFFFFFFFF, region.rkey, region.address + 4096, Status.REM_ACCESS_ERR),
    )
    pair.alice.endpoint.receive(packet, pair.now)
    assert ours.state == State.ERR
    completion = pair.alice.endpoint.poll_completion()
    assert (completion.wr_id, completion.status) == (1, Status.REM_ACCESS_ERR)


def test_p9_the_requester_of_a_refused_write_is_told_and_the_rest_is_flushed_in_order():
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 64)
    ours.post_write(pair.now, 1, b"a" * 64, region.address, region.rkey)
    pair.drive()
    ours.post_write(pair.now, 2, b"b" * 65, region.address, region.rkey)
    ours.post_write(pair.now, 3, b"c" * 64, region.address, region.rkey)
    ours.post_send(pair.now, 4, b"never")
    pair.drive()
    assert [(item.wr_id, item.status, item.opcode) for item in pair.alice.completions] == [
        (1, Status.SUCCESS, Opcode.RDMA_WRITE),
        (2, Status.REM_ACCESS_ERR, Opcode.RDMA_WRITE),
        (3, Status.WR_FLUSH_ERR, Opcode.RDMA_WRITE),
        (4, Status.WR_FLUSH_ERR, Opcode.SEND),
    ]
    assert "10.0.0.2" in pair.alice.completions[1].error
    assert "key, right or bounds" in pair.alice.completions[1].error


@pytest.mark.parametrize(
    "change",
    [
        {"length": 4097},
        {"count": 2, "length": 4096},  # a run whose last segment is empty
        {"count": 2, "length": 2 * 4096 + 1},
        {"count": 2, "segment": 1024, "length": 2048},
    ],
    ids=repr,
)
def test_p9_a_packet_whose_lengths_contradict_each_other_is_dropped(change):
    pair = pair_of()
    ours, theirs = pair.connect()
    target, region = expose(theirs, 3 * 4096)
    packet = forge(ours, ours.sender.next, b"\xee" * 3 * 4096, region.rkey, region.address)
    for name, value in change.items():
        setattr(packet, name, value)
    pair.bob.endpoint.receive(packet, pair.now)
    assert not any(target)
    assert pair.bob.endpoint.counters()["dropped_bad_length"] == packet.count


# The document


def test_every_rule_of_the_document_is_tested_here_and_cited_in_the_code():
    text = DOCUMENT.read_text()
    rules = re.findall(r"^\| (P\d) \|", text, re.MULTILINE)
    assert rules == [f"P{number}" for number in range(1, 10)]
    tests = [name for name in globals() if name.startswith("test_p")]
    for rule in rules:
        assert any(name.startswith(f"test_{rule.lower()}_") for name in tests), rule
    named = re.findall(r"`(test_p\d\w+)`", text)
    assert set(named) <= set(tests)
    assert {name[5:7].upper() for name in named} == set(rules)
    cited = set()
    for path in (DOCUMENT.parents[1] / "transport").glob("*.py"):
        cited |= set(re.findall(r"\bP\d\b", path.read_text()))
    assert cited == set(rules)


def test_a_send_message_names_the_receive_it_consumes():
    """The message number takes the place of RFC 5041's MSN: the receive is found by it, not by the order of arrival."""
    pair = pair_of(mtu=256)
    ours, theirs = pair.connect()
    for number in range(3):
        theirs.post_recv(pair.now, number, bytearray(300))
    advertised(pair, ours)
    for number in range(3):
        ours.post_send(pair.now, number, bytes([number]) * 300)
    announced = [packet.control for packet in captured(pair, ours) if isinstance(packet.control, Msg)]
    assert [(msg.number, msg.op, msg.count, msg.length) for msg in announced] == [
        (number, OP_SEND, 2, 300) for number in range(3)
    ]
