"""Several Nics as one: order, backpressure, fairness, waiting, and links that go down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.nic.helpers import content, data, probe, receive_segments, segments
from transport.clock import MS, SECOND, US, Time
from transport.errors import ConfigError, LinkDownError, NicError
from transport.nic.base import NicCaps
from transport.nic.dgram import SOCKETS
from transport.nic.faults import ANY, FaultInjector, Faults
from transport.nic.loopback import LoopbackNic, Network
from transport.nic.ports import HOLD, PATIENCE, PortsNic
from transport.nic.udp import UdpNic
from transport.packet import Packet

pytestmark = pytest.mark.xdist_group("ports")

ROOT = Path(__file__).resolve().parents[3]
HERE = (bytes([10, 0, 0, 1]), bytes([10, 1, 0, 1]))
THERE = (bytes([10, 0, 0, 2]), bytes([10, 1, 0, 2]))
CAPS = NicCaps(mtu=4096, max_run=64, max_entropies=64, ecn=True, rate=10**10, base_rtt=10 * US)


class Fake:
    """A port with room for so many packets, which arrive nowhere. clock: shared by the ports of one test."""

    def __init__(self, address: bytes, clock: list[Time], room: int = 1 << 30, caps: NicCaps = CAPS) -> None:
        self.address = address
        self.caps = caps
        self.clock = clock
        self.room = room
        self.down = False
        self.left: list[tuple[int, bytes]] = []
        self.inbox: list[Packet] = []
        self.closed = 0

    def now(self) -> Time:
        return self.clock[0]

    def send(self, packets: Sequence[Packet]) -> int:
        if self.down:
            raise LinkDownError("no link")
        taken = min(self.room, len(packets))
        self.room -= taken
        self.left += [(packet.seq, content(packet)) for packet in packets[:taken]]
        return taken

    def receive(self, limit: int) -> list[Packet]:
        if self.down:
            raise LinkDownError("no link")
        found, self.inbox = self.inbox[:limit], self.inbox[limit:]
        return found

    def wait(self, until: Time | None) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


def fakes(*rooms: int) -> tuple[PortsNic, list[Fake], list[Time]]:
    clock = [SECOND]
    ports = [Fake(bytes([10, plane, 0, 1]), clock, room) for plane, room in enumerate(rooms)]
    return PortsNic(ports), ports, clock


def packet(plane: int, seq: int) -> Packet:
    return data(bytes([10, plane, 0, 1]), bytes([10, plane, 0, 2]), seq, segment=256)


def sequences(port: Fake) -> list[int]:
    return [seq for seq, _ in port.left]


# Sending


def test_a_packet_leaves_by_the_port_that_has_its_source_address_in_order():
    nic, ports, _ = fakes(1 << 30, 1 << 30)
    assert nic.send([packet(seq % 3 % 2, seq) for seq in range(9)]) == 9
    assert [sequences(port) for port in ports] == [[0, 2, 3, 5, 6, 8], [1, 4, 7]]


def test_a_source_address_that_no_port_has_is_named():
    nic, _, _ = fakes(1 << 30, 1 << 30)
    with pytest.raises(NicError, match=r"0a020001 cannot leave: the ports have the addresses 0a000001, 0a010001"):
        nic.send([packet(2, 1)])


def test_a_busy_port_does_not_hold_up_the_other_and_loses_nothing():
    nic, ports, _ = fakes(3, 1 << 30)
    assert nic.send([packet(seq % 2, seq) for seq in range(40)]) == 40
    assert sequences(ports[0]) == [0, 2, 4]
    assert sequences(ports[1]) == list(range(1, 40, 2))
    ports[0].room = 5
    assert nic.send([]) == 0
    assert sequences(ports[0]) == list(range(0, 16, 2))
    ports[0].room = 1 << 30
    assert nic.send([packet(0, 100)]) == 1
    assert sequences(ports[0]) == [*range(0, 40, 2), 100]


def test_what_waits_has_the_bytes_of_its_time():
    nic, ports, _ = fakes(0, 0)
    buffer = bytearray(b"before")
    waiting = packet(0, 1)
    waiting.payload, waiting.length, waiting.offset = buffer, 6, 0
    assert nic.send([waiting]) == 1
    buffer[:] = b"after!"
    ports[0].room = 1
    nic.send([])
    assert ports[0].left == [(1, b"before")]


def test_the_queue_of_a_busy_port_is_bounded_and_the_rest_stays_with_the_caller():
    nic, ports, _ = fakes(0, 1 << 30)
    batch = [packet(0, seq) for seq in range(HOLD + 10)]
    assert nic.send(batch) == HOLD
    assert nic.send(batch[HOLD:]) == 0
    assert nic.send([packet(1, 5), *batch[HOLD:]]) == 1
    ports[0].room = 1 << 30
    assert nic.send(batch[HOLD:]) == 10
    assert sequences(ports[0]) == list(range(HOLD + 10))


def test_a_port_that_is_stuck_is_given_up_after_a_while_and_the_loss_is_counted():
    nic, ports, clock = fakes(0, 1 << 30)
    assert nic.send([packet(0, seq) for seq in range(HOLD)]) == HOLD
    later = [packet(0, 1000), packet(1, 1001)]
    clock[0] += PATIENCE
    assert nic.send(later) == 0
    assert nic.counters()["lost_stuck"] == 0
    clock[0] += 1
    assert nic.send(later) == 2
    assert nic.counters()["lost_stuck"] == HOLD
    ports[0].room = 1
    nic.send([])
    assert [sequences(port) for port in ports] == [[1000], [1001]]


def test_a_port_that_moves_now_and_then_is_not_given_up():
    nic, ports, clock = fakes(0, 0)
    nic.send([packet(0, seq) for seq in range(20)])
    for _ in range(20):
        clock[0] += PATIENCE
        ports[0].room = 1
        nic.send([])
    assert sequences(ports[0]) == list(range(20))
    assert nic.counters()["lost_stuck"] == 0


def test_a_port_without_link_loses_what_it_is_given_and_works_again_when_it_is_back():
    nic, ports, _ = fakes(1 << 30, 1 << 30)
    ports[1].down = True
    assert nic.send([packet(seq % 2, seq) for seq in range(10)]) == 10
    assert nic.receive(10) == []
    assert nic.counters()["lost_down"] == 5
    ports[1].down = False
    assert nic.send([packet(1, 77)]) == 1
    assert [sequences(port) for port in ports] == [[0, 2, 4, 6, 8], [77]]


def test_another_error_of_a_port_is_an_error():
    nic, ports, _ = fakes(1 << 30, 1 << 30)

    def broken(packets: Sequence[Packet]) -> int:
        raise NicError("message too long")

    ports[0].send = broken  # type: ignore[method-assign]
    with pytest.raises(NicError, match="message too long"):
        nic.send([packet(0, 1)])


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), max_size=40), st.tuples(*[st.integers(0, 12)] * 3), st.integers(0, 2 * MS)
        )
    )
)
def test_whatever_the_room_every_port_gets_its_packets_once_and_in_order(steps):
    nic, ports, clock = fakes(0, 0, 0)
    wanted: list[list[int]] = [[], [], []]
    unsent: list[Packet] = []
    seq = 0
    for planes, rooms, pause in [*steps, ([], (1 << 20,) * 3, 0), ([], (1 << 20,) * 3, 0)]:
        clock[0] += pause
        for port, room in zip(ports, rooms, strict=True):
            port.room = max(1, room)  # it moves, so nothing is given up
        for plane in planes:
            seq += 1
            wanted[plane].append(seq)
            unsent.append(packet(plane, seq))
        del unsent[: nic.send(unsent)]
    nic.send(unsent)
    assert [sequences(port) for port in ports] == wanted


# Receiving and waiting


def test_no_port_starves_another():
    nic, ports, _ = fakes(0, 0)
    ports[0].inbox = [packet(0, seq) for seq in range(1000)]
    ports[1].inbox = [packet(1, seq) for seq in range(20)]
    found = [item for _ in range(4) for item in nic.receive(16)]
    assert sum(item.src == HERE[1] for item in found) == 20
    assert sum(item.src == HERE[0] for item in found) >= 32


def test_one_port_alone_may_use_the_whole_limit_and_no_more():
    nic, ports, _ = fakes(0, 0)
    ports[0].inbox = [packet(0, seq) for seq in range(200)]
    sizes = [len(nic.receive(16)) for _ in range(4)]
    assert max(sizes) == 16
    assert min(sizes) >= 8


@pytest.fixture
def pair() -> Iterator[tuple[PortsNic, PortsNic]]:
    network = Network(rate=10**10, delay=5 * US)
    near = PortsNic([LoopbackNic(network, address) for address in HERE])
    far = PortsNic([LoopbackNic(network, address) for address in THERE])
    yield near, far
    near.close()
    far.close()


def test_two_loopback_ports_in_virtual_time(pair: tuple[PortsNic, PortsNic]):
    near, far = pair
    sent = [data(HERE[seq % 2], THERE[seq % 2], seq) for seq in range(20)]
    assert near.send(sent) == 20
    found: list[Packet] = []
    for _ in range(100):
        far.wait(None)
        found += far.receive(4)
    assert sorted(segments(found)) == segments(sent)
    assert near.counters()["sent"] == 0
    assert far.counters()["delivered"] == 20


@pytest.mark.parametrize("plane", [0, 1])
def test_a_wait_in_virtual_time_ends_with_an_arrival_at_any_port(plane: int, pair: tuple[PortsNic, PortsNic]):
    near, far = pair
    near.send([probe(HERE[plane], THERE[plane])])
    before = far.now()
    far.wait(before + SECOND)
    assert 5 * US <= far.now() - before < 10 * US
    assert len(far.receive(4)) == 1


def test_a_delay_in_front_of_one_port_ends_a_virtual_wait_too():
    network = Network(rate=0, delay=5 * US)
    late = FaultInjector(LoopbackNic(network, HERE[1]), Faults(delay_ps=100 * US), 1)
    near = PortsNic([LoopbackNic(network, HERE[0]), late])
    far = PortsNic([LoopbackNic(network, address) for address in THERE])
    near.send([probe(HERE[1], THERE[1])])
    found: list[Packet] = []
    for _ in range(4):
        near.wait(near.next_event())
        near.receive(1)
        found += far.receive(1)
    assert len(found) == 1
    assert far.now() == 105 * US


def test_two_loopback_ports_in_real_time():
    network = Network(rate=0, delay=50 * US, virtual=False)
    near = PortsNic([LoopbackNic(network, address) for address in HERE])
    far = PortsNic([LoopbackNic(network, address) for address in THERE])
    sent = [data(HERE[seq % 2], THERE[seq % 2], seq) for seq in range(10)]
    assert near.send(sent) == 10
    assert sorted(segments(receive_segments(far, 10))) == segments(sent)
    near.close()
    far.close()


def test_a_black_hole_with_an_address_swallows_one_plane():
    network = Network(rate=0, delay=0)
    near = PortsNic([LoopbackNic(network, address) for address in HERE])
    far = PortsNic([LoopbackNic(network, address) for address in THERE])
    hole = FaultInjector(near, Faults(blackhole=((ANY, 0, 10 * US, HERE[1]), (50007, 0, 10 * US, HERE[0]))), 1)

    def arrivals() -> list[tuple[bytes, int]]:
        hole.send([probe(HERE[plane], THERE[plane], entropy=port) for plane in (0, 1) for port in (50001, 50007)])
        network.advance(network.now())
        return [(item.src, item.entropy) for item in far.receive(10)]

    assert arrivals() == [(HERE[0], 50001)]
    network.advance(10 * US)
    assert sorted(arrivals()) == [(address, port) for address in HERE for port in (50001, 50007)]


@pytest.mark.parametrize("hole", [(ANY, 0, 1, b"\0\0"), (ANY, 0, 1, "10.0.0.1"), (ANY, 0, 1, b"\0\0\0\0", 1)])
def test_a_black_hole_of_no_address_is_refused(hole: Any):
    with pytest.raises(ConfigError, match="blackhole"):
        Faults(blackhole=(hole,))


# Over sockets


def over_udp(host: int, **knobs: Any) -> PortsNic:
    return PortsNic([UdpNic(f"127.{plane + 5}.0.{host}", range(50001, 50005), **knobs) for plane in (0, 1)])


def test_two_udp_ports_carry_runs_of_both_planes():
    with_ports = over_udp(1), over_udp(2)
    near, far = with_ports
    sent = [data(near.addresses[n % 2], far.addresses[n % 2], 64 * n, 16, entropy=50001 + n % 4) for n in range(8)]
    assert near.send(sent) == 8
    found = receive_segments(far, 128)
    assert sorted(segments(found)) == sorted(segments(sent))
    assert {item.dst for item in found} == set(far.addresses)
    for nic in with_ports:
        nic.close()


@pytest.mark.parametrize("plane", [0, 1])
def test_a_wait_ends_when_something_comes_at_any_socket_and_the_descriptor_says_so(plane: int):
    near, far = over_udp(1), over_udp(2)
    assert far.fileno() >= 0
    before = far.now()
    far.wait(before + 2 * MS)
    assert far.now() >= before + 2 * MS
    near.send([probe(near.addresses[plane], far.addresses[plane])])
    far.wait(far.now() + 20 * SECOND)
    assert far.now() < before + 20 * SECOND
    assert len(far.receive(4)) == 1
    near.close()
    far.close()


# What cannot be one


@pytest.mark.parametrize(
    ("addresses", "caps", "text"),
    [
        ([], [], "at least one"),
        ([HERE[0], HERE[0]], [CAPS, CAPS], "different ones"),
        ([HERE[0], HERE[1] * 4], [CAPS, CAPS], "of one family"),
        (HERE, [CAPS, replace(CAPS, virtual_time=True)], "virtual_time"),
        (HERE, [CAPS, replace(CAPS, places_payload=True)], "places_payload"),
    ],
)
def test_nics_that_cannot_be_one_are_refused(addresses: Sequence[bytes], caps: list[NicCaps], text: str):
    with pytest.raises(ConfigError, match=text):
        PortsNic([Fake(address, [0], 0, cap) for address, cap in zip(addresses, caps, strict=True)])


def test_caps_are_what_all_ports_can_do_and_the_rate_is_the_sum():
    weak = replace(CAPS, mtu=1024, max_run=1, max_entropies=8, ecn=False, rate=10**9, base_rtt=20 * US)
    nic = PortsNic([Fake(HERE[0], [0], 0, replace(CAPS, priorities=True)), Fake(HERE[1], [0], 0, weak)])
    assert nic.caps == replace(weak, rate=11 * 10**9)
    assert nic.address == HERE[0]
    assert nic.addresses == HERE


def test_close_closes_every_port():
    nic, ports, _ = fakes(0, 0)
    nic.close()
    assert [port.closed for port in ports] == [1, 1]


# A link of the kernel's goes down

_WHY_NOT = (
    "needs root on Linux with ip and unshare"
    if os.name != "posix" or os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare")
    else ""
)


def in_namespace(situation: str, nic: str) -> str:
    """Run a situation of tests/transport/nic/link_down.py in a network namespace of its own, which ends with it."""
    if not _WHY_NOT and subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        why = "network namespaces are not allowed"
    else:
        why = _WHY_NOT
    if why:
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    command = ["unshare", "-n", sys.executable, "-m", "tests.transport.nic.link_down", situation, nic]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("situation", ["interface down", "address removed", "interface removed"])
@pytest.mark.parametrize("nic", SOCKETS)
def test_one_real_link_goes_away_midway_and_comes_back(situation: str, nic: str):
    assert "moved and came back" in in_namespace(situation, nic)
