"""Source ports as path entropy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ALICE, Pair, data_packets
from transport import entropy, selectors
from transport.entropy import FIRST_PORT, LAST_PORT, MAX_PATHS
from transport.errors import ConfigError
from transport.placement import Access


@given(st.integers(1, MAX_PATHS), st.integers(0, 1 << 32))
def test_automatic_ports_are_distinct_and_in_the_range_of_rocev2(count, seed):
    ports = entropy.automatic(count, seed)
    assert len(set(ports)) == count
    assert FIRST_PORT <= min(ports) <= max(ports) <= LAST_PORT
    assert ports == entropy.automatic(count, seed)


@given(st.integers(1, MAX_PATHS), st.integers(0, 1 << 32))
def test_automatic_ports_are_spread_evenly(count, seed):
    room = LAST_PORT + 1 - FIRST_PORT
    slices = [(port - FIRST_PORT + 1) * count for port in entropy.automatic(count, seed)]
    assert [(value + room - 1) // room - 1 for value in slices] == pytest.approx(range(count), abs=1)


def test_another_seed_gives_other_ports():
    assert entropy.automatic(16, 1) != entropy.automatic(16, 2)


@pytest.mark.parametrize("count", [0, -1, MAX_PATHS + 1, 20000, True, 1.0, "4"])
def test_an_impossible_number_of_paths_is_refused(count):
    with pytest.raises(ConfigError, match=r"paths = .*1 to 4096"):
        entropy.automatic(count)


def test_named_ports_keep_their_order():
    assert entropy.explicit([0xFFFF, 0xC000, 0xD123]) == [0xFFFF, 0xC000, 0xD123]


@pytest.mark.parametrize("port", [0xBFFF, 0x10000, 4791, -1, "0xC000", True])
def test_a_port_outside_the_range_is_refused(port):
    with pytest.raises(ConfigError, match="is no source port from 0xc000 to 0xffff"):
        entropy.explicit([0xC001, port])


def test_a_port_named_twice_is_refused():
    with pytest.raises(ConfigError, match="49153 is named twice"):
        entropy.explicit([0xC000, 0xC001, 0xC001])


def test_no_ports_are_refused():
    with pytest.raises(ConfigError, match="paths = 0"):
        entropy.explicit([])


def test_a_mask_gives_every_value_of_its_bits_in_counting_order():
    assert entropy.generated(0b101) == [0xC000, 0xC001, 0xC004, 0xC005]
    assert entropy.generated(0x0300, 0xC00F) == [0xC00F, 0xC10F, 0xC20F, 0xC30F]
    assert entropy.generated(0) == [0xC000]


@given(st.integers(0, 0x3FFF).filter(lambda mask: mask.bit_count() <= 12), st.integers(FIRST_PORT, LAST_PORT))
def test_generated_ports_differ_in_the_bits_of_the_mask_only(mask, base):
    ports = entropy.generated(mask, base)
    assert len(set(ports)) == 1 << mask.bit_count()
    assert {port & ~mask for port in ports} == {base & ~mask}


@pytest.mark.parametrize(
    ("mask", "base"), [(-1, 0xC000), (0x4000, 0xC000), (0x3FFF, 0xC000), (1, 0x8000), (1, 0x1C000)]
)
def test_a_mask_or_base_outside_the_range_is_refused(mask, base):
    with pytest.raises(ConfigError):
        entropy.generated(mask, base)


@given(st.integers(0, (1 << 20) - 1))
def test_a_flow_label_gives_the_port_that_drivers_give(label):
    port = entropy.flow_label_to_port(label)
    assert port == ((label & 0x3FFF) ^ (label >> 14)) | 0xC000
    assert 0xC000 <= port <= 0xFFFF


@pytest.mark.parametrize(
    ("label", "port"),
    [(0, 0xC000), (1, 0xC001), (0x3FFF, 0xFFFF), (0x4000, 0xC001), (0xFC000, 0xC03F), (0xFFFFF, 0xFFC0)],
)
def test_known_flow_labels(label, port):
    assert entropy.flow_label_to_port(label) == port


@pytest.mark.parametrize("label", [-1, 1 << 20])
def test_a_flow_label_of_more_than_20_bits_is_refused(label):
    with pytest.raises(ConfigError, match="flow label"):
        entropy.flow_label_to_port(label)


@pytest.mark.parametrize("selector", selectors.names())
def test_two_endpoints_with_eight_queue_pairs_each_to_one_peer_use_several_ports(selector):
    for seed in (1, 2):
        pair = Pair(seed, selector=selector)
        for _ in range(8):
            ours, theirs = pair.connect()
            memory = theirs.context.domain.register(65536, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
            ours.post_write(pair.now, 1, 65536, memory.address, memory.rkey)
        pair.drive_messages(8)
        assert {packet.entropy for packet in pair.sent if not 0xC000 <= packet.entropy <= 0xFFFF} == set()
        assert len({packet.entropy for packet in data_packets(pair.sent) if packet.src == ALICE}) > 1
