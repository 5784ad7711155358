"""What a congestion control is told: one small record per event, owned by this package.

Times are integer picoseconds, sizes bytes. -1 stands for "not measured". A record is reused for the next event: copy
what you keep.
"""

from __future__ import annotations

from typing import NamedTuple


class Hop(NamedTuple):
    """In-band telemetry of one output port (INT): bytes left in its queue, bytes it ever sent, when, and its rate in
    bits per second."""

    queue: int
    sent: int
    time: int
    rate: int


class AckSignal:
    """An acknowledgement that told something new.

    acked_bytes, acked_packets: newly acknowledged. marked_bytes, marked_packets: those of them that met CE (0 when the
    arbiter answers a mark by switching path). rtt: round trip of the packet that triggered the ACK, without the
    receiver's hold time, -1 if it cannot be known. min_rtt: least round trip of any path of the peer. in_flight: bytes
    outstanding after this ACK. window_limited: the sender had more to send than the window let out.

    median_rtt, spread_rtt: median, and largest minus smallest, of the latest samples over all paths: under spraying the
    latest sample alone says nothing. marked_fraction: share of the paths in use, 0.0 to 1.0, that see marks.

    hops: telemetry of the ports that the newest data packet passed before this ACK, the first one first; None where the
    network has none (NicCaps.int_telemetry), or no data came since the ACK before.
    """

    __slots__ = (
        "acked_bytes", "acked_packets", "hops", "in_flight", "marked_bytes", "marked_fraction", "marked_packets",
        "median_rtt", "min_rtt", "rtt", "spread_rtt", "window_limited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.acked_bytes = 0
        self.acked_packets = 0
        self.marked_bytes = 0
        self.marked_packets = 0
        self.rtt = -1
        self.min_rtt = -1
        self.in_flight = 0
        self.window_limited = False
        self.median_rtt = -1
        self.spread_rtt = -1
        self.marked_fraction = 0.0
        self.hops: list[Hop] | None = None


class LossSignal:
    """Packets declared lost. lost_bytes, lost_packets: newly declared; in_flight: bytes outstanding afterwards;
    trimmed: a switch said so (NACK), the path lives; sent_at: when the newest of them left."""

    __slots__ = ("in_flight", "lost_bytes", "lost_packets", "sent_at", "trimmed")

    def __init__(self) -> None:
        self.lost_bytes = 0
        self.lost_packets = 0
        self.in_flight = 0
        self.trimmed = False
        self.sent_at = 0
