"""Queue pairs: requests, connecting, closing; everything but the waiting, which is the faces' part.

Each verb exists twice. `post_write` returns at once and its completion goes to a completion queue, whatever its status.
`write` gives the completion itself, or raises CompletionError. What a verb needs is checked when it is called.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from transport.api.device import DeviceBase, Request
from transport.api.errors import CompletionError, WaitTimeoutError
from transport.api.grace import Grace
from transport.api.memory import MemorySlice, ProtectionDomain, RemoteRegion, local_bytes
from transport.clock import Time
from transport.completion import Completion, Status
from transport.config import ConnectionParameters
from transport.control import Terminate
from transport.errors import ConfigError, LocalProtocolError
from transport.states import State

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from transport.api.completion_queue import CompletionQueueBase

#: What a face makes of a completion that is still to come.
Outcome = TypeVar("Outcome", covariant=True)

#: Posts to the engine, at a time and under a work request id.
Post = Callable[[Time, int], None]

_ATOMIC_LENGTH = 8
_KIND_CONNECTION = 2


class QueuePairBase(ABC, Generic[Outcome]):
    """A queue pair in protection domain `pd`.

    Sends complete on `cq`, receives on `recv_cq`; wr_id is the caller's and comes back in the completion. local: a
    memory region, a slice of one, or any C-contiguous buffer; it must stay unchanged (and a target is not whole) until
    the completion. remote: what the peer told of its memory; `local` must not be longer.

    ConfigError for arguments that are not allowed, QueueFullError at a queue's depth, LocalProtocolError in a state
    that takes no requests.
    """

    def __init__(self, pd: ProtectionDomain, cq: CompletionQueueBase, recv_cq: CompletionQueueBase) -> None:
        for queue in (cq, recv_cq):
            if queue.device is not pd.device:
                raise ConfigError("completion queue: it belongs to another device than the protection domain")
        self.device: DeviceBase = pd.device
        self.pd = pd
        self.cq = cq
        self.recv_cq = recv_cq
        self.connection = self.device.endpoint.create_connection(pd.domain, self.device.now())
        self.device.queue_pairs[self.connection.qpn] = self
        self._grace = Grace(self.connection)

    @property
    def qpn(self) -> int:
        return int(self.connection.qpn)

    @property
    def state(self) -> State:
        return State(self.connection.state)

    @property
    def peer(self) -> str:
        """The peer's address, "" before it is connected."""
        peer = self.connection.context.peer
        return peer.name if peer is not None else ""

    # Connecting with parameters that the caller carried

    @property
    def parameters(self) -> ConnectionParameters:
        """What the peer's `connect_to` needs. `to_json` and `ConnectionParameters.from_json` make it plain data."""
        return self.connection.parameters

    def connect_to(self, parameters: ConnectionParameters) -> None:
        """Connect to the queue pair that has these parameters, which must do the same. NegotiationError or ConfigError
        names what does not fit, and changes nothing."""
        self.connection.connect(self.device.now(), parameters)
        self.device.kick()

    # Requests whose completion goes to a completion queue

    def post_write(self, local: MemorySlice | Buffer, remote: RemoteRegion, *, wr_id: int = 0) -> None:
        """RDMA WRITE."""
        self._start(self._write(local, remote, None), Request(wr_id, self.cq, None))

    def post_write_imm(self, local: MemorySlice | Buffer, remote: RemoteRegion, imm: int, *, wr_id: int = 0) -> None:
        """RDMA WRITE that also consumes a receive of the peer, whose completion has the 32 bits of `imm`."""
        self._start(self._write(local, remote, imm), Request(wr_id, self.cq, None))

    def post_send(self, local: MemorySlice | Buffer, *, imm: int | None = None, wr_id: int = 0) -> None:
        """SEND into the peer's next posted receive; waits for one."""
        self._start(self._send(local, imm), Request(wr_id, self.cq, None))

    def post_recv(self, local: MemorySlice | Buffer, *, wr_id: int = 0) -> None:
        """A receive. Allowed before the queue pair is connected."""
        self._start(self._recv(local), Request(wr_id, self.recv_cq, None))

    def post_read(self, local: MemorySlice | Buffer, remote: RemoteRegion, *, wr_id: int = 0) -> None:
        """RDMA READ into all of `local`."""
        self._start(self._read(local, remote), Request(wr_id, self.cq, None))

    def post_fetch_add(self, remote: RemoteRegion, add: int, *, wr_id: int = 0) -> None:
        """Add to the first 8 bytes, little-endian and aligned; the completion's `value` is what was there."""
        self._start(self._fetch_add(remote, add), Request(wr_id, self.cq, None))

    def post_cmp_swap(self, remote: RemoteRegion, compare: int, swap: int, *, wr_id: int = 0) -> None:
        """Store `swap` in the first 8 bytes if they are `compare`; the completion's `value` is what was there."""
        self._start(self._cmp_swap(remote, compare, swap), Request(wr_id, self.cq, None))

    # Requests that are waited for. If the wait ends early, by its timeout or by being cancelled, the request stays
    # posted, and its completion goes to the completion queue after all.

    def write(
        self, local: MemorySlice | Buffer, remote: RemoteRegion, *, wr_id: int = 0, timeout: float | None = None
    ) -> Outcome:
        """RDMA WRITE: complete when every byte is in the peer's memory."""
        return self._carry_out("write", self._write(local, remote, None), self.cq, wr_id, timeout)

    def write_imm(
        self, local: MemorySlice | Buffer, remote: RemoteRegion, imm: int, *, wr_id: int = 0,
        timeout: float | None = None,
    ) -> Outcome:  # fmt: skip
        """RDMA WRITE that also consumes a receive of the peer, whose completion has the 32 bits of `imm`."""
        return self._carry_out("write_imm", self._write(local, remote, imm), self.cq, wr_id, timeout)

    def send(
        self, local: MemorySlice | Buffer, *, imm: int | None = None, wr_id: int = 0, timeout: float | None = None
    ) -> Outcome:
        """SEND into the peer's next posted receive; waits for one."""
        return self._carry_out("send", self._send(local, imm), self.cq, wr_id, timeout)

    def recv(self, local: MemorySlice | Buffer, *, wr_id: int = 0, timeout: float | None = None) -> Outcome:
        """Post a receive and wait for its message: `byte_len` bytes of `local`, and `imm`."""
        return self._carry_out("recv", self._recv(local), self.recv_cq, wr_id, timeout)

    def read(
        self, local: MemorySlice | Buffer, remote: RemoteRegion, *, wr_id: int = 0, timeout: float | None = None
    ) -> Outcome:
        """RDMA READ into all of `local`."""
        return self._carry_out("read", self._read(local, remote), self.cq, wr_id, timeout)

    def fetch_add(self, remote: RemoteRegion, add: int, *, wr_id: int = 0, timeout: float | None = None) -> Outcome:
        """Add to the first 8 bytes, little-endian and aligned; the completion's `value` is what was there."""
        return self._carry_out("fetch_add", self._fetch_add(remote, add), self.cq, wr_id, timeout)

    def cmp_swap(
        self, remote: RemoteRegion, compare: int, swap: int, *, wr_id: int = 0, timeout: float | None = None
    ) -> Outcome:
        """Store `swap` in the first 8 bytes if they are `compare`; the completion's `value` is what was there."""
        return self._carry_out("cmp_swap", self._cmp_swap(remote, compare, swap), self.cq, wr_id, timeout)

    @abstractmethod
    def _carry_out(
        self, operation: str, post: Post, sink: CompletionQueueBase, wr_id: int, timeout: float | None
    ) -> Outcome:
        """Post, wait, and give the completion that `_judge` lets pass."""

    # What the verbs post

    def _write(self, local: MemorySlice | Buffer, remote: RemoteRegion, imm: int | None) -> Post:
        data = local_bytes(local, "local")
        _check_fits(data.nbytes, remote)
        return lambda now, serial: self.connection.post_write(now, serial, data, remote.address, remote.rkey, imm)

    def _send(self, local: MemorySlice | Buffer, imm: int | None) -> Post:
        data = local_bytes(local, "local")
        return lambda now, serial: self.connection.post_send(now, serial, data, imm)

    def _recv(self, local: MemorySlice | Buffer) -> Post:
        data = local_bytes(local, "local", written=True)
        return lambda now, serial: self.connection.post_recv(now, serial, data)

    def _read(self, local: MemorySlice | Buffer, remote: RemoteRegion) -> Post:
        data = local_bytes(local, "local", written=True)
        _check_fits(data.nbytes, remote)
        return lambda now, serial: self.connection.post_read(now, serial, data, remote.address, remote.rkey)

    def _fetch_add(self, remote: RemoteRegion, add: int) -> Post:
        _check_fits(_ATOMIC_LENGTH, remote)
        return lambda now, serial: self.connection.post_fetch_add(now, serial, remote.address, remote.rkey, add)

    def _cmp_swap(self, remote: RemoteRegion, compare: int, swap: int) -> Post:
        _check_fits(_ATOMIC_LENGTH, remote)
        return lambda now, serial: self.connection.post_cmp_swap(
            now, serial, remote.address, remote.rkey, compare, swap
        )

    def _start(self, post: Post, request: Request) -> None:
        serial = self.device.admit(request)
        try:
            post(self.device.now(), serial)
        except BaseException:
            self.device.refuse(serial)
            raise
        self.device.kick()

    def _judge(self, operation: str, completion: Completion) -> Completion:
        if completion.status != Status.SUCCESS:
            raise CompletionError(operation, completion, self.peer)
        return completion

    def _late(self, what: str) -> WaitTimeoutError:
        connection = self.connection
        if connection.dormant is None:
            recovery = connection.recovery
            retries = f"{recovery.expirations} of {connection.context.config.retries} retransmission timeouts"
            what = f"{what} in time, {recovery.last_ack(self.device.now())}, {retries}"
        else:
            what = f"{what} in time, and nothing is outstanding"
        return WaitTimeoutError(connection.describe(what))

    @staticmethod
    def _give_up(request: Request) -> None:
        """Nobody waits for the request any more: its completion, even one that came just now, goes to its queue."""
        result, request.result = request.result, None
        if result is not None and result.completion is not None:
            request.sink.add(result.completion)

    def _check_new(self) -> None:
        if self.connection.state != State.INIT:
            raise LocalProtocolError(f"queue pair {self.qpn:#x} is in {self.state.name}: connecting needs INIT")

    # The end

    def _channel_ended(self) -> None:
        """The bootstrap channel ended without a bye: the peer may have died."""
        if self.connection.state in (State.RTS, State.SQD):
            self._grace.begin(self.device.now())
            self.device.kick()

    def _begin_close(self) -> None:
        """Finish what was posted, tell the peer, and be freed; the engine does it step by step."""
        self.connection.close(self.device.now())
        self.device.kick()

    def _abort(self) -> None:
        """Flush what was posted, tell the peer that this side has failed, and be freed."""
        self._begin_close()
        if self.connection.state == State.SQD:
            notice = Terminate(Status.REM_ABORT_ERR, _KIND_CONNECTION, 0)
            cause = "this side's program failed"
            self.connection.fail(self.device.now(), Status.WR_FLUSH_ERR, cause, None, notice)

    def _free(self) -> None:
        """Free the queue pair here and now, if it is not: what is still posted is flushed, the peer is told nothing
        more."""
        now, connection = self.device.now(), self.connection
        connection.close(now)
        if connection.state == State.SQD:
            connection.fail(now, Status.WR_FLUSH_ERR, "closing took too long", None)
        if connection.state != State.RESET:
            connection.destroy()
        self.device.deliver()

    def _forget(self) -> None:
        """The queue pair has been freed."""
        self._grace.end()
        self.device.queue_pairs.pop(self.qpn, None)


def check_data(data: object) -> None:
    """ConfigError unless `data` can travel as JSON."""
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"data: JSON cannot carry it: {error}") from None


def _check_fits(length: int, remote: RemoteRegion) -> None:
    if not isinstance(remote, RemoteRegion):
        raise ConfigError(f"remote = {type(remote).__name__}: a RemoteRegion is allowed, as `remote` of a region gives")
    if length > remote.length:
        raise ConfigError(f"remote: it has {remote.length} bytes, {length} are needed")
