"""Connecting over TCP on both faces: what is exchanged, what is refused, and what the end of the channel means."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.transport.api.worlds import ALL, run
from transport.api import aio, blocking
from transport.api.aio import CompletionError, EndpointConfig, MemoryRegion, RemoteRegion, Status
from transport.errors import ConfigError, NegotiationError, NicError
from transport.states import State

pytestmark = pytest.mark.xdist_group("ports")

HERE, THERE = "127.0.0.1", "127.0.0.2"
#: Never gives up by itself within a test.
PATIENT = EndpointConfig(retries=64)

Body = Callable[[aio.QueuePair, aio.QueuePair], Coroutine[Any, Any, None]]


def run_connected(body: Body, ours: EndpointConfig | None = None, theirs: EndpointConfig | None = None) -> None:
    """Run `body` with two queue pairs that have met over TCP."""

    async def program() -> None:
        async with aio.Device(HERE, ours) as near, aio.Device(THERE, theirs) as far, aio.Listener(HERE, 0) as listener:
            left, right = aio.QueuePair(aio.ProtectionDomain(near)), aio.QueuePair(aio.ProtectionDomain(far))
            await asyncio.gather(listener.accept(left), right.connect(HERE, listener.port))
            await body(left, right)

    run(program())


def test_both_sides_hear_what_the_other_tells() -> None:
    async def program() -> None:
        async with aio.Device(HERE) as near, aio.Device(THERE) as far, aio.Listener(HERE, 0) as listener:
            left, right = aio.QueuePair(aio.ProtectionDomain(near)), aio.QueuePair(aio.ProtectionDomain(far))
            inbox = MemoryRegion(left.pd, 8, ALL)
            told, heard = await asyncio.gather(
                right.connect(HERE, listener.port, data=[1, None, "x"]),
                listener.accept(left, data={"inbox": inbox.remote.to_json()}),
            )
            assert heard == [1, None, "x"]
            await right.write(b"directly", RemoteRegion.from_json(told["inbox"]))
            assert inbox.view == b"directly"
            assert (left.peer, right.peer) == (THERE, HERE)

    run(program())


def test_neither_side_sends_before_the_other_is_connected() -> None:
    async def body(left: aio.QueuePair, right: aio.QueuePair) -> None:
        await asyncio.gather(*(side.write(b"", MemoryRegion(right.pd, 1, ALL).remote) for side in (left, right)))
        for side in (left, right):
            counters = side.device.endpoint.counters()
            assert (counters["dropped_wrong_state"], counters["retransmits"]) == (0, 0)

    run_connected(body)


def test_the_blocking_face_meets_the_asyncio_face() -> None:
    def client(port: int) -> str:
        with blocking.Device(THERE) as device, blocking.QueuePair(blocking.ProtectionDomain(device)) as pair:
            told = pair.connect(HERE, port, data="blocking")
            pair.send(b"hello")
            return str(told)

    async def program() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            async with aio.Device(HERE) as device, aio.Listener(HERE, 0) as listener:
                pair = aio.QueuePair(aio.ProtectionDomain(device))
                asked = loop.run_in_executor(pool, client, listener.port)
                assert await listener.accept(pair, data="asyncio") == "blocking"
                buffer = bytearray(5)
                await pair.recv(buffer)
                await pair.wait_closed()
                assert (await asked, buffer) == ("asyncio", b"hello")

    run(program())


def test_blocking_clients_are_accepted_one_after_the_other() -> None:
    def client(port: int, address: str) -> object:
        with blocking.Device(address) as device, blocking.QueuePair(blocking.ProtectionDomain(device)) as pair:
            return pair.connect(HERE, port, data=address)

    with blocking.Device(HERE) as device, blocking.Listener(HERE, 0) as listener, ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(client, listener.port, address) for address in (THERE, "127.0.0.3")]
        pd = blocking.ProtectionDomain(device)
        pairs = [blocking.QueuePair(pd) for _ in clients]
        heard = [listener.accept(pair, data=number) for number, pair in enumerate(pairs)]
        for pair in pairs:
            pair.wait_closed()
        assert sorted(heard) == [THERE, "127.0.0.3"]
        assert sorted(str(done.result()) for done in clients) == ["0", "1"]


def test_sides_that_do_not_fit_are_both_told_why() -> None:
    async def program() -> None:
        async with (
            aio.Device(HERE) as near,
            aio.Device(THERE, EndpointConfig(icrc=False)) as far,
            aio.Listener(HERE, 0) as listener,
        ):
            left, right = aio.QueuePair(aio.ProtectionDomain(near)), aio.QueuePair(aio.ProtectionDomain(far))
            errors = await asyncio.gather(
                listener.accept(left), right.connect(HERE, listener.port), return_exceptions=True
            )
            assert all(isinstance(error, NegotiationError) and "icrc" in str(error) for error in errors), errors
            assert left.state in (State.INIT, State.RESET)
            assert right.state in (State.INIT, State.RESET)

    run(program())


def test_data_that_json_cannot_carry_is_refused_before_anybody_is_called() -> None:
    async def program() -> None:
        async with aio.Device(HERE) as device, aio.Listener(HERE, 0) as listener:
            pair = aio.QueuePair(aio.ProtectionDomain(device))
            for data in (b"bytes", {1, 2}, float("nan")):
                with pytest.raises(ConfigError, match="data: JSON cannot carry it"):
                    await pair.connect(HERE, listener.port, data=data)
                with pytest.raises(ConfigError, match="data: JSON cannot carry it"):
                    await listener.accept(pair, data=data)

    run(program())


def test_waiting_for_a_peer_that_does_not_come_ends_at_the_timeout() -> None:
    async def program() -> None:
        async with aio.Device(HERE) as device:
            pair = aio.QueuePair(aio.ProtectionDomain(device))
            async with aio.Listener(HERE, 0) as listener:
                port = listener.port
                with pytest.raises(NegotiationError, match="nobody came"):
                    await listener.accept(pair, timeout=0.05)
            with pytest.raises(NicError, match=f"{HERE} TCP port {port}"):
                await pair.connect(HERE, port, timeout=0.05)

    run(program())
    with blocking.Device(HERE) as device, blocking.Listener(HERE, 0) as listener:
        pair = blocking.QueuePair(blocking.ProtectionDomain(device))
        with pytest.raises(NegotiationError, match="nobody came"):
            listener.accept(pair, timeout=0.05)
        listener.close()
        with pytest.raises(NicError, match=f"{HERE} TCP port {listener.port}"):
            pair.connect(HERE, listener.port, timeout=0.05)


def test_a_connection_in_use_outlives_its_bootstrap_channel() -> None:
    async def body(left: aio.QueuePair, right: aio.QueuePair) -> None:
        inbox = MemoryRegion(right.pd, 8, ALL)
        receiving = asyncio.create_task(left.recv(bytearray(4)))
        await left.write(b"before", inbox.remote)
        assert right._channel is not None
        right._channel.close()
        while left._watcher is None or not left._watcher.done():
            await asyncio.sleep(0.001)
        await left.device.sleep(2.5 * left.connection.context.rto() / 1e12)
        await left.write(b"after", inbox.remote)
        await right.send(b"too")
        assert (await receiving).byte_len == 3

    run_connected(body, PATIENT, PATIENT)


#: Accepts one peer, tells the port it listens on, and does nothing more than serve.
SERVER = """
import sys
from transport.api.blocking import *
with Device("127.0.0.2") as device, Listener("127.0.0.1", 0) as listener:
    qp = QueuePair(ProtectionDomain(device))
    inbox = MemoryRegion(qp.pd, 1000, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    print(listener.port, flush=True)
    listener.accept(qp, data=inbox.remote.to_json())
    qp.wait_closed(60)
"""


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves one peer, and its TCP port."""
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", SERVER], cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_requests_end_when_the_peers_process_was_killed(server: tuple[subprocess.Popen[str], int]) -> None:
    process, port = server

    async def program() -> None:
        async with aio.Device(HERE, PATIENT) as device:
            pair = aio.QueuePair(aio.ProtectionDomain(device))
            remote = RemoteRegion.from_json(await pair.connect(HERE, port))
            await pair.write(bytes(1000), remote)
            receiving = asyncio.create_task(pair.recv(bytearray(4)))
            sending = asyncio.create_task(pair.send(b"never received"))
            await asyncio.sleep(0)
            process.kill()
            with pytest.raises(CompletionError, match=r"127\.0\.0\.2.*ended without a bye") as caught:
                await sending
            assert caught.value.status == Status.RETRY_EXC_ERR
            with pytest.raises(CompletionError) as caught:
                await receiving
            assert caught.value.status == Status.WR_FLUSH_ERR

    run(program())


def test_blocking_requests_end_when_the_peers_process_was_killed(server: tuple[subprocess.Popen[str], int]) -> None:
    process, port = server
    with blocking.Device(HERE, PATIENT) as device:
        pair = blocking.QueuePair(blocking.ProtectionDomain(device))
        remote = RemoteRegion.from_json(pair.connect(HERE, port))
        pair.write(bytes(1000), remote)
        pair.post_recv(bytearray(4), wr_id=1)
        process.kill()
        with pytest.raises(CompletionError, match=r"127\.0\.0\.2.*ended without a bye") as caught:
            pair.send(b"never received")
        assert caught.value.status == Status.RETRY_EXC_ERR
        assert [(item.wr_id, item.status) for item in pair.cq.poll()] == [(1, Status.WR_FLUSH_ERR)]


def test_a_server_is_reached_again_at_once_after_everything_was_closed() -> None:
    async def body(left: aio.QueuePair, right: aio.QueuePair) -> None:
        inbox = MemoryRegion(right.pd, 8, ALL)
        await left.write(b"x", inbox.remote)
        await left.close()
        await right.close()

    for _ in range(3):
        run_connected(body)
