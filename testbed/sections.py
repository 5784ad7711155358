"""Sections of a scenario file: transport, network, faults, limits.

Workloads have theirs in testbed/workloads/sections.py. The keys are explained in docs/scenarios.md.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from cc import registry
from cc.errors import ControlError
from cc.parameters import build
from testbed.job import DeadPlane, Faults, Hole
from testbed.units import parse_size
from testbed.watch import WatchPlan
from transport.clock import NEVER, US, Time
from transport.config import CLASSIC, MAX_PLANES, EndpointConfig
from transport.errors import ConfigError

_DEFAULT = EndpointConfig()

Size: TypeAlias = Annotated[int, BeforeValidator(parse_size), PlainSerializer(lambda size: size)]
Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """Base of all sections: no unknown keys, no conversions."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TransportSection(Section):
    """How every endpoint is configured; ranges and defaults are those of transport.config.EndpointConfig. ports: how
    many each rank has, one on each plane."""

    paths: int = _DEFAULT.paths
    entropies: list[int] | None = None
    entropy_mask: int | None = None
    floor: int = _DEFAULT.floor
    mode: str = _DEFAULT.mode
    selector: str | None = None
    cc: str = str(_DEFAULT.control)
    cc_parameters: dict[str, int | float | bool] = Field(default_factory=dict)
    mtu: int = _DEFAULT.mtu
    max_run: int = _DEFAULT.max_run
    window: int = _DEFAULT.window
    retries: int = _DEFAULT.retries
    rto_min_us: Annotated[int, Field(ge=0)] = 0
    ack_every: Size = _DEFAULT.ack_every
    inline: Size = _DEFAULT.inline
    sq_depth: int = _DEFAULT.sq_depth
    rq_depth: int = _DEFAULT.rq_depth
    icrc: bool = _DEFAULT.icrc
    ports: Annotated[int, Field(ge=1, le=MAX_PLANES)] = 1

    def config(self) -> EndpointConfig:
        """The endpoint's configuration. ConfigError names a field, its value and what is allowed."""
        try:
            build(registry.resolve(self.cc).Parameters, self.cc_parameters)
        except ControlError as error:
            raise ConfigError(f"cc = {self.cc!r}: {error}") from None
        if self.mode == CLASSIC and self.ports > 1:
            raise ConfigError(f"ports = {self.ports}: mode = {CLASSIC!r} has one path, so 1 is allowed")
        return EndpointConfig(
            mtu=self.mtu, max_run=self.max_run, paths=self.paths,
            entropies=None if self.entropies is None else tuple(self.entropies), entropy_mask=self.entropy_mask,
            floor=self.floor, mode=self.mode,
            selector=self.selector, control=self.cc, control_parameters=self.cc_parameters, window=self.window,
            sq_depth=self.sq_depth, rq_depth=self.rq_depth, inline=self.inline, retries=self.retries,
            rto_min=self.rto_min_us * US, ack_every=self.ack_every, icrc=self.icrc,
        )  # fmt: skip


#: What addresses have room for.
MOST_HOSTS = 65534


class GraphCable(Section):
    """`count` cables between the two nodes of `ends`. rate_gbps, delay_us: of each, by default those of the fabric."""

    ends: Annotated[list[str], Field(min_length=2, max_length=2)]
    rate_gbps: Annotated[float, Field(gt=0, le=6400)] | None = None
    delay_us: Annotated[float, Field(ge=0, le=1e6)] | None = None
    count: Annotated[int, Field(ge=1, le=1024)] = 1


NodeName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.]*$")]


class GraphSection(Section):
    """The nodes and cables of `fabric.kind = "graph"`. hosts: in the order of the ranks; each has one cable."""

    hosts: Annotated[list[NodeName], Field(min_length=2, max_length=MOST_HOSTS)]
    switches: Annotated[list[NodeName], Field(min_length=1, max_length=MOST_HOSTS)]
    cable: Annotated[list[GraphCable], Field(min_length=1)]


class FabricSection(Section):
    """The network of `--on loopback` and `--on sim`; the others have what is there.

    rate_gbps: each host's link, 0 for infinitely fast (loopback only). delay_us: one way, between neighbours. queue:
    bytes of a queue, ecn: bytes in it from which packets are marked. Where they are not given, loopback does not limit
    or mark, and sim has a queue of one bandwidth-delay product and marks between ecn_low and ecn_high, a fifth and four
    fifths of that.

    The rest is for sim. kind: the shape of the fabric. file: of topo, a topology of htsim, which says rates, delays and
    perhaps queues. graph: of graph, its nodes and cables. cable_us: delay of each cable, by default half of delay_us.
    hosts: at least so many; hosts_per_leaf, spines, uplink_gbps: of dumbbell, leaf_spine and rail_optimised; rails:
    NICs of a server; radix, oversubscription: of a fat_tree. switch: how switches choose among equal ways. trim,
    cut_through, int_telemetry: what switches do. priorities: control packets have a queue of their own that is served
    first. pfc_xoff, pfc_xon, pfc_headroom: bytes that came by one port at which its other end is stopped, goes on, and
    may still send; 0 for no PFC. shared_buffer: bytes that all ports of a switch share, and shared_alpha how much of
    what is left one queue may hold. phantom: bytes exist only in number; by default
    where the messages of a phase have more than 256 MiB.
    """

    rate_gbps: Annotated[float, Field(ge=0, le=1600)] = 100.0
    delay_us: Annotated[float, Field(ge=0, le=1e6)] = 5.0
    queue: Size | None = None
    ecn: Size | None = None
    kind: Literal["star", "dumbbell", "leaf_spine", "fat_tree", "rail_optimised", "topo", "graph"] = "star"
    file: str | None = None
    graph: GraphSection | None = None
    cable_us: Annotated[float, Field(ge=0, le=1e6)] | None = None
    hosts: Annotated[int, Field(ge=2, le=MOST_HOSTS)] | None = None
    hosts_per_leaf: Annotated[int, Field(ge=1, le=1024)] = 8
    spines: Annotated[int, Field(ge=1, le=1024)] = 8
    uplink_gbps: Annotated[float, Field(gt=0, le=6400)] | None = None
    rails: Annotated[int, Field(ge=1, le=64)] = 8
    radix: Annotated[int, Field(ge=2, le=128)] = 8
    oversubscription: Annotated[int, Field(ge=1, le=64)] = 1
    switch: Literal["ecmp", "spray", "adaptive"] = "ecmp"
    ecn_low: Size | None = None
    ecn_high: Size | None = None
    trim: bool = True
    priorities: bool = True
    cut_through: bool = True
    int_telemetry: bool = False
    pfc_xoff: Size = 0
    pfc_xon: Size | None = None
    pfc_headroom: Size = 0
    shared_buffer: Size = 0
    shared_alpha: Annotated[float, Field(ge=1 / 256, le=256)] = 1.0
    phantom: bool | None = None


