"""Fabrics out of topology files of htsim, and out of what a scenario lists: nodes, cables, rates, delays, queues."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from testbed import fabrics, runner, scenario
from testbed.drawn import Drawn, from_file
from testbed.progress import Silent
from testbed.report import RunResult
from testbed.sections import FabricSection, GraphCable, GraphSection
from testbed.sim import graph, shapes
from testbed.sim.fabric import Fabric, FabricSpec
from testbed.sim.loop import Loop
from testbed.sim.spec import QueueSpec
from testbed.workloads.readers import topo
from transport.clock import NS, US
from transport.errors import ConfigError

HTSIM = Path(__file__).resolve().parent.parent / "data" / "htsim"
FILES = sorted(path.name for path in HTSIM.glob("*.topo"))
GBIT = 1_000_000_000


def drawn(name: str) -> Drawn:
    return from_file(topo.parse((HTSIM / name).read_text(), name), name)


def links(found: Drawn) -> dict[str, Counter[str]]:
    """How many cables each node has to each other one."""
    counted: dict[str, Counter[str]] = {}
    for cable in found.topology.cables:
        counted.setdefault(cable.one, Counter())[cable.other] += 1
        counted.setdefault(cable.other, Counter())[cable.one] += 1
    return counted


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_htsim_becomes_a_fabric_with_as_many_switches_links_and_that_delay(name: str) -> None:
    said = topo.parse((HTSIM / name).read_text(), name)
    found = drawn(name)
    assert len(found.topology.hosts) == said.nodes
    assert len(found.topology.switches) == sum(said.switches)
    assert len(found.topology.cables) == said.nodes + sum(
        count * (tier.radix_up or 0) for count, tier in zip(said.switches, said.tiers, strict=True)
    )
    graph.check_connected(found.topology)
    assert found.longest == graph.longest_way(found.topology) == 2 * sum(tier.downlink_latency for tier in said.tiers)
    built = Fabric(FabricSpec(found.topology, QueueSpec()), Loop(1), 1)
    assert built.base_rtt == 2 * found.longest


def test_the_file_that_describes_the_default_fat_tree_of_1024_hosts_gives_the_same_as_the_shape() -> None:
    assert set(drawn("fat_tree_1024.topo").topology.cables) == set(shapes.fat_tree(16, 100 * GBIT, US).cables)


def test_bundles_are_parallel_cables() -> None:
    found = links(drawn("test.topo"))
    assert set(found["aggregation0"].values()) == {1, 2}
    assert found["aggregation0"] == Counter(edge0=1, edge1=1, core0=2, core1=2)
    assert found["core0"] == Counter(aggregation0=2, aggregation2=2)
    rates = {(cable.one[0], cable.rate // GBIT) for cable in drawn("test.topo").topology.cables}
    assert rates == {("h", 200), ("e", 200), ("a", 100)}


def test_an_oversubscribed_leaf_has_fewer_cables_up_than_hosts() -> None:
    leaf = links(drawn("leaf_spine_tiny.topo"))["leaf3"]
    assert (sum(name.startswith("h") for name in leaf), leaf["spine0"], leaf["spine1"]) == (8, 1, 1)


TIERS = """Nodes 4
Tiers 2
Podsize 4
Tier 0
Downlink_speed_Gbps 100
Downlink_Latency_ns 100
Switch_Latency_ns 40
Radix_Down 2
Radix_Up 2
Queue_Down 20000
Queue_Up 30000
Tier 1
Downlink_speed_Gbps 100
Downlink_Latency_ns 500
Switch_Latency_ns 10
Radix_Down 2
Queue_Down 40000
"""


def test_a_way_takes_its_cables_and_its_switches() -> None:
    found = from_file(topo.parse(TIERS, "t"), "t")
    assert found.longest == (2 * 100 + 2 * 500 + 2 * 40 + 10) * NS
    assert graph.longest_way(found.topology) == found.longest


def topo_section(path: Path, **more: object) -> FabricSection:
    path.write_text(TIERS)
    return FabricSection(kind="topo", file=str(path), **more)  # type: ignore[arg-type]


def test_queues_of_the_file_hold_for_the_ports_it_speaks_of(tmp_path: Path) -> None:
    spec = fabrics.spec(topo_section(tmp_path / "t.topo"), 4, 1)
    ports = dict(Fabric(spec, Loop(1), 1).all_ports())
    assert {ports[name].limit for name in ("leaf0>h0", "leaf1>h3")} == {20000}
    assert {ports[name].limit for name in ("leaf0>spine0", "leaf1>spine1")} == {30000}
    assert {ports[name].limit for name in ("spine0>leaf0", "spine1>leaf1")} == {40000}
    assert (ports["leaf0>h0"].ecn_low, ports["leaf0>h0"].ecn_high) == (4000, 16000)
    assert ports["h0>leaf0"].limit > 1 << 40


def test_a_queue_and_thresholds_of_the_scenario_are_stronger(tmp_path: Path) -> None:
    given = fabrics.spec(topo_section(tmp_path / "t.topo", queue=50_000), 4, 1)
    assert {port.limit for name, port in Fabric(given, Loop(1), 1).all_ports() if name[0] != "h"} == {50_000}
    marks = fabrics.spec(topo_section(tmp_path / "t.topo", ecn=5000), 4, 1)
    assert {port.ecn_low for name, port in Fabric(marks, Loop(1), 1).all_ports() if name[0] != "h"} == {5000}


def run(path: Path, *overrides: str) -> RunResult:
    return runner.run(scenario.load(str(path), overrides), "sim", Silent())


@pytest.mark.parametrize("name", FILES)
def test_a_workload_runs_over_a_file_of_htsim_that_lies_beside_the_scenario(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text((HTSIM / name).read_text())
    path = tmp_path / "mine.toml"
    path.write_text(f"""
