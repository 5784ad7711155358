"""Topology files (`.topo`) of htsim: fat trees of two or three tiers, a link speed and a latency for each.

Tier 0 are the switches that hosts hang on. What a tier says of its downlinks holds for the same links upwards. A bundle
is the number of parallel links between a switch and each of those below it: a tier 2 of 100 Gb/s with a bundle of 2 has
2 x 100 Gb/s to each switch of tier 1. Queues are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from testbed.workloads.readers.files import whole
from transport.clock import NS, Time
from transport.errors import ConfigError

_GBPS = 10**9
_MOST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Tier:
    """The switches of one tier.

    downlink_speed: bits per second of one link. downlink_latency: of one link, one way, and switch_latency: of a
    switch, both in picoseconds. radix_down, radix_up: ports of a switch, radix_up None at the top. oversubscribed: bits
    that come up from below for each bit that goes on up. bundle: links to each switch below. queue_down, queue_up:
    bytes of the queue of a port, None if the file leaves it to the program.
    """

    downlink_speed: int
    downlink_latency: Time
    radix_down: int
    radix_up: int | None = None
    queue_down: int | None = None
    queue_up: int | None = None
    bundle: int = 1
    oversubscribed: int = 1
    switch_latency: Time = 0


@dataclass(frozen=True)
class Topology:
    """A whole file. nodes: hosts. podsize: hosts of a pod; pods meet in the highest tier only. tiers: lowest first."""

    nodes: int
    podsize: int
    tiers: tuple[Tier, ...]

    @property
    def switches(self) -> tuple[int, ...]:
        """How many each tier has."""
        found, ports = [], self.nodes
        for tier in self.tiers:
            found.append(ports // tier.radix_down)
            ports = found[-1] * (tier.radix_up or 0)
        return tuple(found)

    def ratio(self, number: int) -> Fraction:
        """Speed of all links down of a switch of a tier over that of all its links up; 4 is 4:1. Not for the top."""
        tier, above = self.tiers[number], self.tiers[number + 1]
        return Fraction(tier.radix_down * tier.downlink_speed, (tier.radix_up or 1) * above.downlink_speed)


@dataclass(frozen=True)
class _Key:
    """A line of a tier. factor: from the unit of the file to that of the record."""

    name: str
    field: str
    low: int
    factor: int = 1


#: In the order in which they are written.
_KEYS = (
    _Key("Downlink_speed_Gbps", "downlink_speed", 1, _GBPS),
    _Key("Radix_Down", "radix_down", 1),
    _Key("Radix_Up", "radix_up", 1),
    _Key("Queue_Down", "queue_down", 1),
    _Key("Queue_Up", "queue_up", 1),
    _Key("Downlink_Latency_ns", "downlink_latency", 1, NS),
    _Key("Switch_Latency_ns", "switch_latency", 0, NS),
    _Key("Oversubscribed", "oversubscribed", 1),
    _Key("Bundle", "bundle", 1),
)
_BY_NAME = {key.name.lower(): key for key in _KEYS}
_HEADER = ("Nodes", "Tiers", "Podsize")
_NEEDED = ("downlink_speed", "downlink_latency", "radix_down")


def parse(text: str, source: str) -> Topology:
    """A topology. Keys may be in any case; what follows a # is a comment."""
    reader = _Reader(source)
    for number, line in enumerate(text.split("\n"), 1):
        reader.line(number, line)
    return reader.finish()


def write(topology: Topology) -> str:
    """The text of a file that htsim reads. ConfigError for what the format cannot say: a part of a Gb/s or of a ns."""
    head = [f"Nodes {topology.nodes}", f"Tiers {len(topology.tiers)}", f"Podsize {topology.podsize}"]
    return "\n\n".join(["\n".join(head), *(_section(i, tier) for i, tier in enumerate(topology.tiers))]) + "\n"


def _section(number: int, tier: Tier) -> str:
    words = [f"Tier {number}"]
    for key in _KEYS:
        value = getattr(tier, key.field)
        if value is None or (key.field in ("oversubscribed", "bundle") and value == 1):
            continue
        if value % key.factor:
            raise ConfigError(f"tier {number}: {key.field} = {value}: allowed are multiples of {key.factor}")
        words.append(f"{key.name} {value // key.factor}")
    return "\n".join(words)


