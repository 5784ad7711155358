"""Topology files of htsim: the real files, what is written, and mistakes."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.readers.files import read_text
from testbed.workloads.readers.topo import Tier, Topology, parse, write
from transport.clock import NS, US
from transport.errors import ConfigError

DATA = Path(__file__).resolve().parents[3] / "data" / "htsim"
GBPS = 10**9
TINY = read_text(DATA / "leaf_spine_tiny.topo")


def read(name: str) -> Topology:
    return parse(read_text(DATA / name), name)


def test_a_fat_tree_of_three_tiers_with_a_comment_and_no_final_newline() -> None:
    text = read_text(DATA / "fat_tree_1024.topo")
    assert text.startswith("# Test 3-tier FatTree")
    assert not text.endswith("\n")
    topology = read("fat_tree_1024.topo")
    assert (topology.nodes, topology.podsize, len(topology.tiers)) == (1024, 64, 3)
    assert {tier.downlink_speed for tier in topology.tiers} == {100 * GBPS}
    assert (topology.tiers[0].radix_down, topology.tiers[0].radix_up) == (8, 8)
    assert (topology.tiers[2].radix_down, topology.tiers[2].radix_up) == (16, None)
    assert topology.switches == (128, 128, 64)


def test_a_leaf_spine_oversubscribed_four_to_one() -> None:
    topology = read("leaf_spine_tiny.topo")
    low = Tier(100 * GBPS, US, 8, 2, oversubscribed=4)
    assert topology == Topology(32, 32, (low, Tier(100 * GBPS, US, 4)))
    assert topology.ratio(0) == 4
    assert topology.switches == (4, 2)


def test_a_bundle_of_two_links_of_half_the_speed_and_no_latency_of_switches() -> None:
    topology = read("test.topo")
    assert "Switch_Latency" not in read_text(DATA / "test.topo")
    assert (topology.nodes, topology.podsize) == (8, 4)
    assert [tier.downlink_speed for tier in topology.tiers] == [200 * GBPS, 200 * GBPS, 100 * GBPS]
    assert [tier.bundle for tier in topology.tiers] == [1, 1, 2]
    assert [tier.switch_latency for tier in topology.tiers] == [0, 0, 0]
    assert (topology.ratio(0), topology.ratio(1)) == (1, 1)
    assert topology.switches == (4, 4, 4)


def test_a_leaf_spine_oversubscribed_eight_to_one() -> None:
    topology = read("uet_leaf_spine_1024_oversub_8-1.topo")
    assert (topology.nodes, topology.ratio(0), topology.tiers[0].oversubscribed) == (1024, 8, 8)
    assert topology.switches == (32, 4)


def test_keys_may_be_in_any_case_and_lines_in_any_order_within_a_tier() -> None:
    lines = TINY.upper().splitlines()
    cut = next(i for i, line in enumerate(lines) if line == "TIER 1")
    high = [lines[cut], *reversed(lines[cut + 1 :])]
    text = "\r\n".join([*lines[:4], *high, "\t# the lower", *lines[4:cut]])
    assert parse(text, "t") == read("leaf_spine_tiny.topo")


def test_queues_are_bytes_and_latencies_picoseconds() -> None:
    text = TINY.replace("Radix_Up 2", "Radix_Up 2\nQueue_Down 1001\nqueue_up 1002").replace("ency_ns 0", "ency_ns 7")
    low, high = parse(text, "t").tiers
    assert (low.queue_down, low.queue_up, high.queue_down) == (1001, 1002, None)
    assert (low.switch_latency, high.switch_latency, low.downlink_latency) == (7 * NS, 7 * NS, 1000 * NS)


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.topo")))
def test_a_real_file_is_read_as_it_was_written(name: str) -> None:
    assert parse(write(read(name)), name) == read(name)


def test_it_is_written_as_htsim_reads_it() -> None:
    assert write(Topology(4, 4, (Tier(GBPS, NS, 4, 2, 5, 6, 1, 2, 3 * NS), Tier(GBPS, NS, 2, bundle=2)))) == (
        "Nodes 4\nTiers 2\nPodsize 4\n"
        "\nTier 0\nDownlink_speed_Gbps 1\nRadix_Down 4\nRadix_Up 2\nQueue_Down 5\nQueue_Up 6\nDownlink_Latency_ns 1\n"
        "Switch_Latency_ns 3\nOversubscribed 2\n"
        "\nTier 1\nDownlink_speed_Gbps 1\nRadix_Down 2\nDownlink_Latency_ns 1\nSwitch_Latency_ns 0\nBundle 2\n"
    )


@pytest.mark.parametrize("tier", [Tier(GBPS // 2, NS, 4, 4), Tier(GBPS, NS + 1, 4, 4)])
def test_what_the_format_cannot_say_is_refused(tier: Tier) -> None:
    with pytest.raises(ConfigError, match=r"tier 0: downlink_(speed|latency) = \d+: allowed are multiples of 1000"):
        write(Topology(4, 4, (tier, Tier(GBPS, NS, 1))))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Of two tiers or three, whose ports come out even."""
    some, latency = st.integers(1, 6), st.integers(1, 10**6)
    queue = st.none() | st.integers(1, 1 << 30)
    speed = draw(st.integers(1, 800)) * GBPS
    bundles = [1, *draw(st.lists(some, min_size=1, max_size=2))]
    tiers: list[Tier] = []
    for bundle, above in zip(bundles, [*bundles[1:], None], strict=True):
        up = None if above is None else bundle * above * draw(some)
        ratio = 1 if above is None else draw(some)
        down = bundle * draw(some) if up is None else ratio * up
        tiers.append(
            Tier(
                speed, draw(latency) * NS, down, up, draw(queue), None if up is None else draw(queue), bundle, ratio,
                draw(st.just(0) | latency) * NS,
            )
        )  # fmt: skip
    nodes = math.prod(tier.radix_down for tier in tiers) * draw(some)
    return Topology(nodes, tiers[0].radix_down, tuple(tiers))


