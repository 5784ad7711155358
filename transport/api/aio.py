"""The asyncio face: a device lives in the event loop that it was made in, without a thread and without a task.

It is turned when its Nic says that something arrived (a file descriptor, or the Nic's `on_arrival`), when a timer of
the endpoint or of the Nic is due, and when a request was posted. In between it costs nothing. The loop's clock ticks
in milliseconds: what is due sooner is waited for by turning again whenever the loop comes round.

In virtual time the clock moves whenever the loop comes round and no packet is to be received: whatever else the
program waits for takes no time, or for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

from transport import bootstrap_aio
from transport.api import memory
from transport.api.completion_queue import CompletionQueueBase, check_count
from transport.api.device import DeviceBase, Request
from transport.api.errors import CompletionError, WaitTimeoutError
from transport.api.memory import MemoryRegion, MemorySlice, RemoteRegion
from transport.api.queue_pair import Post, QueuePairBase, check_data
from transport.api.udp import AUTO
from transport.api.waits import Result, Wait
from transport.bootstrap import PORT
from transport.bootstrap_aio import AsyncChannel, AsyncListener
from transport.clock import MS, NEVER, SECOND, Time
from transport.completion import Completion, Opcode, Status
from transport.config import ConnectionParameters, EndpointConfig
from transport.errors import ConfigError, NegotiationError, NicError, PolyroceError
from transport.placement import Access
from transport.states import State

if TYPE_CHECKING:
    from ssl import SSLContext
    from types import TracebackType

    from transport.nic.base import Nic

__all__ = [
    "Access", "Completion", "CompletionError", "CompletionQueue", "ConnectionParameters", "Device", "EndpointConfig",
    "Listener", "MemoryRegion", "MemorySlice", "Opcode", "ProtectionDomain", "QueuePair", "RemoteRegion", "Status",
    "WaitTimeoutError",
]  # fmt: skip

#: What is due sooner than this, picoseconds, is nothing to sleep for: asyncio's selectors round up to milliseconds.
_SOON = MS

#: Seconds that a bootstrap channel may be silent: it only has to end some day.
_FOR_EVER = 1e9


class Device(DeviceBase):
    __doc__ = DeviceBase.__doc__

    def __init__(
        self, nic: Nic | str | Sequence[str] = "127.0.0.1", config: EndpointConfig | None = None, *,
        timeout: float = 30.0, seed: int | str | None = None, sockets: str = AUTO,
    ) -> None:  # fmt: skip
        self._loop = asyncio.get_running_loop()
        super().__init__(nic, config, timeout=timeout, seed=seed, sockets=sockets)
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waits: set[Wait] = set()
        self._failure: Exception | None = None
        try:
            self._descriptors = self._listen()
        except BaseException:
            self.nic.close()
            raise

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` of the Nic's time pass."""
        await self.until(Wait(), self.due(seconds))

    async def close(self) -> None:
        """Close all queue pairs, then the Nic. Twice does no harm."""
        if self.closed:
            return
        pairs = cast("list[QueuePair]", list(self.queue_pairs.values()))
        due = self.due(None)
        try:
            if self._failure is None:
                for pair in pairs:
                    pair._begin_close()
                for pair in pairs:
                    await pair.close(self.left(due))
        finally:
            self.closed = True
            for pair in pairs:
                pair._drop()
            self._stop()
            self.nic.close()
            await asyncio.sleep(0)  # a Nic that lives in this loop has let go of it when it has come round

    async def __aenter__(self) -> Device:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None and not self.closed:
            for pair in self.queue_pairs.values():
                pair._abort()
        await self.close()

    def kick(self) -> None:
        if self._soon is None and self._failure is None and not self.closed:
            self._soon = self._loop.call_soon(self._run)

    async def until(self, wait: Wait, due: Time) -> bool:
        """Wait until `wait` is over, at the latest at `due`. False if it has not come by then."""
        self.check_alive()
        if not wait.over:
            future: asyncio.Future[None] = self._loop.create_future()
            wait.wake = lambda: None if future.done() else future.set_result(None)
            self._waits.add(wait)
            self.arm(wait, due)
            self.kick()
            try:
                await future
            finally:
                self._waits.discard(wait)
                self.arm(wait, NEVER)
        if not wait.come:
            self.check_alive()
        return wait.come

    def check_alive(self) -> None:
        super().check_alive()
        if self._failure is not None:
            raise NicError(f"the device has failed: {self._failure}") from self._failure

    def _listen(self) -> list[int]:
        """Have the loop turn this device when something arrives."""
        nic: Any = self.nic
        while not hasattr(nic, "on_arrival") and hasattr(nic, "inner"):
            nic = nic.inner
        ports = getattr(nic, "nics", (nic,))
        if all(hasattr(port, "on_arrival") for port in ports):
            for port in ports:
                port.on_arrival = self._arrived
            return []
        descriptor: int = nic.fileno() if hasattr(nic, "fileno") else -1
        if descriptor < 0:
            raise ConfigError(f"nic = {type(self.nic).__name__}: asyncio needs one with `fileno` or `on_arrival`")
        self._loop.add_reader(descriptor, self.kick)
        return [descriptor]

    def _arrived(self) -> None:
        """In whatever thread: something is on its way here."""
        self._loop.call_soon_threadsafe(self.kick)

    def _run(self) -> None:
        """Turn the driver once, then see to it that this is called again in time."""
        self._soon = None
        try:
            if self.turn():
                self.kick()
            else:
                self._rest()
        except Exception as error:
            self._failure = error
            self._stop()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.next_due()
        next_event = getattr(self.nic, "next_event", None)
        if next_event is not None:
            due = min(due, next_event())
        if due == NEVER:
            return
        if self.nic.caps.virtual_time:
            self.move_clock(due)
            self.kick()
        elif due - self.now() < _SOON:
            self.kick()
        else:
            self._timer = self._loop.call_later((due - self.now()) / SECOND, self.kick)

    def _stop(self) -> None:
        """No more turns: whoever waits is told why."""
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        self._descriptors = []
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        for wait in list(self._waits):
            wait.expire(self.now())


