"""The measuring end."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console

from testbed import report
from testbed.errors import RunError
from testbed.perf.plan import Plan
from testbed.perf.side import GLANCE, Side, checked, post_ping, post_pongs
from testbed.processes import rank_environment
from transport import bootstrap
from transport.bootstrap import Channel
from transport.clock import SECOND, US
from transport.completion import Opcode

LOCAL_CLIENT = "127.0.0.1"
LOCAL_SERVER = "127.0.0.2"

#: Seconds beyond the duration after which nothing is waited for any more.
_PATIENCE = 30.0
_END = 5.0
_CONNECT = 2.0


@contextmanager
def local_server(plan: Plan) -> Iterator[Channel]:
    """A server in a process of its own on this machine; a channel to it. It does not outlive this."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", "testbed.perf.server", str(theirs.fileno()), LOCAL_SERVER, plan.cc]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=rank_environment()
        )
    try:
        yield Channel(ours, "the local server", patience=_PATIENCE)
        process.wait(_END)
    except subprocess.TimeoutExpired:
        raise RunError("the local server did not end") from None
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        ours.close()


def run(
    host: str | None, port: int, bind: str, plan: Plan, console: Console, channel: Channel | None, pcap: str = ""
) -> dict[str, Any]:
    """Measure against the server at `host`, or the one behind `channel`. Prints and returns a row for each size."""
    own = bind or (LOCAL_CLIENT if channel is not None else "")
    connected = channel if channel is not None else bootstrap.connect(host or "", port, _CONNECT)
    with connected:
        connected.patience = _PATIENCE
        connected.send({"type": "request", "plan": plan.to_json()})
        side = Side(0, plan, own or connected.local, pcap)
        try:
            side.connect(connected)
            connected.receive("connected")
            _show_header(plan, console)
            rows = []
            for size in plan.sizes:
                side.size = size
                row = (_latency if plan.latency else _bandwidth)(connected, side)
                _show_row(plan, row, console)
                rows.append(row)
            connected.send({"type": "bye"})
            side.finish()
        except BaseException:
            side.close()
            raise
    passed = all(row["bytes_match"] for row in rows)
    if not passed:
        console.print("WRONG BYTES: the buffers of the two sides differ", style="bold red")
    return {
        "scenario": "perf", "on": plan.nic, "seed": plan.seed, "version": report.installed_version(),
        "compiled": report.compiled(), "passed": passed, "op": plan.op,
        "kind": "latency" if plan.latency else "bandwidth",
        "paths": plan.paths, "qps": plan.qps, "mtu_bytes": plan.mtu, "icrc": plan.icrc, "cc": plan.cc,
        "selector": plan.selector, "max_run": plan.max_run, "rows": rows,
        "metrics": {name: value for name, value in rows[-1].items() if name != "bytes_match"},
    }  # fmt: skip


def _begin(channel: Channel, side: Side) -> None:
    channel.send({"type": "begin", "size": side.size})
    channel.receive("begun")


def _bandwidth(channel: Channel, side: Side) -> dict[str, Any]:
    """Keep every queue pair full for the duration, then wait until all is in."""
    plan, driver = side.plan, side.driver
    depth = plan.outstanding(side.size)
    outstanding = [0] * plan.qps
    numbers = {connection.qpn: number for number, connection in enumerate(side.connections)}
    _begin(channel, side)
    before = side.endpoint.counters()
    start = driver.now()
    end = start + round(plan.duration * SECOND)
    give_up = end + round(_PATIENCE * SECOND)
    messages = 0
    for number in range(plan.qps):
        _post(side, number, depth)
        outstanding[number] = depth
    left = depth * plan.qps
    while left:
        completions = driver.step(driver.now() + GLANCE)
        now = driver.now()
        for completion in completions:
            outstanding[numbers[checked(completion).qpn]] -= 1
        messages += len(completions)
        left -= len(completions)
        if now < end:
            for number in range(plan.qps):
                room = depth - outstanding[number]
                if room:
                    _post(side, number, room)
                    outstanding[number] = depth
                    left += room
        elif now > give_up:
            raise RunError(f"size {side.size}: {left} requests are outstanding after {_PATIENCE:g} s")
    seconds = (driver.now() - start) / SECOND
    channel.send({"type": "end", "messages": messages})
    theirs = _result(channel, side)
    counters = {name: value - before[name] for name, value in side.endpoint.counters().items()}
    sender = counters if plan.op != "read" else theirs["counters"]
    return {
        "size_bytes": side.size,
        "messages": messages,
        "duration_us": seconds * 1e6,
        "goodput_gbps": messages * side.size * 8e-9 / seconds,
        "messages_per_s": messages / seconds,
        "retransmits": sender["retransmits"] if plan.op != "read" else None,
        "latency_p50_us": None,
        "latency_p99_us": None,
        "latency_p999_us": None,
        "bytes_match": theirs["digests"] == side.digests(),
    }


