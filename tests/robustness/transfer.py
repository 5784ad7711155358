"""Endless traffic of every operation between two connections that checks itself, for tests over real sockets.

Both sides run a `Transfer`, each as requester and as responder. Operation `n` of a side is of kind `KINDS[n % 8]`, and
its bytes follow from the side's seed and `n`, so each side knows what must arrive: what is written is read back and
compared, received messages say which operation they belong to, atomics return what the earlier ones left.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from transport.completion import Completion, Opcode, Status
from transport.connection import Connection
from transport.placement import Access
from transport.states import POST_RECV, State

KINDS = ("write", "read", "write_imm", "send", "send_imm", "write", "fetch_add", "cmp_swap")
#: Bytes of the largest operation, and places for each kind of write: one is used again long after it was compared.
LARGEST = 20_000
SLOTS = 8
#: Requests outstanding, and receives posted: fewer than a turn of the slots.
DEPTH = 16
RECEIVES = 8
#: Ids of receives start here; those of requests are the numbers of their operations.
FIRST_RECEIVE = 1 << 32
_WORDS = 3 * SLOTS * LARGEST
_ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


def content(seed: int, number: int) -> bytes:
    """The bytes of operation `number` of the side with `seed`: any length, the odd ones often."""
    rng = random.Random(f"{seed} {number}")
    return rng.randbytes(rng.choice((0, 1, 255, 256, 257, 4096, rng.randrange(LARGEST), LARGEST)))


def _place(number: int) -> int:
    """Where operation `number`, a write, goes in the peer's memory."""
    return (number // 8 % SLOTS * 3 + (0, 0, 1, 0, 0, 2, 0, 0)[number % 8]) * LARGEST


@dataclass
class Transfer:
    """One side. seed, peer_seed: of this side's and of the peer's bytes. limit: operations to post.

    checked: operations and messages whose bytes were compared and right; wrong: what was not; errors: completions that
    did not succeed; completed: all that completed once; outstanding: what was posted and has not completed, by its id.
    """

    connection: Connection
    seed: int
    peer_seed: int
    limit: int = 1 << 30
    remote: tuple[int, int] = (0, 0)
    posted: int = 0
    completed: int = 0
    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[Completion] = field(default_factory=list)
    outstanding: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = bytearray(_WORDS + 16)
        region = self.connection.context.domain.register(self.memory, _ALL)
        self.region = region
        self.local = (region.address, region.rkey)
        self.received = 0
        for _ in range(RECEIVES):
            self._post_receive(0)

    def advance(self, now: int) -> None:
        """Post what there is room for."""
        while self.connection.state == State.RTS and self.posted < self.limit and self._requests() < DEPTH:
            self._post(now, self.posted)
            self.posted += 1

    def finished(self) -> bool:
        """All requests up to the limit are complete."""
        return self.posted >= self.limit and not self._requests()

    def take(self, now: int, completion: Completion) -> None:
        """Compare what a completion is about; ones that failed are kept."""
        if completion.wr_id not in self.outstanding:
            self.wrong.append(f"completed twice, or never posted: {completion}")
            return
        expected = self.outstanding.pop(completion.wr_id)
        self.completed += 1
        if completion.status != Status.SUCCESS:
            self.errors.append(completion)
        elif completion.wr_id >= FIRST_RECEIVE:
            self._arrived(now, completion, expected)
        else:
            self._completed(completion, expected)

    def _requests(self) -> int:
        return sum(number < FIRST_RECEIVE for number in self.outstanding)

    def _post(self, now: int, number: int) -> None:
        connection, kind = self.connection, KINDS[number % 8]
        address, rkey = self.remote
        turn = number // 8
        place = address + _place(number)
        source = content(self.seed, number)
        self.outstanding[number] = None
        if kind == "write":
            connection.post_write(now, number, source, place, rkey)
        elif kind == "read":  # what the operation before wrote
            source = content(self.seed, number - 1)
            buffer = bytearray(len(source))
            self.outstanding[number] = (buffer, source)
            connection.post_read(now, number, buffer, address + _place(number - 1), rkey)
        elif kind == "write_imm":
            connection.post_write(now, number, source, place, rkey, imm=number)
        elif kind == "send":
            connection.post_send(now, number, number.to_bytes(4) + source)
        elif kind == "send_imm":
            connection.post_send(now, number, source, imm=number)
        elif kind == "fetch_add":
            self.outstanding[number] = turn * 3
            connection.post_fetch_add(now, number, address + _WORDS, rkey, 3)
        else:
            self.outstanding[number] = turn
            connection.post_cmp_swap(now, number, address + _WORDS + 8, rkey, turn, turn + 1)

    def _post_receive(self, now: int) -> None:
        if self.connection.state not in POST_RECV:
            return
        buffer = bytearray(LARGEST + 4)
        self.outstanding[FIRST_RECEIVE + self.received] = buffer
        self.connection.post_recv(now, FIRST_RECEIVE + self.received, buffer)
        self.received += 1

    def _completed(self, completion: Completion, expected: Any) -> None:
        if completion.opcode == Opcode.RDMA_READ:
            self._check(expected[0] == expected[1], completion)
        elif completion.opcode in (Opcode.FETCH_ADD, Opcode.COMP_SWAP):
            self._check(completion.value == expected, completion)
        else:
            self.checked += 1

    def _arrived(self, now: int, completion: Completion, buffer: bytearray) -> None:
        found = bytes(buffer[: completion.byte_len])
        if completion.opcode == Opcode.RECV_RDMA_WITH_IMM:
            assert completion.imm is not None
            expected = content(self.peer_seed, completion.imm)
            start = _place(completion.imm)
            self._check(self.memory[start : start + len(expected)] == expected, completion)
        elif completion.imm is not None:
            self._check(found == content(self.peer_seed, completion.imm), completion)
        else:
            self._check(found[4:] == content(self.peer_seed, int.from_bytes(found[:4])), completion)
        self._post_receive(now)

    def _check(self, right: bool, completion: Completion) -> None:
        if right:
            self.checked += 1
        else:
            self.wrong.append(f"wrong bytes: {completion}")
