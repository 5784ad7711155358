"""From the [fabric] section and the cable faults of a scenario to what the simulator builds."""

from __future__ import annotations

import fnmatch
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.drawn import Drawn, from_file, from_section
from testbed.sections import CableFault, FabricSection
from testbed.sim import graph, shapes
from testbed.sim.fabric import FabricSpec
from testbed.sim.spec import UNLIMITED, PfcSpec, PoolSpec, QueueSpec, Topology
from testbed.simulated import CableChange
from testbed.workloads.readers import topo
from testbed.workloads.readers.files import read_text
from transport.clock import SECOND, US
from transport.errors import ConfigError


def spec(section: FabricSection, ranks: int, ports: int) -> FabricSpec:
    """The fabric for so many ranks, each with so many ports. ConfigError names what is wrong."""
    drawn = draw(section, ranks, ports)
    shape = drawn.topology
    if len(shape.hosts) < ranks * ports:
        raise ConfigError(
            f"fabric: {section.kind} has {len(shape.hosts)} host ports, the workload needs {ranks * ports}"
        )
    fastest = max(cable.rate for cable in shape.cables)
    bdp = round(fastest * (2 * drawn.longest / SECOND) / 8)
    low = section.ecn_low if section.ecn_low is not None else section.ecn
    high = section.ecn_high if section.ecn_high is not None else section.ecn
    queue = QueueSpec(
        data_bytes=UNLIMITED if section.pfc_xoff else section.queue or max(bdp, 16 * 4160),
        control_bytes=max(bdp, 65536),
        trim=section.trim,
        ecn_low=bdp // 5 if low is None else low,
        ecn_high=bdp * 4 // 5 if high is None else high,
        cut_through=section.cut_through,
        int_telemetry=section.int_telemetry,
    )
    pfc = None
    if section.pfc_xoff:
        xon = section.pfc_xoff - 2 * 4160 if section.pfc_xon is None else section.pfc_xon
        pfc = PfcSpec(section.pfc_xoff, max(0, xon), section.pfc_headroom)
        if section.kind == "graph":  # ways through the other shapes go up and then down, never round
            graph.check_lossless(shape)
    pool = PoolSpec(section.shared_buffer, section.shared_alpha) if section.shared_buffer else None
    own = {} if section.pfc_xoff or section.queue else _own_queues(drawn, queue, low, high, section.file or "")
    return FabricSpec(shape, queue, section.switch, ports, pfc, pool, section.priorities, own)


def _own_queues(
    drawn: Drawn, queue: QueueSpec, low: int | None, high: int | None, source: str
) -> dict[tuple[str, str], QueueSpec]:  # fmt: skip
    """Of the ports for which a topology file gives bytes. low, high: thresholds of marks that the scenario gives."""
    found: dict[int, QueueSpec] = {}
    for size in set(drawn.queues.values()):
        if not 4160 <= size <= UNLIMITED:
            raise ConfigError(f"{source}: queue = {size}: allowed are 4160 to {UNLIMITED} bytes")
        found[size] = replace(
            queue, data_bytes=size, ecn_low=size // 5 if low is None else low,
            ecn_high=size * 4 // 5 if high is None else high,
        )  # fmt: skip
    return {port: found[size] for port, size in drawn.queues.items()}


def draw(section: FabricSection, ranks: int, ports: int) -> Drawn:
    """The graph of a fabric; as many hosts as there are ranks, rounded up to what the shape can have, or those that a
    file or the scenario lists."""
    if ports > 1 and section.kind not in ("star", "leaf_spine"):
        raise ConfigError(f"fabric.kind = {section.kind!r} with {ports} ports: allowed are star, leaf_spine")
    if section.kind in _CABLES:
        shape = _shape(section, ranks, ports)
        return Drawn(shape, _CABLES[section.kind] * round(_cable_us(section) * US), {})
    if section.kind == "topo":
        if section.file is None:
            raise ConfigError("fabric.file is missing: fabric.kind = 'topo' needs a topology file of htsim")
        return from_file(topo.parse(read_text(Path(section.file)), section.file), section.file)
    if section.graph is None:
        raise ConfigError("fabric.graph is missing: fabric.kind = 'graph' needs its hosts, switches and cables")
    listed = from_section(section.graph, _rate(section), round(_cable_us(section) * US))
    return Drawn(listed, graph.longest_way(listed), {})


