"""In-band telemetry: from the data packet by way of the acknowledgement to the control."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from cc.base import Control
from cc.signals import Hop
from tests.helpers import ALICE, BOB, CAPS, Pair, Wire
from tests.transport.test_queue_pair import expose
from transport.clock import US
from transport.control import Ack
from transport.errors import ConfigError
from transport.packet import DATA, DATAGRAM, Packet
from transport.wire import OFF, Codec


class Witness(Control):
    """Keeps what it is told of hops; three segments at a time."""

    name = "witness"
    needs = frozenset({"int_telemetry"})
    seen: ClassVar[list[list[Hop] | None]] = []

    def __init__(self, parameters, env):
        super().__init__(parameters, env)
        self.window = 3 * env.segment

    def on_ack(self, now, ack):
        self.seen.append(ack.hops)


def stamp(now: int, packet: Packet) -> Packet:
    """Two ports; the queue of the second one is the number of the segment."""
    if packet.kind == DATA:
        packet.hops = [Hop(0, 1, now, 100), Hop(packet.seq, 2, now + US, 25)]
    return packet


@pytest.fixture
def pair() -> Pair:
    Witness.seen.clear()
    return Pair(wire=Wire(touch=stamp), caps=replace(CAPS, int_telemetry=True), control=Witness, paths=1)


def test_an_acknowledgement_brings_the_hops_of_the_very_packet_that_triggered_it(pair):
    ours, theirs = pair.connect()
    _, region = expose(theirs, 30 * 4096)
    ours.post_write(pair.now, 1, 30 * 4096, region.address, region.rkey)
    pair.drive()
    acks = [packet.control for packet in pair.sent if packet.src == BOB and isinstance(packet.control, Ack)]
    assert len(Witness.seen) == len(acks) >= 10
    for ack, hops in zip(acks, Witness.seen, strict=True):
        assert hops is not None
        assert [hop.queue for hop in hops] == [0, ack.trigger_seq]
        assert [hop.rate for hop in hops] == [100, 25]


def test_an_acknowledgement_of_control_alone_brings_none(pair):
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 1, bytearray(100))
    pair.drive()
    _, region = expose(theirs, 4096)
    ours.post_write(pair.now, 2, 4096, region.address, region.rkey)
    pair.drive()
    ours.post_send(pair.now, 3, b"inline")
    pair.drive()
    acks = [packet.control for packet in pair.sent if packet.src == BOB and isinstance(packet.control, Ack)]
    assert [ack.hops is not None for ack in acks] == [True, False]


def test_where_nobody_stamps_there_is_none(pair):
    pair.wire.touch = None
    ours, theirs = pair.connect()
    _, region = expose(theirs, 4096)
    ours.post_write(pair.now, 1, 4096, region.address, region.rkey)
    pair.drive()
    assert Witness.seen == [None]


def test_hops_have_no_place_on_the_wire():
    packet = Packet()
    packet.kind, packet.src, packet.dst, packet.entropy = DATAGRAM, ALICE, BOB, 0xC000
    packet.control = Ack()
    codec = Codec(icrc=OFF)
    without = codec.encode(packet, 0)[0]
    packet.control.hops = [Hop(1, 2, 3, 4)]
    assert codec.encode(packet, 0)[0] == without


def test_a_control_that_needs_telemetry_is_refused_where_the_nic_gives_none():
    pair = Pair(control=Witness)
    ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
    theirs = pair.bob.endpoint.create_connection(pair.bob.endpoint.protection_domain(), pair.now)
    with pytest.raises(ConfigError, match="witness needs int_telemetry"):
        ours.connect(pair.now, theirs.parameters)
