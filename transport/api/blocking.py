"""The blocking face: every call that waits drives the device until what it waits for is there, or its time is up.

A device moves packets only inside its calls: while the program does something else, its peers wait, and in the end
believe that it is dead. A program that only serves others calls `Device.sleep` or `QueuePair.wait_closed`. Two devices
that talk to each other need a thread each; one device may talk to itself.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from transport import bootstrap
from transport.api import memory
from transport.api.completion_queue import CompletionQueueBase, check_count
from transport.api.device import DeviceBase, Request
from transport.api.errors import CompletionError, WaitTimeoutError
from transport.api.memory import MemoryRegion, MemorySlice, RemoteRegion
from transport.api.queue_pair import Post, QueuePairBase, check_data
from transport.api.udp import AUTO
from transport.api.waits import Result, Wait
from transport.bootstrap import PORT, Channel
from transport.clock import MS, NEVER, Time
from transport.completion import Completion, Opcode, Status
from transport.config import ConnectionParameters, EndpointConfig
from transport.errors import NegotiationError, PolyroceError
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

#: How often the bootstrap channels are looked at while a call waits, picoseconds of the Nic.
_LOOK_EVERY = 50 * MS


class Device(DeviceBase):
    __doc__ = DeviceBase.__doc__

    def __init__(
        self, nic: Nic | str | Sequence[str] = "127.0.0.1", config: EndpointConfig | None = None, *,
        timeout: float = 30.0, seed: int | str | None = None, sockets: str = AUTO,
    ) -> None:  # fmt: skip
        super().__init__(nic, config, timeout=timeout, seed=seed, sockets=sockets)
        self.channels: dict[int, QueuePair] = {}  # by file descriptor
        self._poller = select.poll()
        self._look_at = 0

    def sleep(self, seconds: float) -> None:
        """Serve the peers for `seconds` of the Nic's time."""
        self.until(Wait(), self.due(seconds))

    def close(self) -> None:
        """Close all queue pairs, then the Nic. Twice does no harm."""
        if self.closed:
            return
        pairs = cast("list[QueuePair]", list(self.queue_pairs.values()))
        due = self.due(None)
        try:
            for pair in pairs:
                pair._begin_close()
            for pair in pairs:
                pair.close(self.left(due))
        finally:
            self.closed = True
            self.nic.close()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and not self.closed:
            for pair in self.queue_pairs.values():
                pair._abort()
        self.close()

    def until(self, wait: Wait, due: Time) -> bool:
        """Drive the device until `wait` is over, at the latest at `due`. False if it has not come by then."""
        self.check_alive()
        self.arm(wait, due)
        try:
            while not wait.over:
                if not self.turn() and not wait.over:
                    self._rest()
        finally:
            self.arm(wait, NEVER)
        return wait.come

    def _watch(self, descriptor: int, pair: QueuePair) -> None:
        """Tell `pair` when something comes on its bootstrap channel."""
        self.channels[descriptor] = pair
        self._poller.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        del self.channels[descriptor]
        self._poller.unregister(descriptor)

    def _rest(self) -> None:
        """Sleep until a packet comes or something is due."""
        due = self.next_due()
        if due <= self.now():
            return
        if self.channels:
            if self._look_at <= self.now():
                for descriptor, _ in self._poller.poll(0):
                    self.channels[descriptor]._look()
                self._look_at = self.now() + _LOOK_EVERY
                due = self.next_due()
            due = min(due, self._look_at)
        if self.nic.caps.virtual_time:
            self.move_clock(due)
        else:
            self.nic.wait(due if due < NEVER else None)


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
        self.device.turn()
        return self._take(count)

    def wait(self, count: int = 1, timeout: float | None = None) -> list[Completion]:
        """`count` completions, as soon as so many are there. WaitTimeoutError takes none."""
        check_count(count)
        due = self.device.due(timeout)
        while len(self) < count:
            wait = self._wait()
            try:
                if not self.device.until(wait, due):
                    raise WaitTimeoutError(f"completion queue: {len(self)} of {count} completions came in time")
            finally:
                self._leave(wait)
        return self._take(count)


