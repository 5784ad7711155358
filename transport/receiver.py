"""The receiving half: place on arrival, deliver in order, acknowledge.

A data packet is validated, placed and recorded the moment it arrives; nothing is kept for later. Messages are delivered
from the head of the receive queue once their MSG has come and the ledger's edge has passed their range (rules P5, P6).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import cython

from transport import go_back
from transport.channel import Channel
from transport.clock import NEVER
from transport.completion import Opcode, Status
from transport.context import Context
from transport.control import (
    OP_READ_RESPONSE,
    OP_SEND_IMM,
    OP_WRITE_IMM,
    SPACE_CONTROL,
    SPACE_DATA,
    Ack,
    Msg,
    Nack,
    Receive,
    RecvAdvert,
    Reject,
)
from transport.errors import QueueFullError
from transport.ledger import Ledger
from transport.packet import CE, DATAGRAM, PSN_MASK, Packet, Packets
from transport.placement import Access, MemoryRegion, place, place_run
from transport.sequence import unwrap, wrap
from transport.work import PostedReceive

if TYPE_CHECKING:
    from typing import Any

    from cc.signals import Hop
    from transport.work import Work

_REMOTE_WRITE = int(Access.REMOTE_WRITE)


class Receiver:
    """Ledger, receive queue and acknowledgements of one connection. connection: told about deliveries and refusals."""

    def __init__(self, context: Context, channel: Channel, ledger: Ledger, connection: Any) -> None:
        self.context = context
        self.channel = channel
        self.ledger = ledger
        self.connection = connection
        self.queue: deque[PostedReceive] = deque()
        self.head = 0  # message number of queue[0]
        self.advertised = 0  # receives below this number have been told to the peer
        self.answers: list[Work] = []  # READs whose response is announced and not complete
        self.ack_now = False
        self.ack_due = NEVER
        self.unacked = 0
        self.last_marked = False
        self.reject_at = -NEVER
        self.nacked = -1  # edge that the peer was asked for, in classic mode: once for each gap
        self.told = 0  # how far above its edge the last ACK told of arrivals: there were gaps between
        self.trigger_space = SPACE_DATA
        self.trigger_seq = 0
        self.trigger_psn = 0
        self.trigger_entropy = 0
        self.trigger_plane = 0
        self.trigger_at = 0
        self.hops: list[Hop] | None = None  # telemetry of the newest data since the last ACK

    # Receive queue

    def post(self, wr_id: int, region: MemoryRegion) -> None:
        """Queue a receive; its key lives until it is delivered."""
        self.queue.append(PostedReceive(wr_id, region, self.head + len(self.queue)))

    def check_depth(self) -> None:
        """QueueFullError at the depth of the receive queue."""
        depth = self.context.config.rq_depth
        if len(self.queue) >= depth:
            raise QueueFullError(f"receive queue is full: {len(self.queue)} receives posted, rq_depth = {depth}")

    def advertise(self) -> None:
        """Tell the peer about receives it does not know yet, in batches."""
        while self.advertised < self.head + len(self.queue):
            first = self.advertised - self.head
            batch = [self.queue[i].region for i in range(first, min(len(self.queue), first + self.context.max_advert))]
            receives = tuple(Receive(region.rkey, region.address, region.length) for region in batch)
            self.channel.post(RecvAdvert(wrap(self.advertised), receives))
            self.advertised += len(batch)

    # Arrival

    def on_data(self, now: cython.longlong, packet: Packet) -> None:
        """A data packet or run from the agreed address for this queue pair."""
        i: cython.longlong
        state: cython.int
        context = self.context
        ledger = self.ledger
        if packet.trimmed:
            self._on_trimmed(now, packet)
            return
        count: cython.longlong = packet.count
        fresh: cython.longlong = 0
        repeated: cython.longlong = 0
        first: cython.longlong = unwrap(packet.seq, ledger.edge)
        if packet.length > count * context.segment or (
            count > 1 and (packet.segment != context.segment or packet.length <= (count - 1) * packet.segment)
        ):
            context.counters.dropped_bad_length += count
            return
        if context.classic and first > ledger.edge:
            go_back.out_of_order(self, packet, first)
            return
        for i in range(count):
            state = ledger.classify(first + i)
            if state == 2:
                context.counters.dropped_outside_window += count
                return
            if state == 0:
                fresh += 1
            else:
                repeated += 1
        marked: cython.bint = packet.ecn == CE
        region: MemoryRegion | None = None
        if fresh:
            # Zero bytes touch no memory, so no key is looked at (rule P3). The tag takes its place: else whoever
            # guesses a sequence number could make this side believe that its segment has come.
            if packet.length == 0:
                if packet.rkey != context.tag_in:
                    context.counters.dropped_wrong_tag += 1
                    return
            else:
                region = context.domain.find(packet.rkey, packet.address, packet.length, _REMOTE_WRITE, context.qpn)
                if region is None:
                    self._reject(now, packet)
                    return
            if fresh == count:
                if region is not None:
                    place_run(region, packet)
                for i in range(count):
                    ledger.record(first + i, packet.segment_length(i), marked)
                context.counters.bytes_placed += packet.length
        if repeated:
            context.counters.duplicates += repeated
            for i in range(count):
                if ledger.classify(first + i) == 1:
                    ledger.record_duplicate(first + i)
                    continue
                if region is not None:
                    place(region, packet, i)
                ledger.record(first + i, packet.segment_length(i), marked)
                context.counters.bytes_placed += packet.segment_length(i)
        context.counters.data_packets_received += count
        if context.grant is not None:
            self.connection.endpoint.granter.arrived(now, context.grant, packet.length, False)
        self.hops = packet.hops
        self._trigger(now, SPACE_DATA, wrap(packet.seq + count - 1), (packet.psn + count - 1) & PSN_MASK, packet)
        self.unacked += packet.length
        # A gap that was told of, and whose time the sender counts, has closed.
        closed: cython.bint = 0 < self.told <= ledger.edge - ledger.previous_edge
        if packet.ack_request or repeated or marked != self.last_marked or closed or self.unacked >= context.ack_every:
            self.ack_now = True
        self.last_marked = marked
        self._schedule(now)

    def _on_trimmed(self, now: cython.longlong, packet: Packet) -> None:
        """The header of a segment whose payload a switch cut off: ask for it again, unless another copy has come."""
        context = self.context
        context.counters.trims_received += 1
        if context.classic:  # lost, as all that comes before it and after it
            return
        if context.grant is not None:
            self.connection.endpoint.granter.arrived(now, context.grant, packet.length, True)
        state: cython.int = self.ledger.classify(unwrap(packet.seq, self.ledger.edge))
        if state == 2:
            context.counters.dropped_outside_window += 1
        elif state == 0:
            answer = context.packet(DATAGRAM, packet.entropy, 1, packet.plane)
            answer.control = Nack(packet.seq, packet.psn, packet.entropy)
            context.counters.nacks_sent += 1
            self.connection.send_datagram(answer)

    def on_control_arrival(self, now: cython.longlong, packet: Packet) -> None:
        """A reliable control packet arrived, new or not: it must be acknowledged."""
        self._trigger(now, SPACE_CONTROL, packet.seq, packet.psn, packet)
        if packet.ack_request:
            self.ack_now = True
        self._schedule(now)

    def on_msg(self, now: cython.longlong, msg: Msg) -> bool:
        """The peer announces a message. False if it names a receive that is not posted, or contradicts itself."""
        end = unwrap(msg.first, self.ledger.edge) + msg.count
        segment = self.context.segment
        whole = max(1, (msg.length + segment - 1) // segment)
        if msg.op == OP_READ_RESPONSE:
            work = self.connection.find_read(msg.number)
            if work is None or work.opcode != Opcode.RDMA_READ or work.reply is not None:
                return self._told_before()
            if msg.length != work.length or msg.count != whole:
                return False
            work.reply = end
            self.answers.append(work)
            return True
        index = unwrap(msg.number, self.head) - self.head
        if index >= len(self.queue):
            return False
        if index < 0 or self.queue[index].op >= 0:
            return self._told_before()
        receive = self.queue[index]
        too_long = msg.op != OP_WRITE_IMM and msg.length > receive.region.length
        wanted = 0 if msg.inline is not None or too_long else whole
        if msg.count != wanted or (msg.inline is not None and len(msg.inline) != msg.length):
            return False
        if msg.inline and msg.length <= receive.region.length and receive.region.view is not None:
            receive.region.view[: msg.length] = msg.inline
            self.context.counters.bytes_placed += msg.length
        receive.length = msg.length
        receive.end = end
        receive.imm = msg.imm
        receive.op = msg.op
        return True

    def _told_before(self) -> bool:
        """A message that was announced before, or nobody waits for: counted, and harmless."""
        self.context.counters.dropped_bad_control += 1
        return True

    def deliver(self, now: cython.longlong) -> None:
        """Complete what has wholly arrived, in order."""
        receive: PostedReceive
        while self.queue:
            receive = self.queue[0]
            if receive.op < 0 or self.ledger.edge < receive.end:
                break
            too_long = receive.op != OP_WRITE_IMM and receive.length > receive.region.length
            if too_long:
                self.connection.refuse_message(now, receive)
                return
            self.queue.popleft()
            self.head += 1
            receive.region.deregister()  # dead before the completion is visible (protocol rule 9)
            self.context.counters.messages_delivered += 1
            opcode = Opcode.RECV_RDMA_WITH_IMM if receive.op == OP_WRITE_IMM else Opcode.RECV
            imm = receive.imm if receive.op in (OP_WRITE_IMM, OP_SEND_IMM) else None
            self.connection.complete_receive(receive, Status.SUCCESS, opcode, imm, "")
        if self.answers:
            for work in [work for work in self.answers if self.ledger.edge >= work.reply]:
                self.answers.remove(work)
                self.connection.finish_read(work)

    def flush(self, error: str) -> None:
        """Complete every posted receive with WR_FLUSH_ERR."""
        while self.queue:
            receive = self.queue.popleft()
            self.head += 1
            receive.region.deregister()
            self.connection.complete_receive(receive, Status.WR_FLUSH_ERR, Opcode.RECV, None, error)
        self.advertised = max(self.advertised, self.head)
        self.answers.clear()

    # Acknowledgement

    def transmit_ack(self, now: cython.longlong, out: Packets) -> cython.longlong:
        """Append an ACK if one is wanted; return how many packets."""
        if not self.ack_now and self.ack_due > now:
            return 0
        context = self.context
        packet = context.packet(DATAGRAM, self.trigger_entropy, 1, self.trigger_plane)
        ack = Ack()
        self.ledger.fill(ack, context.max_ack_bits)
        self.told = self.ledger.top - self.ledger.edge
        self.channel.fill(ack)
        ack.trigger_space = self.trigger_space
        ack.trigger_seq = self.trigger_seq
        ack.trigger_psn = self.trigger_psn
        ack.trigger_entropy = self.trigger_entropy
        ack.hold = now - self.trigger_at
        ack.hops = self.hops
        self.hops = None
        packet.control = ack
        out.append(packet)
        context.counters.acks_sent += 1
        self.ack_now = False
        self.ack_due = NEVER
        self.unacked = 0
        return 1

    def _trigger(
        self, now: cython.longlong, space: cython.int, sequence: cython.longlong, psn: cython.longlong, packet: Packet
    ) -> None:
        self.trigger_space = space
        self.trigger_seq = sequence
        self.trigger_psn = psn
        self.trigger_entropy = packet.entropy
        self.trigger_plane = packet.plane
        self.trigger_at = now

    def _schedule(self, now: cython.longlong) -> None:
        if self.ack_now:
            self.context.wake()
        elif self.ack_due == NEVER:
            self.ack_due = now + self.context.ack_delay()

    def _reject(self, now: cython.longlong, packet: Packet) -> None:
        """Key, right or bounds are wrong: nothing is placed, nothing of ours changes, the peer is told (rule P9)."""
        context = self.context
        context.counters.dropped_bad_key += packet.count
        if now < self.reject_at:
            return
        self.reject_at = now + context.round_trip()
        if self.ack_due < NEVER:  # what came before the refused packet is acknowledged before it is refused
            self.ack_now = True
        answer = context.packet(DATAGRAM, packet.entropy, 1, packet.plane)
        answer.control = Reject(packet.seq, packet.rkey, packet.address, Status.REM_ACCESS_ERR)
        context.counters.rejects_sent += 1
        self.connection.send_datagram(answer)