class ProtectionDomain(memory.ProtectionDomain):
    __doc__ = memory.ProtectionDomain.__doc__

    device: Device

    def __init__(self, device: Device) -> None:
        super().__init__(device)


class CompletionQueue(CompletionQueueBase):
    __doc__ = CompletionQueueBase.__doc__

    device: Device

    def __init__(self, device: Device) -> None:
        super().__init__(device)

    def poll(self, count: int = 16) -> list[Completion]:
        """At most `count` completions that are there. Never waits."""
        check_count(count)
        return self._take(count)

    async def wait(self, count: int = 1, timeout: float | None = None) -> list[Completion]:
        """`count` completions, as soon as so many are there. WaitTimeoutError takes none."""
        check_count(count)
        due = self.device.due(timeout)
        while len(self) < count:
            wait = self._wait()
            try:
                if not await self.device.until(wait, due):
                    raise WaitTimeoutError(f"completion queue: {len(self)} of {count} completions came in time")
            finally:
                self._leave(wait)
        return self._take(count)


class QueuePair(QueuePairBase[Coroutine[Any, Any, Completion]]):
    __doc__ = QueuePairBase.__doc__

    device: Device

    def __init__(
        self, pd: ProtectionDomain, cq: CompletionQueue | None = None, recv_cq: CompletionQueue | None = None
    ) -> None:
        self.cq: CompletionQueue = CompletionQueue(pd.device) if cq is None else cq
        self.recv_cq: CompletionQueue = self.cq if recv_cq is None else recv_cq
        super().__init__(pd, self.cq, self.recv_cq)
        self._channel: AsyncChannel | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def connect(
        self, host: str, port: int = PORT, *, data: Any = None, timeout: float | None = None,
        ssl: SSLContext | None = None,
    ) -> Any:  # fmt: skip
        """Connect to the queue pair that a `Listener.accept` at `host` connects. data: what the peer shall be told,
        plain data for JSON. Returns what the peer told. ssl: for TLS."""
        self._check_new()
        check_data(data)
        due = self.device.due(timeout)
        channel = await bootstrap_aio.connect(host, port, ssl=ssl, patience=self.device.patience(timeout))
        return await self._introduce(channel, data, due)

    async def close(self, timeout: float | None = None) -> None:
        """Finish what was posted, have the peer close too, wait until it needs no answer any more, free the queue pair.
        What is not done in time is flushed. Twice does no harm."""
        due = self.device.due(timeout)
        self._begin_close()
        try:
            gone = self.device.wait_gone(self)
            if not gone.over:
                await self.device.until(gone, due)
            if self._watcher is not None:
                self._watcher.cancel()
                await asyncio.wait([self._watcher])
            channel, self._channel = self._channel, None
            if channel is not None:
                await channel.bye()
        finally:
            self._drop()

    async def wait_closed(self, timeout: float | None = None) -> None:
        """Serve the peer until it has closed the queue pair. WaitTimeoutError if it does not."""
        if not await self.device.until(self.device.wait_gone(self), self.device.due(timeout)):
            raise self._late("the peer did not close the queue pair")

    async def __aenter__(self) -> QueuePair:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort()
        await self.close()

    async def _carry_out(
        self, operation: str, post: Post, sink: CompletionQueueBase, wr_id: int, timeout: float | None
    ) -> Completion:
        due = self.device.due(timeout)
        result = Result()
        request = Request(wr_id, sink, result)
        self._start(post, request)
        try:
            if not await self.device.until(result, due):
                raise self._late(f"{operation} stays posted, it was not complete")
        except BaseException:
            self._give_up(request)
            raise
        assert result.completion is not None
        return self._judge(operation, result.completion)

    async def _introduce(self, channel: AsyncChannel, data: Any, due: Time) -> Any:
        """Tell parameters and data, hear the peer's, connect, wait until the peer has connected too, all by `due`."""
        patience = channel.patience
        try:
            channel.patience = self.device.left(due)
            theirs, more = await channel.exchange([self.parameters], data=data)
            try:
                self.connect_to(theirs[0])
            except PolyroceError as error:
                raise await channel.refuse(str(error)) from None
            channel.patience = self.device.left(due)
            await channel.send({"type": "connected"})
            await channel.receive("connected")
            channel.patience = patience
        except BaseException:
            channel.close()
            if self.state != State.INIT:  # connected, but not so the peer
                self._free()
            raise
        self._channel = channel
        self._watcher = asyncio.create_task(self._watch(channel))
        return more["data"]

    async def _watch(self, channel: AsyncChannel) -> None:
        """Wait for the end of the channel, with a bye or without."""
        try:
            await channel.receive(patience=_FOR_EVER)
        except NegotiationError:
            self._channel_ended()
        channel.close()
        self._channel = None

    def _drop(self) -> None:
        """Free what the queue pair holds, here and now."""
        self._free()
        self._forget()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class Listener:
    """Waits for peers on a TCP address of this host. Port 0 takes a free one, see `port`. ssl: for TLS."""

    def __init__(self, address: str = "127.0.0.1", port: int = PORT, *, ssl: SSLContext | None = None) -> None:
        self._listener = AsyncListener(address, port, ssl=ssl)
        self.port = port

    async def accept(self, pair: QueuePair, *, data: Any = None, timeout: float | None = None) -> Any:
        """Connect `pair` to the next peer's, see `QueuePair.connect`. Returns what the peer told."""
        pair._check_new()
        check_data(data)
        due = pair.device.due(timeout)
        return await pair._introduce(await self._listener.accept(pair.device.patience(timeout)), data, due)

    async def close(self) -> None:
        await self._listener.close()

    async def __aenter__(self) -> Listener:
        await self._listener.start()
        self.port = self._listener.port
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