class WatchSection(Section):
    """What is looked at during a run over a simulated fabric (testbed/watch.py), counted from the start of the first
    phase. every_us: between samples of the queue to the rank that receives most, and of windows, from `start_us` to
    `end_us`; 0 for none. settle_us: when counting begins of packets on cables with faults. acks: they are timed."""

    every_us: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    start_us: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    end_us: Annotated[float, Field(ge=0, le=1e9)] = 10_000.0
    settle_us: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    acks: bool = False

    def plan(self) -> WatchPlan:
        return WatchPlan(
            round(self.every_us * US), round(self.start_us * US), round(self.end_us * US), round(self.settle_us * US),
            self.acks,
        )  # fmt: skip


class UdpSection(Section):
    """What is different over `--on udp`. time_scale: times of faults, and intervals between messages, are multiplied by
    this, since round trips between processes are that much longer than those of the fabric."""

    time_scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0


class Blackhole(Section):
    """Path number `path` swallows what it is given from `start_us` on, until `end_us` (or for good), counted from the
    start of the first phase."""

    path: Annotated[int, Field(ge=0)]
    start_us: Annotated[float, Field(ge=0)] = 0.0
    end_us: Annotated[float, Field(gt=0)] | None = None


class PlaneFault(Section):
    """The same for all paths of plane number `plane`, in both directions: the ports number so of all ranks are down."""

    plane: Annotated[int, Field(ge=0)]
    start_us: Annotated[float, Field(ge=0)] = 0.0
    end_us: Annotated[float, Field(gt=0)] | None = None


class CableFault(Section):
    """Cables of a simulated fabric, both directions, from `start_us` to `end_us` (or for good), counted from the start
    of the first phase. cables: a pattern for their names, such as leaf*-spine0 (docs/simulator.md has the names);
    share: of those that match, a random part. rate: share of the rate that is left; loss: probability that a frame is
    lost; down: all are."""

    cables: str
    share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    loss: Share = 0.0
    down: bool = False
    start_us: Annotated[float, Field(ge=0)] = 0.0
    end_us: Annotated[float, Field(gt=0)] | None = None


class FaultsSection(Section):
    """What happens to packets on top of the network, seeded.

    loss, duplicate, corrupt, mark, reorder: probabilities of a packet. reorder_us: how long a reordered packet is held
    back. jitter_us: largest extra delay of a packet; with fifo, each path has its own constant share of it instead.
    """

    loss: Share = 0.0
    duplicate: Share = 0.0
    corrupt: Share = 0.0
    mark: Share = 0.0
    reorder: Share = 0.0
    reorder_us: Annotated[float, Field(ge=0, le=1e6)] = 100.0
    jitter_us: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    fifo: bool = False
    blackhole: list[Blackhole] = Field(default_factory=list)
    plane: list[PlaneFault] = Field(default_factory=list)
    cable: list[CableFault] = Field(default_factory=list)

    def plan(self, scale: float) -> Faults:
        """The same as plain data, in picoseconds. All times are multiplied by `scale`."""
        us = scale * US

        def span(fault: Blackhole | PlaneFault) -> tuple[Time, Time]:
            return round(fault.start_us * us), NEVER if fault.end_us is None else min(NEVER, round(fault.end_us * us))

        return Faults(
            loss=self.loss, duplicate=self.duplicate, corrupt=self.corrupt, mark=self.mark, reorder=self.reorder,
            reorder_delay=round(self.reorder_us * us) if self.reorder else 0, jitter=round(self.jitter_us * us),
            fifo=self.fifo,
            holes=tuple(Hole(hole.path, *span(hole)) for hole in self.blackhole),
            planes=tuple(DeadPlane(fault.plane, *span(fault)) for fault in self.plane),
        )  # fmt: skip


class Limit(Section):
    """What a metric is held to: at most `max`, at least `min`, or exactly `equals`."""

    max: float | None = None
    min: float | None = None
    equals: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.max is None or value <= self.max)
            and (self.min is None or value >= self.min)
            and (self.equals is None or value == self.equals)
        )

    def __str__(self) -> str:
        signs = (("<=", self.max), (">=", self.min), ("=", self.equals))
        return ", ".join(f"{sign} {value:g}" for sign, value in signs if value is not None)


def as_limit(value: object) -> object:
    """A bare number is the most that a metric may be."""
    return {"max": value} if isinstance(value, (int, float)) and not isinstance(value, bool) else value
