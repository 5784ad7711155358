"""Every number that wraps: PSN (24 bits), DSN, CSN, message and READ numbers, totals (32 bits), and every comparison of
one at its two ends.

Known from other stacks: subtraction that does not wrap, a bound on unacknowledged PSNs that is off, an assertion on an
ACK for the future.
"""

from __future__ import annotations

import random

import pytest

from tests.helpers import Pair, Wire, data_packets, forge, forge_control
from tests.transport.test_queue_pair import connect_at, expose, outcome, pair_of
from transport.clock import MS, US
from transport.control import Ack, Close, Nack, RecvAdvert, Reject
from transport.ledger import DUPLICATE, NEW, OUTSIDE, Ledger
from transport.packet import CONTROL, DATAGRAM
from transport.sequence import unwrap

WRAP = 1 << 32


@pytest.mark.parametrize("first", [0, 1, 1000, WRAP - 2, WRAP, WRAP + 5])
@pytest.mark.parametrize("window", [16, 64, 2048])
def test_both_ends_of_the_receive_window_are_exact(first, window):
    """The sender may be a window ahead of the edge, and repeats at most what lies a window behind it."""
    ledger = Ledger(first, window)
    for sequence in range(first, first + window):
        assert ledger.classify(unwrap(sequence % WRAP, ledger.edge)) == NEW
    assert ledger.classify(unwrap((first + window) % WRAP, ledger.edge)) == OUTSIDE
    for sequence in range(first, first + window):
        ledger.record(sequence, 1, False)
    assert ledger.edge == first + window
    assert ledger.classify(unwrap(first % WRAP, ledger.edge)) == DUPLICATE
    assert ledger.classify(unwrap((first - 1) % WRAP, ledger.edge)) == OUTSIDE
    assert ledger.classify(unwrap((first + 2 * window - 1) % WRAP, ledger.edge)) == NEW
    assert ledger.classify(unwrap((first + 2 * window) % WRAP, ledger.edge)) == OUTSIDE


@pytest.mark.parametrize("edge", [0, 127, 5000, WRAP - 64])
def test_both_ends_of_the_control_window_are_exact(edge):
    """128 packets of reliable control may be outstanding: 127 behind a missing one are taken, and so is the repeat of
    the oldest when all of them have come."""
    pair = pair_of()
    ours, theirs = connect_at(pair, 0, edge, 0)
    dropped = "dropped_outside_window"

    def arrive(offset: int) -> dict[str, int]:
        packet = forge_control(ours, CONTROL, RecvAdvert(0, ()), (edge + offset) % WRAP)
        pair.bob.endpoint.receive(packet, pair.now)
        return pair.bob.endpoint.counters()

    assert arrive(128)[dropped] == 1
    assert arrive(127)[dropped] == 1
    for offset in range(127):
        assert arrive(offset)[dropped] == 1
    assert theirs.channel.edge_in == edge + 128
    assert arrive(0)["control_duplicates"] == 1
    assert arrive(0)[dropped] == 1
    assert arrive(-1)[dropped] == 2
    assert arrive(255)[dropped] == 2
    assert arrive(256)[dropped] == 3


@pytest.mark.parametrize("below", [0, 1, 3, 10])
def test_message_receive_and_read_numbers_wrap(below):
    pair = pair_of(wire=Wire(loss=0.05, duplicate=0.1, jitter=30 * US))
    ours, theirs = pair.connect()
    start = WRAP - below
    theirs.receiver.head = theirs.receiver.advertised = ours.sender.starter.next_advert = start
    ours.sender.starter.next_read = start
    target, region = expose(theirs, 4096)
    target[:] = random.Random(2).randbytes(4096)
    inboxes, reads = [bytearray(9000) for _ in range(20)], [bytearray(4096) for _ in range(10)]
    for number, buffer in enumerate(inboxes):
        theirs.post_recv(pair.now, 100 + number, buffer)
    for number in range(20):
        ours.post_send(pair.now, number, bytes([number + 1]) * (100 if number % 2 else 9000))
    for number, read in enumerate(reads):
        ours.post_read(pair.now, 20 + number, read, region.address, region.rkey)
    pair.drive_messages(30)
    assert outcome(pair.alice, ours) == [(number, "SUCCESS") for number in range(30)]
    assert outcome(pair.bob, theirs) == [(100 + number, "SUCCESS") for number in range(20)]
    for number, buffer in enumerate(inboxes):
        size = 100 if number % 2 else 9000
        assert buffer == bytes([number + 1]) * size + bytes(9000 - size)
    assert all(read == target for read in reads)
    assert theirs.receiver.head == start + 20


@pytest.mark.parametrize("below", [0, 1, 2, 5])
def test_an_overlong_send_whose_number_wraps_fails_itself_and_no_other(below):
    pair = pair_of()
    ours, theirs = pair.connect()
    start = WRAP - below
    theirs.receiver.head = theirs.receiver.advertised = ours.sender.starter.next_advert = start
    for number in range(8):
        theirs.post_recv(pair.now, 100 + number, bytearray(8))
    for number in range(8):
        ours.post_send(pair.now, number, bytes(9 if number == 5 else 8))
    pair.drive()
    assert outcome(pair.alice, ours) == [
        *((number, "SUCCESS") for number in range(5)), (5, "REM_INV_REQ_ERR"), (6, "WR_FLUSH_ERR"),
        (7, "WR_FLUSH_ERR"),
    ]  # fmt: skip


