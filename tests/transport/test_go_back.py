"""Classic mode: one path, an in-order receiver, go-back-N."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ALICE, BOB, CAPS, Pair, Wire, data_packets, forge, forge_control
from tests.properties.test_delivery import Case, operations, wires
from tests.transport.test_queue_pair import expose, outcome, swallow_all_to
from transport.clock import US
from transport.config import EndpointConfig
from transport.control import OUT_OF_ORDER, TRIMMED, Ack, Nack
from transport.endpoint import Endpoint
from transport.errors import ConfigError, NegotiationError
from transport.packet import DATA, DATAGRAM, Packet

LINE = 100_000_000_000


def classic(seed: int = 1, wire: Wire | None = None, **config) -> Pair:
    """A Pair in classic mode with a constant window of two bandwidth-delay products."""
    constant = {"control": "fixed", "control_parameters": {"window_bdps": 2.0}}
    return Pair(seed, wire or Wire(rate=LINE), **{"mode": "classic", **constant, **config})


def transfer(pair: Pair, size: int) -> None:
    """One WRITE of `size` bytes; they are the same on both sides."""
    ours, theirs = pair.connect()
    source = random.Random(size).randbytes(size)
    target, region = expose(theirs, size)
    ours.post_write(pair.now, 1, source, region.address, region.rkey)
    pair.drive_messages(1)
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]
    assert target == source


def sent_by_alice(pair: Pair) -> list[int]:
    """DSNs of data in the order sent, counted from the first."""
    found = [packet.seq for packet in data_packets(pair.sent) if packet.src == ALICE]
    return [seq - found[0] & 0xFFFFFFFF for seq in found]


class Lose:
    """A wire that loses chosen ones: the n-th time that data segment `dsn` (counted from the first) passes, and the
    first `nacks` NACKs."""

    def __init__(self, *times: tuple[int, int], nacks: int = 0) -> None:
        self.times = set(times)
        self.nacks = nacks
        self.first = -1
        self.seen: dict[int, int] = {}

    def __call__(self, now: int, packet: Packet) -> Packet | None:
        if isinstance(packet.control, Nack) and self.nacks:
            self.nacks -= 1
            return None
        if packet.kind != DATA:
            return packet
        if self.first < 0:
            self.first = packet.seq
        dsn = packet.seq - self.first & 0xFFFFFFFF
        self.seen[dsn] = self.seen.get(dsn, 0) + 1
        return None if (dsn, self.seen[dsn]) in self.times else packet


def losing(*times: tuple[int, int], nacks: int = 0, **config) -> Pair:
    return classic(wire=Wire(rate=LINE, touch=Lose(*times, nacks=nacks)), **config)


# What is lost


def test_for_one_lost_segment_all_behind_it_are_sent_again_in_order():
    pair = losing((40, 1))
    transfer(pair, 100 * 4096)
    order = sent_by_alice(pair)
    again = order[40:].index(40, 1) + 40  # where it begins once more
    assert order[:again] == list(range(again))
    assert order[again:] == list(range(40, 100))
    ours, theirs = pair.alice.endpoint.counters(), pair.bob.endpoint.counters()
    assert ours["retransmits"] == again - 40 >= 2
    assert (ours["losses"], ours["go_backs"], ours["timeouts"]) == (1, 1, 0)
    # One NACK for the gap; what follows is dropped in silence, and none of it is placed twice.
    assert theirs["nacks_sent"] == 1
    assert theirs["dropped_out_of_order"] == ours["retransmits"] - 1
    assert theirs["duplicates"] == 0
    assert theirs["bytes_placed"] == 100 * 4096


def test_the_nack_names_the_segment_that_is_expected():
    pair = losing((7, 1))
    transfer(pair, 32 * 4096)
    (nack,) = [packet for packet in pair.sent if isinstance(packet.control, Nack)]
    first = data_packets(pair.sent)[0].seq
    (behind,) = {packet.psn for packet in data_packets(pair.sent)[8:9]}
    assert nack.src == BOB
    assert nack.control == Nack(first + 7 & 0xFFFFFFFF, behind, data_packets(pair.sent)[8].entropy, OUT_OF_ORDER)


def test_what_came_before_the_gap_is_acknowledged_with_the_nack():
    pair = losing((2, 1), ack_every=1 << 20)
    transfer(pair, 16 * 4096)
    first = data_packets(pair.sent)[0].seq
    answers = [packet.control for packet in pair.sent if packet.src == BOB]
    assert isinstance(answers[0], Ack)
    assert answers[0].edge - first & 0xFFFFFFFF == 2
    assert isinstance(answers[1], Nack)


def test_a_lost_nack_leaves_it_to_the_timeout():
    pair = losing((40, 1), nacks=1)
    start = pair.now
    transfer(pair, 60 * 4096)
    ours, theirs = pair.alice.endpoint.counters(), pair.bob.endpoint.counters()
    assert pair.now - start > pair.connections[0].context.rto_min
    assert (ours["timeouts"], ours["go_backs"], ours["tail_probes"]) == (1, 1, 0)
    assert ours["retransmits"] == 20
    assert theirs["nacks_sent"] == 1


def test_a_segment_that_is_lost_once_more_is_not_asked_for_twice():
    """IB spec 9.7.5: one NAK for a gap, however often what it asks for is lost."""
    pair = losing((40, 1), (40, 2))
    transfer(pair, 60 * 4096)
    assert pair.bob.endpoint.counters()["nacks_sent"] == 1
    assert pair.alice.endpoint.counters()["timeouts"] == 1
    assert pair.alice.endpoint.counters()["retransmits"] == 40


def test_the_last_segment_shows_no_gap_and_waits_for_the_timeout():
    pair = losing((19, 1))
    transfer(pair, 20 * 4096)
    assert pair.bob.endpoint.counters()["nacks_sent"] == 0
    assert pair.alice.endpoint.counters()["timeouts"] == 1
    assert pair.alice.endpoint.counters()["retransmits"] == 1


def test_a_trimmed_segment_is_a_lost_one():
    def trim(now: int, packet: Packet) -> Packet:
        if packet.kind == DATA and len(data_packets(pair.sent)) == 11:
            packet.trimmed = True
        return packet

    pair = classic(wire=Wire(rate=LINE, touch=trim))
    transfer(pair, 40 * 4096)
    ours, theirs = pair.alice.endpoint.counters(), pair.bob.endpoint.counters()
    assert theirs["trims_received"] == 1
    assert sent_by_alice(pair).count(10) == 2
    assert ours["retransmits"] > 2
    assert [p.control.reason for p in pair.sent if isinstance(p.control, Nack)] == [OUT_OF_ORDER]


@pytest.mark.parametrize("max_run", [1, 7, 64])
@pytest.mark.parametrize("control", ["dctcp", "swift", "nscc", "credit"])
def test_bytes_are_right_under_one_percent_loss_by_one_source_port_with_any_control(control, max_run):
    pair = classic(3, Wire(loss=0.01, rate=LINE), control=control, control_parameters={}, max_run=max_run)
    transfer(pair, 4 << 20)
    assert pair.alice.endpoint.counters()["go_backs"] >= 5
    assert pair.alice.endpoint.counters()["retransmits"] >= 2 * pair.alice.endpoint.counters()["go_backs"]
    assert len({packet.entropy for packet in pair.sent}) == 1
    assert pair.alice.endpoint.counters()["probes_sent"] == 0


def lossy(mode: str) -> tuple[int, dict[str, int]]:
    """Picoseconds that 4 MiB take at 1 % loss, and the sender's counters."""
    pair = classic(3, Wire(loss=0.01, rate=LINE), mode=mode)
    start = pair.now
    transfer(pair, 4 << 20)
    return pair.now - start, pair.alice.endpoint.counters()


