"""The state of an endpoint as plain data: one picture, made only when somebody asks. docs/observing.md has the schema.

Units stand in the names. What has no value yet is None. Sequence numbers are as the engine counts them: on the wire are
their low 32 bits. A picture reads and changes nothing; the endpoint must be at rest, that is between two of its calls.

Not in it: what is in the buffers, keys, verification tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nsmallest
from ipaddress import ip_address
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from transport.clock import NEVER, US, Time
from transport.errors import NicError
from transport.path import STATE_NAMES

if TYPE_CHECKING:
    from cc.base import Control
    from transport.connection import Connection
    from transport.dormant import Dormant
    from transport.endpoint import Endpoint
    from transport.nic.base import Nic
    from transport.path import Path
    from transport.peer import Peer
    from transport.states import State

#: Version of the schema. It grows with every change that a reader could notice.
SCHEMA = 1

#: Connections, peers, and paths of a peer that are listed one by one.
LIMIT = 64


def snapshot(endpoint: Endpoint, nic: Nic, limit: int = LIMIT) -> dict[str, Any]:
    """The state of `endpoint`, which runs over `nic`. Totals and counts are of everything. Of connections, peers and
    the paths of each peer at most `limit` are listed, connections that are awake first; how many were left out is said.

    It takes time in proportion to the number of connections, some 0.2 s for 100,000.
    """
    now = nic.now()
    connections = [connection for connection in endpoint.connections.values() if connection is not None]
    peers = list(endpoint.peers.values())
    awake = [connection for connection in connections if connection.dormant is None]
    chosen = nsmallest(limit, awake, key=attrgetter("qpn"))
    if len(chosen) < limit:
        asleep = (connection for connection in connections if connection.dormant is not None)
        chosen += nsmallest(limit - len(chosen), asleep, key=attrgetter("qpn"))
    states: Counter[State] = Counter(map(attrgetter("state"), connections))
    return {
        "addresses": [_address(address) for address in endpoint.addresses],
        "now_us": _us(now),
        "next_timeout_us": _until(endpoint.poll_timeout(), now),
        "ready": endpoint.ready.count,
        "completions": len(endpoint.completions),
        "counters": endpoint.counters(),
        "nic": _nic(nic),
        "connections": {
            "count": len(connections),
            "dormant": len(connections) - len(awake),
            "by_state": {state.name: count for state, count in states.items()},
            "listed": [_connection(item, now) for item in chosen],
            "left_out": len(connections) - len(chosen),
        },
        "peers": {
            "count": len(peers),
            "listed": [_peer(peer, now, limit) for peer in peers[:limit]],
            "left_out": max(0, len(peers) - limit),
        },
    }


def _connection(connection: Connection, now: Time) -> dict[str, Any]:
    context = connection.context
    rest = connection.dormant
    return {
        "qpn": connection.qpn,
        "peer": context.peer.name if context.peer is not None else None,
        "peer_qpn": context.peer_qpn if context.peer is not None else None,
        "state": connection.state.name,
        "dormant": rest is not None,
        "error": connection.error or None,
        **(_parts(connection, now) if rest is None else _rest(rest, now)),
        "control": _control(context.control),
    }


def _parts(connection: Connection, now: Time) -> dict[str, Any]:
    """Of a connection that is awake."""
    sender, receiver, channel = connection.sender, connection.receiver, connection.channel
    recovery, ledger, starter = connection.recovery, connection.receiver.ledger, connection.sender.starter
    copies = 0
    send = sender.flow.oldest
    while send is not None:
        copies = max(copies, send.copies)
        send = send.newer
    return {
        "sender": {
            "queue": len(sender.queue),
            "unstarted": len(starter.unsent),
            "next_dsn": sender.next,
            "una_dsn": sender.una,
            "in_flight_bytes": sender.in_flight,
            "missing": len(sender.missing),
            "most_copies": copies,
            "window_limited": bool(sender.window_limited),
            "receives_of_peer": len(starter.adverts),
            "last_sent_us": _ago(sender.last_sent_at, now),
        },
        "recovery": {
            "timeouts_in_a_row": recovery.expirations,
            "last_ack_us": _ago(recovery.acked_at, now),
            "reorder_window_rtt": recovery.reorder_quarters / 4,
        },
        "receiver": {
            "queue": len(receiver.queue),
            "edge_dsn": ledger.edge,
            "top_dsn": ledger.top,
            "marked_packets": ledger.marked_packets,
            "duplicates": ledger.duplicates,
        },
        "channel": {
            "waiting": len(channel.waiting),
            "outstanding": len(channel.outstanding),
            "missing": channel.missing,
            "next_csn": channel.next,
            "una_csn": channel.una,
            "edge_csn": channel.edge_in,
        },
    }


def _rest(rest: Dormant, now: Time) -> dict[str, Any]:
    """The same of a dormant one: nothing is outstanding."""
    return {
        "sender": {
            "queue": 0, "unstarted": 0, "next_dsn": rest.dsn, "una_dsn": rest.dsn, "in_flight_bytes": 0, "missing": 0,
            "most_copies": 0, "window_limited": False, "receives_of_peer": len(rest.adverts or ()),
            "last_sent_us": _ago(rest.last_sent_at, now),
        },
        "recovery": {
            "timeouts_in_a_row": 0, "last_ack_us": _ago(rest.acked_at, now),
            "reorder_window_rtt": rest.reorder_quarters / 4,
        },
        "receiver": {
            "queue": len(rest.receives or ()), "edge_dsn": rest.peer_dsn, "top_dsn": rest.peer_dsn,
            "marked_packets": rest.marked_packets, "duplicates": rest.duplicates,
        },
        "channel": {
            "waiting": 0, "outstanding": 0, "missing": 0, "next_csn": rest.csn, "una_csn": rest.csn,
            "edge_csn": rest.peer_csn,
        },
    }  # fmt: skip


def _control(control: Control | None) -> dict[str, Any] | None:
    """A congestion control: what the engine reads, and every other number that is a public attribute."""
    if control is None:
        return None
    state = {}
    for name in dir(control):
        if name.startswith("_") or name in ("window", "rate"):
            continue
        value = getattr(control, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            state[name] = value if isfinite(value) else None
    name = control.name or type(control).__name__
    return {"name": name, "window_bytes": control.window, "rate_bps": control.rate, "state": state}


def _peer(peer: Peer, now: Time, limit: int) -> dict[str, Any]:
    paths = peer.paths
    return {
        "name": peer.name,
        "planes": [[_address(own), _address(theirs)] for own, theirs in peer.planes],
        "connections": peer.users,
        "srtt_us": _known(paths.srtt),
        "rttvar_us": _known(paths.rttvar) if paths.srtt >= 0 else None,
        "min_rtt_us": _known(paths.min_rtt),
        "last_heard_us": _ago(paths.heard_at, now),
        "usable_paths": len(paths.usable),
        "paths_by_state": dict(Counter(STATE_NAMES[path.state] for path in paths.paths)),
        "probes_outstanding": len(peer.prober.outstanding),
        "paths": {
            "count": len(paths.paths),
            "listed": [_path(path, now) for path in paths.paths[:limit]],
            "left_out": max(0, len(paths.paths) - limit),
        },
    }


def _path(path: Path, now: Time) -> dict[str, Any]:
    return {
        "entropy": path.entropy,
        "plane": path.plane,
        "state": STATE_NAMES[path.state],
        "usable": path.usable >= 0,
        "srtt_us": _known(path.srtt),
        "rttvar_us": _known(path.rttvar) if path.srtt >= 0 else None,
        "min_rtt_us": _known(path.min_rtt),
        "marked_share": round(path.ecn, 4),
        "in_flight_bytes": path.in_flight,
        "losses": path.losses,
        "last_heard_us": _ago(path.heard_at, now),
    }


def _nic(nic: Nic) -> dict[str, int]:
    """Counters of the Nic, none if it has none or is closed."""
    counters = getattr(nic, "counters", None)
    try:
        return dict(counters()) if counters is not None else {}
    except NicError:
        return {}


def _address(address: Sequence[int]) -> str:
    return str(ip_address(bytes(address)))


def _us(time: Time) -> float:
    return time / US


def _known(time: Time) -> float | None:
    return _us(time) if time >= 0 else None


def _ago(then: Time, now: Time) -> float | None:
    """Microseconds since `then`; None if that is before all time."""
    return _us(now - then) if then >= 0 else None


def _until(then: Time, now: Time) -> float | None:
    """Microseconds until `then`, negative if it is over; None if nothing waits."""
    return _us(then - now) if then < NEVER else None