@given(topologies())
def test_what_was_written_is_read(topology: Topology) -> None:
    assert parse(write(topology), "t") == topology
    for i, tier in enumerate(topology.tiers[:-1]):
        assert topology.ratio(i) == Fraction(tier.oversubscribed)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Nodes 32", "", "t: Nodes is missing"),
        ("Tiers 2", "", "t: Tiers is missing"),
        ("Podsize 32", "", "t: Podsize is missing"),
        ("Tiers 2", "Tiers 4", "t, line 2: Tiers = '4': allowed are whole numbers from 2 to 3"),
        ("Tiers 2", "Tiers 3", "t, line 2: Tiers 3: the file has tier 0, 1, needed are 0 to 2"),
        ("Tier 1", "Tier 2", "t, line 2: Tiers 2: the file has tier 0, 2, needed are 0 to 1"),
        ("Tier 1", "Tier 3", "t, line 13: Tier = '3': allowed are whole numbers from 0 to 2"),
        ("Tier 1", "Tier 0", "t, line 13: tier 0 is in line 5 already"),
        ("Tiers 2", "Nodes 3", "t, line 2: Nodes is in line 1 already"),
        ("Radix_Up 2", "Nodes 32", "t, line 8: Nodes: it must be in front of all tiers"),
        ("Podsize 32", "Bundle 1", "t, line 3: Bundle: it belongs to a tier, and there is none before it"),
        ("Radix_Up 2", "Radix_Right 2", "t, line 8: key Radix_Right is unknown; known: Nodes, Tiers, Podsize, Tier, D"),
        ("Radix_Up 2", "Radix_Up", "t, line 8: 'Radix_Up': a key and one number are needed"),
        ("Radix_Up 2", "Radix_Up 2 3", "t, line 8: 'Radix_Up 2 3': a key and one number are needed"),
        ("Radix_Up 2", "Radix_Down 2", "t, line 8: Radix_Down of tier 0 is in line 7 already"),
        ("Radix_Up 2", "Radix_Up 0", "t, line 8: Radix_Up = '0': allowed are whole numbers from 1"),
        ("Radix_Up 2", "", "t, line 5: tier 0: Radix_Up is missing"),
        ("Radix_Down 4", "", "t, line 13: tier 1: Radix_Down is missing"),
        ("Downlink_speed_Gbps 100", "Downlink_speed_Gbps 1.5", "t, line 6: Downlink_speed_Gbps = '1.5': allowed are"),
        ("Downlink_speed_Gbps 100", "", "t, line 5: tier 0: Downlink_speed_Gbps is missing"),
        ("Downlink_Latency_ns 1000", "", "t, line 5: tier 0: Downlink_Latency_ns is missing"),
        ("Switch_Latency_ns 0", "Switch_Latency_ns -1", "t, line 10: Switch_Latency_ns = '-1': allowed are whole numb"),
        ("Oversubscribed 4", "", "t, line 5: tier 0: Oversubscribed 1: its ports and speeds make it 4"),
        ("Podsize 32", "Podsize 5", "t, line 5: tier 0: Podsize 5: Nodes 32 is not a multiple of it"),
        ("Podsize 32", "Podsize 4", "t, line 5: tier 0: Radix_Down 8: Podsize 4 is not a multiple of it"),
        ("Radix_Up 2", "Radix_Up 2\nBundle 2", "t, line 5: tier 0: Bundle 2: allowed is 1, a host has one link"),
        ("Radix_Down 4", "Radix_Down 3", "t, line 13: tier 1: Radix_Down 3: 8 links come up from below"),
        ("Radix_Down 4", "Radix_Down 4\nBundle 4", "t, line 5: tier 0: Radix_Up 2: it is not a multiple of the Bu"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_value(old: str, new: str, message: str) -> None:
    assert old in TINY
    with pytest.raises(ConfigError, match=message):
        parse(TINY.replace(old, new, 1), "t")


def test_nothing_is_above_tier_2() -> None:
    text = read_text(DATA / "test.topo").rstrip() + "\nRadix_Up 2\n"
    with pytest.raises(ConfigError, match="Radix_Up: tier 2 has nothing above it"):
        parse(text, "t")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        told = "t" if parse(text, "t").nodes else ""
    except ConfigError as error:
        told = str(error)
    assert told.startswith("t")
