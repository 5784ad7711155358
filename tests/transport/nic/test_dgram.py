"""What is special about sockets that asyncio-dgram moves: no ECN, a bounded queue, an own loop or a running one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.transport.nic.helpers import ALICE, BOB, ENTROPIES, A, B, Open, data, plain_socket, probe, segments
from transport.clock import SECOND
from transport.errors import ConfigError, NicError
from transport.nic.dgram import DgramNic
from transport.nic.udp import UdpNic
from transport.packet import CE, CLASS_CONTROL, CLASS_DATA, NOT_ECT, Packet
from transport.wire import ROCE_PORT

pytestmark = pytest.mark.xdist_group("ports")


@pytest.fixture
def kind() -> type[UdpNic]:
    return DgramNic


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go round until a condition holds, at most 20 s."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def receive(nic: DgramNic, count: int) -> list[Packet]:
    """Receive until `count` segments have come."""
    packets: list[Packet] = []

    def come() -> bool:
        for packet in nic.receive(64):
            packet.detach()
            packets.append(packet)
        return sum(packet.count for packet in packets) >= count

    await until(come)
    return packets


@pytest.mark.parametrize(("priority", "dscp"), [(CLASS_DATA, 26), (CLASS_CONTROL, 48)])
def test_packets_leave_with_their_dscp_and_not_ecn_capable(nic: Open, priority: int, dscp: int) -> None:
    alice = nic(ALICE)
    assert not alice.caps.ecn
    packets = [probe(A, B), data(A, B), data(A, B)]  # on one socket, so its DSCP changes
    packets[2].ecn, packets[2].priority = CE, priority
    with plain_socket(BOB) as far:
        alice.send(packets)
        classes = [far.recvmsg(8192, 64)[1][0][2][0] for _ in packets]
    assert classes == [48 << 2, 26 << 2, dscp << 2]


def test_marks_that_cannot_be_seen_are_not_made_up(nic: Open) -> None:
    bob = nic(BOB)
    with ExitStack() as stack:
        udp = UdpNic(ALICE, ENTROPIES)
        stack.callback(udp.close)
        packet = data(A, B)
        packet.ecn = CE
        udp.send([packet])
        bob.wait(bob.now() + 20 * SECOND)
        (received,) = bob.receive(1)
    assert (received.ecn, received.priority) == (NOT_ECT, CLASS_DATA)


def test_what_comes_to_a_source_port_is_counted_and_dropped(nic: Open) -> None:
    alice, bob = nic(ALICE), nic(BOB)
    with plain_socket(ALICE, 50009) as other:
        for _ in range(3):
            other.sendto(b"stray", (BOB, 50001))
    alice.send([data(A, B, 7)])
    found: list[Packet] = []
    while not found or bob.counters()["strays"] < 3:
        bob.wait(bob.now() + SECOND // 100)
        found += bob.receive(64)
    assert [packet.seq for packet in found] == [7]
    assert bob.counters()["received"] == 1


def test_a_flood_of_strays_ends_neither_a_receive_nor_a_wait_late(nic: Open) -> None:
    bob = nic(BOB)
    with plain_socket(ALICE, 50009) as other:
        for _ in range(500):
            other.sendto(b"stray", (BOB, 50001))
        assert bob.receive(1) == []
        assert 0 < bob.counters()["strays"] < 100, "a receive reads a bounded number of them"
        bob.wait(bob.now() + SECOND // 1000)


def test_the_queue_is_bounded_and_says_once_that_something_came() -> None:
    async def program() -> None:
        bob = DgramNic(BOB, [50001], max_queued=10)
        calls: list[int] = []
        bob.on_arrival = lambda: calls.append(1)
        await until(lambda: not bob.backlog())
        calls.clear()
        with plain_socket(ALICE, 50001) as other:
            header, payload, trailer = bob.codec.encode(data(A, B, 1), 0)
            for _ in range(30):
                other.sendto(header + bytes(payload or b"") + trailer, (BOB, ROCE_PORT))
        await until(lambda: bob.counters()["overrun"] == 20)
        assert len(calls) == 1
        assert sum(packet.count for packet in bob.receive(64)) == 10
        assert bob.receive(64) == []
        bob.close()

    asyncio.run(program())


def test_inside_a_running_loop_packets_move_while_it_goes_round() -> None:
    async def program() -> None:
        alice, bob = DgramNic(ALICE, ENTROPIES), DgramNic(BOB, ENTROPIES)
        packets = [data(A, B, 64 * n, 16, entropy=ENTROPIES[n % 4]) for n in range(8)]
        assert alice.send(packets) == 0, "no socket is open yet: backpressure, not loss"
        await until(lambda: not alice.backlog())
        assert alice.send(packets) == 8
        received = await receive(bob, 128)
        assert sorted(segments(received)) == sorted(segments(packets))
        alice.close()
        bob.close()

    asyncio.run(program())


def test_a_reply_path_opens_inside_a_running_loop() -> None:
    async def program() -> None:
        alice, bob = DgramNic(ALICE, [50001]), DgramNic(BOB, [50001])
        await until(lambda: not alice.backlog() and not bob.backlog())
        room: list[int] = []
        bob.on_arrival = lambda: room.append(1)
        reply = probe(B, A, entropy=50777)
        assert bob.send([reply]) == 0
        await until(lambda: bool(room))
        assert bob.send([reply]) == 1
        (received,) = await receive(alice, 1)
        assert received.entropy == 50777
        alice.close()
        bob.close()

    asyncio.run(program())


def test_a_hook_that_comes_late_is_told_of_what_came_before() -> None:
    async def program() -> None:
        bob = DgramNic(BOB, [50001])
        with plain_socket(ALICE, 50001) as other:
            other.sendto(b"hello", (BOB, ROCE_PORT))
        await until(lambda: bool(bob._arrivals.came))
        calls: list[int] = []
        bob.on_arrival = lambda: calls.append(1)
        assert calls == [1]
        bob.close()

    asyncio.run(program())


@pytest.mark.parametrize("rounds", range(6))
def test_a_nic_closed_at_any_time_leaves_nothing_behind(rounds: int) -> None:
    async def program() -> None:
        alice = DgramNic(ALICE, ENTROPIES)
        for _ in range(rounds):
            await asyncio.sleep(0)
        alice.close()
        for _ in range(4):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        DgramNic(ALICE, ENTROPIES).close()

    asyncio.run(program())


def test_a_running_loop_is_not_waited_in() -> None:
    async def program() -> None:
        alice = DgramNic(ALICE, [50001])
        with pytest.raises(NicError, match="would stop the running event loop"):
            alice.wait(0)
        assert alice.fileno() == -1
        alice.close()

    asyncio.run(program())


def test_a_nic_with_a_loop_of_its_own_is_of_no_use_inside_another(nic: Open) -> None:
    alice = nic(ALICE)
    assert not hasattr(alice, "on_arrival")
    assert alice.fileno() >= 0

    async def program() -> None:
        with plain_socket(BOB, 50001) as other:
            other.sendto(b"hello", (ALICE, ROCE_PORT))
        with pytest.raises(NicError, match="made outside of an event loop"):
            alice.receive(1)

    asyncio.run(program())
    assert alice.receive(1) == []
    assert alice.counters()["malformed"] == 1


@pytest.mark.parametrize("value", [0, (1 << 20) + 1])
def test_the_bound_of_the_queue_is_checked(value: int) -> None:
    with pytest.raises(ConfigError, match=f"max_queued = {value}"):
        DgramNic(ALICE, [50001], max_queued=value)


def test_a_port_in_use_leaves_the_others_free() -> None:
    with plain_socket(ALICE, 50003), pytest.raises(NicError, match=r"127\.1\.0\.1:50003 is in use"):
        DgramNic(ALICE, ENTROPIES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind((ALICE, ROCE_PORT))
