"""Hostile datagrams over real sockets beside a transfer: an attacker's socket, also under the peer's own address."""

from __future__ import annotations

import random
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.robustness.attacks import ALL, DROPS, Attack, Scene
from tests.robustness.transfer import Transfer
from transport.clock import MS, SECOND
from transport.config import EndpointConfig
from transport.connection import Connection
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.errors import LocalProtocolError
from transport.nic.udp import UdpNic
from transport.packet import Packet
from transport.wire import ID0, ROCE_PORT, Codec

pytestmark = pytest.mark.xdist_group("ports")

ADDRESSES = ("127.3.0.1", "127.3.0.2")
STRANGER = "127.3.0.9"
ENTROPIES = (50001, 50002, 50003, 50004)
MTU = 1024
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "robustness.md"


class Attacker:
    """A socket that sends to port 4791 of others and should never be answered."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 0))
        self.socket.setblocking(False)
        self.address = socket.inet_aton(address)
        self.port = self.socket.getsockname()[1]
        self.codec = Codec(ID0)

    def bytes_of(self, packet: Packet, **changes: int) -> bytes:
        """The datagram of a packet of one segment, with the ICRC that this very socket's datagrams must have."""
        packet = packet.copy()
        packet.src, packet.entropy = self.address, self.port
        for name, value in changes.items():
            setattr(packet, name, value)
        header, payload, trailer = self.codec.encode(packet, 0)
        return b"".join((header, payload or b"", trailer))

    def send(self, data: bytes, target: str) -> None:
        self.socket.sendto(data, (target, ROCE_PORT))

    def answers(self) -> int:
        """How many datagrams came."""
        count = 0
        while True:
            try:
                self.socket.recv(65536)
            except BlockingIOError:
                return count
            count += 1


class Side:
    """One host with its half of the transfer."""

    def __init__(self, number: int) -> None:
        config = EndpointConfig(mtu=MTU, entropies=ENTROPIES, max_run=8)
        self.address = ADDRESSES[number]
        self.nic = UdpNic(self.address, ENTROPIES, mtu=MTU)
        self.endpoint = Endpoint(config, self.nic.address, self.nic.caps, random.Random(number))
        self.driver = Driver(self.endpoint, self.nic)
        domain = self.endpoint.protection_domain()
        self.connection: Connection = self.endpoint.create_connection(domain, self.nic.now())
        self.transfer = Transfer(self.connection, number, 1 - number)

    def step(self) -> None:
        now = self.driver.now()
        self.transfer.advance(now)
        for completion in self.driver.step():
            self.transfer.take(now, completion)