@pytest.mark.parametrize("before", [0, WRAP - 2, WRAP - 1])
def test_the_receivers_total_of_duplicates_wraps_and_each_is_counted_once(before):
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 16)
    theirs.receiver.ledger.duplicates = before
    ours.recovery.duplicates = before
    ours.post_write(pair.now, 0, bytes(8 * 4096), region.address, region.rkey)
    pair.drive()
    for packet in data_packets(pair.sent)[:4]:
        pair.inject(packet.copy())
        pair.drive()
    ours.post_write(pair.now, 1, b"x", region.address, region.rkey)
    pair.drive()
    assert pair.bob.endpoint.counters()["duplicates"] == 4
    assert pair.alice.endpoint.counters()["spurious"] == 4


def outstanding_ten(at: int = 0):
    """Ten segments out, none of which arrived."""
    pair = pair_of()
    ours, theirs = connect_at(pair, at, 7, 5)
    _, region = expose(theirs, 1 << 20)
    pair.wire.touch = lambda now, packet: None
    ours.post_write(pair.now, 1, bytes(10 * 4096), region.address, region.rkey)
    pair.flush()
    pair.wire.touch = None
    pair.now += 50 * US
    return pair, ours, theirs, region


@pytest.mark.parametrize("at", [0, WRAP - 5, WRAP - 10])
def test_each_kind_of_answer_ends_at_the_last_number_that_was_sent(at):
    """NACK and REJECT of the last outstanding segment are believed, of the next one counted and dropped."""
    for offset, dropped in ((10, 1), (-1, 1), (200, 1), (9, 0)):
        for name in ("dropped_bad_control", "dropped_bad_reject"):
            pair, ours, theirs, region = outstanding_ten(at)
            seq = (at + offset) % WRAP
            answer = Nack(seq, 5 + offset, 0xC000)
            if name == "dropped_bad_reject":
                answer = Reject(seq, region.rkey, region.address + offset * 4096, 10)
            pair.alice.endpoint.receive(forge_control(theirs, DATAGRAM, answer), pair.now)
            assert pair.alice.endpoint.counters()[name] == dropped, (name, offset)
            assert (ours.sender.in_flight < 10 * 4096) == (not dropped), (name, offset)


@pytest.mark.parametrize("at", [0, WRAP - 5, WRAP - 10])
@pytest.mark.parametrize(("trigger", "sampled"), [(9, True), (10, False), (-1, False), (200, False)])
def test_a_round_trip_is_taken_from_no_trigger_that_was_never_sent(at, trigger, sampled):
    pair, ours, theirs, _ = outstanding_ten(at)
    last = next(packet for packet in data_packets(pair.sent) if packet.seq == (at + 9) % WRAP)
    ack = Ack()
    ack.edge = ack.base = at % WRAP
    ack.control_edge = ours.channel.una & 0xFFFFFFFF
    ack.trigger_seq, ack.trigger_psn, ack.trigger_entropy = (at + trigger) % WRAP, last.psn, last.entropy
    pair.alice.endpoint.receive(forge_control(theirs, DATAGRAM, ack), pair.now)
    assert (ours.context.paths.srtt > 0) == sampled
    assert ours.sender.in_flight == 10 * 4096


def test_a_sequence_half_the_space_away_is_neither_new_nor_a_duplicate():
    pair = pair_of()
    ours, theirs = connect_at(pair, 0x7FFFFFF0, 0, 0)
    target, region = expose(theirs, 64)
    for distance in (1 << 31, (1 << 31) - 1, (1 << 31) + 1):
        packet = forge(ours, 0x7FFFFFF0 + distance, b"\xee" * 8, region.rkey, region.address)
        pair.bob.endpoint.receive(packet, pair.now)
    assert pair.bob.endpoint.counters()["dropped_outside_window"] == 3
    assert not any(target)


@pytest.mark.parametrize("waiting", [0, 1, 5])
def test_a_close_names_numbers_above_every_one_that_was_used_its_own_too(waiting):
    pair = pair_of()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 16)
    for number in range(waiting):
        theirs.post_recv(pair.now, number, bytearray(8))
        ours.post_recv(pair.now, number, bytearray(8))
        ours.post_write(pair.now, 10 + number, bytes(5000), region.address, region.rkey)
    ours.close(pair.now)
    pair.drive(limit=100 * MS)
    sent = [packet for packet in pair.sent if packet.src_qpn == ours.qpn]
    closes = [packet for packet in sent if isinstance(packet.control, Close)]
    control = [packet.seq for packet in sent if packet.kind == CONTROL]
    final = closes[0].control
    assert final.final_csn == (closes[0].seq + 1) & 0xFFFFFFFF
    assert all((final.final_csn - seq) & 0xFFFFFFFF in range(1, 1000) for seq in control)
    assert all((final.final_dsn - packet.seq) & 0xFFFFFFFF in range(1, 1000) for packet in data_packets(sent))


def test_psns_run_through_their_whole_wrap_with_runs_across_it():
    pair = Pair(control="fixed", max_run=8, paths=1)
    ours, theirs = connect_at(pair, WRAP - 20, 0, 0xFFFFFF - 20)
    target, region = expose(theirs, 64 * 4096)
    source = random.Random(3).randbytes(64 * 4096)
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    pair.drive()
    assert target == source
    numbers = [(packet.psn + i) & 0xFFFFFF for packet in data_packets(pair.sent) for i in range(packet.count)]
    assert numbers == [(0xFFFFFF - 20 + i) & 0xFFFFFF for i in range(64)]
    assert pair.alice.endpoint.counters()["retransmits"] == 0
