"""Idle connections: the numbers that are left of a connection's parts when nothing is posted, outstanding or missing.

Sender, receiver, recovery, reliable control, responder and closing hold queues and rings, ten kilobytes together. A
connection is born without them, gets them with its first request or packet, and gives them back two timeouts after the
last one. What both sides must agree on survives: sequence numbers, message numbers, the receiver's totals. So do posted
receives, and the peer's that were advertised. The congestion control stays, in the context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.channel import Channel
from transport.clock import NEVER
from transport.closing import Closing
from transport.ledger import Ledger
from transport.receiver import Receiver
from transport.recovery import Recovery
from transport.responder import Responder
from transport.sender import Sender

if TYPE_CHECKING:
    from collections import deque


class Dormant:
    """An idle connection. dsn, csn: the next numbers of this side; peer_dsn, peer_csn: the next of the peer. The other
    fields are those of the parts that have them, by the same names."""

    def __init__(self, dsn: int, csn: int) -> None:
        self.dsn = dsn
        self.csn = csn
        self.peer_dsn = 0
        self.peer_csn = 0
        self.last_sent_at = -NEVER
        self.next_advert = 0
        self.next_read = 0
        self.adverts: deque[Any] | None = None
        self.acked_at = -NEVER
        self.seen_duplicates = 0
        self.reorder_quarters = 1
        self.head = 0
        self.advertised = 0
        self.receives: deque[Any] | None = None
        self.marked_packets = 0
        self.marked_bytes = 0
        self.duplicates = 0
        self.last_duplicate = 0


def awaken(connection: Any) -> None:
    """Give a dormant connection its parts."""
    rest: Dormant = connection.dormant
    context = connection.context
    ledger = Ledger(rest.peer_dsn, context.window)
    ledger.marked_packets = rest.marked_packets
    ledger.marked_bytes = rest.marked_bytes
    ledger.duplicates = rest.duplicates
    ledger.last_duplicate = rest.last_duplicate
    channel = Channel(context, rest.csn, rest.peer_csn, connection.control_acknowledged)
    sender = Sender(context, channel, connection, rest.dsn)
    sender.last_sent_at = rest.last_sent_at
    starter = sender.starter
    starter.next_advert = rest.next_advert
    starter.next_read = rest.next_read
    if rest.adverts is not None:
        starter.adverts = rest.adverts
    recovery = Recovery(context, sender, channel, connection)
    recovery.acked_at = recovery.heard_at = rest.acked_at
    recovery.duplicates = rest.seen_duplicates
    recovery.reorder_quarters = rest.reorder_quarters
    receiver = Receiver(context, channel, ledger, connection)
    receiver.head = rest.head
    receiver.advertised = rest.advertised
    if rest.receives is not None:
        receiver.queue = rest.receives
    connection.channel = channel
    connection.sender = sender
    connection.recovery = recovery
    connection.receiver = receiver
    connection.responder = Responder(context, channel, ledger, sender, connection)
    connection.closing = Closing(connection)
    connection.dormant = None


def fall_asleep(connection: Any) -> None:
    """Take the parts of a connection that needs none of them (`Connection.idle`)."""
    sender: Sender = connection.sender
    receiver: Receiver = connection.receiver
    recovery: Recovery = connection.recovery
    starter, ledger = sender.starter, receiver.ledger
    rest = Dormant(sender.next, connection.channel.next)
    rest.peer_dsn = ledger.edge
    rest.peer_csn = connection.channel.edge_in
    rest.last_sent_at = sender.last_sent_at
    rest.next_advert = starter.next_advert
    rest.next_read = starter.next_read
    rest.adverts = starter.adverts or None
    rest.acked_at = recovery.acked_at
    rest.seen_duplicates = recovery.duplicates
    rest.reorder_quarters = recovery.reorder_quarters
    rest.head = receiver.head
    rest.advertised = receiver.advertised
    rest.receives = receiver.queue or None
    rest.marked_packets = ledger.marked_packets
    rest.marked_bytes = ledger.marked_bytes
    rest.duplicates = ledger.duplicates
    rest.last_duplicate = ledger.last_duplicate
    starter.sender = None  # the only circle among the parts: they are freed at once
    connection.dormant = rest
    connection.channel = connection.sender = connection.recovery = None
    connection.receiver = connection.responder = connection.closing = None
