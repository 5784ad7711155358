"""What client and server have in common: an endpoint, its queue pairs, a buffer for each."""

from __future__ import annotations

import os
import random

from testbed import nics
from testbed.errors import RunError
from testbed.perf.plan import Plan
from testbed.rank import digest
from testbed.workloads.base import payload
from transport import telemetry
from transport.bootstrap import Channel
from transport.clock import MS
from transport.completion import Completion, Status
from transport.connection import Connection
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.nic.base import Nic
from transport.nic.pcap import PcapWriter
from transport.pcapfile import PcapFile
from transport.placement import Access
from transport.telemetry import Installed
from transport.wire import ID0, OFF, Codec

_ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ

#: Picoseconds between two looks at the channel while data flows.
GLANCE = 20 * MS

#: Receives kept posted while latency is measured.
_RECEIVES = 64

_LINGER = 50 * MS


class Side:
    """One end of a measurement. who: 0 for the client, 1 for the server. pcap: a file for all that it sends and
    receives, if it is named."""

    def __init__(self, who: int, plan: Plan, address: str, pcap: str = "") -> None:
        self.plan = plan
        self.size = 0
        config = nics.udp_config(plan.config(), address)
        self.nic: Nic = nics.udp_nic(config, address, busy_poll=plan.latency, kind=plan.nic)
        self.capture: PcapFile | None = None
        self.telemetry: Installed | None = None
        try:
            if pcap:
                self.capture = nics.open_pcap(pcap)
                self.nic = PcapWriter(self.nic, self.capture, Codec(ID0 if config.icrc else OFF))
            endpoint = Endpoint(config, self.nic.address, self.nic.caps, random.Random(f"{plan.seed} perf {who}"))
            self.endpoint = endpoint
            self.driver = Driver(endpoint, self.nic, low_latency=plan.latency)
            domain = endpoint.protection_domain()
            largest = max(plan.sizes)
            now = self.driver.now()
            self.connections = [endpoint.create_connection(domain, now) for _ in range(plan.qps)]
            self.buffers = [bytearray(payload(plan.seed, who, number, 0, largest)) for number in range(plan.qps)]
            self.views = [memoryview(buffer) for buffer in self.buffers]
            self.regions = [domain.register(buffer, _ALL) for buffer in self.buffers]
            self.remote: list[tuple[int, int]] = []
            self.posted = [0] * plan.qps  # receives
            self.telemetry = telemetry.install(self.driver, f"perf {'server' if who else 'client'}")
        except BaseException:
            self.close()
            raise

    def connect(self, channel: Channel) -> None:
        """Exchange parameters, addresses and keys, and bring the queue pairs up."""
        told = [[region.address, region.rkey] for region in self.regions]
        theirs, more = channel.exchange([connection.parameters for connection in self.connections], buffers=told)
        buffers = more["buffers"]
        if (
            not isinstance(buffers, list)
            or len(buffers) != len(told)
            or any(not isinstance(pair, list) or [type(part) for part in pair] != [int, int] for pair in buffers)
        ):
            raise channel.refuse(f"buffers: {buffers!r:.60} is not an address and a key for each queue pair")
        self.remote = [(pair[0], pair[1]) for pair in buffers]
        now = self.driver.now()
        for connection, parameters in zip(self.connections, theirs, strict=True):
            connection.connect(now, parameters)

    def spin(self) -> list[Completion]:
        """One step without sleeping. If nothing came, others that want this core may have it first: with more busy
        processes than cores, spinning on would only keep the peer from answering."""
        completions = self.driver.step(0)
        if not completions:
            os.sched_yield()
        return completions

    def digests(self) -> list[str]:
        """Of the part of each buffer that is in use."""
        return [digest(view[: self.size]) for view in self.views]

    def finish(self) -> None:
        """Close the queue pairs, answer the peer a little longer, release the sockets."""
        for connection in self.connections:
            connection.close(self.driver.now())
        end = self.driver.now() + _LINGER
        while self.driver.now() < end:
            self.driver.step(end)
        self.close()

    def close(self) -> None:
        """Release the sockets and the capture file."""
        if self.telemetry is not None:
            self.telemetry.close()
        self.nic.close()
        if self.capture is not None:
            self.capture.close()


def checked(completion: Completion) -> Completion:
    """The completion if it succeeded; RunError says what failed."""
    if completion.status != Status.SUCCESS:
        raise RunError(f"{completion.opcode.name} ended with {completion.status.name}: {completion.error}")
    return completion


def post_ping(side: Side, connection: Connection, number: int) -> None:
    """A WRITE with immediate of the current size."""
    address, rkey = side.remote[0]
    connection.post_write(side.driver.now(), 0, side.views[0][: side.size], address, rkey, number & 0xFFFFFFFF)


def post_pongs(side: Side, connection: Connection) -> None:
    """Keep receives posted for what the other side sends. In batches: one advert tells of all of them."""
    if side.posted[0] > _RECEIVES // 2:
        return
    while side.posted[0] < _RECEIVES:
        connection.post_recv(side.driver.now(), 1, bytearray(0))
        side.posted[0] += 1
