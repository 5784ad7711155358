"""What a topology is as a graph: its shortest ways, by which a fabric is built, how long they are, whether it hangs
together, and whether flow control can lock it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from testbed.sim.spec import Topology
from transport.clock import Time
from transport.errors import ConfigError

#: The switches beside each switch, with the delay of the first cable to it.
_Neighbours = Mapping[str, Mapping[str, Time]]


def check_connected(topology: Topology, planes: int = 1) -> None:
    """ConfigError if there is no way between two host ports of one plane. planes: the host ports are those of so many,
    one after the other."""
    homes = _homes(topology)
    neighbours = _neighbours(topology)
    per_plane = len(topology.hosts) // planes
    for plane in range(planes):
        hosts = topology.hosts[plane * per_plane : (plane + 1) * per_plane]
        reached = {name for name, _ in _outwards(neighbours, homes[hosts[0]])}
        for host in hosts:
            if homes[host] not in reached:
                raise ConfigError(
                    f"topology: there is no way from {hosts[0]} to {host}: every host must reach every other"
                )


class Ways(NamedTuple):
    """The shortest ways, in number of cables, to the switch `edge`, which has hosts. nearer: of every other switch that
    can reach it, nearest first, the neighbours that are one cable nearer. longest: picoseconds on the cables of the
    longest of these ways, from host to host."""

    edge: str
    nearer: dict[str, list[str]]
    longest: Time


def ways(topology: Topology) -> Iterator[Ways]:
    """Those to each switch that has hosts."""
    neighbours = _neighbours(topology)
    last: dict[str, Time] = {}
    homes = _homes(topology)
    for cable in topology.cables:
        for host in (cable.one, cable.other):
            if host in homes:
                last[homes[host]] = max(last.get(homes[host], 0), cable.delay)
    for edge, down in last.items():
        nearer = dict(_outwards(neighbours, edge))
        del nearer[edge]
        delay: dict[str, Time] = {edge: 0}
        for name, others in nearer.items():
            cables = neighbours[name]
            delay[name] = max([delay[other] + cables[other] for other in others])
        longest = max(delay[name] + down + last[name] for name in delay if name in last)
        yield Ways(edge, nearer, longest)


def longest_way(topology: Topology) -> Time:
    """Picoseconds on the cables of the longest of all shortest ways from host to host, one way."""
    return max(found.longest for found in ways(topology))


def check_lossless(topology: Topology) -> None:
    """ConfigError if switches that stop each other (PFC) can do so in a circle and stand still for good: if by the
    shortest ways cables between switches wait for each other in a circle (Dally and Seitz, Deadlock-free message
    routing in multiprocessor interconnection networks, IEEE Transactions on Computers 1987)."""
    edges = set(_homes(topology).values())
    waits: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for found in ways(topology):
        used = set(edges)
        for name in reversed(found.nearer):  # the farthest first
            if name not in used:
                continue
            for following in found.nearer[name]:
                used.add(following)
                behind = waits.setdefault((name, following), set())
                behind.update((following, last) for last in found.nearer.get(following, ()))
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = [one for one, _ in reversed(error.args[1])]
        raise ConfigError(
            f"pfc_xoff: the shortest ways go round {', '.join(circle)}, where each switch may stop the one before it "
            "for good: allowed is 0, or a topology without such a circle"
        ) from None


def _outwards(neighbours: _Neighbours, start: str) -> Iterator[tuple[str, list[str]]]:
    """Every switch that can be reached from `start`, nearest first, with its neighbours that are one cable nearer."""
    distance = {start: 0}
    waiting = deque([start])
    while waiting:
        name = waiting.popleft()
        for other in neighbours[name]:
            if other not in distance:
                distance[other] = distance[name] + 1
                waiting.append(other)
        yield name, [other for other in neighbours[name] if distance[other] < distance[name]]


def _neighbours(topology: Topology) -> dict[str, dict[str, Time]]:
    found: dict[str, dict[str, Time]] = {name: {} for name in topology.switches}
    for cable in topology.cables:
        if cable.one in found and cable.other in found:
            found[cable.one].setdefault(cable.other, cable.delay)
            found[cable.other].setdefault(cable.one, cable.delay)
    return found


def _homes(topology: Topology) -> dict[str, str]:
    """The switch of each host port."""
    hosts = set(topology.hosts)
    ends = ((cable.one, cable.other) for cable in topology.cables)
    return {one: other for pair in ends for one, other in (pair, pair[::-1]) if one in hosts}
