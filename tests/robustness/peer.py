"""One peer of the chaos test: a process with an endpoint over UDP that does as the coordinator says.

    python -m tests.robustness.peer ADDRESS DESCRIPTOR

It listens for bootstraps at ADDRESS and turns every connection it ever had until that is gone. Connections come in
generations, all of one bootstrap. Commands come as JSON lines over the socket DESCRIPTOR, and are answered in order:

    join      meet `peer` (call it if `call`, else be called) for generation `number`: a connection and a transfer for
              each of `seeds`; the answer says what `failed`, if it did
    status    how the transfers, the counters and the process are
    limit     the transfers of generation `number` are to end; `status` tells when they have
    close     close the connections of generation `number`
    replay    send again what was recorded of generation `number`: what came to ourselves, from the address of `peer`,
              and what we sent to it; as it was, or `onto` the queue pairs of another generation
    forget    drop generation `number`, which must have ended, and free its memory

The bootstrap channel is closed as soon as parameters are exchanged, so that nothing but the transport tells that a peer
has died. A queue pair that went to ERR is closed at once. The process ends when the coordinator does.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.rank_process import die_with_parent
from tests.robustness.transfer import FIRST_RECEIVE, Transfer
from transport.bootstrap import Channel, Listener, PeerGoneError, connect
from transport.clock import MS, SECOND
from transport.config import EndpointConfig
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.errors import PolyroceError
from transport.nic.base import Nic
from transport.nic.udp import UdpNic
from transport.nic.wrapper import Wrapper
from transport.packet import Packet
from transport.states import State
from transport.wire import ID0, ROCE_PORT, Codec

ENTROPIES = (50001, 50002, 50003, 50004)
RETRIES = 4
RTO_MIN = 50 * MS
#: Where peers meet, and how long they wait for each other there, seconds.
PORT = 18599
PATIENCE = 3.0
#: Packets of each direction that are kept of each connection, for a replay.
RECORDED = 200


class Recorder(Wrapper):
    """Keeps the first packets to and from each of our queue pairs that `record` names."""

    def __init__(self, inner: Nic) -> None:
        super().__init__(inner)
        self.came: dict[int, list[Packet]] = {}
        self.went: dict[int, list[Packet]] = {}

    def record(self, qpn: int) -> None:
        self.came[qpn], self.went[qpn] = [], []

    def forget(self, qpn: int) -> None:
        self.came.pop(qpn, None)
        self.went.pop(qpn, None)

    def receive(self, limit: int) -> list[Packet]:
        packets: list[Packet] = self.inner.receive(limit)
        for packet in packets:
            _keep(self.came.get(packet.qpn), packet)
        return packets

    def send(self, packets: Sequence[Packet]) -> int:
        taken = self.inner.send(packets)
        for packet in packets[:taken]:
            _keep(self.went.get(packet.src_qpn), packet)
        return taken


def _keep(kept: list[Packet] | None, packet: Packet) -> None:
    if kept is not None and len(kept) < RECORDED:
        copy = packet.copy()
        copy.detach()
        kept.append(copy)


@dataclass
class Generation:
    """All connections of one bootstrap. closing: nothing more is to be posted."""

    transfers: list[Transfer] = field(default_factory=list)
    closing: bool = False

    def over(self) -> bool:
        return all(item.connection.state == State.RESET and not item.outstanding for item in self.transfers)


class Peer:
    """The process. generations: by number, until they are forgotten."""

    def __init__(self, address: str, command: Channel) -> None:
        self.address = address
        self.command = command
        config = EndpointConfig(entropies=ENTROPIES, max_run=8, retries=RETRIES, rto_min=RTO_MIN)
        self.nic = Recorder(UdpNic(address, ENTROPIES))
        rng = random.Random(os.urandom(16))
        self.endpoint = Endpoint(config, self.nic.address, self.nic.caps, rng)
        self.driver = Driver(self.endpoint, self.nic)
        self.listener = Listener(address, PORT)
        self.generations: dict[int, Generation] = {}
        self.by_qpn: dict[int, Transfer] = {}
        self.codec = Codec(ID0)

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
            self._turn()

    def _turn(self) -> None:
        now = self.driver.now()
        for generation in self.generations.values():
            for transfer in generation.transfers:
                if transfer.connection.state == State.ERR:
                    transfer.connection.close(now)
                if not generation.closing:
                    transfer.advance(now)
        for completion in self.driver.step(now + MS):
            self.by_qpn[completion.qpn].take(self.driver.now(), completion)

    def do_join(self, message: dict[str, Any]) -> dict[str, Any]:
        now = self.driver.now()
        generation = Generation()
        for seed, peer_seed in zip(message["seeds"], message["peer_seeds"], strict=True):
            connection = self.endpoint.create_connection(self.endpoint.protection_domain(), now)
            transfer = Transfer(connection, seed, peer_seed)
            self.by_qpn[connection.qpn] = transfer
            self.nic.record(connection.qpn)
            generation.transfers.append(transfer)
        self.generations[message["number"]] = generation
        transfers = generation.transfers
        try:
            if message["call"]:
                channel = connect(message["peer"], PORT, patience=PATIENCE)
            else:
                channel = self.listener.accept(PATIENCE)
            channel.patience = PATIENCE
            with channel:
                theirs, more = channel.exchange(
                    [transfer.connection.parameters for transfer in transfers],
                    memory=[list(transfer.local) for transfer in transfers],
                    number=message["number"],
                )
                if more["number"] != message["number"]:
                    raise channel.refuse(f"generation: {message['number']} here, {more['number']} at the peer")
        except PolyroceError as error:
            for transfer in transfers:
                transfer.connection.close(now)
            return {"failed": f"{type(error).__name__}: {error}"}
        for transfer, parameters, memory in zip(transfers, theirs, more["memory"], strict=True):
            transfer.remote = tuple(memory)
            transfer.connection.connect(self.driver.now(), parameters)
        return {}

    def do_status(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "generations": {number: self._describe(item) for number, item in self.generations.items()},
            "counters": self.endpoint.counters(), "nic": self.nic.counters(),
            "descriptors": len(os.listdir("/proc/self/fd")), "resident": _resident(),
            "connections": sum(item is not None for item in self.endpoint.connections.values()),
            "peers": len(self.endpoint.peers),
        }  # fmt: skip

    def do_limit(self, message: dict[str, Any]) -> None:
        for transfer in self.generations[message["number"]].transfers:
            transfer.limit = (transfer.posted // 8 + 2) * 8

    def do_close(self, message: dict[str, Any]) -> None:
        generation = self.generations[message["number"]]
        generation.closing = True
        for transfer in generation.transfers:
            transfer.connection.close(self.driver.now())

    def do_forget(self, message: dict[str, Any]) -> None:
        generation = self.generations.pop(message["number"])
        if not generation.over():
            raise AssertionError(f"generation {message['number']} has not ended")
        for transfer in generation.transfers:
            transfer.region.deregister()
            self.nic.forget(transfer.connection.qpn)
            del self.by_qpn[transfer.connection.qpn]

    def do_replay(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer: how many packets came to ourselves again, and to the peer."""
        old = self.generations[message["number"]].transfers
        new = self.generations[message["onto"]].transfers if message["onto"] is not None else [None] * len(old)
        came = went = 0
        for item, target in zip(old, new, strict=True):
            qpn = item.connection.qpn
            onto = theirs = None
            if target is not None:
                onto, theirs = target.connection.qpn, target.connection.context.peer_qpn
            came += self._replay(self.nic.came[qpn], message["peer"], self.address, onto)
            went += self._replay(self.nic.went[qpn], self.address, message["peer"], theirs)
        return {"came": came, "went": went}

    def _replay(self, packets: Sequence[Packet], source: str, target: str, onto: int | None) -> int:
        sent = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            attacker.bind((source, 0))
            for recorded in packets:
                packet = recorded.copy()
                packet.entropy = attacker.getsockname()[1]
                if onto is not None:
                    packet.qpn = onto
                for index in range(packet.count):
                    header, payload, trailer = self.codec.encode(packet, index)
                    attacker.sendto(b"".join((header, payload or b"", trailer)), (target, ROCE_PORT))
                    sent += 1
        return sent

    def _describe(self, generation: Generation) -> dict[str, Any]:
        transfers = generation.transfers
        return {
            "states": [State(item.connection.state).name for item in transfers], "over": generation.over(),
            "posted": sum(item.posted + item.received for item in transfers),
            "completed": sum(item.completed for item in transfers), "checked": [item.checked for item in transfers],
            "finished": all(item.finished() for item in transfers),
            "expected": [item.limit for item in transfers],
            "outstanding": sum(len(item.outstanding) for item in transfers),
            "wrong": [text for item in transfers for text in item.wrong],
            "errors": [
                [error.wr_id < FIRST_RECEIVE, error.status.name, error.error]
                for item in transfers for error in item.errors
            ],
            "give_up_s": max(
                (8 * context.rto() + context.give_up() + context.probe_timeout()) / SECOND if context.peer else 0.0
                for context in (item.connection.context for item in transfers)
            ),
        }  # fmt: skip


def _resident() -> int:
    """Bytes of the resident set."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str]) -> int:
    address, descriptor = arguments
    die_with_parent()
    command = Channel(socket.socket(fileno=int(descriptor)), "the coordinator", max_line=64 << 20)
    peer = Peer(address, command)
    try:
        peer.run()
    finally:
        peer.listener.close()
        peer.driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
