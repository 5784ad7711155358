"""What a rank needs to know to take part in a run, as plain data that travels as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from testbed.metrics import PhaseRecord
from testbed.workloads.base import Message, Phase, received_by
from transport.clock import Time
from transport.config import EndpointConfig
from transport.endpoint import Endpoint
from transport.path import STATE_NAMES


@dataclass(frozen=True)
class Hole:
    """Path number `path` swallows packets from `start` to `end`, picoseconds after the first phase began."""

    path: int
    start: Time
    end: Time


@dataclass(frozen=True)
class DeadPlane:
    """Plane number `plane`, the ports number so of all ranks, swallows packets from `start` to `end`, as in Hole."""

    plane: int
    start: Time
    end: Time


@dataclass(frozen=True)
class Faults:
    """Faults on top of the network: probabilities, delays in picoseconds, dead paths and planes. fifo: jitter is a
    constant of each path instead of new for every packet."""

    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    mark: float = 0.0
    reorder: float = 0.0
    reorder_delay: Time = 0
    jitter: Time = 0
    fifo: bool = False
    holes: tuple[Hole, ...] = ()
    planes: tuple[DeadPlane, ...] = ()


@dataclass(frozen=True)
class Job:
    """One run of one variant, the same for every rank. ports: of each rank, each with an address of its own. addresses:
    by rank, as many as it has ports, as text; none: those of testbed.rank.addresses_of. nic: of the rank
    processes, one of transport.nic.dgram.SOCKETS. phantom: bytes exist only in number."""

    phases: tuple[Phase, ...]
    ranks: int
    seed: int
    config: EndpointConfig
    faults: Faults = field(default_factory=Faults)
    pcap: str = ""
    ports: int = 1
    addresses: tuple[tuple[str, ...], ...] = ()
    nic: str = "udp"
    phantom: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        config = dict(data["config"])
        if config["entropies"] is not None:
            config["entropies"] = tuple(config["entropies"])
        faults = dict(data["faults"])
        faults["holes"] = tuple(Hole(**hole) for hole in faults["holes"])
        faults["planes"] = tuple(DeadPlane(**plane) for plane in faults["planes"])
        phases = tuple(
            Phase(phase["name"], tuple(Message(**m) for m in phase["messages"]), phase["depth"], phase["interval"])
            for phase in data["phases"]
        )
        addresses = tuple(tuple(own) for own in data["addresses"])
        return cls(
            phases, data["ranks"], data["seed"], EndpointConfig(**config), Faults(**faults), data["pcap"],
            data["ports"], addresses, data["nic"], data["phantom"],
        )  # fmt: skip


@dataclass
class Outcome:
    """What one rank has to tell of a phase. rows: as in PhaseRecord, sizes and times; sent, received: digests of the
    bytes for and from each peer, by its number as text."""

    rows: Sequence[Sequence[int]]
    counters: Mapping[str, int]
    paths_used: int | None
    sent: Mapping[str, str]
    received: Mapping[str, str]


@dataclass(frozen=True)
class PathChange:
    """A path of a rank changed its state. path: number of the path, those of the first plane first."""

    rank: int
    time: Time
    path: int
    state: str


def drain_events(rank: int, endpoint: Endpoint) -> list[PathChange]:
    """The state changes of an endpoint's paths since this was asked last."""
    number = {port: path for path, port in enumerate(endpoint.entropies)}
    changes = []
    while (event := endpoint.poll_event()) is not None:
        path = event.plane * len(number) + number[event.entropy]
        changes.append(PathChange(rank, event.time, path, STATE_NAMES[event.new]))
    return changes


def assemble(phase: Phase, ranks: int, outcomes: Sequence[Outcome]) -> PhaseRecord:
    """The record of a phase out of what all ranks, in order, have to tell."""
    rows = np.array([row for outcome in outcomes for row in outcome.rows], dtype=np.int64).reshape(-1, 5)
    counters: dict[str, int] = {}
    for outcome in outcomes:
        for name, value in outcome.counters.items():
            counters[name] = counters.get(name, 0) + value
    wrong = []
    for src, outcome in enumerate(outcomes):
        for dst, wanted in outcome.sent.items():
            found = outcomes[int(dst)].received.get(str(src))
            if found != wanted:
                wrong.append(f"{phase.name}: rank {src} sent rank {dst} bytes of digest {wanted}, it has {found}")
    used = [outcome.paths_used for outcome in outcomes if outcome.paths_used is not None]
    return PhaseRecord(
        phase.name, ranks, rows, counters, received_by(phase.messages, ranks), max(used) if used else None, wrong
    )