class _Reader:
    """Collects the lines of one file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._header: dict[str, tuple[int, int]] = {}
        self._tiers: dict[int, dict[str, int]] = {}
        #: Lines of the keys of each tier by field, and of the tier itself by "".
        self._lines: dict[tuple[int, str], int] = {}
        self._tier: int | None = None

    def line(self, number: int, line: str) -> None:
        """Take in one line."""
        words = line.partition("#")[0].split()
        if not words:
            return
        place, name = f"{self.source}, line {number}", words[0].lower()
        if len(words) != 2:
            raise ConfigError(f"{place}: {line.strip()[:40]!r}: a key and one number are needed")
        if name == "tier":
            self._begin(_number(words, place, 0, 2), number, place)
        elif name in map(str.lower, _HEADER):
            if self._tier is not None:
                raise ConfigError(f"{place}: {words[0]}: it must be in front of all tiers")
            if name in self._header:
                raise ConfigError(f"{place}: {words[0]} is in line {self._header[name][1]} already")
            self._header[name] = (_number(words, place, *((2, 3) if name == "tiers" else (1, _MOST))), number)
        elif name in _BY_NAME:
            self._key(_BY_NAME[name], words, number, place)
        else:
            known = ", ".join((*_HEADER, "Tier", *(key.name for key in _KEYS)))
            raise ConfigError(f"{place}: key {words[0][:40]} is unknown; known: {known}")

    def _begin(self, tier: int, number: int, place: str) -> None:
        if tier in self._tiers:
            raise ConfigError(f"{place}: tier {tier} is in line {self._lines[tier, '']} already")
        self._tier = tier
        self._tiers[tier] = {}
        self._lines[tier, ""] = number

    def _key(self, key: _Key, words: list[str], number: int, place: str) -> None:
        tier = self._tier
        if tier is None:
            raise ConfigError(f"{place}: {words[0]}: it belongs to a tier, and there is none before it")
        if key.field in self._tiers[tier]:
            raise ConfigError(f"{place}: {words[0]} of tier {tier} is in line {self._lines[tier, key.field]} already")
        if tier == 2 and key.field in ("radix_up", "queue_up"):
            raise ConfigError(f"{place}: {words[0]}: tier 2 has nothing above it")
        self._tiers[tier][key.field] = _number(words, place, key.low, _MOST) * key.factor
        self._lines[tier, key.field] = number

    def finish(self) -> Topology:
        """The whole, checked."""
        for name in _HEADER:
            if name.lower() not in self._header:
                raise ConfigError(f"{self.source}: {name} is missing")
        (nodes, _), (count, line), (podsize, _) = (self._header[name.lower()] for name in _HEADER)
        if sorted(self._tiers) != list(range(count)):
            given = ", ".join(map(str, sorted(self._tiers))) or "none"
            raise ConfigError(
                f"{self.source}, line {line}: Tiers {count}: the file has tier {given}, needed are 0 to {count - 1}"
            )
        for i in range(count):
            needed = (*_NEEDED, "radix_up") if i < count - 1 else _NEEDED
            for key in _KEYS:
                if key.field in needed and key.field not in self._tiers[i]:
                    raise ConfigError(f"{self.source}, line {self._lines[i, '']}: tier {i}: {key.name} is missing")
        topology = Topology(nodes, podsize, tuple(Tier(**self._tiers[i]) for i in range(count)))
        problem = _problem(topology)
        if problem:
            i, text = problem
            raise ConfigError(f"{self.source}, line {self._lines[i, '']}: tier {i}: {text}")
        return topology


def _problem(topology: Topology) -> tuple[int, str] | None:
    """The first tier whose ports do not come out even, and why. htsim refuses such a file or builds something else."""
    nodes, podsize, tiers = topology.nodes, topology.podsize, topology.tiers
    if nodes % podsize:
        return 0, f"Podsize {podsize}: Nodes {nodes} is not a multiple of it"
    if podsize % tiers[0].radix_down:
        return 0, f"Radix_Down {tiers[0].radix_down}: Podsize {podsize} is not a multiple of it"
    if tiers[0].bundle != 1:
        return 0, f"Bundle {tiers[0].bundle}: allowed is 1, a host has one link"
    ports = nodes
    for i, tier in enumerate(tiers):
        if ports % tier.radix_down:
            return i, f"Radix_Down {tier.radix_down}: {ports} links come up from below, which is not a multiple of it"
        if tier.radix_down % tier.bundle:
            return i, f"Bundle {tier.bundle}: Radix_Down {tier.radix_down} is not a multiple of it"
        if i == len(tiers) - 1:
            break
        up = tier.radix_up or 0
        if up % tiers[i + 1].bundle:
            return i, f"Radix_Up {up}: it is not a multiple of the Bundle {tiers[i + 1].bundle} of tier {i + 1}"
        if topology.ratio(i) != tier.oversubscribed:
            return i, f"Oversubscribed {tier.oversubscribed}: its ports and speeds make it {topology.ratio(i)}"
        ports = ports // tier.radix_down * up
    return None


def _number(words: list[str], place: str, low: int, high: int) -> int:
    value = whole(words[1])
    if value is None or not low <= value <= high:
        raise ConfigError(f"{place}: {words[0]} = {words[1][:40]!r}: allowed are whole numbers from {low} to {high}")
    return value
