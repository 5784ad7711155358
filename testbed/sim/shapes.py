"""The usual topologies. Names: h3 is a host port (h3.1 on the second plane), leaf0, spine0, edge0, aggregation0, core0.

Rates are bits per second, delays picoseconds one way on each cable.
"""

from __future__ import annotations

from testbed.sim.spec import Cable, Topology
from transport.clock import Time
from transport.errors import ConfigError


def star(hosts: int, rate: int, delay: Time) -> Topology:
    """One switch."""
    return Topology(("leaf0",), _hosts(hosts), tuple(Cable(host, "leaf0", rate, delay) for host in _hosts(hosts)))


def dumbbell(hosts: int, rate: int, uplink: int, delay: Time) -> Topology:
    """Two switches with half of the hosts each, and one cable of rate `uplink` between them."""
    _even("hosts", hosts, 2)
    names = _hosts(hosts)
    cables = [Cable(host, f"leaf{number * 2 // hosts}", rate, delay) for number, host in enumerate(names)]
    return Topology(("leaf0", "leaf1"), names, (*cables, Cable("leaf0", "leaf1", uplink, delay)))


def leaf_spine(hosts: int, per_leaf: int, spines: int, rate: int, uplink: int, delay: Time, plane: int = 0) -> Topology:
    """Two tiers: every leaf has `per_leaf` hosts, and one cable of rate `uplink` to each spine."""
    _even("hosts", hosts, per_leaf)
    leaves = [_on(f"leaf{number}", plane) for number in range(hosts // per_leaf)]
    tops = [_on(f"spine{number}", plane) for number in range(spines)]
    names = tuple(_on(name, plane) for name in _hosts(hosts))
    down = [Cable(name, leaves[number // per_leaf], rate, delay) for number, name in enumerate(names)]
    up = [Cable(leaf, top, uplink, delay) for leaf in leaves for top in tops]
    return Topology((*leaves, *tops), names, (*down, *up))


def fat_tree(radix: int, rate: int, delay: Time, oversubscription: int = 1) -> Topology:
    """Three tiers of switches with `radix` ports: radix**3 / 4 hosts in `radix` pods (Al-Fares et al., A scalable,
    commodity data center network architecture, SIGCOMM 2008, section 3.1). oversubscription: so many times as many
    hosts at each edge switch as it has ports up."""
    _even("radix", radix, 2)
    half = radix // 2
    _even(f"half of radix {radix}", half, oversubscription)
    ups = half // oversubscription
    hosts: list[str] = []
    switches: list[str] = []
    cables: list[Cable] = []
    for pod in range(radix):
        edges = [f"edge{pod * half + i}" for i in range(half)]
        middles = [f"aggregation{pod * ups + i}" for i in range(ups)]
        switches += [*edges, *middles]
        for edge in edges:
            for _ in range(half):
                hosts.append(f"h{len(hosts)}")
                cables.append(Cable(hosts[-1], edge, rate, delay))
            cables += [Cable(edge, middle, rate, delay) for middle in middles]
        for i, middle in enumerate(middles):
            cables += [Cable(middle, f"core{i * half + j}", rate, delay) for j in range(half)]
    switches += [f"core{i}" for i in range(ups * half)]
    return Topology(tuple(switches), tuple(hosts), tuple(cables))


def rail_optimised(servers: int, rails: int, spines: int, rate: int, uplink: int, delay: Time) -> Topology:
    """Server s has `rails` NICs, hosts s * rails to s * rails + rails - 1; NIC i of every server is at leaf i."""
    hosts = _hosts(servers * rails)
    leaves = [f"leaf{number}" for number in range(rails)]
    tops = [f"spine{number}" for number in range(spines)]
    down = [Cable(host, leaves[number % rails], rate, delay) for number, host in enumerate(hosts)]
    up = [Cable(leaf, top, uplink, delay) for leaf in leaves for top in tops]
    return Topology((*leaves, *tops), hosts, (*down, *up))


def multi_plane(
    planes: int, hosts: int, per_leaf: int, spines: int, rate: int, uplink: int, delay: Time
) -> Topology:  # fmt: skip
    """As many leaf-spine fabrics as there are planes, with nothing between them; every host has a port on each."""
    parts = [leaf_spine(hosts, per_leaf, spines, rate, uplink, delay, plane) for plane in range(planes)]
    return Topology(
        tuple(name for part in parts for name in part.switches),
        tuple(name for part in parts for name in part.hosts),
        tuple(cable for part in parts for cable in part.cables),
    )


def _hosts(count: int) -> tuple[str, ...]:
    return tuple(f"h{number}" for number in range(count))


def _on(name: str, plane: int) -> str:
    return f"{name}.{plane}" if plane else name


def _even(name: str, value: int, divisor: int) -> None:
    if divisor < 1 or value < divisor or value % divisor:
        raise ConfigError(f"{name} = {value}: a multiple of {divisor} is allowed")
