"""Builds a fabric out of its description: nodes, ports, links, and the way to every edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testbed.sim import graph
from testbed.sim.frame import Frames
from testbed.sim.loop import Loop
from testbed.sim.mix import seed_of
from testbed.sim.nic import Attachment, Exit, HostPort
from testbed.sim.pfc import Ingress
from testbed.sim.port import HEADER_BYTES, Link, Node, Pool, Port
from testbed.sim.spec import Cable, PfcSpec, PoolSpec, QueueSpec, Topology
from testbed.sim.switch import MODES, Switch
from transport.clock import Time, transmit_time
from transport.errors import ConfigError

#: A host's own queue: it waits, it does not drop or mark.
_HOST_QUEUE = QueueSpec()


@dataclass(frozen=True)
class FabricSpec:
    """A topology and what its switches do. planes: the host ports of the topology are those of so many planes, one
    after the other. mode: one of testbed.sim.switch.MODES. priorities: hosts put control packets into the class that is
    served first; without, they wait in line with data and count as such. queues: of ports with one of their own, by the
    names of the nodes they lead from and to."""

    topology: Topology
    queue: QueueSpec
    mode: str = "ecmp"
    planes: int = 1
    pfc: PfcSpec | None = None
    pool: PoolSpec | None = None
    priorities: bool = True
    queues: Mapping[tuple[str, str], QueueSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"switch = {self.mode!r}: allowed are {', '.join(MODES)}")
        if self.planes < 1 or len(self.topology.hosts) % self.planes:
            raise ConfigError(
                f"planes = {self.planes}: the {len(self.topology.hosts)} host ports must be as many on each"
            )
        graph.check_connected(self.topology, self.planes)


class Fabric:
    """hosts: the host ports by number. ports: by the names of the nodes they lead from and to, several where nodes have
    several cables. rate: of the slowest host port; base_rtt: of the longest way, picoseconds, without serialization."""

    def __init__(self, spec: FabricSpec, loop: Loop, seed: int) -> None:
        self.spec = spec
        self.loop = loop
        self.frames = Frames()
        topology = spec.topology
        mode = MODES[spec.mode]
        self.switches = {name: Switch(name, mode, seed_of(seed, "switch", name)) for name in topology.switches}
        self.attachments: list[Attachment] = []
        per_plane = len(topology.hosts) // spec.planes
        self.hosts = [
            HostPort(number, per_plane, loop, self.frames, self.attachments) for number in range(len(topology.hosts))
        ]
        self.ports: dict[tuple[str, str], list[Port]] = {}
        nodes: dict[str, Node] = {**self.switches}
        numbers = {name: number for number, name in enumerate(topology.hosts)}
        nodes |= {name: Exit(self.hosts[number]) for name, number in numbers.items()}
        for number, cable in enumerate(topology.cables):
            pair = [self._port(cable, one, other, nodes, f"{seed} cable {number}") for one, other in _ends(cable)]
            if spec.pfc is not None:
                self._control_flow(cable, pair, spec.pfc)
        self._share(spec.pool)
        self.edges = self._attach(numbers)
        hops = self._find_ways()
        self.rate = min(host.port.rate for host in self.hosts)
        self.base_rtt = 2 * hops

    # Building

    def _port(self, cable: Cable, one: str, other: str, nodes: dict[str, Node], seed: str) -> Port:
        link = Link(self.loop, self.frames, nodes[other], cable.delay, seed_of(seed, one, "link"))
        spec = self.spec.queues.get((one, other), self.spec.queue) if one in self.switches else _HOST_QUEUE
        port = Port(self.loop, self.frames, link, cable.rate, spec, seed_of(seed, one, "port"))
        port.cut_through = self.spec.queue.cut_through and other in self.switches
        self.ports.setdefault((one, other), []).append(port)
        return port

    def _control_flow(self, cable: Cable, pair: list[Port], pfc: PfcSpec) -> None:
        """A switch at the end of a link stops the port at its beginning."""
        for port, (_, other) in zip(pair, _ends(cable), strict=True):
            if other in self.switches:
                # What is in flight, both ways, and a whole frame at each end that cannot be stopped.
                needed = 2 * cable.delay * cable.rate // 8_000_000_000_000 + 4 * (4096 + HEADER_BYTES)
                delay = cable.delay + transmit_time(HEADER_BYTES, cable.rate)
                port.link.ingress = Ingress(self.loop, port, delay, pfc.xoff, pfc.xon, pfc.headroom or needed)

    def _share(self, pool: PoolSpec | None) -> None:
        if pool is None:
            return
        pools = {name: Pool(pool.size, round(pool.alpha * 256)) for name in self.switches}
        for (one, _), ports in self.ports.items():
            for port in ports:
                port.pool = pools.get(one)

    def _attach(self, numbers: dict[str, int]) -> list[Switch]:
        """Give each host port its place at its switch, and the switches with hosts their numbers."""
        edges: list[Switch] = []
        homes = {one: other for cable in self.spec.topology.cables for one, other in _ends(cable) if one in numbers}
        for name, number in numbers.items():
            edge = homes[name]
            switch = self.switches[edge]
            if switch.number < 0:
                switch.number = len(edges)
                edges.append(switch)
            self.attachments.append(Attachment(switch.number, len(switch.down)))
            switch.down.append(self.ports[edge, name][0])
            host = self.hosts[number]
            host.port = self.ports[name, edge][0]
            host.port.host = host
        return edges

    def _find_ways(self) -> Time:
        """At each switch, the ports on shortest ways to each edge, all that are equally short. Returns the delay of the
        longest way from host to host."""
        for switch in self.switches.values():
            switch.ways = [()] * len(self.edges)
        longest = 0
        for found in graph.ways(self.spec.topology):
            number = self.switches[found.edge].number
            for name, nearer in found.nearer.items():
                self.switches[name].ways[number] = tuple(port for other in nearer for port in self.ports[name, other])
            longest = max(longest, found.longest)
        return longest

    # Sums

    def all_ports(self) -> Iterable[tuple[str, Port]]:
        """Every port with its name."""
        for (one, other), ports in self.ports.items():
            for number, port in enumerate(ports):
                yield f"{one}>{other}" + (f"#{number}" if len(ports) > 1 else ""), port

    def packet_hops(self) -> int:
        """Data packets that crossed a link, each counted on each; control and trimmed ones are not."""
        return sum(port.packets for _, port in self.all_ports())

    def counters(self) -> dict[str, int]:
        """Of all ports and links together."""
        ports = [port for _, port in self.all_ports()]
        names = ("packets", "control_packets", "marked", "trimmed", "dropped", "control_dropped", "pauses")
        found = {name: sum(getattr(port, name) for port in ports) for name in names}
        found["lost_on_links"] = sum(port.link.lost for port in ports)
        ingresses = {id(port.link.ingress): port.link.ingress for port in ports if port.link.ingress is not None}
        found["headroom_drops"] = sum(ingress.dropped for ingress in ingresses.values())
        return found


def _ends(cable: Cable) -> tuple[tuple[str, str], tuple[str, str]]:
    return (cable.one, cable.other), (cable.other, cable.one)
