"""Starting requests: which one is next, and what it needs before its first packet.

Requests start one after the other and take their DSNs as they start, so a message is one range of DSNs. READ
responses of this side as a responder go first at message boundaries. SEND and WRITE WITH IMM wait for the peer's next
advertised receive; READs and atomics for one of the outstanding ones to end; what rides the data class inside a
control packet, for the window.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import cython

from transport.channel import Channel
from transport.completion import Opcode
from transport.context import Context
from transport.control import (
    CMP_SWAP,
    FETCH_ADD,
    OP_READ_RESPONSE,
    OP_SEND,
    OP_SEND_IMM,
    OP_WRITE_IMM,
    Atomic,
    Msg,
    ReadReq,
    Receive,
    RecvAdvert,
)
from transport.placement import EXPOSED
from transport.sequence import unwrap, wrap
from transport.work import Work

if TYPE_CHECKING:
    from typing import Any

#: What a control packet without payload holds of the congestion window, bytes.
_CHARGE = 64
#: Receives of the peer that are remembered; more than a receive queue may hold.
_MAX_ADVERTS = 1 << 21


class Starter:
    """Requests of one connection that have not begun, and what they wait for. sender: charged for them, and given
    DSNs."""

    def __init__(self, context: Context, channel: Channel, sender: Any) -> None:
        self.context = context
        self.channel = channel
        self.sender = sender
        self.unsent: deque[Work] = deque()
        self.responses: deque[Work] = deque()
        self.adverts: deque[tuple[int, Receive]] = deque()
        self.early_adverts: dict[int, RecvAdvert] = {}
        self.next_advert = 0
        self.reads: dict[int, Work] = {}
        self.next_read = 0

    def waiting(self) -> cython.bint:
        """Something has not begun."""
        return bool(self.unsent) or bool(self.responses)

    def advertised(self, advert: RecvAdvert) -> bool:
        """Take the peer's receives, in the order of their numbers. False if they were told before, lie absurdly far
        ahead, or pass the end of memory."""
        if not advert.receives:  # a keep-alive
            return True
        number = unwrap(advert.number, self.next_advert)
        if number < self.next_advert or len(self.early_adverts) >= 256 or len(self.adverts) >= _MAX_ADVERTS:
            return False
        if any(receive.address + receive.length > 1 << 64 for receive in advert.receives):
            return False
        self.early_adverts[number] = advert
        while (ready := self.early_adverts.pop(self.next_advert, None)) is not None:
            for receive in ready.receives:
                self.adverts.append((self.next_advert, receive))
                self.next_advert += 1
        return True

    def start(self, now: cython.longlong) -> cython.bint:
        """Begin the next request. True if one was begun; if it has data to send, the sender's `current` is set."""
        work: Work
        if self.responses:
            work = self.responses.popleft()
            self._begin_data(work)
            self.channel.post(
                Msg(
                    work.number, OP_READ_RESPONSE, wrap(work.first), work.count, work.length,
                ),
                work,
            )  # fmt: skip
            return True
        if not self.unsent:
            return False
        work = self.unsent[0]
        if not self._begin(now, work):
            return False
        self.unsent.popleft()
        return True

    def _begin(self, now: cython.longlong, work: Work) -> bool:
        """Start `work` unless it must wait: for an advert, for a READ to end, for the window."""
        opcode = work.opcode
        context = self.context
        if opcode == Opcode.RDMA_WRITE and not work.has_imm:
            self._begin_data(work)
            return True
        if opcode in (Opcode.SEND, Opcode.RDMA_WRITE):
            return self._begin_message(now, work)
        if len(self.reads) >= context.max_rd_atomic:
            return False
        edge = wrap(self.sender.next)
        if opcode != Opcode.RDMA_READ and not self.sender.charge(now, _CHARGE):
            return False
        work.number = self.next_read
        self.next_read += 1
        self.reads[work.number] = work
        number = wrap(work.number)
        if opcode == Opcode.RDMA_READ:
            work.region = context.domain.expose(
                work.length if work.data is None else work.data,
                EXPOSED,
                context.qpn,
            )
            request = ReadReq(
                number, edge, work.rkey, work.address, work.length, work.region.rkey, work.region.address
            )  # fmt: skip
            self.channel.post(request, work, ask=True)
        else:
            op = FETCH_ADD if opcode == Opcode.FETCH_ADD else CMP_SWAP
            self.channel.post(
                Atomic(number, op, edge, work.rkey, work.address, work.operand, work.compare),
                work,
                charge=_CHARGE,
                ask=True,
            )
        return True

    def _begin_message(self, now: cython.longlong, work: Work) -> bool:
        """SEND and WRITE WITH IMM take the next advertised receive, in order."""
        if not self.adverts:
            return False
        number, receive = self.adverts[0]
        wire = wrap(number)
        first = wrap(self.sender.next)
        if work.opcode == Opcode.RDMA_WRITE:
            self.adverts.popleft()
            work.number = number
            work.waiting += 1
            self._begin_data(work)
            self.channel.post(Msg(wire, OP_WRITE_IMM, first, work.count, work.length, work.imm), work)
            return True
        op = OP_SEND_IMM if work.has_imm else OP_SEND
        if work.length > receive.length:  # the receiver raises LOC_LEN_ERR (protocol rule 9)
            self.adverts.popleft()
            work.number = number
            work.refused = True
            self.channel.post(Msg(wire, op, first, 0, work.length, work.imm), work, ask=True)
            return True
        if work.length <= self.context.inline and (work.data is not None or work.length == 0):
            charge = work.length + _CHARGE
            if not self.sender.charge(now, charge):
                return False
            self.adverts.popleft()
            work.number = number
            work.waiting += 1
            inline = bytes(work.data) if work.data is not None else b""
            ask = len(self.unsent) == 1
            self.channel.post(Msg(wire, op, first, 0, work.length, work.imm, inline), work, charge=charge, ask=ask)
            return True
        self.adverts.popleft()
        work.number = number
        work.waiting += 1
        work.rkey = receive.rkey
        work.address = receive.address
        self._begin_data(work)
        self.channel.post(Msg(wire, op, first, work.count, work.length, work.imm), work)
        return True

    def _begin_data(self, work: Work) -> None:
        """`work` has data to send: it becomes the sender's current message."""
        self.sender.number(work)
        self.sender.current = work

    def abandon(self) -> None:
        """Forget everything; the connection has failed or ended."""
        self.unsent.clear()
        self.responses.clear()
        self.adverts.clear()
        for work in self.reads.values():
            if work.region is not None:
                work.region.deregister()
        self.reads.clear()
