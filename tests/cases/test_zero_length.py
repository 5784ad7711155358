"""Nothing is a length too: messages, receives and streams of 0 bytes use sequence numbers, complete, and upset nobody.

Known from other stacks: the PSN does not move, the send loop is never entered, an empty list means 2**31 bytes.
"""

from __future__ import annotations

import pytest

from tests.helpers import CAPS, Pair, Wire, data_packets
from tests.transport.test_queue_pair import expose, outcome, pair_of
from transport.clock import US
from transport.completion import Status
from transport.nic.loopback import LoopbackNic, Network
from transport.packet import CE, DATA, Packet
from transport.placement import Access


@pytest.mark.parametrize("max_run", [1, 64])
def test_each_empty_write_takes_one_psn_and_one_dsn_among_full_ones(max_run):
    pair = pair_of(max_run=max_run)
    ours, theirs = pair.connect()
    target, region = expose(theirs, 8192)
    psn, dsn = ours.context.psn, ours.sender.next
    for number in range(20):
        size = 4096 if number % 2 else 0
        ours.post_write(pair.now, number, bytes([number]) * size, region.address + size, region.rkey)
    pair.drive()
    packets = data_packets(pair.sent)
    assert [packet.count for packet in packets] == [1] * 20
    assert [(packet.psn - psn) & 0xFFFFFF for packet in packets] == list(range(20))
    assert [(packet.seq - dsn) & 0xFFFFFFFF for packet in packets] == list(range(20))
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(20)]
    assert target == bytes(4096) + bytes([19]) * 4096


@pytest.mark.parametrize("control", ["fixed", "dctcp", "swift", "nscc"])
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_control_survives_a_stream_of_empty_writes_all_marked_and_some_lost(control, loss):
    """Acknowledged, marked and lost bytes are 0, their packets are not: no share may be taken of nothing."""

    def mark(now: int, packet: Packet) -> Packet:
        if packet.kind == DATA:
            packet.ecn = CE
        return packet

    pair = Pair(control=control, wire=Wire(loss=loss, touch=mark))
    ours, _ = pair.connect()
    for number in range(400):
        ours.post_write(pair.now, number, b"", 0, 0)
    pair.drive_messages(400)
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(400)]
    assert pair.alice.endpoint.counters()["marked_packets"] > 0
    assert (pair.alice.endpoint.counters()["retransmits"] > 0) == (loss > 0)
    assert ours.sender.in_flight == 0
    assert ours.context.control.window >= 4096


def test_an_empty_write_fits_where_the_window_is_full_of_bytes_and_completes_after_them():
    pair = pair_of(control_parameters={"window_bytes": 4096})
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 16)
    ours.post_write(pair.now, 0, bytes(1 << 16), region.address, region.rkey)
    ours.post_write(pair.now, 1, b"", 0, 0)
    pair.drive()
    assert outcome(pair.alice, ours) == [(0, "SUCCESS"), (1, "SUCCESS")]


def test_phantom_nothing_is_nothing_and_not_everything():
    """A number as a buffer stands for that many bytes: 0 is none, in every verb and in a region."""
    pair = pair_of()
    ours, theirs = pair.connect()
    region = theirs.context.domain.register(0, Access.REMOTE_WRITE | Access.LOCAL_WRITE | Access.REMOTE_READ)
    assert region.length == 0
    theirs.post_recv(pair.now, 10, 0)
    theirs.post_recv(pair.now, 11, 0)
    ours.post_write(pair.now, 0, 0, region.address, region.rkey)
    ours.post_send(pair.now, 1, 0)
    ours.post_read(pair.now, 2, 0, region.address, region.rkey)
    ours.post_write(pair.now, 3, 0, region.address, region.rkey, imm=7)
    pair.drive()
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(4)]
    assert [(item.wr_id, item.byte_len) for item in pair.bob.results(theirs)] == [(10, 0), (11, 0)]
    assert pair.bob.endpoint.counters()["bytes_placed"] == 0


@pytest.mark.parametrize("inline", [0, 256])
def test_an_empty_send_completes_whether_it_may_travel_inline_or_not(inline):
    pair = pair_of(inline=inline)
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 9, bytearray(4))
    ours.post_send(pair.now, 1, b"", imm=3)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert [(item.byte_len, item.imm) for item in pair.bob.results(theirs)] == [(0, 3)]


def test_one_byte_into_an_empty_region_or_receive_is_refused():
    pair = pair_of()
    ours, theirs = pair.connect()
    region = theirs.context.domain.register(0, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
    ours.post_write(pair.now, 1, b"x", region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "REM_ACCESS_ERR")]
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 9, bytearray(0))
    ours.post_send(pair.now, 2, b"x")
    pair.drive()
    assert outcome(pair.alice, ours) == [(2, "REM_INV_REQ_ERR")]
    assert pair.bob.results(theirs)[0].status == Status.LOC_LEN_ERR


def test_an_empty_packet_takes_the_time_of_its_headers_on_a_link():
    network = Network(CAPS.rate, US, start=0)
    near, far = LoopbackNic(network, bytes([10, 0, 0, 1])), LoopbackNic(network, bytes([10, 0, 0, 2]))
    packet = Packet()
    packet.src, packet.dst = near.address, far.address
    assert near.send([packet]) == 1
    near.wait(None)
    assert far.now() == US + 64 * 8 * 10
    assert [item.length for item in far.receive(8)] == [0]
