"""The schema of a state dump, as models that refuse anything else. docs/observing.md has it as a table."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

_Item = TypeVar("_Item")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Listing(_Strict, Generic[_Item]):
    """The first of `count` things."""

    count: int
    listed: list[_Item]
    left_out: int


class Sender(_Strict):
    queue: int
    unstarted: int
    next_dsn: int
    una_dsn: int
    in_flight_bytes: int
    missing: int
    most_copies: int
    window_limited: bool
    receives_of_peer: int
    last_sent_us: float | None


class Recovery(_Strict):
    timeouts_in_a_row: int
    last_ack_us: float | None
    reorder_window_rtt: float


class Receiver(_Strict):
    queue: int
    edge_dsn: int
    top_dsn: int
    marked_packets: int
    duplicates: int


class Channel(_Strict):
    waiting: int
    outstanding: int
    missing: int
    next_csn: int
    una_csn: int
    edge_csn: int


class Control(_Strict):
    name: str
    window_bytes: int
    rate_bps: int
    state: dict[str, int | float | None]


class Connection(_Strict):
    qpn: int
    peer: str | None
    peer_qpn: int | None
    state: Literal["RESET", "INIT", "RTR", "RTS", "SQD", "ERR"]
    dormant: bool
    error: str | None
    sender: Sender
    recovery: Recovery
    receiver: Receiver
    channel: Channel
    control: Control | None


class Connections(Listing[Connection]):
    dormant: int
    by_state: dict[str, int]


class Path(_Strict):
    entropy: int
    plane: int
    state: Literal["GOOD", "SUSPECT", "BAD", "PROBING", "DENIED"]
    usable: bool
    srtt_us: float | None
    rttvar_us: float | None
    min_rtt_us: float | None
    marked_share: float
    in_flight_bytes: int
    losses: int
    last_heard_us: float | None


class Peer(_Strict):
    name: str
    planes: list[list[str]]
    connections: int
    srtt_us: float | None
    rttvar_us: float | None
    min_rtt_us: float | None
    last_heard_us: float | None
    usable_paths: int
    paths_by_state: dict[str, int]
    probes_outstanding: int
    paths: Listing[Path]


class Snapshot(_Strict):
    """One endpoint, without its name in a dump."""

    addresses: list[str]
    now_us: float
    next_timeout_us: float | None
    ready: int
    completions: int
    counters: dict[str, int]
    nic: dict[str, int]
    connections: Connections
    peers: Listing[Peer]


class Endpoint(Snapshot):
    name: str


class Dump(_Strict):
    """What one process says. failure: why there is no picture of its endpoints, None if there is."""

    version: int
    pid: int
    serial: int
    time_s: float
    failure: str | None
    endpoints: list[Endpoint]
