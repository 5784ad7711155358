"""Fabrics that somebody else has drawn: out of a topology file of htsim, or cable by cable in the scenario.

A topology file is wired as htsim does it: a switch of tier 0 has links to all those of tier 1 in its pod, and the
uplinks of the switches of tier 1, taken one after the other in each pod, go to those of tier 2 in order. Switches of
the simulator take no time; half of what one takes by the file is added to each of its cables, so that ways are as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.sections import MOST_HOSTS, GraphSection
from testbed.sim.spec import Cable, Topology
from testbed.workloads.readers import topo
from transport.clock import US, Time
from transport.errors import ConfigError

#: Names of switches by tier, as testbed.sim.shapes has them.
_NAMES = {2: ("leaf", "spine"), 3: ("edge", "aggregation", "core")}


@dataclass(frozen=True)
class Drawn:
    """longest: picoseconds on the cables of the longest way, one way. queues: bytes of the data queue of the port that
    leads from a node to another, where the file says."""

    topology: Topology
    longest: Time
    queues: dict[tuple[str, str], int]


def from_file(found: topo.Topology, source: str) -> Drawn:
    """The fabric of a topology file. ConfigError for one whose links do not come out even."""
    tiers = found.tiers
    if not 2 <= found.nodes <= MOST_HOSTS:
        raise ConfigError(f"{source}: Nodes {found.nodes}: allowed are 2 to {MOST_HOSTS}")
    names = _NAMES[len(tiers)]
    hosts = tuple(f"h{number}" for number in range(found.nodes))
    below: list[str] = list(hosts)
    switches: list[str] = []
    cables: list[Cable] = []
    queues: dict[tuple[str, str], int] = {}
    longest = 0
    for number, tier in enumerate(tiers):
        under = tiers[number - 1] if number else None
        here = [f"{names[number]}{i}" for i in range(found.switches[number])]
        delay = tier.downlink_latency + (tier.switch_latency + (under.switch_latency if under else 0)) // 2
        longest += 2 * delay
        links = dict.fromkeys(here, 0)
        for one, other in _wired(found, source, number, below, here):
            links[other] += tier.bundle
            cables += [Cable(one, other, tier.downlink_speed, delay)] * tier.bundle
            if tier.queue_down is not None:
                queues[other, one] = tier.queue_down
            if under is not None and under.queue_up is not None:
                queues[one, other] = under.queue_up
        for name, count in links.items():
            if count != tier.radix_down:
                raise ConfigError(
                    f"{source}: tier {number}: Radix_Down {tier.radix_down}: {name} comes to have {count} links down; "
                    "allowed is what gives every switch of the tier as many"
                )
        switches += here
        below = here
    return Drawn(Topology(tuple(switches), hosts, tuple(cables)), longest, queues)


def _wired(
    found: topo.Topology, source: str, number: int, below: list[str], here: list[str]
) -> list[tuple[str, str]]:  # fmt: skip
    """Who is under whom in a tier, a pair for each bundle."""
    tier = found.tiers[number]
    if number == 0:
        return [(name, here[i // tier.radix_down]) for i, name in enumerate(below)]
    bundles = (found.tiers[number - 1].radix_up or 0) // tier.bundle
    top = number == len(found.tiers) - 1
    pods = found.nodes // found.podsize
    groups = 1 if top else pods  # of the switches here
    if len(here) % groups or len(below) % pods:
        raise ConfigError(
            f"{source}: tier {number}: Podsize {found.podsize}: {len(below)} switches below and {len(here)} here are "
            f"not the same in each of {pods} pods"
        )
    share = len(here) // groups
    per_pod = len(below) // pods
    pairs = []
    for i, name in enumerate(below):
        first = (i // per_pod) * share if not top else 0
        # Those of tier 0 reach every one of tier 1; those of tier 1 go on where the one before them stopped.
        place = (i % per_pod) * bundles if number == 2 else 0
        pairs += [(name, here[first + (place + j) % share]) for j in range(bundles)]
    return pairs


def from_section(section: GraphSection, rate: int, delay: Time) -> Topology:
    """The fabric that a scenario lists. rate, delay: of cables that have none of their own."""
    cables = []
    for cable in section.cable:
        one, other = cable.ends
        own_rate = rate if cable.rate_gbps is None else round(cable.rate_gbps * 1e9)
        own_delay = delay if cable.delay_us is None else round(cable.delay_us * US)
        cables += [Cable(one, other, own_rate, own_delay)] * cable.count
    return Topology(tuple(section.switches), tuple(section.hosts), tuple(cables))