class World:
    """Two sides, connected, and two attackers: under the address of side 0, and under one of no side."""

    def __init__(self) -> None:
        self.sides = [Side(0), Side(1)]
        for side, other in (self.sides, self.sides[::-1]):
            side.connection.connect(side.nic.now(), other.connection.parameters)
            side.transfer.remote = other.transfer.local
        self.victim = self.sides[1]
        self.scene = Scene(self.victim.connection, 5)
        self.spoofer, self.stranger = Attacker(ADDRESSES[0]), Attacker(STRANGER)

    def run(self, until: Callable[[], bool]) -> None:
        end = self.sides[0].nic.now() + 60 * SECOND
        while not until():
            self.step()
            assert self.sides[0].nic.now() < end, [side.transfer for side in self.sides]

    def step(self) -> None:
        for side in self.sides:
            side.step()

    def begin(self) -> None:
        """Until the transfer has really begun."""
        self.run(lambda: self.victim.transfer.checked > 0)

    def finish(self) -> None:
        """Let the transfer, which went on until now, end: every byte right, every request once, no error."""
        for side in self.sides:
            side.transfer.limit = (side.transfer.posted // 8 + 2) * 8
        self.run(lambda: all(side.transfer.finished() for side in self.sides))
        self.run_for(20 * MS)
        for side, other in (self.sides, self.sides[::-1]):
            assert side.transfer.wrong == side.transfer.errors == []
            # Receives that nobody consumed stay posted; every request and message was compared.
            assert side.transfer.checked == side.transfer.limit + other.transfer.limit // 8 * 3
            assert side.nic.counters()["overrun"] == 0
        assert self.spoofer.answers() == self.stranger.answers() == 0
        assert not any(map(any, self.scene.memories))

    def run_for(self, time: int) -> None:
        end = self.sides[0].nic.now() + time
        self.run(lambda: self.sides[0].nic.now() >= end)

    def counted(self) -> dict[str, int]:
        """What the victim dropped, by cause, in Nic and endpoint; probes that are late are the real peer's."""
        nic, endpoint = self.victim.nic.counters(), self.victim.endpoint.counters()
        found = {name: nic[name] for name in ("malformed", "bad_icrc", "truncated") if nic[name]}
        return found | {name: endpoint[name] for name in DROPS if endpoint[name]}

    def close(self) -> None:
        for side in self.sides:
            side.driver.close()
        for attacker in (self.spoofer, self.stranger):
            attacker.socket.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def on_the_wire(world: World, attack: Attack, count: int) -> list[bytes]:
    """Datagrams of an attack; what has no bytes (a run that contradicts itself) is left out."""
    found = []
    while len(found) < count:
        packet = attack.make(world.scene)
        if packet.count == 1:
            try:
                found.append(world.spoofer.bytes_of(packet))
            except LocalProtocolError:
                continue
    return found


@pytest.mark.parametrize("attack", [attack for attack in ALL if "source address" not in attack.name], ids=repr)
def test_each_kind_is_counted_by_its_cause_and_the_transfer_is_unharmed(world: World, attack: Attack) -> None:
    sent = 0
    world.begin()
    for _ in range(10):
        for data in on_the_wire(world, attack, 2):
            world.spoofer.send(data, world.victim.address)
            sent += 1
        world.step()
    world.finish()
    found = world.counted()
    if attack.counter != "dropped_bad_probe":
        found.pop("dropped_bad_probe", None)
        assert found == {attack.counter: sent}
    else:
        assert sent <= found[attack.counter] <= sent + world.victim.endpoint.counters()["probes_sent"]


def test_packets_from_another_address_are_dropped_whatever_they_hold(world: World) -> None:
    world.begin()
    sent = 0
    for attack in ALL:
        for _ in range(3):
            packet = attack.make(world.scene)
            packet.qpn = world.victim.connection.qpn
            if packet.count == 1:
                try:
                    world.stranger.send(world.stranger.bytes_of(packet), world.victim.address)
                except LocalProtocolError:
                    continue
                sent += 1
    world.finish()
    found = world.counted()
    found.pop("dropped_bad_probe", None)
    assert found == {"dropped_wrong_address": sent}


def good_data(world: World) -> Packet:
    """Data that would be placed, were it not for what is done to its bytes."""
    return world.scene.data(world.scene.ahead(), 32)


def flipped(world: World, rng: random.Random) -> bytes:
    data = bytearray(world.spoofer.bytes_of(good_data(world)))
    data[rng.randrange(32, len(data))] ^= 1 << rng.randrange(8)  # of the payload or of the ICRC itself
    return bytes(data)


def cut(world: World, rng: random.Random) -> bytes:
    data = world.spoofer.bytes_of(good_data(world))
    return data[: rng.randrange(len(data))]


def stretched(world: World, rng: random.Random) -> bytes:
    """With bytes behind its end, about which the RETH knows nothing."""
    return world.spoofer.bytes_of(good_data(world)) + rng.randbytes(4 * rng.randrange(1, 6))


def changed_header(world: World, rng: random.Random) -> bytes:
    """Another opcode, version or partition."""
    data = bytearray(world.spoofer.bytes_of(good_data(world)))
    at, value = rng.choice(((0, rng.choice((0x00, 0x0A, 0x2A, 0xC4, 0xFF))), (1, 0x01), (2, 0x12)))
    data[at] = value
    return bytes(data)


def oversized_bitmap(world: World, rng: random.Random) -> bytes:
    """An ACK that says it has more bits than it carries, or carries more than it says."""
    ack = world.scene.ack(bits=64, received=bytes(8), marked=bytes(8))
    data = bytearray(world.spoofer.bytes_of(world.scene.control(ack, tagged=True)))
    struct.pack_into(">H", data, 12 + 6, rng.choice((0, 63 - 8, 65, 4096, 65535)))
    return bytes(data)


#: Attack, counter of the Nic, and its bytes.
RAW: tuple[tuple[str, str, Callable[[World, random.Random], bytes]], ...] = (
    ("random bytes", "malformed", lambda world, rng: rng.randbytes(rng.randrange(MTU))),
    ("wrong ICRC", "bad_icrc", flipped),
    ("truncated frame", "malformed", cut),
    ("frame with too much in it", "malformed", stretched),
    ("frame longer than any of ours", "truncated", lambda world, rng: rng.randbytes(rng.randrange(MTU + 65, 9000))),
    ("opcode, version or partition of others", "malformed", changed_header),
    ("SACK bitmap that does not fit its packet", "malformed", oversized_bitmap),
)


@pytest.mark.parametrize(("name", "counter", "make"), RAW, ids=[item[0] for item in RAW])
def test_bytes_that_are_no_packet_of_ours_are_counted(world: World, name: str, counter: str, make) -> None:
    rng = random.Random(name)
    sent = 0
    world.begin()
    for attacker in (world.spoofer, world.stranger) * 5:
        for _ in range(2):
            data = make(world, rng)
            attacker.send(data, world.victim.address)
            sent += 1
        world.step()
    world.finish()
    found = world.counted()
    found.pop("dropped_bad_probe", None)
    assert found == {counter: sent}


def test_the_document_lists_every_kind_of_bytes_with_its_counter() -> None:
    rows = re.findall(r"^\| (.+?) \| `(\w+)` \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert {(name, counter) for name, counter, _ in RAW} <= set(rows)