def _post(side: Side, number: int, count: int) -> None:
    """Post requests of the current size on one queue pair."""
    connection = side.connections[number]
    view = side.views[number][: side.size]
    address, rkey = side.remote[number]
    now = side.driver.now()
    op = side.plan.op
    for _ in range(count):
        if op == "write":
            connection.post_write(now, number, view, address, rkey)
        elif op == "write_imm":
            connection.post_write(now, number, view, address, rkey, number)
        elif op == "send":
            connection.post_send(now, number, view)
        else:
            connection.post_read(now, number, view, address, rkey)


def _latency(channel: Channel, side: Side) -> dict[str, Any]:
    """Ping-pong of WRITEs with immediate; half of each round trip is a sample."""
    driver, connection = side.driver, side.connections[0]
    post_pongs(side, connection)
    _begin(channel, side)
    samples: list[int] = []
    start = driver.now()
    end = start + round(side.plan.duration * SECOND)
    give_up = end + round(_PATIENCE * SECOND)
    sent_at = start
    post_ping(side, connection, 0)
    while True:
        answered = False
        for completion in side.spin():
            if checked(completion).opcode == Opcode.RECV_RDMA_WITH_IMM:
                side.posted[0] -= 1
                answered = True
        now = driver.now()
        if answered:
            samples.append(now - sent_at)
            if now >= end:
                break
            sent_at = driver.now()
            post_ping(side, connection, len(samples))
            post_pongs(side, connection)
        elif now > give_up:
            raise RunError(f"size {side.size}: no answer within {_PATIENCE:g} s")
    seconds = (driver.now() - start) / SECOND
    channel.send({"type": "end", "messages": len(samples)})
    theirs = _result(channel, side)
    halves = np.array(samples, dtype=np.int64) / 2 / US
    p50, p99, p999 = (float(value) for value in np.percentile(halves, (50, 99, 99.9)))
    return {
        "size_bytes": side.size,
        "messages": len(samples),
        "duration_us": seconds * 1e6,
        "goodput_gbps": None,
        "messages_per_s": len(samples) / seconds,
        "retransmits": side.endpoint.counters()["retransmits"],
        "latency_p50_us": p50,
        "latency_p99_us": p99,
        "latency_p999_us": p999,
        "bytes_match": theirs["digests"] == side.digests(),
    }


def _result(channel: Channel, side: Side) -> dict[str, Any]:
    """The server's answer; until it comes, its last packets are answered."""
    deadline = time.monotonic() + _PATIENCE
    while (message := channel.poll()) is None:
        side.driver.step(side.driver.now() + SECOND // 1000)
        if time.monotonic() > deadline:
            raise RunError(f"size {side.size}: the server does not answer")
    if message["type"] != "result":
        raise RunError(f"size {side.size}: the server failed: {message.get('reason', message['type'])}")
    return message


def _show_header(plan: Plan, console: Console) -> None:
    mode = "compiled" if report.compiled() else "interpreted"
    what = "half round trip of WRITE with immediate" if plan.latency else f"bandwidth of {plan.op.upper()}"
    console.print(
        f"{what}: {plan.qps} queue pair{'s' if plan.qps > 1 else ''}, {plan.paths} paths, selector {plan.selector}, "
        f"cc {plan.cc}, mtu {plan.mtu} B, icrc {'on' if plan.icrc else 'off'}, {mode}"
    )
    if plan.latency:
        console.print(f"{'#bytes':>10} {'#iterations':>12} {'P50[usec]':>12} {'P99[usec]':>12} {'P99.9[usec]':>12}")
    else:
        console.print(f"{'#bytes':>10} {'#iterations':>12} {'BW average[Gb/sec]':>20} {'MsgRate[Mpps]':>15}")


def _show_row(plan: Plan, row: dict[str, Any], console: Console) -> None:
    start = f"{row['size_bytes']:>10} {row['messages']:>12}"
    if plan.latency:
        console.print(
            f"{start} {row['latency_p50_us']:>12.2f} {row['latency_p99_us']:>12.2f} {row['latency_p999_us']:>12.2f}"
        )
    else:
        console.print(f"{start} {row['goodput_gbps']:>20.3f} {row['messages_per_s'] / 1e6:>15.6f}")