def test_one_percent_loss_halves_what_multipath_hardly_notices():
    line = (4 << 20) * 8 * 10**12 // LINE
    sprayed, few = lossy("multipath")
    in_order, many = lossy("classic")
    assert sprayed < 1.15 * line
    assert in_order > 1.6 * line
    assert few["retransmits"] < 25
    assert many["retransmits"] > 400


def test_reordering_alone_makes_it_send_again():
    counters = {}
    for mode in ("multipath", "classic"):
        pair = classic(3, Wire(jitter=40 * US, rate=LINE), mode=mode)
        transfer(pair, 1 << 20)
        counters[mode] = pair.alice.endpoint.counters()
    assert counters["multipath"]["retransmits"] <= 8
    assert counters["classic"]["retransmits"] > 256  # more than was to be sent


@given(plan=operations, wire=wires, seed=st.integers(0, 2**32), max_run=st.sampled_from([1, 7]))
def test_any_network_gives_equal_bytes_and_one_completion_each_in_order(plan, wire, seed, max_run):
    pair = classic(seed, wire, max_run=max_run, retries=20)
    case = Case(pair, plan, seed)
    case.run()
    case.check()


def test_a_segment_may_be_sent_again_without_bound_as_long_as_others_arrive():
    """With 512 segments in flight at 15 % loss the last ones are sent again for each loss before them."""
    pair = classic(2, Wire(loss=0.15, rate=LINE), control_parameters={"window_bytes": 2 << 20}, retries=20)
    transfer(pair, 2 << 20)
    order = sent_by_alice(pair)
    assert order.count(511) > 64


