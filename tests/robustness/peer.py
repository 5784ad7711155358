"""One peer of the chaos test: a process with an endpoint over UDP that does as the coordinator says.

    python -m tests.robustness.peer ADDRESS DESCRIPTOR

It listens for bootstraps at ADDRESS and keeps every connection it ever had until that is gone. Commands come as JSON
lines over the socket DESCRIPTOR, and are answered in order:

    join      meet the peer at `peer` (by TCP, or accept it if `peer` is empty) and start a transfer with `seed`
    status    how the transfers and the counters are
    limit     the newest transfer is to end; `status` tells when it has
    close     close the newest connection
    replay    send to ourselves, from the peer's address, what was recorded of the connection before the newest

The bootstrap channel is closed as soon as parameters are exchanged, so that nothing but the transport tells that a peer
has died. The process ends when the coordinator's end of the socket does.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Sequence
from typing import Any

from tests.robustness.transfer import Transfer
from transport.bootstrap import Channel, Listener, PeerGoneError, connect
from transport.clock import MS
from transport.config import EndpointConfig
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.nic.base import Nic
from transport.nic.udp import UdpNic
from transport.nic.wrapper import Wrapper
from transport.packet import Packet
from transport.states import State
from transport.wire import ID0, ROCE_PORT, Codec

ENTROPIES = (50001, 50002, 50003, 50004)
RETRIES = 4
RTO_MIN = 50 * MS
#: Where peers meet.
PORT = 18599
#: Packets that are kept of each connection, for a replay.
RECORDED = 300


class Recorder(Wrapper):
    """Keeps the first packets that arrived for each queue pair."""

    def __init__(self, inner: Nic) -> None:
        super().__init__(inner)
        self.packets: dict[int, list[Packet]] = {}

    def receive(self, limit: int) -> list[Packet]:
        packets: list[Packet] = self.inner.receive(limit)
        for packet in packets:
            kept = self.packets.get(packet.qpn)
            if kept is not None and len(kept) < RECORDED:
                copy = packet.copy()
                copy.detach()
                kept.append(copy)
        return packets


class Peer:
    """The process. transfers: of every connection it had, oldest first."""

    def __init__(self, address: str, command: Channel) -> None:
        self.address = address
        self.command = command
        config = EndpointConfig(entropies=ENTROPIES, max_run=8, retries=RETRIES, rto_min=RTO_MIN)
        self.nic = Recorder(UdpNic(address, ENTROPIES))
        rng = random.Random(os.urandom(16))
        self.endpoint = Endpoint(config, self.nic.address, self.nic.caps, rng)
        self.driver = Driver(self.endpoint, self.nic)
        self.listener = Listener(address, PORT)
        self.transfers: list[Transfer] = []
        self.met: list[str] = []
        self.by_qpn: dict[int, Transfer] = {}

    def run(self) -> None:
        self.command.send({"type": "ready"})
        while True:
            try:
                message = self.command.poll()
            except PeerGoneError:
                return
            if message is not None:
                answer = getattr(self, "do_" + message["type"])(message)
                self.command.send({"type": "done", **(answer or {})})
            now = self.driver.now()
            for transfer in self.transfers[-2:]:
                transfer.advance(now)
            for completion in self.driver.step(now + MS):
                self.by_qpn[completion.qpn].take(self.driver.now(), completion)

    def do_join(self, message: dict[str, Any]) -> None:
        now = self.driver.now()
        connection = self.endpoint.create_connection(self.endpoint.protection_domain(), now)
        transfer = Transfer(connection, message["seed"], message["peer_seed"])
        self.nic.packets[connection.qpn] = []
        channel = connect(message["peer"], PORT) if message["peer"] else self.listener.accept(10.0)
        with channel:
            theirs, more = channel.exchange([connection.parameters], memory=list(transfer.local))
        connection.connect(self.driver.now(), theirs[0])
        transfer.remote = tuple(more["memory"])
        self.by_qpn[connection.qpn] = transfer
        self.transfers.append(transfer)
        self.met.append(bytes.fromhex(theirs[0].addresses[0]).hex())

    def do_status(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "transfers": [self._describe(transfer) for transfer in self.transfers[-2:]],
            "counters": self.endpoint.counters(), "descriptors": len(os.listdir("/proc/self/fd")),
        }  # fmt: skip

    def do_limit(self, message: dict[str, Any]) -> None:
        transfer = self.transfers[-1]
        transfer.limit = (transfer.posted // 8 + 2) * 8

    def do_close(self, message: dict[str, Any]) -> None:
        self.transfers[-1].connection.close(self.driver.now())

    def do_replay(self, message: dict[str, Any]) -> dict[str, Any]:
        """Also what was recorded of the newest, which must be known by now and therefore do no harm."""
        old = self.transfers[-2].connection
        packets = self.nic.packets.pop(old.qpn)
        codec = Codec(ID0)
        sent = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            attacker.bind((message["from"], 0))
            for packet in packets:
                packet.entropy = attacker.getsockname()[1]
                for index in range(packet.count):
                    header, payload, trailer = codec.encode(packet, index)
                    attacker.sendto(b"".join((header, payload or b"", trailer)), (self.address, ROCE_PORT))
                    sent += 1
        return {"sent": sent}

    def _describe(self, transfer: Transfer) -> dict[str, Any]:
        connection = transfer.connection
        if connection.state == State.ERR and not transfer.outstanding:
            connection.close(self.driver.now())
        return {
            "state": State(connection.state).name, "posted": transfer.posted, "checked": transfer.checked,
            "wrong": transfer.wrong, "outstanding": len(transfer.outstanding), "finished": transfer.finished(),
            "limit": transfer.limit, "errors": [[item.status.name, item.error] for item in transfer.errors],
        }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    address, descriptor = arguments
    command = Channel(socket.socket(fileno=int(descriptor)), "coordinator")
    peer = Peer(address, command)
    try:
        peer.run()
    finally:
        peer.listener.close()
        peer.driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
