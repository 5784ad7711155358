"""Classic mode: an in-order receiver and go-back-N, which is how RDMA NICs run RC today.

The receiver takes the data segment it expects and no other. The first one behind a gap is answered by a NACK that names
the expected DSN, what follows is dropped in silence (IB spec 9.7.5, 9.9: one NAK-sequence-error for each gap); if the
NACK or the segment that it asks for is lost too, only the sender's timeout helps. NACK and timeout alike make the
sender repeat everything from the expected DSN on, on its one path.

Not modelled: control records stay a sequence space of their own that is repaired one by one (transport/channel.py),
where RC has one space for all; and the timeout is the engine's, which backs off, where NICs have a constant one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.clock import NEVER
from transport.control import OUT_OF_ORDER, Nack
from transport.ledger import OUTSIDE
from transport.packet import DATAGRAM
from transport.placement import Access
from transport.sequence import unwrap, wrap

if TYPE_CHECKING:
    from transport.packet import Packet
    from transport.receiver import Receiver
    from transport.recovery import Recovery

_REMOTE_WRITE = int(Access.REMOTE_WRITE)


def out_of_order(receiver: Receiver, packet: Packet, first: int) -> None:
    """A data packet begins with DSN `first`, beyond the one expected: drop it, and ask for what is missing if this is
    the first to show it."""
    context = receiver.context
    ledger = receiver.ledger
    if ledger.classify(first) == OUTSIDE:
        context.counters.dropped_outside_window += packet.count
        return
    # Whoever guesses a sequence number is no witness of a gap: the key must be right, as it must for placement.
    if packet.length == 0:
        if packet.rkey != context.tag_in:
            context.counters.dropped_wrong_tag += 1
            return
    elif context.domain.find(packet.rkey, packet.address, packet.length, _REMOTE_WRITE, context.qpn) is None:
        context.counters.dropped_bad_key += packet.count
        return
    context.counters.dropped_out_of_order += packet.count
    if receiver.nacked == ledger.edge:
        return
    receiver.nacked = ledger.edge
    if receiver.ack_due < NEVER:  # what came before the gap is acknowledged with it
        receiver.ack_now = True
    answer = context.packet(DATAGRAM, packet.entropy, 1, packet.plane)
    answer.control = Nack(wrap(ledger.edge), packet.psn, packet.entropy, OUT_OF_ORDER)
    context.counters.nacks_sent += 1
    receiver.connection.send_datagram(answer)


def nacked(now: int, recovery: Recovery, sequence: int) -> bool:
    """The peer expects DSN `sequence` and got another: go back to it. False if that is not outstanding."""
    sender = recovery.sender
    dsn = unwrap(sequence, sender.una)
    if not sender.una <= dsn < sender.next:
        return False
    send = sender.ring[dsn & sender.mask]
    if send is None or not sender.go_back(now, dsn):
        return True  # it has arrived by now, or waits for being sent again
    context = recovery.context
    context.counters.losses += 1
    signal = context.loss_signal  # of one segment: the rest was thrown away by the peer, not by the network
    signal.lost_bytes = sender.size(send.work, dsn)
    signal.lost_packets = 1
    signal.in_flight = sender.in_flight
    signal.trimmed = False
    signal.sent_at = send.sent_at
    context.control.on_loss(now, signal)
    context.wake()
    return True


def timed_out(now: int, recovery: Recovery) -> None:
    """Nothing was heard for a retransmission timeout: go back to the oldest segment outstanding."""
    sender = recovery.sender
    if recovery.channel.outstanding:
        recovery.channel.timeout()
    if sender.flow.oldest is not None:
        recovery.context.counters.losses += sender.go_back(now, sender.una)
        recovery.context.control.on_timeout(now)
    recovery.heard_at = now
    recovery.context.wake()