def test_of_the_copies_of_a_segment_the_latest_two_are_remembered():
    pair = classic(2, Wire(loss=0.15, rate=LINE), control_parameters={"window_bytes": 2 << 20}, retries=20)
    ours, theirs = pair.connect()
    _, region = expose(theirs, 2 << 20)
    ours.post_write(pair.now, 1, 2 << 20, region.address, region.rkey)
    most = 0

    def look() -> bool:
        nonlocal most
        send, length = ours.sender.flow.newest, 0
        while send is not None:
            send, length = send.previous, length + 1
        most = max(most, length)
        return bool(pair.alice.completions)

    pair.drive(look)
    assert most == 2


# One path


def test_queue_pairs_spread_over_the_source_ports_and_each_keeps_its_own():
    pair = classic(5, Wire(loss=0.02, rate=LINE))
    for number in range(12):
        ours, theirs = pair.connect()
        _, region = expose(theirs, 64 * 4096)
        ours.post_write(pair.now, number, 64 * 4096, region.address, region.rkey)
    pair.drive()
    assert sorted(item.wr_id for item in pair.alice.completions) == list(range(12))
    ports: dict[int, set[int]] = {}
    for packet in pair.sent:
        ports.setdefault(packet.src_qpn, set()).add(packet.entropy)
    assert {len(used) for used in ports.values()} == {1}
    assert len(set.union(*ports.values())) >= 5


def test_losses_of_one_queue_pair_make_no_other_send_again():
    """Both share a source port, so the order on it says something of both; only multipath listens to that."""
    pair = classic(1, paths=1)
    one, _ = pair.connect()
    two, peer_of_two = pair.connect()
    pair.wire.touch = lambda now, p: None if p.kind == DATA and p.src_qpn == two.qpn and now < until else p
    until = pair.now + 100 * US
    _, region_of_two = expose(peer_of_two, 4096)
    two.post_write(pair.now, 2, 4096, region_of_two.address, region_of_two.rkey)
    pair.flush()
    _, region = expose(pair.connections[1], 1 << 20)
    one.post_write(pair.now, 1, 1 << 20, region.address, region.rkey)
    pair.drive()
    assert pair.alice.endpoint.counters()["retransmits"] == pair.alice.endpoint.counters()["timeouts"] == 1


def test_a_dead_path_ends_the_queue_pair_and_no_other_port_is_tried():
    pair = classic(1, Wire(touch=swallow_all_to(BOB)))
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    ours.post_write(pair.now, 1, 4096, region.address, region.rkey)
    pair.drive()
    assert outcome(pair.alice, ours) == [(1, "RETRY_EXC_ERR")]
    assert len({packet.entropy for packet in pair.sent}) == 1
    assert pair.alice.endpoint.poll_event() is None


def test_messages_and_their_control_keep_to_the_port_when_they_are_lost():
    pair = classic(4, Wire(loss=0.1, rate=LINE), retries=20)
    ours, theirs = pair.connect()
    buffers = [bytearray(6000) for _ in range(20)]
    for number, buffer in enumerate(buffers):
        theirs.post_recv(pair.now, number, buffer)
        ours.post_send(pair.now, number, bytes([number + 1]) * 6000)
    pair.drive()
    assert outcome(pair.bob, theirs) == [(number, "SUCCESS") for number in range(20)]
    assert buffers == [bytes([number + 1]) * 6000 for number in range(20)]
    assert pair.alice.endpoint.counters()["control_retransmits"] > 0
    assert len({packet.entropy for packet in pair.sent if packet.src == ALICE and packet.kind != DATAGRAM}) == 1


def test_its_port_cannot_be_denied():
    pair = classic()
    ours, _ = pair.connect()
    transfer(pair, 4096)
    for path in ours.context.paths.paths:
        with pytest.raises(ConfigError, match="the floor keeps 16 paths"):
            ours.context.paths.deny(pair.now, path.index)


@pytest.mark.parametrize("selector", ["pot", "reps", "mixed", "random"])
def test_spraying_is_refused(selector):
    with pytest.raises(ConfigError, match=rf"selector = '{selector}': mode = 'classic'.*only 'single' is allowed"):
        EndpointConfig(mode="classic", selector=selector)


def test_what_has_no_meaning_with_one_path_is_refused():
    with pytest.raises(ConfigError, match=r"floor = 2: mode = 'classic'.*only 0 is allowed"):
        EndpointConfig(mode="classic", floor=2)
    with pytest.raises(ConfigError, match="mode = 'classic' has one path, so 1 address is allowed"):
        Endpoint(EndpointConfig(mode="classic"), [ALICE, BOB], CAPS, random.Random(1))
    with pytest.raises(ConfigError, match="mode = 'ordered': allowed are multipath, classic"):
        EndpointConfig(mode="ordered")


