"""Whole fabrics: every host reaches every other by shortest ways, hashes spread flows as theory says, bad graphs are
refused."""

from __future__ import annotations

import pytest

from testbed.rank import address_of
from testbed.sim import shapes
from testbed.sim.fabric import Fabric, FabricSpec
from testbed.sim.loop import Loop
from testbed.sim.spec import Cable, PfcSpec, PoolSpec, QueueSpec, Topology
from transport.clock import US
from transport.errors import ConfigError
from transport.packet import ECT_0, Packet

GBIT = 1_000_000_000
RATE = 100 * GBIT


def fabric(topology: Topology, seed: int = 1, queue: QueueSpec | None = None, **more: object) -> Fabric:
    return Fabric(FabricSpec(topology, queue or QueueSpec(), **more), Loop(seed), seed)  # type: ignore[arg-type]


def packet(dst: int, entropy: int = 0xC000, plane: int = 0, length: int = 1000) -> Packet:
    made = Packet()
    made.dst = address_of(dst, plane)
    made.entropy = entropy
    made.length = length
    made.ecn = ECT_0
    return made


def push(built: Fabric, src: int, item: Packet) -> None:
    """Send it as soon as the host's port has room."""
    while not built.hosts[src].send(item, built.loop.now):
        built.loop.run(1 << 60, 1)


def run(built: Fabric) -> None:
    while built.loop.run(1 << 60, 1_000_000):
        pass


