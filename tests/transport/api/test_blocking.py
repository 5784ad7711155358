"""The blocking face: every verb on every kind of Nic, devices in threads of their own, waits that end, and misuse."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tests.transport.api.worlds import ALL, IMPATIENT, WORLDS, nics, one_nic, with_itself
from transport.api.blocking import (
    CompletionError,
    CompletionQueue,
    ConnectionParameters,
    Device,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RemoteRegion,
    Status,
    WaitTimeoutError,
)
from transport.errors import ConfigError, LocalProtocolError, NicError
from transport.nic.loopback import LoopbackNic, Network
from transport.states import State

pytestmark = pytest.mark.xdist_group("ports")

ROOT = Path(__file__).resolve().parents[3]
PATTERN = bytes(range(251)) * 400


@pytest.mark.parametrize("world", WORLDS)
def test_every_verb_works_from_a_device_to_itself(world: str) -> None:
    with Device(one_nic(world)) as device:
        left, right = with_itself(device)
        inbox = MemoryRegion(right.pd, len(PATTERN), ALL)

        assert left.write(PATTERN, inbox.remote, wr_id=7).wr_id == 7
        assert inbox.view == PATTERN

        copy = bytearray(len(PATTERN) - 1)
        assert left.read(copy, inbox[1:].remote).byte_len == len(copy)
        assert copy == PATTERN[1:]

        message = bytearray(16)
        right.post_recv(message, wr_id=1)
        left.send(b"hello", imm=5)
        right.post_recv(b"", wr_id=2)
        left.write_imm(b"again", inbox.remote[2:], 6)
        received = right.recv_cq.wait(2)
        assert [(item.wr_id, item.byte_len, item.imm) for item in received] == [(1, 5, 5), (2, 5, 6)]
        assert (message[:5], bytes(inbox.view[2:7])) == (b"hello", b"again")
        left.post_send(b"once more")
        assert right.recv(message).byte_len == 9

        counter = MemoryRegion(right.pd, bytearray((40).to_bytes(8, "little")), ALL)
        assert left.fetch_add(counter.remote, 2).value == 40
        assert left.cmp_swap(counter.remote, 42, 50).value == 42
        assert int.from_bytes(counter.view, "little") == 50


@pytest.mark.parametrize("world", ["real", "udp", "dgram"])
def test_two_devices_in_two_threads_talk_to_each_other(world: str) -> None:
    here, there = nics(world)
    told: tuple[Queue[Any], Queue[Any]] = (Queue(), Queue())
    both_connected = threading.Barrier(2, timeout=30)

    def client() -> bytes:
        with Device(here) as device, QueuePair(ProtectionDomain(device)) as pair:
            told[0].put(pair.parameters.to_json())
            theirs, remote = told[1].get(timeout=30)
            pair.connect_to(ConnectionParameters.from_json(theirs))
            both_connected.wait()
            pair.write(PATTERN, RemoteRegion.from_json(remote))
            pair.send(b"done")
            answer = bytearray(8)
            return bytes(answer[: pair.recv(answer).byte_len])

    def server() -> bytes:
        with Device(there) as device:
            pair = QueuePair(ProtectionDomain(device))
            inbox = MemoryRegion(pair.pd, len(PATTERN), ALL)
            told[1].put((pair.parameters.to_json(), inbox.remote.to_json()))
            pair.connect_to(ConnectionParameters.from_json(told[0].get(timeout=30)))
            both_connected.wait()
            pair.recv(bytearray(8))
            pair.send(b"thanks")
            pair.wait_closed()
            return bytes(inbox.view)

    with ThreadPoolExecutor(2) as pool:
        answer, placed = pool.submit(client), pool.submit(server)
        assert (answer.result(), placed.result()) == (b"thanks", PATTERN)


@pytest.mark.parametrize("world", WORLDS)
def test_many_queue_pairs_share_one_completion_queue(world: str) -> None:
    with Device(one_nic(world)) as device:
        pd, cq = ProtectionDomain(device), CompletionQueue(device)
        inbox = MemoryRegion(pd, 64, ALL)
        pairs = [QueuePair(pd, cq) for _ in range(16)]
        for pair in pairs:
            peer = QueuePair(pd)
            pair.connect_to(peer.parameters)
            peer.connect_to(pair.parameters)
        for number in range(64):
            pairs[number // 4].post_write(bytes([number]), inbox.remote[number:], wr_id=number)
        done = []
        while len(done) < 64:
            done += cq.poll(10)
            device.sleep(0.0001)
        assert sorted((item.wr_id, item.qpn) for item in done) == [(i, pairs[i // 4].qpn) for i in range(64)]
        assert inbox.view == bytes(range(64))


@pytest.mark.parametrize("world", WORLDS)
def test_a_wait_ends_at_its_timeout_and_the_request_stays(world: str) -> None:
    with Device(one_nic(world), timeout=0.02) as device:
        left, right = with_itself(device)
        with pytest.raises(WaitTimeoutError, match="send stays posted") as caught:
            left.send(b"late", wr_id=4)
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(WaitTimeoutError, match="0 of 1 completions"):
            left.cq.wait()
        with pytest.raises(WaitTimeoutError, match="did not close"):
            left.wait_closed()
        buffer = bytearray(4)
        right.recv(buffer, timeout=5.0)
        assert buffer == b"late"
        assert [item.wr_id for item in left.cq.wait(timeout=5.0)] == [4]


@pytest.mark.parametrize("world", WORLDS)
def test_a_silent_peer_ends_requests_with_an_error_that_names_peer_and_path(world: str) -> None:
    with Device(one_nic(world), IMPATIENT) as device:
        left, right = with_itself(device)
        remote = MemoryRegion(right.pd, 8, ALL).remote
        left.write(b"x", remote)
        left.post_recv(bytearray(1), wr_id=2)
        right._free()
        with pytest.raises(CompletionError) as caught:
            left.write(b"x", remote)
        error = caught.value
        assert (error.operation, error.status, error.peer) == ("write", Status.RETRY_EXC_ERR, left.peer)
        assert "path" in error.cause
        assert [(item.wr_id, item.status) for item in left.cq.poll()] == [(2, Status.WR_FLUSH_ERR)]
        assert left.state == State.ERR


def test_closing_finishes_what_was_posted_and_closes_the_peer() -> None:
    with Device(nics("virtual")[0]) as device:
        left, right = with_itself(device)
        inbox = MemoryRegion(right.pd, len(PATTERN), ALL)
        right.post_recv(bytearray(1))
        with left:
            left.post_write(PATTERN, inbox.remote)
        assert inbox.view == PATTERN
        assert [item.status for item in left.cq.poll()] == [Status.SUCCESS]
        right.wait_closed()
        assert [item.status for item in right.recv_cq.poll()] == [Status.WR_FLUSH_ERR]
        with pytest.raises(LocalProtocolError, match="is in RESET"):
            right.send(b"x")


def test_an_exception_in_the_block_ends_the_peers_requests_at_once() -> None:
    def fail(pair: QueuePair) -> None:
        with pair:
            pair.post_send(PATTERN)  # never received
            raise ZeroDivisionError

    with Device(nics("virtual")[0]) as device:
        left, right = with_itself(device)
        left.write(b"", MemoryRegion(right.pd, 8, ALL).remote)
        right.post_recv(b"", wr_id=1)
        right.post_send(b"x", wr_id=2)
        with pytest.raises(ZeroDivisionError):
            fail(left)
        assert [item.status for item in left.cq.poll()] == [Status.WR_FLUSH_ERR]
        done = right.cq.wait(2)
        assert {item.status for item in done} == {Status.WR_FLUSH_ERR}
        assert all("REM_ABORT_ERR" in item.error for item in done)


def test_an_interrupted_wait_loses_nothing() -> None:
    with Device(nics("virtual")[0]) as device:
        left, right = with_itself(device)
        turn: Callable[[], bool] = device.turn

        def interrupted() -> bool:
            device.turn = turn  # type: ignore[method-assign]
            raise KeyboardInterrupt

        device.turn = interrupted  # type: ignore[method-assign]
        buffer = bytearray(4)
        with pytest.raises(KeyboardInterrupt):
            right.recv(buffer, wr_id=3)
        left.send(b"kept")
        assert [item.wr_id for item in right.recv_cq.wait()] == [3]
        assert buffer == b"kept"


def test_virtual_time_that_cannot_move_is_an_error_instead_of_a_wait_for_ever() -> None:
    network = Network()
    with Device(LoopbackNic(network, bytes([10, 0, 0, 1]))) as ours:
        pair = QueuePair(ProtectionDomain(ours))
        theirs = Device(LoopbackNic(network, bytes([10, 0, 0, 2])))  # in the same thread: nobody drives it
        pair.connect_to(QueuePair(ProtectionDomain(theirs)).parameters)
        with pytest.raises(LocalProtocolError, match="virtual time stands still"):
            pair.write(b"", RemoteRegion(0, 1, 0))
        theirs.nic.close()
        pair._free()


def test_a_closed_device_frees_its_ports_and_refuses_more() -> None:
    for _ in range(2):
        with Device("127.0.0.1") as device:
            pair = QueuePair(ProtectionDomain(device))
            with pytest.raises(NicError, match="in use"):
                Device("127.0.0.1")
        device.close()
        with pytest.raises(LocalProtocolError, match="the device was closed"):
            device.sleep(1.0)
        with pytest.raises(LocalProtocolError, match="the device was closed"):
            pair.post_send(b"x")


def test_misuse_is_refused_with_the_value_that_is_wrong() -> None:
    with Device(nics("virtual")[0]) as device:
        left, right = with_itself(device)
        inbox = MemoryRegion(right.pd, 8, ALL)
        with pytest.raises(ConfigError, match="it has 8 bytes, 9 are needed"):
            left.write(bytes(9), inbox.remote)
        with pytest.raises(ConfigError, match="timeout = inf"):
            left.write(b"x", inbox.remote, timeout=float("inf"))
        with pytest.raises(ConfigError, match="count = 0"):
            left.cq.poll(0)
        with pytest.raises(ConfigError, match="count = 0"):
            left.cq.wait(0)
        with pytest.raises(LocalProtocolError, match="is in RTS"):
            left.connect("127.0.0.1")
    with pytest.raises(ConfigError, match="timeout = -1"):
        Device(nics("virtual")[0], timeout=-1)
    with pytest.raises(ConfigError, match="no address"):
        Device([])
    with pytest.raises(ConfigError, match="address = 'localhost'"):
        Device("localhost")


def test_several_addresses_are_the_planes_of_one_device() -> None:
    with Device(["127.0.0.1", "127.1.0.1"]) as device:
        left, right = with_itself(device)
        inbox = MemoryRegion(right.pd, len(PATTERN), ALL)
        left.write(PATTERN, inbox.remote)
        assert inbox.view == PATTERN
        assert device.endpoint.addresses == (bytes([127, 0, 0, 1]), bytes([127, 1, 0, 1]))


def test_a_device_opens_the_sockets_it_is_told_to() -> None:
    with Device("127.0.0.1", sockets="dgram") as device:
        assert not device.nic.caps.ecn
        left, right = with_itself(device)
        inbox = MemoryRegion(right.pd, 1000, ALL)
        assert left.write(bytes(range(250)) * 4, inbox.remote).status == Status.SUCCESS
        assert inbox.view == bytes(range(250)) * 4


_ELSEWHERE = """
import socket, sys, asyncio, selectors
for name in ("SOCK_NONBLOCK", "SOCK_CLOEXEC", "SO_BINDTODEVICE", "IP_RECVTOS"):
    if hasattr(socket, name):
        delattr(socket, name)
sys.platform = "darwin"
from transport.api.blocking import Access, Device, MemoryRegion, ProtectionDomain, QueuePair
with Device("127.0.0.1") as device:
    pd = ProtectionDomain(device)
    left, right = QueuePair(pd), QueuePair(pd)
    left.connect_to(right.parameters)
    right.connect_to(left.parameters)
    inbox = MemoryRegion(pd, 100_000, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    left.write(b"x" * 100_000, inbox.remote)
    print(type(device.nic).__name__, bytes(inbox.view) == b"x" * 100_000)
"""


def test_without_what_only_linux_has_a_device_opens_sockets_of_asyncio() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("DgramNic True\n", "")
