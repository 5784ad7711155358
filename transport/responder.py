"""READ requests and atomics of the peer: run once each, in the order they were sent, when what came before has arrived.

Requests and replies travel as reliable control or data, so a lost reply is retransmitted and no reply cache is needed.
Atomics are atomic among the atomics of this endpoint (IBV_ATOMIC_HCA), since one thread runs them.
"""

from __future__ import annotations

import sys
from bisect import insort
from typing import TYPE_CHECKING

import cython

from transport.channel import Channel
from transport.completion import Opcode, Status
from transport.context import Context
from transport.control import FETCH_ADD, Atomic, AtomicReply, ReadReq
from transport.ledger import Ledger
from transport.placement import Access
from transport.sender import Sender
from transport.sequence import unwrap
from transport.work import Work

if TYPE_CHECKING:
    from typing import Any

_REMOTE_READ = int(Access.REMOTE_READ)
_REMOTE_ATOMIC = int(Access.REMOTE_ATOMIC)
_WORD = (1 << 64) - 1


class Responder:
    """Requests of one connection's peer that wait for their turn."""

    def __init__(self, context: Context, channel: Channel, ledger: Ledger, sender: Sender, connection: Any) -> None:
        self.context = context
        self.channel = channel
        self.ledger = ledger
        self.sender = sender
        self.connection = connection
        self.pending: list[tuple[int, ReadReq | Atomic]] = []

    def on_request(self, sequence: int, request: ReadReq | Atomic) -> bool:
        """Take the request with CSN `sequence`. False if the peer has more outstanding than agreed."""
        outstanding = len(self.pending) + len(self.sender.starter.responses)
        current = self.sender.current
        if outstanding + (current is not None and current.response) >= self.context.max_rd_atomic:
            return False
        insort(self.pending, (sequence, request), key=lambda item: item[0])
        return True

    def run(self, now: cython.longlong) -> None:
        """Run what may run: every earlier control packet and all data before the request have arrived, and an atomic
        only after every earlier READ has been read out (a retransmission reads again, as RC responders do)."""
        while self.pending:
            sequence, request = self.pending[0]
            if self.channel.edge_in <= sequence or self.ledger.edge < unwrap(request.edge, self.ledger.edge):
                return
            if isinstance(request, Atomic) and self.sender.responding():
                return  # an earlier READ must see the value before this atomic
            self.pending.pop(0)
            if isinstance(request, ReadReq):
                if not self._read(now, request):
                    return
            elif not self._atomic(now, request):
                return

    def _read(self, now: cython.longlong, request: ReadReq) -> bool:
        if request.reply_address + request.length > 1 << 64:
            cause = "READ whose reply passes the end of memory"
            self.connection.refuse(now, Status.REM_INV_REQ_ERR, request.number, cause)
            return False
        work = Work(0, Opcode.RDMA_READ, request.length)
        work.response = True
        work.number = request.number
        work.rkey = request.reply_rkey
        work.address = request.reply_address
        if request.length:
            region = self.context.domain.find(
                request.rkey, request.address, request.length, _REMOTE_READ, self.context.qpn
            )  # fmt: skip
            if region is None:
                self.connection.refuse(
                    now, Status.REM_ACCESS_ERR, request.number, "READ with a wrong key, right or bounds"
                )
                return False
            work.region = region
            if region.view is not None:
                start = request.address - region.address
                work.data = region.view[start : start + request.length]
        if self.context.account is not None:
            self.sender.want(work)
        self.sender.starter.responses.append(work)
        self.context.wake()
        return True

    def _atomic(self, now: cython.longlong, request: Atomic) -> bool:
        region = self.context.domain.find(request.rkey, request.address, 8, _REMOTE_ATOMIC, self.context.qpn)
        if region is None or request.address % 8:
            cause = "atomic on an unaligned address" if region else "atomic with a wrong key, right or bounds"
            status = Status.REM_INV_REQ_ERR if region else Status.REM_ACCESS_ERR
            self.connection.refuse(now, status, request.number, cause)
            return False
        value = 0
        if region.view is not None:
            word = region.view[request.address - region.address : request.address - region.address + 8]
            value = int.from_bytes(word, sys.byteorder)
            if request.op == FETCH_ADD:
                word[:] = ((value + request.operand) & _WORD).to_bytes(8, sys.byteorder)
            elif value == request.compare:
                word[:] = request.operand.to_bytes(8, sys.byteorder)
        self.channel.post(AtomicReply(request.number, value), ask=True)
        return True
