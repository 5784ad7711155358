"""The asyncio face: every verb on every kind of Nic, waits that end early, errors, and a device that costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.api.worlds import ALL, IMPATIENT, WORLDS, connected, nics, run
from transport.api.aio import (
    CompletionError,
    CompletionQueue,
    Device,
    EndpointConfig,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RemoteRegion,
    Status,
    WaitTimeoutError,
)
from transport.errors import ConfigError, LocalProtocolError, NicError, QueueFullError
from transport.nic.loopback import LoopbackNic, Network
from transport.nic.wrapper import Wrapper
from transport.packet import Packet

pytestmark = pytest.mark.xdist_group("ports")

PATTERN = bytes(range(251)) * 400


@pytest.mark.parametrize("world", WORLDS)
def test_every_verb_works(world: str) -> None:
    async def program() -> None:
        here, there = nics(world)
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, len(PATTERN), ALL)

            done = await left.write(PATTERN, inbox.remote, wr_id=7)
            assert (done.status, done.wr_id, done.qpn) == (Status.SUCCESS, 7, left.qpn)
            assert inbox.view == PATTERN

            copy = bytearray(len(PATTERN) - 1)
            assert (await left.read(copy, inbox[1:].remote)).byte_len == len(copy)
            assert copy == PATTERN[1:]

            message = MemoryRegion(right.pd, 100, ALL)
            received, _ = await asyncio.gather(right.recv(message[10:]), left.send(b"hello", imm=5))
            assert (received.byte_len, received.imm, bytes(message.view[10:15])) == (5, 5, b"hello")
            received, _ = await asyncio.gather(right.recv(b""), left.write_imm(b"again", inbox.remote[2:], 6))
            assert (received.imm, bytes(inbox.view[2:7])) == (6, b"again")

            counter = MemoryRegion(right.pd, bytearray((40).to_bytes(8, "little")), ALL)
            assert (await left.fetch_add(counter.remote, 2)).value == 40
            assert (await left.cmp_swap(counter.remote, 42, 50)).value == 42
            assert int.from_bytes(counter.view, "little") == 50

    run(program())


@pytest.mark.parametrize("world", WORLDS)
def test_an_idle_device_is_not_turned(world: str) -> None:
    async def program() -> None:
        here, there = nics(world)
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            await asyncio.gather(right.recv(bytearray(8)), left.send(b"busy"))
            await ours.sleep(0.6)  # until the connections have fallen asleep
            before = ours.turns + theirs.turns
            for _ in range(1000):  # the loop goes round, as it does for others' work
                await asyncio.sleep(0)
            await asyncio.sleep(0.2)
            assert ours.turns + theirs.turns == before

    run(program())


def test_a_device_that_waits_for_a_message_is_not_turned_until_something_is_due() -> None:
    async def program() -> None:
        here, there = nics("udp")
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            waiting = asyncio.create_task(right.recv(bytearray(8)))
            await ours.sleep(0.6)
            before = theirs.turns
            await asyncio.sleep(0.2)
            assert theirs.turns == before
            await left.send(b"now")
            await waiting

    run(program())


@pytest.mark.parametrize("world", WORLDS)
def test_many_queue_pairs_share_one_completion_queue(world: str) -> None:
    async def program() -> None:
        here, there = nics(world)
        async with Device(here) as ours, Device(there) as theirs:
            pd, their_pd, cq = ProtectionDomain(ours), ProtectionDomain(theirs), CompletionQueue(ours)
            inbox = MemoryRegion(their_pd, 64, ALL)
            pairs = [QueuePair(pd, cq) for _ in range(16)]
            for pair in pairs:
                peer = QueuePair(their_pd)
                pair.connect_to(peer.parameters)
                peer.connect_to(pair.parameters)
            assert cq.poll() == []
            for number, pair in enumerate(pairs):
                for part in range(4):
                    data = bytes([4 * number + part])
                    pair.post_write(data, inbox.remote[4 * number + part :], wr_id=4 * number + part)
            done = await cq.wait(64)
            assert sorted((item.wr_id, item.qpn) for item in done) == [(i, pairs[i // 4].qpn) for i in range(64)]
            assert inbox.view == bytes(range(64))
            assert (len(cq), cq.poll(5)) == (0, [])

    run(program())


def test_polling_takes_at_most_what_is_asked_for_in_order() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, 8, ALL)
            for number in range(5):
                left.post_write(b"x", inbox.remote, wr_id=number)
            await left.write(b"y", inbox.remote)
            assert [item.wr_id for item in left.cq.poll(2)] == [0, 1]
            assert [item.wr_id for item in await left.cq.wait(2)] == [2, 3]
            assert [item.wr_id for item in left.cq.poll()] == [4]
            with pytest.raises(ConfigError, match="count = 0"):
                left.cq.poll(0)

    run(program())


def test_a_cancelled_receive_still_gets_its_message() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            buffer = bytearray(8)
            waiting = asyncio.create_task(right.recv(buffer, wr_id=3))
            await asyncio.sleep(0)
            waiting.cancel()
            await left.send(b"kept")
            (done,) = await right.recv_cq.wait()
            assert (done.wr_id, done.status, buffer[: done.byte_len]) == (3, Status.SUCCESS, b"kept")
            assert waiting.cancelled()

    run(program())


def test_a_completion_that_comes_together_with_the_cancellation_is_not_lost() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, 8, ALL)
            writing = asyncio.create_task(left.write(b"x", inbox.remote, wr_id=9))
            while not inbox.view[0] or left.connection.sender.queue:  # complete, and the task has not run since
                await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert [item.wr_id for item in left.cq.poll()] == [9]

    run(program())


def test_a_request_that_is_cancelled_before_it_began_is_not_posted() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, 8, ALL)
            writing = asyncio.create_task(left.write(b"x", inbox.remote))
            writing.cancel()
            await left.write(b"y", inbox.remote[1:])
            assert bytes(inbox.view[:2]) == b"\x00y"
            assert writing.cancelled()
            assert left.cq.poll() == []

    run(program())


@given(rounds=st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_every_request_completes_exactly_once_whenever_its_task_is_cancelled(rounds: list[int]) -> None:
    """rounds: how often the loop goes round before each task is cancelled; at 0 it has not begun."""

    async def program() -> None:
        here, there = nics("virtual")
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, len(rounds), ALL)
            tasks = [
                asyncio.create_task(left.write(bytes([1]), inbox.remote[number:], wr_id=number))
                for number in range(len(rounds))
            ]
            for passed in range(max(rounds) + 1):
                for task, last in zip(tasks, rounds, strict=True):
                    if last == passed:
                        task.cancel()
                await asyncio.sleep(0)
            await ours.sleep(1.0)
            awaited = [task.result().wr_id for task in tasks if not task.cancelled()]
            polled = [item.wr_id for item in left.cq.poll(len(rounds))]
            begun = [number for number, last in enumerate(rounds) if last > 0]
            assert sorted(awaited + polled) == begun
            assert [number for number, byte in enumerate(inbox.view) if byte] == begun

    run(program())


@pytest.mark.parametrize("world", WORLDS)
def test_a_wait_ends_at_its_timeout_and_the_request_stays(world: str) -> None:
    async def program() -> None:
        here, there = nics(world)
        async with Device(here, timeout=0.02) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            with pytest.raises(
                WaitTimeoutError, match=r"send stays posted.* in time, .*ACK.* of \d+ retransmission timeouts"
            ) as caught:
                await left.send(b"late", wr_id=4)
            assert isinstance(caught.value, TimeoutError)
            with pytest.raises(WaitTimeoutError, match="0 of 1 completions"):
                await left.cq.wait()
            with pytest.raises(WaitTimeoutError, match="did not close"):
                await left.wait_closed()
            buffer = bytearray(4)
            await right.recv(buffer)
            assert buffer == b"late"
            assert [item.wr_id for item in await left.cq.wait(timeout=5.0)] == [4]

    run(program())


def test_a_refused_write_names_status_peer_and_cause() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, 8, ALL)
            remote = inbox.remote
            inbox.close()
            with pytest.raises(CompletionError) as caught:
                await left.write(b"x", remote)
            error = caught.value
            assert (error.operation, error.status, error.peer) == ("write", Status.REM_ACCESS_ERR, "10.0.0.2")
            assert error.completion.status == Status.REM_ACCESS_ERR
            assert "refused key, right or bounds" in error.cause
            assert "10.0.0.2" in str(error)
            with pytest.raises(CompletionError) as caught:  # the queue pair is in ERR: all is flushed
                await left.send(b"x")
            assert caught.value.status == Status.WR_FLUSH_ERR

    run(program())


@pytest.mark.parametrize("world", WORLDS)
def test_a_silent_peer_ends_requests_with_an_error_that_names_peer_and_path(world: str) -> None:
    async def program() -> None:
        here, there = nics(world)
        async with Device(here, IMPATIENT) as ours:
            theirs = Device(there)
            left, right = connected(ours, theirs)
            remote = MemoryRegion(right.pd, 8, ALL).remote
            await left.write(b"x", remote)
            for pair in list(theirs.queue_pairs.values()):
                pair._free()
            await theirs.close()
            done = await asyncio.gather(left.write(b"x", remote), left.recv(bytearray(1)), return_exceptions=True)
            errors = [error for error in done if isinstance(error, CompletionError)]
            assert [error.status for error in errors] == [Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR]
            assert "path" in errors[0].cause
            assert left.peer in errors[0].cause

    run(program())


def test_closing_finishes_what_was_posted_and_tells_the_peer() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        async with Device(here) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, len(PATTERN), ALL)
            waiting = asyncio.create_task(right.recv(bytearray(1)))
            left.post_write(PATTERN, inbox.remote)
            async with left:
                pass
            assert inbox.view == PATTERN
            assert [item.status for item in left.cq.poll()] == [Status.SUCCESS]
            with pytest.raises(CompletionError) as caught:
                await waiting
            assert caught.value.status == Status.WR_FLUSH_ERR
            await right.wait_closed()
            with pytest.raises(LocalProtocolError, match="is in RESET"):
                await right.send(b"x")
            assert left.qpn not in ours.queue_pairs

    run(program())


def test_an_exception_in_the_block_ends_the_peers_requests_at_once() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        async with Device(there) as theirs:

            async def fail() -> None:
                nonlocal left, right, waiting
                async with Device(here) as ours:
                    left, right = connected(ours, theirs)
                    waiting = asyncio.create_task(right.recv(bytearray(1)))
                    await left.write(b"", MemoryRegion(right.pd, 8, ALL).remote)
                    left.post_send(PATTERN)  # never received
                    raise ZeroDivisionError

            left = right = waiting = None
            with pytest.raises(ZeroDivisionError):
                await fail()
            with pytest.raises(CompletionError, match="REM_ABORT_ERR"):
                await waiting
            assert [item.status for item in left.cq.poll()] == [Status.WR_FLUSH_ERR]

    run(program())


def test_closing_ends_in_time_when_the_peer_never_answers() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        theirs = Device(there)
        ours = Device(here)
        left, _ = connected(ours, theirs)
        theirs.nic.close()
        theirs.closed = True
        left.post_send(b"x", wr_id=1)
        await left.close(timeout=0.001)
        assert [(item.wr_id, item.status) for item in left.cq.poll()] == [(1, Status.WR_FLUSH_ERR)]
        await ours.close()
        await ours.close()

    run(program())


def test_closing_a_device_takes_one_timeout_however_many_pairs_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    close = QueuePair.close

    async def noted(pair: QueuePair, timeout: float | None = None) -> None:
        assert timeout is not None
        given.append(timeout)
        await close(pair, timeout)

    async def program() -> None:
        here, there = nics("virtual")
        theirs = Device(there)
        ours = Device(here, timeout=0.001)
        for number in range(4):
            left, _ = connected(ours, theirs)
            left.post_send(b"x", wr_id=number)
        theirs.nic.close()
        theirs.closed = True
        monkeypatch.setattr(QueuePair, "close", noted)
        await ours.close()

    run(program())
    assert given == [0.001, 0.0, 0.0, 0.0]  # the first has used it up


def test_virtual_time_that_cannot_move_is_an_error_instead_of_a_wait_for_ever() -> None:
    async def program() -> None:
        network = Network()
        deaf = LoopbackNic(network, bytes([10, 0, 0, 2]))
        async with Device(LoopbackNic(network, bytes([10, 0, 0, 1]))) as ours:
            pair = QueuePair(ProtectionDomain(ours))
            pair.connect_to(replace(pair.parameters, addresses=(deaf.address.hex(),)))
            with pytest.raises(NicError, match="virtual time stands still"):
                await pair.write(b"", RemoteRegion(0, 1, 0))
            with pytest.raises(NicError, match="virtual time stands still"):
                pair.post_send(b"x")

    run(program())


def test_a_queue_pair_is_closed_after_its_device_without_harm() -> None:
    async def program() -> None:
        here, there = nics("virtual")
        async with Device(here) as ours, Device(there) as theirs:
            left, _ = connected(ours, theirs)
            await ours.close()
        await left.close()

    run(program())


def test_a_closed_device_frees_its_ports_and_refuses_more() -> None:
    async def program() -> None:
        for _ in range(2):
            async with Device("127.0.0.1") as device:
                pair = QueuePair(ProtectionDomain(device))
            with pytest.raises(LocalProtocolError, match="the device was closed"):
                await device.sleep(1.0)
            with pytest.raises(LocalProtocolError, match="the device was closed"):
                pair.post_send(b"x")

    run(program())


def test_several_addresses_are_the_planes_of_one_device() -> None:
    async def program() -> None:
        async with Device(["127.0.0.1", "127.1.0.1"]) as ours, Device(["127.0.0.2", "127.1.0.2"]) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, len(PATTERN), ALL)
            await left.write(PATTERN, inbox.remote)
            assert inbox.view == PATTERN
            assert ours.endpoint.addresses == (bytes([127, 0, 0, 1]), bytes([127, 1, 0, 1]))

    run(program())


def test_two_devices_on_one_address_are_refused() -> None:
    async def program() -> None:
        async with Device("127.0.0.1"):
            with pytest.raises(NicError, match="in use"):
                Device("127.0.0.1")

    run(program())


class Broken(Wrapper):
    """A Nic that fails on demand."""

    broken = False

    def send(self, packets: Sequence[Packet]) -> int:
        if self.broken and packets:
            raise NicError("the cable is gone")
        return super().send(packets)


def test_a_nic_that_fails_ends_every_wait_with_its_error() -> None:
    async def program() -> None:
        here, there = nics("real")
        assert not isinstance(here, str)
        nic = Broken(here)
        async with Device(nic) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            receiving = asyncio.create_task(left.recv(bytearray(8)))
            await asyncio.sleep(0)
            nic.broken = True
            with pytest.raises(NicError, match="the cable is gone"):
                await left.write(b"x", MemoryRegion(right.pd, 8, ALL).remote)
            with pytest.raises(NicError, match="the cable is gone"):
                await receiving
            await right.close(timeout=0.01)

    run(program())


@pytest.mark.parametrize("world", WORLDS)
def test_misuse_is_refused_with_the_value_that_is_wrong(world: str) -> None:
    async def program() -> None:
        here, there = nics(world)
        async with Device(here, EndpointConfig(sq_depth=2, control="swift")) as ours, Device(there) as theirs:
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, 8, ALL)
            with pytest.raises(ConfigError, match="it has 8 bytes, 9 are needed"):
                await left.write(bytes(9), inbox.remote)
            with pytest.raises(ConfigError, match="it has 7 bytes, 8 are needed"):
                await left.fetch_add(inbox.remote[1:], 1)
            with pytest.raises(ConfigError, match="remote = MemoryRegion"):
                await left.write(b"x", inbox)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="read-only"):
                await left.read(b"constant", inbox.remote)
            with pytest.raises(ConfigError, match="imm = -1"):
                await left.write_imm(b"x", inbox.remote, -1)
            with pytest.raises(ConfigError, match="timeout = -1"):
                await left.write(b"x", inbox.remote, timeout=-1)
            with pytest.raises(ConfigError, match="another device"):
                QueuePair(left.pd, CompletionQueue(theirs))
            with pytest.raises(LocalProtocolError, match="is in RTS"):
                left.connect_to(right.parameters)
            with pytest.raises(LocalProtocolError, match="is in RTS"):
                await left.connect("127.0.0.1")
            with pytest.raises(LocalProtocolError, match="is in INIT"):
                await QueuePair(left.pd).send(b"x")
            left.post_send(b"x")
            left.post_send(b"x")
            with pytest.raises(QueueFullError, match="sq_depth = 2"):
                left.post_send(b"x")
            right.post_recv(bytearray(1))
            right.post_recv(bytearray(1))
            assert len(await left.cq.wait(2)) == 2
            assert ours._requests == {}

    run(program())


def test_a_nic_that_asyncio_cannot_wait_for_is_refused() -> None:
    class Deaf:
        """A Nic with nothing but the protocol."""

        def __init__(self) -> None:
            self.inside = LoopbackNic(Network(virtual=False), bytes([10, 0, 0, 1]))
            self.caps, self.address = self.inside.caps, self.inside.address
            self.now, self.send, self.receive = self.inside.now, self.inside.send, self.inside.receive
            self.wait, self.close = self.inside.wait, self.inside.close

    async def program() -> None:
        nic = Deaf()
        with pytest.raises(ConfigError, match="Deaf: asyncio needs one with"):
            Device(nic)
        assert nic.inside.closed

    run(program())


def test_the_same_seed_gives_the_same_run_in_virtual_time() -> None:
    async def program() -> None:
        ends = []
        for _ in range(2):
            here, there = nics("virtual")
            async with Device(here, seed=1) as ours, Device(there, seed=2) as theirs:
                left, right = connected(ours, theirs)
                await left.write(PATTERN, MemoryRegion(right.pd, len(PATTERN), ALL).remote)
                ends.append((left.parameters, ours.now(), ours.endpoint.counters()))
        assert ends[0] == ends[1]

    run(program())


@pytest.mark.parametrize("addresses", ["127.0.0.1", ["127.0.0.1", "127.1.0.1"]])
def test_a_device_opens_the_sockets_it_is_told_to(addresses: str | list[str]) -> None:
    async def program() -> None:
        others = "127.0.0.2" if isinstance(addresses, str) else ["127.0.0.2", "127.1.0.2"]
        async with Device(addresses, sockets="dgram") as ours, Device(others, sockets="dgram") as theirs:
            assert not ours.nic.caps.ecn
            left, right = connected(ours, theirs)
            inbox = MemoryRegion(right.pd, len(PATTERN), ALL)
            await left.write(PATTERN, inbox.remote)
            assert inbox.view == PATTERN

    run(program())


def test_a_control_that_the_sockets_cannot_feed_is_refused_where_it_was_named() -> None:
    async def program() -> None:
        config = EndpointConfig(control="dctcp")
        async with Device("127.0.0.1", config, sockets="dgram") as ours, Device("127.0.0.2") as theirs:
            with pytest.raises(ConfigError, match="control dctcp needs ecn"):
                connected(ours, theirs)

    run(program())


def test_unknown_sockets_are_refused() -> None:
    async def program() -> None:
        with pytest.raises(ConfigError, match="sockets = 'tcp': allowed are auto, udp, dgram"):
            Device("127.0.0.1", sockets="tcp")

    run(program())
