"""Packets to send, and both forms of the leaf that moves datagrams."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from transport.clock import SECOND
from transport.control import Probe
from transport.nic import _mmsg
from transport.nic.base import Nic
from transport.nic.dgram import DgramNic
from transport.nic.udp import UdpNic
from transport.packet import CLASS_CONTROL, DATAGRAM, ECT_0, PSN_MASK, Packet
from transport.wire import ROCE_PORT

ALICE, BOB = "127.1.0.1", "127.1.0.2"
A, B = socket.inet_aton(ALICE), socket.inet_aton(BOB)
SIX = socket.inet_pton(socket.AF_INET6, "::1")
ENTROPIES = [50001, 50002, 50003, 65535]

#: Opens a Nic that is closed when the test ends: address, source ports, options.
Open = Callable[..., UdpNic]

PATTERN = bytes(i * 7 % 251 for i in range(1 << 20))


def data(
    src: bytes,
    dst: bytes,
    seq: int = 100,
    count: int = 1,
    *,
    segment: int = 4096,
    length: int = -1,
    entropy: int = 50001,
) -> Packet:
    """A data packet of `count` segments; its payload is a part of PATTERN that depends on `seq`."""
    packet = Packet()
    packet.src, packet.dst = src, dst
    packet.entropy = entropy
    packet.qpn = 0x123456
    packet.seq = seq
    packet.psn = seq & PSN_MASK
    packet.count = count
    packet.segment = packet.stride = segment
    packet.length = count * segment if length < 0 else length
    packet.rkey = 0xCAFEBABE
    packet.address = 0x10_0000_0000 + seq * segment
    packet.payload = PATTERN
    packet.offset = seq * 64 % 65536
    packet.ecn = ECT_0
    return packet


def probe(src: bytes, dst: bytes, nonce: int = 1, entropy: int = 50001) -> Packet:
    packet = Packet()
    packet.kind = DATAGRAM
    packet.src, packet.dst = src, dst
    packet.entropy = entropy
    packet.qpn = 0x123456
    packet.control = Probe(nonce, entropy)
    packet.priority = CLASS_CONTROL
    return packet


def content(packet: Packet) -> bytes:
    return b"".join(bytes(packet.segment_payload(i) or b"") for i in range(packet.count))


def segments(packets: list[Packet]) -> list[tuple[int, int, int, bytes]]:
    """(sequence, PSN, address, bytes) of every segment, in order: the same for a run and for its parts."""
    found = []
    for packet in packets:
        for i in range(packet.count):
            part = packet.split(i, 1)
            found.append((part.seq, part.psn, part.address, bytes(packet.segment_payload(i) or b"")))
    return found


def receive_segments(nic: Nic, count: int) -> list[Packet]:
    """Receive until `count` segments have come; fails if they do not. The packets are detached."""
    packets: list[Packet] = []
    end = nic.now() + 20 * SECOND
    while sum(packet.count for packet in packets) < count:
        found = nic.receive(64)
        for packet in found:
            packet.detach()
        packets += found
        if not found:
            assert nic.now() < end, f"{count} segments expected, {packets} came"
            nic.wait(end)
    return packets


def plain_leaf() -> ModuleType:
    """_mmsg.py as a module of its own, also where the compiled one is imported under its name."""
    path = Path(_mmsg.__file__).with_name("_mmsg.py")
    spec = importlib.util.spec_from_file_location("plain_mmsg", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN = plain_leaf()
#: What the tests of sockets run on: the plain leaf, and the compiled one where there is one.
LEAVES = [PLAIN, _mmsg] if _mmsg.COMPILED else [PLAIN]
#: Nics on sockets: the class, and the leaf that transport.nic.udp is to use.
KINDS: dict[str, tuple[type[UdpNic], ModuleType]] = {
    **{f"udp-{'compiled' if leaf.COMPILED else 'plain'}": (UdpNic, leaf) for leaf in LEAVES},
    "dgram": (DgramNic, _mmsg),
}


def plain_socket(address: str, port: int = ROCE_PORT) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(20)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    sock.bind((address, port))
    return sock
