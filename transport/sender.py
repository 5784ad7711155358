"""The sending half: the send queue, segmentation, and what is in flight.

Which request starts next is the starter's decision (transport/starter.py), what to retransmit and when is recovery's,
how much may be out is the control's; this file keeps all three. Every transmission is a Send (transport/flight.py); a
ring that grows with what is outstanding maps a DSN to its latest one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import cython

from transport.channel import Channel, Reliable
from transport.clock import NEVER
from transport.completion import Opcode, Status
from transport.context import Context
from transport.credits import Account
from transport.errors import QueueFullError
from transport.flight import Flow, Send, Subflow
from transport.packet import CLASS_DATA, DATA, ECT_0, Packet, Packets
from transport.sequence import wrap
from transport.starter import Starter
from transport.work import Work

if TYPE_CHECKING:
    from typing import Any

_FREE = 0
_IN_FLIGHT = 1
_LOST = 2

#: A segment sent this often and never acknowledged is its request's fault, not the paths' (protocol rule 13).
MAX_COPIES = 64


class Sender:
    """Send queue and in-flight ring of one connection. connection: told about finished and failed requests."""

    def __init__(self, context: Context, channel: Channel, connection: Any, first: int) -> None:
        self.context = context
        self.channel = channel
        self.connection = connection
        self.queue: deque[Work] = deque()  # posted and not completed, in order
        self.starter = Starter(context, channel, self)
        self.current: Work | None = None
        self.next = first
        self.una = first
        self.mask = 0
        self.ring: list[Any] = [None]
        self.state = bytearray(1)
        self.in_flight = 0
        self.missing: deque[int] = deque()
        self.flow = Flow()
        self.probe_tail = False
        self.everywhere = False
        self.window_limited = False
        self.last_sent_at = -NEVER

    # Posting

    def post(self, work: Work) -> None:
        """Queue a request; QueueFullError at the depth of the send queue."""
        depth = self.context.config.sq_depth
        if len(self.queue) >= depth:
            raise QueueFullError(f"send queue is full: {len(self.queue)} requests outstanding, sq_depth = {depth}")
        if self.context.account is not None and (
            work.opcode == Opcode.RDMA_WRITE or (work.opcode == Opcode.SEND and work.length > self.context.inline)
        ):
            self.want(work)
        self.queue.append(work)
        self.starter.unsent.append(work)

    def want(self, work: Work) -> None:
        """Ask the peer for credit for a request, or for a response to one of its own."""
        account: Account = self.context.account  # type: ignore[assignment]
        account.want(work.length, self.flow.oldest is None and not self.missing)

    def idle(self) -> cython.bint:
        """Nothing posted, nothing outstanding."""
        return (
            not self.queue
            and not self.starter.waiting()
            and self.current is None
            and self.flow.oldest is None
            and not self.missing
        )

    # Transmission

    def transmit(self, now: cython.longlong, out: Packets, limit: cython.longlong) -> cython.longlong:
        """Append data packets to `out`, at most `limit`; return how many."""
        sent: cython.longlong = 0
        self.window_limited = False
        if self.probe_tail:
            self.probe_tail = False
            sent += self._tail_probe(now, out)
        while self.missing and sent < limit:
            if not self._retransmit(now, out):
                return sent
            sent += 1
        while sent < limit:
            if self.current is None and not self.starter.start(now):
                break
            if self.current is not None:
                if not self._send_new(now, out):
                    break
                sent += 1
        return sent

    def paced_until(self, now: cython.longlong) -> cython.longlong:
        """When pacing lets the next send out; NEVER if nothing waits for it."""
        context = self.context
        if context.control.rate <= 0 or context.pacer.next_at <= now:
            return NEVER
        if self.current is None and not self.missing and not self.starter.waiting():
            return NEVER
        return context.pacer.next_at

    def has_more(self) -> cython.bint:
        """More data is waiting behind what was just sent."""
        return self.current is not None or self.starter.waiting()

    def responding(self) -> cython.bint:
        """A READ response has not been read out to its end."""
        return bool(self.starter.responses) or (self.current is not None and self.current.response)

    def charge(self, now: int, size: int) -> bool:
        """Take `size` bytes of the window for a control packet that rides the data class. False: it must wait."""
        if not self._window_open(size) or self._paced_out(now):
            return False
        self.in_flight += size
        self.context.pacer.spend(now, size, self.context.control.rate)
        return True

    def _window_open(self, size: cython.longlong) -> cython.bint:
        if self.in_flight > 0 and self.in_flight + size > self.context.control.window:
            self.window_limited = True
            return False
        return True

    def _paced_out(self, now: cython.longlong) -> cython.bint:
        return self.context.control.rate > 0 and self.context.pacer.next_at > now

    def _uncredited(self) -> cython.bint:
        account: Account | None = self.context.account
        return account is not None and not account.may_send()

    def number(self, work: Work) -> None:
        """Give `work` the next range of DSNs: at least one, a message of 0 bytes is one segment of 0 bytes
        (rules P1, P3)."""
        work.first = self.next
        work.count = max(1, (work.length + self.context.segment - 1) // self.context.segment)

    def _readable(self, now: cython.longlong, work: Work) -> cython.bint:
        """False, and the READ is refused, if `work` answers one whose region is deregistered by now (rule P7)."""
        if not work.response or work.region is None or work.region.rkey != 0:
            return True
        self.connection.refuse(now, Status.REM_ACCESS_ERR, work.number, "the region of a READ was deregistered")
        return False

    def _send_new(self, now: cython.longlong, out: Packets) -> cython.bint:
        """Send the next run of the current message; False if it must wait."""
        work: Work = self.current  # type: ignore[assignment]  # transmit looked
        context = self.context
        if not self._readable(now, work):
            return False
        segment: cython.longlong = context.segment
        room: cython.longlong = self.una + context.window - self.next
        if room <= 0 or self._paced_out(now) or self._uncredited():
            return False
        size: cython.longlong = min(segment, work.length - work.sent * segment)
        if not self._window_open(size):
            return False
        count: cython.longlong = min(context.max_run, work.count - work.sent, room)
        if count > 1:
            count = min(count, max(1, (context.control.window - self.in_flight) // segment))
        if self.in_flight == 0 and self.last_sent_at > -NEVER and now - self.last_sent_at > context.rto():
            context.control.on_idle(now, now - self.last_sent_at)
        path: cython.longlong = context.paths.select(now, context.flow, -1)
        context.last_path = path
        if work.sent == 0:
            work.began = now
        send = self._track(now, work, self.next, count, path, 1)
        self.next += count
        work.sent += count
        if work.sent == work.count:
            self.current = None
        out.append(self._packet(now, send))
        return True

    def _retransmit(self, now: cython.longlong, out: Packets) -> cython.bint:
        """Send the first missing segments again, on another path; False if the window or pacing says wait."""
        old: Send
        work: Work
        dsn: cython.longlong = self.missing[0]
        if dsn < self.una or self.state[dsn & self.mask] != _LOST:
            self.missing.popleft()
            return True
        old = self.ring[dsn & self.mask]
        work = old.work
        if not self._readable(now, work):
            return False
        segment: cython.longlong = self.context.segment
        if not self._window_open(min(segment, work.length - (dsn - work.first) * segment)) or self._paced_out(now):
            return False
        if self._uncredited():
            return False
        self.missing.popleft()
        count: cython.longlong = 1
        while (
            count < self.context.max_run
            and self.missing
            and self.missing[0] == dsn + count
            and dsn + count < old.first + old.count
            and self.state[(dsn + count) & self.mask] == _LOST
        ):
            self.missing.popleft()
            count += 1
        if old.copies >= MAX_COPIES and not self.context.classic:  # go-back-N repeats what arrived: that is no fault
            self.connection.fail(
                now,
                Status.RETRY_EXC_ERR,
                f"segment {dsn - work.first} was sent {old.copies} times over several paths, "
                f"{self.connection.recovery.last_ack(now)}",
                work,
            )
            return False
        self._copy(now, old, dsn, count, out)
        self._everywhere(now, dsn, out)
        return True

    def _tail_probe(self, now: cython.longlong, out: Packets) -> cython.longlong:
        """Send the newest outstanding segment again, on another path, asking for an ACK (RFC 8985 section 7)."""
        newest = self.flow.newest
        if newest is None or not self._readable(now, newest.work):
            return 0
        dsn: cython.longlong = newest.first + newest.count - 1
        while dsn >= newest.first and (dsn < self.una or self.state[dsn & self.mask] != _IN_FLIGHT):
            dsn -= 1
        if dsn < newest.first or self.ring[dsn & self.mask] is not newest:
            return 0
        self.context.counters.tail_probes += 1
        self.lose(now, newest, dsn)
        self._copy(now, newest, dsn, 1, out)
        self._everywhere(now, dsn, out)
        return 1

    def _everywhere(self, now: cython.longlong, dsn: cython.longlong, out: Packets) -> None:
        """After silence, the copy of segment `dsn` that was just sent goes out on the other planes too: one may be
        down, which one is not known, and to try one at a time would take long, as each timeout backs off."""
        step: cython.longlong
        if not self.everywhere:
            return
        self.everywhere = False
        paths = self.context.paths
        first: Send = self.ring[dsn & self.mask]
        for step in range(1, paths.planes):
            path: cython.longlong = paths.across(first.subflow.path.index, step)
            if path >= 0:
                send: Send = self.ring[dsn & self.mask]
                self.lose(now, send, dsn)
                self._copy(now, send, dsn, 1, out, path)
                again: Send = self.ring[dsn & self.mask]
                again.lost_on = send.lost_on  # that copy has lost nothing yet

    def _copy(
        self, now: cython.longlong, old: Send, dsn: cython.longlong, count: cython.longlong, out: Packets,
        path: cython.longlong = -1,
    ) -> None:  # fmt: skip
        """Send again what `old` did not bring, on `path`, or on one that is chosen for it."""
        context = self.context
        avoid: cython.longlong = old.subflow.path.index
        if path < 0:
            path = avoid if context.classic else context.paths.select(now, context.flow, avoid)
        send = self._track(now, old.work, dsn, count, path, old.copies + 1)
        send.lost_on = avoid
        send.previous = old
        if context.classic:  # copies have no bound, so only the latest two are remembered
            old.previous = None
        packet = self._packet(now, send)
        packet.ack_request = True
        context.counters.retransmits += count
        context.counters.retransmitted_bytes += packet.length
        if old.sent_at - old.work.began <= context.paths.base_rtt:
            context.counters.early_retransmits += count
        out.append(packet)

    def _track(
        self, now: cython.longlong, work: Work, dsn: cython.longlong, count: cython.longlong, path: cython.longlong,
        copies: cython.longlong,
    ) -> Send:  # fmt: skip
        """Put segments [dsn, dsn + count) in flight on `path` as a new Send."""
        i: cython.longlong
        context = self.context
        subflow: Subflow = context.peer.subflows[path]
        send = Send()
        send.first = dsn
        send.count = count
        send.left = count
        send.psn = context.psn
        send.sent_at = now
        send.copies = copies
        send.subflow = subflow
        send.sender = self
        send.work = work
        self.flow.append(send)
        subflow.append(send)
        if dsn + count - self.una > self.mask:
            self._grow(dsn + count - self.una)
        for i in range(dsn, dsn + count):
            self.ring[i & self.mask] = send
            self.state[i & self.mask] = _IN_FLIGHT
        segment: cython.longlong = context.segment
        size: cython.longlong = min(count * segment, work.length - (dsn - work.first) * segment)
        self.in_flight += size
        if context.account is not None:
            context.account.spent += size
        subflow.path.in_flight += size
        subflow.path.sent_at = subflow.path.carried_at = now
        self.last_sent_at = now
        context.pacer.spend(now, size + 64 * count, context.control.rate)
        return send

    def _packet(self, now: cython.longlong, send: Send) -> Packet:
        context = self.context
        work: Work = send.work
        segment: cython.longlong = context.segment
        offset: cython.longlong = (send.first - work.first) * segment
        packet = context.packet(DATA, send.subflow.path.entropy, send.count, send.subflow.path.plane)
        packet.priority = CLASS_DATA
        packet.ecn = ECT_0
        packet.seq = wrap(send.first)
        packet.address = work.address + offset
        packet.length = min(send.count * segment, work.length - offset)
        packet.rkey = work.rkey if packet.length > 0 else context.tag_out  # no key is looked at: see the receiver
        packet.payload = work.data
        packet.offset = offset
        packet.stride = segment
        packet.sent_at = now
        last = send.first + send.count == work.first + work.count
        packet.solicited = last
        # Ask for an ACK where nothing follows that would bring one.
        packet.ack_request = (last and not self.has_more()) or (
            self.in_flight + segment > context.control.window or self.next >= self.una + context.window
        )
        context.counters.data_packets_sent += send.count
        context.counters.data_bytes_sent += packet.length
        return packet

    def _grow(self, needed: cython.longlong) -> None:
        i: cython.longlong
        size: cython.longlong = 2 * max(32, self.mask + 1)
        while size < needed:
            size *= 2
        ring: list[Any] = [None] * size
        state = bytearray(size)
        for i in range(self.una, self.next):
            ring[i & (size - 1)] = self.ring[i & self.mask]
            state[i & (size - 1)] = self.state[i & self.mask]
        self.ring = ring
        self.state = state
        self.mask = size - 1

    # Outcome

    def lose(self, now: cython.longlong, send: Send, dsn: cython.longlong) -> None:
        """Segment `dsn` of `send`, which is in flight, is declared lost. It is not yet queued to be sent again."""
        self.state[dsn & self.mask] = _LOST
        send.subflow.path.lost_packets += 1
        account: Account | None = self.context.account
        if account is not None:
            size: cython.longlong = self.size(send.work, dsn)
            account.wanted += size
            account.lost += size
        self._leave(send, dsn)

    def requeue(self, now: cython.longlong, send: Send, below: cython.longlong) -> cython.longlong:
        """Declare the segments of `send` before place `below` of its subflow lost and queue them; return their
        bytes."""
        dsn: cython.longlong
        lost: cython.longlong = 0
        for dsn in range(send.first, min(send.first + send.count, send.first + below - send.order)):
            if dsn >= self.una and self.state[dsn & self.mask] == _IN_FLIGHT and self.ring[dsn & self.mask] is send:
                lost += self.size(send.work, dsn)
                self.lose(now, send, dsn)
                self.missing.append(dsn)
                self.context.counters.losses += 1
        return lost

    def go_back(self, now: cython.longlong, start: cython.longlong) -> cython.longlong:
        """In classic mode: queue all segments in flight from `start` on again; return how many."""
        dsn: cython.longlong
        count: cython.longlong = 0
        # What is in flight was sent in order, and comes before what waits: newest first, so that it stays so.
        send = self.flow.newest
        while send is not None and send.first + send.count > start:
            older = send.older
            for dsn in range(send.first + send.count - 1, max(start, send.first) - 1, -1):
                if dsn >= self.una and self.state[dsn & self.mask] == _IN_FLIGHT and self.ring[dsn & self.mask] is send:
                    self.lose(now, send, dsn)
                    self.missing.appendleft(dsn)
                    count += 1
            send = older
        if count:
            self.context.counters.go_backs += 1
        return count

    def acknowledge(self, send: Send, dsn: cython.longlong) -> cython.longlong:
        """Segment `dsn`, whose latest transmission is `send`, has arrived. Returns its payload bytes."""
        work: Work = send.work
        if self.state[dsn & self.mask] == _IN_FLIGHT:
            self._leave(send, dsn)
        self.state[dsn & self.mask] = _FREE
        self.ring[dsn & self.mask] = None
        work.acked += 1
        if work.acked == work.count:
            self.finish(work)
        return self.size(work, dsn)

    def charge_back(self, item: Reliable) -> None:
        """A control packet that was charged to the window has arrived."""
        self.in_flight -= item.charge

    def finish(self, work: Work) -> None:
        """Complete `work` if nothing of it is outstanding any more, and whatever this lets complete in order."""
        if work.done or work.refused or work.waiting or work.acked < work.count:
            return
        work.done = not work.response
        while self.queue and self.queue[0].done:
            self.connection.complete_send(self.queue.popleft(), Status.SUCCESS, "")

    def size(self, work: Work, dsn: cython.longlong) -> cython.longlong:
        """Payload bytes of segment `dsn` of `work`."""
        segment: cython.longlong = self.context.segment
        return min(segment, work.length - (dsn - work.first) * segment)

    def abandon(self) -> None:
        """Take everything out of flight; the connection has failed or ended."""
        send = self.flow.oldest
        while send is not None:
            newer = send.newer
            for dsn in range(send.first, send.first + send.count):
                if dsn >= self.una and self.state[dsn & self.mask] == _IN_FLIGHT and self.ring[dsn & self.mask] is send:
                    self.lose(0, send, dsn)
            send = newer
        self.missing.clear()
        self.starter.abandon()
        self.current = None
        self.una = self.next
        self.in_flight = 0
        self.ring = [None]
        self.state = bytearray(1)
        self.mask = 0

    def _leave(self, send: Send, dsn: cython.longlong) -> None:
        """Segment `dsn` of `send` is no longer in flight."""
        size: cython.longlong = self.size(send.work, dsn)
        self.in_flight -= size
        send.subflow.path.in_flight -= size
        send.left -= 1
        if send.left == 0:
            self.flow.remove(send)
            send.subflow.remove(send)
