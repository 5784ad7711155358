"""`polyroce stats`: asks a running process for its state and shows it.

A process that did not say it takes SIGUSR1 is never signalled: the signal would kill it. How the two speak is in
transport/telemetry.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from testbed.dump import Connection, Dump, Endpoint, Peer
from transport.errors import PolyroceError
from transport.snapshot import SCHEMA
from transport.telemetry import registry, start_time

#: Seconds that a process may take to answer.
PATIENCE = 5.0

_LOOK_EVERY = 0.005


class StatsError(PolyroceError):
    """A process cannot be asked, or did not answer. The text names it."""


def ask(pid: int, limit: int, patience: float = PATIENCE) -> Dump:
    """The state of process `pid`, made after this was called. limit: connections, peers and paths that are listed.

    StatsError, at the latest after `patience` seconds: there is no such process, it is another user's or none that can
    be asked, it ended, it did not answer, or what it says is not of this version's schema.
    """
    try:
        process = _Process(pid)
    except (ProcessLookupError, ValueError, OverflowError, OSError):
        raise StatsError(f"process {pid}: there is none") from None
    with closing(process):
        folder = _registered(pid)
        state, question = folder / f"{pid}.state", folder / f"{pid}.ask"
        before = _serial(state)
        question.write_text(str(limit), encoding="ascii")
        try:
            process.signal()
            text = _await(process, state, before, patience)
        finally:
            with suppress(OSError):
                question.unlink()
    return _parse(pid, text)


class _Process:
    """A process that keeps its number while this is open: a signal cannot reach a later one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)

    def signal(self) -> None:
        signal.pidfd_send_signal(self.descriptor, signal.SIGUSR1)

    def ended(self) -> bool:
        return bool(select.select([self.descriptor], [], [], 0)[0])

    def close(self) -> None:
        os.close(self.descriptor)


def _registered(pid: int) -> Path:
    """The folder where process `pid` has said that it can be asked."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        raise StatsError(f"process {pid}: there is none") from None
    if owner != os.geteuid():
        raise StatsError(f"process {pid} belongs to user {owner}: ask as that user")
    folder = registry(owner)
    try:
        told = json.loads((folder / f"{pid}.json").read_text(encoding="utf-8"))
        start = told["start"]
    except (OSError, ValueError, KeyError, TypeError):
        start = None
    if start is None or start != start_time(pid):
        raise StatsError(
            f"process {pid} cannot be asked: it runs no endpoint now, or did not call transport.telemetry.install; it "
            "was not signalled"
        )
    return folder


def _serial(state: Path) -> int:
    try:
        serial = json.loads(state.read_text(encoding="utf-8"))["serial"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return serial if isinstance(serial, int) else 0


def _await(process: _Process, state: Path, before: int, patience: float) -> str:
    """The text of the first dump after number `before`."""
    deadline = time.monotonic() + patience
    while True:
        ended = process.ended()
        if _serial(state) > before:
            return state.read_text(encoding="utf-8")
        if ended:
            raise StatsError(f"process {process.pid} ended before it answered")
        if time.monotonic() > deadline:
            raise StatsError(f"process {process.pid}: no answer within {patience:g} s; it is stopped or busy")
        time.sleep(_LOOK_EVERY)


def _parse(pid: int, text: str) -> Dump:
    data: Any = json.loads(text)
    if data.get("version") != SCHEMA:
        raise StatsError(f"process {pid}: its dump has schema version {data.get('version')!r}, {SCHEMA} is known here")
    try:
        dump = Dump.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StatsError(f"process {pid}: its dump is not of the schema: {where}: {first['msg']}") from None
    if dump.failure is not None:
        raise StatsError(f"process {pid} could not make a picture of its state: {dump.failure}")
    return dump


def show(dump: Dump, console: Console) -> None:
    """Tables of what is not zero, for people."""
    for endpoint in dump.endpoints:
        console.print(
            f"{endpoint.name}: process {dump.pid}, {', '.join(endpoint.addresses)}, "
            f"{endpoint.ready} ready to send, next timeout in {_shown(endpoint.next_timeout_us, ' us')}"
        )
        for title, counters in (("counters", endpoint.counters), ("nic", endpoint.nic)):
            said = ", ".join(f"{name} {value}" for name, value in counters.items() if value)
            console.print(f"{title}: {said or 'all 0'}")
        _show_connections(endpoint, console)
        for peer in endpoint.peers.listed:
            _show_peer(peer, console)
        if endpoint.peers.left_out:
            console.print(f"{endpoint.peers.left_out} more peers")
        console.print()


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True, justify="left" if title in ("peer", "state", "control") else "right")
    return table


def _show_connections(endpoint: Endpoint, console: Console) -> None:
    connections = endpoint.connections
    states = ", ".join(f"{count} {state}" for state, count in connections.by_state.items()) or "none"
    console.print(f"connections: {states}, {connections.dormant} of them dormant")
    table = _table(
        "qpn", "peer", "state", "sends", "receives", "in flight", "window", "rate", "missing", "timeouts", "last ack",
        "edge", "top", "control",
    )  # fmt: skip
    for connection in connections.listed:
        table.add_row(*_row(connection))
    console.print(table)
    errors = [f"{connection.qpn:#x}: {connection.error}" for connection in connections.listed if connection.error]
    for line in errors:
        console.print(line)
    if connections.left_out:
        console.print(f"{connections.left_out} more connections")


def _row(connection: Connection) -> list[str]:
    sender, receiver, control = connection.sender, connection.receiver, connection.control
    return [
        f"{connection.qpn:#x}", connection.peer or "-", connection.state + (" (dormant)" if connection.dormant else ""),
        str(sender.queue), str(receiver.queue), f"{sender.in_flight_bytes} B",
        f"{control.window_bytes} B" if control else "-",
        f"{control.rate_bps / 1e9:.3f} Gbit/s" if control and control.rate_bps else "-",  # 0 is no pacing
        str(sender.missing), str(connection.recovery.timeouts_in_a_row),
        _shown(connection.recovery.last_ack_us, " us ago"), str(receiver.edge_dsn), str(receiver.top_dsn),
        control.name if control else "-",
    ]  # fmt: skip


def _show_peer(peer: Peer, console: Console) -> None:
    states = ", ".join(f"{count} {state}" for state, count in peer.paths_by_state.items())
    console.print(f"peer {peer.name}: {peer.connections} connections, {peer.usable_paths} usable paths, {states}")
    table = _table("path", "plane", "state", "srtt", "min rtt", "marked", "in flight", "losses", "heard")
    for path in peer.paths.listed:
        table.add_row(
            str(path.entropy), str(path.plane), path.state, _shown(path.srtt_us, " us"), _shown(path.min_rtt_us, " us"),
            f"{path.marked_share:.1%}", f"{path.in_flight_bytes} B", str(path.losses),
            _shown(path.last_heard_us, " us ago"),
        )  # fmt: skip
    console.print(table)
    if peer.paths.left_out:
        console.print(f"{peer.paths.left_out} more paths")


def _shown(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"
