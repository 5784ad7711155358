"""Memory of many connections: every one of them sends over several source ports, then all lie idle.

    python -m tests.benchmarks.connections --count 131072

Two processes, one endpoint each, over UDP sockets. Each connection in turn writes 64 KiB, which the far end compares;
then the resident set of the sending process is read. Prints one JSON object; the exit status is 0 if all bytes matched,
every connection used at least 4 source ports, and the set is at most --limit-mib larger than before the first
connection (2 KiB a connection if not given).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from testbed.nics import udp_config, udp_nic
from transport.bootstrap import Channel
from transport.clock import SECOND
from transport.completion import Completion, Status
from transport.config import ConnectionParameters, EndpointConfig
from transport.connection import Connection
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.nic.base import Nic
from transport.nic.wrapper import Wrapper
from transport.packet import DATA, Packet
from transport.placement import Access

SIZE = 1 << 16
BATCH = 512
PATHS = 16
ADDRESSES = ("127.0.0.1", "127.0.0.2")
PATIENCE = 60.0


class Meter(Wrapper):
    """Notes by which source ports the data of the current connection left."""

    def __init__(self, inner: Nic) -> None:
        super().__init__(inner)
        self.used: set[int] = set()

    def send(self, packets: Sequence[Packet]) -> int:
        taken = self.inner.send(packets)
        self.used.update(packet.entropy for packet in packets[:taken] if packet.kind == DATA)
        return taken


class End:
    """One process's endpoint over UDP."""

    def __init__(self, number: int) -> None:
        config = udp_config(EndpointConfig(paths=PATHS), ADDRESSES[number])
        self.nic = Meter(udp_nic(config, ADDRESSES[number]))
        self.endpoint = Endpoint(config, self.nic.address, self.nic.caps, random.Random(number))
        self.driver = Driver(self.endpoint, self.nic)
        self.domain = self.endpoint.protection_domain()
        self.connections: list[Connection] = []

    def create(self, count: int) -> list[Connection]:
        now = self.driver.now()
        return [self.endpoint.create_connection(self.domain, now) for _ in range(count)]

    def join(self, created: Sequence[Connection], remote: Sequence[ConnectionParameters]) -> None:
        now = self.driver.now()
        for connection, parameters in zip(created, remote, strict=True):
            connection.connect(now, parameters)
        self.connections += created

    def run(self, seconds: float) -> list[Completion]:
        """Drive for that long; what completed."""
        end = self.driver.now() + round(seconds * SECOND)
        done: list[Completion] = []
        while self.driver.now() < end:
            done += self.driver.step(end)
        return done