SHAPES = {
    "star": (shapes.star(6, RATE, US), 2),
    "dumbbell": (shapes.dumbbell(6, RATE, RATE, US), 3),
    "leaf_spine": (shapes.leaf_spine(8, 2, 3, RATE, RATE, US), 4),
    "fat_tree": (shapes.fat_tree(4, RATE, US), 6),
    "fat_tree, oversubscribed": (shapes.fat_tree(8, RATE, US, 2), 6),
    "rail_optimised": (shapes.rail_optimised(4, 2, 2, RATE, RATE, US), 4),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_host_reaches_every_other_and_the_longest_way_is_the_base_round_trip(name: str) -> None:
    topology, cables = SHAPES[name]
    built = fabric(topology)
    hosts = built.hosts[:24]
    for src in range(len(hosts)):
        for dst in range(len(hosts)):
            if src != dst:
                push(built, src, packet(dst, 0xC000 + src))
    run(built)
    assert all(len(host.inbox) == len(hosts) - 1 for host in hosts)
    assert built.base_rtt == 2 * cables * US
    assert all(port.data.size == port.control.size == 0 for _, port in built.all_ports())


def test_a_way_is_shortest_and_takes_as_long_as_its_cables_and_frames() -> None:
    built = fabric(shapes.leaf_spine(8, 2, 3, RATE, RATE, US))
    frame = 1064 * 80
    for dst, hops in ((1, 2), (7, 4)):
        built.hosts[0].send(packet(dst), built.loop.now)
        begin = built.loop.now
        run(built)
        assert built.hosts[dst].inbox[0].received_at - begin == hops * (US + frame)


def test_the_number_of_hosts_and_switches_is_the_papers() -> None:
    """Al-Fares et al.: k pods of k/2 edges and k/2 aggregations, (k/2)^2 cores, k^3/4 hosts."""
    topology = shapes.fat_tree(8, RATE, US)
    assert len(topology.hosts) == 128
    assert len(topology.switches) == 32 + 32 + 16
    assert len(topology.cables) == 3 * 128


def test_planes_are_apart() -> None:
    built = fabric(shapes.multi_plane(2, 4, 2, 2, RATE, RATE, US), planes=2)
    built.hosts[0].send(packet(3, plane=0), 0)
    built.hosts[4].send(packet(3, plane=1), 0)
    run(built)
    assert len(built.hosts[3].inbox) == len(built.hosts[7].inbox) == 1
    assert {name for name, port in built.all_ports() if port.packets and ".1" in name} >= {"h0.1>leaf0.1"}
    built.hosts[0].send(packet(9), built.loop.now)
    assert built.hosts[0].unreachable == 1


def shares(topology: Topology, flows: int, entropies: int, seed: int, mode: str = "ecmp") -> float:
    """Of the capacity of leaf 0's uplinks, what its hosts get through in the time that a full use of all would take."""
    built = fabric(topology, seed, mode=mode)
    each = 64 if entropies > 1 or mode != "ecmp" else 4
    for i in range(each):
        for src in range(flows):
            push(built, src, packet(flows + src, 0xC000 + seed * 64 + (i % entropies)))
    run(built)
    uplinks = [port for (one, other), ports in built.ports.items() for port in ports
               if one == "leaf0" and other.startswith("spine")]  # fmt: skip
    assert sum(port.packets for port in uplinks) == flows * each
    # Fair sharing: a link with n flows gives each 1/n of what it carries, and a flow has no more than its host's rate.
    if entropies == 1 and mode == "ecmp":
        return sum(min(1.0, port.packets / each * RATE / port.rate) * port.rate for port in uplinks) / (flows * RATE)
    busiest = max(port.packets * RATE / port.rate for port in uplinks)
    return flows * each * RATE / sum(port.rate for port in uplinks) / busiest


def test_e5_one_source_port_a_flow_leaves_capacity_idle_and_spraying_does_not() -> None:
    """32 flows on 32 uplinks: (1 - 1/32)^32 of them idle, 63.9 % used. 64 flows on 32 of twice the rate: 73.3 %."""
    equal = shapes.leaf_spine(64, 32, 32, RATE, RATE, US)
    double = shapes.leaf_spine(128, 64, 32, RATE, 2 * RATE, US)
    assert sum(shares(equal, 32, 1, seed) for seed in range(50)) / 50 == pytest.approx(0.639, abs=0.03)
    assert sum(shares(double, 64, 1, seed) for seed in range(50)) / 50 == pytest.approx(0.733, abs=0.03)


def test_spreading_over_source_ports_fills_the_uplinks() -> None:
    topology = shapes.leaf_spine(16, 8, 8, RATE, RATE, US)
    sprayed = sum(shares(topology, 8, 64, seed) for seed in range(10)) / 10
    single = sum(shares(topology, 8, 1, seed) for seed in range(10)) / 10
    by_switch = sum(shares(topology, 8, 1, seed, "spray") for seed in range(10)) / 10
    adaptive = sum(shares(topology, 8, 1, seed, "adaptive") for seed in range(10)) / 10
    assert single < 0.75 < sprayed
    assert by_switch > 0.75
    assert adaptive > by_switch


def test_the_same_source_port_is_the_same_path_and_another_seed_another_one() -> None:
    topology = shapes.leaf_spine(16, 8, 8, RATE, RATE, US)

    def used(seed: int, entropy: int) -> list[str]:
        built = fabric(topology, seed)
        for _ in range(5):
            built.hosts[0].send(packet(9, entropy), built.loop.now)
            run(built)
        return [name for name, port in built.all_ports() if name.startswith("leaf0>spine") and port.packets]

    assert all(len(used(1, entropy)) == 1 for entropy in range(0xC000, 0xC020))
    assert len({used(1, entropy)[0] for entropy in range(0xC000, 0xC040)}) == 8
    assert len({used(seed, 0xC000)[0] for seed in range(20)}) > 4


def test_two_symmetric_senders_share_their_losses() -> None:
    """Both send a frame in every picosecond slot, so that they always meet at the port of the third."""
    built = fabric(shapes.star(3, RATE, US), queue=QueueSpec(data_bytes=4 * 1064))
    for _ in range(2000):
        for src in (0, 1):
            push(built, src, packet(2, 0xC000 + src))
    run(built)
    got = [sum(item.entropy == 0xC000 + src for item in built.hosts[2].inbox) for src in (0, 1)]
    assert sum(got) < 2500
    assert abs(got[0] - got[1]) < 0.1 * sum(got)


def test_pfc_loses_nothing_where_queues_alone_would() -> None:
    topology = shapes.star(9, RATE, US)

    def dropped(**more: object) -> tuple[int, int]:
        built = fabric(topology, queue=QueueSpec(data_bytes=20_000) if not more else QueueSpec(), **more)
        left = [300] * 8
        while any(left):
            for src in range(8):
                while left[src] and built.hosts[src].send(packet(8), built.loop.now):
                    left[src] -= 1
            if not built.loop.run(1 << 60, 1):
                break
        run(built)
        assert len(built.hosts[8].inbox) + built.counters()["dropped"] + built.counters()["headroom_drops"] == 2400
        return built.counters()["dropped"] + built.counters()["headroom_drops"], built.counters()["pauses"]

    assert dropped() > (1000, 0)
    lost, pauses = dropped(pfc=PfcSpec(20_000, 10_000))
    assert (lost, pauses > 8) == (0, True)
    lost, _ = dropped(pfc=PfcSpec(20_000, 10_000, headroom=2000))
    assert lost > 0  # too small for what the cable holds


def test_a_shared_buffer_limits_all_ports_of_a_switch_together() -> None:
    built = fabric(shapes.star(10, RATE, US), pool=PoolSpec(20_000, 8.0))
    for _ in range(20):
        for src in range(8):
            for dst in (8, 9):
                push(built, src, packet(dst))
    run(built)
    assert built.counters()["dropped"] > 0
    assert sum(built.ports["leaf0", f"h{dst}"][0].peak for dst in (8, 9)) <= 2 * 20_000


CABLES = (Cable("h0", "a", RATE, US), Cable("h1", "b", RATE, US))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fabric(Topology(("a", "b"), ("h0", "h1"), CABLES)), "there is no way from h0 to h1"),
        (lambda: Topology(("a",), ("h0", "h1"), CABLES[:1]), "host port h1 has 0 cables: 1 is allowed"),
        (lambda: Topology(("a", "b"), ("h0",), (CABLES[0], Cable("h0", "b", RATE, US))), "h0 has 2 cables"),
        (lambda: Topology(("a",), ("h0",), (Cable("h0", "c", RATE, US),)), "cable h0 to c: c is no switch"),
        (lambda: Topology(("a",), ("h0", "h0"), ()), "topology: h0 is there twice"),
        (lambda: Cable("h0", "a", 0, US), r"cable h0 to a: rate = 0: allowed are 1 to \d+ bits per second"),
        (lambda: Cable("h0", "a", RATE, -1), r"cable h0 to a: delay = -1: allowed are 0 to"),
        (lambda: Cable("a", "a", RATE, US), "cable a to a: both ends are the same"),
        (lambda: Topology((), ("h0", "h1"), (Cable("h0", "h1", RATE, US),)), "h0 to h1: one end must be a switch"),
        (lambda: shapes.leaf_spine(9, 2, 2, RATE, RATE, US), "hosts = 9: a multiple of 2 is allowed"),
        (lambda: shapes.fat_tree(5, RATE, US), "radix = 5: a multiple of 2 is allowed"),
        (lambda: FabricSpec(SHAPES["star"][0], QueueSpec(), "ospf"), "switch = 'ospf': allowed are ecmp, spray"),
        (lambda: FabricSpec(SHAPES["star"][0], QueueSpec(), planes=4), "planes = 4: the 6 host ports"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        make()
