"""From the [fabric] section and the cable faults of a scenario to what the simulator builds."""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Sequence

from testbed.sections import CableFault, FabricSection
from testbed.sim import shapes
from testbed.sim.fabric import FabricSpec
from testbed.sim.spec import UNLIMITED, PfcSpec, PoolSpec, QueueSpec, Topology
from testbed.simulated import CableChange
from transport.clock import SECOND, US
from transport.errors import ConfigError


def spec(section: FabricSection, ranks: int, ports: int) -> FabricSpec:
    """The fabric for so many ranks, each with so many ports. ConfigError names what is wrong."""
    shape = topology(section, ranks, ports)
    if len(shape.hosts) < ranks * ports:
        raise ConfigError(
            f"fabric: {section.kind} has {len(shape.hosts)} host ports, the workload needs {ranks * ports}"
        )
    fastest = max(cable.rate for cable in shape.cables)
    bdp = round(fastest * _round_trip(section) / 8)
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
    pool = PoolSpec(section.shared_buffer, section.shared_alpha) if section.shared_buffer else None
    return FabricSpec(shape, queue, section.switch, ports, pfc, pool, section.priorities)


def topology(section: FabricSection, ranks: int, ports: int) -> Topology:
    """The graph of a fabric; as many hosts as there are ranks, rounded up to what the shape can have."""
    rate = round(section.rate_gbps * 1e9)
    if rate == 0:
        raise ConfigError("fabric.rate_gbps = 0: a rate above 0 is allowed on a simulated fabric")
    uplink = rate if section.uplink_gbps is None else round(section.uplink_gbps * 1e9)
    delay = round(_cable_us(section) * US)
    hosts = max(ranks, section.hosts or 0)
    leaf = section.hosts_per_leaf
    whole = -(-hosts // leaf) * leaf
    if ports > 1:
        if section.kind not in ("star", "leaf_spine"):
            raise ConfigError(f"fabric.kind = {section.kind!r} with {ports} ports: allowed are star, leaf_spine")
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


def changes(faults: Sequence[CableFault], shape: Topology, seed: int) -> list[CableChange]:
    """What happens to cables, and when it ends. ConfigError if a pattern matches none."""
    found = []
    names = [f"{cable.one}-{cable.other}" for cable in shape.cables]
    for number, fault in enumerate(faults):
        matching = [name for name in names if fnmatch.fnmatchcase(name, fault.cables)]
        if not matching:
            raise ConfigError(
                f"faults.cable: cables = {fault.cables!r} matches none; there are {names[0]} to {names[-1]}"
            )
        if fault.share is not None:
            count = max(1, round(len(matching) * fault.share))
            matching = random.Random(f"{seed} cable fault {number}").sample(matching, count)
        ports = tuple(
            port
            for name in matching
            for one, other in [name.split("-")]
            for port in (f"{one}>{other}", f"{other}>{one}")
        )
        rate = 1.0 if fault.rate is None else fault.rate
        found.append(CableChange(round(fault.start_us * US), ports, rate, fault.loss, not fault.down))
        if fault.end_us is not None:
            found.append(CableChange(round(fault.end_us * US), ports))
    return found


def _cable_us(section: FabricSection) -> float:
    """Of one cable: given, or such that a host's way to another one beside it takes `delay_us`."""
    return section.delay_us / 2 if section.cable_us is None else section.cable_us


def _round_trip(section: FabricSection) -> float:
    """Seconds for propagation there and back on the longest way."""
    cables = {"star": 2, "dumbbell": 3, "leaf_spine": 4, "rail_optimised": 4, "fat_tree": 6}[section.kind]
    return 2 * cables * _cable_us(section) * US / SECOND
