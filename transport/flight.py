"""What is in flight: one `Send` per transmission, kept in two orders.

A path is FIFO, so a later segment that arrived by a path is evidence about the earlier ones on it, whichever connection
they belong to. A `Subflow` is one such order: the path as this host uses it to one peer. The other order is the
connection's own, over all of its paths. Both are linked lists through the Sends, so every operation is O(1).
"""

from __future__ import annotations

from typing import Any

import cython

from transport.path import Path
from transport.timers import Timed


class Send:
    """One transmission of `count` contiguous segments of one work request on one path.

    first: DSN of its first segment; psn, order: PSN and place in the subflow's order of that segment; copies: how often
    these segments have been sent, this time included; left: segments neither acknowledged nor declared lost; sender:
    the
    Sender that owns it; work: the work request; lost_on: path index that lost the previous copy, -1 for a first copy;
    previous: that copy.
    """

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self.left = 0
        self.psn = 0
        self.order = 0
        self.sent_at = 0
        self.copies = 1
        self.lost_on = -1
        self.subflow: Subflow = None  # type: ignore[assignment]  # set before the Send is linked
        self.sender: Any = None
        self.work: Any = None
        self.older: Send | None = None
        self.newer: Send | None = None
        self.previous: Send | None = None
        self.path_older: Send | None = None
        self.path_newer: Send | None = None


class Flow:
    """A connection's Sends, oldest first."""

    def __init__(self) -> None:
        self.oldest: Send | None = None
        self.newest: Send | None = None

    def append(self, send: Send) -> None:
        send.older = self.newest
        send.newer = None
        if self.newest is None:
            self.oldest = send
        else:
            self.newest.newer = send
        self.newest = send

    def remove(self, send: Send) -> None:
        if send.older is None:
            self.oldest = send.newer
        else:
            send.older.newer = send.newer
        if send.newer is None:
            self.newest = send.older
        else:
            send.newer.older = send.older
        send.older = None
        send.newer = None


class Subflow(Timed):
    """The FIFO order of one path: its Sends, oldest first, and the three highest places that were acknowledged.

    A segment with three later ones of its path acknowledged is missing (RFC 9002 section 6.1.1 counts packet numbers;
    here they are counted one by one, so a single overtaking packet proves nothing). reorder: how late an overtaken
    segment has been, picoseconds. detector: looks for losses when the deadline comes.
    """

    def __init__(self, path: Path) -> None:
        Timed.__init__(self)
        self.path = path
        self.reorder = 0
        self.next_order = 0
        self.high1 = -1
        self.high2 = -1
        self.high3 = -1
        self.oldest: Send | None = None
        self.newest: Send | None = None
        self.detector: Any = None

    def append(self, send: Send) -> None:
        send.order = self.next_order
        self.next_order += send.count
        send.path_older = self.newest
        send.path_newer = None
        if self.newest is None:
            self.oldest = send
        else:
            self.newest.path_newer = send
        self.newest = send

    def remove(self, send: Send) -> None:
        if send.path_older is None:
            self.oldest = send.path_newer
        else:
            send.path_older.path_newer = send.path_newer
        if send.path_newer is None:
            self.newest = send.path_older
        else:
            send.path_newer.path_older = send.path_older
        send.path_older = None
        send.path_newer = None

    def acknowledged(self, order: cython.longlong) -> cython.bint:
        """Note that the segment at `order` arrived. True if a later one had been acknowledged before it: it was
        overtaken."""
        if order > self.high1:
            self.high3 = self.high2
            self.high2 = self.high1
            self.high1 = order
            return False
        if order > self.high2:
            self.high3 = self.high2
            self.high2 = order
        elif order > self.high3:
            self.high3 = order
        return True

    def expire(self, now: cython.longlong) -> None:
        """The age that a missing segment still lacked has come."""
        self.detector.detect(now, self)