def pattern(number: int) -> bytes:
    """What connection `number` sends."""
    return random.Random(number).randbytes(64) * (SIZE // 64)


def resident() -> int:
    """Bytes of this process in memory, after everything that can be freed has been."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def batches(count: int) -> Iterator[range]:
    return (range(first, min(first + BATCH, count)) for first in range(0, count, BATCH))


def serve(channel: Channel) -> None:
    """The far end: takes what comes, and says of every batch how many of its slots hold the right bytes."""
    end = End(1)
    memory = bytearray(BATCH * SIZE)
    region = end.domain.register(memory, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    while (order := _next(end, channel))["type"] != "finish":
        if order["type"] == "connect":
            created = end.create(len(order["connections"]))
            end.join(created, [ConnectionParameters.from_json(item) for item in order["connections"]])
            told = [connection.parameters.to_json() for connection in created]
            channel.send({"type": "connected", "connections": told, "region": [region.address, region.rkey]})
        else:
            slots = range(order["first"], order["first"] + order["count"])
            right = sum(memory[i * SIZE : (i + 1) * SIZE] == pattern(number) for i, number in enumerate(slots))
            memory[:] = bytes(len(memory))
            channel.send({"type": "verified", "right": right})
    channel.send({"type": "finished"})
    end.driver.close()


def _next(end: End, channel: Channel) -> dict[str, object]:
    while (order := channel.poll()) is None:
        end.run(0.001)
    return order


def measure(count: int, limit: int, channel: Channel) -> dict[str, object]:
    """The sending end."""
    end = End(0)
    connect_us: list[float] = []
    rkey = address = 0
    before = resident()
    peak = before
    for batch in batches(count):
        start = time.perf_counter()
        created = end.create(len(batch))
        spent = time.perf_counter() - start
        channel.send({"type": "connect", "connections": [item.parameters.to_json() for item in created]})
        answer = channel.receive("connected", patience=PATIENCE)
        theirs = [ConnectionParameters.from_json(item) for item in answer["connections"]]
        address, rkey = answer["region"]
        start = time.perf_counter()
        end.join(created, theirs)
        connect_us.append((spent + time.perf_counter() - start) / len(batch) * 1e6)
    connected = resident()
    right = 0
    least_ports = PATHS
    start = time.perf_counter()
    for batch in batches(count):
        for slot, number in enumerate(batch):
            end.nic.used.clear()
            connection = end.connections[number]
            connection.post_write(end.driver.now(), number, pattern(number), address + slot * SIZE, rkey)
            completions: list[Completion] = []
            while not completions:
                completions = end.driver.step(end.driver.now() + SECOND)
            assert [(item.wr_id, item.status) for item in completions] == [(number, Status.SUCCESS)], completions
            least_ports = min(least_ports, len(end.nic.used))
        channel.send({"type": "verify", "first": batch[0], "count": len(batch)})
        right += channel.receive("verified", patience=PATIENCE)["right"]
        peak = max(peak, resident())
    spent = time.perf_counter() - start
    end.run(2.0)
    awake = sum(connection.dormant is None for connection in end.connections)
    after = resident()
    close_us = _close_all(end)
    channel.send({"type": "finish"})
    channel.receive("finished", patience=PATIENCE)
    end.driver.close()
    flat = all(statistics.median(times[-8:]) <= 3 * statistics.median(times[:8]) for times in (connect_us, close_us))
    passed = right == count and least_ports >= min(4, PATHS) and after - before <= limit and not awake
    return {
        "connections": count, "bytes_each": SIZE, "right": right, "least_source_ports": least_ports,
        "grown_connected_mib": _mib(connected - before), "grown_peak_mib": _mib(peak - before),
        "grown_idle_mib": _mib(after - before), "bytes_a_connection": round((after - before) / count),
        "limit_mib": _mib(limit), "still_awake": awake, "transfers_per_s": round(count / spent),
        "connect_us_first_batch": round(connect_us[0], 1), "connect_us_last_batch": round(connect_us[-1], 1),
        "close_us_first_batch": round(close_us[0], 1), "close_us_last_batch": round(close_us[-1], 1),
        "last_batches_at_most_3_times_the_first": flat, "passed": passed and (flat or count < 65536),
    }  # fmt: skip


def _close_all(end: End) -> list[float]:
    """Begin to close every connection; microseconds of each batch's."""
    spent = []
    for batch in batches(len(end.connections)):
        start = time.perf_counter()
        now = end.driver.now()
        for number in batch:
            end.connections[number].close(now)
        spent.append((time.perf_counter() - start) / len(batch) * 1e6)
        end.run(0.05)
    return spent


def _mib(size: int) -> float:
    return round(size / (1 << 20), 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=131072, help="connections (131072)")
    parser.add_argument("--limit-mib", type=float, default=0.0, help="most growth allowed (2 KiB a connection)")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve is not None:
        serve(Channel(socket.socket(fileno=options.serve), "the sender", max_line=1 << 24))
        return 0
    limit = round(options.limit_mib * (1 << 20)) or 2048 * options.count
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.benchmarks.connections", "--serve", str(theirs.fileno())]
        far_end = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    try:
        result = measure(options.count, limit, Channel(ours, "the far end", PATIENCE, max_line=1 << 24))
    finally:
        far_end.kill()
        far_end.wait()
    print(json.dumps(result, indent=2))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
