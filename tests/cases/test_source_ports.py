"""Source ports spread the traffic, and all of them are in the range that RoCEv2 reserves for it.

Known from other stacks: every queue pair sends from the same port, so one of two uplinks stays empty; ports below the
range make decoders see another protocol.
"""

from __future__ import annotations

import zlib

import pytest

from tests.helpers import ALICE, BOB, CAPS, Host, Pair, data_packets
from tests.transport.test_queue_pair import expose
from transport import entropy, selectors
from transport.config import EndpointConfig
from transport.packet import Packet

FIRST, LAST = 0xC000, 0xFFFF


def uplink(packet: Packet) -> int:
    """Which of two uplinks a switch's hash of the five-tuple takes."""
    tuple5 = packet.src + packet.dst + packet.entropy.to_bytes(2, "big") + (4791).to_bytes(2, "big") + b"\x11"
    return zlib.crc32(tuple5) >> 7 & 1


def test_e3_every_flow_label_gives_the_port_of_the_formula_and_all_ports_occur_alike():
    """All 2**20 labels: ((label & 0x3FFF) ^ (label >> 14)) | 0xC000, each port from 64 of them."""
    counts = [0] * (1 << 16)
    for label in range(1 << 20):
        port = entropy.flow_label_to_port(label)
        assert port == ((label & 0x3FFF) ^ (label >> 14)) | 0xC000
        counts[port] += 1
    assert counts == [0] * FIRST + [64] * (LAST + 1 - FIRST)


@pytest.mark.parametrize("selector", selectors.names())
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_processes_of_eight_queue_pairs_each_fill_both_uplinks(selector, seed):
    ports: list[set[int]] = []
    loads = [0, 0]
    for process in range(2):
        pair = Pair(10 * seed + process, selector=selector)
        for _ in range(8):
            ours, theirs = pair.connect()
            _, region = expose(theirs, 1 << 16)
            ours.post_write(pair.now, 1, bytes(1 << 16), region.address, region.rkey)
        pair.drive_messages(8)
        sent = [packet for packet in data_packets(pair.sent) if packet.src == ALICE]
        ports.append({packet.entropy for packet in sent})
        for packet in sent:
            loads[uplink(packet)] += packet.length
        assert all(FIRST <= packet.entropy <= LAST for packet in pair.sent)
    assert min(map(len, ports)) > 1
    assert min(loads) > 0.2 * sum(loads)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 100, 4096])
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_chosen_ports_are_in_the_range_whatever_their_number(count, seed):
    ports = entropy.automatic(count, seed)
    assert len(set(ports)) == count
    assert all(FIRST <= port <= LAST for port in ports)


@pytest.mark.parametrize("count", [2, 4, 8, 16, 64])
def test_a_few_ports_already_hash_to_both_uplinks(count):
    """Ports at equal distances would have equal low bits, which is all that some hashes look at."""
    ports = entropy.automatic(count)
    for bits in range(2):
        assert len({port >> bits & 1 for port in ports}) == 2 or count < 4


def test_answers_acknowledgements_and_probes_leave_by_ports_in_the_range_too():
    """Also to a peer that sprays over ports of its own choice."""
    pair = Pair(paths=8)
    config = EndpointConfig(entropies=(0xC000, 0xFFFF, 0xD431), idle_after=1 << 62)
    rng = pair.bob.endpoint.rng
    pair.bob = Host(type(pair.bob.endpoint)(config, BOB, CAPS, rng))
    pair.hosts[BOB] = pair.bob
    ours, theirs = pair.connect()
    _, region = expose(theirs, 1 << 20)
    _, own = expose(ours, 1 << 20)
    for number in range(10):
        ours.post_write(pair.now, number, bytes(1 << 20), region.address, region.rkey)
        theirs.post_write(pair.now, number, bytes(1 << 20), own.address, own.rkey)
    pair.drive_messages(10)
    pair.drive_messages(10, pair.bob)
    assert all(FIRST <= packet.entropy <= LAST for packet in pair.sent)
    assert {packet.entropy for packet in data_packets(pair.sent) if packet.src == BOB} == {0xC000, 0xFFFF, 0xD431}
    assert {packet.kind for packet in pair.sent} >= {0, 2}