name = "mine"
summary = "over a file of htsim"
workload = {{ kind = "permutation", ranks = 8, messages = 1, size = "16KiB" }}
fabric = {{ kind = "topo", file = "{name}" }}
expect = {{ bytes_wrong = 0, retransmits = 0 }}
""")
    assert run(path).passed


GRAPH = """
name = "drawn"
summary = "two switches with two cables between them"

[workload]
kind = "permutation"
ranks = 4
messages = 40
size = "64KiB"

[fabric]
kind = "graph"
cable_us = 1

[fabric.graph]
hosts = ["a", "b", "c", "d"]
switches = ["left", "right"]
cable = [
    { ends = ["a", "left"] }, { ends = ["left", "b"] }, { ends = ["c", "right"] }, { ends = ["d", "right"] },
    { ends = ["left", "right"], count = 2, rate_gbps = 50, delay_us = 10 },
]

[expect]
bytes_wrong = 0
"""


def test_a_listed_graph_has_those_rates_and_delays() -> None:
    section = scenario.parse(GRAPH, "drawn.toml").variants[0].settings.fabric
    spec = fabrics.spec(section, 4, 1)
    built = Fabric(spec, Loop(1), 1)
    ports = dict(built.all_ports())
    assert (ports["left>right#0"].rate, ports["left>right#1"].link.delay) == (50 * GBIT, 10 * US)
    assert (ports["b>left"].rate, ports["left>b"].link.delay) == (100 * GBIT, US)
    assert built.base_rtt == 2 * 12 * US == 2 * graph.longest_way(spec.topology)
    assert spec.queue.data_bytes == 100 * GBIT * 24 // 8 // 1_000_000


def test_flows_are_hashed_onto_cables_that_are_equally_short_and_a_dead_one_is_left(tmp_path: Path) -> None:
    path = tmp_path / "drawn.toml"
    path.write_text(GRAPH)
    well = run(path)
    assert well.passed
    dead = run(path, 'faults.cable=[{cables = "left-right#1", down = true, start_us = 50}]')
    assert dead.passed
    lost, evicted = (dead.variants[0].metrics[name] for name in ("fabric_lost", "evictions"))
    assert lost
    assert evicted
    assert (dead.variants[0].metrics["duration_us"] or 0) > (well.variants[0].metrics["duration_us"] or 0)


def test_ways_are_shortest_in_cables_round_a_ring_both_ways() -> None:
    names = [f"s{i}" for i in range(4)]
    cables = [GraphCable(ends=[f"h{i}", name]) for i, name in enumerate(names)]
    cables += [GraphCable(ends=[name, names[(i + 1) % 4]]) for i, name in enumerate(names)]
    section = GraphSection(hosts=[f"h{i}" for i in range(4)], switches=names, cable=cables)
    built = Fabric(fabrics.spec(FabricSection(kind="graph", graph=section), 4, 1), Loop(1), 1)
    edge = {switch.name: switch.number for switch in built.edges}
    assert [len(built.switches["s0"].ways[edge[name]]) for name in names] == [0, 1, 2, 1]


def test_pfc_is_allowed_where_ways_only_go_up_and_down() -> None:
    for shape in (shapes.leaf_spine(8, 2, 3, GBIT, GBIT, US), shapes.fat_tree(4, GBIT, US)):
        graph.check_lossless(shape)


def test_uplinks_that_do_not_come_out_even_are_refused() -> None:
    tier = {"downlink_speed": GBIT, "downlink_latency": NS}
    tiers = (
        topo.Tier(radix_down=2, radix_up=3, **tier), topo.Tier(radix_down=3, radix_up=3, **tier),
        topo.Tier(radix_down=9, **tier),
    )  # fmt: skip
    odd = topo.Topology(12, 4, tiers)
    with pytest.raises(ConfigError, match="odd: tier 1"):
        from_file(odd, "odd")
