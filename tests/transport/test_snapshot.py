"""Pictures of an endpoint: of the schema in every situation, true, and without a trace in what follows."""

from __future__ import annotations

import json
import random
from typing import Any

from cc.base import Control, Environment
from testbed.dump import Snapshot
from tests.helpers import CAPS, Host, Pair, Wire
from transport.clock import MS, NEVER, SECOND, US
from transport.config import EndpointConfig
from transport.connection import Connection
from transport.counters import NAMES
from transport.endpoint import Endpoint
from transport.placement import Access
from transport.snapshot import snapshot

SIZE = 200_000


class StillNic:
    """A Nic whose clock stands at `time`."""

    caps = CAPS
    address = bytes([10, 0, 0, 1])

    def __init__(self, time: int) -> None:
        self.time = time

    def now(self) -> int:
        return self.time


def picture(host: Host, now: int, limit: int = 64) -> Snapshot:
    """The state of a host; it travels as JSON and is of the schema."""
    state = snapshot(host.endpoint, StillNic(now), limit)  # type: ignore[arg-type]
    return Snapshot.model_validate_json(json.dumps(state, allow_nan=False))


def write(pair: Pair, ours: Connection, theirs: Connection, size: int = SIZE) -> None:
    region = theirs.context.domain.register(bytearray(size), Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    ours.post_write(pair.now, 1, bytes(size), region.address, region.rkey)


def test_before_anybody_connects() -> None:
    endpoint = Endpoint(EndpointConfig(), bytes([10, 0, 0, 1]), CAPS, random.Random(1))
    endpoint.create_connection(endpoint.protection_domain(), 0)
    state = picture(Host(endpoint), 5 * US)
    (connection,) = state.connections.listed
    assert (connection.state, connection.peer, connection.control, connection.dormant) == ("INIT", None, None, True)
    assert connection.recovery.last_ack_us is None
    assert (state.peers.count, state.peers.listed, state.next_timeout_us, state.now_us) == (0, [], None, 5)
    assert state.addresses == ["10.0.0.1"]
    assert list(state.counters) == list(NAMES)


def test_in_the_middle_of_a_transfer() -> None:
    pair = Pair(wire=Wire(rate=1_000_000_000, loss=0.02), paths=4)
    ours, theirs = pair.connect()
    write(pair, ours, theirs)
    pair.drive(until=lambda: ours.sender.in_flight > 20_000 and pair.bob.endpoint.totals.data_packets_received > 5)
    sending, receiving = picture(pair.alice, pair.now), picture(pair.bob, pair.now)
    (connection,), (peer,) = sending.connections.listed, sending.peers.listed
    assert connection.qpn == ours.qpn
    assert connection.peer_qpn == theirs.qpn
    assert connection.sender.queue == 1
    assert (
        connection.sender.in_flight_bytes == ours.sender.in_flight == sum(p.in_flight_bytes for p in peer.paths.listed)
    )
    assert connection.sender.una_dsn < connection.sender.next_dsn
    assert connection.sender.most_copies >= 1
    assert connection.control is not None
    assert connection.control.name == "dctcp"
    assert connection.control.window_bytes == ours.context.control.window
    assert connection.control.state["alpha"] == ours.context.control.alpha  # type: ignore[attr-defined]
    assert peer.name == "10.0.0.2"
    assert peer.planes == [["10.0.0.1", "10.0.0.2"]]
    assert (peer.paths.count, peer.connections, sum(peer.paths_by_state.values())) == (4, 1, 4)
    (other,) = receiving.connections.listed
    assert other.receiver.edge_dsn <= connection.sender.next_dsn
    assert receiving.counters["bytes_placed"] > 0
    pair.drive_messages(1)
    after = picture(pair.alice, pair.now + 7 * US)
    assert after.connections.listed[0].sender.in_flight_bytes == 0
    assert after.counters["requests_completed"] == 1


def test_falling_asleep_shows_in_nothing_but_its_name() -> None:
    pair = Pair(idle_after=5 * MS)
    ours, theirs = pair.connect()
    theirs.post_recv(pair.now, 3, bytearray(10))
    write(pair, ours, theirs)
    pair.drive(until=lambda: bool(pair.alice.completions) and ours.idle() and theirs.idle())
    now = pair.now + SECOND
    awake = [picture(host, now).connections.listed[0] for host in (pair.alice, pair.bob)]
    assert not any(connection.dormant for connection in awake)
    pair.drive()
    asleep = [picture(host, now).connections.listed[0] for host in (pair.alice, pair.bob)]
    assert all(connection.dormant for connection in asleep)
    for before, after in zip(awake, asleep, strict=True):
        assert after.model_dump(exclude={"dormant", "control"}) == before.model_dump(exclude={"dormant", "control"})


def test_a_dead_peer_shows_as_timeouts_in_a_row_and_then_as_an_error() -> None:
    pair = Pair(wire=Wire(touch=lambda now, packet: None), retries=3)
    ours, theirs = pair.connect()
    write(pair, ours, theirs)
    pair.drive(until=lambda: ours.recovery.expirations == 2)
    (connection,) = picture(pair.alice, pair.now).connections.listed
    assert connection.recovery.timeouts_in_a_row == 2
    assert connection.recovery.last_ack_us is None
    pair.drive_messages(1)
    failed = picture(pair.alice, pair.now)
    (connection,) = failed.connections.listed
    assert connection.state == "ERR"
    assert connection.error
    assert "10.0.0.2" in connection.error
    assert failed.connections.by_state == {"ERR": 1}


def test_a_closed_connection_is_gone() -> None:
    pair = Pair()
    ours, _ = pair.connect()
    ours.close(pair.now)
    pair.drive()
    state = picture(pair.alice, pair.now)
    assert (state.connections.count, state.connections.by_state, state.peers.count) == (0, {}, 0)


def test_long_lists_are_cut_and_what_is_awake_comes_first() -> None:
    pair = Pair(idle_after=5 * MS, paths=8)
    connections = [pair.connect() for _ in range(7)]
    for ours, theirs in connections:
        write(pair, ours, theirs, 10)
    pair.drive()
    for ours, theirs in connections[2:4]:
        write(pair, ours, theirs)
    state = picture(pair.alice, pair.now, limit=3)
    assert (state.connections.count, state.connections.dormant, state.connections.left_out) == (7, 5, 4)
    assert {item.qpn for item in state.connections.listed[:2]} == {ours.qpn for ours, _ in connections[2:4]}
    (peer,) = state.peers.listed
    assert (peer.connections, peer.paths.count, len(peer.paths.listed), peer.paths.left_out) == (7, 8, 3, 5)
    nothing = picture(pair.alice, pair.now, limit=0)
    assert (nothing.connections.listed, nothing.connections.left_out, nothing.peers.left_out) == ([], 7, 1)


class Odd(Control):
    """Attributes of all kinds."""

    name = "odd"

    def __init__(self, parameters: Any, env: Environment) -> None:
        super().__init__(parameters, env)
        self.share = float("inf")
        self.rounds = 3
        self.busy = True
        self.history = [1, 2]
        self._hidden = 7


def test_a_users_control_shows_its_public_numbers() -> None:
    pair = Pair(control=Odd)
    pair.connect()
    control = picture(pair.alice, pair.now).connections.listed[0].control
    assert control is not None
    assert (control.name, control.rate_bps, control.state) == ("odd", 0, {"share": None, "rounds": 3})


def test_pictures_leave_no_trace() -> None:
    def run(watched: bool) -> list[tuple[int, int, int]]:
        pair = Pair(wire=Wire(rate=1_000_000_000, loss=0.02, jitter=3 * US), paths=4, idle_after=5 * MS)
        ours, theirs = pair.connect()
        write(pair, ours, theirs)

        def look() -> bool:
            if watched:
                for host in (pair.alice, pair.bob):
                    picture(host, pair.now)
            return bool(pair.alice.completions)

        pair.drive(until=look)
        pair.drive()
        return [(packet.kind, packet.psn, packet.entropy) for packet in pair.sent]

    assert run(True) == run(False)


def test_two_planes_are_told_apart() -> None:
    endpoints = [
        Endpoint(EndpointConfig(paths=2), [bytes([10, 0, plane, host]) for plane in (0, 1)], CAPS, random.Random(host))
        for host in (1, 2)
    ]
    ours, theirs = (endpoint.create_connection(endpoint.protection_domain(), 0) for endpoint in endpoints)
    ours.connect(0, theirs.parameters)
    state = picture(Host(endpoints[0]), NEVER // 2)
    (peer,) = state.peers.listed
    assert peer.planes == [["10.0.0.1", "10.0.0.2"], ["10.0.1.1", "10.0.1.2"]]
    assert [path.plane for path in peer.paths.listed] == [0, 0, 1, 1]
