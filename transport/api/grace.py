"""A peer whose bootstrap channel ended without a bye: dead unless it answers within two timeouts.

The end of the channel alone proves nothing, a connection whose data flows goes on (protocol rule 11). So the peer is
asked, and if no acknowledgement came since, everything outstanding ends in RETRY_EXC_ERR.
"""

from __future__ import annotations

from transport.clock import NEVER, Time
from transport.completion import Status
from transport.connection import Connection
from transport.states import State
from transport.timers import Timed


class Grace(Timed):
    """The grace of `connection`; nothing happens before `begin`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self.asked_at = 0

    def begin(self, now: Time) -> None:
        """The channel has ended. The connection is in RTS or SQD."""
        self.asked_at = now
        self.connection.ask(now)
        self.connection.context.timers.arm(self, now + 2 * self.connection.context.rto())

    def end(self) -> None:
        self.connection.context.timers.arm(self, NEVER)

    def expire(self, now: Time) -> None:
        connection = self.connection
        if connection.state not in (State.RTS, State.SQD):
            return
        # A dormant connection has had its answer: one that waits for it does not fall asleep.
        if connection.dormant is None and connection.recovery.acked_at < self.asked_at:
            cause = (
                "the bootstrap channel ended without a bye, and the peer does not answer any more, "
                f"{connection.recovery.last_ack(now)}, {connection.recovery.expirations} retransmission timeouts"
            )
            connection.fail(now, Status.RETRY_EXC_ERR, cause, None)