class QueuePair(QueuePairBase[Completion]):
    __doc__ = QueuePairBase.__doc__

    device: Device

    def __init__(
        self, pd: ProtectionDomain, cq: CompletionQueue | None = None, recv_cq: CompletionQueue | None = None
    ) -> None:
        self.cq: CompletionQueue = CompletionQueue(pd.device) if cq is None else cq
        self.recv_cq: CompletionQueue = self.cq if recv_cq is None else recv_cq
        super().__init__(pd, self.cq, self.recv_cq)
        self._channel: Channel | None = None

    def connect(
        self, host: str, port: int = PORT, *, data: Any = None, timeout: float | None = None,
        ssl: SSLContext | None = None,
    ) -> Any:  # fmt: skip
        """Connect to the queue pair that a `Listener.accept` at `host` connects. data: what the peer shall be told,
        plain data for JSON. Returns what the peer told. ssl: for TLS."""
        self._check_new()
        check_data(data)
        due = self.device.due(timeout)
        channel = bootstrap.connect(host, port, ssl=ssl, patience=self.device.patience(timeout))
        return self._introduce(channel, data, due)

    def close(self, timeout: float | None = None) -> None:
        """Finish what was posted, have the peer close too, wait until it needs no answer any more, free the queue pair.
        What is not done in time is flushed. Twice does no harm."""
        due = self.device.due(timeout)
        self._begin_close()
        try:
            gone = self.device.wait_gone(self)
            if not gone.over:
                self.device.until(gone, due)
        finally:
            self._free()
            self._forget()
            if self._channel is not None:
                self._unwatch().bye()

    def wait_closed(self, timeout: float | None = None) -> None:
        """Serve the peer until it has closed the queue pair. WaitTimeoutError if it does not."""
        if not self.device.until(self.device.wait_gone(self), self.device.due(timeout)):
            raise self._late("the peer did not close the queue pair")

    def __enter__(self) -> QueuePair:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._abort()
        self.close()

    def _carry_out(
        self, operation: str, post: Post, sink: CompletionQueueBase, wr_id: int, timeout: float | None
    ) -> Completion:
        due = self.device.due(timeout)
        result = Result()
        request = Request(wr_id, sink, result)
        self._start(post, request)
        try:
            if not self.device.until(result, due):
                raise self._late(f"{operation} stays posted, it was not complete")
        except BaseException:
            self._give_up(request)
            raise
        assert result.completion is not None
        return self._judge(operation, result.completion)

    def _introduce(self, channel: Channel, data: Any, due: Time) -> Any:
        """Tell parameters and data, hear the peer's, connect, wait until the peer has connected too, all by `due`."""
        patience = channel.patience
        try:
            channel.patience = self.device.left(due)
            theirs, more = channel.exchange([self.parameters], data=data)
            try:
                self.connect_to(theirs[0])
            except PolyroceError as error:
                raise channel.refuse(str(error)) from None
            channel.patience = self.device.left(due)
            channel.send({"type": "connected"})
            channel.receive("connected")
            channel.patience = patience
        except BaseException:
            channel.close()
            if self.state != State.INIT:  # connected, but not so the peer
                self._free()
            raise
        self._channel = channel
        self.device._watch(channel.fileno(), self)
        return more["data"]

    def _look(self) -> None:
        """Something came on the channel: its end, with a bye or without."""
        if self._channel is None:
            return
        try:
            if self._channel.poll() is None:
                return
        except NegotiationError:
            self._channel_ended()
        self._unwatch().close()

    def _unwatch(self) -> Channel:
        channel, self._channel = self._channel, None
        assert channel is not None
        self.device._unwatch(channel.fileno())
        return channel


class Listener:
    """Waits for peers on a TCP address of this host. Port 0 takes a free one, see `port`. ssl: for TLS."""

    def __init__(self, address: str = "127.0.0.1", port: int = PORT, *, ssl: SSLContext | None = None) -> None:
        self._listener = bootstrap.Listener(address, port, ssl=ssl)
        self.port = self._listener.port

    def accept(self, pair: QueuePair, *, data: Any = None, timeout: float | None = None) -> Any:
        """Connect `pair` to the next peer's, see `QueuePair.connect`. Returns what the peer told."""
        pair._check_new()
        check_data(data)
        due = pair.device.due(timeout)
        return pair._introduce(self._listener.accept(pair.device.patience(timeout)), data, due)

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