def _rate(section: FabricSection) -> int:
    rate = round(section.rate_gbps * 1e9)
    if rate == 0:
        raise ConfigError("fabric.rate_gbps = 0: a rate above 0 is allowed on a simulated fabric")
    return rate


def _shape(section: FabricSection, ranks: int, ports: int) -> Topology:
    rate = _rate(section)
    uplink = rate if section.uplink_gbps is None else round(section.uplink_gbps * 1e9)
    delay = round(_cable_us(section) * US)
    hosts = max(ranks, section.hosts or 0)
    leaf = section.hosts_per_leaf
    whole = -(-hosts // leaf) * leaf
    if ports > 1:
        per_leaf, spines = (hosts, 1) if section.kind == "star" else (leaf, section.spines)
        return shapes.multi_plane(ports, -(-hosts // per_leaf) * per_leaf, per_leaf, spines, rate, uplink, delay)
    if section.kind == "star":
        return shapes.star(hosts, rate, delay)
    if section.kind == "dumbbell":
        return shapes.dumbbell(hosts + hosts % 2, rate, uplink, delay)
    if section.kind == "leaf_spine":
        return shapes.leaf_spine(whole, leaf, section.spines, rate, uplink, delay)
    if section.kind == "rail_optimised":
        servers = -(-hosts // section.rails)
        return shapes.rail_optimised(servers, section.rails, section.spines, rate, uplink, delay)
    return shapes.fat_tree(section.radix, rate, delay, section.oversubscription)


#: Cables on the longest way between two hosts.
_CABLES = {"star": 2, "dumbbell": 3, "leaf_spine": 4, "rail_optimised": 4, "fat_tree": 6}


def changes(faults: Sequence[CableFault], shape: Topology, seed: int) -> list[CableChange]:
    """What happens to cables, and when it ends. ConfigError if a pattern matches none."""
    found = []
    cables = _named(shape)
    names = list(cables)
    for number, fault in enumerate(faults):
        matching = [name for name in names if fnmatch.fnmatchcase(name, fault.cables)]
        if not matching:
            raise ConfigError(
                f"faults.cable: cables = {fault.cables!r} matches none; there are {names[0]} to {names[-1]}"
            )
        if fault.share is not None:
            count = max(1, round(len(matching) * fault.share))
            matching = random.Random(f"{seed} cable fault {number}").sample(matching, count)
        ports = tuple(port for name in matching for port in cables[name])
        rate = 1.0 if fault.rate is None else fault.rate
        found.append(CableChange(round(fault.start_us * US), ports, rate, fault.loss, not fault.down))
        if fault.end_us is not None:
            found.append(CableChange(round(fault.end_us * US), ports))
    return found


def _named(shape: Topology) -> dict[str, tuple[str, str]]:
    """The two ports of each cable, named as testbed.sim.fabric.Fabric.all_ports does, by the name of the cable. Several
    between the same nodes are numbered."""
    pairs = [frozenset((cable.one, cable.other)) for cable in shape.cables]
    several = Counter(pairs)
    met: Counter[frozenset[str]] = Counter()
    found = {}
    for cable, pair in zip(shape.cables, pairs, strict=True):
        number = f"#{met[pair]}" if several[pair] > 1 else ""
        met[pair] += 1
        one, other = cable.one, cable.other
        found[f"{one}-{other}{number}"] = (f"{one}>{other}{number}", f"{other}>{one}{number}")
    return found


def _cable_us(section: FabricSection) -> float:
    """Of one cable: given, or such that a host's way to another one beside it takes `delay_us`."""
    return section.delay_us / 2 if section.cable_us is None else section.cable_us
