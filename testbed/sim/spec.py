"""What a simulated fabric is made of, as plain data, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from transport.clock import US, Time
from transport.errors import ConfigError

#: What a queue may hold that is not limited.
UNLIMITED = 1 << 50

MAX_RATE = 10_000_000_000_000
MAX_DELAY = 1_000_000 * US


@dataclass(frozen=True)
class QueueSpec:
    """Output ports. data_bytes, control_bytes: of the two queues. trim: of what the data queue has no room for, the
    header goes on. ecn_low, ecn_high: bytes between which the share of marked packets rises from none to all; equal for
    one threshold. cut_through: forward when the header is in. int_telemetry: every data packet is stamped."""

    data_bytes: int = UNLIMITED
    control_bytes: int = UNLIMITED
    trim: bool = False
    ecn_low: int = UNLIMITED
    ecn_high: int = UNLIMITED
    cut_through: bool = False
    int_telemetry: bool = False

    def __post_init__(self) -> None:
        for name in ("data_bytes", "control_bytes"):
            _check(f"queue {name}", getattr(self, name), 4096, UNLIMITED, "bytes")
        _check("ecn_low", self.ecn_low, 0, UNLIMITED, "bytes")
        _check("ecn_high", self.ecn_high, self.ecn_low, UNLIMITED, "bytes, not below ecn_low")


@dataclass(frozen=True)
class PfcSpec:
    """Priority flow control. xoff, xon: bytes that came by one port at which the other end is stopped, and goes on.
    headroom: bytes for what still comes, 0 for what the longest cable of the fabric needs."""

    xoff: int
    xon: int
    headroom: int = 0

    def __post_init__(self) -> None:
        _check("pfc_xoff", self.xoff, 1, UNLIMITED, "bytes")
        _check("pfc_xon", self.xon, 0, self.xoff, "bytes, not above pfc_xoff")
        _check("pfc_headroom", self.headroom, 0, UNLIMITED, "bytes")


@dataclass(frozen=True)
class PoolSpec:
    """A buffer that all ports of a switch share. alpha: of what is left of it, how much one queue may hold."""

    size: int
    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check("shared_buffer", self.size, 4096, UNLIMITED, "bytes")
        if not 1 / 256 <= self.alpha <= 256:
            raise ConfigError(f"shared_alpha = {self.alpha!r}: allowed are 1/256 to 256")


@dataclass(frozen=True)
class Cable:
    """Both directions between two nodes, by name. rate: bits per second; delay: picoseconds, one way."""

    one: str
    other: str
    rate: int
    delay: Time

    def __post_init__(self) -> None:
        where = f"cable {self.one} to {self.other}"
        _check(f"{where}: rate", self.rate, 1, MAX_RATE, "bits per second")
        _check(f"{where}: delay", self.delay, 0, MAX_DELAY, "picoseconds")
        if self.one == self.other:
            raise ConfigError(f"{where}: both ends are the same, two nodes are allowed")


@dataclass(frozen=True)
class Topology:
    """switches: names. hosts: names of host ports, in the order of their addresses. cables: two nodes may have several.
    A host port has one cable."""

    switches: tuple[str, ...]
    hosts: tuple[str, ...]
    cables: tuple[Cable, ...]

    def __post_init__(self) -> None:
        names = [*self.switches, *self.hosts]
        known = set(names)
        if len(known) < len(names):
            raise ConfigError(f"topology: {next(n for n in names if names.count(n) > 1)} is there twice")
        degree = dict.fromkeys(names, 0)
        for cable in self.cables:
            for end in (cable.one, cable.other):
                if end not in known:
                    raise ConfigError(f"cable {cable.one} to {cable.other}: {end} is no switch and no host")
                degree[end] += 1
            if not known.difference(self.hosts) & {cable.one, cable.other}:
                raise ConfigError(f"cable {cable.one} to {cable.other}: one end must be a switch")
        for host in self.hosts:
            if degree[host] != 1:
                raise ConfigError(f"host port {host} has {degree[host]} cables: 1 is allowed")
        for switch in self.switches:
            if not degree[switch]:
                raise ConfigError(f"switch {switch} has 0 cables: at least 1 is allowed")


def _check(name: str, value: int, low: int, high: int, unit: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} = {value!r}: allowed are {low} to {high} {unit}")
