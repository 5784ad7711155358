"""Ending a connection: finish what was posted, say CLOSE, hear the peer's, repeat the last ACK for a while, be gone.

Each step has a deadline. While closing gets on the deadline moves; when nothing moved for the give-up time, what is
left is flushed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.clock import NEVER, Time
from transport.completion import Status
from transport.control import Close
from transport.sequence import wrap
from transport.states import State

if TYPE_CHECKING:
    from transport.connection import Connection


class Closing:
    """How far the end of `connection` has come. until: when `expire` must be called, NEVER unless it ends."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.begun = False
        self.said = False
        self.peer_closed = False
        self.over = False  # both sides have said CLOSE: only the last ACK is repeated
        self.mark = 0
        self.until = NEVER

    def begin(self, now: Time) -> None:
        """The user, or the peer, wants the end."""
        self.begun = True
        self.mark = self._measure()
        self.until = now + self.connection.context.give_up()

    def progress(self, now: Time) -> None:
        """Take the next step if it is time for it."""
        connection = self.connection
        channel, sender = connection.channel, connection.sender
        if not self.said and sender.idle():
            self.said = True
            # The CLOSE itself is the last of its space.
            final = Close(wrap(sender.next), wrap(channel.next + len(channel.waiting) + 1))
            channel.post(final, ask=True)
        elif self.said and self.peer_closed and not channel.pending() and not self.over:
            self.over = True
            connection.receiver.flush(connection.describe("the connection was closed"))
            self.until = now + 2 * connection.context.rto()

    def expire(self, now: Time) -> None:
        """The deadline has come: wait on if there was progress, else end it."""
        connection = self.connection
        mark = self._measure()
        if connection.state == State.SQD and not self.over and mark != self.mark:
            self.mark = mark
            self.until = now + connection.context.give_up()
            connection.rearm(now)
            return
        if connection.sender.queue:
            cause = "the connection was closed before the request could be finished"
            recovery = connection.recovery
            history = f"{recovery.expirations} retransmission timeouts, {recovery.last_ack(now)}"
            connection.fail(now, Status.WR_FLUSH_ERR, f"{cause}: {history}", None)
        connection.destroy()

    def _measure(self) -> int:
        """Grows as long as closing gets on: data goes out or comes in, messages are delivered, requests complete."""
        connection = self.connection
        receiver = connection.receiver
        return connection.sender.una + receiver.ledger.edge + receiver.head - len(connection.sender.queue)