def test_single_may_be_named():
    assert EndpointConfig(mode="classic", selector="single").path_selector == "single"
    assert EndpointConfig(mode="classic").path_selector == "single"
    assert EndpointConfig().path_selector == "pot"


# The peer


def test_both_sides_must_have_the_same_mode():
    pair = classic()
    other = Endpoint(EndpointConfig(), BOB, CAPS, random.Random(7))
    theirs = other.create_connection(other.protection_domain(), pair.now)
    ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
    with pytest.raises(NegotiationError, match="mode: 'classic' here, 'multipath' at the peer"):
        ours.connect(pair.now, theirs.parameters)
    with pytest.raises(NegotiationError, match="mode: 'multipath' here, 'classic' at the peer"):
        theirs.connect(pair.now, ours.parameters)


@pytest.mark.parametrize(("mode", "reason"), [("classic", TRIMMED), ("multipath", OUT_OF_ORDER)])
def test_a_nack_for_the_reason_of_the_other_mode_changes_nothing(mode, reason):
    pair = classic(mode=mode)
    ours, theirs = pair.connect()
    _, region = expose(theirs, 16 * 4096)
    ours.post_write(pair.now, 1, 16 * 4096, region.address, region.rkey)
    pair.flush()
    send = ours.sender.flow.oldest
    pair.inject(forge_control(theirs, DATAGRAM, Nack(send.first & 0xFFFFFFFF, send.psn, 0xC000, reason)))
    pair.drive()
    assert pair.alice.endpoint.counters()["dropped_bad_control"] == 1
    assert pair.alice.endpoint.counters()["retransmits"] == 0
    assert outcome(pair.alice, ours) == [(1, "SUCCESS")]


@pytest.mark.parametrize("beyond", [0, 1, 5000])
def test_a_nack_for_what_was_never_sent_is_refused(beyond):
    pair = classic()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 16 * 4096)
    ours.post_write(pair.now, 1, 16 * 4096, region.address, region.rkey)
    pair.flush()
    pair.inject(forge_control(theirs, DATAGRAM, Nack(ours.sender.next + beyond & 0xFFFFFFFF, 0, 0xC000, OUT_OF_ORDER)))
    pair.drive()
    assert pair.alice.endpoint.counters()["dropped_bad_control"] == 1
    assert pair.alice.endpoint.counters()["retransmits"] == 0


def test_the_same_nack_twice_costs_a_second_round_and_no_bytes():
    def twice(now: int, packet: Packet) -> Packet:
        if isinstance(packet.control, Nack):
            pair.inject(packet, 8 * US)
        return packet

    pair = losing((5, 1))
    lose = pair.wire.touch
    pair.wire.touch = lambda now, packet: None if lose(now, packet) is None else twice(now, packet)
    transfer(pair, 60 * 4096)
    assert pair.alice.endpoint.counters()["go_backs"] == 2


def test_data_far_ahead_is_dropped_without_a_nack():
    pair = classic()
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    ahead = theirs.receiver.ledger.edge + 2 * theirs.context.window
    pair.inject(forge(ours, ahead, b"far", region.rkey, region.address))
    pair.drive()
    assert pair.bob.endpoint.counters()["dropped_outside_window"] == 1
    assert pair.bob.endpoint.counters()["nacks_sent"] == 0


@pytest.mark.parametrize(
    ("payload", "counter"), [(b"forged", "dropped_bad_key"), (b"", "dropped_wrong_tag")], ids=["data", "zero bytes"]
)
def test_a_guessed_sequence_number_without_a_right_key_is_no_gap(payload, counter):
    pair = classic()
    ours, theirs = pair.connect()
    expose(theirs, 4096)
    pair.inject(forge(ours, theirs.receiver.ledger.edge + 5, payload, 0xBAD, 0))
    pair.drive()
    counters = pair.bob.endpoint.counters()
    assert (counters[counter], counters["nacks_sent"], counters["dropped_out_of_order"]) == (1, 0, 0)


def test_a_run_that_begins_before_the_edge_is_placed_from_there_on():
    """Three segments of it came and their acknowledgement did not: the timeout repeats all of it."""

    def cut(now: int, packet: Packet) -> Packet | None:
        if isinstance(packet.control, Ack) and now < until:
            return None
        if packet.kind == DATA and len(data_packets(pair.sent)) == 1:
            for i in range(3):
                pair.inject(packet.split(i, 1), 5 * US)
            return None
        return packet

    pair = classic(wire=Wire(touch=cut), max_run=16)
    until = pair.now + 100 * US
    transfer(pair, 16 * 4096)
    counters = pair.bob.endpoint.counters()
    assert [packet.count for packet in data_packets(pair.sent)] == [16, 16]
    assert (counters["duplicates"], counters["bytes_placed"]) == (3, 16 * 4096)
