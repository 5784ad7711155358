"""The receiver's ledger: which data segments have arrived, and which of them met congestion.

It is the only thing a receiver keeps instead of a reorder buffer: one byte a segment over the window, nothing when
idle.
`edge` moves with contiguous arrival. A segment below the edge or already marked is a duplicate: it is acknowledged and
never placed (rule P8), since its message may have been delivered and its buffer reused.
"""

from __future__ import annotations

import cython

from transport.control import Ack
from transport.sequence import wrap

NEW = 0  #: place it
DUPLICATE = 1  #: acknowledge, do not place
OUTSIDE = 2  #: more than a window away: drop

_SMALLEST = 64


class Ledger:
    """Arrival record of one direction. Sequences are unwrapped. `first`: the peer's first DSN; `window`: how far beyond
    the edge the peer may send."""

    def __init__(self, first: cython.longlong, window: cython.longlong) -> None:
        self.edge = first
        self.top = first  # one above the highest segment that arrived
        self.base = first  # where the next ACK's bitmap starts
        self.previous_edge = first  # edge told by the last ACK, which becomes the base of the ACK after the next
        self.window = window
        self.mask = 0
        self.ring = bytearray(1)  # by sequence & mask: 0 missing, 1 arrived, 3 arrived with CE
        self.marked_packets = 0
        self.marked_bytes = 0
        self.duplicates = 0
        self.last_duplicate = 0

    def classify(self, sequence: cython.longlong) -> cython.int:
        """NEW, DUPLICATE or OUTSIDE. Changes nothing."""
        if sequence < self.edge:  # the sender knows all below edge - window: nothing from there waits for an answer
            return 1 if sequence >= self.edge - self.window else 2
        if sequence >= self.edge + self.window:
            return 2
        if sequence < self.top and self.ring[sequence & self.mask]:
            return 1
        return 0

    def record(self, sequence: cython.longlong, size: cython.longlong, marked: cython.bint) -> None:
        """Segment `sequence` of `size` payload bytes, which `classify` called NEW, was placed."""
        if sequence - self.base > self.mask:
            self._grow(sequence)
        if sequence >= self.top:
            self.top = sequence + 1
        if marked:
            self.ring[sequence & self.mask] = 3
            self.marked_packets += 1
            self.marked_bytes += size
        else:
            self.ring[sequence & self.mask] = 1
        while self.edge < self.top and self.ring[self.edge & self.mask]:
            self.edge += 1

    def record_duplicate(self, sequence: cython.longlong) -> None:
        self.duplicates += 1
        self.last_duplicate = sequence

    def fill(self, ack: Ack, limit: cython.longlong) -> None:
        """Write edge, base and bitmaps (of at most `limit` bits) into `ack`, and move the base for the ACK after the
        next."""
        i: cython.longlong
        flags: cython.int
        base: cython.longlong = self.base
        if self.top - base > limit:
            base = min(self.edge, self.top - limit)
        bits: cython.longlong = min(self.top - base, limit)
        received = bytearray((bits + 7) >> 3)
        marked = bytearray((bits + 7) >> 3)
        for i in range(bits):
            flags = self.ring[(base + i) & self.mask]
            if flags:
                received[i >> 3] |= 1 << (i & 7)
                if flags & 2:
                    marked[i >> 3] |= 1 << (i & 7)
        ack.edge = wrap(self.edge)
        ack.base = wrap(base)
        ack.bits = bits
        ack.received = bytes(received)
        ack.marked = bytes(marked)
        ack.marked_packets = wrap(self.marked_packets)
        ack.marked_bytes = self.marked_bytes
        ack.duplicates = wrap(self.duplicates)
        ack.last_duplicate = wrap(self.last_duplicate)
        self._move_base(self.previous_edge)
        self.previous_edge = self.edge

    def _move_base(self, to: cython.longlong) -> None:
        while self.base < to:
            self.ring[self.base & self.mask] = 0
            self.base += 1

    def _grow(self, sequence: cython.longlong) -> None:
        i: cython.longlong
        if sequence - self.base >= 4 * self.window:  # bounded: forget marks that were told long ago
            self._move_base(self.edge)
        size: cython.longlong = max(_SMALLEST, self.mask + 1)
        while size <= sequence - self.base:
            size *= 2
        if size == self.mask + 1:
            return
        ring = bytearray(size)
        for i in range(self.base, self.top):
            ring[i & (size - 1)] = self.ring[i & self.mask]
        self.ring = ring
        self.mask = size - 1
